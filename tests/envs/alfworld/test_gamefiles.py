"""Game files: named as ALFWorld names them, read back as the same game, and won by the expert in the real engine."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.envs.alfworld.env import ALFWorldEnv
from fedagentgym.envs.alfworld.game import CATEGORIES, Game, Receptacle, Thing, build_game
from fedagentgym.envs.alfworld.gamefiles import (
    TASK_TYPES,
    make_folder_name,
    make_game_content,
    render_problem,
    write_game,
    write_game_files,
)
from fedagentgym.envs.alfworld.houses import SPLITS
from fedagentgym.envs.alfworld.plans import extract_target, plan_commands
from fedagentgym.envs.alfworld.reader import read_problem
from fedagentgym.envs.make import open_env
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task

Pools = Callable[..., TaskPool]
NEEDS_ALFWORLD = pytest.mark.skipif(
    importlib.util.find_spec("alfworld") is None, reason="alfworld is not installed (extra [alfworld])"
)


def _one_of_each(pool: TaskPool, first: int = 0) -> list[Task]:
    found: dict[str, Task] = {}
    for index in range(first, len(pool)):
        task = pool[index]
        found.setdefault(task.category, task)
        if len(found) == len(CATEGORIES):
            break
    return [found[category] for category in CATEGORIES]


@pytest.mark.parametrize("size", ["tiny", "small", "full"])
def test_a_problem_read_back_is_the_same_game(pool: Pools, size: str) -> None:
    for split in SPLITS:
        for task in _one_of_each(pool(size, split)):
            game: Game = task.payload
            again = read_problem(render_problem(game), task=game.task, wording=game.wording, scene=game.scene)
            assert again == game


def test_every_fact_is_written() -> None:
    """Also those that generated houses never hold: things in things, open doors, treated objects, a full hand."""
    traits = frozenset(["pickupable", "container", "cleanable", "heatable", "sliceable"])
    game = build_game(
        receptacles=[
            Receptacle("Cabinet_bar_1", "Cabinet", "loc_bar_1", openable=True, opened=True),
            Receptacle("Shelf_bar_1", "Shelf", None),
        ],
        things=[
            Thing(
                "Bowl_bar_1",
                "Bowl",
                ("Cabinet_bar_1",),
                "loc_bar_1",
                traits,
                frozenset(["clean", "hot"]),
                ("Egg_bar_1",),
            ),
            Thing("Egg_bar_1", "Egg", (), "loc_bar_1", traits, frozenset(["sliced"])),
            Thing("Cup_bar_1", "Cup", (), None, traits, frozenset(["cool"])),
            Thing("DeskLamp_bar_1", "DeskLamp", ("Cabinet_bar_1",), "loc_bar_1", frozenset(["toggleable"])),
        ],
        start="loc_bar_0",
        can_contain={"Cabinet": ["Bowl", "Cup"]},
        goal=(
            "and",
            (
                "exists",
                ("?o", "-", "object", "?a", "-", "agent"),
                ("and", ("holds", "?a", "?o"), ("objectType", "?o", "CupType")),
            ),
        ),
        task="hold a cup",
        category="Pick",
        holding="Cup_bar_1",
    )
    assert read_problem(render_problem(game), task=game.task) == game


def test_folders_are_named_as_the_real_ones(pool: Pools) -> None:
    for task in _one_of_each(pool("full", "test")):
        target = extract_target(task.payload)
        assert target is not None
        name = make_folder_name(task.payload)
        kind, thing, movable, place, scene = name.split("-")
        assert (kind, thing, movable, place) == (TASK_TYPES[task.category], target.thing, "None", target.place)
        assert int(scene) in (10, 219, 308, 424)
        assert "movable" not in name and "Sliced" not in name


@NEEDS_ALFWORLD
def test_written_games_are_a_pool_again(pool: Pools, tmp_path: Path) -> None:
    tasks = [task for split in ("train", "val", "test") for task in _one_of_each(pool("tiny", split))]
    paths = write_game_files(tasks, tmp_path)
    assert len(set(paths)) == len(tasks)
    pattern = r"(train|valid_seen|valid_unseen)/[a-z_]+-\w+-None-\w+-\d+/trial_T\d{8}_\d{6}_\d{6}/game\.tw-pddl"
    for path, task in zip(paths, tasks, strict=True):
        assert re.fullmatch(pattern, path.relative_to(tmp_path).as_posix())
        content = json.loads(path.read_text())
        assert set(content) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
        assert content["solvable"] is True and tuple(content["walkthrough"]) == plan_commands(task.payload)
        trajectory = json.loads(path.with_name("traj_data.json").read_text())
        assert trajectory["task_type"] == TASK_TYPES[task.category]
        lamp = trajectory["pddl_params"]["toggle_target"]
        assert bool(lamp) == (task.category == "Look")
    folder = {split: open_env(ALFWorldEnv, games=tmp_path, split=split).pool for split in ("train", "val", "test")}
    for split, loaded in folder.items():
        assert sorted(loaded.categories.items()) == sorted((category, 1) for category in CATEGORIES), split


@pytest.mark.by_day(2)
@NEEDS_ALFWORLD
@pytest.mark.parametrize(
    ("size", "wording", "categories"),
    [
        ("tiny", "move", ("Look", "Clean", "Pick2")),
        ("tiny", "put", ("Pick", "Cool", "Heat")),
        pytest.param("full", "move", ("Heat",), marks=pytest.mark.slow),
    ],
)
def test_the_real_engine_plays_them_and_the_expert_wins(size: str, wording: str, categories: tuple[str, ...]) -> None:
    """In the real engine: the walkthrough wins, and so does the exploring expert."""
    env = open_env(ALFWorldEnv, engine="textworld", size=size, wording=wording, split="test", max_turns=50)
    try:
        for task in _one_of_each(env.pool):
            if task.category not in categories:
                continue
            (start,) = env.reset_many([task], [0])
            episode, expert = start, env.expert()
            while not episode.over:
                (episode,) = env.step_many([episode], [expert.act(episode)])
            assert episode.view.success, task.payload.task
            episode = start
            for command in plan_commands(task.payload) or ():
                (episode,) = env.step_many([episode], [command])
            assert episode.view.success, task.payload.task
    finally:
        env.close()


@pytest.mark.slow
@NEEDS_ALFWORLD
def test_the_expert_wins_twentyfour_games_in_the_real_engine(pool: Pools) -> None:
    env = open_env(ALFWorldEnv, engine="textworld")
    won = 0
    try:
        for first in range(0, 400, 100):
            for task in _one_of_each(pool("full"), first):
                (episode,), expert = env.reset_many([task], [0]), env.expert()
                while not episode.over:
                    (episode,) = env.step_many([episode], [expert.act(episode)])
                won += episode.view.success
    finally:
        env.close()
    assert won >= 23


def test_a_goal_of_another_form_has_no_folder_name(tmp_path: Path) -> None:
    game = build_game(
        receptacles=[Receptacle("Cabinet_bar_1", "Cabinet", "loc_bar_1")],
        things=[Thing("Egg_bar_1", "Egg", ("Cabinet_bar_1",), "loc_bar_1", frozenset(["pickupable", "sliceable"]))],
        start="loc_bar_0",
        can_contain={"Cabinet": ["Egg"]},
        goal=("and", ("exists", ("?o", "-", "object"), ("isSliced", "?o"))),
        task="slice an egg",
        category="Pick",
    )
    with pytest.raises(DataError, match="six plain forms"):
        write_game(game, tmp_path, trial="trial_1")
    assert "isSliced" in make_game_content(game)["pddl_problem"] if importlib.util.find_spec("alfworld") else True
    assert not list(tmp_path.iterdir())


def test_only_alfworld_games_are_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="math/train/00000"):
        write_game_files(
            [Task("math/train/00000", "fedagentgym/Math-v0", "train", "sum", {"question": "1 + 1"})], tmp_path
        )
