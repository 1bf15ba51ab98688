"""The tables of a suite as Markdown and CSV, for readers and programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.escape import escape_csv, escape_markdown
from fedagentgym.leaderboard.metrics import METRICS, Interval, find_metric, format_spread
from fedagentgym.leaderboard.page.findings import describe_control, list_differences, list_expected
from fedagentgym.leaderboard.rank import Compared, Control, Place
from fedagentgym.leaderboard.results import Result, SuiteEntries

FINDINGS = "## By scenario"
"""The heading of what `write_findings` has."""
IN_SCENARIOS = ("success", "worst_client", "own_world", "own_world_worst")
"""The measures that are shown for each scenario, besides the ranked one."""
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
    "ranked",
    "mean",
    "low",
    "high",
    "runs",
]


def list_measures(entries: Sequence[Result]) -> list[str]:
    """The measures that at least one entry has, the ranked one first, then in the order of `METRICS`."""
    ranked = entries[0].suite.rank_by
    found = [each for entry in entries for each in (entry.numbers.overall, *entry.numbers.by_scenario.values())]
    known = {name for measures in found for name in measures}
    ordered = [name for name in METRICS if name in known and name != ranked]
    return [ranked, *ordered, *sorted(known - {ranked, *METRICS})]


def tell_status(entry: Result) -> str:
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


def describe_part(entry: Result) -> str:
    """Return how many scenarios of the suite were played."""
    return f"{len(entry.scenarios)} of {len(entry.suite.scenarios)} scenarios"


def find_secret(entry: Result) -> Interval | None:
    """The ranked measure on the secret twin, where the maintainers have run the entry there."""
    rerun = entry.verification.rerun if entry.verification is not None else None
    return None if rerun is None else rerun.secret.get(entry.suite.rank_by)


def write_markdown(
    found: SuiteEntries, places: Mapping[str, Place], differences: Sequence[Compared], control: Control | None
) -> str:
    """The table over all scenarios, best first, and what `write_findings` has."""
    measures = [
        name for name in list_measures(found.entries) if any(name in one.numbers.overall for one in found.entries)
    ]
    head = [f"# {escape_markdown(found.suite.title)}", "", f"`{found.suite.name}`, version {found.suite.version}.", ""]
    table = _write_table(order_entries(found.entries, places), places, measures)
    return "\n".join([*head, *table, "", FINDINGS, "", write_findings(found, places, differences, control)])


def write_findings(
    found: SuiteEntries, places: Mapping[str, Place], differences: Sequence[Compared], control: Control | None
) -> str:
    """A table of each measure by scenario, the planned differences, what was expected, and the control."""
    ordered = order_entries(found.entries, places)
    measures = dict.fromkeys((ordered[0].suite.rank_by, *IN_SCENARIOS))
    lines = [line for name in measures for line in _write_scenarios(found, ordered, name)]
    if differences:
        lines += ["Planned differences, in points:", "", "| | scenario | difference | 95 %, or each run | p | shows |"]
        lines.append("|---|---|---|---|---|---|")
        for first, second, scenario, *numbers in list_differences(found, differences):
            names = [escape_markdown(name) for name in (f"{first} - {second}", scenario)]
            lines.append(f"| {' | '.join([*names, *numbers])} |")
        lines.append("")
    if expected := list_expected(found.suite, differences):
        lines += ["Expected:", "", *(f"- {escape_markdown(one)}" for one in expected), ""]
    if sentences := describe_control(found, differences, control):
        lines += [escape_markdown(" ".join(sentences)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _write_scenarios(found: SuiteEntries, entries: Sequence[Result], name: str) -> Iterator[str]:
    """The table of one measure, a column for each scenario; nothing if no entry has it."""
    by_scenario = {entry.name: entry.numbers.by_scenario for entry in entries}
    if not any(name in measures for each in by_scenario.values() for measures in each.values()):
        return
    scenarios, metric = list(found.suite.scenarios), find_metric(name)
    yield f"{metric.title[0].upper()}{metric.title[1:]}:"
    yield ""
    yield f"| {' | '.join(['', *map(escape_markdown, scenarios)])} |"
    yield "|" + "---|" * (len(scenarios) + 1)
    for entry in entries:
        measured = [by_scenario[entry.name].get(scenario, {}).get(name) for scenario in scenarios]
        if any(measured):
            runs = [entry.numbers.list_runs(name, scenario) for scenario in scenarios]
            cells = [_format_cell(one, name, own) for one, own in zip(measured, runs, strict=True)]
            yield f"| {' | '.join([escape_markdown(entry.entry.title), *cells])} |"
    yield ""


def write_top(found: SuiteEntries, places: Mapping[str, Place], most: int, measures: Sequence[str] = ()) -> str:
    """The best entries as a table without a heading, for a README; by the ranked measure alone, unless others are named."""
    known = list_measures(found.entries)
    if unknown := [name for name in measures if name not in known]:
        raise unknown_name_error(f"measure of {found.key}", unknown[0], known)
    chosen = measures or [found.entries[0].suite.rank_by]
    return "\n".join(_write_table(order_entries(found.entries, places)[:most], places, chosen)) + "\n"


def _write_table(entries: Sequence[Result], places: Mapping[str, Place], measures: Sequence[str]) -> list[str]:
    """The lines of a Markdown table."""
    is_ranked = any(place.rank for place in places.values())
    titles = [find_metric(name).title for name in measures]
    heads = ["band", *(["rank"] if is_ranked else []), "entry", *titles, "status"]
    is_run_again = any(find_secret(entry) is not None for entry in entries)
    heads += ["on the secret twin"] if is_run_again else []
    lines = [f"| {' | '.join(map(escape_markdown, heads))} |", "|" + "---|" * len(heads)]
    for entry in entries:
        place, overall = places.get(entry.name), entry.numbers.overall
        start = [str(place.band) if place else ""]
        start += [str(place.rank) if place else ""] if is_ranked else []
        cells = [*start, escape_markdown(entry.entry.title)]
        cells += [_format_cell(overall.get(name), name, entry.numbers.list_runs(name)) for name in measures]
        cells.append(escape_markdown(tell_status(entry)))
        cells += [_format_cell(find_secret(entry), entry.suite.rank_by)] if is_run_again else []
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def order_entries(entries: Sequence[Result], places: Mapping[str, Place]) -> list[Result]:
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
        start = [found.suite.name, found.suite.version, entry.name, escape_csv(entry.entry.title)]
        start += [place.band, place.rank or ""] if place else ["", ""]
        start.append(escape_csv(tell_status(entry)))
        for scenario, measures in {"overall": entry.numbers.overall, **entry.numbers.by_scenario}.items():
            for name, one in sorted(measures.items()):
                ends = [repr(end) for end in one.ends or ()] or ["", ""]
                runs = entry.numbers.list_runs(name, "" if scenario == "overall" else scenario)
                ranked = "yes" if name == entry.suite.rank_by else ""
                numbers = [repr(one.mean), *ends, " ".join(map(repr, runs))]
                table.writerow([*start, scenario, escape_csv(name), ranked, *numbers])
    return out.getvalue()
