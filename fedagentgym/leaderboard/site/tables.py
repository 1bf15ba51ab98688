"""The tables of a suite as Markdown and CSV, for readers and programs, and the excerpt of them that README shows.

    python -m fedagentgym.leaderboard.site.tables README.md build/leaderboard

The excerpt stands between two markers, and is made from the tables that the page has as CSV; nothing of it is typed.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedagentgym.base.errors import DataError, unknown_name_error
from fedagentgym.base.escape import escape_csv, escape_markdown
from fedagentgym.base.files import write_atomic
from fedagentgym.base.rounding import format_fixed
from fedagentgym.leaderboard.metrics import METRICS, find_metric, format_spread
from fedagentgym.leaderboard.ranking import Place
from fedagentgym.leaderboard.record import Interval
from fedagentgym.leaderboard.results import ResultFolder, SuiteEntries

BEGIN, END = "<!-- leaderboard: begin -->", "<!-- leaderboard: end -->"
MOST_IN_EXCERPT = 3
"""Entries of a suite that the excerpt shows."""
COLUMNS = [
    "suite",
    "version",
    "entry",
    "title",
    "band",
    "rank",
    "status",
    "scenario",
    "measure",
    "mean",
    "low",
    "high",
    "runs",
]


def list_measures(entries: Sequence[ResultFolder]) -> list[str]:
    """The measures that at least one entry has, the ranked one first, then in the order of `METRICS`."""
    ranked = entries[0].manifest.ranked
    found = [each for entry in entries for each in (entry.overall, *entry.manifest.by_scenario.values())]
    known = {name for measures in found for name in measures}
    ordered = [name for name in METRICS if name in known and name != ranked]
    return [ranked, *ordered, *sorted(known - {ranked, *METRICS})]


def tell_status(entry: ResultFolder) -> str:
    """Return how far the result was checked, and how much of the suite it holds if it does not hold all."""
    found = entry.verification
    if found is None:
        state = "not verified"
    elif any(claim.status == "refuted" for claim in found.claims):
        state = "refuted"
    else:
        state = "replayed" if found.replayed else "checked"
        state += "" if found.rerun is None else ", run again by the maintainers"
    return state if entry.is_whole else f"{state}, {describe_part(entry)}"


def describe_part(entry: ResultFolder) -> str:
    """Return how many scenarios of the suite were played."""
    return f"{len(entry.manifest.scenarios)} of {len(entry.suite.scenarios)} scenarios"


def find_secret(entry: ResultFolder) -> Interval | None:
    """The ranked measure on the secret twin, where the maintainers have run the entry there."""
    rerun = entry.verification.rerun if entry.verification is not None else None
    return None if rerun is None else rerun.secret.get(entry.manifest.ranked)


def write_markdown(found: SuiteEntries, places: Mapping[str, Place]) -> str:
    """The table over all scenarios, best first."""
    measures = [name for name in list_measures(found.entries) if any(name in one.overall for one in found.entries)]
    head = [f"# {escape_markdown(found.suite.title)}", "", f"`{found.suite.name}`, version {found.suite.version}.", ""]
    table = _write_table(order_entries(found.entries, places), places, measures)
    return "\n".join([*head, *table]) + "\n"


def write_top(found: SuiteEntries, places: Mapping[str, Place], most: int, measures: Sequence[str] = ()) -> str:
    """The best entries as a table without a heading, for a README; by the ranked measure alone, unless others are named."""
    known = list_measures(found.entries)
    if unknown := [name for name in measures if name not in known]:
        raise unknown_name_error(f"measure of {found.key}", unknown[0], known)
    chosen = measures or [found.entries[0].manifest.ranked]
    return "\n".join(_write_table(order_entries(found.entries, places)[:most], places, chosen)) + "\n"


def _write_table(entries: Sequence[ResultFolder], places: Mapping[str, Place], measures: Sequence[str]) -> list[str]:
    """The lines of a Markdown table."""
    is_ranked = any(place.rank for place in places.values())
    titles = [find_metric(name).title for name in measures]
    heads = ["band", *(["rank"] if is_ranked else []), "entry", *titles, "status"]
    is_run_again = any(find_secret(entry) is not None for entry in entries)
    heads += ["on the secret twin"] if is_run_again else []
    lines = [f"| {' | '.join(map(escape_markdown, heads))} |", "|" + "---|" * len(heads)]
    for entry in entries:
        place, overall = places.get(entry.name), entry.overall
        start = [str(place.band) if place else ""]
        start += [str(place.rank) if place else ""] if is_ranked else []
        cells = [*start, escape_markdown(entry.manifest.entry.title)]
        cells += [_format_cell(overall.get(name), name, entry.list_runs(name)) for name in measures]
        cells.append(escape_markdown(tell_status(entry)))
        cells += [_format_cell(find_secret(entry), entry.manifest.ranked)] if is_run_again else []
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def order_entries(entries: Sequence[ResultFolder], places: Mapping[str, Place]) -> list[ResultFolder]:
    """Ranked entries first, then those that could not be ranked, by name."""
    orders = {name: place.order for name, place in places.items()}
    return sorted(entries, key=lambda one: (orders.get(one.name, len(places) + 1), one.name))


def _format_cell(found: Interval | None, name: str, runs: Sequence[float] = ()) -> str:
    return "" if found is None else format_spread(found, runs, find_metric(name))


def write_csv(found: SuiteEntries, places: Mapping[str, Place]) -> str:
    """Every measure of every entry, over all scenarios (`overall`) and in each: one row for each."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for entry in order_entries(found.entries, places):
        place = places.get(entry.name)
        start = [found.suite.name, found.suite.version, entry.name, escape_csv(entry.manifest.entry.title)]
        start += [place.band, place.rank or ""] if place else ["", ""]
        start.append(escape_csv(tell_status(entry)))
        for scenario, measures in {"overall": entry.overall, **entry.manifest.by_scenario}.items():
            for name, one in sorted(measures.items()):
                ends = [repr(end) for end in one.ends or ()] or ["", ""]
                runs = entry.list_runs(name, "" if scenario == "overall" else scenario)
                table.writerow([*start, scenario, escape_csv(name), repr(one.mean), *ends, " ".join(map(repr, runs))])
    return out.getvalue()


# ---- the excerpt of README -----------------------------------------------------------------------------------------


def write_excerpt(site: Path) -> str:
    """The best entries of every suite's newest version over all scenarios, best first; entries without a place are left out."""
    newest = {_split_name(table)[0]: table for table in sorted(site.glob("*.csv"), key=_split_name)}
    rows = [row for _, table in sorted(newest.items()) for row in _read_entries(table)]
    lines = ["| suite | band | entry | success [95 %] or (each run) | status |", "|---|---|---|---|---|"]
    for row in rows:
        title, status = escape_markdown(row["title"]), escape_markdown(row["status"])
        lines.append(f"| `{row['suite']}` | {row['band']} | {title} | {_format_percent(row)} | {status} |")
    return "\n".join(lines)


def _split_name(table: Path) -> tuple[str, int]:
    """The name of a table's suite without its version, and the version (0 if the name has none)."""
    name, _, version = table.stem.rpartition("-v")
    return (name, int(version)) if version.isdecimal() else (table.stem, 0)


def fill_page(text: str, excerpt: str) -> str:
    """The page with this excerpt between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"the page has no place for an excerpt between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{excerpt}\n\n{END}{after}"


def _read_entries(table: Path) -> Iterator[Mapping[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["scenario"], row["measure"]) == ("overall", "success")]
    yield from [row for row in rows if row["band"]][:MOST_IN_EXCERPT]


def _format_percent(row: Mapping[str, str]) -> str:
    mean, *ends = _to_percent([row["mean"], row["low"], row["high"]])
    if ends:
        return f"{mean} % [{', '.join(ends)}]"
    runs = _to_percent(row["runs"].split())
    return f"{mean} % ({', '.join(runs)})" if len(runs) > 1 else f"{mean} %"


def _to_percent(values: Sequence[str]) -> list[str]:
    return [format_fixed(100 * float(value), 1) for value in values if value]


if __name__ == "__main__":
    page, site = map(Path, sys.argv[1:])
    write_atomic(page, fill_page(page.read_text("utf-8"), write_excerpt(site)))
