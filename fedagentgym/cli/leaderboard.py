"""`fedagentgym leaderboard` and `fedagentgym compare`: a page of results, and a comparison of a few runs or results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.files import write_atomic
from fedagentgym.base.progress import make_table, print_result
from fedagentgym.base.rounding import count_things
from fedagentgym.cli.options import JSON, PATH, PLUGINS, POSITIVE, Group, command, option, repeated

if TYPE_CHECKING:
    from fedagentgym.leaderboard.compare import Part

RESULTS = click.argument(
    "results", type=PATH, nargs=-1, required=True, help="Results, or folders with results in them."
)
VERIFIED = repeated(
    "--verified",
    type=PATH,
    metavar="FOLDER",
    help="Folder that `bench verify --out` wrote; may be repeated: the first with findings about a result counts.",
)


@click.group(cls=Group)
def leaderboard() -> None:
    """Build the leaderboard, a page of results that opens from disk, or print its best entries."""


@leaderboard.command(epilog="Example: fedagentgym leaderboard build results --out site")
@RESULTS
@option("--out", type=PATH, required=True, help="Folder to write; an older page in it is replaced.")
@option("--link", help="Address of the results; the page links to them instead of holding copies.")
@VERIFIED
def build(results: tuple[Path, ...], out: Path, link: str | None, verified: tuple[Path, ...]) -> None:
    """Build the page: static files that need no network, the tables as Markdown and CSV, and the results themselves."""
    from fedagentgym.leaderboard.page.build import build_site

    built = build_site(results, out, link=link, verified=verified)
    count = sum(len(one.entries) for one in built)
    print_result(f"{count_things(count, 'result')} of {count_things(len(built), 'suite')}: open {out / 'index.html'}")


@leaderboard.command(epilog="Example: fedagentgym leaderboard top results --suite agents-tiny-v1")
@RESULTS
@option("--suite", required=True, metavar="NAME", help="The suite.")
@option("--entries", type=POSITIVE, default=10, help="Number of entries, the best first.")
@repeated("--measure", "measures", metavar="NAME", help="A column, in place of the default ones; may be repeated.")
@VERIFIED
@JSON
def top(
    results: tuple[Path, ...],
    suite: str,
    entries: int,
    measures: tuple[str, ...],
    verified: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Print the best entries of a suite as a Markdown table."""
    from fedagentgym.leaderboard.page.tables import make_top, write_top
    from fedagentgym.leaderboard.rank import compare_suite, rank
    from fedagentgym.leaderboard.results import read_suites
    from fedagentgym.leaderboard.suite import WHOLE

    suites = read_suites(results, verified)
    named = [one for one in suites if suite in (one.key, one.suite.name)]
    if len(named) != 1:  # none, or several versions
        raise unknown_name_error("suite with results", suite, [one.key for one in suites])
    (found,) = named
    values = found.tabulate()
    places = rank(found.suite, values, compare_suite(found.suite, values))
    if as_json:
        click.echo(json.dumps(make_top(found, places[WHOLE], entries, measures)))
        return
    click.echo(write_top(found, places[WHOLE], entries, measures), nl=False)


# ---- comparison -----------------------------------------------------------------------------------------------------


@command(epilog="Example: fedagentgym compare runs/alone runs/together")
@click.argument(
    "runs",
    type=PATH,
    nargs=-1,
    required=True,
    help="Runs, folders of runs (train --seeds), results, or files of episodes.",
)
@option("--measure", default="success", help="The measure to compare: success, score, invalid, turns or tokens.")
@option("--out", "page", type=PATH, metavar="FILE", default=Path("comparison.html"), help="File to write the page to.")
@PLUGINS
@JSON
def compare(runs: tuple[Path, ...], measure: str, page: Path, as_json: bool) -> None:
    """Compare runs with the first of them: paired differences with intervals, and a page."""
    from fedagentgym.leaderboard.compare import (
        RUN_HEADS,
        STEPS,
        align_differences,
        format_numbers,
        format_p,
        load_played,
    )
    from fedagentgym.leaderboard.compare import compare as compare_played
    from fedagentgym.leaderboard.comparison import write_comparison
    from fedagentgym.leaderboard.metrics import format_value

    found = compare_played([load_played(run) for run in runs], measure)
    write_atomic(page, write_comparison(found, page))
    if as_json:
        measured = {name: {key: one.model_dump() for key, one in each.items()} for name, each in found.measured.items()}
        differences = {name: asdict(one) for name, one in found.differences.items()}
        plain: dict[str, object] = {
            "measure": measure,
            "names": found.names,
            "pairing": found.pairing,
            "page": str(page),
        }
        parts = {"scenarios": _describe_parts(found.scenarios), "categories": _describe_parts(found.categories)}
        plain["runs"] = {name: asdict(one) for name, one in found.spreads.items()}
        plain |= {"optimizer_steps": found.steps, "settings": found.settings}
        click.echo(json.dumps({**plain, "measured": measured, "differences": differences, **parts}))
        return
    heads = ["run", f"{measure}, 95 %", f"difference to {found.names[0]}", "p", "corrected"]
    heads += [STEPS.title] if found.steps else []
    found, rows = align_differences(found), []
    for name in found.names:
        more = found.differences.get(name)
        own = found.values[name] if found.runs > 1 else ()
        shown = ["", "", ""]
        if more is not None:
            shown = [format_numbers(more, more.values, "+"), format_p(more.p), format_p(more.adjusted)]
        if found.steps:
            shown.append(format_value(found.steps[name], STEPS) if name in found.steps else "")
        rows.append((name, format_numbers(found.measured[name][measure], own), *shown))
    print_result(make_table(heads, rows))
    if found.spreads:
        print_result(
            make_table(("runs", *RUN_HEADS), [(name, *one.list_cells()) for name, one in found.spreads.items()])
        )
    if found.settings:
        listed = [(key, *values) for key, values in found.settings.items()]
        print_result(make_table(("settings that differ", *found.names), listed, text=1 + len(found.names)))
    print_result(f"{found.pairing}; page: {page}")


def _describe_parts(parts: Mapping[str, Part]) -> dict[str, object]:
    return {
        name: {
            "tasks": part.tasks,
            "measured": {entry: one.model_dump() for entry, one in part.measured.items()},
            "differences": {entry: asdict(one) for entry, one in part.differences.items()},
        }
        for name, part in parts.items()
    }
