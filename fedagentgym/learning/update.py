"""One policy step on rows of tokens: mini-batches, gradients, guards, AdamW - on a model that several sites share.

1. Log-probs of a penalty's reference are computed once, with its weights swapped in.
2. Each pass shuffles the rows into mini-batches. `minibatches: 4` cuts a pass into four steps, however many rows there are.
   `minibatch_rows: 64` makes steps of 64 rows, however many steps that takes: where every turn is a row, longer episodes then
   mean more steps, as in the published agent code. Each mini-batch is cut into micro-batches that fit memory.
3. The loss, over the agent's own tokens:

       ratio  = exp(logprob - behaviour)
       policy = -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)
       k3     = exp(reference - logprob) - (reference - logprob) - 1
       loss   = sum over tokens of weight * (policy + beta * k3 - c * entropy)

   All three ways of averaging are a choice of the tokens' weights (`token_weights`): those of the whole mini-batch, so the cut
   does not change the gradient. Penalties of the parameters are added to the whole gradient, before it is clipped.
4. Rows whose advantages are all zero add nothing to the policy gradient: they count in the averages without being computed.
5. A non-finite loss or gradient leaves weights and optimizer unchanged and is counted (`update/skipped`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.agents.decoder.module import Decoder
from fedagentgym.agents.engines.torch_policy import to_array
from fedagentgym.agents.protocols import Decoding
from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import derive, generator
from fedagentgym.learning import forward
from fedagentgym.learning.forward import TokenLogprobs, find_choices
from fedagentgym.learning.memory import PassLimits, map_large_tensors
from fedagentgym.learning.passes import Passes, clip_gradients, get_passes
from fedagentgym.learning.penalties import LARGEST_LOG_RATIO, Penalty
from fedagentgym.learning.settings import LearningSettings, LossSettings
from fedagentgym.learning.trajectory import Group, Row, Segment, Trajectory, build_trajectory_rows
from fedagentgym.learning.weights import (
    Arrays,
    OwnedWeights,
    Tensors,
    TrainedModel,
    get_moments,
    load_moments,
    make_optimizer,
    to_parameter_tensors,
)


class PolicyUpdate:
    """The policy steps of one learner. It begins with the weights that the model holds, or at `start` (what `load` takes).

    Several learners may share a model: each has weights of its own (`learning/weights.py`).
    """

    def __init__(
        self,
        policy: TrainedModel,
        decoding: Decoding,
        settings: LearningSettings,
        *,
        start: tuple[Arrays, Arrays, Arrays] | None = None,
        penalties: Sequence[Penalty] = (),
    ) -> None:
        if decoding.temperature <= 0:
            raise OptionError("training needs a sampling temperature above 0: a greedy policy does not explore")
        self.policy, self.decoding, self.settings, self._penalties = policy, decoding, settings, penalties
        self._passes = get_passes(policy)
        if start is None:
            self._begin(OwnedWeights(policy), {}, {})
        else:
            self.load(*start)

    def acquire(self) -> None:
        """Load the learner's weights into the model, if another learner has used it since."""
        self._weights.acquire()

    # ---- state ------------------------------------------------------------------------------------------------------

    def load(self, weights: Arrays, optimizer: Arrays, anchor: Arrays) -> None:
        """Load a site: weights into the model, moments into a new optimizer, the start of its round."""
        if hasattr(self, "_weights"):
            del self._weights  # so that it is not saved
        self.policy.set_weights(weights)
        self._begin(OwnedWeights(self.policy, weights), optimizer, anchor)

    def _begin(self, weights: OwnedWeights, optimizer: Arrays, anchor: Arrays) -> None:
        self._weights, parameters = weights, weights.full
        self._optimizer = make_optimizer(parameters, self.settings)
        if optimizer:
            load_moments(self._optimizer, parameters, optimizer)
        self._anchor: Tensors = {}
        if any(penalty.uses_start for penalty in self._penalties):
            self._anchor = to_parameter_tensors(anchor, parameters) if anchor else weights.clone()
        for penalty in self._penalties:
            penalty.begin(parameters, self._anchor)

    def get_weights(self) -> dict[str, NDArray[Any]]:
        return self._weights.to_arrays()

    def get_optimizer_state(self) -> dict[str, NDArray[Any]]:
        return get_moments(self._optimizer, self._weights.full)

    def get_anchor_weights(self) -> dict[str, NDArray[Any]]:
        """The start of the round, if a penalty refers to it."""
        return {name: to_array(tensor) for name, tensor in self._anchor.items()}

    # ---- the step -----------------------------------------------------------------------------------------------------

    def train_step(self, rows: Sequence[Row], rate: float = 1.0, order: int = 0) -> dict[str, float]:
        """One policy step: all passes over the rows. `rate` scales the learning rate, `order` names the shuffling stream."""
        self._prepare()
        settings = self.settings
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate
        map_large_tensors(self.policy.model, self.policy.device)
        rows = self._replace_truncated_logprobs(rows)
        references = self._score_references(rows)
        meter = _RunningMeans()
        seed = derive(order, "update")
        with self._train_mode(seed):
            for epoch in range(settings.gradient_epochs):
                for part in split_minibatches(len(rows), settings, generator(seed, epoch)):
                    given = [(penalty, [scores[i] for i in part]) for penalty, scores in references]
                    self._train_minibatch([rows[i] for i in part], given, meter)
        self.policy.bump_version()
        shared = [*_TOKEN_METRICS, *(penalty.name for penalty, _ in references)]
        return meter.compute_metrics(self._passes, shared) | {"learning_rate": settings.learning_rate * rate}

    def _train_minibatch(
        self, rows: Sequence[Row], references: Sequence[tuple[Penalty, Sequence[torch.Tensor]]], meter: _RunningMeans
    ) -> None:
        """Accumulate the gradient of one mini-batch and step, unless it is zero or not finite."""
        every_row = bool(references) or self.settings.entropy > 0
        live = [index for index, row in enumerate(rows) if len(row.own) and (row.active or every_row)]
        terms = [penalty for penalty in self._penalties if penalty.of_parameters]
        if not terms and not any(len(find_choices(rows[index])) for index in live):
            meter.counts["update/empty"] += 1
            return
        weights = token_weights(np.array([len(row.own) for row in rows], dtype=np.int64), self.settings.loss)
        chosen = [rows[index] for index in live]
        total = 0.0
        self._optimizer.zero_grad()
        for batch in self._passes.iter_batches(chosen, self._limits):
            places = [live[index] for index in batch]
            given = [(penalty, torch.cat([scores[place] for place in places])) for penalty, scores in references]
            loss = self._compute_loss([rows[place] for place in places], weights[places], given, meter)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        self._weights.copy_gradients_from_model()
        (total,) = self._passes.add_up([total])
        total += sum(penalty.add_gradients(self._weights.full) for penalty in terms)
        norm = clip_gradients(list(self._weights.full.values()), self.settings.gradient_clip)
        if np.isfinite(total) and np.isfinite(norm):
            self._optimizer.step()
            self._weights.copy_to_model()
            meter.counts["optimizer_steps"] += 1
            meter.add("loss", total)
            meter.add("gradient_norm", norm)
        else:
            meter.counts["update/skipped"] += 1
        self._optimizer.zero_grad()

    def _compute_loss(
        self,
        rows: Sequence[Row],
        weights: NDArray[np.float64],
        references: Sequence[tuple[Penalty, torch.Tensor]],
        meter: _RunningMeans,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The part of the mini-batch's loss that these rows make up; `bias` is added to the last block's output."""
        kept, temperature = self._limits.kept, self.decoding.temperature
        scores = self._passes.score(rows, temperature, self.settings.entropy > 0, kept=kept, bias=bias)
        lengths = [len(row.own) for row in rows]
        behaviour = self._to_tensor(np.concatenate([row.behaviour for row in rows]))
        advantages = self._to_tensor(np.concatenate([row.advantages for row in rows]))
        penalties = [
            (penalty.coefficient, penalty.compute_token_losses(scores.logprobs, reference))
            for penalty, reference in references
        ]
        parts = token_losses(scores.logprobs, behaviour, advantages, self.settings, penalties, scores.entropy)
        meter.add_tokens(parts, scores, [penalty.name for penalty, _ in references])
        return (parts.loss * self._to_tensor(np.repeat(weights, lengths))).sum()

    def _prepare(self) -> None:
        """Load the learner's weights, and find how many tokens a pass may have at present."""
        self.acquire()
        limits = self._passes.find_limits(self.settings.micro_tokens)
        self._limits = PassLimits(limits.micro_tokens, 0) if self.settings.checkpointing else limits

    # ---- scores under other weights, and other gradients ------------------------------------------------------------

    def recompute_logprobs(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups with behaviour log-probs of the present policy."""
        return tuple(tuple(self._recompute_trajectory_logprobs(trajectory) for trajectory in group) for group in groups)

    def _recompute_trajectory_logprobs(self, trajectory: Trajectory) -> Trajectory:
        rows = list(build_trajectory_rows(trajectory, np.zeros(len(trajectory.turns))))
        scores = [tensor.cpu().numpy() for tensor in self.score_rows(rows)]
        segments = tuple(_replace_logprobs(s, new) for s, new in zip(trajectory.segments, scores, strict=True))
        return replace(trajectory, segments=segments)

    def compute_bias_gradient(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """The gradient of the clipped policy loss with respect to a virtual bias on the last decoder block's output.

        The bias is one vector added at every token, so its gradient is a sum over tokens and rows: comparable between batches
        of any shape. The blocks below need no backward pass.
        """
        self._prepare()
        model, device = self.policy.model, self.policy.device
        weights = token_weights(np.array([len(row.own) for row in rows], dtype=np.int64), self.settings.loss)
        live = [index for index, row in enumerate(rows) if row.active and len(find_choices(row))]
        width = int(model.get_input_embeddings().weight.shape[1])  # type: ignore[operator]
        total = np.zeros(width, dtype=np.float64)
        for batch in self._passes.iter_batches([rows[index] for index in live], self._limits, shared=False):
            places = [live[index] for index in batch]
            bias = torch.zeros(width, device=device, requires_grad=True)
            with self._passes.leave_out_parameters():
                chosen = [rows[place] for place in places]
                loss = self._compute_loss(chosen, weights[places], (), _RunningMeans(), bias)
            (gradient,) = torch.autograd.grad(loss, bias)
            total += gradient.double().cpu().numpy()
        return total

    def _score_references(self, rows: Sequence[Row]) -> list[tuple[Penalty, list[torch.Tensor]]]:
        """For each penalty with a reference, the log-probs of the rows under it."""
        found = []
        for penalty in self._penalties:
            if (reference := penalty.get_reference()) is not None:
                with self._swap_weights(reference):
                    found.append((penalty, self.score_rows(rows)))
        return found

    def _replace_truncated_logprobs(self, rows: Sequence[Row]) -> list[Row]:
        """Nucleus sampling records log-probs of a truncated distribution, whose gradient differs from the policy's: the
        behaviour policy is then scored again, without truncation."""
        if self.decoding.top_p >= 1:
            return list(rows)
        scores = [tensor.cpu().numpy() for tensor in self.score_rows(rows)]
        return [
            Row(row.ids, row.own, new, row.advantages, row.allowed_ids, row.allowed_counts)
            for row, new in zip(rows, scores, strict=True)
        ]

    @torch.no_grad()
    def score_rows(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Log-probs of the own tokens of each row."""
        self._prepare()
        result = [torch.zeros(len(row.own), device=self.policy.device) for row in rows]
        filled = [index for index, row in enumerate(rows) if len(row.own)]
        for batch in self._passes.iter_batches([rows[index] for index in filled], self._limits):
            places = [filled[index] for index in batch]
            chosen = [rows[place] for place in places]
            scores = self._passes.score(chosen, self.decoding.temperature, kept=self._limits.kept)
            parts = torch.split(scores.logprobs, [len(row.own) for row in chosen])
            for place, part in zip(places, parts, strict=True):
                result[place] = part
        return self._passes.add_up_tensors(result)

    @contextlib.contextmanager
    def _swap_weights(self, weights: Tensors) -> Iterator[None]:
        parameters = self.policy.parameters()
        kept = {name: value.detach().clone() for name, value in parameters.items()}
        _copy_into(parameters, weights)
        try:
            yield
        finally:
            _copy_into(parameters, kept)

    @contextlib.contextmanager
    def _train_mode(self, seed: int) -> Iterator[None]:
        """Train mode; a plain module has none, and draws no dropout."""
        model: Any = self.policy.model
        if isinstance(model, Decoder):
            yield
            return
        with self._draw_dropout(seed):
            model.train()
            recomputing = self.settings.checkpointing or self._passes.recomputes
            if recomputing:
                forward.set_checkpointing(model, True)
            try:
                yield
            finally:
                if recomputing:
                    forward.set_checkpointing(model, False)
                model.eval()

    @contextlib.contextmanager
    def _draw_dropout(self, seed: int) -> Iterator[None]:
        """Dropout by a stream of its own; the process's generators are not changed."""
        devices = [self.policy.device] if self.policy.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed((seed + self._passes.rank) % (1 << 63))
            yield

    def _to_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self.policy.device)


_TOKEN_METRICS = ("ratio", "clipped", "surprisal", "entropy")


@dataclass(eq=False)
class _RunningMeans:
    """Means of the mini-batches' metrics, weighted by tokens for metrics of tokens."""

    counts: dict[str, float] = field(
        default_factory=lambda: {"update/skipped": 0.0, "update/empty": 0.0, "optimizer_steps": 0.0}, init=False
    )
    _sums: dict[str, float] = field(default_factory=dict, init=False)
    _weights: dict[str, float] = field(default_factory=dict, init=False)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    @torch.no_grad()
    def add_tokens(self, parts: TokenLosses, scores: TokenLogprobs, penalties: Sequence[str]) -> None:
        size = parts.ratio.numel()
        self.add("ratio", float(parts.ratio.mean()), size)
        self.add("clipped", float(parts.clipped.float().mean()), size)
        self.add("surprisal", float(-scores.logprobs.mean()), size)
        for name, value in zip(penalties, parts.penalties, strict=True):
            self.add(name, float(value.mean()), size)
        if scores.entropy is not None:
            self.add("entropy", float(scores.entropy.mean()), size)

    def compute_metrics(self, passes: Passes, shared: Sequence[str]) -> dict[str, float]:
        """The means. Metrics of tokens are combined over all shares; all others are the same for all of them."""
        names = dict.fromkeys(shared)
        sums = passes.add_up([self._sums.get(name, 0.0) for name in names])
        weights = passes.add_up([self._weights.get(name, 0.0) for name in names])
        for name, total, weight in zip(names, sums, weights, strict=True):
            if weight:
                self._sums[name], self._weights[name] = total, weight
        return {name: total / self._weights[name] for name, total in self._sums.items()} | self.counts


def _copy_into(parameters: Mapping[str, torch.nn.Parameter], weights: Tensors) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _replace_logprobs(segment: Segment, own: NDArray[np.float32]) -> Segment:
    logprobs = segment.logprobs.copy()
    logprobs[segment.mask] = own
    return segment._replace(logprobs=logprobs)


def split_minibatches(count: int, settings: LearningSettings, rng: np.random.Generator) -> list[list[int]]:
    """Numbers of the rows of each mini-batch of one pass over `count` rows; a single mini-batch keeps their order."""
    if not count:
        return []
    size = settings.minibatch_rows
    if size is None:
        parts = min(settings.minibatches, count)
    elif settings.minibatch_fill:
        filled = fill_last_minibatch(count, size, rng)
        return [filled[start : start + size] for start in range(0, len(filled), size)]
    else:
        parts = -(-count // size)
    if parts == 1:
        return [list(range(count))]
    order = rng.permutation(count)
    if size is None:
        return [part.tolist() for part in np.array_split(order, parts)]
    return [order[start : start + size].tolist() for start in range(0, count, size)]


def fill_last_minibatch(count: int, size: int, rng: np.random.Generator) -> list[int]:
    """All rows in their order, and as many of them again, drawn at random, as make the last mini-batch whole."""
    missing = -count % size
    return [*range(count), *rng.choice(count, missing, replace=missing > count).tolist()]


class TokenLosses(NamedTuple):
    """The loss of each token, and what is reported about it."""

    loss: torch.Tensor
    policy: torch.Tensor
    penalties: tuple[torch.Tensor, ...]
    ratio: torch.Tensor
    clipped: torch.Tensor


def token_weights(lengths: NDArray[np.int64], settings: LossSettings) -> NDArray[np.float64]:
    """For each row, the weight of one of its tokens in the loss. Rows without tokens count as rows."""
    rows, tokens = len(lengths), int(lengths.sum())
    if rows == 0 or tokens == 0:
        return np.zeros(rows, dtype=np.float64)
    if settings.name == "token":
        return np.full(rows, 1.0 / tokens) if settings.rows is None else _weigh_parts(lengths, settings.rows)
    if settings.name == "constant":
        return np.full(rows, 1.0 / (rows * settings.length))
    return 1.0 / (rows * np.maximum(lengths, 1))


def _weigh_parts(lengths: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """The mean over the tokens of each run of `size` rows, then over the runs; a run without tokens counts as zero."""
    starts = np.arange(0, len(lengths), size)
    totals = np.add.reduceat(lengths, starts)
    each = 1.0 / (len(starts) * np.maximum(totals, 1))
    return np.asarray(np.repeat(each, np.diff([*starts, len(lengths)])), dtype=np.float64)


def token_losses(
    logprobs: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    settings: LearningSettings,
    penalties: Sequence[tuple[float, torch.Tensor]] = (),
    entropy: torch.Tensor | None = None,
) -> TokenLosses:
    """Clipped surrogate, penalties (weight and value) and entropy of each token; exponents are bounded, so that nothing
    overflows."""
    low, high = settings.clip
    ratio = torch.exp((logprobs - behaviour).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    clipped_ratio = ratio.clamp(1 - low, 1 + high)
    policy = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    if settings.dual_clip is not None:
        bound = -settings.dual_clip * advantages
        policy = torch.where(advantages < 0, torch.minimum(policy, bound), policy)
    loss = policy
    for weight, value in penalties:
        loss = loss + weight * value
    if entropy is not None:
        loss = loss - settings.entropy * entropy
    outside = ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))
    return TokenLosses(loss, policy, tuple(value for _, value in penalties), ratio, outside)
