"""`fedagentgym settings`: the keys of a configuration, with defaults and meanings."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import Annotated

import typer

from fedagentgym.base.progress import get_console
from fedagentgym.cli.plugins import Plugins


def settings(
    key: Annotated[
        str | None, typer.Argument(help="A key such as learning.kl, or the last part of one; without it all keys.")
    ] = None,
    plugins: Plugins = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a page of documentation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Print the settings of a run: every key with its default, its type and its meaning."""
    from fedagentgym.experiment.settings_reference import find_settings, list_settings, to_markdown

    found = list_settings() if key is None else find_settings(key)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in found], indent=2))
        return
    if markdown:
        typer.echo(to_markdown(found), nl=False)
        return
    out = get_console()
    width = max(min(out.width, 100) - 4, 20)
    for entry in found:
        out.print(f"{entry.key} = {entry.default}" if entry.default else entry.key, highlight=False)
        belongs = f" [{', '.join(entry.names)}]" if entry.names else ""
        told = "; ".join(part for part in (entry.meaning, entry.kind) if part)
        for line in textwrap.wrap(f"{told}{belongs}", width):
            out.print(f"    {line}", highlight=False)
