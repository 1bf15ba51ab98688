"""`kill -9` before every single change of the disk: what is made is whole or not there, and the same command ends it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.files import PART
from fedagentgym.cli.main import main

ROW = {"question": "Tom has 2 pens and buys 3. How many now?", "answer": "2+3=<<2+3=5>>5\n#### 5"}
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.chmod")


def run_killed(line: Sequence[str], before: int) -> bool:
    """Run a command in a child that is killed before its nth change of the disk; returns whether it came so far."""
    child = os.fork()
    if child == 0:
        left = [before]

        def count(event: str, arguments: tuple[object, ...]) -> None:
            written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in CHANGES or written:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        sys.addaudithook(count)
        os._exit(main(list(line)))
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the command itself failed"
    return os.WIFSIGNALED(status)


def list_files(made: Path, ignored: Sequence[str] = ()) -> dict[str, str]:
    """The digest of a file, or of those in a folder."""
    files = [path for path in (made, *made.rglob("*")) if path.is_file() and path.name not in ignored]
    return {path.relative_to(made).as_posix(): file_digest(path) for path in files}


def kill_everywhere(line: Callable[[Path], Sequence[str]], made: str, place: Path, ignored: Sequence[str] = ()) -> int:
    """Kill the command before each of its changes, each time in a new folder, and end it then; returns how many there are.

    `made` is what it makes in its folder, `ignored` are files that tell when and where.
    """
    (place / "whole").mkdir()
    assert main(["-q", *line(place / "whole")]) == 0
    whole, kills = list_files(place / "whole" / made, ignored), 0
    assert whole
    while True:
        here = place / f"killed-{kills + 1}"
        here.mkdir()
        if not run_killed(["-q", *line(here)], kills + 1):
            return kills
        kills += 1
        target = here / made
        left = [path.name for path in target.parent.glob("*") if path != target]
        assert all(name.startswith(".") and name.endswith((PART, ".lock")) for name in left), (kills, left)
        if target.exists():
            assert list_files(target, ignored) == whole, f"half of {made} was there after kill {kills}"
            continue
        assert main(["-q", *line(here)]) == 0
        assert list_files(target, ignored) == whole


def test_data_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    for split in ("train", "test"):
        (rows / f"{split}.jsonl").write_text(json.dumps(ROW) + "\n")

    def line(here: Path) -> list[str]:
        monkeypatch.setenv("FEDAGENTGYM_DATA", str(here))
        return ["data", "add", "gsm8k", "--from", str(rows)]

    assert kill_everywhere(line, "gsm8k", tmp_path) >= 5


@pytest.mark.slow
def test_pretrain(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def line(here: Path) -> list[str]:
        small = ["--set", "steps=2", "--set", "episodes=8"]
        return ["pretrain", "tiny", "--env", "Guess", *small, "--output", str(here / "tiny"), "--force"]

    assert kill_everywhere(line, "tiny", tmp_path, ["pretrain.json", "README.md"]) >= 5


@pytest.mark.slow
def test_pack(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert main(["-q", "bench", "run", "agents-v1", "--agent", "random", "--scenario", "shop", "--out", str(runs)]) == 0

    def line(here: Path) -> list[str]:
        return ["bench", "pack", str(runs), "--to", str(here)]

    assert kill_everywhere(line, "agents-v1/random.zip", tmp_path) >= 3
