"""Shell completion of commands, options and names: `fedagentgym --install-completion`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from fedagentgym.base.errors import OptionError, join_names
from fedagentgym.base.files import write_atomic

NAME, VARIABLE = "fedagentgym", "_FEDAGENTGYM_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
STARTS = {"bash": ".bashrc", "zsh": ".zshrc"}
"""The file in the home folder that each shell reads when it starts."""
Function = TypeVar("Function", bound=Callable[..., object])
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def answer_shell(application: click.Group) -> int | None:
    """Print completions if a shell asks for them, and return the exit code; otherwise return None."""
    asked = os.environ.get(VARIABLE)
    return None if asked is None else shell_complete(application, {}, NAME, VARIABLE, asked)


def complete(list_names: Callable[[], Iterable[str]]) -> Completer:
    """A completer for an argument that takes one of these names or a file."""

    def find(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in list_names() if name.lower().startswith(begun.lower())]
        return found or [CompletionItem(begun, type="file")]

    return find


def _list_presets() -> Iterable[str]:
    from fedagentgym.experiment.config import list_presets

    return list_presets()


def _list_suites() -> Iterable[str]:
    from fedagentgym.leaderboard.suite import list_suites

    return list_suites()


def _list_environments() -> Iterable[str]:
    from fedagentgym.envs.registry import ENVIRONMENTS

    return [name.partition("/")[2].partition("-v")[0] for name in ENVIRONMENTS.names()]


def _list_agents() -> Iterable[str]:
    from fedagentgym.agents import AGENTS

    return AGENTS.names()


complete_presets, complete_suites = complete(_list_presets), complete(_list_suites)
complete_environments, complete_agents = complete(_list_environments), complete(_list_agents)


def make_script(application: click.Group, shell: str) -> str:
    """The script with which a shell completes this program."""
    found = get_completion_class(shell)
    assert found is not None
    return str(found(application, {}, NAME, VARIABLE).source())


def find_shell(named: str) -> str:
    """The named shell, or by default the user's own."""
    shell = named or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise OptionError(f"completion is for {join_names(SHELLS)}, got {shell or 'no shell'}: name one of them")
    return shell


def install(application: click.Group, shell: str) -> Path:
    """Write the script below the home folder and, except for fish, a line that runs it to the shell's start file."""
    home = Path.home()
    if shell == "fish":
        place = home / ".config" / "fish" / "completions" / f"{NAME}.fish"
    else:
        place = home / ".local" / "share" / NAME / f"complete.{shell}"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, make_script(application, shell))
    if shell in STARTS:
        start = home / STARTS[shell]
        line = f"source {shlex.quote(str(place))}"
        if shell == "zsh":
            line = f"autoload -Uz compinit && compinit && {line}"
        text = start.read_bytes() if start.is_file() else b""  # bytes, since the file's encoding is unknown
        if line.encode() not in text.splitlines():
            gap = "" if not text or text.endswith(b"\n") else "\n"
            with start.open("ab") as file:
                file.write(f"{gap}{line}\n".encode())
    return place


def _handle(act: Callable[[click.Group, str], str]) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def callback(context: click.Context, parameter: click.Parameter, named: str | None) -> None:
        if named is None or context.resilient_parsing:
            return
        application = context.find_root().command
        assert isinstance(application, click.Group)
        click.echo(act(application, find_shell(named)))
        context.exit()

    return callback


def _install_and_describe(application: click.Group, shell: str) -> str:
    place = install(application, shell)
    return f"wrote {place}: new {shell} sessions complete {NAME}"


def _option(name: str, act: Callable[[click.Group, str], str], about: str) -> Callable[[Function], Function]:
    return click.option(
        name,
        metavar="[SHELL]",
        is_flag=False,
        flag_value="",
        default=None,
        is_eager=True,
        expose_value=False,
        callback=_handle(act),
        help=f"{about} ({join_names(SHELLS)}; by default yours).",
    )


INSTALL = _option("--install-completion", _install_and_describe, "Install completion for a shell")
SHOW = _option("--show-completion", make_script, "Print the completion script, to install it by hand")
