"""The edges of what samplers take: numbers in range, bounds that were not given, the fewest tasks that are moved or used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.partitions.client_split import federate
from fedagentgym.partitions.division import check_client_count, make_sampler
from fedagentgym.partitions.samplers.coverage import Bounds, Coverage, validate_bounds
from fedagentgym.partitions.samplers.hardness import Hardness
from tests.partitions.conftest import make_table
from tests.partitions.test_samplers import SPECS, draw

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "uniform": {"tasks_per_client": (1, 0), "overlap": (1.0, 0.9)},
    "preference": {"omega": (0.0, -0.1), "tasks_per_client": (1, 0)},
    "preference_dirichlet": {"omega": (0.1, 0.0), "tasks_per_client": (1, 0)},
    "coverage": {
        "xi": (0.1, 0.0),
        "mean_tasks": (0.5, 0.0),
        "min_tasks": (0, -1),
        "max_tasks": (1, 0),
        "overlap": (0.1, 0.0),
    },
    "preference_coverage": {
        "omega": (0.0, -0.1),
        "xi": (0.1, 0.0),
        "mean_tasks": (0.5, 0.0),
        "min_tasks": (0, -1),
        "max_tasks": (1, 0),
    },
    "hardness": {
        "xi": (0.1, 0.0),
        "tasks_per_client": (1, 0),
        "min_solved": (0, -1),
        "mean_solved": (0.0, -0.1),
        "max_solved": (0, -1),
        "overlap": (0.1, 0.0),
    },
    "dirichlet": {"beta": (0.1, 0.0), "tasks_per_client": (1, 0), "min_tasks": (0, -1)},
    "by_source": {"tasks_per_client": (1, 0)},
    "pathological": {"categories_per_client": (1, 0)},
    "shards": {"shards_per_client": (1, 0), "shard_size": (1, 0)},
    "natural": {"group_size": (1, 0), "min_tasks": (1, 0)},
}
"""Of each number that a sampler takes: one at the edge of its range, and one beyond."""


@pytest.mark.parametrize(("name", "option"), [(name, option) for name, options in RANGES.items() for option in options])
def test_numbers_outside_of_their_range_are_refused(name: str, option: str) -> None:
    inside, outside = RANGES[name][option]
    assert getattr(make_sampler(name, {**SPECS[name], option: inside}), option) == inside
    with pytest.raises(OptionError, match=option):
        make_sampler(name, {**SPECS[name], option: outside})


def test_a_share_of_the_greatest_variance_is_below_one() -> None:
    with pytest.raises(OptionError, match="omega"):
        make_sampler("preference_dirichlet", {"omega": 1.0, "tasks_per_client": 3})


def test_bounds_of_coverage_and_hardness_that_were_not_given() -> None:
    coverage = Coverage(xi=1.0, mean_tasks=24.0)
    assert coverage.compute_bounds(1000, 10) == Bounds(240, 4, 24.0, 72)
    assert coverage.compute_bounds(60, 10) == Bounds(240, 4, 24.0, 60)
    assert Coverage(xi=1.0, mean_tasks=2.5).compute_bounds(1000, 10) == Bounds(25, 1, 2.5, 8)
    assert Coverage(xi=1.0, overlap=2.5).compute_bounds(100, 10) == Bounds(250, 5, 25.0, 75)
    hardness = Hardness(xi=1.0, tasks_per_client=30)
    assert hardness.compute_bounds(400, 10) == Bounds(150, 0, 15.0, 30)
    assert hardness.compute_bounds(30, 10) == Bounds(150, 0, 15.0, 30)
    given_bounds = Hardness(xi=1.0, tasks_per_client=30, min_solved=2, mean_solved=5.0, max_solved=9, overlap=1.5)
    assert given_bounds.compute_bounds(40, 10) == Bounds(60, 2, 5.0, 9)


def test_bounds_may_touch_the_mean_and_the_pool() -> None:
    assert validate_bounds(Bounds(30, 3, 3.0, 5), 5, 10, "tasks") == Bounds(30, 3, 3.0, 5)
    assert validate_bounds(Bounds(50, 3, 5.0, 5), 5, 10, "tasks") == Bounds(50, 3, 5.0, 5)
    for wrong in (Bounds(30, 4, 3.0, 5), Bounds(30, 1, 3.0, 2), Bounds(30, 3, 3.0, 6), Bounds(29, 3, 3.0, 5)):
        with pytest.raises(OptionError):
            validate_bounds(wrong, 5, 10, "tasks")


def test_coverage_does_not_warn_of_the_mean_that_it_gives(caplog: pytest.LogCaptureFixture) -> None:
    draw("coverage", make_table(100), 10, xi=1.0, overlap=2.0, mean_tasks=20, min_tasks=5, max_tasks=60)
    draw("coverage", make_table(100), 10, xi=1.0, mean_tasks=20)
    assert not caplog.records


@pytest.mark.parametrize(
    ("clients", "tasks", "overlap", "used"), [(10, 20, 2.0, 100), (7, 9, 2.5, 26), (3, 20, 3.0, 20)]
)
def test_an_overlap_uses_as_few_tasks_as_it_needs(clients: int, tasks: int, overlap: float, used: int) -> None:
    drawn = draw("uniform", make_table(300), clients, tasks_per_client=tasks, overlap=overlap)
    assert int((drawn.count_copies(300) > 0).sum()) == used


def test_advice_names_parameters_that_the_sampler_has() -> None:
    for name, parameters, said in (
        (
            "dirichlet",
            {"beta": 0.3, "min_tasks": 100},
            "need 1,000 tasks, the pool has 600: lower min_tasks to at most 60 or",
        ),
        (
            "dirichlet",
            {"beta": 0.3, "equal_size": True, "tasks_per_client": 61},
            "lower tasks_per_client to at most 60 or",
        ),
        ("uniform", {"tasks_per_client": 700, "overlap": 2.0}, "lower tasks_per_client to at most 600"),
    ):
        with pytest.raises(OptionError, match=said) as caught:
            draw(name, make_table(600), 10, **parameters)
        assert "raise overlap" not in str(caught.value)
    with pytest.raises(OptionError, match="sources must name at least one category, or be left out"):
        federate("Guess", partition="by_source", sources={})
    with pytest.raises(OptionError, match="sources gives 0 clients to 'small': at least 1 is needed, or leave it out"):
        federate("Guess", partition="by_source", sources={"small": 0})


def test_an_overlap_is_at_most_the_number_of_clients() -> None:
    for clients, parameters in (
        (10, {"tasks_per_client": 60, "overlap": 100.0}),
        (10, {"overlap": 10.1}),
        (1, {"overlap": 2}),
    ):
        with pytest.raises(OptionError, match=f"overlap must be at most {clients}, the number of clients"):
            draw("uniform", make_table(600), clients, **parameters)
    assert draw("uniform", make_table(60), 3, overlap=3).sizes.tolist() == [60] * 3


@pytest.mark.parametrize(("name", "more"), [("coverage", {}), ("preference_coverage", {"omega": 0.9})])
def test_small_means_leave_no_client_without_tasks(name: str, more: dict[str, float]) -> None:
    drawn = draw(name, make_table(600), 50, mean_tasks=4, xi=0.01, **more)
    assert drawn.sizes.min() == 1 and drawn.sizes.sum() == 200
    assert draw(name, make_table(600), 50, mean_tasks=4, xi=0.01, min_tasks=0, **more).sizes.min() == 0


def test_a_client_without_tasks_is_named() -> None:
    made = federate("Guess", partition="coverage", clients=50, mean_tasks=4, xi=0.01, min_tasks=0)
    empty = next(client for client in made if not client.tasks)
    with pytest.raises(DataError, match=f"client {empty.index} of the split has no tasks to play"):
        empty.make()
    assert len(empty.make(split="val").unwrapped.pool) == 60


def test_disjoint_is_an_overlap_of_one() -> None:
    table = make_table(100)
    assert draw("uniform", table, 4, tasks_per_client=25, disjoint=True, overlap=1.0).count_copies(100).max() == 1
    with pytest.raises(OptionError, match="disjoint=True means overlap 1, but overlap=2 is asked for"):
        draw("uniform", table, 4, tasks_per_client=5, disjoint=True, overlap=2.0)
    assert draw("uniform", table, 4, overlap=2.0).sizes.tolist() == [50] * 4
    with pytest.raises(OptionError, match="100 tasks are too few for 101 clients: use fewer clients"):
        draw("uniform", table, 101, disjoint=True)
    assert draw("uniform", table, 100, disjoint=True).sizes.tolist() == [1] * 100
    with pytest.raises(OptionError, match="101 tasks per client are asked for, the pool has 100"):
        draw("uniform", table, 1, tasks_per_client=101)


@given(clients=st.integers(2, 12), minimum=st.integers(0, 8), seed=st.integers(0, 99))
def test_clients_below_the_minimum_take_the_fewest_tasks_from_the_largest(
    clients: int, minimum: int, seed: int
) -> None:
    table = make_table(100, {"a": 0.5, "b": 0.3, "c": 0.2}, seed=seed)
    free = draw("dirichlet", table, clients, seed, beta=0.2, min_tasks=0).sizes
    kept = draw("dirichlet", table, clients, seed, beta=0.2, min_tasks=minimum).sizes
    assert np.array_equal(kept[free < minimum], np.full(int((free < minimum).sum()), minimum))
    donors = np.flatnonzero(kept < free)
    assert np.all(kept[free == minimum] == minimum) and np.all(kept >= minimum) and int(kept.sum()) == 100
    untouched = (kept == free) & (free > minimum)
    if donors.size and untouched.any():
        assert free[untouched].max() <= kept[donors].min() + 1


def test_a_draw_that_wants_more_than_a_label_has_is_repeated_for_those_that_lost() -> None:
    """Ten clients that all want the same label fill their places from the others."""
    table = make_table(200, {"big": 0.9, "small": 0.1})
    drawn = draw("dirichlet", table, 10, beta=100.0, equal_size=True, tasks_per_client=20)
    assert drawn.sizes.tolist() == [20] * 10 and np.array_equal(np.sort(drawn.items), np.arange(200))
    assert draw("dirichlet", table, 10, beta=1.0, equal_size=True, tasks_per_client=1).sizes.tolist() == [1] * 10


@pytest.mark.parametrize("count", [0, -1])
def test_a_source_has_a_client(count: int) -> None:
    table = make_table(100, {"x": 0.5, "y": 0.5})
    with pytest.raises(OptionError, match=f"sources gives {count} clients to 'y': at least 1 is needed"):
        draw("by_source", table, 1, sources={"x": 1 - count, "y": count})


def test_a_split_has_a_million_clients_at_most() -> None:
    assert check_client_count(1_000_000) == 1_000_000
    with pytest.raises(OptionError, match="at most 1,000,000 clients, 1,000,001 are asked for"):
        check_client_count(1_000_001)
