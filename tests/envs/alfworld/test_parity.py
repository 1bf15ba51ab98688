"""Recorded games, in real coordinate naming, with every text of the real engine."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import fedagentgym  # noqa: F401 - registers the environments
from fedagentgym.envs.alfworld.engine import list_admissible_commands, start, step
from fedagentgym.envs.alfworld.reader import read_game, read_problem

FILES = {"parity.json.gz": "move", "parity_move.json.gz": "move", "parity_put.json.gz": "put"}


def recorded(shared_data: Path, name: str) -> dict[str, Any]:
    path = shared_data / "alfworld" / name
    if not path.is_file():
        pytest.skip(f"{path.name} is not among the test data")
    with gzip.open(path, "rt") as file:
        return dict(json.load(file))


@pytest.mark.parametrize("name", FILES)
def test_every_recorded_step_is_answered_as_the_real_engine_did(shared_data: Path, name: str) -> None:
    cases = recorded(shared_data, name)["cases"]
    steps = 0
    for number, case in enumerate(cases):
        game = read_problem(case["game"]["pddl_problem"], task=case["game"]["task"], wording=FILES[name])
        outcome = start(game)
        for row in case["rows"]:
            if "action" in row:
                outcome = step(game, outcome.state, row["action"])
                assert (outcome.state.won, int(outcome.state.won)) == (row["won"], row["score"]), (number, row)
            assert outcome.feedback == row["obs"], (number, row.get("action"))
            assert list(list_admissible_commands(game, outcome.state)) == row["admissible"], (number, row.get("action"))
            steps += 1
    assert steps >= 30 * len(cases) > 0


@pytest.mark.parametrize("name", ["parity_move.json.gz", "parity_put.json.gz"])
def test_recorded_games_replay_through_the_environment(shared_data: Path, tmp_path: Path, name: str) -> None:
    data = recorded(shared_data, name)
    cases = data["cases"][:6]
    for number, case in enumerate(cases):
        folder = tmp_path / "valid_unseen" / f"trial_{number:02d}"
        folder.mkdir(parents=True)
        grammar = data["grammar"].replace("UNKNOWN GOAL", case["game"]["task"])
        content = {"pddl_domain": data["pddl_domain"], "grammar": grammar, "pddl_problem": case["game"]["pddl_problem"]}
        (folder / "game.tw-pddl").write_text(json.dumps(content))
        (folder / "traj_data.json").write_text("{}")
    env = gymnasium.make("fedagentgym/ALFWorld-v0", games=tmp_path, split="valid_unseen")
    for number, case in enumerate(cases):
        observation, info = env.reset(seed=0, options={"task": f"alfworld/test/{number:05d}"})
        assert (observation, info["admissible"]) == (case["rows"][0]["obs"], case["rows"][0]["admissible"])
        assert info["wording"] == FILES[name]
        for row in case["rows"][1:]:
            observation, reward, done, _, info = env.unwrapped.step(row["action"])
            assert (observation, reward, done) == (row["obs"], float(row["score"]), row["done"])
            assert (info["admissible"], info["success"]) == (row["admissible"], row["won"])


def test_the_real_game_is_read_and_played(shared_data: Path) -> None:
    paths = sorted((shared_data / "alfworld" / "real").rglob("game.tw-pddl"))
    if not paths:
        pytest.skip("the real game is not among the test data")
    game = read_game(paths[0])
    assert (game.task, game.category, game.scene, game.wording) == (
        "put a hot potato in sinkbasin",
        "Heat",
        "FloorPlan14",
        "move",
    )
    assert (len(game.receptacles), len(game.objects)) == (20, 53)
    outcome = start(game)
    for command in (
        "go to countertop 2",
        "take potato 1 from countertop 2",
        "go to microwave 1",
        "heat potato 1 with microwave 1",
        "go to sinkbasin 1",
        "move potato 1 to sinkbasin 1",
    ):
        assert command in list_admissible_commands(game, outcome.state), (command, outcome.feedback)
        outcome = step(game, outcome.state, command)
    assert outcome.state.won
    assert outcome.feedback == "You move the potato 1 to the sinkbasin 1."
