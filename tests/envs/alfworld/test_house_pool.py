"""The pools of generated houses: sizes, mixtures, ids, owners, and content that must not change unnoticed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.alfworld import engine
from fedagentgym.envs.alfworld.env import ALFWorldEnv, OwnRooms
from fedagentgym.envs.alfworld.game import CATEGORIES
from fedagentgym.envs.alfworld.gamefiles import render_problem
from fedagentgym.envs.alfworld.houses import SPLITS, get_category_counts, list_house_words, make_house_pool
from fedagentgym.envs.alfworld.layouts import SIZES
from fedagentgym.envs.alfworld.plans import plan_commands
from fedagentgym.envs.make import open_env
from fedagentgym.envs.pool import TaskPool

ENV = "fedagentgym/ALFWorld-v0"
Pools = Callable[..., TaskPool]

GOLDEN = {
    "tiny": "sha256:1511a1b96706588db1eb4f6eaf124c238ce2eb9eafbc0752712523dcddea297b",
    "small": "sha256:613f0d35be889b3e69bdc5cabae98fcde38811e244ed5b58323fae37b86b1c91",
    "full": "sha256:af09868951a8dfe056821980a1d447f59279fc9ce6d1f5c2c06c88079ea598c1",
}
"""sha256 over the problems of the first four games of each split. A generator whose output changes gets a new version."""


@pytest.mark.parametrize("size", ["full", "small"])
def test_the_default_pool_has_alfworlds_sizes_and_mixture(pool: Pools, size: str) -> None:
    assert {split: len(pool(size, split)) for split in SPLITS} == {
        "train": 3553,
        "val": 140,
        "test": 134,
        "warmup": 2000,
    }
    mixtures = {split: tuple(pool(size, split).categories[name] for name in CATEGORIES) for split in SPLITS}
    assert mixtures["train"] == (790, 308, 650, 459, 533, 813)
    assert mixtures["val"] == (35, 13, 27, 16, 25, 24)
    assert mixtures["test"] == (24, 18, 31, 23, 21, 17)


def test_the_tiny_pool_has_every_category_equally_often(pool: Pools) -> None:
    assert {split: len(pool("tiny", split)) for split in SPLITS} == {
        "train": 3000,
        "val": 200,
        "test": 200,
        "warmup": 2000,
    }
    for split in SPLITS:
        counts = pool("tiny", split).categories.values()
        assert len(counts) == 6 and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_all_holds_the_splits_in_native_order(pool: Pools, size: str) -> None:
    everything = make_house_pool("all", env=ENV, size=size)
    ids = [identifier for split in SPLITS for identifier in pool(size, split).ids]
    assert list(everything.ids) == ids
    assert ids[0] == "alfworld/train/00000"
    for split in SPLITS:
        last = pool(size, split)[-1]
        assert everything[last.id].payload == last.payload
        assert everything[last.id].category == last.category == last.payload.category
        assert everything[last.id].split == split


def test_no_game_is_in_two_splits_or_twice_in_one(pool: Pools) -> None:
    seen = Counter()
    for split in SPLITS:
        for index in range(0, len(pool("tiny", split)), 4):
            game = pool("tiny", split)[index].payload
            seen[game.receptacles, game.objects, game.contents, game.task] += 1
    assert max(seen.values()) == 1


@pytest.mark.parametrize("size", SIZES)
def test_generated_content_does_not_change_unnoticed(pool: Pools, size: str) -> None:
    problems = [render_problem(pool(size, split)[index].payload) for split in SPLITS for index in range(4)]
    assert digest(problems) == GOLDEN[size]


def test_digests_name_size_seed_and_wording_but_not_the_owner() -> None:
    options: list[dict[str, Any]] = [{}, {"size": "tiny"}, {"seed": 1}, {"wording": "put"}]
    digests = [make_house_pool("val", env=ENV, **chosen).digest for chosen in options]
    assert len(set(digests)) == 4
    assert make_house_pool("val", env=ENV, owner=OwnRooms(client=3).owner).digest == digests[0]


def test_a_scene_split_gives_each_client_rooms_of_its_own() -> None:
    owners = ["", *(OwnRooms(client=client, seed=4).owner for client in range(3))]
    pools = [make_house_pool("train", env=ENV, size="small", owner=owner) for owner in owners]
    rooms = [{one[index].payload.receptacles for index in range(40)} for one in pools]
    for number, mine in enumerate(rooms):
        assert not any(mine & other for other in rooms[:number])
    tasks = [[one[index].category for index in range(40)] for one in pools]
    assert all(one == tasks[0] for one in tasks)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "huge"}, "size"),
        ({"size": "ful"}, "full"),
        ({"wording": "drop"}, "wording"),
        ({"seed": -1}, "-1"),
        ({"seed": True}, "True"),
        ({"seed": "7"}, "'7'"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FedAgentGymError) as refused:
        make_house_pool("val", env=ENV, **options)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ({"kind": "colours"}, "known are scene_split"),
        ({}, "scene_split"),
        ({"kind": "scene_split"}, "client"),
        ({"kind": "scene_split", "client": -2}, "client"),
        ({"kind": "scene_split", "client": 1.5}, "1.5"),
        ({"kind": "scene_split", "client": 1, "sede": 2}, "seed"),
    ],
)
def test_bad_variants_are_refused_in_one_sentence(variant: dict[str, Any], said: str) -> None:
    with pytest.raises(FedAgentGymError) as refused:
        open_env(ALFWorldEnv, size="tiny", variant=variant)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_owners_of_different_seeds_and_clients_are_different() -> None:
    owners = {OwnRooms(client=client, seed=seed).owner for client in (1, 11) for seed in (0, 1, 11)}
    assert len(owners) == 6


def test_the_vocabulary_holds_every_word_that_generated_games_say(pool: Pools) -> None:
    for size in SIZES:
        known = set(open_env(ALFWorldEnv, size=size).vocabulary())
        for index in range(0, 120, 3):
            game = pool(size)[index].payload
            assert (
                {kind.lower() for kind in (*game.receptacle_kinds, *game.object_kinds)}
                <= list_house_words(size)
                <= known
            )
            said = re.findall(r"[A-Za-z]+", engine.start(game).feedback)
            assert set(said) <= known


def test_mixtures_add_up(pool: Pools) -> None:
    for size in SIZES:
        for split in SPLITS:
            assert sum(get_category_counts(size, split)) == len(pool(size, split))


def test_the_hardness_of_a_task_is_the_length_of_its_shortest_plan(pool: Pools) -> None:
    for index in range(0, 60, 7):
        task = pool("full")[index]
        assert task.hardness == len(plan_commands(task.payload) or ())
