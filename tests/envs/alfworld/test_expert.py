"""The exploring expert: it wins every tiny game, nearly every other one, and copes with foreign actions."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedagentgym.envs.alfworld import engine
from fedagentgym.envs.alfworld.env import OwnRooms
from fedagentgym.envs.alfworld.expert import HouseholdExpert
from fedagentgym.envs.alfworld.game import Game, Receptacle, Thing, build_game
from fedagentgym.envs.alfworld.houses import SPLITS, TURNS, make_house_pool
from fedagentgym.envs.alfworld.plans import extract_target, find_shortest_plan, make_goal
from fedagentgym.envs.alfworld.reader import read_game, read_problem
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.view import Episode, View

Pools, Player = Callable[..., TaskPool], Callable[..., int | None]


def _as_task(game: Game) -> Task:
    return Task("alfworld/train/00000", "fedagentgym/ALFWorld-v0", "train", game.category, game)


def _won(pool: Pools, turns_to_win: Player, size: str, split: str, step: int) -> list[int | None]:
    tasks = pool(size, split)
    return [turns_to_win(tasks[index].payload, TURNS[size]) for index in range(0, len(tasks), step)]


@pytest.mark.parametrize("split", SPLITS)
def test_it_wins_every_tiny_game_within_twenty_turns(pool: Pools, turns_to_win: Player, split: str) -> None:
    assert TURNS["tiny"] == 20
    assert None not in _won(pool, turns_to_win, "tiny", split, 1 if split in ("val", "test") else 4)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_it_wins_nearly_all_of_the_default_pool_within_fifty(
    pool: Pools, turns_to_win: Player, split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = _won(pool, turns_to_win, "full", split, 12 if split == "train" else 1)
    share = sum(turn is not None for turn in turns) / len(turns)
    with capsys.disabled():
        sys.stdout.write(f"\nALFWorld expert, full {split}: {share:.4f} of {len(turns)} games within 50 turns\n")
    assert share >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "small", "full"])
def test_it_wins_the_whole_training_pool(pool: Pools, turns_to_win: Player, size: str) -> None:
    turns = _won(pool, turns_to_win, size, "train", 1)
    share = sum(turn is not None for turn in turns) / len(turns)
    assert share == 1.0 if size == "tiny" else share >= 0.95


def test_it_is_never_faster_than_the_shortest_plan(pool: Pools, turns_to_win: Player) -> None:
    for index in range(0, 120, 2):
        task = pool("tiny")[index]
        plan, turns = find_shortest_plan(task.payload), turns_to_win(task.payload, 20)
        assert plan is not None and turns is not None and turns >= len(plan)


@pytest.mark.parametrize(("size", "noise", "share"), [("tiny", 0.2, 0.95), ("full", 0.3, 0.93)])
def test_it_copes_with_foreign_actions(
    pool: Pools, turns_to_win: Player, size: str, noise: float, share: float
) -> None:
    turns = [turns_to_win(pool(size)[index].payload, 50, noise) for index in range(0, 600, 4)]
    assert sum(turn is not None for turn in turns) / len(turns) >= share


def test_it_goes_on_in_the_middle_of_an_episode(pool: Pools) -> None:
    """A fresh expert may be asked at any time: what it missed it finds out."""
    for index in range(0, 60, 3):
        task = pool("tiny")[index]
        game: Game = task.payload
        outcome, first = engine.start(game), HouseholdExpert()
        for turn in range(4):
            offered = engine.list_admissible_commands(game, outcome.state)
            command = first.act(Episode(task, 0, turn, None, View(outcome.feedback, offered)))
            outcome = engine.step(game, outcome.state, command)
        second = HouseholdExpert()
        for turn in range(4, 30):
            if outcome.state.won:
                break
            view = View(
                "Nothing happens." if turn == 4 else outcome.feedback,
                engine.list_admissible_commands(game, outcome.state),
            )
            outcome = engine.step(game, outcome.state, second.act(Episode(task, 0, turn, None, view)))
        assert outcome.state.won


def test_it_plays_both_wordings_alike(pool: Pools, turns_to_win: Player) -> None:
    for index in range(0, 40, 5):
        game: Game = pool("full")[index].payload
        spoken = {wording: replace(game, wording=wording) for wording in ("move", "put")}
        turns = {wording: turns_to_win(one, 50) for wording, one in spoken.items()}
        assert turns["move"] == turns["put"] is not None


@pytest.mark.parametrize("name", ["parity", "parity_move", "parity_put"])
def test_it_wins_the_recorded_games(turns_to_win: Player, shared_data: Path, name: str) -> None:
    cases = json.loads(gzip.decompress((shared_data / "alfworld" / f"{name}.json.gz").read_bytes()))
    wording = cases.get("wording", "move")
    for case in cases["cases"]:
        game = read_problem(case["game"]["pddl_problem"], task=case["game"]["task"], wording=wording)
        assert extract_target(game) is not None
        if find_shortest_plan(game) is not None:  # some of the recorded games cannot be won
            assert turns_to_win(game, 50) is not None, game.task


def test_it_wins_the_real_game(shared_data: Path, turns_to_win: Player) -> None:
    (path,) = (shared_data / "alfworld" / "real").rglob("game.tw-pddl")
    assert turns_to_win(read_game(path), 50) is not None


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_it_wins_in_the_private_rooms_of_a_client(turns_to_win: Player, size: str) -> None:
    owner = OwnRooms(client=5, seed=2).owner
    tasks = make_house_pool("train", env="fedagentgym/ALFWorld-v0", size=size, owner=owner)
    turns = [turns_to_win(tasks[index].payload, TURNS[size]) for index in range(0, 400, 4)]
    assert sum(turn is not None for turn in turns) >= (100 if size == "tiny" else 95)


def test_it_needs_no_familiar_furniture(turns_to_win: Player) -> None:
    """Receptacles and objects of kinds that no scene of ALFRED has."""
    game = build_game(
        receptacles=[
            Receptacle("Hammock_bar_1", "Hammock", "loc_bar_1"),
            Receptacle("Trunk_bar_1", "Trunk", "loc_bar_2", openable=True),
            Receptacle("Trunk_bar_2", "Trunk", "loc_bar_2", openable=True),
        ],
        things=[Thing("Anchor_bar_1", "Anchor", ("Trunk_bar_1",), "loc_bar_2", frozenset(["pickupable"]))],
        start="loc_bar_0",
        can_contain={"Hammock": ["Anchor"], "Trunk": ["Anchor"]},
        goal=make_goal("Pick", "Anchor", "Hammock"),
        task="put an anchor in hammock",
        category="Pick",
    )
    turns = turns_to_win(game, 12)
    assert turns is not None and turns >= 5


def test_without_a_goal_it_knows_it_looks(pool: Pools) -> None:
    game: Game = pool("tiny")[0].payload
    strange = replace(game, goal=("and", ("forall", ("?o", "-", "object"), ("isSliced", "?o"))))
    view = View("", engine.list_admissible_commands(game, engine.start(game).state))
    assert HouseholdExpert().act(Episode(_as_task(strange), 0, 0, None, view)) == "look"
    assert HouseholdExpert().act(Episode(_as_task(game), 0, 0, None, View("", None))) == "look"
