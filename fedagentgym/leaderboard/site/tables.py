"""The tables of a suite as Markdown and CSV, for readers and programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from fedagentgym.base.errors import show_invisible_characters, unknown_name_error
from fedagentgym.leaderboard.metrics import METRICS, find_metric, format_spread
from fedagentgym.leaderboard.ranking import Place
from fedagentgym.leaderboard.record import Interval
from fedagentgym.leaderboard.results import ResultFolder, SuiteEntries
from fedagentgym.pages.render import escape_markdown


def list_measures(entries: Sequence[ResultFolder]) -> list[str]:
    """The measures that at least one entry has, the ranked one first, then in the order of `METRICS`."""
    ranked = entries[0].manifest.ranked
    known = {name for entry in entries for name in _list_names(entry)}
    ordered = [name for name in METRICS if name in known and name != ranked]
    return [ranked, *ordered, *sorted(known - {ranked, *METRICS})]


def _list_names(entry: ResultFolder) -> set[str]:
    by_scenario = entry.manifest.by_scenario.values()
    return {*entry.overall, *(name for found in by_scenario for name in found)}


def tell_status(entry: ResultFolder) -> str:
    """How far the result was checked, and how much of the suite it holds if it does not hold all."""
    told = _list_checks(entry)
    if not entry.is_whole:
        told.append(f"{len(entry.manifest.scenarios)} of {len(entry.suite.scenarios)} scenarios")
    return ", ".join(told)


def _list_checks(entry: ResultFolder) -> list[str]:
    if entry.verification is None:
        return ["not verified"]
    if any(claim.status == "refuted" for claim in entry.verification.claims):
        return ["refuted"]
    told = ["replayed"] if entry.verification.replayed else ["checked"]
    return told if entry.verification.rerun is None else [*told, "run again by the maintainers"]


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
    heads = [
        "band",
        *(["rank"] if is_ranked else []),
        "entry",
        *(find_metric(name).title for name in measures),
        "status",
    ]
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
    return sorted(
        entries, key=lambda one: (places[one.name].order if one.name in places else len(places) + 1, one.name)
    )


def _format_cell(found: Interval | None, name: str, runs: Sequence[float] = ()) -> str:
    return "" if found is None else format_spread(found, runs, find_metric(name))


def write_csv(found: SuiteEntries, places: Mapping[str, Place]) -> str:
    """Every measure of every entry, over all scenarios (`overall`) and in each: one row for each."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(
        [
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
    )
    for entry in order_entries(found.entries, places):
        place = places.get(entry.name)
        start = [found.suite.name, found.suite.version, entry.name, _guard(entry.manifest.entry.title)]
        start += [place.band, place.rank or ""] if place else ["", ""]
        start.append(tell_status(entry))
        for scenario, measures in {"overall": entry.overall, **entry.manifest.by_scenario}.items():
            for name, one in sorted(measures.items()):
                ends = [repr(end) for end in one.ends or ()] or ["", ""]
                runs = entry.list_runs(name, "" if scenario == "overall" else scenario)
                table.writerow([*start, scenario, name, repr(one.mean), *ends, " ".join(map(repr, runs))])
    return out.getvalue()


def _guard(text: str) -> str:
    """A text that spreadsheets do not take for a formula."""
    plain = show_invisible_characters(" ".join(text.split()))
    return f"'{plain}" if plain.startswith(("=", "+", "-", "@")) else plain
