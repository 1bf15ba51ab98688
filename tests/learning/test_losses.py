"""The loss against an independent numpy reference and against TRL's, values and gradients."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.base.errors import OptionError
from fedagentgym.learning.losses import token_losses, token_weights
from fedagentgym.learning.penalties import compute_k3
from fedagentgym.learning.settings import LearningSettings

CLIPS = [(0.2, 0.2), (0.2, 0.28), (0.0, 0.0)]
TRL_NAMES = {"token": "bnpo", "sequence": "grpo", "constant": "dr_grpo"}
LENGTH = 11


def case(seed: int) -> dict[str, Any]:
    """Six ragged rows of at most nine tokens, one of them without any token of the agent's."""
    random = np.random.default_rng(seed)
    mask = random.random((6, 9)) < 0.7
    mask[3] = False
    return {
        "mask": mask,
        "logprobs": -random.random((6, 9)) * 3,
        "behaviour": -random.random((6, 9)) * 3,
        "reference": -random.random((6, 9)) * 3,
        "advantages": random.standard_normal(6),
    }


def settings(loss: str, clip: tuple[float, float], kl: float, **more: Any) -> LearningSettings:
    return LearningSettings.load({"loss": {"name": loss, "length": LENGTH}, "clip": clip, "kl": kl, **more})


def ours(data: dict[str, Any], chosen: LearningSettings) -> tuple[float, np.ndarray[Any, Any]]:
    mask = data["mask"]
    rows = np.nonzero(mask)[0]
    logprobs = torch.tensor(data["logprobs"], requires_grad=True)
    flat = {name: torch.tensor(data[name][mask]) for name in ("behaviour", "reference")}
    advantages = torch.tensor(data["advantages"][rows])
    own = logprobs[torch.tensor(mask)]
    terms = [(chosen.kl.coefficient, compute_k3(own, flat["reference"]))] if chosen.kl.coefficient else []
    parts = token_losses(own, flat["behaviour"], advantages, chosen, terms)
    weights = token_weights(mask.sum(1), chosen.loss)
    loss = (parts.loss * torch.tensor(weights[rows])).sum()
    loss.backward()
    assert logprobs.grad is not None
    return float(loss.detach()), logprobs.grad.numpy()


def by_hand(data: dict[str, Any], chosen: LearningSettings) -> float:
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


def trl(data: dict[str, Any], chosen: LearningSettings) -> tuple[float, np.ndarray[Any, Any]]:
    """`GRPOTrainer._compute_loss` on a stand-in for the trainer whose model returns the given log-probs."""
    trainer_class = pytest.importorskip("trl").GRPOTrainer
    logprobs = torch.tensor(data["logprobs"], requires_grad=True)
    stand_in = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logprobs, torch.zeros_like(logprobs), None),
        accelerator=SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=chosen.kl.coefficient,
        loss_type=TRL_NAMES[chosen.loss.name],
        epsilon_low=chosen.clip[0],
        epsilon_high=chosen.clip[1],
        use_vllm=False,
        max_completion_length=LENGTH,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
    )
    ids = torch.zeros(data["mask"].shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": torch.tensor(data["mask"]).long(),
        "advantages": torch.tensor(data["advantages"]),
        "old_per_token_logps": torch.tensor(data["behaviour"]),
        "ref_per_token_logps": torch.tensor(data["reference"]),
    }
    loss = trainer_class._compute_loss(stand_in, None, inputs)
    loss.backward()
    assert logprobs.grad is not None
    return float(loss.detach()), logprobs.grad.numpy()


@pytest.mark.parametrize("loss", ["token", "sequence", "constant"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kl", [0.0, 0.04])
def test_loss_and_gradient_equal_trl_and_a_reference_by_hand(loss: str, clip: tuple[float, float], kl: float) -> None:
    for seed in range(5):
        data, chosen = case(seed), settings(loss, clip, kl)
        value, gradient = ours(data, chosen)
        oracle, oracle_gradient = trl(data, chosen)
        assert value == pytest.approx(oracle, abs=1e-9)
        assert value == pytest.approx(by_hand(data, chosen), abs=1e-9)
        np.testing.assert_allclose(gradient, oracle_gradient, atol=1e-9)


def test_gradient_equals_finite_differences() -> None:
    data, chosen = case(1), settings("sequence", (0.2, 0.3), 0.1)
    _, gradient = ours(data, chosen)
    row, token = map(int, np.argwhere(data["mask"])[4])
    shifted = {sign: dict(data, logprobs=data["logprobs"].copy()) for sign in (1, -1)}
    for sign, moved in shifted.items():
        moved["logprobs"][row, token] += sign * 1e-6
    slope = (by_hand(shifted[1], chosen) - by_hand(shifted[-1], chosen)) / 2e-6
    assert gradient[row, token] == pytest.approx(slope, abs=1e-6)


def test_dual_clip_bounds_the_loss_of_bad_actions_that_became_likely() -> None:
    logprobs, behaviour = torch.tensor([0.0, 0.0]), torch.tensor([-3.0, -3.0])
    advantages = torch.tensor([-1.0, 1.0])
    bounded = token_losses(logprobs, behaviour, advantages, LearningSettings(dual_clip=3.0)).loss
    free = token_losses(logprobs, behaviour, advantages, LearningSettings()).loss
    assert bounded.tolist() == pytest.approx([3.0, -1.2])
    assert free.tolist() == pytest.approx([np.exp(3.0), -1.2], rel=1e-6)


def test_hopeless_ratios_stay_finite() -> None:
    logprobs = torch.tensor([-1e4, 0.0], requires_grad=True)
    parts = token_losses(
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
        token_losses(one, 0 * one, advantages, wide, [(wide.kl.coefficient, compute_k3(one, 0 * one))])
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
        token_losses(logprobs, logprobs, torch.ones(2), LearningSettings(entropy=0.1), entropy=given)
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
    data, chosen = case(5), settings("token", clip, 0.0)
    logprobs, behaviour = torch.tensor(data["logprobs"], requires_grad=True), torch.tensor(data["behaviour"])
    advantages = torch.tensor(data["advantages"])[:, None].expand(6, 9)
    parts = token_losses(logprobs, behaviour, advantages, chosen)
    parts.policy.sum().backward()
    assert logprobs.grad is not None
    assert torch.equal(parts.clipped, logprobs.grad == 0)
    assert {
        (bool(one), bool(gain > 0)) for one, gain in zip(parts.clipped.flatten(), advantages.flatten(), strict=True)
    } == {(one, gain) for one in (False, True) for gain in (False, True)}
    assert not token_losses(logprobs, behaviour, 0 * advantages, chosen).clipped.any(), (
        "nothing pulls, nothing is clipped"
    )
