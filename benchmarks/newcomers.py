"""The first hour of newcomers who follow only the pages: the blocks of a page are run in an empty folder, and nothing else is.

The blocks of Python of a page's sections are run as one program, and then the blocks of the shell as one script. A block whose
first line ends with `# NAME.py` is also written to the file NAME.py. The time of installation is not counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from fedagentgym.base.errors import DataError

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WHOLE_FILE = re.compile(r".*# (\S+\.py)$")
MAX_SECONDS = 900
"""Seconds after which a newcomer gives up."""


@dataclass(frozen=True)
class Way:
    """A part of the first hour: the sections of a page, the minutes that they may take, and the check of success."""

    title: str
    page: str
    sections: Sequence[str]
    minutes: int
    is_reached: Callable[[Path, str], bool]


def rises(folder: Path, output: str) -> bool:
    """True if the last reward is more than 0.2 above the first one."""
    rewards = [float(value) for value in re.findall(r"^ *\d+ to +\d+ +(\S+)", output, re.MULTILINE)]
    return len(rewards) > 1 and rewards[-1] > rewards[0] + 0.2


WAYS = {
    "loops": Way(
        "a client's environment, a method and an agent of one's own",
        "README.md",
        ("Three ways in",),
        1,
        lambda _, output: "solved " in output,
    ),
    "trl": Way("a reward that rises in TRL", "docs/how-to/train-with-trl.md", ("Rollouts by this package",), 3, rises),
    "federated": Way(
        "a first federated run",
        "docs/tutorials/first-run.md",
        ("Run it", "Look at it"),
        3,
        lambda folder, _: (folder / "runs" / "first" / "report.html").is_file(),
    ),
    "deployment": Way(
        "a Flower deployment with two nodes",
        "docs/tutorials/flower-deployment.md",
        ("The run", "The server", "The clients", "Start it"),
        4,
        lambda folder, _: (folder / "deployed" / "result.json").is_file(),
    ),
    "ranked": Way(
        "an agent of one's own on the leaderboard's page",
        "docs/how-to/add-an-agent.md",
        ("By name",),
        2,
        lambda folder, _: "Stubborn" in (folder / "board" / "index.html").read_text("utf-8"),
    ),
}
QUICK = ("loops", "ranked")


def run(quick: bool) -> list[Measurement]:
    """Play each way of newcomers, and return its minutes."""
    return [play_way(way) for name, way in WAYS.items() if not quick or name in QUICK]


def play_way(way: Way) -> Measurement:
    """Play one way in an empty folder. Raise a `DataError` if a command fails or the check of success does."""
    program, script = read_blocks((ROOT / way.page).read_text("utf-8"), way.sections)
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")  # the pages say: in a checkout
        for block in program:
            if whole := WHOLE_FILE.match(block.partition("\n")[0]):
                (folder / whole[1]).write_text(block, "utf-8")
        (folder / "page.py").write_text("\n".join(program), "utf-8")
        lines = [f"{sys.executable} page.py"] if program else []
        began = time.monotonic()
        output = run_script("\n".join([*lines, *script]), folder)
        minutes = (time.monotonic() - began) / 60
        if not way.is_reached(folder, output):
            raise DataError(f"{way.page}: its commands ran, but the check of {way.title} failed: {output[-500:]}")
    return Measurement(way.title, minutes, "min", f"< {way.minutes}")


def read_blocks(text: str, sections: Sequence[str]) -> tuple[list[str], list[str]]:
    """The blocks of Python and of the shell in these sections of a page."""
    found: dict[str, list[str]] = {"python": [], "bash": []}
    for section in sections:
        _, heading, rest = text.partition(f"\n## {section}\n")
        if not heading:
            raise DataError(f"the page has no section {section!r}")
        for language, block in BLOCK.findall(rest.partition("\n## ")[0]):
            found[language].append(block)
    return found["python"], found["bash"]


def run_script(script: str, folder: Path) -> str:
    """The output of a script; processes that it leaves running are ended."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    log = folder / "shell.log"
    with log.open("wb") as out:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            code = shell.wait(MAX_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing was left running
                os.killpg(shell.pid, signal.SIGTERM)
    output = log.read_text("utf-8", errors="replace")
    if code:
        raise DataError(f"a command of the page ended with {code}: {output[-2000:]}")
    return output
