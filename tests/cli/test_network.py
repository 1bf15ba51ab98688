"""No command opens a connection but those that are made for it: `data add`, `model add`; agents that call a server;
and Flower's own programs. `tests/fuzz/test_commands.py` blocks connections too, for every command with every option."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedagentgym.cli.main import main
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.network import blocked, guard_children

HUB_MODEL = "someone/no-model-of-that-name"
ROW = {"question": "Tom has 2 pens and buys 3. How many now?", "answer": "2+3=<<2+3=5>>5\n#### 5"}
FAR = {
    "an agent on the hub": ["eval", "--env", "Guess", "--agent", HUB_MODEL],
    "an agent's model on the hub": ["eval", "--env", "Guess", "--agent", "qwen2.5-1.5b-instruct"],
    "a run whose model is on the hub": ["train", "demo", "--set", f"agent={{name: transformers, model: {HUB_MODEL}}}"],
    "a preset of a paper": ["train", "paper-webshop"],
    "the plan of one": ["plan", "paper-fedgrpo"],
    "imitation by a model on the hub": ["pretrain", HUB_MODEL, "--env", "Guess"],
    "a suite with an agent on the hub": ["bench", "run", "smoke", "--agent", HUB_MODEL],
    "tasks of a data set": ["play", "Math", "--env-set", "source=gsm8k"],
    "tasks of an installed data set": ["play", "Math", "--env-set", "source=gsm8k", "--env-set", "data=installed"],
    "a split of a data set": [
        "split",
        "make",
        "uniform",
        "--env",
        "Math",
        "--env-set",
        "source=dapo",
        "--clients",
        "2",
    ],
    "labels of a data set": ["label", "QA", "--env-set", "source=hotpotqa"],
    "games that are not installed": ["play", "ALFWorld", "--env-set", "games=installed"],
    "a shop that is not installed": ["play", "WebShop", "--env-set", "data=installed"],
    "the split of loaded data, shown": ["split", "show", "loaded.json"],
    "the split of loaded data, verified": ["split", "verify", "loaded.json"],
    "a split on the hub": ["split", "show", "someone/split"],
    "a configuration with a split on the hub": ["train", "demo", "--set", "partition={file: someone/split}"],
    "a check of what is not installed": ["data", "check", "gsm8k"],
}


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tried() -> Iterator[list[str]]:
    with blocked() as addresses:
        yield addresses


@pytest.mark.parametrize("what", FAR)
def test_what_is_far_away_is_not_fetched(what: str, tried: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if FAR[what][-1] == "loaded.json":
        Path("train.jsonl").write_text(json.dumps(ROW) + "\n")
        loaded = ["--env", "Math", "--env-set", "source=gsm8k", "--env-set", "data=train.jsonl"]
        assert main(["split", "make", "uniform", *loaded, "--clients", "1", "--out", "loaded.json"]) == 0
    code, said = main(FAR[what]), capsys.readouterr().err
    assert tried == []
    assert code in (0, 2) and "Traceback" not in said, said


@pytest.mark.parametrize(
    "line", [["data", "add", "alfworld"], ["model", "add", HUB_MODEL], ["hub", "pull", HUB_MODEL, "--out", "here"]]
)
def test_commands_that_fetch_do_so(line: list[str], tried: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2 and tried, capsys.readouterr().err


@pytest.mark.slow
def test_a_whole_session_without_network(tmp_path: Path) -> None:
    """Training with worker processes, evaluation, export, a suite, splits and pages, each in a process of its own."""
    variables, log = guard_children(tmp_path)
    (tmp_path / "run.yaml").write_text(json.dumps({**SMALL_CONFIG, "output": {"folder": "run"}}))
    guess = ["--env", "Guess"]
    (tmp_path / "absolute.yaml").write_text(json.dumps({**SMALL_CONFIG, "output": {"folder": str(tmp_path / "far")}}))
    lines = [
        ["train", "run.yaml", "--set", "federation.workers=1"],
        ["eval", "--run", "run", "--tasks", "2"],
        ["report", "run"],
        ["export", "run", "--out", "exported"],
        ["eval", "--agent", "exported", "--tasks", "2"],
        ["eval", *guess, "--agent", "tiny", "--tasks", "4"],
        ["eval", "--env", "Code", "--agent", "expert", "--tasks", "2", "--env-set", 'sandbox={accept: ["other user"]}'],
        ["eval", "--env", "Math", "--agent", "expert", "--tasks", "2"],
        ["episodes", "run"],
        ["chats", "run", "--out", "chats.jsonl"],
        ["compare", "run", "run"],
        ["split", "make", "uniform", *guess, "--clients", "3", "--tasks-per-client", "5", "--out", "split.json"],
        ["split", "show", "split.json"],
        ["split", "verify", "split.json"],
        ["pretrain", "tiny", *guess, "--set", "steps=1", "--set", "episodes=8"],
        ["bench", "run", "agents-v1", "--agent", "random", "--scenario", "shop", "--out", "runs"],
        ["bench", "status", "runs"],
        ["bench", "pack", "runs", "--out", "results"],
        ["leaderboard", "build", "results", "--out", "site"],
        ["doctor"],
        ["data", "list"],
        ["model", "list"],
        ["flower", "init", "app", "--config", "absolute.yaml"],
    ]
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", "fedagentgym", *line],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (line, done.returncode, log.read_text()) == (line, 0, ""), done.stderr[-2000:]
