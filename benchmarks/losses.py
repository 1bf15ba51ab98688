"""The loss of a policy step and its gradient compared with those of TRL and polgrad, on random batches in double precision.

All three take the same batch: log-probs of ragged rows of tokens under the policy, under the policy that played and under a
reference, and an advantage for each row. TRL's loss is the method of its trainer that computes the loss, called on a stand-in
for the trainer whose model returns these log-probs. polgrad's loss is its reference implementation of the same loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings import Findings
from fedagentgym.base.imports import require
from fedagentgym.learning.losses import Tokens
from fedagentgym.learning.passes import token_losses, token_weights
from fedagentgym.learning.penalties import compute_k3
from fedagentgym.learning.settings import LearningSettings

Batch = Mapping[str, NDArray[Any]]
LENGTH = 11
"""The number of tokens of the longest allowed answer, by which the loss `constant` divides."""
CLIPS = ((0.2, 0.2), (0.2, 0.28), (0.0, 0.0))
LOSSES = ("token", "sequence", "constant")
NO_WIDTH = 1e-300
"""A clip so narrow that it has the effect of 0, for an oracle that refuses a clip of 0."""
PENALTIES = (0.0, 0.04)
TRL_NAMES = {"token": "bnpo", "sequence": "grpo", "constant": "dr_grpo"}
POLGRAD_NAMES = {"token": "TOKEN_MEAN", "sequence": "SEQ_MEAN_TOKEN_MEAN", "constant": "TOKEN_SUM_NORM"}


class Computed(NamedTuple):
    """A loss, and its gradient with respect to the log-probs."""

    loss: float
    gradient: NDArray[np.float64]


def draw_batch(seed: int, rows: int = 6, tokens: int = 9, *, empty: bool = True) -> Batch:
    """A batch of ragged rows of tokens; with `empty`, one of the rows has no token of the agent."""
    random = np.random.default_rng(seed)
    mask = random.random((rows, tokens)) < 0.7
    mask[:, 0] = True
    if empty:
        mask[rows // 2] = False
    return {
        "mask": mask,
        "logprobs": -random.random((rows, tokens)) * 3,
        "behaviour": -random.random((rows, tokens)) * 3,
        "reference": -random.random((rows, tokens)) * 3,
        "advantages": random.standard_normal(rows),
    }


def make_settings(loss: str, clip: tuple[float, float], kl: float, **more: Any) -> LearningSettings:
    """The settings of one of the losses."""
    return LearningSettings.load({"loss": {"name": loss, "length": LENGTH}, "clip": clip, "kl": kl, **more})


def compute_ours(batch: Batch, chosen: LearningSettings) -> Computed:
    """Our loss, by the functions that the learner calls."""
    import torch

    mask = batch["mask"]
    rows = np.nonzero(mask)[0]
    logprobs = torch.tensor(batch["logprobs"], requires_grad=True)
    behaviour, reference = (torch.tensor(batch[name][mask]) for name in ("behaviour", "reference"))
    own = logprobs[torch.tensor(mask)]
    terms = [(chosen.kl.coefficient, compute_k3(own, reference))] if chosen.kl.coefficient else []
    tokens = Tokens(own, behaviour, torch.tensor(batch["advantages"][rows]), tuple(mask.sum(1).tolist()))
    parts = token_losses(tokens, chosen, terms)
    return _differentiate((parts.loss * torch.tensor(token_weights(mask.sum(1), chosen.loss)[rows])).sum(), logprobs)


def compute_trl(batch: Batch, chosen: LearningSettings) -> Computed:
    """TRL's loss, with PPO's clipped objective."""
    low, high = chosen.clip
    config = {
        "loss_type": TRL_NAMES[chosen.loss.name],
        "epsilon": low,
        "epsilon_high": high,
        "beta": chosen.kl.coefficient,
    }
    return run_trl(batch, {**config, "use_bias_correction_kl": False, "max_completion_length": LENGTH})


TRL_DEFAULTS: Mapping[str, Any] = {
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "max_completion_length": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
}
"""The settings of TRL's `GRPOConfig` that its loss uses."""


def run_trl(batch: Batch, config: Mapping[str, Any], correction: NDArray[np.float64] | None = None) -> Computed:
    """The loss of `GRPOTrainer._compute_loss` under these settings, with importance weights between engine and trainer if
    given."""
    import torch

    trainer, chosen = require("trl", "trl").GRPOTrainer, {**TRL_DEFAULTS, **config}
    logprobs = torch.tensor(batch["logprobs"], requires_grad=True)
    stand_in = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logprobs, torch.zeros_like(logprobs), None),
        get_gamma_weights=trainer.get_gamma_weights,
        accelerator=SimpleNamespace(
            gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
        ),
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(**chosen),
        _metrics=defaultdict(lambda: defaultdict(list)),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=chosen["importance_sampling_level"],
        beta=chosen["beta"],
        loss_type=chosen["loss_type"],
        epsilon_low=chosen["epsilon"],
        epsilon_high=chosen["epsilon"] if chosen["epsilon_high"] is None else chosen["epsilon_high"],
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=True,
        max_completion_length=chosen["max_completion_length"],
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
    )
    ids = torch.zeros(batch["mask"].shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": torch.tensor(batch["mask"]).long(),
        "advantages": torch.tensor(batch["advantages"]),
        "old_per_token_logps": torch.tensor(batch["behaviour"]),
        "ref_per_token_logps": torch.tensor(batch["reference"]),
        "num_items_in_batch": torch.tensor(batch["mask"].sum()),
    }
    if correction is not None:
        inputs["importance_sampling_ratio"] = torch.tensor(correction)
    return _differentiate(trainer._compute_loss(stand_in, None, inputs), logprobs)


def compute_polgrad(batch: Batch, chosen: LearningSettings) -> Computed:
    """polgrad's clipped loss, with the same estimate of the divergence as a penalty. It takes no row without tokens."""
    import torch

    polgrad = require("polgrad", "dev")
    logprobs = torch.tensor(batch["logprobs"], requires_grad=True)
    kl = None
    if chosen.kl.coefficient:
        kl = polgrad.KLLossConfig(kind=polgrad.KLEstimator.K3, coef=chosen.kl.coefficient)
    config = polgrad.PolicyLossConfig(
        ratio=polgrad.RatioKind.TOKEN,
        surrogate=polgrad.SurrogateKind.PG_CLIP,
        clip=polgrad.ClipConfig(*(max(width, NO_WIDTH) for width in chosen.clip), ratio_cap=chosen.dual_clip),
        aggregation=polgrad.Aggregation[POLGRAD_NAMES[chosen.loss.name]],
        norm_len=LENGTH if chosen.loss.name == "constant" else None,
        kl=kl,
    )
    result = polgrad.policy_loss(
        config,
        logprobs=logprobs,
        old_logprobs=torch.tensor(batch["behaviour"]),
        advantages=torch.tensor(batch["advantages"]),
        response_mask=torch.tensor(batch["mask"]),
        ref_logprobs=torch.tensor(batch["reference"]),
    )
    return _differentiate(result.loss, logprobs)


def _differentiate(loss: Any, logprobs: Any) -> Computed:
    loss.backward()
    return Computed(float(loss.detach()), logprobs.grad.numpy())


def measure_difference(one: Computed, other: Computed) -> float:
    """The largest difference of the loss or of an entry of its gradient."""
    return max(abs(one.loss - other.loss), float(np.abs(one.gradient - other.gradient).max()))


def find_largest(compute: Callable[[Batch, LearningSettings], Computed], batches: int, *, empty: bool) -> float:
    """The largest difference from an oracle, over every loss, clip and penalty."""
    return max(
        measure_difference(compute_ours(batch, chosen), compute(batch, chosen))
        for loss in LOSSES
        for clip in CLIPS
        for kl in PENALTIES
        for chosen in [make_settings(loss, clip, kl)]
        for batch in (draw_batch(seed, empty=empty) for seed in range(batches))
    )


def find_losses(quick: bool) -> Findings:
    """The largest differences from TRL and polgrad."""
    batches = 5 if quick else 400
    forms = len(LOSSES) * len(CLIPS) * len(PENALTIES)
    rows = {
        "TRL": (batches * forms, find_largest(compute_trl, batches, empty=True)),
        "polgrad": (batches * forms, find_largest(compute_polgrad, batches, empty=False)),
    }
    return Findings("oracle", {"random batches": ",d", "largest difference of loss and gradient": ".1e"}, rows)
