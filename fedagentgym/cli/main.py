"""The command `fedagentgym`: a table of commands, and the entry point, which handles Ctrl-C before it imports the rest."""

from __future__ import annotations

import os
import signal
import sys
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

COMMANDS: dict[str, str] = {
    "envs": "fedagentgym.cli.envs:envs",
    "play": "fedagentgym.cli.play:play",
    "split": "fedagentgym.cli.split:app",
    "label": "fedagentgym.cli.label:label",
    "data": "fedagentgym.cli.data:app",
    "model": "fedagentgym.cli.model:app",
    "pretrain": "fedagentgym.cli.pretrain:pretrain",
    "train": "fedagentgym.cli.train:train",
    "eval": "fedagentgym.cli.eval:evaluate",
    "episodes": "fedagentgym.cli.episodes:episodes",
    "settings": "fedagentgym.cli.settings:settings",
    "export": "fedagentgym.cli.export:export",
    "chats": "fedagentgym.cli.chats:chats",
    "flower": "fedagentgym.cli.flower:app",
    "bench": "fedagentgym.cli.bench:app",
    "compare": "fedagentgym.cli.compare:compare",
    "leaderboard": "fedagentgym.cli.leaderboard:app",
    "doctor": "fedagentgym.cli.doctor:doctor",
}
INTERRUPTED = 130


def run() -> None:
    """Entry point of the console script."""
    _end_at_second_interrupt()
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("fedagentgym: interrupted: nothing was started\n")
        code = INTERRUPTED
    exec("")  # after an interruption in code run from a string, Python exits by the signal even if it was handled
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code; every error becomes one sentence (see `guard`)."""
    from fedagentgym.cli.guard import run_guarded

    return run_guarded(lambda: _run_command(arguments))


def _run_command(arguments: list[str]) -> object:
    from fedagentgym.base.logs import log_to_stderr
    from fedagentgym.cli.arguments import check_arguments

    log_to_stderr()
    check_arguments(arguments)
    with _open_app().make_context("fedagentgym", list(arguments)) as context:
        return context.command.invoke(context)


@cache
def _open_app() -> click.Command:
    from fedagentgym.cli.application import build_app

    return build_app(COMMANDS)


def _end_at_second_interrupt() -> None:
    """Ctrl-C stops a command in order; a second one ends the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, end)
        raise KeyboardInterrupt

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
