"""The command `fedagentgym`: a table of commands, and the one place where an error becomes a sentence and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import click
import typer

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.logs import log_to_stderr
from fedagentgym.base.progress import set_verbosity
from fedagentgym.base.registry import resolve
from fedagentgym.version import __version__

COMMANDS: dict[str, str] = {
    "envs": "fedagentgym.cli.envs:envs",
    "play": "fedagentgym.cli.play:play",
    "split": "fedagentgym.cli.split:app",
    "label": "fedagentgym.cli.label:label",
    "data": "fedagentgym.cli.data:app",
    "pretrain": "fedagentgym.cli.pretrain:app",
    "train": "fedagentgym.cli.train:train",
    "eval": "fedagentgym.cli.eval:evaluate",
    "export": "fedagentgym.cli.export:export",
    "flower": "fedagentgym.cli.flower:app",
    "bench": "fedagentgym.cli.bench:bench",
    "doctor": "fedagentgym.cli.doctor:doctor",
}
USER_ERROR = 2
INTERRUPTED = 130


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedagentgym {__version__}")
        raise typer.Exit


def _apply_global_options(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    set_verbosity("quiet" if quiet else "normal")


def build_app() -> typer.Typer:
    """The whole command line, from the table of commands."""
    app = typer.Typer(
        name="fedagentgym",
        help="Environments, client splits and a trainer for federated reinforcement learning of LLM agents.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        callback=_apply_global_options,
    )
    for name, reference in COMMANDS.items():
        command: Any = resolve(reference)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    sys.exit(main(sys.argv[1:] if arguments is None else arguments))


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code; whatever a user can cause ends as one sentence."""
    log_to_stderr()
    try:
        result = build_app()(args=arguments, prog_name="fedagentgym", standalone_mode=False)
    except FedAgentGymError as error:
        return _print_error(str(error))
    except click.exceptions.NoArgsIsHelpError:
        return USER_ERROR
    except click.ClickException as error:
        return _print_error(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    return result if isinstance(result, int) else 0


def _print_error(message: str) -> int:
    click.echo("fedagentgym: " + " ".join(message.split()), err=True)
    return USER_ERROR
