"""Learners that share one model compute what each computes on a model of its own, in any order of calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.protocols import Decoding
from fedagentgym.learning.learner import PolicyUpdate
from fedagentgym.learning.settings import LearningSettings, SupervisedSettings
from fedagentgym.learning.state import SiteState
from fedagentgym.learning.supervised import Example, SupervisedTraining
from fedagentgym.learning.trajectory import Row, build_rows
from fedagentgym.learning.weights import OwnedWeights, get_moments, load_moments, make_optimizer

from .conftest import ToyPolicy, random_trajectory

LEARNERS = 3
SETTINGS = LearningSettings(learning_rate=1e-2, minibatches=2, kl={"coefficient": 0.1, "reference": "round"})  # type: ignore[arg-type]


@cache
def make_rows(seed: int) -> tuple[Row, ...]:
    random = np.random.default_rng(seed)
    group = tuple(random_trajectory(random, sample=sample) for sample in range(3))
    advantages = [np.full(len(one.turns), float(sample - 1)) for sample, one in enumerate(group)]
    return tuple(build_rows([group], [advantages]))


@cache
def get_start(number: int) -> SiteState:
    return SiteState(ToyPolicy(number, layers=1).get_weights())


class Learners:
    """Learners by number: on one policy, or each on its own."""

    def __init__(self, shared: bool) -> None:
        policies = [ToyPolicy(layers=1)] * LEARNERS if shared else [ToyPolicy(layers=1) for _ in range(LEARNERS)]
        self.policies = policies
        self.updates = [PolicyUpdate(policy, Decoding(), SETTINGS) for policy in policies]
        for number, update in enumerate(self.updates):
            update.load(get_start(number).weights, {}, {})

    def do(self, call: str, number: int, seed: int) -> Any:
        update, rows = self.updates[number], make_rows(seed)
        if call == "step":
            return update.train_step(rows, order=seed)
        if call == "score":
            return [row.numpy() for row in update.score_rows(rows)]
        if call == "gradient":
            return update.compute_bias_gradient(rows)
        if call == "load":
            return update.load(get_start(seed).weights, update.get_optimizer_state(), update.get_anchor_weights())
        if call == "overwrite":
            return self.policies[number].set_weights(get_start(seed).weights)
        return [update.get_weights(), update.get_optimizer_state(), update.get_anchor_weights()]


CALLS = st.tuples(
    st.sampled_from(("step", "step", "read", "score", "gradient", "load", "overwrite")),
    st.integers(0, LEARNERS - 1),
    st.integers(0, 3),
)


@given(st.lists(CALLS, min_size=2, max_size=10))
def test_any_order_of_calls_gives_each_learner_its_own_bits(calls: list[tuple[str, int, int]]) -> None:
    shared, alone = Learners(True), Learners(False)
    for call in [*calls, *(("read", number, 0) for number in range(LEARNERS))]:
        np.testing.assert_equal(shared.do(*call), alone.do(*call))


def test_imitation_keeps_its_weights_beside_a_policy_step() -> None:
    data = [Example(np.arange(6), np.ones(6, dtype=np.float32))]
    chosen = SupervisedSettings(steps=2, learning_rate=1e-2)

    def imitate(between: Callable[[ToyPolicy], object]) -> dict[str, Any]:
        policy = ToyPolicy()
        training = SupervisedTraining(policy, chosen)
        training.train_step(data)
        between(policy)
        training.train_step(data)
        return training.get_weights()

    expected = imitate(lambda policy: None)
    found = imitate(lambda policy: PolicyUpdate(policy, Decoding(), SETTINGS).train_step(make_rows(0)))
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_copied_only_when_another_learner_needs_the_model(dtype: torch.dtype) -> None:
    policy = ToyPolicy(layers=1)
    policy.model.to(dtype)
    first = OwnedWeights(policy)
    version = policy.version
    first.acquire()
    assert policy.version == version and first._saved is None
    before = first.to_arrays()
    second = OwnedWeights(policy)
    policy.set_weights({name: value * 0 for name, value in before.items()})
    del second
    np.testing.assert_equal(first.to_arrays(), before)
    first.acquire()
    assert policy.version > version
    np.testing.assert_equal(policy.get_weights(), before)


def test_adamw_is_torchs_to_the_bit() -> None:
    """Also for parameters that have no gradient in some steps, and after moments were loaded."""
    torch.manual_seed(0)
    shapes = [(7, 5), (64, 64), (64,), (3,)]
    own, other = ([torch.nn.Parameter(torch.randn(shape).clone()) for shape in shapes] for _ in range(2))
    for one, two in zip(own, other, strict=True):
        two.data.copy_(one.data)
    names = [str(number) for number in range(len(shapes))]
    chosen = LearningSettings(learning_rate=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    mine = make_optimizer(dict(zip(names, own, strict=True)), chosen)
    theirs = torch.optim.AdamW(other, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(6):
        for number, (one, two) in enumerate(zip(own, other, strict=True)):
            gradient = torch.randn(one.shape)
            one.grad, two.grad = (None, None) if number == step % 2 else (gradient, gradient.clone())
        mine.step()
        theirs.step()
        mine.zero_grad()
        if step == 3:
            kept = get_moments(mine, dict(zip(names, own, strict=True)))
            mine = make_optimizer(dict(zip(names, own, strict=True)), chosen)
            load_moments(mine, dict(zip(names, own, strict=True)), kept)
        assert all(torch.equal(one, two) for one, two in zip(own, other, strict=True)), step


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_an_optimizers_default_rate_is_the_settings(optimizer: str) -> None:
    """Schedules multiply it, and torch's own optimizers have a default of theirs."""
    parameters = {"a": torch.zeros(3, requires_grad=True)}
    made = make_optimizer(parameters, LearningSettings(optimizer=optimizer, learning_rate=0.0123))
    assert made.defaults["lr"] == made.param_groups[0]["lr"] == 0.0123
