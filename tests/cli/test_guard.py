"""Ends of commands that something stops."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch

from fedagentgym.cli.guard import run_guarded
from fedagentgym.cli.main import main


def raise_unsayable() -> None:
    class UnsayableError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    raise UnsayableError


def test_an_unexpected_error_is_one_sentence_with_the_file_of_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path))
    assert run_guarded(lambda: {}["key"]) == 70
    said = capsys.readouterr().err
    (file,) = (tmp_path / "errors").iterdir()
    assert said.count("\n") == 1 and "KeyError" in said and str(file) in said
    assert "Traceback" in file.read_text() and "Traceback" not in said
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert said.endswith(f"; please report it: {project['urls']['Issues']}\n")
    assert run_guarded(raise_unsayable) == 70


def test_a_trace_that_cannot_be_written_is_no_second_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "file"))
    assert run_guarded(lambda: {}["key"]) == 70
    assert "the full trace is in" in capsys.readouterr().err


def leave() -> None:
    sys.exit(0)


def use_all_memory() -> None:
    raise MemoryError


def use_a_full_disk() -> None:
    raise OSError(28, "No space left on device", "/somewhere/a[red]")


def use_all_memory_of_pytorch() -> None:
    torch.empty(10**17)


def use_all_memory_of_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


STOPPED = {
    leave: "sys.exit(0)",
    use_all_memory: "memory",
    use_all_memory_of_pytorch: "learning.micro_tokens",
    use_all_memory_of_a_gpu: "learning.micro_tokens",
    use_a_full_disk: "/somewhere/a[red]: No space left",
}


@pytest.mark.parametrize("stop", STOPPED, ids=lambda stop: stop.__name__)
def test_what_a_user_can_mend_is_exit_code_2(stop: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(stop) == 2  # type: ignore[arg-type]
    assert STOPPED[stop] in capsys.readouterr().err  # type: ignore[index]


def test_names_are_shown_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = "[red]x[/bold]:smile:.json"
    made = ["uniform", "--env", "Guess", "--clients", "3", "--tasks-per-client", "5"]
    assert main(["split", "make", *made, "--out", file]) == 0
    assert "[red]x[/bold]:smile:.json" in capsys.readouterr().out
    assert main(["split", "show", f"{file}\x1b[31m"]) == 2
    assert "\x1b" not in capsys.readouterr().err


WRONG = {
    "a number beyond a word": ["split", "make", "uniform", "--env", "Guess", "--clients", str(10**20)],
    "too many clients": ["split", "make", "uniform", "--env", "Guess", "--clients", str(10**12)],
    "no number": ["split", "make", "uniform", "--env", "Guess", "--clients", "3", "--omega", "nan"],
    "a price that is no number": ["bench", "plan", "agents-tiny-v1", "--prices", "nan", "2"],
    "a price without an end": ["bench", "plan", "agents-tiny-v1", "--prices", "1", "inf"],
    "half a character": ["envs", "\ud800"],
    "NUL": ["envs", "a\0b"],
    "a long name": ["split", "show", "a" * 300],
    "a long preset": ["train", "a" * 300],
    "an impossible folder": ["split", "plot", "x.json", "--out", "/proc/nowhere/x.png"],
    "a keyword of another option": ["split", "make", "uniform", "--env", "Guess", "--clients", "3", "--set", "pool=5"],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_command_takes_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WRONG[name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedagentgym", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: object, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.05)


def test_an_interrupted_label_file_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "labels.jsonl"
    process = start("label", "ALFWorld", "--split", "train", "--attempts", "9", "--out", str(out))
    wait_for(lambda: out.exists() and out.stat().st_size > 2000, process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    (told,) = [line for line in said.splitlines() if not line.startswith("labelling: ")]
    assert "the same command continues" in told


def test_an_interrupted_player_is_told_that_nothing_is_kept() -> None:
    process = start("play", "Guess")
    assert process.stdout is not None
    shown = ""
    while "Which one is it?" not in shown:
        shown += process.stdout.readline()
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "the episode is not saved" in said, said


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_no_command(closed: str, tmp_path: Path) -> None:
    """The evaluation is finished, and its files hold nothing that was meant for the terminal."""
    words = f"-m fedagentgym eval --agent random --env Guess --tasks 2 --out {tmp_path / 'found'}"
    done = subprocess.run(["bash", "-c", f"{sys.executable} {words} {closed}"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "found/result.json").is_file()
    assert all(json.loads(line)["task"] for line in (tmp_path / "found/evaluation/ranked.jsonl").open())


def test_a_printed_command_is_one_that_a_shell_takes_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a downloaded folder is another's choice."""
    from fedagentgym.experiment.report.terminal import print_summary

    folder = tmp_path / "a  %s{x} $(touch made); [b] it's"
    assert main(["eval", "--agent", "random", "--env", "Guess", "--tasks", "2", "--out", str(folder)]) == 0
    capsys.readouterr()
    print_summary(folder)
    said = capsys.readouterr().out.partition("play it again: ")[2].splitlines()[0]
    assert shlex.split(said) == ["fedagentgym", "eval", "--run", str(folder)]
    assert main(["train", str(folder)]) == 2
    said = capsys.readouterr().err.partition("`")[2].rpartition("`")[0]
    assert shlex.split(said) == ["fedagentgym", "resume", str(folder)]


@pytest.mark.by_day(8)
@pytest.mark.parametrize("gone", [("stdout",), ("stderr",), ("stdout", "stderr")], ids=" and ".join)
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("envs", 0),
        ("bench list --json", 0),
        ("eval --agent random --env Guess --tasks 2 --out found", 0),
        ("--help", 0),
        ("client", 2),
        ("envs --no-such-option", 2),
        ("train no-such-preset", 2),
    ],
)
def test_a_reader_that_is_gone_changes_no_exit_code(
    line: str, code: int, gone: tuple[str, ...], tmp_path: Path
) -> None:
    """As in `fedagentgym envs | head -1`; the work is finished, and what can still be printed is."""
    reading, writing = os.pipe()
    os.close(reading)
    out, err = (writing if name in gone else subprocess.PIPE for name in ("stdout", "stderr"))
    command = [sys.executable, "-m", "fedagentgym", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, check=False, stdout=out, stderr=err)
    os.close(writing)
    assert done.returncode == code, done
    assert b"Traceback" not in (done.stderr or b"") and b"Exception" not in (done.stderr or b"")
    assert code != 0 or "stdout" in gone or done.stdout
    assert (tmp_path / "found/result.json").is_file() == line.startswith("eval")
