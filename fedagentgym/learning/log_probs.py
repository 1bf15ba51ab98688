"""Log-probs and entropies of chosen tokens from hidden states: logits only where a choice was made, and only a part at a time.

The logits of a chunk are computed again in the backward pass, so that never more than one chunk is held: at 4,096 tokens and a
vocabulary of 50,000 they would be 800 MB, several times over. A token that was the only one allowed was not chosen: its log-prob
and its entropy are 0, and so are their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Logits that are computed at a time: 32 MB in single precision on a CPU, 256 MB on a GPU."""

Head = Callable[[Tensor], Tensor]


class ScoredRow(Protocol):
    """A sequence of token ids; `own` are the places of those that are scored. Where fewer tokens than the vocabulary were allowed,
    `allowed_counts` says for each of them how many, and `allowed_ids` lists these."""

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
    scores = torch.zeros((1 + entropy, sum(len(row.own) for row in rows)), device=hidden.device)
    for kind in (np.flatnonzero(choices.counts == 0), np.flatnonzero(choices.counts)):
        chunks = [kind[first : first + size] for first in range(0, len(kind), size)]
        parts = []
        for chunk in chunks:
            given = (head, hidden, choices.to_tensors(chunk, hidden.device), temperature, entropy)
            again = len(chunks) > 1 and torch.is_grad_enabled()
            parts.append(checkpoint(_score, *given, use_reentrant=False) if again else _score(*given))
        if parts:
            places = torch.from_numpy(choices.places[kind]).to(hidden.device)
            scores = scores.index_copy(1, places, torch.cat(parts, 1))
    return TokenLogprobs(scores[0], scores[1] if entropy else None)


class _Chunk(NamedTuple):
    """Some choices: indices of their hidden states, the tokens, and a table of the allowed ones with marks of its filled places."""

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
        table = np.where(filled, self.allowed[(self.starts[chosen][:, None] + columns).clip(max=len(self.allowed) - 1)], 0)
        return _Chunk(states, targets, torch.from_numpy(table.astype(np.int64)).to(device), torch.from_numpy(filled).to(device))


def _collect_choices(rows: Sequence[ScoredRow]) -> _Choices:
    counts = [row.allowed_counts if len(row.allowed_counts) else np.zeros(len(row.own), dtype=np.int64) for row in rows]
    every = np.concatenate([np.zeros(0, dtype=np.int64), *counts]).astype(np.int64)
    targets = np.concatenate([np.zeros(0, dtype=np.int64), *(row.ids[row.own] for row in rows)])
    allowed = np.concatenate([np.zeros(0, dtype=np.int32), *(row.allowed_ids for row in rows if len(row.allowed_counts))])
    places = np.flatnonzero(every != 1)
    return _Choices(places, targets[places], every[places], (np.cumsum(every) - every)[places], allowed)


def _score(head: Head, hidden: Tensor, chunk: _Chunk, temperature: float, entropy: bool) -> Tensor:
    """Log-probs, and entropies if wanted, of a chunk's choices: [1 or 2, choices]."""
    logits = head(hidden[chunk.states]).float()
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
