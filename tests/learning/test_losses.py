"""The loss against an independent numpy reference, TRL's and polgrad's: values and gradients."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from benchmarks.losses import (
    CLIPS,
    LENGTH,
    LOSSES,
    PENALTIES,
    Batch,
    compute_ours,
    compute_polgrad,
    compute_trl,
    draw_batch,
    make_settings,
    measure_difference,
)
from fedagentgym.base.errors import OptionError
from fedagentgym.learning.losses import Clip, PolicyLoss, PolicyTerms, Tokens
from fedagentgym.learning.passes import TokenLosses, token_losses, token_weights
from fedagentgym.learning.penalties import compute_k3
from fedagentgym.learning.settings import LearningSettings

widths = st.one_of(st.just(0.0), st.floats(1e-6, 0.9))
batches = st.builds(draw_batch, st.integers(0, 2**31), st.integers(2, 9), st.integers(1, LENGTH), empty=st.booleans())


def by_hand(data: Batch, chosen: LearningSettings) -> float:
    """The same loss with loops over rows and tokens, in plain floats."""
    low, high = chosen.clip
    per_row: list[list[float]] = []
    for row in range(len(data["mask"])):
        losses = []
        for token in np.flatnonzero(data["mask"][row]):
            logprob, old = data["logprobs"][row, token], data["behaviour"][row, token]
            ratio, advantage = np.exp(logprob - old), data["advantages"][row]
            value = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            gap = data["reference"][row, token] - logprob
            losses.append(value + chosen.kl.coefficient * (np.exp(gap) - gap - 1))
        per_row.append(losses)
    if chosen.loss.name == "token":
        return float(sum(map(sum, per_row)) / sum(map(len, per_row)))
    if chosen.loss.name == "sequence":
        return float(np.mean([sum(losses) / max(len(losses), 1) for losses in per_row]))
    return float(sum(map(sum, per_row)) / (len(per_row) * LENGTH))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kl", PENALTIES)
def test_loss_and_gradient_equal_trl_and_a_reference_by_hand(loss: str, clip: tuple[float, float], kl: float) -> None:
    pytest.importorskip("trl")
    for seed in range(5):
        data, chosen = draw_batch(seed), make_settings(loss, clip, kl)
        found = compute_ours(data, chosen)
        assert measure_difference(found, compute_trl(data, chosen)) < 1e-12
        assert found.loss == pytest.approx(by_hand(data, chosen), abs=1e-12)


@pytest.mark.skipif(find_spec("trl") is None, reason="needs trl")
@given(batches, st.sampled_from(LOSSES), st.tuples(widths, widths), st.floats(0.0, 2.0, allow_subnormal=False))
@tries(deadline=None)
def test_any_loss_and_its_gradient_equal_those_of_trl(
    data: Batch, loss: str, clip: tuple[float, float], kl: float
) -> None:
    chosen = make_settings(loss, clip, kl)
    assert measure_difference(compute_ours(data, chosen), compute_trl(data, chosen)) < 1e-12


@pytest.mark.skipif(find_spec("polgrad") is None, reason="needs polgrad")
@given(
    st.builds(draw_batch, st.integers(0, 2**31), st.integers(2, 9), st.integers(1, LENGTH), empty=st.just(False)),
    st.sampled_from(LOSSES),
    st.tuples(widths, widths),
    st.floats(0.0, 2.0, allow_subnormal=False),
    st.one_of(st.none(), st.floats(1.01, 20.0)),
)
@tries(deadline=None)
def test_any_loss_and_its_gradient_equal_those_of_polgrad(
    data: Batch, loss: str, clip: tuple[float, float], kl: float, dual: float | None
) -> None:
    """Also with a second bound for bad actions, which TRL has not."""
    chosen = make_settings(loss, clip, kl, dual_clip=dual)
    assert measure_difference(compute_ours(data, chosen), compute_polgrad(data, chosen)) < 1e-12


def compute(logprobs: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, *terms: Any) -> TokenLosses:
    """The losses of tokens of one row."""
    return token_losses(Tokens(logprobs, behaviour, advantages, (len(logprobs),)), *terms)


def test_gradient_equals_finite_differences() -> None:
    data, chosen = draw_batch(1), make_settings("sequence", (0.2, 0.3), 0.1)
    gradient = compute_ours(data, chosen).gradient
    row, token = map(int, np.argwhere(data["mask"])[4])
    shifted: dict[int, dict[str, Any]] = {sign: dict(data, logprobs=data["logprobs"].copy()) for sign in (1, -1)}
    for sign, moved in shifted.items():
        moved["logprobs"][row, token] += sign * 1e-6
    slope = (by_hand(shifted[1], chosen) - by_hand(shifted[-1], chosen)) / 2e-6
    assert gradient[row, token] == pytest.approx(slope, abs=1e-6)


def test_dual_clip_bounds_the_loss_of_bad_actions_that_became_likely() -> None:
    logprobs, behaviour = torch.tensor([0.0, 0.0]), torch.tensor([-3.0, -3.0])
    advantages = torch.tensor([-1.0, 1.0])
    bounded = compute(logprobs, behaviour, advantages, LearningSettings(dual_clip=3.0)).loss
    free = compute(logprobs, behaviour, advantages, LearningSettings()).loss
    assert bounded.tolist() == pytest.approx([3.0, -1.2])
    assert free.tolist() == pytest.approx([np.exp(3.0), -1.2], rel=1e-6)


@given(st.integers(0, 2**31), st.sampled_from([None, 1.05, 1.5]))
@tries(deadline=None)
def test_a_token_is_clipped_if_a_bound_takes_its_gradient(seed: int, dual: float | None) -> None:
    random = np.random.default_rng(seed)
    behaviour, moved, advantages = (torch.from_numpy(random.normal(size=12)) for _ in range(3))
    logprobs = (behaviour + moved).requires_grad_()
    parts = compute(logprobs, behaviour, advantages, LearningSettings(dual_clip=dual))
    (gradient,) = torch.autograd.grad(parts.loss.sum(), logprobs)
    assert torch.equal(parts.clipped, gradient == 0)


class Given(PolicyLoss):
    """A loss that returns what it is told to."""

    name: Literal["given"] = "given"
    made: Any = None

    def compute(self, tokens: Tokens, clip: Clip) -> Any:
        ratio = tokens.compute_ratio()
        return self.made(-ratio * tokens.advantages, ratio)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            lambda loss, ratio: PolicyTerms(loss.mean(), ratio),
            r"a loss of shape \(\) to 5 tokens, not one value per token",
        ),
        (lambda loss, ratio: PolicyTerms(loss[:, None], ratio), r"a loss of shape \(5, 1\)"),
        (lambda loss, ratio: PolicyTerms(loss[:2], ratio), r"a loss of shape \(2,\)"),
        (lambda loss, ratio: PolicyTerms(loss, ratio.mean()), r"a ratio of shape \(\)"),
        (lambda loss, ratio: PolicyTerms(loss, ratio, torch.tensor(True)), r"a clipped of shape \(\)"),
        (lambda loss, ratio: PolicyTerms(0.0, ratio), "a loss that is a float"),
        (lambda loss, ratio: PolicyTerms(loss, None), "a ratio that is a NoneType"),
        (lambda loss, ratio: loss, "must return PolicyTerms, got a Tensor"),
        (lambda loss, ratio: (loss, ratio), "must return PolicyTerms, got a tuple"),
        (lambda loss, ratio: None, "must return PolicyTerms, got a NoneType"),
    ],
)
def test_what_is_not_one_value_per_token_is_refused(made: Any, told: str) -> None:
    logprobs = torch.linspace(-2, -1, 5, requires_grad=True)
    with pytest.raises(OptionError, match=f"policy loss 'given' (gives )?{told}"):
        compute(logprobs, logprobs.detach(), torch.ones(5), LearningSettings(loss=Given(made=made)))


def test_hopeless_ratios_stay_finite() -> None:
    logprobs = torch.tensor([-1e4, 0.0], requires_grad=True)
    parts = compute(
        logprobs,
        torch.tensor([0.0, -1e4]),
        torch.tensor([1.0, -1.0]),
        LearningSettings(),
        [(0.1, compute_k3(logprobs, logprobs.detach() + 1e4))],
    )
    parts.loss.sum().backward()
    assert logprobs.grad is not None
    assert torch.isfinite(parts.loss).all() and torch.isfinite(logprobs.grad).all()


def test_log_ratios_are_bounded_at_twenty_in_both_directions() -> None:
    advantages = torch.tensor([1.0, 1.0])
    wide = LearningSettings(clip=(0.99, 1e12))
    far, near = torch.tensor([30.0, -30.0]), torch.tensor([20.0, -20.0])
    found, at_bound = (
        compute(one, 0 * one, advantages, wide, [(wide.kl.coefficient, compute_k3(one, 0 * one))])
        for one in (far, near)
    )
    assert found.ratio.tolist() == at_bound.ratio.tolist() == pytest.approx([np.exp(20.0), np.exp(-20.0)])
    assert (
        found.penalties[0].tolist()
        == at_bound.penalties[0].tolist()
        == pytest.approx([np.exp(-20.0) + 19.0, np.exp(20.0) - 21.0])
    )


def test_entropy_lowers_the_loss_by_its_coefficient() -> None:
    logprobs, entropy = torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 2.0])
    plain, lowered = (
        compute(logprobs, logprobs, torch.ones(2), LearningSettings(entropy=0.1), (), given)
        for given in (None, entropy)
    )
    assert (plain.loss - lowered.loss).tolist() == pytest.approx([0.05, 0.2])
    assert plain.loss.tolist() == plain.policy.tolist() == lowered.policy.tolist() and not plain.penalties


def test_weights_of_an_empty_batch_are_zero() -> None:
    chosen = LearningSettings().loss
    assert token_weights(np.array([0, 0]), chosen).tolist() == [0.0, 0.0]
    assert token_weights(np.array([], dtype=np.int64), chosen).tolist() == []


def test_token_means_of_parts_are_averaged_as_code_does_that_averages_each_micro_batch() -> None:
    lengths = np.array([3, 1, 0, 0, 5, 2, 4])
    weights = token_weights(lengths, LearningSettings.load({"loss": {"name": "token", "rows": 2}}).loss)
    parts = [lengths[start : start + 2] for start in range(0, 7, 2)]
    by_part = [1 / (4 * max(int(part.sum()), 1)) for part in parts for _ in part]
    assert weights.tolist() == pytest.approx(by_part)
    whole = LearningSettings.load({"loss": {"name": "token", "rows": 7}}).loss
    assert token_weights(lengths, whole).tolist() == token_weights(lengths, LearningSettings().loss).tolist()
    with pytest.raises(OptionError, match="cannot be combined with sequence"):
        LearningSettings.load({"loss": {"name": "sequence", "rows": 2}})


@pytest.mark.parametrize("clip", CLIPS[:2])
def test_a_token_is_clipped_where_the_clip_takes_its_gradient(clip: tuple[float, float]) -> None:
    data, chosen = draw_batch(5), make_settings("token", clip, 0.0)
    logprobs, behaviour = torch.tensor(data["logprobs"], requires_grad=True), torch.tensor(data["behaviour"])
    advantages = torch.tensor(data["advantages"])[:, None].expand(6, 9)
    parts = compute(logprobs, behaviour, advantages, chosen)
    parts.policy.sum().backward()
    assert logprobs.grad is not None
    assert torch.equal(parts.clipped, logprobs.grad == 0)
    assert {
        (bool(one), bool(gain > 0)) for one, gain in zip(parts.clipped.flatten(), advantages.flatten(), strict=True)
    } == {(one, gain) for one in (False, True) for gain in (False, True)}
    assert not compute(logprobs, behaviour, 0 * advantages, chosen).clipped.any(), "nothing pulls, nothing is clipped"
