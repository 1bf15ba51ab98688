"""The kills (`kill -9` before each change that a command makes to the disk) and injected faults that commands survive."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import ROOT
from benchmarks.findings import Findings
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import PART
from fedagentgym.cli.main import main

ROW = {"question": "Tom has 2 pens and buys 3. How many now?", "answer": "2+3=<<2+3=5>>5\n#### 5"}
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.chmod")


def run_killed(line: Sequence[str], before: int) -> bool:
    """Run a command in a child process that is killed before its nth change of the disk. Return true if the child was killed."""
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
    """The digests of a file, or of the files in a folder, by relative path."""
    files = [path for path in (made, *made.rglob("*")) if path.is_file() and path.name not in ignored]
    return {path.relative_to(made).as_posix(): file_digest(path) for path in files}


def kill_everywhere(line: Callable[[Path], Sequence[str]], made: str, place: Path, ignored: Sequence[str] = ()) -> int:
    """Kill the command before each of its changes, each time in a new folder, and run it again. Return the number of kills.

    `made` is the file or folder that the command makes; `ignored` are files that record the time and the place.
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


# ---- what is counted ----------------------------------------------------------------------------------------------------


def add_data(here: Path) -> list[str]:
    """Import a data set of two questions."""
    rows = here.parent / "rows"
    rows.mkdir(exist_ok=True)
    for split in ("train", "test"):
        (rows / f"{split}.jsonl").write_text(json.dumps(ROW) + "\n")
    os.environ["FEDAGENTGYM_DATA"] = str(here)
    return ["data", "add", "gsm8k", "--from", str(rows)]


def make_split(here: Path) -> list[str]:
    """Make a client split."""
    return ["split", "make", "uniform", "--env", "Guess", "--clients", "4", "--out", str(here / "split.json")]


def pretrain(here: Path) -> list[str]:
    """Warm-start a tiny agent."""
    small = ["--set", "steps=2", "--set", "episodes=8"]
    return ["pretrain", "tiny", "--env", "Guess", *small, "--out", str(here / "tiny"), "--force"]


KILLED: dict[str, tuple[Callable[[Path], list[str]], str, tuple[str, ...]]] = {
    "data add": (add_data, "gsm8k", ()),
    "split make": (make_split, "split.json", ()),
    "pretrain": (pretrain, "tiny", ("pretrain.json", "README.md")),
}
"""Each command with its output, and with the files that record when and where the output was made."""
FAULTS = {
    "clients that raise, hang, send NaN, another shape, or too much": "tests/federation/test_faults.py",
    "a run that is killed at random instants": "tests/federation/test_crash.py",
    "messages that are cut, changed, or hostile": "tests/federation/test_hostile_bytes.py",
    "split files that were changed": "tests/partitions/test_hostile_splits.py",
    "results that were forged": "tests/leaderboard/test_tampering.py",
    "servers of models that misbehave": "tests/agents/test_misbehaving.py",
    "folders of models that misbehave": "tests/agents/test_hostile_models.py",
    "programs that attack their sandbox": "tests/envs/verifiers/test_code_tricks.py",
    "nasty input to every reader of files": "tests/fuzz/test_readers.py",
}


def find_kills(quick: bool) -> Findings:
    """The number of kills that every command survives: its output is complete or absent, and the same command then completes it.
    A kill that is not survived is an error."""
    rows: dict[str, tuple[float | str, ...]] = {}
    kept = dict(os.environ)
    for name, (line, made, ignored) in KILLED.items():
        if quick and name == "pretrain":
            continue
        try:
            with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
                rows[f"`{name}`"] = (kill_everywhere(line, made, Path(place), ignored),)
        finally:
            os.environ.clear()
            os.environ.update(kept)
    return Findings("command", {"kills survived": ",d"}, rows)


def find_faults(quick: bool) -> Findings:
    """The number of cases with an injected fault, and the number of those that end as they should."""
    rows: dict[str, tuple[float | str, ...]] = {}
    for name, file in FAULTS.items():
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / file)]
        ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        counts = {kind: int(count) for count, kind in re.findall(r"([0-9]+) (passed|failed|error)", ended.stdout)}
        if not counts:
            raise DataError(f"{file} ran no test: {ended.stdout[-200:]}")
        rows[name] = (sum(counts.values()), counts.get("passed", 0), f"`{file}`")
        if quick:
            break
    return Findings("fault", {"cases": ",d", "held": ",d", "tests": ""}, rows)
