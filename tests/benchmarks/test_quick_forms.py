"""The command line of the benchmarks, and quick forms of measurements; no test depends on how fast the machine is."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import partitions, skills_pages, small_model, tables
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.communication import RANK, SHAPES, count_fedgrpo_bytes, count_payload_bytes, make_adapter_message
from benchmarks.small_model import PAGE, TABLES, describe, load_kept
from benchmarks.tables import mean
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.statistics import estimate_replicates
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.leaderboard.rank import compare_suite
from fedagentgym.leaderboard.results import Result, read_suites
from tests.committed import RESULTS, find_suite

Values = Mapping[str, float]
MAY_BE_ZERO = (
    "difference of",
    "decided",
    "more than one band",
    "memory of",
    "share of",
    "environment's share",
    "later reset",
    "open",
    "dispersion",
    "figure",
)
SHORT = (
    "alfworld-houses",
    "speed-adapters",
    "speed-core",
    "speed-gateway",
    "speed-records",
    "speed-verifiers",
    "communication",
    "null-comparisons",
)
LONG = {
    "alfworld": "the original engine plays too",
    "speed-agents": "TRL's trainer takes steps too",
    "speed-federation": "rounds of Flower's too",
    "speed-partitions": "draws the paper's figures",
    "webshop": "a catalogue of many products",
}
"""The quick forms of measurements whose numbers are checked; with the reason, those that take above ten seconds."""
OTHERS = {
    "adapter-steps": "pretrains and trains",
    "cells-again": "plays a run of every committed suite",
    "generalisation": "plays every environment's experts",
    "evolution-strategies": "trains",
    "learning-ppo": "pretrains and trains",
    "gateway-learning": "trains",
    "gateway-programs": "trains",
    "gateway-small": "trains a model of 135 million parameters",
    "learning-tiny": "pretrains and trains",
    "learning-tiny-alfworld": "pretrains and trains",
    "learning-tiny-math": "pretrains and trains",
    "learning-tiny-records": "pretrains and trains",
    "learning-tiny-skills": "pretrains and trains",
    "learning-tiny-webshop": "pretrains and trains",
    "merge-table": "pretrains and trains",
    "misconceptions-houses": "pretrains and trains",
    "misconceptions-math": "pretrains and trains",
    "misconceptions-shop": "pretrains and trains",
    "newcomers": "plays the commands of pages",
    "pictures": "draws every picture",
    "plan-minutes": "measures the machine and plays a run",
    "privacy-probes": "trains under every method",
    "record-demo": "runs the demo",
    "records-rules": "",
    "screenshots": "starts a browser",
    "skills-pages": "draws every figure",
    "smaller-grids": "",
    "small-math": "trains a model of 135 million parameters",
    "small-skills-factors": "trains a model of 135 million parameters",
    "table1-tiny": "trains",
    "webshop-figures": "plays a shop many times",
}
"""The others, which play, train or draw, with the reason of those that take above ten seconds."""
COMMITTED = {
    "null-comparisons": "methods-tiny-shop-v2",
    "pictures": "skills-fedagent-v1",
    "records-rules": "methods-tiny-records-v1",
    "skills-pages": "skills-fedagent-v1",
}
"""A suite whose committed results a benchmark reads, and which a source distribution lacks."""
ELSEWHERE = ("claims", "extras", "federation-map", "fixed-replies", "report")
"""Tested by files of their own, such as `test_claims`, and `fixed-replies` as all sections of the audit by `test_audit`."""


def run_quick(name: str, **options: int) -> dict[str, float]:
    """The figures of a quick form by name; each is finite and has its right sign."""
    figures = BENCHMARKS.get(name)(True, **options)
    assert figures
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        assert math.isfinite(figure.value) and figure.value >= 0.0, figure
        assert figure.value > 0.0 or any(part in figure.name for part in MAY_BE_ZERO), figure
    return {figure.name: figure.value for figure in figures}


def pick(values: Values, *parts: str) -> list[float]:
    """The values whose names contain all of these parts; there is one at least."""
    found = [value for name, value in values.items() if all(part in name for part in parts)]
    assert found, (parts, list(values))
    return found


def check_houses(values: Values) -> None:
    assert all(value <= 100.0 for value in pick(values, "expert's wins"))
    assert max(pick(values, "shortest plan")) <= max(pick(values, "expert's turns"))


def check_webshop(values: Values) -> None:
    """Memory is counted, not timed: players of the same searches share their pages."""
    (same,), (other,) = pick(values, "the same searches"), pick(values, "searches of their own")
    assert 0.9 < same < 8.0
    assert same <= other * 1.1 and other < 8.5
    assert max(pick(values, "one process after")) < min(pick(values, "peak memory"))


def check_agents(values: Values) -> None:
    assert all(0.0 < value < 100.0 for value in pick(values, "of it playing"))
    if find_spec("trl") is not None:
        assert all(abs(value - 1.0) < 0.05 for value in pick(values, "TRL's tokens / ours"))


def check_federation(values: Values) -> None:
    assert 1.0 < pick(values, "greatest memory of a round")[0] < 40.0
    assert pick(values, "idle clients")[0] < 1000.0
    if find_spec("flwr") is not None and find_spec("ray") is not None:
        assert len(pick(values, "Flower's FedAvg / ")) == 1


def check_null(values: Values) -> None:
    """Of 100 pages of equal methods a few show a difference; of redrawn runs in the shop, fewer than in points alone."""
    for kind in ("more than one band", "a planned comparison decided"):
        shares = pick(values, kind)
        assert max(shares) <= 5.0 and sum(shares) > 0.0
    (both,), (points,) = pick(values, "by both scales"), [v for name, v in values.items() if name.endswith("by points")]
    assert both <= points


def check_adapters(values: Values) -> None:
    """Turns and the batch say the same."""
    assert pick(values, "share of tokens that are equal") == [1.0] and max(pick(values, "difference of")) < 1e-5


CHECKS = {
    "alfworld-houses": check_houses,
    "null-comparisons": check_null,
    "speed-adapters": check_adapters,
    "speed-agents": check_agents,
    "speed-federation": check_federation,
    "webshop": check_webshop,
}


def mark_slow(reasons: Mapping[str, str]) -> list[Any]:
    """Names to run a test with; those with a reason only where slow tests run."""
    return [
        pytest.param(name, marks=[pytest.mark.slow(reason=reason)] if reason else [])
        for name, reason in reasons.items()
    ]


def test_every_benchmark_has_its_quick_form_in_a_test() -> None:
    elsewhere = [name for name in BENCHMARKS.names() if name in ELSEWHERE or name.startswith("audit")]
    assert sorted((*SHORT, *LONG, *OTHERS, *elsewhere)) == sorted(BENCHMARKS.names())


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", mark_slow({**dict.fromkeys(SHORT, ""), **LONG}))
def test_a_quick_form_gives_numbers_that_can_be_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in COMMITTED:
        find_suite(COMMITTED[name])
    if name == "alfworld":
        pytest.importorskip("textworld")
    if name in ("speed-adapters", "speed-agents", "speed-gateway"):
        pytest.importorskip("torch")
    monkeypatch.setattr(partitions, "FIGURE_FOLDER", tmp_path)
    CHECKS.get(name, lambda values: None)(run_quick(name))


@pytest.fixture
def elsewhere(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of those of this repository into which benchmarks write."""
    pages, pictures = tmp_path / "experiments", tmp_path / "pictures"
    shutil.copytree(root / "docs" / "experiments", pages)
    shutil.copytree(root / "docs" / "pictures", pictures)
    shutil.copy(root / "benchmarks" / "pictures" / "demo.jsonl", tmp_path)
    monkeypatch.setattr(tables, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(skills_pages, "FOLDER", pages)
    monkeypatch.setattr(small_model, "PAGE", pages / PAGE.name)
    monkeypatch.setattr("benchmarks.pictures.PICTURES", pictures)
    monkeypatch.setattr("benchmarks.pictures.screens.PICTURES", pictures)
    monkeypatch.setattr("benchmarks.pictures.recording.KEPT", tmp_path / "demo.jsonl")
    monkeypatch.setattr("benchmarks.pictures.recording.ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root))
    return tmp_path


@pytest.mark.parametrize("name", mark_slow(OTHERS))
def test_a_quick_form_that_plays_trains_or_draws_ends(name: str, elsewhere: Path, root: Path) -> None:
    pytest.importorskip("torch")
    if name in COMMITTED:
        find_suite(COMMITTED[name])
    if name == "screenshots":
        screens = pytest.importorskip("benchmarks.pictures.screens")
        if not any(map(shutil.which, screens.BROWSERS)):
            pytest.skip("needs Chromium")
        if not all((root / screen.page).is_file() for screen in screens.SCREENS.values()):
            pytest.skip("needs the pages that `make screenshots` makes")
    figures = BENCHMARKS.get(name)(True, **({"folder": elsewhere / "pictures"} if name == "pictures" else {}))
    assert figures and len({figure.name for figure in figures}) == len(figures)
    assert all(math.isfinite(figure.value) for figure in figures)
    if name in ("pictures", "skills-pages"):
        for kind in ("experiments", "pictures"):
            made, kept = elsewhere / kind, root / "docs" / kind
            changed = [file.name for file in made.iterdir() if file.read_bytes() != (kept / file.name).read_bytes()]
            assert not changed, f"make {name} again"


@pytest.mark.slow
def test_rounds_grow_with_participants_and_models_and_hardly_with_clients_that_are_not_asked() -> None:
    values = run_quick("speed-federation", clients=20_000)
    memory = [pick(values, f"{count:,} of 20,000 clients, 0.1 MB: greatest memory")[0] for count in (10, 1000)]
    assert memory[1] < 4 * memory[0]
    assert pick(values, "a client that is not asked")[0] < 2000.0


# ---- the command line -------------------------------------------------------------------------------------------------


def test_every_benchmark_is_listed_and_has_a_row_in_the_docs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    page = (root / "docs" / "experiments" / "benchmarks.md").read_text("utf-8")
    for name in BENCHMARKS.names():
        assert name in listed and BENCHMARKS.describe(name) and callable(BENCHMARKS.get(name))
        family = name if f"`{name}`" in page else f"`-{name.rpartition('-')[2]}`"
        assert family in page, name


def test_figures_are_printed_as_a_table_and_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["communication"]) == 0
    assert "paper: 2.4 MB" in capsys.readouterr().out
    assert main(["speed-federation", "--quick", "--clients", "1", "--json"]) == 0
    names = [figure["name"] for figure in json.loads(capsys.readouterr().out)["measurements"]]
    assert any(name.startswith("1 of 1 clients") for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed-cor"], "did you mean 'speed-core'"),
        (["communication", "speed-federation", "--clients", "10"], "'communication' takes no --clients"),
        (["speed-federation", "--quick", "--clients", "0"], "number of clients from 1 on"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


# ---- bytes, and the picture of README ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "per_rank"), [("Qwen2.5-1.5B", 1_154_048), ("Qwen2.5-3B", 1_870_848), ("Qwen2.5-7B", 2_523_136)]
)
def test_an_adapter_is_rank_times_the_widths_of_its_layers(name: str, per_rank: int) -> None:
    assert count_payload_bytes(make_adapter_message(SHAPES[name])) == 4 * RANK * per_rank


def test_fedgrpo_sends_four_bytes_per_score_and_one_bit_per_example() -> None:
    assert count_fedgrpo_bytes()["up"] == 320 * 24 * 2 * 8 * 4 + 8 * 13


def test_figure_2_is_that_of_the_presets_plans() -> None:
    """The benchmark and the plan count from one preset: scores and adapters up."""
    scores, adapters = (plan_run(load_config(f"paper-fedgrpo{row}")) for row in ("", ":fedpetuning-grpo"))
    assert count_fedgrpo_bytes()["up"] == pytest.approx(scores.count_bytes_up(scores.total), rel=1e-4)
    one = count_payload_bytes(make_adapter_message(SHAPES["Qwen2.5-1.5B"]))
    assert adapters.count_bytes_up(adapters.total) == 320 * 8 * one


@pytest.mark.parametrize(
    ("suite", "scenario", "together"),
    [("skills-fedagent-v1", "misled", "fedagent-5"), ("small-skills-signs-v1", "divided", "fedagent-2")],
)
def test_readme_states_the_suites_of_fedagent(suite: str, scenario: str, together: str, root: Path) -> None:
    text = (root / "README.md").read_text("utf-8").replace("\n", " ")
    place = find_suite(suite)
    solved = {
        name: format_fixed(100 * mean([run.means["success"] for run in runs.values()]))
        for name in ("zero-shot", "local-0", together, "centralized")
        for runs in [Result(place / f"{name}.zip").numbers.runs[scenario]]
    }
    assert f"and solves {solved['zero-shot']} % of the held-out tasks" in text
    assert (
        f"a client alone solves {solved['local-0']} %, the federation {solved[together]} %, training with all tasks in one"
        f" place {solved['centralized']} %."
    ) in text
    (found,) = read_suites([place])
    compared = compare_suite(found.suite, found.tabulate())
    shown = {frozenset((one.first, one.second)): one for one in compared if one.scenario == scenario}
    alone, central = shown[frozenset((together, "local-0"))], shown[frozenset((together, "centralized"))]
    assert alone.difference.ends is not None and alone.difference.is_decided
    sign = 1 if alone.first == together else -1
    points = [100 * sign * value for value in (alone.difference.mean, *alone.difference.ends[::sign])]
    assert "by {} points (95 % interval {} to {})".format(*(format_fixed(value, 1) for value in points)) in text
    assert central.first == together and central.difference.ends is not None and not central.difference.is_decided
    low, high = (format_fixed(100 * end, 1, "+") for end in central.difference.ends)
    assert f"is not decided: {format_fixed(100 * central.difference.mean, 1)} points ({low} to {high})" in text
    assert f"These are means of {len(central.difference.values)} runs" in text


def test_the_page_of_the_real_model_states_its_kept_results() -> None:
    kept, page = load_kept(), PAGE.read_text("utf-8")
    for table in TABLES:
        assert table.name not in kept or describe(table, kept[table.name]).strip() in page


def test_readme_and_the_page_state_the_preset_of_the_real_model(root: Path) -> None:
    readme, page = ((root / name).read_text("utf-8").replace("\n", " ") for name in ("README.md", PAGE))
    place = RESULTS / "methods-small-skills-v1"
    start, together, alone = (
        Result(place / f"{name}.zip").numbers.list_runs("success") for name in ("zero-shot", "fedagent", "local-0")
    )
    found = estimate_replicates(together)
    assert found.low is not None and found.high is not None
    gained = f"from {mean(start):.2f} to {found.mean:.2f}"
    assert len(together) == 5
    assert f"{gained} (five seeds, 95 % interval {found.low:.2f} to {found.high:.2f}" in readme
    assert f"{gained}, on average over five runs" in page
    *others, lowest = sorted(alone, reverse=True)
    assert lowest < 0.005 and all(
        abs(value - begun) < 0.1 for value, begun in zip(alone, start, strict=True) if value > lowest
    )
    assert len(others) == 4 and "ends within 0.1 of its start in four runs, and at 0 in the fifth" in page


def test_the_page_states_the_signs_of_the_real_model() -> None:
    """The sentences on single worlds, which no table shows."""
    page = PAGE.read_text("utf-8").replace("\n", " ")
    runs = {
        path.stem: np.array(Result(path).numbers.list_runs("success"))
        for path in (RESULTS / "small-skills-signs-v1").glob("*.zip")
    }
    together = runs["fedagent-2"]
    assert (together - runs["zero-shot"]).min() >= 0.25 and "every world gains at least 0.25" in page
    assert (runs["fedagent-16"] < together).all() and "below meeting eight times in every world" in page
    assert (runs["competence"] >= runs["random"]).all() and "in no world are experts by competence below" in page
    others = np.delete(runs["fedagent-4"] - together, 5)
    assert f"in the other seven worlds it is {100 * others.mean():.1f} above" in page
    assert f"success ended at {runs['fedagent-4'][5]:.2f}" in page
    lost = 100 * (together - runs["local-0"])
    assert f"{lost.mean():.1f} points below, between {lost.min():.1f} and {lost.max():.1f}" in page
