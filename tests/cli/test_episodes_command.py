"""`fedagentgym episodes`: the filters of the page's browser, in a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedagentgym.cli.main import main
from tests.pages.runs import ROUNDS, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


def read(capsys: pytest.CaptureFixture[str], *line: object) -> str:
    assert main(["episodes", *map(str, line)]) == 0
    return capsys.readouterr().out


def list_tasks(text: str) -> list[str]:
    return re.findall(r"^(?:solved|failed)[^/]*(task/\d+)", text, re.MULTILINE)


def test_an_episode_is_printed_with_all_of_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = read(capsys, run / "evaluation" / f"{ROUNDS:04d}.jsonl", "--task", "task/003", "--actions")
    assert "[1] You are in place 3." in text and "> go north" in text
    assert "admissible: go north | go south | take <lamp>" in text
    assert "not understood by the environment" in text
    assert "[end] The last answer of world 3." in text and "not solved after 2 turns" in text
    assert "\u202e" not in text and "\x1b" not in text and "⟨U+202E⟩" in text
    assert "(5,000 characters in all)" in text


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        (("--failed",), [3, 7, 11]),
        (("--solved", "--category", "Pick"), [0, 6, 9]),
        (("--invalid", "--failed"), [3]),
        (("--before", "--changed"), [1, 5, 9]),
        (("--training", "--client", 4), [0, 1, 2]),
    ],
)
def test_filters(run: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], tasks: list[int]) -> None:
    assert list_tasks(read(capsys, run, *options, "--list")) == [f"task/{number:03d}" for number in tasks]


def test_two_evaluations_stand_side_by_side(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = read(capsys, run, "--before", "--task", "task/001")
    assert "round 0" in text and f"round {ROUNDS}" in text
    assert text.count("The last answer of world 1.") == 2 or text.count("[end]") == 2
    files = [run / "evaluation" / f"{number:04d}.jsonl" for number in (0, ROUNDS)]
    assert len(list_tasks(read(capsys, *files, "--list", "--changed"))) == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("nothing",), "nothing"),
        (("--failed", "--solved"), "exclude each other"),
        (("--changed",), "compares two sources"),
        (("--category", "Pluck"), "categories: "),
        (("--client", "99"), "matches"),
    ],
)
def test_what_cannot_be_shown_is_said(
    run: Path, capsys: pytest.CaptureFixture[str], line: tuple[str, ...], told: str
) -> None:
    words = line if line == ("nothing",) else (str(run), *line)
    assert main(["episodes", *words]) == 2
    assert told in capsys.readouterr().err
