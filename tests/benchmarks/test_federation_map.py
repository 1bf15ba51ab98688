"""The map of when federation helps: its numbers against plain loops, its surface, and points that were not played."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import federation_map
from benchmarks.excerpts import make_marks
from benchmarks.federation_map import (
    PICTURE,
    PLACE,
    SOURCES,
    Floats,
    MapPoint,
    Spot,
    cover,
    draw_map,
    fit_surface,
    list_spots,
    locate,
    make_terms,
    measure_distance,
    measure_map,
    read_points,
    run,
    sum_kinds,
    tabulate,
)
from fedagentgym.base.errors import DataError
from fedagentgym.base.statistics import estimate_replicates, find_half_width
from fedagentgym.federation.records import read_metrics_log
from fedagentgym.leaderboard.entries import Entry
from fedagentgym.leaderboard.results import Result, name_run
from fedagentgym.leaderboard.suite import load_suite, open_scenario
from fedagentgym.partitions.plots import save_figure
from fedagentgym.runs.folder import METRICS, RECORD, format_document
from fedagentgym.runs.record import AgentRecord, ClientRecord, EnvRecord, Evaluated, RunRecord, Spent
from tests.committed import find_suite, needs_all_results
from tests.leaderboard.samples import MADE, ZEROS, write_entry

WHOLE = SOURCES[0]
WORLDS = load_suite(WHOLE.suite).seeds
KINDS = {"Arle": "+", "Bost": "-", "Cray": "+"}
Mixtures = list[dict[str, float]]
MIXTURES = st.lists(
    st.lists(st.integers(0, 20), min_size=3, max_size=3)
    .filter(any)
    .map(lambda counts: {name: count / sum(counts) for name, count in zip(KINDS, counts, strict=True) if count}),
    min_size=2,
    max_size=6,
)


Made = Mapping[tuple[str, str, int], tuple[float, Mixtures, list[list[float]]]]
"""Made-up runs by row, scenario and world: success, clients' mixtures, and the norms of their updates in each round."""


def make_runs(suite: str) -> Made:
    draws, definition, runs = np.random.default_rng(7), load_suite(suite), {}
    for place, scenario in enumerate(definition.scenarios):
        for world in definition.seeds:
            shares = draws.dirichlet(np.full(3, 8.0 / (1 + 3 * place)), size=3)
            mixtures = [dict(zip(KINDS, row.tolist(), strict=True)) for row in shares]
            for row in definition.baselines:
                norms = (3.0 if row.endswith("80") else 1.0) * draws.uniform(0.8, 1.2, size=(2, 3))
                runs[row, scenario, world] = float(draws.uniform(0.3, 0.9)), mixtures, norms.tolist()
    return runs


def write_results(made: Made, results: Path, suite: str) -> None:
    """The results of all rows, as folders of runs with the two files that are read."""
    definition = load_suite(suite)
    for row in definition.baselines:
        write_entry(results / suite / row, definition, Entry(name=row, title=row, baseline=True))
    for (row, scenario, world), (success, mixtures, norms) in made.items():
        folder = results / suite / row / name_run((scenario, world))
        folder.mkdir()
        (folder / RECORD).write_text(format_document(make_record(suite, world, success, mixtures)))
        rounds = [{str(client): {"update_norm": norm} for client, norm in enumerate(own)} for own in norms]
        lines = [{"round": number, "clients": clients} for number, clients in enumerate([{}, *rounds])]
        (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_record(suite: str, world: int, success: float, mixtures: Mixtures) -> RunRecord:
    """The record of a run that has what the map reads."""
    ends = {"mean": success, "low": success, "high": success}
    shown = {name: {"own": own, "misled": False} for name, own in KINDS.items()}
    return RunRecord(
        kind="training",
        name=suite,
        seed=world,
        config_digest=ZEROS,
        env=EnvRecord(id="fedagentgym/Skills-v0", options={}, pool=ZEROS, task_set=ZEROS),
        agent=AgentRecord(kind="model", settings={"name": "tiny"}, note={"misconceptions": shown}),
        ranked=Evaluated(
            tasks=10, episodes=10, overall=dict.fromkeys(("success", "score", "turns"), ends), categories={}
        ),
        clients=tuple(
            ClientRecord(client=number, tasks=8, mixture=one, coverage=1.0, success=0.5)
            for number, one in enumerate(mixtures)
        ),
        spent=Spent(),
        made=MADE,
    )


@pytest.fixture(scope="module")
def made() -> Made:
    return make_runs(WHOLE.suite)


@pytest.fixture(scope="module")
def results(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the first suite of the map, and of no other."""
    place = tmp_path_factory.mktemp("results")
    write_results(made, place, WHOLE.suite)
    return place


@pytest.fixture(scope="module")
def read(results: Path) -> tuple[list[MapPoint], dict[Spot, int]]:
    return read_points(WORLDS, results)


# ---- what is read -----------------------------------------------------------------------------------------------------


def test_points_are_those_of_a_plain_loop(made: Made, read: tuple[list[MapPoint], dict[Spot, int]]) -> None:
    points, missing = read
    assert [one.spot for one in points] == [spot for spot in list_spots() if spot.suite == WHOLE.suite]
    assert list(missing) == [spot for spot in list_spots() if spot.suite != WHOLE.suite]
    assert len(points) == 12 and len(missing) == 3 + 9
    for point in points:
        gaps: dict[str, list[float]] = {"local-0": [], "centralized": []}
        reached: dict[str, list[float]] = {"local-0": [], "centralized": []}
        for place, world in enumerate(WORLDS):
            success, mixtures, norms = made[point.spot.row, point.spot.scenario, world]
            apart = [sum(abs(a[name] - b[name]) for name in KINDS) / 2 for a, b in combinations(mixtures, 2)]
            added = [one["Arle"] + one["Cray"] for one in mixtures]
            assert point.distances[place] == pytest.approx(sum(apart) / len(apart))
            assert point.procedures[place] == pytest.approx(np.mean([abs(a - b) for a, b in combinations(added, 2)]))
            assert point.lengths[place] == pytest.approx(sum(map(sum, norms)) / 6)
            for other, values in gaps.items():
                reached[other].append(made[other, point.spot.scenario, world][0])
                values.append(success - reached[other][-1])
        better = max(reached, key=lambda other: sum(reached[other]))
        assert point.differences.tolist() == pytest.approx(gaps[better])


def test_the_distance_is_that_of_the_split_that_was_played() -> None:
    """The mixtures in the record of a committed run are those of the division that its suite makes."""
    archive = find_suite("skills-fedagent-v1") / "fedagent-80.zip"
    with Result(archive).open_run(("misled", 0), RECORD, METRICS) as run_folder:
        record, log = run_folder.record, list(read_metrics_log(run_folder.path / METRICS))
    opened = open_scenario(load_suite("skills-fedagent-v1"), "misled", 0)
    assert opened.client_split is not None
    shares = opened.client_split.statistics().shares
    apart = [np.abs(shares[a] - shares[b]).sum() / 2 for a, b in combinations(range(len(shares)), 2)]
    assert measure_distance([client.mixture for client in record.clients]) == pytest.approx(np.mean(apart)) == 1.0
    norms = [client["update_norm"] for client in log[1]["clients"].values()]
    assert len(norms) == len(shares) and federation_map.measure_length(log) == pytest.approx(np.mean(norms))


@given(MIXTURES)
def test_distances_are_shares_and_those_of_kinds_are_no_larger(mixtures: Mixtures) -> None:
    apart = measure_distance(mixtures)
    assert -1e-12 <= measure_distance(sum_kinds(mixtures, KINDS)) <= apart + 1e-12 and apart <= 1 + 1e-12
    assert measure_distance(mixtures[::-1]) == pytest.approx(apart)
    assert measure_distance([mixtures[0]] * 3) == 0.0
    assert measure_distance([{f"{number}": 1.0} for number in range(len(mixtures))]) == 1.0


# ---- the surface ------------------------------------------------------------------------------------------------------


def make_points(heights: Floats, noise: Floats) -> list[MapPoint]:
    """A point for each height, in places of three lengths, whose worlds differ from it by this noise."""
    points = []
    for number, (height, off) in enumerate(zip(heights, noise, strict=True)):
        x, y = PLACES[number]
        same = np.ones(noise.shape[1])
        central = 0.9 * same
        spot = Spot(WHOLE.suite, f"s{number}", "fedagent-5", 5)
        points.append(MapPoint(spot, x * same, x * same, y * same, central + height + off, 0.5 * same, central))
    return points


PLACES = [(x, y) for x in (0.13, 0.4, 0.7, 1.0, 1.0) for y in (1.0 + x / 9, 1.5 - x / 9, 3.3 + x / 9)]
X, Y = np.array(PLACES).T
NUMBER = st.floats(-0.3, 0.3)


@given(*[NUMBER] * 6)
def test_a_surface_without_noise_is_found_again(a: float, b: float, c: float, d: float, e: float, f: float) -> None:
    def height(x: Floats, y: Floats) -> Floats:
        z = np.log2(y)
        return a + b * x + c * z + d * x * x + e * x * z + f * z * z

    surface = fit_surface(make_points(height(X, Y), np.zeros((len(X), 5))))
    x, y = np.linspace(0.2, 0.9, 7), np.linspace(1.1, 3.0, 7)
    found, half = surface.find(x, y)
    assert found == pytest.approx(height(x, y), abs=1e-9) and half == pytest.approx(0, abs=1e-9)


def test_a_known_plane_lies_in_its_interval_as_often_as_it_says() -> None:
    """Worlds differ as a whole and in each point; 95 % of the intervals are to hold the plane."""
    draws, hits = np.random.default_rng(1), []
    plane = 0.05 - 0.1 * X - 0.15 * np.log2(Y)
    for _ in range(300):
        noise = draws.normal(0, 0.05, 12) + draws.normal(0, 0.08, (len(X), 12))
        surface = fit_surface(make_points(plane, noise))
        x, y = draws.uniform(0.13, 1.0, 3), draws.uniform(1.1, 3.3, 3)
        found, half = surface.find(x, y)
        hits += (np.abs(found - (0.05 - 0.1 * x - 0.15 * np.log2(y))) <= half).tolist()
    assert 0.92 < np.mean(hits) < 0.98


def test_the_shares_of_the_map_are_those_of_its_signs() -> None:
    """A plane that is 0 at a distance of 0.5 is above on one side, below on the other, and open between."""
    noise = np.random.default_rng(2).normal(0, 0.02, (len(X), 12))
    points = make_points(0.5 - X, noise)
    surface = fit_surface(points)
    _, half = surface.find(X, Y)
    fitted = make_terms(X, Y) @ surface.coefficients.T
    assert half.tolist() == pytest.approx([find_half_width(one) for one in fitted.tolist()])
    values = {one.name.partition(": ")[2] or one.name: one.value for one in measure_map(points, surface)}
    x, y, inside = cover(points)
    assert values["certainly above"] == pytest.approx(100 * np.mean(x[inside] < 0.5), abs=4)
    assert values["certainly above"] + values["certainly below"] + values["neither"] == pytest.approx(100)
    assert 0 < values["neither"] < 15 and values["points off the surface, root mean square"] < 1.0
    distances, lengths = locate(points)
    assert x[inside].min() >= distances.min() and y[inside].max() <= lengths.max() + 1e-9


def test_points_in_too_few_places_have_no_surface() -> None:
    points = make_points(np.zeros(len(X)), np.zeros((len(X), 5)))
    same = [replace(one, lengths=points[0].lengths) for one in points]
    for few in (points[:5], same):
        with pytest.raises(DataError, match="determine no quadratic surface"):
            fit_surface(few)


# ---- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page and results in place of those of this repository."""
    page = tmp_path / "map.md"
    page.write_text("\n".join(["# Map", *make_marks(PLACE)]) + "\n")
    monkeypatch.setattr(federation_map, "PAGE", page)
    monkeypatch.setattr(federation_map, "RESULTS", results)
    return page


def test_as_long_as_points_are_missing_nothing_is_drawn_and_they_are_named(page: Path) -> None:
    before = page.read_text()
    figures = {one.name: one for one in run()}
    missing = [spot for spot in list_spots() if spot.suite != WHOLE.suite]
    assert all(figures[f"not whole: {spot} ({spot.suite})"].value == 0 for spot in missing)
    assert figures["points that are missing, so that no map is drawn"].value == len(missing)
    assert len(figures) == 12 + len(missing) + 1 and not any("share of the map" in name for name in figures)
    assert page.read_text() == before and not page.with_name(PICTURE).exists()


def test_a_point_that_lacks_one_world_of_one_row_is_missing(results: Path, tmp_path: Path) -> None:
    place = tmp_path / "results"
    shutil.copytree(results / WHOLE.suite, place / WHOLE.suite)
    lacks = {"fedagent-20": "alike", "local-0": "preference-0.7", "centralized": "one-procedure"}
    for row, scenario in lacks.items():
        shutil.rmtree(place / WHOLE.suite / row / name_run((scenario, WORLDS[3])))
    points, missing = read_points(WORLDS, place)
    found = {spot: count for spot, count in missing.items() if spot.suite == WHOLE.suite}
    assert set(found.values()) == {len(WORLDS) - 1}
    assert {spot.scenario for spot in found if spot.tau != 20} == {"preference-0.7", "one-procedure"}
    assert len(found) == 1 + 3 + 3 and len(points) == 12 - len(found)
    shutil.rmtree(place / WHOLE.suite / "local-0")
    points, missing = read_points(WORLDS, place)
    assert not points and set(missing.values()) == {0}


def test_results_of_another_suite_are_refused(results: Path, tmp_path: Path) -> None:
    place = tmp_path / "results"
    shutil.copytree(results / WHOLE.suite, place / "skills-heterogeneity-v1")
    with pytest.raises(DataError, match="another definition"):
        read_points(WORLDS, place)


def test_a_whole_map_is_written_into_its_page(
    page: Path, read: tuple[list[MapPoint], dict[Spot, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(federation_map, "SOURCES", (WHOLE,))
    figures = {one.name: one.value for one in run()}
    text, (points, _) = page.read_text(), read
    assert tabulate(points, fit_surface(points)).to_markdown() in text and f"({PICTURE})" in text
    for point in points:
        found = estimate_replicates(point.differences.tolist())
        assert figures[f"{point.spot} ({WHOLE.suite})"] == pytest.approx(100 * found.mean)
        row = next(line for line in text.splitlines() if line.startswith(f"| {point.spot} |"))
        assert found.low is not None and found.high is not None
        assert f"{100 * found.mean:+.1f} | {100 * found.low:+.1f} to {100 * found.high:+.1f}" in row
    shares = {name: value for name, value in figures.items() if name.startswith("share of the map: ")}
    assert len(shares) == 3 and sum(shares.values()) == pytest.approx(100)
    assert all(f"hare of the map: {name.partition(': ')[2]}: {value:.1f} %" in text for name, value in shares.items())
    save_figure(draw_map(points, fit_surface(points)), page.with_name("again.png"))
    assert page.with_name("again.png").read_bytes() == page.with_name(PICTURE).read_bytes()


@needs_all_results
def test_the_committed_results_say_what_they_have() -> None:
    """The quick form reads five worlds."""
    figures = run(quick=True)
    assert len({one.name for one in figures}) == len(figures) >= len(list_spots())
    assert all(math.isfinite(one.value) for one in figures)
    played = [one for one in figures if one.name.startswith("misled")]
    assert len(played) == 3 and all(one.bar.startswith("distance 1.00") for one in played)
