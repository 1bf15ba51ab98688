"""The same replies give the same scores in five ways, to players who read the same bytes; libraries whose pins conflict have an
environment each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.envs.make import open_env

from .environments import NEEDS_UV, create, run_in

pytestmark = [pytest.mark.slow, NEEDS_UV]

SCRIPT = Path(__file__).with_name("scripted_player.py")
APART = {"openenv": "openenv", "verifiers": "verifiers", "inspect": "inspect"}


def write_cases(file: Path) -> list[dict[str, Any]]:
    """Right and wrong answers in one reply, a game of many turns that is won or lost, queries and searches of the expert."""
    cases = []
    for env_id, right in (("fedagentgym/Math-v0", True), ("fedagentgym/Skills-v0", True), ("fedagentgym/QA-v0", False)):
        env = open_env(env_id, split="val")
        (episode,) = env.reset_many([env.pool.ids[1]], [0])
        reply = env.expert().act(episode) if right else "<answer> nobody </answer>"
        cases.append({"env": env_id, "options": {"split": "val"}, "task": episode.task.id, "replies": [reply]})
    game = open_env("fedagentgym/Guess-v0", split="val")
    number = game.pool[game.pool.ids[3]].payload.number
    for tried in ([number + 1, number], [number + step for step in range(1, 9)]):
        replies = [f"guess {guess}" for guess in tried]
        cases.append({"env": game.id, "options": {"split": "val"}, "task": game.pool.ids[3], "replies": replies})
    for env_id, options in (
        ("fedagentgym/Records-v0", {}),
        ("fedagentgym/QA-v0", {"tools": ["search"], "corpus": "all"}),
    ):
        many = open_env(env_id, split="val", **options)
        (episode,), expert, replies = many.reset_many([many.pool.ids[2]], [0]), many.expert(), []
        while not episode.over:
            replies.append(expert.act(episode))
            (episode,) = many.step_many([episode], replies[-1:])
        cases.append(
            {"env": env_id, "options": {**options, "split": "val"}, "task": episode.task.id, "replies": replies}
        )
    file.write_text(json.dumps(cases))
    return cases


def test_the_same_replies_give_the_same_scores_in_five_ways(wheel: Path, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "replies.json"
    cases = write_cases(file)
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])  # vf-eval starts players with uv
    found = {}
    for way in ("own", "trl"):
        done = subprocess.run([sys.executable, SCRIPT, way, file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found[way] = json.loads(done.stdout.splitlines()[-1])
    for way, extra in APART.items():
        inside = create(tmp_path / way, sys.executable, [f"fedagentgym[{extra}] @ {wheel.as_uri()}"])
        variables = {"EXAMPLES": str(root / "examples"), "PATH": path}
        found[way] = json.loads(run_in(inside, SCRIPT, way, file, cwd=tmp_path, variables=variables).splitlines()[-1])
    names = [case["env"].removeprefix("fedagentgym/") for case in cases]
    scores = {way: [score for score, _ in played] for way, played in found.items()}
    rows = [["", *names], *([way, *each] for way, each in scores.items())]
    sys.stdout.write("\n".join(" ".join(f"{word:>10}" for word in row) for row in rows) + "\n")
    assert scores["own"] == [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert all(each == scores["own"] for each in scores.values())
    read = {
        way: [messages for _, messages in played] for way, played in found.items() if way != "trl"
    }  # TRL's has tools
    assert all(messages == read["own"] for messages in read.values())
