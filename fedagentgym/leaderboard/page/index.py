"""`index.html`: a tab for each suite with its table, figures, episodes and checks, and the numbers from papers.

`assets/leaderboard.js` draws the table from the `data` of `view_suite`. In the figures each entry's line or dot carries the
entry's name, so that the page can highlight the entry of the selected row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from fedagentgym.base.errors import join_names
from fedagentgym.base.rounding import format_bytes, format_fixed
from fedagentgym.base.statistics import MIN_REPLICATES, mean
from fedagentgym.leaderboard.compare import average_curves
from fedagentgym.leaderboard.costs import describe_sampling
from fedagentgym.leaderboard.metrics import Interval, Measures, find_ends, find_metric, format_spread
from fedagentgym.leaderboard.page.tables import (
    RUNS,
    describe_control,
    describe_part,
    describe_search,
    format_status,
    is_reference,
    list_differences,
    list_expected,
    list_measures,
    list_runs,
    list_settings,
    order_entries,
)
from fedagentgym.leaderboard.rank import Compared, Place
from fedagentgym.leaderboard.results import Result, SuiteEntries
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.pages.charts import Chart, Points, Series
from fedagentgym.pages.render import Strong, format_percent

MAX_NAMED = 6
"""Number of entries (the best ones) with a colour and a name in the legend; the others are grey."""
MAX_STRIPS = 20
View = dict[str, Any]
"""The values of a part of the page, as its template reads them."""


def view_suite(
    found: SuiteEntries,
    places: Mapping[str, Mapping[str, Place]],
    links: Mapping[str, str],
    differences: Sequence[Compared],
) -> View:
    """The values of a suite's tab. `places` are the places of entries over all scenarios ("") and in each; `links` are the
    addresses of the entries' results."""
    suite, ordered = found.suite, order_entries(found.entries, places[""])
    strips = _list_strips(ordered)
    bands, pairing = _describe_tests(suite, len(differences))
    entries = []
    for entry in ordered:
        ranks = {scenario: each[entry.name] for scenario, each in places.items() if entry.name in each}
        entries.append({**_describe_entry(entry), "files": links[entry.name], "places": ranks})
    return {
        "key": found.key,
        "suite": suite,
        "leader": _describe_leader(ordered, places[""]),
        "facts": _list_facts(found),
        "bands": bands,
        "expected": list_expected(suite, differences),
        "differences": list_differences(found, differences),
        "control": describe_control(found, differences),
        "pairing": pairing,
        "settings": list_settings(suite, ordered),
        "runs": list_runs(suite, ordered),
        "run_heads": [("entry", False), *((name, True) for name in suite.scenarios)],
        "about_runs": RUNS,
        "charts": [(chart, note) for chart, note in _make_charts(suite, ordered) if not chart.is_empty],
        "strips": strips[:MAX_STRIPS],
        "all_strips": len(strips),
        "paper": find_paper(suite.paper),
        "unproven": _list_unproven(found.entries),
        "data": {
            "key": found.key,
            "ranked": found.entries[0].suite.rank_by,
            "measures": [asdict(find_metric(name)) for name in list_measures(found.entries)],
            "scenarios": list(suite.scenarios),
            "entries": entries,
        },
    }


def _describe_tests(suite: Suite, comparisons: int) -> tuple[str, str]:
    """When entries share a band, and how differences are tested."""
    runs, unit = len(suite.seeds), "run" if suite.track == "methods" else "task"
    if unit == "task" or runs >= MIN_REPLICATES:
        family = (
            f"all {comparisons} comparisons of this page, planned ones and pairs of entries in the mean over scenarios"
        )
        return (
            f"Two entries share a band if they do not differ significantly in the mean over scenarios (paired by {unit}).",
            f"Paired by {unit}; Holm's correction for {family}, for difference and for equality.",
        )
    return (
        f"{runs} runs of each method are too few for intervals and ranks: every run is shown, and two entries share"
        " a band if they are no further apart than runs of one method vary.",
        f"Paired by run. {runs} runs each: below {MIN_REPLICATES} there is no test, and the difference of every run is shown.",
    )


def _list_facts(found: SuiteEntries) -> list[tuple[str, str]]:
    """The names and values of the facts about a suite."""
    suite, limits, runs = found.suite, found.suite.budget, len(found.suite.seeds)
    budget = [
        "" if limits.rounds is None else f"{limits.rounds:,} rounds",
        "" if limits.episodes is None else f"{limits.episodes:,} episodes",
        "" if limits.bytes is None else format_bytes(limits.bytes),
    ]
    ranked_round = "the last" if suite.ranked_round == "last" else f"the best on {suite.selection.split}"
    power = ""
    if suite.power is not None:
        power = f"{format_fixed(100 * suite.power, 1)} points (found in four of five repetitions of the suite)"
    named = join_names(map(str, suite.seeds))
    if runs > 2 and list(suite.seeds) == list(range(suite.seeds[0], suite.seeds[0] + runs)):
        named = f"{suite.seeds[0]} to {suite.seeds[-1]}"
    splits = dict.fromkeys(suite.get_ranking(name).split for name in suite.scenarios)
    secret = "the maintainers hold one, with other tasks" if suite.secret else "none: all tasks are public"
    facts = [
        ("entries", f"{len(found.entries)}"),
        ("scenarios", f"{len(suite.scenarios)}"),
        ("runs of an entry", f"{runs}, with seed{'' if runs == 1 else 's'} {named}"),
        ("track", suite.track),
        ("hosted models", describe_sampling(suite) if suite.track == "agents" else ""),
        ("ranked by", f"{find_metric(suite.rank_by).title}, split {join_names(splits)}"),
        ("budget", ", ".join(filter(None, budget))),
        ("ranked round", "" if suite.track == "agents" else ranked_round),
        ("settings", describe_search(suite)),
        ("smallest difference that shows", power),
        ("unpublished copy", secret),
    ]
    return [(name, value) for name, value in facts if value]


def _describe_leader(ordered: Sequence[Result], places: Mapping[str, Place]) -> list[str]:
    """The parts of the sentence about the leading entry."""
    if not places:
        return ["No entry has played the whole suite: choose a scenario to compare the entries that played it."]
    ranked = [entry for entry in ordered if entry.name in places]
    references, models = [one for one in ranked if is_reference(one)], [one for one in ranked if not is_reference(one)]
    measure = ranked[0].suite.rank_by
    between = " and ".join(
        f"{one.entry.title} {format_spread(one.numbers.overall[measure], (), find_metric(measure))}"
        for one in references
    )
    if not models:
        return ["No model has played the whole suite yet.", f" For reference: {between}."]
    first = models[0]
    top = set(places[first.name].bands)
    others = sum(bool(top & set(places[one.name].bands)) for one in models) - 1
    shared = ""
    if others:
        worse = "not significantly worse" if places[first.name].rank else "no further from it than runs vary"
        shared = f" {others} more {'is' if others == 1 else 'are'} {worse}."
    reached = format_spread(first.numbers.overall[measure], first.numbers.list_runs(measure), find_metric(measure))
    scale = f" For reference: {between}." if references else ""
    return [Strong(first.entry.title), f" leads with {find_metric(measure).title} {reached}.{shared}{scale}"]


def _list_unproven(entries: Iterable[Result]) -> list[tuple[str, str]]:
    """The claims of the entries that cannot be proven, by name, with up to three descriptions each."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        for claim in entry.verification.claims if entry.verification is not None else ():
            if claim.status == "not provable":
                found.setdefault(claim.name, set()).add(claim.about)
    return [(name, about) for name, abouts in sorted(found.items()) for about in sorted(abouts)[:3]]


# ---- figures ------------------------------------------------------------------------------------------------------------


def _make_charts(suite: Suite, ordered: Sequence[Result]) -> Iterator[tuple[Chart, str]]:
    """All charts of a suite, each with a note. `ordered` has the best entry first."""
    curves = {name: [_list_curve(entry, name) for entry in ordered] for name in suite.scenarios}
    most = max((x for each in curves.values() for curve in each for x, _ in curve), default=0.0)
    axis, unit = "episodes with preparation", 1.0
    if most >= 10_000:
        axis, unit = f"{axis}, thousands", 1000.0
    for name, each in curves.items():
        title = f"Learning curves: {name}" if len(curves) > 1 else "Learning curves"
        series = _make_series(ordered, [[(x / unit, y) for x, y in curve] for curve in each])
        note = f"Success on {suite.selection.split}, mean over seeds. The best entries have colours."
        yield Chart(title, series, x=axis, limits=(0.0, 1.0), percent=True), note
    reached = [
        [(overall["bytes"].mean / 1e6, overall["success"].mean)] if {"bytes", "success"} <= overall.keys() else []
        for overall in (entry.numbers.overall for entry in ordered)
    ]
    series = _make_series(ordered, reached, "dots")
    chart = Chart("Success against bytes", series, x="MB in all, mean over seeds", plane=True, percent=True)
    yield chart, "Bytes sent and received by all clients until the end. Further left is cheaper."
    # success from the uniform division to the most heterogeneous, for each axis of heterogeneity
    axes: dict[str, list[tuple[float, str]]] = {}
    for name, scenario in suite.scenarios.items():
        if scenario.axis and scenario.level is not None:
            axes.setdefault(scenario.axis, []).append((scenario.level, name))
    for axis, levels in axes.items():
        if len(levels) > 1:
            levels.sort()
            measured = [[entry.numbers.by_scenario.get(name, {}) for _, name in levels] for entry in ordered]
            points = [
                [(float(at), one["success"].mean) for at, one in enumerate(each) if "success" in one]
                for each in measured
            ]
            names = ["even" if level == 0 else f"{level:g}" for level, _ in levels]
            series = _make_series(ordered, points)
            chart = Chart(f"Heterogeneity: {axis}", series, x="level", limits=(0.0, 1.0), percent=True, x_labels=names)
            yield chart, "Success as clients' tasks become more different. A flat line means no loss."


def _list_curve(entry: Result, scenario: str) -> Points:
    """The mean success over seeds, in the rounds that all seeds evaluated, by episodes."""
    curves = [record.curve for (name, _), record in entry.records.items() if name == scenario]
    return [(point.episodes, point.mean) for point in average_curves([one for one in curves if one])]


def _make_series(ordered: Sequence[Result], points: Sequence[Points], kind: str = "line") -> list[Series]:
    """The series of the entries in a figure. Those of the best entries are named and drawn over the others, which are grey."""
    series = []
    for place, (entry, own) in enumerate(zip(ordered, points, strict=True), start=1):
        title = entry.entry.title
        if kind == "dots":
            labels = [f"{title}: {format_percent(y, 1)}, {format_bytes(1e6 * x)}" for x, y in own]
        else:
            labels = [f"{title}: {y:.3g}" for _, y in own]
        name, colour = (title, place) if place <= MAX_NAMED else ("", 0)
        series.append(Series(name, own, kind, labels=labels, colour=colour, key=entry.name))
    return sorted(series, key=lambda one: one.colour != 0)


def _list_strips(ordered: Sequence[Result]) -> list[View]:
    """For every entry, the success of each client on the client's own mixture of tasks, in the mean over the runs that record
    it."""
    found = []
    for entry in ordered:
        by_client: dict[int, list[float]] = {}
        for record in entry.records.values():
            for client in record.clients:
                if client.success is not None:
                    by_client.setdefault(client.client, []).append(client.success)
        if len(shares := [mean(values) for _, values in sorted(by_client.items())]) > 1:
            strip = {"name": entry.name, "title": entry.entry.title, "shares": shares}
            found.append({**strip, "middle": mean(shares), "worst": min(shares)})
    return found


# ---- numbers from papers, cited with a source and never ranked ----------------------------------------------------------


@cache
def read_published() -> tuple[list[View], list[str]]:
    """All papers in `published.json`, each with its numbers and tables, and notes on contradictions in them."""
    plain = json.loads((files("fedagentgym.leaderboard.page") / "published.json").read_text("utf-8"))
    papers = []
    for name, about in plain["papers"].items():
        tables: dict[str, list[View]] = {}
        for row in plain["results"]:
            if row["paper"] == name:
                tables.setdefault(row["table"], []).append(row)
        papers.append(
            {
                "name": name,
                "about": about,
                "origin": ", ".join(str(about[key]) for key in ("venue", "arxiv") if about.get(key)),
                "rows": [row for rows in tables.values() for row in rows],
                "tables": [_lay_out(f"{name}, {table}", rows) for table, rows in tables.items()],
            }
        )
    return papers, plain["notes"]


def _lay_out(name: str, rows: Sequence[View]) -> View:
    """A table of a paper. Each row has three texts, then the values with their spread and the number of their note."""
    columns: dict[tuple[str, str], int] = {}  # with the digits after the point: a value keeps its printed zeros
    for row in rows:
        column, digits = (row["dataset"], row["metric"]), len(f"{row['value']:g}".partition(".")[2])
        columns[column] = max(digits, columns.get(column, 0))
    metrics = {metric for _, metric in columns}
    notes = list(dict.fromkeys(row["flag"] for row in rows if row.get("flag") is not None))
    lines: dict[tuple[str, str, str], dict[tuple[str, str], tuple[str, str, str]]] = {}
    for row in rows:
        setting = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in row.get("setting", {}).items())
        column = (row["dataset"], row["metric"])
        spread = f"± {row['std']:g}" if "std" in row else ""
        mark = str(notes.index(row["flag"]) + 1) if row.get("flag") is not None else ""
        value = format_fixed(row["value"], columns[column])
        lines.setdefault((row["model"], row["method"], setting), {})[column] = (value, spread, mark)
    heads = [("model", False), ("method", False), ("setting", False)]
    heads += [(dataset if len(metrics) == 1 else f"{dataset}, {metric}", True) for dataset, metric in columns]
    body = [(line, [found.get(column, ("", "", "")) for column in columns]) for line, found in lines.items()]
    unit = f"unit: {', '.join(sorted({str(row['unit']) for row in rows}))}"
    unit = f"{metrics.pop()}, {unit}" if len(metrics) == 1 else unit
    return {"name": name, "numbers": len(rows), "unit": unit, "notes": notes, "heads": heads, "rows": body}


def find_paper(name: str | None) -> View | None:
    """The paper of this name, ignoring case; None if there is none."""
    return next((paper for paper in read_published()[0] if name and paper["name"].lower() == name.lower()), None)


# ---- the data of the table's script --------------------------------------------------------------------------------


def _describe_entry(entry: Result) -> View:
    """An entry in the form that the page's script reads."""
    about, numbers, records = entry.entry, entry.numbers, list(entry.records.values())
    agent, newest = records[0].agent, max((record.made for record in records), key=lambda made: made.date)
    verification, ranked = entry.verification, entry.suite.rank_by
    again: View | None = None
    if verification is not None and (rerun := verification.rerun) is not None:  # the ranked measure, by maintainers
        tasks = {"public": rerun.public, "secret": rerun.secret}
        again = {
            name: _describe_interval(one[ranked], ranked) if ranked in one else None for name, one in tasks.items()
        }
        again["date"] = rerun.date
    regraded = "" if about.regraded is None else f" Graded again by {about.regraded.by}, from {about.regraded.of}."
    categories: dict[str, dict[str, list[float]]] = {}
    for (scenario, _), record in entry.records.items():
        for category, measures in {} if record.ranked is None else record.ranked.categories.items():
            categories.setdefault(scenario, {}).setdefault(category, []).append(measures["success"]["mean"])
    return {
        "name": entry.name,
        "title": about.title,
        "baseline": about.baseline,
        "reference": is_reference(entry),
        "agent": agent.model or str(agent.settings.get("name", agent.kind)),
        "kind": agent.kind,
        "method": records[0].algorithm or "",
        "changes": list(about.changes),
        "plugins": [one.name for one in about.plugins],
        "by": about.submitted_by,
        "link": about.link if about.link.startswith(("https://", "http://")) else "",
        "note": about.note + regraded,
        "status": format_status(entry),
        "part": "" if entry.is_whole else describe_part(entry),
        "rerun": again,
        "claims": [[one.name, one.status, one.about] for one in verification.claims] if verification else [],
        "date": newest.date,
        "version": newest.versions.get("fedagentgym", ""),
        "machine": ", ".join(f"{name} {value}" for name, value in sorted(newest.machine.items())),
        "seconds": round(sum(record.made.seconds for record in records)),
        "seeds": entry.seeds,
        "episodes": sum(record.ranked.episodes for record in records if record.ranked is not None),
        "measures": {"": _describe_measures(entry, numbers.overall)}
        | {scenario: _describe_measures(entry, found, scenario) for scenario, found in numbers.by_scenario.items()},
        "categories": {
            scenario: [[name, _round(sum(values) / len(values))] for name, values in sorted(below.items())]
            for scenario, below in categories.items()
        },
    }


def _describe_measures(entry: Result, found: Measures, scenario: str = "") -> dict[str, list[Any]]:
    """For every measure: the mean, the ends of its interval (None without one), and the values of the runs."""
    return {
        name: [*_describe_interval(one, name), [_round(value) for value in entry.numbers.list_runs(name, scenario)]]
        for name, one in found.items()
    }


def _describe_interval(one: Interval, name: str) -> list[float | None]:
    ends = find_ends(one, find_metric(name))
    return [_round(one.mean), *([None, None] if ends is None else map(_round, ends))]


def _round(value: float) -> float:
    return float(f"{value:.6g}")
