from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.federation import aggregation
from fedagentgym.federation.aggregation import (
    Aggregation,
    Contribution,
    FedAdam,
    FedAvgM,
    Mean,
    Median,
    TrimmedMean,
    Weighted,
    weighted_mean,
)
from fedagentgym.federation.checks import UpdateChecks, scaled, update_norm

SHAPES = {"a": (3, 2), "b": (40_000,)}


def parameters(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: (scale * draw.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def contributions(count: int, seed: int = 0) -> list[Contribution]:
    return [Contribution(k, parameters(seed + 1 + k), examples=float(k + 1)) for k in range(count)]


CURRENT = parameters(0)
RULES: list[Any] = [Mean(), Weighted(), Median(), TrimmedMean(trim=0.2), FedAvgM(), FedAdam()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_order_of_replies_does_not_matter(rule: Any) -> None:
    given_ = contributions(5)
    first = rule.apply(CURRENT, given_, {})
    second = rule.apply(CURRENT, [given_[i] for i in (3, 1, 4, 0, 2)], {})
    for name, shape in SHAPES.items():
        assert first.parameters[name].tobytes() == second.parameters[name].tobytes()
        assert first.parameters[name].dtype == np.float32
        assert first.parameters[name].shape == shape
    with pytest.raises(DataError, match="no client answered"):
        rule.apply(CURRENT, [], {})


@pytest.mark.parametrize("rule", [Mean(), Weighted(), Median(), TrimmedMean()], ids=lambda rule: rule.name)
def test_one_client_or_equal_clients_come_through_bit_for_bit(rule: Any) -> None:
    only = contributions(1)
    three = [Contribution(k, only[0].parameters) for k in range(3)]
    for given_ in (only, three):
        for name, value in rule.apply(CURRENT, given_, {}).parameters.items():
            assert value.tobytes() == only[0].parameters[name].tobytes()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 12), st.integers(0, 1000))
def test_the_rules_are_their_textbook_formulas(count: int, seed: int) -> None:
    given_ = contributions(count, seed)
    for name in SHAPES:
        stack = np.stack([each.parameters[name].astype(np.float64) for each in given_])
        weights = np.arange(1, count + 1)
        assert np.allclose(Mean().apply(CURRENT, given_, {}).parameters[name], stack.mean(0), atol=1e-7)
        average = np.average(stack, axis=0, weights=weights)
        assert np.allclose(Weighted().apply(CURRENT, given_, {}).parameters[name], average, atol=1e-6)
        assert np.allclose(Median().apply(CURRENT, given_, {}).parameters[name], np.median(stack, 0), atol=1e-7)
        cut = int(0.2 * count)
        inner = np.sort(stack, axis=0)[cut : count - cut].mean(0)
        assert np.allclose(TrimmedMean(trim=0.2).apply(CURRENT, given_, {}).parameters[name], inner, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 70), st.booleans(), st.integers(0, 1000))
def test_however_a_mean_is_cut_it_is_the_sum_in_client_order(
    count: int, size: int, block: int, weighted: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    given_ = [Contribution(k, {"a": draw.normal(size=size).astype(np.float32)}) for k in range(count)]
    weights = draw.uniform(0.1, 2.0, count) if weighted else np.ones(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "LONGEST_BLOCK", block)
        found = weighted_mean(given_[0].parameters, given_, [float(w) for w in weights], narrow=False)["a"]
    expected, total = np.zeros(size), 0.0
    for each, weight in zip(given_, weights, strict=True):
        expected, total = expected + weight * each.parameters["a"].astype(np.float64), total + weight
    assert np.allclose(found, expected / total, rtol=1e-14, atol=1e-15)
    if block > 1 and size % block != 1:  # numpy adds a single column in pairs
        assert found.tobytes() == (expected / total).tobytes()


def test_one_client_keeps_even_the_sign_of_its_zeros() -> None:
    zeros = {name: np.full(shape, -0.0, np.float32) for name, shape in SHAPES.items()}
    for name, value in Mean().apply(CURRENT, [Contribution(0, zeros)], {}).parameters.items():
        assert value.tobytes() == zeros[name].tobytes()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 30_000), st.integers(0, 1000))
def test_a_norm_is_the_norm(size: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    start, end = ({"a": draw.normal(size=size).astype(np.float32)} for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedagentgym.federation.checks.LONGEST_BLOCK", 20_000)
        patch.setattr(aggregation, "LONGEST_BLOCK", 20_000)
        assert np.isclose(
            update_norm(start, end), np.linalg.norm((end["a"] - start["a"]).astype(np.float64)), rtol=1e-5
        )


def test_server_optimizers_against_a_loop_by_hand() -> None:
    momentum, adam = (
        FedAvgM(learning_rate=0.5, momentum=0.8),
        FedAdam(learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-3),
    )
    x = {"a": np.zeros(2, np.float32)}
    targets = [np.array([1.0, -2.0]), np.array([0.5, 0.5]), np.array([3.0, 0.0])]
    state, moments = {}, {}
    y, z = x, x
    v = m = s = np.zeros(2)
    w, u = np.zeros(2), np.zeros(2)
    for target in targets:
        given_ = [Contribution(0, {"a": target.astype(np.float32)})]
        y, state = momentum.apply(y, given_, state)
        z, moments = adam.apply(z, given_, moments)
        v = 0.8 * v + (target - w)
        w = (w + 0.5 * v).astype(np.float32).astype(np.float64)
        step = target - u
        m, s = 0.9 * m + 0.1 * step, 0.99 * s + 0.01 * step**2
        u = (u + 0.1 * m / (np.sqrt(s) + 1e-3)).astype(np.float32).astype(np.float64)
        assert np.allclose(y["a"], w, atol=1e-7)
        assert np.allclose(z["a"], u, atol=1e-7)


def test_a_rule_is_a_setting_and_a_name_is_enough() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Aggregation)
    assert adapter.validate_python("median") == Median()
    assert adapter.validate_python({"name": "trimmed_mean", "trim": 0.25}) == TrimmedMean(trim=0.25)

    class Holder(Settings):
        aggregation: Aggregation = Mean()

    with pytest.raises(OptionError, match="aggregation"):
        Holder.load({"aggregation": "meen"})
    with pytest.raises(OptionError, match="trim"):
        Holder.load({"aggregation": {"name": "trimmed_mean", "trim": 0.5}})


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(DataError, match="all zero"):
        Weighted().apply(CURRENT, [Contribution(0, CURRENT, 0.0)], {})


def moved(distance: float, seed: int = 9) -> dict[str, np.ndarray]:
    step = parameters(seed)
    return scaled(
        CURRENT,
        {k: CURRENT[k] + step[k] for k in step},
        distance / update_norm({k: 0 * v for k, v in step.items()}, step),
    )


def test_norms_bounds_and_clipping() -> None:
    given_ = [Contribution(k, moved(1.0 + 0.1 * k)) for k in range(4)] + [Contribution(9, moved(100.0))]
    good, refused, norms = UpdateChecks(max_ratio=10.0).apply(CURRENT, given_)
    assert [each.client for each in good] == [0, 1, 2, 3]
    assert refused[0].client == 9
    assert refused[0].reason == "refused"
    assert norms[9] == pytest.approx(100.0, rel=1e-4)
    good, refused, _ = UpdateChecks(max_ratio=None, max_norm=1.15).apply(CURRENT, given_)
    assert [each.client for each in good] == [0, 1]
    good, refused, _ = UpdateChecks(max_ratio=None, clip_norm=0.5).apply(CURRENT, given_)
    assert not refused
    assert [update_norm(CURRENT, each.parameters) for each in good] == pytest.approx([0.5] * 5, rel=1e-3)


def test_clients_that_did_not_move_do_not_make_the_others_suspicious() -> None:
    still = [Contribution(k, CURRENT) for k in range(5)]
    good, refused, norms = UpdateChecks().apply(CURRENT, [*still, Contribution(7, moved(3.0))])
    assert len(good) == 6
    assert not refused
    assert norms[0] == 0.0
    good, refused, _ = UpdateChecks().apply(CURRENT, [Contribution(0, moved(1.0)), Contribution(1, moved(100.0))])
    assert [each.client for each in good] == [0]


def test_an_update_that_overflows_is_refused() -> None:
    wild = {name: np.full(shape, 3e38, np.float32) for name, shape in SHAPES.items()}
    _, refused, _ = UpdateChecks(max_ratio=None).apply(CURRENT, [Contribution(0, wild)])
    assert len(refused) == 1
