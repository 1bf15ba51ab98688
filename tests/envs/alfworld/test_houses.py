"""Properties of every generated game: well formed, not yet solved, solvable in few commands, named by its sentence."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.envs.alfworld import engine
from fedagentgym.envs.alfworld.env import ALFWorldEnv
from fedagentgym.envs.alfworld.game import CATEGORIES, TRAITS, Game, list_members
from fedagentgym.envs.alfworld.houses import MAX_PLAN_LENGTH, SPLITS, HouseKey, generate_house
from fedagentgym.envs.alfworld.layouts import SIZES, list_seen_scenes, list_unseen_scenes
from fedagentgym.envs.alfworld.plans import APPLIANCE, Target, extract_target, plan_commands
from fedagentgym.envs.alfworld.wording import SENTENCE_TEMPLATES, make_task_sentence
from fedagentgym.envs.make import open_env
from fedagentgym.envs.tasks import Task

KEYS = st.builds(
    HouseKey,
    seed=st.sampled_from([0, 1, 2**31]),
    size=st.sampled_from(SIZES),
    split=st.sampled_from(SPLITS),
    number=st.integers(0, 10**6),
    category=st.sampled_from(CATEGORIES),
    owner=st.sampled_from(["", "0.3"]),
    wording=st.sampled_from(["move", "put"]),
)


def _target(game: Game) -> Target:
    target = extract_target(game)
    assert target is not None
    return target


def _holders(game: Game, kind: str) -> list[str]:
    """The kinds of receptacles that hold something of this kind, one entry for each such object."""
    return [
        game.receptacle_kinds[place]
        for place, held in enumerate(game.contents)
        for thing in list_members(held)
        if game.object_kinds[thing] == kind
    ]


@given(KEYS)
def test_the_goal_does_not_hold_yet_and_the_shortest_plan_reaches_it(key: HouseKey) -> None:
    game = generate_house(key)
    outcome = engine.start(game)
    assert not outcome.state.won
    plan = plan_commands(game)
    assert plan is not None and 3 <= len(plan) <= MAX_PLAN_LENGTH[key.size]
    for command in plan:
        assert not outcome.state.won
        outcome = engine.step(game, outcome.state, command)
        assert outcome.valid
    assert outcome.state.won


@given(KEYS)
def test_the_sentence_names_what_the_goal_checks(key: HouseKey) -> None:
    game = generate_house(key)
    target = _target(game)
    assert target.category == key.category == game.category
    words = re.findall(r"[a-z0-9]+", game.task)
    assert target.thing.lower() in words and target.place.lower() in words
    wordings = {make_task_sentence(key.category, target.thing, target.place, n) for n in range(3)}
    assert game.task in wordings
    assert f"Your task is to: {game.task}." in engine.start(game).feedback


@given(KEYS)
def test_targets_start_neither_where_they_belong_nor_in_what_treats_them_nor_out_of_reach(key: HouseKey) -> None:
    game = generate_house(key)
    target = _target(game)
    starts = _holders(game, target.thing)
    assert len(starts) == game.object_kinds.count(target.thing)
    assert len(starts) >= (2 if key.category == "Pick2" else 1)
    if key.category in ("Pick", "Pick2"):
        assert target.place not in starts
    assert APPLIANCE.get(key.category) not in starts


@given(KEYS)
def test_whatever_can_be_taken_can_be_put_back(key: HouseKey) -> None:
    """Else an agent could pick something up and never have a free hand again."""
    game = generate_house(key)
    pickupable = game.traits[TRAITS.index("pickupable")]
    for place, held in enumerate(game.contents):
        for thing in list_members(held & pickupable):
            assert game.object_kinds[thing] in game.can_contain[game.receptacle_kinds[place]]


@given(KEYS)
def test_sizes_keep_their_bounds(key: HouseKey) -> None:
    game = generate_house(key._replace(size="tiny"))
    assert 3 <= len(game.receptacles) <= 8
    assert len(game.objects) <= 12
    small = generate_house(key._replace(size="small"))
    assert max(Counter(small.receptacle_kinds).values()) <= 2


@given(KEYS)
def test_the_same_key_gives_the_same_game(key: HouseKey) -> None:
    assert generate_house(key) == generate_house(key)
    assert generate_house(key).wording == key.wording


def test_games_differ_by_number_split_and_seed() -> None:
    key = HouseKey(0, "tiny", "train", 7, "Heat")
    others = [key._replace(number=8), key._replace(split="warmup"), key._replace(split="val"), key._replace(seed=1)]
    games = [generate_house(one) for one in (key, *others)]
    assert len({(game.receptacles, game.objects) for game in games}) == len(games)


@pytest.mark.parametrize("size", SIZES)
def test_unseen_games_are_played_in_unseen_rooms_and_all_others_in_seen_ones(size: str) -> None:
    def scenes(split: str) -> set[int]:
        games = [generate_house(HouseKey(0, size, split, number, CATEGORIES[number % 6])) for number in range(90)]
        return {int(game.scene.removeprefix("FloorPlan")) for game in games}

    assert scenes("test") <= set(list_unseen_scenes(size))
    for split in ("train", "val", "warmup"):
        assert scenes(split) <= set(list_seen_scenes(size))


def test_a_private_room_keeps_the_errand_and_belongs_to_one_client() -> None:
    keys = [HouseKey(0, "full", "train", number, CATEGORIES[number % 6]) for number in range(60)]
    common = [generate_house(key) for key in keys]
    private = {owner: [generate_house(key._replace(owner=owner)) for key in keys] for owner in ("0.1", "0.2", "9.1")}
    rooms = {owner: {game.receptacles for game in games} for owner, games in private.items()}
    assert not rooms["0.1"] & rooms["0.2"] and not rooms["0.1"] & rooms["9.1"]
    assert not {game.receptacles for game in common} & rooms["0.1"]
    for games in private.values():
        assert [extract_target(game) for game in games] == [extract_target(game) for game in common]
        assert len({game.scene for game in games}) < 25


def test_there_are_at_least_two_wordings_per_task_type() -> None:
    for category, wordings in SENTENCE_TEMPLATES.items():
        assert len(set(wordings)) >= 2
        games = [generate_house(HouseKey(0, "tiny", "train", number, category)) for number in range(30)]
        target_words = [(t.thing.lower(), t.place.lower()) for t in map(_target, games)]
        forms = {
            re.sub(rf"\b{thing}\b", "THING", re.sub(rf"\b{place}\b", "PLACE", game.task))
            for game, (thing, place) in zip(games, target_words, strict=True)
        }
        assert len(forms) == len(wordings)


@settings(max_examples=20)
@given(KEYS)
def test_the_goal_in_one_line_is_the_sentence_that_the_first_observation_says(key: HouseKey) -> None:
    env = open_env(ALFWorldEnv, size="tiny", split="val")
    task = Task("alfworld/val/00000", env.id, "val", key.category, generate_house(key))
    assert f"Your task is to: {env.goal(task)}." in env.begin(task, 0)[1].observation
