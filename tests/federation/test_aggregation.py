from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedagentgym.algorithms.reports import is_idle
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.federation import aggregation, message
from fedagentgym.federation.aggregation import (
    AGGREGATION_RULES,
    Aggregation,
    AggregationRule,
    FedAdam,
    Mean,
    Median,
    RunningMean,
    TrimmedMean,
    UpdateStore,
    WeightedMean,
    aggregate,
    compute_weights,
    step_server,
)
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.checks import UpdateChecks, scale_update
from fedagentgym.federation.message import Message, is_finite, update_norm

SHAPES = {"a": (3, 2), "b": (40_000,)}


def parameters(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: (scale * draw.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def updates(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    return [parameters(seed + 1 + k) for k in range(count)]


def apply(rule: AggregationRule, state: ServerState, given_: list[dict[str, np.ndarray]]) -> ServerState:
    """The rule over these updates, of clients with 1, 2, 3, ... examples."""
    weights = rule.weigh([float(k + 1) for k in range(len(given_))])
    return aggregate(rule, state, zip(given_, weights, strict=True))


CURRENT = parameters(0)
START = ServerState(CURRENT)
RULES: list[AggregationRule] = [Mean(), WeightedMean(), Median(), TrimmedMean(trim=0.2), FedAdam()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_keeps_dtypes_and_shapes_and_needs_an_update(rule: AggregationRule) -> None:
    after = apply(rule, START, updates(5))
    for name, shape in SHAPES.items():
        assert after.parameters[name].dtype == np.float32
        assert after.parameters[name].shape == shape
    with pytest.raises(DataError, match="no update was added"):
        rule.begin(START).finish()


@pytest.mark.parametrize("rule", [Mean(), WeightedMean(), Median(), TrimmedMean()], ids=lambda rule: rule.name)
def test_one_client_or_equal_clients_come_through_bit_for_bit(rule: AggregationRule) -> None:
    only = updates(1)
    for given_ in (only, only * 3):
        after = aggregate(rule, START, [(update, 1.0) for update in given_])
        for name, value in after.parameters.items():
            assert value.tobytes() == only[0][name].tobytes()


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(0, 1000))
def test_the_rules_are_their_textbook_formulas(count: int, seed: int) -> None:
    given_ = updates(count, seed)
    for name in SHAPES:
        stack = np.stack([update[name].astype(np.float64) for update in given_])
        weights = np.arange(1, count + 1)
        assert np.allclose(apply(Mean(), START, given_).parameters[name], stack.mean(0), atol=1e-7)
        average = np.average(stack, axis=0, weights=weights)
        assert np.allclose(apply(WeightedMean(), START, given_).parameters[name], average, atol=1e-6)
        assert np.allclose(apply(Median(), START, given_).parameters[name], np.median(stack, 0), atol=1e-7)
        cut = int(0.2 * count)
        inner = np.sort(stack, axis=0)[cut : count - cut].mean(0)
        assert np.allclose(apply(TrimmedMean(trim=0.2), START, given_).parameters[name], inner, atol=1e-6)


@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 70), st.booleans(), st.integers(0, 1000))
def test_however_a_mean_is_cut_it_is_the_sum_in_the_order_of_adding(
    count: int, size: int, block: int, weighted: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    given_ = [{"a": draw.normal(size=size).astype(np.float32)} for _ in range(count)]
    weights = draw.uniform(0.1, 2.0, count) if weighted else np.ones(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "MAX_BLOCK", block)
        mean = RunningMean(given_[0])
        for update, weight in zip(given_, weights, strict=True):
            mean.add(update, float(weight))
        found = mean.compute(narrow=False)["a"]
    expected, total = np.zeros(size), 0.0
    for update, weight in zip(given_, weights, strict=True):
        expected, total = expected + weight * update["a"].astype(np.float64), total + weight
    assert np.allclose(found, expected / total, rtol=1e-14, atol=1e-15)
    if block > 1 and size % block != 1:  # numpy adds a single column in pairs
        assert found.tobytes() == (expected / total).tobytes()


def test_one_client_keeps_even_the_sign_of_its_zeros() -> None:
    zeros = {name: np.full(shape, -0.0, np.float32) for name, shape in SHAPES.items()}
    for name, value in apply(Mean(), START, [zeros]).parameters.items():
        assert value.tobytes() == zeros[name].tobytes()


def test_a_running_mean_holds_a_constant_number_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory of many updates that are made as they are asked for, in units of one model."""
    monkeypatch.setattr(message, "MAX_BLOCK", 4_000)
    size = 200_000
    model = 4 * size
    current = {"a": np.zeros(size, np.float32)}

    def peak(count: int) -> int:
        made = ({"a": np.full(size, k, np.float32)} for k in range(count))
        tracemalloc.start()
        aggregate(Mean(), ServerState(current), ((update, 1.0) for update in made))
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    assert peak(60) < 18 * model
    assert peak(240) < peak(60) + model


@pytest.mark.parametrize("held", [1, 2.5, 100])
def test_models_beyond_the_held_bytes_are_summed_one_by_one_to_the_same_bits(
    held: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_, weights = updates(7), [1.0, 2.5, 0.1, 3.0, 1.0, 0.7, 2.0]
    pairs = list(zip(given_, weights, strict=True))
    plain = aggregate(Mean(), START, pairs)
    size = sum(array.nbytes for array in given_[0].values())
    monkeypatch.setattr(aggregation, "HELD_BYTES", held * size)
    mean = RunningMean(CURRENT)
    for update, weight in pairs:
        mean.add(update, weight)
        assert len(mean._pending) <= max(1, held)
    for name, value in mean.compute().items():
        assert value.tobytes() == plain.parameters[name].tobytes()


@pytest.mark.parametrize("held", [0, 3, 100])
def test_an_update_store_gives_back_what_was_put_in(held: int) -> None:
    given_ = updates(8)
    with UpdateStore(held) as store:
        for client, update in enumerate(given_):
            store.put(client, update)
        chosen = [0, 2, 3, 7]
        for client, found in zip(chosen, store.take(chosen), strict=True):
            assert list(found) == list(SHAPES)
            for name, value in found.items():
                assert value.dtype == np.float32
                assert value.tobytes() == given_[client][name].tobytes()
                assert value.shape == SHAPES[name]


def test_an_update_store_keeps_unusual_arrays() -> None:
    odd = {
        "scalar": np.array(1.5),
        "empty": np.zeros((0, 3), np.float32),
        "view": np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
        "half": np.ones(3, np.float16),
    }
    with UpdateStore(0) as store:
        store.put(4, odd)
        (found,) = store.take([4])
    for name, value in odd.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value)
        assert found[name].shape == value.shape


@settings(max_examples=20)
@given(st.integers(1, 30_000), st.integers(0, 1000))
def test_a_norm_is_the_norm(size: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    start, end = ({"a": draw.normal(size=size).astype(np.float32)} for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "MAX_BLOCK", 20_000)
        assert np.isclose(
            update_norm(start, end), np.linalg.norm((end["a"] - start["a"]).astype(np.float64)), rtol=1e-5
        )


def test_server_optimizers_against_a_loop_by_hand() -> None:
    adam = FedAdam(learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-3)
    targets = [np.array([1.0, -2.0]), np.array([0.5, 0.5]), np.array([3.0, 0.0])]
    y = z = ServerState({"a": np.zeros(2, np.float32)}, memory={"kept": 1})
    v = m = s = np.zeros(2)
    w, u = np.zeros(2), np.zeros(2)
    for target in targets:
        update = {"a": target.astype(np.float32)}
        y, z = step_server(y, replace(y, parameters=update), 0.5, 0.8), apply(adam, z, [update])
        v = 0.8 * v + (target - w)
        w = (w + 0.5 * v).astype(np.float32).astype(np.float64)
        step = target - u
        m, s = 0.9 * m + 0.1 * step, 0.99 * s + 0.01 * step**2
        u = (u + 0.1 * m / (np.sqrt(s) + 1e-3)).astype(np.float32).astype(np.float64)
        assert np.allclose(y.parameters["a"], w, atol=1e-7)
        assert np.allclose(z.parameters["a"], u, atol=1e-7)
        assert y.memory == z.memory == {"kept": 1}
    stored = ServerState.from_message(Message.decode(z.message.encoded))
    assert stored.digest == z.digest
    assert set(stored.optimizer) == {"first/a", "second/a"}


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


@pytest.mark.parametrize(
    ("rule", "option", "wrong"),
    [
        (rule, option, wrong)
        for rule, options in {
            "trimmed_mean": {"trim": (-0.1, 0.5)},
            "fedadam": {"learning_rate": (0.0,), "beta1": (-0.1, 1.0), "beta2": (-0.1, 1.0), "epsilon": (0.0,)},
        }.items()
        for option, values in options.items()
        for wrong in values
    ],
)
def test_an_option_outside_of_its_range_is_refused(rule: str, option: str, wrong: float) -> None:
    chosen: type[AggregationRule] = AGGREGATION_RULES.get(rule)
    with pytest.raises(OptionError, match=option):
        chosen.load({"name": rule, option: wrong})


@pytest.mark.parametrize(
    ("examples", "weights"),
    [([3.0, 3.0], [1.0, 1.0]), ([0.5, 0.5], [1.0, 1.0]), ([1.0, 2.0], [1.0, 2.0]), ([0.0, 0.0], [0.0, 0.0])],
)
def test_equal_numbers_of_examples_weigh_one(examples: list[float], weights: list[float]) -> None:
    assert WeightedMean().weigh(examples) == weights
    assert Mean().weigh(examples) == [1.0, 1.0]


def test_a_server_optimizer_steps_by_the_mean_before_it_is_rounded() -> None:
    """Half a unit in the last place, as a mean of two clients, is no step in float32."""
    one, two = np.float32([1.0]), np.nextafter(np.float32([1.0]), np.float32(2.0))
    after = aggregate(FedAdam(beta1=0.5), ServerState({"a": one}), [({"a": one}, 1.0), ({"a": two}, 1.0)])
    assert after.optimizer["first/a"] == 0.5 * 2.0**-24


def test_the_servers_moves_add_up_with_momentum_one() -> None:
    """Each round every client goes one unit further than it was sent: the n-th move of the server is n units."""
    state = ServerState({"a": np.zeros(1, np.float32)}, memory={"kept": 1})
    for number in range(1, 5):
        update = ServerState({"a": state.parameters["a"].astype(np.float64) + 1.0}, memory=state.memory)
        after = step_server(state, replace(update, optimizer=state.optimizer), step=0.5, momentum=1.0)
        assert float((after.parameters["a"] - state.parameters["a"])[0]) == 0.5 * number
        assert after.parameters["a"].dtype == np.float32 and after.memory == {"kept": 1}
        state = after
    plain = step_server(state, update, step=2.0, momentum=0.0)
    assert "velocity/a" not in plain.optimizer
    assert plain.parameters["a"] == state.parameters["a"] + 2.0 * (update.parameters["a"] - state.parameters["a"])


@pytest.mark.parametrize("found", [[1.0, float("nan")], [1.0, -1.0], [1.0, "a"], [1.0], None, [1.0, float("inf")]])
def test_a_rule_weighs_by_numbers(found: Any) -> None:
    class Odd(Mean):
        def weigh(self, examples: Sequence[float]) -> list[float]:
            return cast("list[float]", found)

    with pytest.raises(OptionError, match="in place of a number of at least 0 for each of 2 clients"):
        compute_weights(Odd(), [1.0, 2.0])


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(DataError, match="all zero"):
        aggregate(WeightedMean(), START, [(CURRENT, 0.0)])


def move(distance: float, seed: int = 9) -> dict[str, np.ndarray]:
    step = parameters(seed)
    return dict(
        scale_update(
            CURRENT,
            {k: CURRENT[k] + step[k] for k in step},
            distance / update_norm({k: 0 * v for k, v in step.items()}, step),
        )
    )


def norms_of(given_: dict[int, dict[str, np.ndarray]]) -> dict[int, float]:
    return {client: update_norm(CURRENT, update) for client, update in given_.items()}


def test_norms_bounds_and_clipping() -> None:
    given_ = {k: move(1.0 + 0.1 * k) for k in range(4)} | {9: move(100.0)}
    norms = norms_of(given_)
    assert norms[9] == pytest.approx(100.0, rel=1e-4)
    refused = UpdateChecks(max_ratio=10.0).find_refused(norms)
    assert [(failure.client, failure.reason) for failure in refused] == [(9, "refused")]
    refused = UpdateChecks(max_ratio=None, max_norm=1.15).find_refused(norms)
    assert [failure.client for failure in refused] == [2, 3, 9]
    checks = UpdateChecks(max_ratio=None, clip_norm=0.5)
    assert not checks.find_refused(norms)
    clipped = [checks.clip(CURRENT, update, norms[client]) for client, update in given_.items()]
    assert [update_norm(CURRENT, update) for update in clipped] == pytest.approx([0.5] * 5, rel=1e-3)
    assert UpdateChecks(clip_norm=200.0).clip(CURRENT, given_[9], norms[9]) is given_[9]


def test_clients_that_did_not_move_do_not_make_the_others_suspicious() -> None:
    norms = norms_of(dict.fromkeys(range(5), CURRENT) | {7: move(3.0)})
    assert not UpdateChecks().find_refused(norms)
    assert norms[0] == 0.0
    refused = UpdateChecks().find_refused(norms_of({0: move(1.0), 1: move(100.0)}))
    assert [failure.client for failure in refused] == [1]


def test_clients_without_a_signal_do_not_make_learners_suspicious() -> None:
    """The optimizer's decay moves a client that has nothing to learn from: a little, and not by exactly nothing."""
    norms = norms_of({client: move(1e-6) for client in range(5)} | {7: move(3.0), 8: move(100.0)})
    assert [failure.client for failure in UpdateChecks().find_refused(norms)] == [7, 8]
    assert [failure.client for failure in UpdateChecks().find_refused(norms, idle=range(5))] == [8]
    assert [failure.client for failure in UpdateChecks().find_refused(norms, idle={*range(5), 8})] == [8]
    assert [failure.client for failure in UpdateChecks().find_refused(norms, idle=range(9))] == [7, 8]
    assert [is_idle(metrics) for metrics in ({}, {"groups": 4.0, "groups/constant": 4.0}, {"groups": 4.0})] == [
        False, True, False,
    ]  # fmt: skip


def test_an_update_that_overflows_is_refused() -> None:
    wild = {name: np.full(shape, 3e38, np.float32) for name, shape in SHAPES.items()}
    assert len(UpdateChecks(max_ratio=None).find_refused(norms_of({0: wild}))) == 1


def test_an_array_whose_squares_overflow_is_finite() -> None:
    assert is_finite(np.full((2, 3), 3e38, np.float32)) and is_finite(np.array([2**62])) and is_finite(np.zeros(0))
    assert not any(is_finite(np.array([1.0, wrong, 3e38], np.float32)) for wrong in (np.nan, np.inf, -np.inf))


def test_a_client_of_weight_zero_counts_for_nothing() -> None:
    mean = RunningMean({"a": np.zeros(2, np.float32)})
    mean.add({"a": np.full(2, 9.0, np.float32)}, 0.0)
    mean.add({"a": np.ones(2, np.float32)}, 2.0)
    assert mean.compute()["a"].tolist() == [1.0, 1.0]


@given(trim=st.integers(0, 49), count=st.integers(1, 120))
@settings(max_examples=60, deadline=None)
def test_a_trimmed_mean_cuts_the_share_that_was_written(trim: int, count: int) -> None:
    """Hundredths of up to 120 clients: a product like 0.29 * 100 is below its whole number in binary."""
    values = [float(number**2) for number in range(count)]
    state = ServerState({"w": np.zeros(1, dtype=np.float64)})
    found = apply(TrimmedMean(trim=trim / 100), state, [{"w": np.array([value])} for value in values])
    cut = trim * count // 100
    assert found.parameters["w"][0] == pytest.approx(np.mean(values[cut : count - cut]))
