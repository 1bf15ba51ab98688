"""FedMOA's arithmetic: the projection against a solver, the weights of clients and of objectives."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedagentgym.algorithms.fedmoa import (
    FedMOASettings,
    HypergradientTracker,
    average_shared_weights,
    check_objectives,
    normalize_weights,
    project_to_simplex,
    reduce_gradients,
    softmax,
)
from fedagentgym.base.errors import OptionError
from fedagentgym.learning.state import StepReport

points = hnp.arrays(np.float64, st.integers(1, 6), elements=st.floats(-3, 3))


@given(points)
def test_the_projection_is_that_of_a_quadratic_program(point: np.ndarray) -> None:
    found = project_to_simplex(point)
    solved = scipy.optimize.minimize(
        lambda x: float(((x - point) ** 2).sum()),
        np.full(len(point), 1 / len(point)),
        jac=lambda x: 2 * (x - point),
        bounds=[(0, None)] * len(point),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.allclose(found, solved.x, atol=1e-5)


@given(points)
def test_the_projection_is_on_the_simplex_and_leaves_it_alone(point: np.ndarray) -> None:
    found = project_to_simplex(point)
    assert (found >= 0).all() and abs(found.sum() - 1) < 1e-9
    assert np.allclose(project_to_simplex(found), found, atol=1e-12)


def test_softmax_is_stable() -> None:
    assert np.allclose(softmax(np.array([1e6, 0.0])), [1.0, 0.0])
    assert np.allclose(softmax(np.array([3.0, 3.0, 3.0])), 1 / 3)


def test_weights_follow_the_agreement_of_gradients() -> None:
    follow = HypergradientTracker({"accuracy/math": 0.5, "format": 0.5}, 0.1, "raw")
    first = {"accuracy/math": np.array([1.0, 0.0]), "format": np.array([0.0, 1.0])}
    assert follow.update_weights(first) == {"accuracy/math": 0.5, "format": 0.5}, "the first step has no predecessor"
    second = {"accuracy/math": np.array([2.0, 0.0]), "format": np.array([0.0, -1.0])}
    moved = np.array([0.5 + 0.1 * 2.0, 0.5 + 0.1 * -1.0])
    assert np.allclose(list(follow.update_weights(second).values()), project_to_simplex(moved))
    assert follow.compute_metrics() == {"delta/accuracy/math": 2.0, "delta/format": -1.0}


def test_cosine_is_free_of_scale() -> None:
    moved = []
    for scale in (1.0, 1e-6):
        follow = HypergradientTracker({"a": 0.5, "b": 0.5}, 0.1, "cosine")
        follow.update_weights({"a": scale * np.array([1.0, 1.0]), "b": np.zeros(2)})
        moved.append(follow.update_weights({"a": scale * np.array([1.0, 0.0]), "b": np.zeros(2)}))
    assert moved[0] == pytest.approx(moved[1]) and moved[0]["a"] > 0.5


@pytest.mark.parametrize(("kind", "factor"), [("raw", 1), ("cosine", 1), ("answer", 30), ("sum", 120)])
def test_gradients_of_sums_are_those_of_the_mean_times_tokens(kind: str, factor: int) -> None:
    step = StepReport({"tokens": 30.0, "episodes": 4.0}, (), {"a": np.array([1.0, -2.0])})
    assert reduce_gradients(step, kind)["a"].tolist() == [factor, -2 * factor]


def test_a_pass_is_as_many_steps_as_a_client_has_tasks() -> None:
    """One pass over MATH, GSM8K and MBPP, each divided among five clients, and never more than `local_steps`."""
    passes = FedMOASettings(local_steps=348, local_passes=1)
    assert [passes.count_steps(tasks, 8) for tasks in (2783, 1455, 75, 1, 9999)] == [348, 182, 9, 1, 348]
    assert FedMOASettings(local_steps=5).count_steps(1, 8) == 5


def test_only_what_all_members_have_is_shared() -> None:
    objectives = {1: {"accuracy/math": 0.6, "format": 0.4}, 4: {"accuracy/math": 0.2, "tags": 0.8}}
    assert average_shared_weights(objectives, {1: 0.25, 4: 0.75}) == pytest.approx({"accuracy/math": 0.3})


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 5), min_size=1, max_size=5))
def test_normalize_weights_weights_sum_to_one(weights: dict[str, float]) -> None:
    assert sum(normalize_weights(weights).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "names", [(), ("format",), ("accuracy/a", "accuracy/b"), ("accuracy", "accuracy/a"), ("accuracy/a", "x", "x")]
)
def test_a_client_has_exactly_one_accuracy(names: tuple[str, ...]) -> None:
    with pytest.raises(OptionError):
        check_objectives(names, "the objectives of client 3")
