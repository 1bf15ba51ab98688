"""`fedagentgym leaderboard`: the page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.progress import get_console

app = typer.Typer(help="The leaderboard: a page of results that opens from disk.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The leaderboard: a page of results that opens from disk."""


@app.command()
def build(
    results: Annotated[list[Path], typer.Argument(help="Packed results, or folders with results in them.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; an older page in it is replaced.")],
    link: Annotated[
        str | None,
        typer.Option("--link", help="Link from the page to the results, instead of a copy of each."),
    ] = None,
) -> None:
    """Build the page: static files that need no network, the tables as Markdown and CSV, and the results themselves."""
    from fedagentgym.leaderboard.site.build import build_site

    built = build_site(results, out, link=link)
    count = sum(len(one.entries) for one in built)
    get_console().print(f"{count:,} results of {len(built)} suites: open {out / 'index.html'}", highlight=False)
