"""`fedagentgym compare`: compares runs, packed results or evaluation files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedagentgym.base.files import write_atomic
from fedagentgym.base.progress import get_console
from fedagentgym.cli.plugins import Plugins

if TYPE_CHECKING:
    from fedagentgym.leaderboard.compare import Part


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs, folders of runs (train --seeds), packed results, or files of episodes.")
    ],
    measure: Annotated[str, typer.Option("--measure", help="success, score, invalid, turns or tokens.")] = "success",
    page: Annotated[Path, typer.Option("--page", help="File of the page.", metavar="FILE")] = Path("comparison.html"),
    plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Compare runs with the first of them: paired differences with intervals, and a page."""
    from fedagentgym.leaderboard.compare import compare as compare_played
    from fedagentgym.leaderboard.compare import load_played
    from fedagentgym.leaderboard.comparison.page import write_comparison
    from fedagentgym.leaderboard.curves import read_learning_curves

    found = compare_played([load_played(run) for run in runs], measure)
    curves = {name: read_learning_curves(path) for name, path in found.paths.items()}
    write_atomic(page, write_comparison(found, curves, page))
    if as_json:
        measured = {name: {key: one.model_dump() for key, one in each.items()} for name, each in found.measured.items()}
        differences = {name: one._asdict() for name, one in found.differences.items()}
        plain = {"measure": measure, "names": found.names, "pairing": found.pairing, "page": str(page)}
        parts = {"scenarios": _describe_parts(found.scenarios), "categories": _describe_parts(found.categories)}
        typer.echo(json.dumps({**plain, "measured": measured, "differences": differences, **parts}))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", measure, "95 % interval", f"difference to {found.names[0]}", "p", "corrected"):
        table.add_column(column, overflow="fold")
    for name in found.names:
        mean, low, high = (getattr(found.measured[name][measure], key) for key in ("mean", "low", "high"))
        more = found.differences.get(name)
        shown = ["", "", ""]
        if more is not None:
            shown = [f"{more.mean:+.3f} [{more.low:+.3f}, {more.high:+.3f}]", f"{more.p:.4f}", f"{more.adjusted:.4f}"]
        table.add_row(name, f"{mean:.3f}", f"{low:.3f} to {high:.3f}", *shown)
    get_console().print(table)
    get_console().print(f"{found.pairing}; page: {page}", highlight=False)


def _describe_parts(parts: Mapping[str, Part]) -> dict[str, object]:
    return {
        name: {
            "tasks": part.tasks,
            "measured": {entry: one.model_dump() for entry, one in part.measured.items()},
            "differences": {entry: one._asdict() for entry, one in part.differences.items()},
        }
        for name, part in parts.items()
    }
