"""A hosted model on the agents track, from nothing to a verified folder, on a server that behaves badly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.cli.main import main
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.suite import to_yaml
from fedagentgym.runs.folder import RANKED, RunFolder
from tests.agents.test_endpoint import Server, said
from tests.leaderboard.samples import AGENTS_SUITE

PRICES = ("options.input_price=1.0", "options.output_price=1.0", "options.pause=0", "options.concurrency=2")


def guess(request: dict[str, Any], number: int) -> tuple[int, Any, dict[str, str]]:
    """A model that always guesses the same; every fifth answer is refused, every seventh is no JSON."""
    if number % 5 == 0:
        return 429, "slow down", {"Retry-After": "0"}
    if number % 7 == 0:
        return 200, '{"choices": [{"mess', {}
    return said("<think>the middle</think><action>guess 5</action>")


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    running.answer = guess
    yield running
    running.close()


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "suite.yaml"
    path.write_text(to_yaml(AGENTS_SUITE.model_copy(update={"seeds": (0,)})))
    return str(path)


def arguments(server: Server, suite: str, out: Path, *more: str) -> list[str]:
    given = [f"options.url={server.url}", "model=vendor/guesser", *PRICES, *more]
    settings = [part for one in given for part in ("--agent-set", one)]
    return ["bench", "run", suite, "--agent", "endpoint", *settings, "--out", str(out)]


def test_three_commands_make_a_verified_result(server: Server, suite: str, tmp_path: Path) -> None:
    """The cost cap stops the first try; what was paid for is kept, and counts when it goes on."""
    run = tmp_path / "runs" / "sample-agents-v1" / "endpoint-guesser"
    assert main(arguments(server, suite, tmp_path / "runs", "options.cost_cap=0.008")) == 2
    assert main(["bench", "pack", str(run), "--out", str(tmp_path / "early")]) == 2
    before = len(server.requests)
    assert main(arguments(server, suite, tmp_path / "runs", "options.cost_cap=100")) == 0
    assert main(["bench", "pack", str(run), "--out", str(tmp_path / "results")]) == 0
    packed = tmp_path / "results" / "sample-agents-v1" / "endpoint-guesser.zip"
    assert main(["bench", "verify", str(packed), "--suite", suite]) == 0
    made = Result(packed)
    records = list(made.records.values())
    assert {(one.agent.kind, one.agent.model) for one in records} == {("hosted", "vendor/guesser")}
    turns = sum(one.spent.env_steps for one in records)
    assert sum(one.usage.requests for one in records if one.usage) == turns
    assert made.numbers.overall["cost"].mean > 0 and made.numbers.overall["prompt_tokens"].mean > 0
    assert len(server.requests) - before < turns * 2


def test_a_killed_run_goes_on(server: Server, suite: str, tmp_path: Path) -> None:
    def slowly(request: dict[str, Any], number: int) -> tuple[int, Any, dict[str, str]]:
        time.sleep(0.01)
        return guess(request, number)

    server.answer = slowly
    line = arguments(server, suite, tmp_path / "runs")
    process = subprocess.Popen([sys.executable, "-m", "fedagentgym", "-q", *line], stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("runs/sample-agents-v1/*/*/progress.json")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    played = next(iter(tmp_path.glob("runs/sample-agents-v1/*/*/progress.json")))
    before = json.loads(played.read_text())
    ranked = played.parent / RANKED
    kept = ranked.read_bytes()[: before["bytes"]]
    assert main(line) == 0
    assert ranked.read_bytes().startswith(kept)
    usage = RunFolder(played.parent).record.usage
    assert usage is not None and usage.requests >= before["usage"]["requests"] > 0
    played.write_text(json.dumps(before))  # as after a kill between the record and the end
    assert main(line) == 0
    run = tmp_path / "runs" / "sample-agents-v1" / "endpoint-guesser"
    assert main(["bench", "pack", str(run), "--out", str(tmp_path / "results")]) == 0
    assert (
        main(["bench", "verify", str(tmp_path / "results/sample-agents-v1/endpoint-guesser.zip"), "--suite", suite])
        == 0
    )
