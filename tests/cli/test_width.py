"""Every command's output at 80 columns, in a terminal and in a pipe: no number is cut or folded, no row of a table is wider."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from fedagentgym.base.progress import make_table, print_result
from fedagentgym.cli.main import main
from tests.fuzz.test_commands import FOUND

CUT = re.compile(r"\d[.,]?…|…\d|^ +[0-9a-f]{6,} *$")
"""A number or a digest that is cut or goes on in the next line."""
ROW = re.compile(r"[^|\n]*[^|\s] {2,}[^|\s].*\S {2,}\S")
"""At least three columns; what is wider than that and no row is prose, a path, a digest or Markdown."""
RUN = """
env: {id: fedagentgym/Guess-v0}
agent: untrained-tiny
partition: {clients: 2, tasks_per_client: 6}
learning: {tasks_per_step: 3, group_size: 2}
algorithm: {name: fedagent, local_steps: 1}
federation: {rounds: 2}
evaluation: {tasks: 10}
output: {folder: run}
"""
SHOP = "--env WebShop --env-set size=tiny"
SETTINGS = "--set steps=2 --set episodes=20"
LINES: dict[str, tuple[str, ...]] = {
    "train": (
        "run.yaml",
        "run.yaml --set seed=1 --out again",
    ),
    "demo": ("!--set nothing",),
    "presets": ("", "run.yaml"),
    "plan": ("demo",),
    "first-batch": ("!nothing",),
    "resume": ("run",),
    "envs": ("", "WebShop", "Mixture"),
    "play": ("Guess",),
    "label": ("Guess --split val --out labels.jsonl --attempts 2 --turns 1",),
    "eval": (f"{SHOP} --agent random --tasks 8", "--env Skills --agent expert --tasks 8", "--run run"),
    "settings": ("", "learning"),
    "report": ("run",),
    "export": ("run --out exported",),
    "episodes": ("run --list", "run --limit 1"),
    "chats": ("run --out chats.jsonl",),
    "compare": ("run again",),
    "bench list": ("",),
    "bench show": ("smoke",),
    "bench plan": ("methods-tiny-skills-v2", "agents-tiny-v1"),
    "bench config": ("smoke fedagent uniform-seed0",),
    "bench replicates": ("!smoke",),
    "bench run": ("agents-tiny-v1 --agent random --scenario questions --out played",),
    "bench status": ("played",),
    "bench resume": ("played",),
    "bench pack": ("played/agents-tiny-v1/random",),
    "bench verify": ("results/agents-tiny-v1/random.zip",),
    "bench regrade": ("results/agents-tiny-v1/random.zip --out again.zip",),
    "bench export": ("results --out runs.parquet",),
    "bench tune": ("!smoke",),
    "bench twin": ("smoke --out secret.json",),
    "leaderboard build": ("results/agents-tiny-v1/random.zip --out site",),
    "leaderboard top": ("RESULTS --suite agents-tiny-v1",),
    "doctor": ("",),
    "split make": (
        f"preference --omega 0.9 --tasks-per-client 20 {SHOP} --clients 20 --out split.json",
        "uniform --env Guess --clients 3 --tasks-per-client 5 --out other.json",
    ),
    "split presets": ("",),
    "split show": ("split.json",),
    "split verify": ("split.json",),
    "split plot": ("split.json --out split.png",),
    "split diff": ("split.json other.json",),
    "split compare": (
        "other.json uniform,tasks_per_client=5 dirichlet,beta=0.3 --env Guess --clients 3 --out two.svg",
    ),
    "split export": ("other.json --client 1 --out held",),
    "client init": ("client.yaml --client 1 --env Guess",),
    "client check": ("client.yaml --run run.yaml",),
    "client report": ("!nothing",),
    "data add": ("!webshop --from nothing",),
    "data check": ("!gsm8k --from nothing",),
    "data list": ("",),
    "model add": ("exported --name mine",),
    "model list": ("",),
    "model remove": ("mine",),
    "openenv init": ("guess --out package",),
    "hub push": ("!split.json nobody",),
    "hub pull": ("!nobody --out pulled",),
    "pretrain": (f"tiny --env Skills --out tiny --set misconceptions={{}} {SETTINGS}",),
    "gateway init": ("own --for openai",),
    "gateway serve": ("!nothing",),
    "gateway check": ("!nothing",),
    "flower init": ("app --config run.yaml",),
}
"""Lines of each command, in an order in which each finds what it reads; with "!" it ends in the sentence of an error."""
SCRIPT = """
import json, sys
from fedagentgym.cli.main import main
for name, line in json.loads(sys.argv[1]):
    print("\\x1e" + name, line, flush=True)
    found = main([*name.split(), *line.removeprefix("!").split()])
    sys.stdout.flush()
    sys.stderr.flush()
    if found != 2 * line.startswith("!"):
        print(f"Traceback: {name} {line} ended with {found}")
"""


def run_lines(folder: Path, terminal: bool, environment: Mapping[str, str]) -> str:
    """The output of all lines, which one process runs in its order."""
    results = Path(__file__).parents[2] / "leaderboard" / "results"
    typed = [(name, line.replace("RESULTS", str(results))) for name, lines in LINES.items() for line in lines]
    (folder / "run.yaml").write_text(RUN.replace("folder: run", f"folder: {folder / 'run'}"))
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(typed)]
    if not terminal:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        said = b""
        while more := read_some(ours):
            said += more
    os.close(ours)
    assert child.returncode == 0, said[-2000:]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode("utf-8", "replace")).replace("\r\n", "\n")


def read_some(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # as Linux says that the other end is closed
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_no_number_is_cut_and_no_row_is_wider_than_80_columns(terminal: bool, tmp_path: Path) -> None:
    assert set(LINES) == set(FOUND)
    surroundings = {**os.environ, "FEDAGENTGYM_CACHE": str(tmp_path / "cache"), "TERM": "xterm", "COLUMNS": ""}
    said = run_lines(tmp_path, terminal, {name: value for name, value in surroundings.items() if value})
    faults, command, lines = [], "", said.split("\n")
    for place, line in enumerate(lines):
        shown = line.rpartition("\r")[2]
        # A path is whole, and its column as wide under the title.
        has_path = any(str(tmp_path) in near for near in lines[place : place + 3])
        if line.startswith("\x1e"):
            command = line[1:]
        elif CUT.search(shown) or (len(shown) > 80 and ROW.match(shown) and not has_path):
            faults.append(f"{command}: {shown}")
    assert command.startswith("flower init") and "Traceback" not in said
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("width", [20, 50, 80])
@pytest.mark.parametrize("label", ["a", "a category with a long name that continues", "x" * 100])
def test_a_table_has_whole_numbers_at_any_width(width: int, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    numbers = ["12345.678", "-0.001", "0.500 [0.123, 0.987]"]
    table = make_table(("", "first", "a second of several words", "third"), [(label, *numbers)] * 2)
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table, crop=False)
    assert all(capture.get().count(number) == 2 for number in numbers), capture.get()


@pytest.mark.parametrize(
    "name", ["a-folder-with-a-name-of-more-than-forty-characters", "a folder with blanks in its long name"]
)
@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_path_is_whole_in_a_table_at_any_width(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    place = tmp_path / name / "split.json"
    place.parent.mkdir()
    line = ["split", "make", "uniform", "--env", "Guess", "--clients", "3", "--tasks-per-client", "5"]
    for command in ([*line, "--out", str(place)], ["split", "show", str(place)], ["split", "verify", str(place)]):
        assert main(command) == 0
        assert str(place) in capsys.readouterr().out or command[1] == "verify"
    rows = [["a sentence of several words", str(place), "0.500"], ["another", str(tmp_path / "gone" / "file"), "12345"]]
    print_result(make_table(["what", "path", "number"], rows, text=2))
    told = capsys.readouterr().out
    assert str(place) in told and str(tmp_path / "gone" / "file") in told and "12345" in told


HALVES_TO_EVEN = re.compile(r":[<>]?\d*\+?\.\d[f%]\}|format\([^()]+, \"[^\"]*\.\d[f%]\"\)")
LEFT_ALONE = {
    "base/rounding.py",
    "envs/webshop/goals.py",  # the text of a task, which stays as it is
    "pages/charts.py",  # places in a picture
}


def test_numbers_that_people_read_are_rounded_by_one_module() -> None:
    """0.0625 is 0.063 in every command and on every page, not 0.062 in some."""
    package = Path(__file__).parents[2] / "fedagentgym"
    files = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    found = [
        f"{file}: {one}" for file in sorted(set(files) - LEFT_ALONE) for one in HALVES_TO_EVEN.findall(files[file])
    ]
    assert found == ["pages/render.py: :.2f}"], "use the functions of base/rounding.py"  # a length in a style
    assert all(HALVES_TO_EVEN.search(files[file]) for file in LEFT_ALONE - {"base/rounding.py"})
