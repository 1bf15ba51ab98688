"""A map of when federation helps: FedAgent compared with the better of a client alone and all tasks in one place.

    python -m benchmarks federation-map

A point is a scenario of a suite and a row of FedAgent. All of it is read from the committed results:

    distance      how far clients lie apart: total variation between their mixtures of categories, mean over pairs of clients
    procedures    the same between their mixtures of procedures; a column of the table, not an axis of the map
    length how far a client's weights move between two averages: `update_norm`, mean over rounds and clients
    difference    FedAgent less the alternative with the higher mean, paired by world, with Student's interval over worlds

A quadratic surface in the distance and the logarithm of the length is fitted to the points of every world. Its interval at a
point of the map is that of a mean over worlds. The table and the picture are written to `docs/experiments/map.md` if all points
were played; `quick` reads five worlds and writes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from benchmarks import ROOT
from benchmarks.findings import Cell, Findings, write_place
from benchmarks.measurement import Measurement
from fedagentgym.base.errors import DataError
from fedagentgym.base.imports import require
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.statistics import CONFIDENCE, MIN_REPLICATES, estimate_replicates, find_half_width
from fedagentgym.federation.records import Record, read_metrics_log
from fedagentgym.leaderboard.results import Result, RunKey, read_suites
from fedagentgym.leaderboard.suite import load_suite
from fedagentgym.partitions.plots import save_figure
from fedagentgym.runs.folder import METRICS, RECORD
from fedagentgym.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
RESULTS = ROOT / "leaderboard" / "results"
PAGE = ROOT / "docs" / "experiments" / "map.md"
PLACE, PICTURE = "federation-map", "map.png"
ALONE, CENTRAL = "local-0", "centralized"
COLUMNS = {
    "suite": "",
    "distance": ".2f",
    "procedures": ".2f",
    "length": ".2f",
    "FedAgent, %": ".1f",
    "a client alone, %": ".1f",
    "one place, %": ".1f",
    "FedAgent - the better, points": "+.1f",
    "95 %": "",
    "surface": "+.1f",
}
KINDS = {"one-procedure": ("one procedure each", "s"), "misled": ("four categories, both procedures", "D")}
"""The labels and markers of divisions that the distance alone does not tell apart."""
OTHERS = ("by the samplers", "o")
GRID = 161
LENGTHS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 10, 20, 50)
"""The lengths that the picture may name on its axis."""


class Source(NamedTuple):
    """A suite of the map: its rows of FedAgent with their local steps, and its scenarios (by default all)."""

    suite: str
    rows: Mapping[str, int]
    scenarios: tuple[str, ...] = ()


SOURCES = (
    Source("skills-map-v1", {"fedagent-5": 5, "fedagent-20": 20, "fedagent-80": 80}),
    Source("skills-fedagent-v1", {"fedagent-5": 5, "fedagent-20": 20, "fedagent-80": 80}, ("misled",)),
    Source("skills-heterogeneity-v1", {"fedagent": 20}),
)


class Spot(NamedTuple):
    """The runs of a point of the map: a row of FedAgent in a scenario of a suite."""

    suite: str
    scenario: str
    row: str
    tau: int

    def __str__(self) -> str:
        return f"{self.scenario}, tau = {self.tau}"


@dataclass(frozen=True)
class MapPoint:
    """A point of the map, with a number for each world."""

    spot: Spot
    distances: Floats
    procedures: Floats
    lengths: Floats
    together: Floats
    alone: Floats
    central: Floats

    @property
    def differences(self) -> Floats:
        """FedAgent minus the alternative with the higher mean."""
        return self.together - (self.alone if self.alone.mean() > self.central.mean() else self.central)


@dataclass(frozen=True)
class Surface:
    """A quadratic surface for each world: `coefficients[world, term]`."""

    coefficients: Floats

    def find(self, distances: Floats, lengths: Floats) -> tuple[Floats, Floats]:
        """The mean of the surface over worlds at these points of the map, and half of the interval at each point."""
        values, worlds = make_terms(distances, lengths) @ self.coefficients.T, len(self.coefficients)
        errors = values.std(axis=-1, ddof=1) / math.sqrt(worlds)
        return values.mean(axis=-1), errors * stdtrit(worlds - 1, (1 + CONFIDENCE) / 2)


def run(quick: bool = False) -> list[Measurement]:
    """The difference between FedAgent and the better alternative at every point that was played, and the missing points."""
    worlds = load_suite(SOURCES[0].suite).seeds[: MIN_REPLICATES if quick else None]
    points, missing = read_points(worlds, RESULTS)
    figures = [
        Measurement(
            f"{one.spot} ({one.spot.suite})", 100 * float(one.differences.mean()), "points", describe_place(one)
        )
        for one in points
    ]
    figures += [
        Measurement(f"not whole: {spot} ({spot.suite})", count, "worlds", f"{len(worlds)} are needed")
        for spot, count in missing.items()
    ]
    if missing:
        return [*figures, Measurement("points that are missing, so that no map is drawn", len(missing), "points")]
    surface = fit_surface(points)
    measured = measure_map(points, surface)
    if not quick:
        summary = "; ".join(f"{one.name}: {format_fixed(one.value, 1)} {one.unit}" for one in measured)
        picture = f"![When federation helps, by distance and length of updates]({PICTURE})"
        write_place(
            PAGE, PLACE, f"{tabulate(points, surface).to_markdown()}\n\n{summary[0].upper()}{summary[1:]}.\n\n{picture}"
        )
        save_figure(draw_map(points, surface), PAGE.with_name(PICTURE))
    return [*figures, *measured]


def describe_place(point: MapPoint) -> str:
    """The place of a point, and the interval of its difference."""
    return f"distance {point.distances.mean():.2f}, length {point.lengths.mean():.2f}, 95 %: {format_ends(point)}"


def format_ends(point: MapPoint) -> str:
    found = estimate_replicates(point.differences.tolist())
    if found.low is None or found.high is None:
        return ""
    return " to ".join(format_fixed(100 * end, 1, "+") for end in (found.low, found.high))


# ---- from the results to points ---------------------------------------------------------------------------------------


def list_spots() -> list[Spot]:
    """Every point of the map, in the order of its suites."""
    return [
        Spot(source.suite, scenario, row, tau)
        for source in SOURCES
        for scenario in source.scenarios or load_suite(source.suite).scenarios
        for row, tau in source.rows.items()
    ]


def read_points(worlds: Sequence[int], results: Path) -> tuple[list[MapPoint], dict[Spot, int]]:
    """The points whose three rows were played in all of these worlds, and the other points with the number of played worlds."""
    played = {source.suite: read_entries(results / source.suite) for source in SOURCES}
    points, missing = [], {}
    for spot in list_spots():
        entries = played[spot.suite]
        rows = [entries[name] for name in (spot.row, ALONE, CENTRAL) if name in entries]
        counts = Counter(seed for row in rows for scenario, seed in row.keys if scenario == spot.scenario)
        whole = [world for world in worlds if counts[world] == 3]
        if len(whole) < len(worlds):
            missing[spot] = len(whole)
        else:
            together, alone, central = rows
            points.append(read_point(spot, together, alone, central, worlds))
    return points, missing


def read_entries(place: Path) -> dict[str, Result]:
    """The results of a suite by row; empty if it was not played. Results under another definition of the suite are refused."""
    if not place.is_dir():
        return {}
    (found,) = read_suites([place])
    if found.suite.digest != load_suite(place.name).digest:
        raise DataError(f"{place} was played under another definition of {place.name}")
    return {entry.name: entry for entry in found.entries}


def read_point(spot: Spot, together: Result, alone: Result, central: Result, worlds: Sequence[int]) -> MapPoint:
    """A point, from the records of its runs and the metrics of FedAgent's runs."""
    numbers = []
    for world in worlds:
        key = spot.scenario, world
        with together.open_run(key, RECORD, METRICS) as run:
            record, length = run.record, measure_length(read_metrics_log(run.path / METRICS))
        own = [client.mixture for client in record.clients]
        kinds = {name: str(about["own"]) for name, about in record.agent.note["misconceptions"].items()}
        reached = (get_success(record), read_success(alone, key), read_success(central, key))
        numbers.append((measure_distance(own), measure_distance(sum_kinds(own, kinds)), length, *reached))
    return MapPoint(spot, *np.array(numbers, dtype=np.float64).T)


@cache
def read_success(result: Result, key: RunKey) -> float:
    """Success of a run on the ranked tasks. Several points of the map are compared with the same run, so it is kept."""
    with result.open_run(key, RECORD) as run:
        return get_success(run.record)


def get_success(record: RunRecord) -> float:
    assert record.ranked is not None
    return record.ranked.overall["success"]["mean"]


def measure_distance(mixtures: Sequence[Mapping[str, float]]) -> float:
    """The share of its tasks that one client would have to exchange to have another one's mixture, mean over pairs of clients.

    >>> measure_distance([{"a": 1.0}, {"b": 1.0}, {"a": 0.5, "b": 0.5}])
    0.6666666666666666
    """
    names = sorted({name for one in mixtures for name in one})
    shares = np.array([[one.get(name, 0.0) for name in names] for one in mixtures])
    return float(np.mean([np.abs(first - second).sum() / 2 for first, second in combinations(shares, 2)]))


def sum_kinds(mixtures: Iterable[Mapping[str, float]], kinds: Mapping[str, str]) -> list[dict[str, float]]:
    """Mixtures of categories as mixtures of the kinds of these categories."""
    summed = []
    for one in mixtures:
        found: dict[str, float] = {}
        for name, share in one.items():
            found[kinds[name]] = found.get(kinds[name], 0.0) + share
        summed.append(found)
    return summed


def measure_length(log: Iterable[Record]) -> float:
    """The norm of a client's update, mean over the rounds and clients of a run."""
    return float(np.mean([one["update_norm"] for record in log for one in record.get("clients", {}).values()]))


# ---- from points to a map ---------------------------------------------------------------------------------------------


def make_terms(distances: Floats, lengths: Floats) -> Floats:
    """The terms of a quadratic in the distance and the logarithm of the length."""
    x, y = np.broadcast_arrays(distances, np.log2(lengths))
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=-1)


def locate(points: Sequence[MapPoint]) -> tuple[Floats, Floats]:
    """The places of points: their distances and lengths, means over worlds."""
    return np.array([one.distances.mean() for one in points]), np.array([one.lengths.mean() for one in points])


def fit_surface(points: Sequence[MapPoint]) -> Surface:
    """The least-squares surface of every world; all points have the same weight."""
    terms = make_terms(*locate(points))
    if np.linalg.matrix_rank(terms) < terms.shape[1]:
        raise DataError(f"{len(points)} points in these places determine no quadratic surface")
    differences = np.array([one.differences for one in points])
    return Surface(np.linalg.lstsq(terms, differences, rcond=None)[0].T)


def cover(points: Sequence[MapPoint]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """A grid over the points, even in distance and in the logarithm of length, and a mask of the places between points."""
    from scipy.spatial import Delaunay

    distances, lengths = locate(points)
    x, y = np.meshgrid(
        np.linspace(distances.min(), distances.max(), GRID), np.geomspace(lengths.min(), lengths.max(), GRID)
    )
    places = np.column_stack([distances, np.log2(lengths)])
    inside = Delaunay(places).find_simplex(np.stack([x, np.log2(y)], axis=-1)) >= 0
    return x, y, inside


def measure_map(points: Sequence[MapPoint], surface: Surface) -> list[Measurement]:
    """The shares of the map that are certainly above, certainly below or neither, and the distance of points from the surface."""
    x, y, inside = cover(points)
    found, half = (one[inside] for one in surface.find(x, y))
    off = [one.differences.mean() for one in points] - surface.find(*locate(points))[0]
    shares = {
        "certainly above": np.mean(found > half),
        "certainly below": np.mean(found < -half),
        "neither": np.mean(np.abs(found) <= half),
    }
    figures = [Measurement(f"share of the map: {name}", 100 * float(share), "%") for name, share in shares.items()]
    return [
        *figures,
        Measurement("points off the surface, root mean square", 100 * float(np.sqrt(np.mean(off**2))), "points"),
    ]


def tabulate(points: Sequence[MapPoint], surface: Surface) -> Findings:
    """The table of the page."""
    fitted, _ = surface.find(*locate(points))
    rows: dict[str, tuple[Cell, ...]] = {}
    for one, height in zip(points, fitted.tolist(), strict=True):
        shares = (100 * float(values.mean()) for values in (one.together, one.alone, one.central, one.differences))
        places = (float(values.mean()) for values in (one.distances, one.procedures, one.lengths))
        rows[str(one.spot)] = (one.spot.suite, *places, *shares, format_ends(one), 100 * height)
    return Findings("point", COLUMNS, rows)


def draw_map(points: Sequence[MapPoint], surface: Surface) -> Figure:
    """The points and the surface between them on one colour scale; hatched where the sign is not certain."""
    import matplotlib.pyplot  # noqa: F401  (colour maps are registered by it)

    plots = require("matplotlib.figure", "plots")
    figure: Figure = plots.Figure(figsize=(8, 5.2), dpi=120, facecolor="white", layout="constrained")
    axes = figure.subplots()
    x, y, inside = cover(points)
    found, half = (np.where(inside, 100 * one, np.nan) for one in surface.find(x, y))
    means = np.array([100 * one.differences.mean() for one in points])
    is_certain = [abs(one.differences.mean()) > find_half_width(one.differences.tolist()) for one in points]
    edges = np.where(is_certain, "black", "silver")
    limit = 5.0 * math.ceil(max(np.abs(means).max(), np.nanmax(np.abs(found))) / 5 + 1e-9)
    scale: dict[str, Any] = {"cmap": "RdBu", "vmin": -limit, "vmax": limit}
    shown = axes.contourf(x, y, found, levels=np.arange(-limit, limit + 1, 2.5), **scale)
    open_sign = np.where(inside, (np.abs(found) <= half).astype(float), np.nan)
    axes.contourf(x, y, open_sign, levels=[0.5, 1.5], colors="none", hatches=["///"])
    if np.nanmin(found) < 0 < np.nanmax(found):
        axes.contour(x, y, found, levels=[0.0], colors="black", linewidths=1.2)
    distances, lengths = locate(points)
    for kind in dict.fromkeys(KINDS.get(one.spot.scenario, OTHERS) for one in points):
        chosen = [KINDS.get(one.spot.scenario, OTHERS) == kind for one in points]
        axes.scatter(
            distances[chosen], lengths[chosen], c=means[chosen], marker=kind[1], s=55, edgecolors=edges[chosen], label=kind[0],
            zorder=3, **scale,
        )  # fmt: skip
    axes.set_xlim(distances.min() - 0.03, distances.max() + 0.03)
    axes.set_yscale("log")
    axes.set_ylim(lengths.min() / 1.08, lengths.max() * 1.08)
    ticks = [tick for tick in LENGTHS if lengths.min() / 1.08 <= tick <= lengths.max() * 1.08]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("distance of clients: share of tasks of other categories")
    axes.set_ylabel("length of a client's update between two meetings")
    figure.colorbar(shown, ax=axes, label="FedAgent - the better of alone and one place, points")
    axes.set_title("hatched, or with a grey edge: the sign is not certain (95 %, worlds)", fontsize=9, loc="left")
    figure.legend(loc="outside upper right", fontsize=8, frameon=False, ncols=3)
    return figure
