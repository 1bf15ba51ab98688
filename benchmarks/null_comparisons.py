"""Errors of the leaderboard if methods are equal: the share of pages that show a difference although there is none.

Methods that are equal are compared by the functions of the leaderboard, in suites of two scenarios with a planned comparison of
each method with the first. Their runs are drawn in three kinds of worlds:

* even: success around one half in all worlds, normal noise;
* a shop: the log odds of success differ from world to world as in `methods-tiny-shop-v2`, and each run plays 100 tasks;
* a shop, skewed: as the shop, but every second method gains in easy worlds as much as it loses in hard worlds. Means are equal,
  and differences are skewed.

Then the runs of kept results are centred, so that entries have equal means, and redrawn world by world. More than 5 % of these
pages show a difference, since redrawing repeats some runs. For comparison, normal runs with the same covariance are redrawn too.
The figures are those of the test that the leaderboard uses (on both scales), and of tests that it does not use: in points, in
log odds, and with flipped signs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product

import numpy as np

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from fedagentgym.base.progress import show_progress
from fedagentgym.base.statistics import LEVEL, Values, compare_replicates, compute_log_odds, correct
from fedagentgym.leaderboard.rank import compare_suite, list_complete, rank
from fedagentgym.leaderboard.results import read_suites
from fedagentgym.leaderboard.suite import WHOLE, Suite

SCENARIOS = ("a", "b")
TASKS = 100
EASE, EASE_SPREAD = -1.9, 0.8
"""Mean and standard deviation over worlds of the log odds of success in the shop."""
KEPT = ("methods-tiny-shop-v2", "methods-tiny-skills-v2", "methods-tiny-worlds-v1")


def draw_even(draws: np.random.Generator, methods: int, seeds: int) -> Values:
    """Success as `values[method, seed]`."""
    success = 0.5 + draws.normal(0, 0.1, seeds) + draws.normal(0, 0.05, (methods, seeds))
    return np.clip(success, 0, 1)


def draw_shop(draws: np.random.Generator, methods: int, seeds: int) -> Values:
    ease = draws.normal(EASE, EASE_SPREAD, seeds) + draws.normal(0, 0.35, (methods, seeds))
    success: Values = draws.binomial(TASKS, 1 / (1 + np.exp(-ease))) / TASKS
    return success


def draw_skewed_shop(draws: np.random.Generator, methods: int, seeds: int) -> Values:
    worlds = 1 / (1 + np.exp(-draws.normal(EASE, EASE_SPREAD, (2, 10_000))))
    expected, world = worlds[0].mean(), worlds[1, :seeds]
    gains = 0.5 * (np.arange(methods) % 2)[:, None] * (world - expected)
    ease = np.log(world / (1 - world)) + draws.normal(0, 0.2, (methods, seeds))
    success: Values = draws.binomial(TASKS, np.clip(1 / (1 + np.exp(-ease)) + gains, 0, 1)) / TASKS
    return success


WORLDS: dict[str, Callable[[np.random.Generator, int, int], Values]] = {
    "even": draw_even,
    "a shop": draw_shop,
    "a shop, skewed": draw_skewed_shop,
}


def make_suite(methods: int, seeds: int) -> Suite:
    """A suite of two scenarios that plans a comparison of every method with the first."""
    names = [f"method-{number}" for number in range(methods)]
    return Suite.load(
        {
            "name": "equal",
            "track": "methods",
            "title": "Equal methods",
            "config": "demo",
            "scenarios": {name: {} for name in SCENARIOS},
            "seeds": list(range(seeds)),
            "baselines": {name: {} for name in names},
            "pairs": [[name, names[0]] for name in names[1:]],
        }
    )


def count_errors(world: str, methods: int, seeds: int, draws: int) -> tuple[float, float]:
    """The shares of pages with more than one band, and of pages with a planned comparison that is decided."""
    suite, stream = make_suite(methods, seeds), np.random.default_rng([methods, seeds, list(WORLDS).index(world)])
    bands = planned = 0
    for _ in range(draws):
        success = {scenario: WORLDS[world](stream, methods, seeds) for scenario in SCENARIOS}
        values = {
            name: {scenario: success[scenario][number][:, None] for scenario in SCENARIOS}
            for number, name in enumerate(suite.baselines)
        }
        found = compare_suite(suite, values)
        bands += any(max(place.bands) > 1 for place in rank(suite, values, found)[WHOLE].values())
        planned += any(one.difference.is_decided for one in found if one.planned)
    return bands / draws, planned / draws


def redraw(name: str, draws: int) -> dict[str, float]:
    """For each test, the share of pages on which some pair is decided if the runs of a kept suite are centred and redrawn."""
    (found,) = read_suites([ROOT / "leaderboard" / "results" / name])
    values = found.tabulate()
    entries = list_complete(found.suite, values)
    runs = np.array([[table[:, 0] for table in values[entry].values()] for entry in entries])
    means = runs.mean(axis=1)
    points, odds = (
        table - table.mean(axis=1, keepdims=True) for table in (means, np.vectorize(compute_log_odds)(means))
    )
    stream, seeds = np.random.default_rng(0), points.shape[1]
    root = np.linalg.cholesky(np.cov(points) + 1e-9 * np.eye(len(points)))
    # the first sign stays: flipping all changes nothing
    flips = np.array(list(product([1], *[[1, -1]] * (seeds - 1))), float)
    errors = dict.fromkeys(("both scales", "points", "log odds", "flipped signs", "points, normal runs"), 0)
    for _ in range(draws):
        redrawn, normal = stream.integers(0, seeds, seeds), root @ stream.normal(size=points.shape)
        normal -= normal.mean(axis=1, keepdims=True)
        one, other, usual = (
            np.array([table[a] - table[b] for a, b in combinations(range(len(table)), 2)])
            for table in (points[:, redrawn], odds[:, redrawn], normal[:, redrawn])
        )
        lengths = np.sqrt((one**2).sum(axis=1, keepdims=True))
        largest = np.abs(flips @ (one / np.where(lengths < 1e-12, 1.0, lengths)).T).max(axis=1)
        errors["flipped signs"] += bool((largest >= largest[0] - 1e-9).mean() <= LEVEL)
        tests = {
            "both scales": [compare_replicates(a.tolist(), 0.0, b.tolist()) for a, b in zip(one, other, strict=True)],
            "points": [compare_replicates(a.tolist()) for a in one],
            "log odds": [compare_replicates(b.tolist()) for b in other],
            "points, normal runs": [compare_replicates(a.tolist()) for a in usual],
        }
        for test, differences in tests.items():
            errors[test] += any(difference.is_decided for difference in correct(differences))
    return {test: count / draws for test, count in errors.items()}


def run(quick: bool = False) -> list[Measurement]:
    """The shares of pages that show a difference, in percent."""
    draws = 100 if quick else 1200
    cells = list(product(WORLDS, (6,) if quick else (6, 9, 12, 17), (5, 8) if quick else (5, 8, 12)))
    kept = KEPT[:1] if quick else KEPT
    figures = []
    with show_progress("null-comparisons", total=len(cells) + len(kept)) as bar:
        for world, methods, seeds in cells:
            shares = count_errors(world, methods, seeds, draws)
            for kind, share in zip(("more than one band", "a planned comparison decided"), shares, strict=True):
                name = f"{world}, {methods} methods, {seeds} seeds: {kind}"
                figures.append(Measurement(name, 100 * share, "%", "at most 5"))
            bar.advance()
        for suite in kept:
            for test, share in redraw(suite, min(draws, 400)).items():
                figures.append(Measurement(f"{suite}, redrawn: some pair decided by {test}", 100 * share, "%"))
            bar.advance()
    return figures
