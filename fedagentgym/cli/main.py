"""The entry point of the command `fedagentgym`, which handles Ctrl-C before it imports the rest."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from fedagentgym.cli import INTERRUPTED


def run() -> None:
    """The entry point of the console script."""
    _end_at_second_interrupt()
    for number in range(3):  # otherwise the next opened file would take the number of a closed standard stream
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    try:
        from fedagentgym.base.process import own_process

        own_process()
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("fedagentgym: interrupted: nothing was started\n")
        code = INTERRUPTED
    exec("")  # otherwise Python ends by the signal if Ctrl-C interrupted code from a string, although it was handled
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code; every error becomes one sentence (see `guard`)."""
    from fedagentgym.cli.guard import check_arguments, run_guarded

    def run_command() -> object:
        from fedagentgym.base.process import log_to_stderr
        from fedagentgym.cli.application import application
        from fedagentgym.cli.completion import answer_shell

        if (answered := answer_shell(application)) is not None:
            return answered
        log_to_stderr()
        check_arguments(arguments)
        with application.make_context("fedagentgym", list(arguments)) as context:
            return application.invoke(context)

    return run_guarded(run_command)


def _end_at_second_interrupt() -> None:
    """Let a first Ctrl-C raise KeyboardInterrupt, and a second one end the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, end)
        raise KeyboardInterrupt

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
