"""Comparisons: paired differences, the correction for many, and the page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError
from fedagentgym.cli.main import main
from fedagentgym.leaderboard.compare import compare, load_played, to_markdown
from fedagentgym.leaderboard.compare_page import write_comparison
from fedagentgym.leaderboard.intervals import (
    Difference,
    compare_scenarios,
    correct_for_many,
    draw_weights,
    estimate_scenario,
    estimate_suite,
    find_p_value,
)
from tests.leaderboard.samples import write_agents_sample


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_what_its_definition_says(values: list[float]) -> None:
    found = [one.adjusted for one in correct_for_many([Difference(0, 0, 0, p, p) for p in values])]
    count, order = len(values), sorted(values)
    for p, adjusted in zip(values, found, strict=True):
        reached = [min(1.0, (count - place) * other) for place, other in enumerate(order) if other <= p]
        assert adjusted == pytest.approx(max(reached[: order.index(p) + 1]))
        assert adjusted >= p


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 40), st.integers(1, 4))
def test_redrawn_weights_are_shares(count: int, seed: int) -> None:
    weights = draw_weights(count, 50, "test", seed)
    assert weights.shape == (50, count) and np.allclose(weights.sum(axis=1), 1.0) and (weights >= 0).all()


def test_intervals_cover_as_often_as_they_say() -> None:
    """The mean of 60 tasks lies within its interval in about 95 of 100 draws."""
    draws = np.random.default_rng(0).random((300, 1, 60, 1)) < 0.4
    inside = 0
    for number, values in enumerate(draws.astype(float)):
        found = estimate_scenario(["success"], values, f"draw {number}")["success"]
        inside += found.low <= 0.4 <= found.high
    assert 0.88 <= inside / 300 <= 0.99


def test_scenarios_count_the_same() -> None:
    values = {"a": np.ones((1, 90, 1)), "b": np.zeros((1, 10, 1))}
    assert estimate_suite(["success"], values)["success"].mean == 0.5


def test_what_is_easy_for_everybody_is_no_noise() -> None:
    """Two entries that differ by the same amount on every task differ for certain, however unlike the tasks are."""
    easy = np.random.default_rng(1).random((2, 40))
    found = compare_scenarios({"a": easy + 0.1}, {"a": easy})
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1) and found.p < 0.001
    assert find_p_value(np.zeros(100)) == 1.0


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    for agent in ("expert", "random"):
        write_agents_sample(folder / agent, agent)
    return folder


def test_results_are_compared(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compare([load_played(results / "random"), load_played(results / "expert")])
    more = found.differences["expert"]
    assert more.mean > 0.3 and more.low > 0 and more.adjusted < 0.01 and "the same seeds" in found.pairing
    assert "expert" in to_markdown(found) and "<table>" in write_comparison(found)
    page = tmp_path / "page.html"
    assert main(["compare", str(results / "random"), str(results / "expert"), "--page", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["differences"]["expert"]["mean"] == pytest.approx(more.mean) and page.is_file()


def test_names_in_a_page_are_text(results: Path) -> None:
    played = [load_played(results / name, f"<script>{name}") for name in ("expert", "random")]
    assert "<script>" not in write_comparison(compare(played))


def test_what_cannot_be_compared_is_told(results: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run, a folder"):
        load_played(tmp_path)
    assert main(["compare", str(results / "expert")]) == 2
    assert main(["compare", str(results / "expert"), str(results / "random"), "--measure", "beauty"]) == 2
