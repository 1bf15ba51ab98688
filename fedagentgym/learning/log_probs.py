"""Log-probs and entropies of chosen tokens from hidden states: logits only where a choice was made, and only a part at a time.

The logits of a chunk are computed again in the backward pass, so that never more than one chunk is held: at 4,096 tokens and a
vocabulary of 50,000 they would be 800 MB, several times over. A token that was the only one allowed was not chosen: its log-prob
and its entropy are 0, and so are their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedagentgym.learning.memory import CHUNK_LOGITS

Head = Callable[[Tensor], Tensor]


class ScoredRow(Protocol):
    """A sequence of token ids; `own` are the places of those that are scored. Where not every token was allowed,
    `allowed_counts` gives the number for each of them, and `allowed_ids` lists these."""

    @property
    def ids(self) -> NDArray[np.int64]: ...

    @property
    def own(self) -> NDArray[np.int64]: ...

    @property
    def allowed_ids(self) -> NDArray[np.int32]: ...

    @property
    def allowed_counts(self) -> NDArray[np.int32]: ...


class TokenLogprobs(NamedTuple):
    """Log-prob of each own token of the rows, one after the other, and the entropy of its distribution if asked for."""

    logprobs: Tensor
    entropy: Tensor | None


def find_choices(row: ScoredRow) -> NDArray[np.int64]:
    """The places of a row's own tokens that were chosen from more than one."""
    return row.own[row.allowed_counts != 1] if len(row.allowed_counts) else row.own


def score_choices(
    head: Head, hidden: Tensor, rows: Sequence[ScoredRow], vocabulary: int, temperature: float, entropy: bool
) -> TokenLogprobs:
    """Scores of all own tokens. `hidden` holds the states before those that were chosen, row after row; `head` makes logits of
    them, which are divided by the temperature and taken over the allowed tokens."""
    choices = _collect_choices(rows)
    size = max(1, CHUNK_LOGITS.get(hidden.device.type, CHUNK_LOGITS["cuda"]) // vocabulary)
    free, listed = np.flatnonzero(choices.counts == 0), np.flatnonzero(choices.counts)
    chunks = [kind[first : first + size] for kind in (free, listed) for first in range(0, len(kind), size)]
    scores = torch.zeros((1 + entropy, sum(len(row.own) for row in rows)), device=hidden.device)
    if chunks:
        found = _score_chunks(
            head, hidden, [choices.to_tensors(chunk, hidden.device) for chunk in chunks], temperature, entropy
        )
        places = torch.from_numpy(choices.places[np.concatenate(chunks)]).to(hidden.device)
        scores = scores.index_copy(1, places, found)
    return TokenLogprobs(scores[0], scores[1] if entropy else None)


class _Chunk(NamedTuple):
    """Some choices: indices of their hidden states, the tokens, a table of the allowed ones, and marks of its filled places."""

    states: Tensor
    targets: Tensor
    allowed: Tensor | None
    filled: Tensor | None


class _Choices(NamedTuple):
    """All chosen tokens of some rows: place among the own tokens, token, number of allowed ones (0: all of them), and where in
    `allowed` their list begins."""

    places: NDArray[np.int64]
    targets: NDArray[np.int64]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]
    allowed: NDArray[np.int32]

    def to_tensors(self, chosen: NDArray[np.int64], device: torch.device) -> _Chunk:
        states, targets = (torch.from_numpy(array).to(device) for array in (chosen, self.targets[chosen]))
        counts = self.counts[chosen]
        if not counts.any():
            return _Chunk(states, targets, None, None)
        columns = np.arange(counts.max())
        filled = columns < counts[:, None]
        table = np.where(
            filled, self.allowed[(self.starts[chosen][:, None] + columns).clip(max=len(self.allowed) - 1)], 0
        )
        return _Chunk(
            states, targets, torch.from_numpy(table.astype(np.int64)).to(device), torch.from_numpy(filled).to(device)
        )


def _collect_choices(rows: Sequence[ScoredRow]) -> _Choices:
    counts = [row.allowed_counts if len(row.allowed_counts) else np.zeros(len(row.own), dtype=np.int64) for row in rows]
    every = np.concatenate([np.zeros(0, dtype=np.int64), *counts]).astype(np.int64)
    targets = np.concatenate([np.zeros(0, dtype=np.int64), *(row.ids[row.own] for row in rows)])
    allowed = np.concatenate(
        [np.zeros(0, dtype=np.int32), *(row.allowed_ids for row in rows if len(row.allowed_counts))]
    )
    places = np.flatnonzero(every != 1)
    return _Choices(places, targets[places], every[places], (np.cumsum(every) - every)[places], allowed)


def _score_chunks(head: Head, hidden: Tensor, chunks: list[_Chunk], temperature: float, entropy: bool) -> Tensor:
    """Scores of all chunks, one after the other. The logits of several are not kept: a plain head's gradient is then added up in
    place, any other module's by `checkpoint`."""
    if len(chunks) > 1 and type(head) is torch.nn.Linear and getattr(head, "bias", None) is None:
        found: Tensor = _LinearScores.apply(hidden, head.weight, chunks, temperature, entropy)  # type: ignore[no-untyped-call]
        return found

    def score(chunk: _Chunk) -> Tensor:
        return _score(head(hidden[chunk.states]), chunk, temperature, entropy)

    if len(chunks) == 1 or not torch.is_grad_enabled():
        return torch.cat([score(chunk) for chunk in chunks], 1)
    return torch.cat([checkpoint(score, chunk, use_reentrant=False) for chunk in chunks], 1)


class _LinearScores(torch.autograd.Function):
    """Scores of chunks under a linear head without bias. One gradient of the weights is held, however many the chunks are."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, chunks: list[_Chunk], temperature: float, entropy: bool
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.chunks, ctx.temperature, ctx.entropy = chunks, temperature, entropy
        ctx.dtype = (
            torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
        )
        scores = [_score(F.linear(hidden[chunk.states], weight), chunk, temperature, entropy) for chunk in chunks]
        return torch.cat(scores, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        narrow = (hidden, weight) if ctx.dtype is None else (hidden.to(ctx.dtype), weight.to(ctx.dtype))
        to_hidden = torch.zeros_like(hidden)
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        first = 0
        for chunk in ctx.chunks:
            states, last = narrow[0][chunk.states], first + len(chunk.targets)
            with torch.enable_grad():
                logits = F.linear(states, narrow[1]).detach().requires_grad_()
                scores = _score(logits, chunk, ctx.temperature, ctx.entropy)
            (to_logits,) = torch.autograd.grad(scores, logits, gradient[:, first:last])
            to_hidden[chunk.states] = (to_logits @ narrow[1]).to(hidden.dtype)
            if to_weight is not None:
                _add_product(to_weight, to_logits.t(), states)
            first = last
        return to_hidden, to_weight, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _score(logits: Tensor, chunk: _Chunk, temperature: float, entropy: bool) -> Tensor:
    """Log-probs, and entropies if wanted, of a chunk's choices: [1 or 2, choices]."""
    logits = logits.float()
    if temperature != 1:
        logits = logits / temperature
    chosen = logits.gather(1, chunk.targets[:, None])[:, 0]
    if chunk.allowed is not None and chunk.filled is not None:
        logits = logits.gather(1, chunk.allowed).masked_fill(~chunk.filled, -torch.inf)
    logprobs = chosen - torch.logsumexp(logits, dim=1)
    return torch.stack([logprobs, _compute_entropy(logits)] if entropy else [logprobs])


def _compute_entropy(logits: Tensor) -> Tensor:
    """Entropy of each row's distribution. The surprisal of a forbidden token is left out before it is multiplied: a product of
    0 and infinity would make the gradient of the whole batch NaN."""
    distribution = torch.log_softmax(logits, dim=1)
    return -(distribution.exp() * distribution.masked_fill(logits == -torch.inf, 0.0)).sum(1)
