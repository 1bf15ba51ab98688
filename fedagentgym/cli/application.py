"""The command line as a whole, built from the table of commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import click
import typer

from fedagentgym.base.progress import set_verbosity
from fedagentgym.base.registry import resolve
from fedagentgym.cli.arguments import restrict_parameters
from fedagentgym.version import __version__


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


def build_app(commands: Mapping[str, str]) -> click.Command:
    """The command line, built from the table of commands."""
    app = typer.Typer(
        name="fedagentgym",
        help="Environments, client splits and a trainer for federated reinforcement learning of LLM agents.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        callback=_apply_global_options,
    )
    for name, reference in commands.items():
        command: Any = resolve(reference)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    built = typer.main.get_command(app)
    restrict_parameters(built)
    return built
