"""`fedagentgym leaderboard`: the page of results, and the best of a suite as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.errors import unknown_name_error
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


@app.command()
def top(
    results: Annotated[list[Path], typer.Argument(help="Packed results, or folders with results in them.")],
    suite: Annotated[str, typer.Option("--suite", help="Whose entries.", metavar="NAME")],
    entries: Annotated[int, typer.Option("--entries", min=1, help="How many, the best first.")] = 10,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", help="A column, in place of the ranked measure; may be repeated.", metavar="NAME"),
    ] = None,
) -> None:
    """Print the best entries of a suite as a Markdown table."""
    from fedagentgym.leaderboard.site.build import OVERALL, rank_entries
    from fedagentgym.leaderboard.site.entries import read_suites
    from fedagentgym.leaderboard.site.tables import write_top

    suites = {one.key: one for one in read_suites(results)}
    if suite not in suites:
        raise unknown_name_error("suite with results", suite, suites)
    found = suites[suite]
    typer.echo(write_top(found, rank_entries(found, found.read_values())[OVERALL], entries, measures or ()), nl=False)
