"""Policy losses against TRL's `GRPOTrainer` and polgrad's reference losses: values and gradients in float64, ragged batches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from benchmarks.losses import run_trl
from fedagentgym.base.errors import OptionError
from fedagentgym.learning.losses import Clip, Tokens, compute_terms
from fedagentgym.learning.passes import token_losses, token_weights
from fedagentgym.learning.penalties import compute_k3
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Segment, Trajectory, Turn, build_trajectory_rows, from_plain, to_plain

from .test_update import OWN_LOSSES

BATCHES = 400 if os.environ.get("TESTS_PROFILE") == "night" else 30
SAME_IN_TRL = re.findall(
    r"^\| `(\{.*\})` \| `(\{.*\})` \|$",
    (Path(__file__).parents[2] / "docs/reference/losses.md").read_text(),
    flags=re.MULTILINE,
)


def draw_batch(seed: int, *, empty: bool = True) -> dict[str, torch.Tensor]:
    """One to six ragged rows of at most nine tokens, of which some may have none; every row has one advantage."""
    random = np.random.default_rng(seed)
    rows, columns = int(random.integers(1, 7)), int(random.integers(1, 10))
    mask = random.random((rows, columns)) < random.random((rows, 1))
    mask[:1, :1] = True
    if not empty:
        mask[:, 0] = True
    spread = random.choice([1e-4, 0.1, 1.0])
    behaviour = -random.random((rows, columns)) * 3
    numbers = {
        "mask": mask,
        "behaviour": behaviour,
        "logprobs": behaviour + spread * random.standard_normal((rows, columns)),
        "reference": behaviour + 0.3 * random.standard_normal((rows, columns)),
        "played": behaviour + 0.4 * random.standard_normal((rows, columns)),
        "advantages": random.standard_normal(rows) * (random.random(rows) < 0.9),
    }
    return {name: torch.tensor(value) for name, value in numbers.items()}


def ours(batch: dict[str, torch.Tensor], learning: LearningSettings) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, gradient, and the correction's weights."""
    mask, logprobs = batch["mask"], batch["logprobs"].clone().requires_grad_()
    own, behaviour, reference, played = (
        part[mask] for part in (logprobs, batch["behaviour"], batch["reference"], batch["played"])
    )
    lengths = mask.sum(1).numpy()
    advantages = torch.from_numpy(np.repeat(batch["advantages"].numpy(), lengths))
    tokens = Tokens(own, behaviour, advantages, tuple(lengths.tolist()))
    if learning.correction is not None:
        tokens = replace(tokens, correction=learning.correction.compute_weights(tokens, played))
    terms = [(learning.kl.coefficient, compute_k3(own, reference))] if learning.kl.coefficient else []
    weights = torch.from_numpy(np.repeat(token_weights(lengths, learning.loss), lengths))
    loss = (token_losses(tokens, learning, terms).loss * weights).sum()
    (gradient,) = torch.autograd.grad(loss, logprobs)
    spread = torch.ones_like(batch["logprobs"])
    if tokens.correction is not None:
        spread[mask] = tokens.correction
    return loss.detach().double(), gradient, spread


def correct_as_trl(batch: dict[str, torch.Tensor], mode: str, least: float | None, most: float | None) -> torch.Tensor:
    """The weights that `GRPOTrainer` computes beside the loss, by loops over rows and tokens."""
    weights = torch.ones_like(batch["logprobs"])
    for row, mask in enumerate(batch["mask"]):
        gaps = [float(gap) for gap in (batch["behaviour"] - batch["played"])[row]]
        for place in range(len(mask)):
            if not mask[place]:
                continue
            among = [gap for gap, own in zip(gaps, mask, strict=True) if own] if "sequence" in mode else [gaps[place]]
            weight, low, high = float(np.exp(np.sum(among))), least or 0.0, np.inf if most is None else most
            weights[row, place] = (
                min(max(weight, low), high) if "truncate" in mode else weight * (low <= weight <= high)
            )
    return weights


def trl(batch: dict[str, torch.Tensor], config: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's loss and gradient under settings of its `GRPOConfig`."""
    given = {key.removeprefix("vllm_importance_sampling_"): value for key, value in config.items() if "vllm" in key}
    weights = None
    if given:
        mode, least, most = given.get("mode", "sequence_mask"), given.get("clip_min"), given.get("clip_max", 3.0)
        weights = correct_as_trl(batch, mode, least, most).numpy()
    own = {key: value for key, value in config.items() if "vllm" not in key}
    loss, gradient = run_trl({name: part.numpy() for name, part in batch.items()}, own, weights)
    return torch.tensor(loss), torch.from_numpy(gradient)


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers of TRL's own, such as a temperature, in float64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("learning", "config"), SAME_IN_TRL)
def test_a_line_of_the_page_is_the_same_number_in_trl(learning: str, config: str, double: None) -> None:
    pytest.importorskip("trl")
    chosen, theirs, seen = LearningSettings.load(yaml.safe_load(learning)), yaml.safe_load(config), set[float]()
    for seed in range(BATCHES):
        batch = draw_batch(seed)
        loss, gradient, _ = ours(batch, chosen)
        wanted, wanted_gradient = trl(batch, theirs)
        torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-12, atol=1e-12)
        seen.add(float(loss))
    assert len(seen) > BATCHES // 2


def test_the_page_compares_every_loss_but_reinforce_with_trl() -> None:
    compared = {LearningSettings.load(yaml.safe_load(learning)).loss.name for learning, _ in SAME_IN_TRL}
    assert compared == set(OWN_LOSSES) - {"reinforce"}


IN_POLGRAD: dict[str, dict[str, Any]] = {
    "ppo": {"loss": "token"},
    "grpo": {"loss": "sequence", "kl": 0.04},
    "dr_grpo": {"loss": {"name": "constant", "length": 11}},
    "dapo": {"loss": "token", "clip": [0.2, 0.28]},
    "gspo": {"loss": "gspo"},
    "gspo_token": {"loss": {"name": "gspo", "gradient": "token"}},
    "cispo": {"loss": {"name": "cispo", "high": 1.2}},
    "rloo": {"loss": {"name": "reinforce", "average": "constant", "length": 1}},
    "reinforce_pp": {"loss": "sequence"},
    "grpo_tis": {"loss": "sequence", "kl": 0.04, "correction": {"name": "token_truncate", "clip_max": 10.0}},
}


CHANGES = [
    (name, change)
    for name, plain in IN_POLGRAD.items()
    for change in ("as it is", "dual clip", "sequence correction")
    if change != "dual clip" or LearningSettings.load(plain).loss.uses_clip
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_losses_equal_the_reference_losses_of_polgrad(name: str, change: str) -> None:
    polgrad = pytest.importorskip("polgrad")
    config, plain = polgrad.ALGORITHMS[name].loss, dict(IN_POLGRAD[name])
    if name == "dr_grpo":
        config = replace(config, norm_len=11)
    if change == "dual clip":
        config, plain["dual_clip"] = replace(config, clip=replace(config.clip, ratio_cap=1.5)), 1.5
    if change == "sequence correction":
        config = replace(config, is_correction=polgrad.ISCorrectionConfig(cap=1.3, level="sequence"))
        plain["correction"] = {"name": "sequence_truncate", "clip_max": 1.3}
    chosen = LearningSettings.load(plain)
    for seed in range(BATCHES):
        batch = draw_batch(seed, empty=False)
        logprobs = batch["logprobs"].clone().requires_grad_()
        wanted = polgrad.policy_loss(
            config,
            logprobs=logprobs,
            old_logprobs=batch["behaviour"],
            advantages=batch["advantages"],
            response_mask=batch["mask"],
            ref_logprobs=batch["reference"],
            rollout_logprobs=batch["played"],
        ).loss
        (wanted_gradient,) = torch.autograd.grad(wanted, logprobs)
        loss, gradient, _ = ours(batch, chosen)
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("bounds", [(None, 3.0), (0.5, 1.5), (0.9, None), (None, None)])
def test_weights_between_engine_and_trainer_equal_loops_over_tokens(
    mode: str, bounds: tuple[float | None, float | None]
) -> None:
    least, most = bounds
    chosen = LearningSettings.load({"correction": {"name": mode, "clip_min": least, "clip_max": most}})
    for seed in range(50):
        batch = draw_batch(seed)
        torch.testing.assert_close(ours(batch, chosen)[2], correct_as_trl(batch, mode, least, most), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("learning", "told"),
    [
        ({"loss": "gspoo"}, "learning.loss: unknown policy loss 'gspoo': did you mean 'gspo'?"),
        ({"loss": {"name": "gspo", "clip": [1.5, 0.1]}}, r"clip is \[low, high\] with 0 <= low < 1"),
        ({"loss": {"name": "sequence", "average": "token"}}, "unknown key 'learning.loss.average'"),
        ({"loss": {"name": "cispo", "low": 6.0}}, "low lies below high, got 6 and 5"),
        ({"loss": "cispo", "clip": [0.1, 0.2]}, "cispo ignores them"),
        ({"loss": "reinforce", "dual_clip": 3.0}, "reinforce ignores them"),
        ({"loss": {"name": "sapo", "average": "sequence", "rows": 2}}, "cannot be combined with sequence"),
        ({"loss": "vespo", "correction": "sequence_mask"}, "vespo needs a correction of tokens"),
        ({"correction": "token_mask", "behaviour": "recorded"}, "needs behaviour: recomputed or auto"),
        ({"correction": {"name": "token_mask", "clip_min": 4.0}}, "clip_min must be at most clip_max, got 4 and 3"),
        ({"correction": "token"}, "learning.correction.name"),
    ],
)
def test_settings_that_do_nothing_or_contradict_each_other_are_refused(learning: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        LearningSettings.load(learning, "learning")


@pytest.mark.parametrize("loss", ["token", "gspo", "cispo", "sapo", "vespo", "reinforce"])
@pytest.mark.parametrize("lengths", [(), (0, 0)], ids=["no rows", "empty rows"])
def test_no_tokens_have_no_terms(loss: str, lengths: tuple[int, ...]) -> None:
    none = torch.zeros(0)
    terms = compute_terms(LearningSettings.load({"loss": loss}).loss, Tokens(none, none, none, lengths), Clip())
    assert len(terms.loss) == len(terms.ratio) == 0


def test_without_new_settings_a_configuration_is_written_as_before() -> None:
    plain = LearningSettings().model_dump(mode="json")
    assert plain["loss"] == {"name": "token", "length": 512, "rows": None} and "correction" not in plain


def test_what_the_engine_recorded_survives_a_message_and_reaches_the_rows() -> None:
    arrays = ([3], [1, 2, 4], [True, False, True], [-1.0, 0.0, -2.0])
    prompt, tokens, mask, logprobs = (
        np.array(x, dtype=t) for x, t in zip(arrays, ("i4", "i4", "?", "f4"), strict=True)
    )
    turn = Turn("look", "go", ("go",), 1.0, True, True, tokens=2)
    for played in (logprobs - 1, logprobs[:0]):
        episode = Trajectory("a", 0, (turn,), (Segment(prompt, tokens, mask, logprobs, played=played),))
        plain = to_plain(episode)
        assert ("played" in plain["segments"][0]) == bool(len(played))
        (row,) = build_trajectory_rows(from_plain(plain), np.ones(1))
        assert row.played.tolist() == ([-2.0, -3.0] if len(played) else [])
