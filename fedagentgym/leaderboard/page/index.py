"""`index.html`: a tab for each suite, with its table, its figures, its episodes, and its checks; and the numbers of papers.

The table is drawn by `assets/leaderboard.js` from the data of `describe_suite`. In the figures each entry's line or dot has the
entry's name, so that the page can highlight the entry whose row is selected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedagentgym.base.rounding import format_bytes, format_fixed
from fedagentgym.base.statistics import FEWEST_REPLICATES, mean
from fedagentgym.leaderboard.compare import average_curves
from fedagentgym.leaderboard.costs import describe_sampling
from fedagentgym.leaderboard.metrics import Interval, Measures, find_ends, find_metric, format_spread
from fedagentgym.leaderboard.page.findings import describe_control, list_differences, list_expected
from fedagentgym.leaderboard.page.tables import describe_part, list_measures, order_entries, tell_status
from fedagentgym.leaderboard.rank import Compared, Control, Place
from fedagentgym.leaderboard.results import Rerun, Result, SuiteEntries
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.pages.charts import Chart, Series
from fedagentgym.pages.render import Strong, format_percent, render

MOST_NAMED = 6
"""Number of entries with a colour and a key, the best ones; the others are grey."""
MOST_STRIPS = 20
Row = Mapping[str, Any]


@dataclass(frozen=True)
class SuitePage:
    """A suite with the ranks of its entries, by scenario, and where each entry's files lie."""

    found: SuiteEntries
    places: Mapping[str, Mapping[str, Place]]
    links: Mapping[str, str]
    differences: list[Compared]
    control: Control | None = None

    @property
    def ordered(self) -> list[Result]:
        """The entries, best first."""
        return order_entries(self.found.entries, self.places[""])


def render_site(pages: Sequence[SuitePage]) -> str:
    """The whole page."""
    suites, cautions = [_view_suite(page) for page in pages], _read_published_file()["notes"]
    return render("leaderboard.html", suites=suites, papers=read_published(), cautions=cautions)


# ---- a suite ----------------------------------------------------------------------------------------------------------


def _view_suite(page: SuitePage) -> dict[str, Any]:
    suite, strips = page.found.suite, _list_strips(page.ordered)
    bands, pairing = _describe_tests(suite, len(page.differences))
    return {
        "key": page.found.key,
        "suite": suite,
        "leader": _describe_leader(page),
        "facts": _list_facts(page),
        "bands": bands,
        "expected": list_expected(suite, page.differences),
        "differences": list_differences(page.found, page.differences),
        "control": describe_control(page.found, page.differences, page.control),
        "pairing": pairing,
        "charts": _make_charts(page.found, page.ordered),
        "strips": strips[:MOST_STRIPS],
        "all_strips": len(strips),
        "paper": find_paper(suite.paper),
        "unproven": _list_unproven(page.found.entries),
        "data": describe_suite(page),
    }


def _describe_leader(page: SuitePage) -> list[str]:
    """The leading entry, in a sentence of parts."""
    places = page.places[""]
    if not places:
        return ["No entry has played all of it: choose a scenario to compare those that played it."]
    first, measure = page.ordered[0], page.found.suite.rank_by
    ranked, metric = first.numbers.overall[measure], find_metric(measure)
    band = [entry for entry in page.ordered if entry.name in places and places[entry.name].band == 1]
    shared = ""
    if len(band) > 1:
        worse = "not significantly worse" if places[page.ordered[0].name].rank else "no further from it than runs vary"
        shared = f" {len(band) - 1} more {'is' if len(band) == 2 else 'are'} {worse}."
    reached = format_spread(ranked, first.numbers.list_runs(measure), metric)
    return [Strong(first.entry.title), f" leads with {metric.title} {reached}.{shared}"]


def _describe_tests(suite: Suite, comparisons: int) -> tuple[str, str]:
    """Return what a band means, and how the differences are paired and tested."""
    unit, runs = "run" if suite.track == "methods" else "task", len(suite.seeds)
    if unit == "task" or runs >= FEWEST_REPLICATES:
        return (
            f"Entries of one band do not differ significantly from the first of it (paired by {unit}, 5 %, Holm's correction).",
            f"Paired by {unit}; Holm's correction for all {comparisons} comparisons, for difference and for equality.",
        )
    return (
        f"{runs} runs of each method are too few for intervals and ranks: every run is shown, and entries of one band are no"
        " further from its first than runs of one method vary.",
        f"Paired by run. {runs} runs each: below {FEWEST_REPLICATES} there is no test, and the difference of every run is shown.",
    )


def _list_facts(page: SuitePage) -> list[tuple[str, str]]:
    suite, limits = page.found.suite, page.found.suite.budget
    budget = [
        "" if limits.rounds is None else f"{limits.rounds:,} rounds",
        "" if limits.episodes is None else f"{limits.episodes:,} episodes",
        "" if limits.bytes is None else format_bytes(limits.bytes),
    ]
    facts = [
        ("entries", f"{len(page.found.entries)}"),
        ("scenarios", f"{len(suite.scenarios)}"),
        ("seeds", f"{len(suite.seeds)}: {', '.join(map(str, suite.seeds))}"),
        ("track", suite.track),
        ("hosted models", describe_sampling(suite) if suite.track == "agents" else ""),
        ("ranked by", f"{find_metric(suite.rank_by).title}, split {suite.ranking.split}"),
        ("budget", ", ".join(filter(None, budget))),
        ("ranked round", _describe_round(suite)),
        (
            "decides",
            "" if suite.power is None else f"{format_fixed(100 * suite.power, 1)} points, in four of five experiments",
        ),
        ("secret twin", "held back by the maintainers" if suite.secret else "none"),
    ]
    return [(name, value) for name, value in facts if value]


def _describe_round(suite: Suite) -> str:
    if suite.track == "agents":
        return ""
    return "the last" if suite.ranked_round == "last" else f"the best on {suite.selection.split}"


def _list_unproven(entries: Iterable[Result]) -> list[tuple[str, str]]:
    """The claims of the entries that cannot be proven."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        for claim in entry.verification.claims if entry.verification is not None else ():
            if claim.status == "not provable":
                found.setdefault(claim.name, set()).add(claim.about)
    return [(name, about) for name, abouts in sorted(found.items()) for about in sorted(abouts)[:3]]


# ---- figures ------------------------------------------------------------------------------------------------------------


def _make_charts(found: SuiteEntries, ordered: Sequence[Result]) -> list[tuple[Chart, str]]:
    """All charts for which the suite's entries have numbers, each with a note; `ordered` is best first."""
    charts = [*_make_curves(found, ordered), _make_bytes(ordered), *_make_slopes(found.suite, ordered)]
    return [(chart, note) for chart, note in charts if not chart.is_empty]


def _make_series(
    entry: Result, place: int, points: Sequence[tuple[float, float]], kind: str, labels: Sequence[str] = ()
) -> Series:
    """An entry's part of a figure: named if it is among the best."""
    title = entry.entry.title
    named = place < MOST_NAMED
    labels = labels or [f"{title}: {y:.3g}" for _, y in points]
    return Series(title if named else "", points, kind, labels=labels, colour=place + 1 if named else 0, key=entry.name)


def _stack(series: Iterable[Series]) -> list[Series]:
    """Grey lines first, so that coloured ones are drawn over them."""
    return sorted(series, key=lambda one: one.colour != 0)


def _make_curves(found: SuiteEntries, ordered: Sequence[Result]) -> list[tuple[Chart, str]]:
    curves = {name: [_list_curve(entry, name) for entry in ordered] for name in found.suite.scenarios}
    most = max((x for each in curves.values() for curve in each for x, _ in curve), default=0.0)
    unit, axis = (
        (1000.0, "episodes with preparation, thousands") if most >= 10_000 else (1.0, "episodes with preparation")
    )
    note = f"Success on {found.suite.selection.split}, mean over seeds. The best entries have colours."
    charts = []
    for name, each in curves.items():
        title = f"Learning curves: {name}" if len(curves) > 1 else "Learning curves"
        series = [
            _make_series(entry, place, [(x / unit, y) for x, y in curve], "line")
            for place, (entry, curve) in enumerate(zip(ordered, each, strict=True))
        ]
        charts.append((Chart(title, _stack(series), x=axis, limits=(0.0, 1.0), percent=True), note))
    return charts


def _list_curve(entry: Result, scenario: str) -> list[tuple[float, float]]:
    """Mean success over the seeds that evaluated the same rounds."""
    curves = [record.curve for (name, _), record in entry.records.items() if name == scenario]
    return [(point.episodes, point.mean) for point in average_curves([one for one in curves if one])]


def _make_bytes(ordered: Sequence[Result]) -> tuple[Chart, str]:
    series = []
    for place, entry in enumerate(ordered):
        overall = entry.numbers.overall
        if "bytes" in overall and "success" in overall:
            x, y = overall["bytes"].mean / 1e6, overall["success"].mean
            label = f"{entry.entry.title}: {format_percent(y, 1)}, {format_bytes(1e6 * x)}"
            series.append(_make_series(entry, place, [(x, y)], "dots", [label]))
    chart = Chart("Success against bytes", _stack(series), x="MB in all, mean over seeds", plane=True, percent=True)
    return chart, "Bytes sent and received by all clients until the end. Further left is cheaper."


def _make_slopes(suite: Suite, ordered: Sequence[Result]) -> list[tuple[Chart, str]]:
    """One chart for each axis of heterogeneity: success from the uniform division to the most heterogeneous."""
    axes: dict[str, list[tuple[float, str]]] = {}
    for name, scenario in suite.scenarios.items():
        if scenario.axis and scenario.level is not None:
            axes.setdefault(scenario.axis, []).append((scenario.level, name))
    charts = []
    for axis, levels in axes.items():
        if len(levels) < 2:
            continue
        levels.sort()
        series = []
        for place, entry in enumerate(ordered):
            measured = entry.numbers.by_scenario
            points = [
                (float(at), measured[name]["success"].mean)
                for at, (_, name) in enumerate(levels)
                if name in measured and "success" in measured[name]
            ]
            series.append(_make_series(entry, place, points, "line"))
        names = ["even" if level == 0 else f"{level:g}" for level, _ in levels]
        title, series = f"Heterogeneity: {axis}", _stack(series)
        chart = Chart(title, series, x="level", limits=(0.0, 1.0), percent=True, x_labels=names)
        charts.append((chart, "Success as clients' tasks become more different. A flat line means no loss."))
    return charts


def _list_strips(ordered: Sequence[Result]) -> list[dict[str, Any]]:
    """The clients of every entry, each by the success on its own mixture of tasks, in the mean over the runs in which it has
    one."""
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


@dataclass(frozen=True)
class Paper:
    """A paper with its numbers, in the order of its tables."""

    name: str
    about: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def origin(self) -> str:
        return ", ".join(str(self.about[name]) for name in ("venue", "arxiv") if self.about.get(name))

    @property
    def tables(self) -> list[dict[str, Any]]:
        """Its tables: rows of texts, then of values with their spread and the number of their caution."""
        return [self._lay_out(name) for name in dict.fromkeys(row["table"] for row in self.rows)]

    def _lay_out(self, name: str) -> dict[str, Any]:
        rows = [row for row in self.rows if row["table"] == name]
        columns = list(dict.fromkeys((row["dataset"], row["metric"]) for row in rows))
        metrics = {metric for _, metric in columns}
        notes = list(dict.fromkeys(row["flag"] for row in rows if row.get("flag") is not None))
        lines: dict[tuple[str, str, str], dict[tuple[str, str], tuple[str, str, str]]] = {}
        for row in rows:
            setting = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in row.get("setting", {}).items())
            column = (row["dataset"], row["metric"])
            spread = f"± {row['std']:g}" if "std" in row else ""
            mark = str(notes.index(row["flag"]) + 1) if row.get("flag") is not None else ""
            value = format_fixed(row["value"], _count_digits(rows, column))
            lines.setdefault((row["model"], row["method"], setting), {})[column] = (value, spread, mark)
        heads = [("model", False), ("method", False), ("setting", False)]
        heads += [(dataset if len(metrics) == 1 else f"{dataset}, {metric}", True) for dataset, metric in columns]
        body = [(line, [found.get(column, ("", "", "")) for column in columns]) for line, found in lines.items()]
        unit = f"unit: {', '.join(sorted({str(row['unit']) for row in rows}))}"
        unit = f"{metrics.pop()}, {unit}" if len(metrics) == 1 else unit
        about = {"name": f"{self.name}, {name}", "numbers": len(rows), "unit": unit, "notes": notes}
        return {**about, "heads": heads, "rows": body}


def _count_digits(rows: Sequence[Row], column: tuple[str, str]) -> int:
    """Digits after the point in a column: a value keeps its printed zeros."""
    texts = (f"{row['value']:g}" for row in rows if (row["dataset"], row["metric"]) == column)
    return max(len(text.partition(".")[2]) for text in texts)


@cache
def _read_published_file() -> Any:
    return json.loads((files("fedagentgym.leaderboard.page") / "published.json").read_text("utf-8"))


def read_published() -> tuple[Paper, ...]:
    """All papers of the package's data."""
    plain = _read_published_file()
    return tuple(
        Paper(name, about, tuple(row for row in plain["results"] if row["paper"] == name))
        for name, about in plain["papers"].items()
    )


def find_paper(name: str | None) -> Paper | None:
    """The paper of this name; case is ignored."""
    return next((paper for paper in read_published() if name and paper.name.lower() == name.lower()), None)


# ---- the data of the table's script --------------------------------------------------------------------------------


def describe_suite(page: SuitePage) -> dict[str, Any]:
    """A suite as the script of the page reads it."""
    names = list_measures(page.found.entries)
    return {
        "key": page.found.key,
        "ranked": page.found.entries[0].suite.rank_by,
        "measures": [_describe_measure(name) for name in names],
        "scenarios": list(page.found.suite.scenarios),
        "entries": [_describe_entry(page, entry) for entry in page.ordered],
    }


def _describe_measure(name: str) -> dict[str, Any]:
    metric = find_metric(name)
    return {"name": name, "title": metric.title, "about": metric.about, "unit": metric.unit, "better": metric.better}


def _describe_entry(page: SuitePage, entry: Result) -> dict[str, Any]:
    about, numbers, records = entry.entry, entry.numbers, list(entry.records.values())
    agent, newest = records[0].agent, max((record.made for record in records), key=lambda made: made.date)
    verification = entry.verification
    rerun = verification.rerun if verification is not None else None
    categories: dict[str, dict[str, list[float]]] = {}
    for (scenario, _), record in entry.records.items():
        for category, measures in {} if record.ranked is None else record.ranked.categories.items():
            categories.setdefault(scenario, {}).setdefault(category, []).append(measures["success"]["mean"])
    return {
        "name": entry.name,
        "title": about.title,
        "baseline": about.baseline,
        "agent": agent.model or str(agent.settings.get("name", agent.kind)),
        "kind": agent.kind,
        "method": records[0].algorithm or "",
        "changes": list(about.changes),
        "plugins": [one.name for one in about.plugins],
        "by": about.submitted_by,
        "link": about.link if about.link.startswith(("https://", "http://")) else "",
        "note": about.note
        + ("" if (again := about.regraded) is None else f" Graded again by {again.by}, from {again.of}."),
        "status": tell_status(entry),
        "part": "" if entry.is_whole else describe_part(entry),
        "rerun": _describe_rerun(rerun, entry.suite.rank_by) if rerun is not None else None,
        "claims": [[one.name, one.status, one.about] for one in verification.claims] if verification else [],
        "date": newest.date,
        "version": newest.versions.get("fedagentgym", ""),
        "machine": ", ".join(f"{name} {value}" for name, value in sorted(newest.machine.items())),
        "seconds": round(sum(record.made.seconds for record in records)),
        "seeds": entry.seeds,
        "episodes": sum(record.ranked.episodes for record in records if record.ranked is not None),
        "files": page.links[entry.name],
        "places": {
            scenario: [place.order, place.band, place.rank]
            for scenario, ranks in page.places.items()
            if (place := ranks.get(entry.name)) is not None
        },
        "measures": {"": _describe_measures(entry, numbers.overall)}
        | {scenario: _describe_measures(entry, found, scenario) for scenario, found in numbers.by_scenario.items()},
        "categories": {
            scenario: [[name, _round(sum(values) / len(values))] for name, values in sorted(below.items())]
            for scenario, below in categories.items()
        },
    }


def _describe_rerun(rerun: Rerun, ranked: str) -> dict[str, Any]:
    """The ranked measure as maintainers measured it, on the public tasks and on those of the secret twin."""
    return {
        "date": rerun.date,
        "public": _describe_interval(rerun.public[ranked], ranked) if ranked in rerun.public else None,
        "secret": _describe_interval(rerun.secret[ranked], ranked) if ranked in rerun.secret else None,
    }


def _describe_measures(entry: Result, found: Measures, scenario: str = "") -> dict[str, list[Any]]:
    """Of every measure the mean, the ends of its interval if it has one, and the number of every run."""
    return {
        name: [*_describe_interval(one, name), [_round(value) for value in entry.numbers.list_runs(name, scenario)]]
        for name, one in found.items()
    }


def _describe_interval(one: Interval, name: str) -> list[float | None]:
    ends = find_ends(one, find_metric(name))
    return [_round(one.mean), *([None, None] if ends is None else map(_round, ends))]


def _round(value: float) -> float:
    return float(f"{value:.6g}")
