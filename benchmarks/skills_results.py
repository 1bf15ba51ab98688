"""The results of a table of skills, from its runs to its page: one file of plain numbers, and the text made from it.

    runs/skills-fedagent/results.json                 every finished seed of every row (`collect_results`)
    benchmarks/results/skills-fedagent.json           the same, kept with the source
    docs/experiments/fedagent.md                          hypotheses by hand, figures between two markers (`write_page`)

No figure of a page is typed: `python -m benchmarks skills-pages` writes them again from the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.curves import Point, compute_area, find_round_reaching, read_curve
from benchmarks.excerpts import fill_place
from benchmarks.tables import (
    Column,
    ExperimentTable,
    Record,
    Row,
    TableCell,
    compare_rows,
    format_interval,
    format_per_seed,
    mean,
    read_record,
    summary,
)
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json, write_atomic
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.statistics import MIN_REPLICATES, Difference, correct, find_quartiles
from fedagentgym.federation.records import read_metrics_log
from fedagentgym.leaderboard.compare import RUN_HEADS, RunSpread
from fedagentgym.leaderboard.rank import find_decided, read_planned
from fedagentgym.leaderboard.results import Result, RunKey
from fedagentgym.leaderboard.suite import Suite, load_suite
from fedagentgym.runs.folder import METRICS, RunFolder
from fedagentgym.runs.record import RunRecord

AREA, REACHED = "mean success over the run", "first round at the target"
FIGURES = "figures"
"""The name of the place of a page that the figures fill."""


@dataclass(frozen=True)
class Skill:
    """A category for one row, or, where every seed has a world of its own, all categories of a kind: whether a
    misconception was shown, and success before and after, over all seeds."""

    procedure: str
    misled: bool
    before: float
    after: float


@dataclass(frozen=True)
class RowResults:
    """A row of a table: its numbers (in the order of the seeds), its curves, the result for each skill, and diagnostics (numbers
    that explain a difference and are not compared themselves)."""

    row: Row
    seeds: tuple[int, ...]
    curves: tuple[tuple[Point, ...], ...]
    skills: Mapping[str, Skill]
    diagnostics: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class TableResults:
    """Everything that a page shows of a table."""

    table: str
    target: float
    rows: tuple[RowResults, ...]

    def get(self, name: str) -> RowResults:
        return next(one for one in self.rows if one.row.name == name)


# ---- from the runs to the file ----------------------------------------------------------------------------------------


def collect_results(
    table: ExperimentTable, cells: Iterable[TableCell], target: float, diagnostics: Mapping[str, Column] | None = None
) -> TableResults | None:
    """The results of the finished runs. A seed counts for a row when its run is finished; rows without one are left out."""
    finished: dict[str, list[tuple[Path, Record]]] = {name: [] for name in table.rows}
    for cell in cells:
        if RunFolder(cell.folder).is_finished:
            finished[cell.row].append((cell.folder, read_record(cell.folder)))
    rows = [_collect_row(name, table, runs, target, diagnostics or {}) for name, runs in finished.items() if runs]
    return TableResults(table.name, target, tuple(rows)) if rows else None


def _collect_row(
    name: str,
    table: ExperimentTable,
    runs: Sequence[tuple[Path, Record]],
    target: float,
    diagnostics: Mapping[str, Column],
) -> RowResults:
    row = summary(name, table.columns, runs)
    curves = tuple(read_curve(folder) for folder, _ in runs)
    beliefs = {
        AREA: tuple(compute_area(curve) for curve in curves),
        REACHED: tuple(find_round_reaching(curve, target) for curve in curves),
    }
    extended = Row(**{**asdict(row), "values": {**row.values, **beliefs}})
    return RowResults(
        extended,
        tuple(int(record["seed"]) for _, record in runs),
        curves,
        _collect_skills([record for _, record in runs]),
        {name: tuple(read(folder, record) for folder, record in runs) for name, read in diagnostics.items()},
    )


def read_suite(name: str, results: Path, diagnostics: Mapping[str, Column] | None = None) -> TableResults | None:
    """The results of a suite of this package for its page, or None if some of its rows have none. Rows of further scenarios begin
    with the scenario's name. Curves are of the split on which settings are chosen; their last points are what is ranked."""
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
    return TableResults(name, suite.target or 1.0, tuple(rows))


def name_row(suite: Suite, scenario: str, entry: str) -> str:
    """The name of an entry's row on a suite's page: its title, and before it the scenario, unless that is the first."""
    title = suite.baselines[entry].title
    return title if scenario == next(iter(suite.scenarios)) else f"{scenario}: {title}"


def _read_suite_row(
    title: str, result: Result, runs: Sequence[tuple[RunKey, RunRecord]], diagnostics: Mapping[str, Column]
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
            for name, read in diagnostics.items():
                found[name].append(read(run.path, record.model_dump(mode="json")))
    row = Row(
        title,
        {"success": tuple(curve[-1].success for curve in curves)},
        mean([record.spent.env_steps for record in records]),
        mean([record.spent.bytes for record in records]) / 1e6,
    )
    skills = _collect_skills([record.model_dump(mode="json") for record in records])
    return RowResults(
        row,
        tuple(seed for (_, seed), _ in runs),
        tuple(curves),
        skills,
        {name: tuple(values) for name, values in found.items()},
    )


def describe_suite(results: TableResults) -> str:
    """The parts of a page that the leaderboard's tables do not have."""
    return "\n".join([*_describe_misled(results), *_describe_diagnostics(results)]).lstrip() + "\n"


def make_metric_column(name: str, total: bool = False, at: int | None = None) -> Column:
    """A metric of the training rounds: its mean over those that have it, its total, or its value in round `at`; nan if none
    has it."""

    def read_metric(folder: Path, record: Record) -> float:
        logged = {int(one["round"]): one.get("metrics", {}) for one in read_metrics_log(folder / "metrics.jsonl")}
        values = [
            float(metrics[name]) for number, metrics in logged.items() if name in metrics and at in (None, number)
        ]
        if not values:
            return math.nan
        return sum(values) if total else mean(values)

    return read_metric


def _collect_skills(records: Sequence[Record]) -> dict[str, Skill]:
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


def save_results(results: TableResults, path: Path) -> None:
    """As JSON; a round that was never reached is null, and so is a diagnostic that a run does not have."""
    plain = asdict(results)
    for row in plain["rows"]:
        row["row"]["values"] = _to_plain(row["row"]["values"], math.isinf)
        row["diagnostics"] = _to_plain(row["diagnostics"], math.isnan)
    write_atomic(path, canonical_json(plain) + "\n")


def _to_plain(
    values: Mapping[str, Sequence[float]], is_missing: Callable[[float], bool]
) -> dict[str, list[float | None]]:
    return {name: [None if is_missing(value) else value for value in numbers] for name, numbers in values.items()}


def _from_plain(plain: Mapping[str, Sequence[float | None]], missing: float) -> dict[str, tuple[float, ...]]:
    return {
        name: tuple(missing if value is None else float(value) for value in numbers) for name, numbers in plain.items()
    }


def load_results(path: Path) -> TableResults:
    """The results that `save_results` wrote."""
    plain = read_json(path)
    try:
        assert isinstance(plain, dict)
        return TableResults(plain["table"], plain["target"], tuple(_read_row(row) for row in plain["rows"]))
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{path}: malformed, not the results of a table of skills") from None


def _read_row(plain: Mapping[str, Any]) -> RowResults:
    values = _from_plain(plain["row"]["values"], math.inf)
    row = Row(**{**plain["row"], "values": values, "config_digests": tuple(plain["row"]["config_digests"])})
    curves = tuple(tuple(Point(*point) for point in curve) for curve in plain["curves"])
    skills = {category: Skill(**one) for category, one in plain["skills"].items()}
    return RowResults(row, tuple(plain["seeds"]), curves, skills, _from_plain(plain.get("diagnostics", {}), math.nan))


# ---- from the file to the page ----------------------------------------------------------------------------------------


def compare_pairs(
    results: TableResults, pairs: Sequence[tuple[str, str]], column: str, margin: float = 0.0
) -> list[Difference]:
    """The comparisons of these pairs in one column, over the seeds that all rows of them have; not yet corrected."""
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
    """The pairs of which both rows have results."""
    present = {one.row.name for one in results.rows}
    return [pair for pair in pairs if set(pair) <= present]


def _keep_seeds(results: RowResults, seeds: Sequence[int], column: str) -> Row:
    values = results.row.values[column]
    kept = tuple(values[results.seeds.index(seed)] for seed in seeds)
    return Row(results.row.name, {column: kept}, results.row.env_steps, results.row.megabytes)


def describe_results(results: TableResults, pairs: Sequence[tuple[str, str]], margin: float) -> str:
    """The tables of a page."""
    columns = [name for name in results.rows[0].row.values if name != REACHED]
    lines = [
        f"| | {' | '.join(columns)} | rounds to {results.target} | seeds | environment steps | MB |",
        "|---|" + "---|" * (len(columns) + 4),
    ]
    for one in results.rows:
        cells = " | ".join(_format_spread(one.row.values[column]) for column in columns)
        lines.append(
            f"| {one.row.name} | {cells} | {_describe_reached(one.row.values[REACHED])} | {len(one.seeds)} "
            f"| {one.row.env_steps:,.0f} | {one.row.megabytes:.1f} |"
        )
    main = columns[0]
    if all(len(one.seeds) >= MIN_REPLICATES for one in results.rows):
        lines += [
            "",
            f"Runs, of {main}; collapsed are those whose success ended no higher than it started:",
            "",
            f"| | {' | '.join(RUN_HEADS)} |",
            "|---|" + "---|" * len(RUN_HEADS),
        ]
        for one in results.rows:
            ends = [curve[-1].success <= curve[0].success for curve in one.curves if len(curve) > 1]
            spread = RunSpread(find_quartiles(one.row.values[main]), sum(ends), len(ends))
            lines.append(f"| {' | '.join([one.row.name, *spread.list_cells()])} |")
    compared = {column: compare_pairs(results, pairs, column, margin) for column in columns if column != AREA}
    corrected = correct([one for found in compared.values() for one in found])
    remaining = iter(corrected)
    for column, found in compared.items():
        if not found:
            continue
        lines += [
            "",
            f"Differences in {column}, seed by seed (seeds: {len(found[0].values)}):",
            "",
            "| | mean, 95 % | decides | p, corrected | p of equality, corrected | reading |",
            "|---|---|---|---|---|---|",
            *(
                _describe_difference(f"{row} - {base}", next(remaining), margin, len(corrected))
                for row, base in list_present(results, pairs)
            ),
        ]
    return "\n".join([*lines, *_describe_misled(results), *_describe_diagnostics(results)]) + "\n"


def _format_spread(values: Sequence[float]) -> str:
    """The mean with its interval, or with the number of every seed."""
    if len(values) >= MIN_REPLICATES:
        return format_interval(values)
    return f"{mean(values):.3f} ({format_per_seed(values)})"


def _describe_misled(results: TableResults) -> list[str]:
    """Success before and after, apart for the categories with a misconception and without."""
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
    """Return what explains a difference: means over the seeds, of the rows that have any of them."""
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
    """Counts with separators, others with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _describe_reached(rounds: Sequence[float]) -> str:
    """The mean of the rounds of those seeds that reached the target, and how many did."""
    reached = [value for value in rounds if not math.isinf(value)]
    return f"{mean(reached):.1f} ({len(reached)} of {len(rounds)})" if reached else f"none of {len(rounds)}"


def _describe_difference(pair: str, found: Difference, margin: float, comparisons: int) -> str:
    numbers = ["" if p is None else f"{p:.3g}" for p in (found.adjusted, found.adjusted_unequal)]
    spread = f"({format_per_seed(found.values, '+')})"
    if found.ends is not None:
        spread = f"± {found.ends[1] - found.mean:.3f}"
    decided = find_decided(found, comparisons)
    numbers.insert(0, "" if decided is None else format_fixed(decided, 3))
    reading = read_planned(found, margin, comparisons, f"{margin:g}")
    return f"| {pair} | {format_fixed(found.mean, 3, '+')} {spread} | {' | '.join(numbers)} | {reading} |"


def write_page(page: Path, figures: str) -> None:
    """Put these figures between the page's markers."""
    write_atomic(page, fill_place(page.read_text("utf-8"), FIGURES, figures))
