"""Completion by the shell, and what every command takes: `-h`, `-q`, and a value once."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fedagentgym.cli.application import load_application
from fedagentgym.cli.completion import SHELLS, VARIABLE
from fedagentgym.cli.main import main
from tests.fuzz.test_commands import FOUND

BASH = shutil.which("bash")
GROUPS = [name for name, command in load_application().commands.items() if isinstance(command, click.Group)]


def ask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str) -> list[str]:
    """The words that complete a line."""
    words = line.split(" ")
    monkeypatch.setenv(VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert main([]) == 0
    monkeypatch.delenv(VARIABLE)
    return [found.partition(",")[2] for found in capfd.readouterr().out.split()]


def test_commands_options_and_names_are_completed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for line, expected in (
        ("fedagentgym tr", {"train"}),
        ("fedagentgym bench ver", {"verify"}),
        ("fedagentgym train demo --swe", {"--sweep"}),
        ("fedagentgym train tiny-sk", {"tiny-skills"}),
        ("fedagentgym plan paper-al", {"paper-alfworld"}),
        ("fedagentgym bench run agents-t", {"agents-tiny-v1"}),
        ("fedagentgym eval --env we", {"WebShop"}),
        ("fedagentgym label Gu", {"Guess"}),
        ("fedagentgym play Guess --agent exp", {"expert"}),
        ("fedagentgym train mine.y", {"mine.y"}),  # a file, which the shell completes
    ):
        assert set(ask(monkeypatch, capfd, line)) == expected, line


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_after_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    (tmp_path / ".bashrc").write_bytes("echo mine  # für".encode("latin-1"))
    for _ in range(2):  # a second time changes nothing
        assert main(["--install-completion"]) == 0
    lines = (tmp_path / ".bashrc").read_bytes().splitlines()
    assert len(lines) == 2 and lines[0].startswith(b"echo mine")
    program = tmp_path / "fedagentgym"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedagentgym "$@"\n')
    program.chmod(0o755)
    script = f'''source "$HOME/.bashrc"; COMP_WORDS=(fedagentgym leader); COMP_CWORD=1
_fedagentgym_completion "{program}"; echo "${{COMPREPLY[@]}}"'''
    assert BASH is not None
    found = subprocess.run([BASH, "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["mine", "leaderboard"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--show-completion", shell]) == 0
    shown = capsys.readouterr().out
    assert VARIABLE in shown and not list(tmp_path.iterdir())
    assert main(["--install-completion", shell]) == 0
    place = Path(capsys.readouterr().out.removeprefix("wrote ").partition(": ")[0])
    assert place.is_relative_to(tmp_path) and place.read_text().strip() == shown.strip()


def test_a_shell_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHELL", raising=False)
    for words in (["--install-completion"], ["--show-completion", "tcsh"]):
        assert main(words) == 2
        assert "bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize("name", FOUND)
def test_every_command_takes_help_and_quiet_and_a_value_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "-q", "-h"]) == 0
    told = capsys.readouterr().out
    assert "-q, --quiet" in told and "-h, --help" in told
    command = FOUND[name]
    for one in command.params:
        if isinstance(one, click.Option) and not (one.is_flag or one.multiple or one.count):
            values = [word for option in (one.opts[0], one.opts[-1]) for word in (option, *["1"] * max(1, one.nargs))]
            assert main([*name.split(), *values]) == 2
            assert f"{one.opts[0]} is given 2 times" in capsys.readouterr().err


@pytest.mark.parametrize("name", FOUND)
def test_a_key_is_assigned_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for one in FOUND[name].params:
        if isinstance(one, click.Option) and one.metavar == "KEY=VALUE":
            assert main([*name.split(), one.opts[0], "seed=1", one.opts[0], "size=2", one.opts[-1], "seed=3"]) == 2
            assert f"{one.opts[0]} seed is given 2 times: give it once" in capsys.readouterr().err


def test_one_word_names_what_is_written() -> None:
    """`--out`, but for what is written besides, and for `init`, which makes the place that it is given as git's does."""
    besides = {"--plot", "--pack", "--chosen", "--store", "--weights"}
    counted = 0
    for name, command in FOUND.items():
        for one in command.params:
            told = (getattr(one, "help", "") or "").lower()
            is_written = isinstance(one.type, click.Path) and re.search(
                r"\bwrite\b|\bnew\b|must not exist|\bdraw\b", told
            )
            if is_written and isinstance(one, click.Argument):
                assert name.endswith(" init"), name
            elif is_written:
                assert one.opts[0] == "--out" or one.opts[0] in besides, (name, one.opts)
                counted += one.opts[0] == "--out"
    assert counted > 10


@pytest.mark.parametrize("name", [name for name in FOUND if name.endswith(" init") and name != "openenv init"])
def test_a_place_that_stands_alone_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--out", "place"]) == 2
    assert "names what is written" in capsys.readouterr().err


@pytest.mark.parametrize("group", [(), *((name,) for name in GROUPS)], ids=lambda group: " ".join(group) or "all")
def test_quiet_stands_at_any_place(group: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*group, "-q", "--help"]) == 0 and "-q" in capsys.readouterr().out
    assert main([*group, "--quiet", "nothing-of-this-name"]) == 2
    assert "nothing-of-this-name" in capsys.readouterr().err
