"""The page of the papers' claims: every comparison exists, and its verdicts are those of the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.claims import (
    CONTRADICTED,
    EQUAL,
    MEAN,
    OPEN,
    PAGE,
    SUPPORTED,
    Evidence,
    find_page,
    judge,
    read_claims,
    turn,
    write_table,
)
from benchmarks.excerpts import fill_place
from benchmarks.skills_pages import PAGES
from benchmarks.skills_results import AREA
from fedagentgym.base.statistics import Difference, compare_replicates, correct
from fedagentgym.leaderboard.suite import list_suites, load_suite
from tests.committed import needs_all_results

EVIDENCE = [one for claims in read_claims().values() for claim in claims for one in claim.evidence]


@pytest.mark.parametrize("one", EVIDENCE, ids=lambda one: f"{one.suite}: {one.about}")
def test_what_bears_on_a_claim_is_compared(one: Evidence) -> None:
    assert one.suite in list_suites()
    suite = load_suite(one.suite)
    if one.gain is not None:
        rows = None if one.first is None else (one.first, one.second)
        planned = [gain for gain in suite.gains if (gain.scenario, gain.than_scenario) == one.gain]
        assert len([gain for gain in planned if rows in (None, gain.of)]) == 1
        return
    assert {one.first, one.second} <= set(suite.baselines)
    if one.measure is not None:
        (page,) = (each for each in PAGES if each.suite == one.suite)
        assert one.measure in {AREA, *page.diagnostics} and one.scenario in suite.scenarios
        return
    if one.scenario == MEAN:  # every pair is compared in the mean
        assert len(suite.scenarios) > 1
        return
    assert {(one.first, one.second, one.scenario), (one.second, one.first, one.scenario)} & set(suite.comparisons)


@pytest.mark.parametrize("name", sorted({one.suite for one in EVIDENCE}))
def test_every_suite_that_bears_on_a_claim_has_one_page(name: str) -> None:
    assert (PAGE.parent / find_page(name)).is_file()


def test_a_verdict_needs_a_decision() -> None:
    clear, none = [0.2, 0.21, 0.19, 0.2, 0.22, 0.18], [0.3, -0.3, 0.1, -0.2, 0.25, -0.1]
    same = [0.001, -0.001, 0.0, 0.002, -0.002, 0.0]
    found = correct([compare_replicates(values, margin=0.05) for values in (clear, none, same)])
    expected = {
        "above": [SUPPORTED, OPEN, EQUAL],
        "equal": [CONTRADICTED, OPEN, SUPPORTED],
        "not above": [CONTRADICTED, OPEN, SUPPORTED],
        "not below": [SUPPORTED, OPEN, SUPPORTED],
    }
    for expects, verdicts in expected.items():
        assert [judge(one, expects) for one in found] == verdicts
    turned = [judge(turn(found[0]), expects) for expects in expected]
    assert turned == [CONTRADICTED, CONTRADICTED, SUPPORTED, CONTRADICTED]
    assert turn(Difference(0.1, 0.05, 0.2)).ends == (-0.2, -0.05)


@needs_all_results
@pytest.mark.slow  # all results are read
def test_the_page_shows_the_committed_results(root: Path) -> None:
    page = (root / "docs" / "experiments" / "claims.md").read_text("utf-8")
    assert page == fill_place(page, "claims", write_table(read_claims())[0])
