"""The results of a suite in Skills for its page: read from archives, compared in further measures, and described.

No figure of a page is typed by hand: `python -m benchmarks skills-pages` writes all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.curves import Point
from benchmarks.excerpts import fill_place
from benchmarks.tables import Record, Row, compare_rows, mean
from fedagentgym.base.files import write_atomic
from fedagentgym.base.statistics import Difference
from fedagentgym.federation.records import read_metrics_log
from fedagentgym.leaderboard.results import Result, RunKey
from fedagentgym.leaderboard.suite import Suite, load_suite
from fedagentgym.runs.folder import METRICS
from fedagentgym.runs.record import RunRecord

AREA = "mean success over the run"
Diagnostic = Callable[[Sequence[Record]], float]
"""Computes a number from the recorded rounds of a run."""
FIGURES = "figures"
"""The name of the markers between which a page's figures are written."""


@dataclass(frozen=True)
class Skill:
    """A category of a row or, if every seed has a separate world, all categories of a kind: their procedure, whether they have
    a misconception, and success before and after training, as means over seeds."""

    procedure: str
    misled: bool
    before: float
    after: float


@dataclass(frozen=True)
class RowResults:
    """A row of a table: its numbers (in the order of the seeds), its curves, its categories, and diagnostics (numbers that
    explain a difference and are not compared themselves)."""

    row: Row
    seeds: tuple[int, ...]
    curves: tuple[tuple[Point, ...], ...]
    skills: Mapping[str, Skill]
    diagnostics: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class TableResults:
    """The results of a table that a page shows."""

    table: str
    rows: tuple[RowResults, ...]

    def get(self, name: str) -> RowResults:
        return next(one for one in self.rows if one.row.name == name)


def read_suite(name: str, results: Path, diagnostics: Mapping[str, Diagnostic] | None = None) -> TableResults | None:
    """The results of a suite of this package for its page; None if a row has no result. Names of rows of further scenarios begin
    with the scenario. Curves are measured on the split on which settings are chosen; their last points are the ranked numbers."""
    suite = load_suite(name)
    archives = {entry: results / name / f"{entry}.zip" for entry in suite.baselines}
    if not all(archive.is_file() for archive in archives.values()):
        return None
    rows, found = [], [Result(archive) for archive in archives.values()]
    for scenario in suite.scenarios:
        for result in found:
            title = name_row(suite, scenario, result.entry.name)
            runs = [(key, record) for key, record in result.records.items() if key[0] == scenario]
            rows.append(_read_suite_row(title, result, runs, diagnostics or {}))
    return TableResults(name, tuple(rows))


def name_row(suite: Suite, scenario: str, entry: str) -> str:
    """The name of an entry's row on a suite's page: its title, after the scenario if that is not the suite's first."""
    title = suite.baselines[entry].title
    return title if scenario == next(iter(suite.scenarios)) else f"{scenario}: {title}"


def _read_suite_row(
    title: str, result: Result, runs: Sequence[tuple[RunKey, RunRecord]], diagnostics: Mapping[str, Diagnostic]
) -> RowResults:
    records = [record for _, record in runs]
    curves = []
    for record in records:
        assert record.ranked is not None
        points = [
            Point(one.round, one.spent.episodes, one.spent.bytes / 1e6, one.overall["success"]["mean"])
            for one in record.curve
        ]
        curves.append((*points[:-1], points[-1]._replace(success=record.ranked.overall["success"]["mean"])))
    found: dict[str, list[float]] = {name: [] for name in diagnostics}
    for key, record in runs if diagnostics else ():
        if not record.spent.rounds:  # nothing was trained, so there are no metrics
            for values in found.values():
                values.append(math.nan)
            continue
        with result.open_run(key, METRICS) as run:
            rounds = list(read_metrics_log(run.path / METRICS))
        for name, compute in diagnostics.items():
            found[name].append(compute(rounds))
    row = Row(
        title,
        {"success": tuple(curve[-1].success for curve in curves)},
        mean([record.spent.env_steps for record in records]),
        mean([record.spent.bytes for record in records]) / 1e6,
    )
    skills = collect_skills([record.model_dump(mode="json") for record in records])
    return RowResults(
        row,
        tuple(seed for (_, seed), _ in runs),
        tuple(curves),
        skills,
        {name: tuple(values) for name, values in found.items()},
    )


def describe_suite(results: TableResults) -> str:
    """The tables of a page that the leaderboard does not have."""
    return "\n".join([*_describe_misled(results), *_describe_diagnostics(results)]).lstrip() + "\n"


def average_metric(name: str, total: bool = False, at: int | None = None) -> Diagnostic:
    """A metric of the training rounds: its mean over the rounds that have it, its total, or its value in round `at`; nan if no
    round has it."""

    def compute(rounds: Sequence[Record]) -> float:
        logged = {int(one["round"]): one.get("metrics", {}) for one in rounds}
        values = [
            float(metrics[name]) for number, metrics in logged.items() if name in metrics and at in (None, number)
        ]
        if not values:
            return math.nan
        return sum(values) if total else mean(values)

    return compute


def collect_skills(records: Sequence[Record]) -> dict[str, Skill]:
    shown = [record["agent"]["note"].get("misconceptions", {}) for record in records]
    same = all(one == shown[0] for one in shown)
    found: dict[str, list[Skill]] = {}
    for record, categories in zip(records, shown, strict=True):
        for category, about in sorted(categories.items()):
            before, after = (float(record["curve"][place]["categories"][category]) for place in (0, -1))
            misled, own = bool(about["misled"]), about["own"] if same else ""
            kind = "misled towns" if misled else "other towns"  # codespell:ignore towns
            name = category if same else f"{kind}, {about['own']}"
            found.setdefault(name, []).append(Skill(own, misled, before, after))
    return {
        name: replace(one[0], before=mean([each.before for each in one]), after=mean([each.after for each in one]))
        for name, one in found.items()
    }


def compare_pairs(
    results: TableResults, pairs: Sequence[tuple[str, str]], column: str, margin: float = 0.0
) -> list[Difference]:
    """The comparisons of these pairs in one column, over the seeds that all their rows have; not yet corrected."""
    chosen = list_present(results, pairs)
    named = {name for pair in chosen for name in pair}
    rows = [one for one in results.rows if one.row.name in named]
    if not rows:
        return []
    common = [seed for seed in rows[0].seeds if all(seed in one.seeds for one in rows)]
    if not common:
        return []
    cut = [_keep_seeds(one, common, column) for one in rows]
    return compare_rows(cut, chosen, column, margin)


def list_present(results: TableResults, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs whose rows both have results."""
    present = {one.row.name for one in results.rows}
    return [pair for pair in pairs if set(pair) <= present]


def _keep_seeds(results: RowResults, seeds: Sequence[int], column: str) -> Row:
    values = results.row.values[column]
    kept = tuple(values[results.seeds.index(seed)] for seed in seeds)
    return Row(results.row.name, {column: kept}, results.row.env_steps, results.row.megabytes)


def _describe_misled(results: TableResults) -> list[str]:
    """A table of success before and after training in categories with a misconception and in categories without."""
    rows = [
        (one.row.name, [[skill for skill in one.skills.values() if skill.misled is misled] for misled in (True, False)])
        for one in results.rows
    ]
    shown = [(name, kinds) for name, kinds in rows if all(kinds)]
    if not shown:
        return []
    return [
        "",
        "Categories with a wrong belief and without, means over categories and seeds:",
        "",
        "| | wrong belief, before | wrong belief, after | others, before | others, after |",
        "|---|---|---|---|---|",
        *(f"| {name} | {' | '.join(_describe_change(kind) for kind in kinds)} |" for name, kinds in shown),
    ]


def _describe_change(skills: Sequence[Skill]) -> str:
    before, after = mean([one.before for one in skills]), mean([one.after for one in skills])
    return f"{before:.3f} | {after:.3f}"


def _describe_diagnostics(results: TableResults) -> list[str]:
    """A table of the diagnostics: means over the seeds, for the rows that have any."""
    names = list(results.rows[0].diagnostics)
    rows = [one for one in results.rows if any(_present(one.diagnostics[name]) for name in names)]
    if not rows:
        return []
    return [
        "",
        "From the records of the runs, means over the seeds:",
        "",
        f"| | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
        *(
            f"| {one.row.name} | {' | '.join(_describe_mean(one.diagnostics[name]) for name in names)} |"
            for one in rows
        ),
    ]


def _present(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _describe_mean(values: Sequence[float]) -> str:
    found = _present(values)
    return format_number(mean(found)) if found else ""


def format_number(value: float) -> str:
    """A number as text: from 100 on as a whole number with separators, below with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_page(page: Path, figures: str) -> None:
    """Write these figures between the page's markers."""
    write_atomic(page, fill_place(page.read_text("utf-8"), FIGURES, figures))
