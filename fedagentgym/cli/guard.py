"""Checks of a command's arguments, and the conversion of errors to one sentence and an exit code.

0    success
1    a check of `plan`, `first-batch` or `doctor --gpu` failed
2    an error that the user can fix: an input, a file, a full disk
3    `split verify` cannot make some check here
70   an unexpected error; the sentence names a file with the full trace
130  interrupted (Ctrl-C)
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

import click

from fedagentgym.base.blame import find_blame
from fedagentgym.base.errors import (
    FedAgentGymError,
    OptionError,
    describe_error,
    is_clean_text,
)
from fedagentgym.base.escape import escape_terminal
from fedagentgym.base.files import cache_folder
from fedagentgym.base.imports import explain_missing
from fedagentgym.base.process import WorkInterrupted
from fedagentgym.cli import INTERRUPTED
from fedagentgym.version import ISSUES

USER_ERROR = 2
UNEXPECTED = 70
MAX_MESSAGE_LENGTH = 2000
"""Maximum length of an error on standard error, in characters."""
NO_MEMORY = "this needs more memory than is available"
SMALLER = "learning.micro_tokens and learning.parallel_episodes bound what a run computes at once"
NOTHING_SAVED = "nothing was saved; run the command again"


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse an argument with a NUL or a lone surrogate, which cannot be written to a file."""
    for argument in arguments:
        if not is_clean_text(argument):
            raise OptionError(f"the argument {argument[:80]!r} cannot be written to a file")


def run_guarded(command: Callable[[], object]) -> int:
    """Run a command and return its exit code. An error is printed on standard error as one sentence."""
    for output in (sys.stdout, sys.stderr):  # escape characters that the terminal's encoding lacks
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")
    try:
        result = command()
        sys.stdout.flush()
    except FedAgentGymError as error:
        return _print_error(str(error))
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        return _print_error(error.format_message(), whole=True)
    except click.NoSuchOption as error:
        from fedagentgym.cli.application import COMMANDS

        name = error.option_name.lstrip("-")
        if name in COMMANDS:
            return _print_error(f"No such option '--{name}'. It is a command: fedagentgym {name}")
        return _print_error(_explain_place(error) if name == "out" else error.format_message())
    except click.ClickException as error:
        return _print_error(error.format_message())
    except (click.Abort, KeyboardInterrupt) as error:
        saved = str(error) if isinstance(error, WorkInterrupted) else NOTHING_SAVED
        return _print_error(f"interrupted: {saved}", INTERRUPTED)
    except BrokenPipeError:  # the reader closed the pipe
        _drop(sys.stdout)
        return 0
    except SystemExit as error:
        return _print_error(f"code of this command, perhaps of a plugin, called sys.exit({error.code!r})")
    except ModuleNotFoundError as error:
        sentence = explain_missing(error)
        return _print_unexpected(error) if sentence is None else _print_error(sentence)
    except MemoryError:
        return _print_error(NO_MEMORY)
    except OSError as error:
        if error.errno is None:
            return _print_unexpected(error)
        place = f"cannot use {os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return _print_error(f"{place}{error.strerror}")
    except BaseException as error:
        return _print_error(f"{NO_MEMORY} ({SMALLER})") if _is_out_of_memory(error) else _print_unexpected(error)
    return result if isinstance(result, int) else 0


def _is_out_of_memory(error: BaseException) -> bool:
    """True if PyTorch could not allocate memory: its own error on a GPU, a RuntimeError on a processor."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)


def _explain_place(error: click.NoSuchOption) -> str:
    """The message for `--out` of an `init` command without this option: it names the argument for the file or folder."""
    context = error.ctx
    if context is None or context.command.name != "init":
        return error.format_message()
    place = next(one.make_metavar(context) for one in context.command.params if isinstance(one, click.Argument))
    return f"No such option '--out': {context.command_path} {place} names what is written"


def _print_error(message: str, code: int = USER_ERROR, *, whole: bool = False) -> int:
    """Print an error on one line, or with `whole` a page of help, and return the exit code."""
    if not whole:  # blanks within a line are kept, since a quoted command may need them
        message = f"fedagentgym: {' '.join(filter(None, map(str.strip, message.splitlines())))}"
        message = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]}..."
    try:
        click.echo(escape_terminal(message), err=True)
    except (OSError, ValueError):
        _drop(sys.stderr)
    return code


def _drop(output: TextIO) -> None:
    """Discard further output to a stream, so that the interpreter's last flush does not fail."""
    with suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, output.fileno())
        os.close(sink)


def _print_unexpected(error: BaseException) -> int:
    """Print one sentence, and write the trace for a bug report to the cache or else to a temporary file; return the exit code."""
    text = "".join(traceback.format_exception(error))
    where = "the full trace could not be written"
    for folder in (cache_folder("errors"), None):
        with suppress(OSError, ValueError):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(".txt", "trace-", folder)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"command: {sys.argv!r}\n{text}")
            where = f"the full trace is in {name}"
            break
    if (blame := find_blame(error)) is not None:
        return _print_error(f"{blame.describe(error)}; {where}")
    return _print_error(
        f"something unexpected happened ({describe_error(error)}); {where}; please report it: {ISSUES}",
        UNEXPECTED,
    )
