"""`--plugin`, an option of every command that opens an environment or reads a configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from fedagentgym.base.plugins import load_plugins


def _load(plugins: list[str] | None) -> list[str]:
    load_plugins(plugins or ())
    return plugins or []


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A file (mine.py) or module of your own that registers things; may be repeated.",
        metavar="FILE_OR_MODULE",
        callback=_load,
        is_eager=True,
    ),
]
"""Plugins are loaded before other parameters are used, so that most commands only declare the option."""
