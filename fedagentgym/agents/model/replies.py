"""Growing replies: drawing tokens; replies under a constraint, one by one; replies without one, all together.

Tokens are drawn by inverse CDF with one uniform per row, with the log-probability under exactly that distribution. A constraint
often leaves a single token. Such a token needs no model: it is appended at once, with log-probability 0, and reaches the model
with the next chunk. So the model only runs where there is a choice.

Rows that hold the same tokens so far share a *lane*, a slot of the cache; one of them, the owner, has this slot. Copies of a task
are equal for long: most of a group's replies share their beginnings, and greedy ones are the same throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.agents.protocols import Completion, Constraint

Indices = NDArray[np.int64]


class SampledTokens(NamedTuple):
    ids: Tensor
    logprobs: Tensor


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float, top_p: float = 1.0) -> SampledTokens:
    """Draw a column per row of ``logits`` [rows, columns], or several: ``uniforms`` [rows] or [rows, draws].

    They are strictly between 0 and 1, in float64. The cumulative sum runs in float64 and is compared with ``u * total``, so a
    token's chance is its probability to within float32's rounding of the probability itself. Columns at minus infinity are never
    drawn.
    """
    if temperature == 0.0:
        best = logits.argmax(dim=-1, keepdim=True).expand(len(logits), uniforms[:1].numel())
        return SampledTokens(best.reshape(uniforms.shape), torch.zeros_like(uniforms))
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    if top_p < 1.0:
        kept = nucleus(torch.log_softmax(scaled, dim=-1), top_p)
        scaled = scaled.masked_fill(~kept, float("-inf"))
    highest = scaled.amax(dim=-1, keepdim=True)
    ends = (scaled - highest).exp_().cumsum(dim=-1, dtype=torch.float64)
    total = ends[:, -1:]
    ids = torch.searchsorted(ends, uniforms.view(len(ends), -1) * total, right=True).clamp_(max=logits.shape[-1] - 1)
    logprobs = scaled.gather(-1, ids).double() - highest - total.log()
    return SampledTokens(ids.view(uniforms.shape), logprobs.view(uniforms.shape))


def nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Mark the smallest set of most likely columns whose probability reaches ``top_p``; ties go to the lower id."""
    ordered, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, before < top_p)


def make_choice_table(choices: Sequence[Sequence[int] | None], device: torch.device) -> Tensor | None:
    """Stack sets of token ids, [rows, widest], filled up with -1; None if some row is not constrained."""
    lists = [ids for ids in choices if ids is not None]
    if len(lists) < len(choices):
        return None
    width = max(map(len, lists))
    return torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in lists], device=device)


def sample_choices(
    logits: Tensor, uniforms: Tensor, table: Tensor, temperature: float, top_p: float = 1.0
) -> SampledTokens:
    """Draw from the distribution renormalised over each row's choices; ``logits`` are those of the table's tokens."""
    drawn = sample_tokens(logits.float().masked_fill(table < 0, float("-inf")), uniforms, temperature, top_p)
    return SampledTokens(table.gather(-1, drawn.ids.unsqueeze(-1)).squeeze(-1), drawn.logprobs)


def forbid_others(logits: Tensor, choices: Sequence[Sequence[int] | None]) -> Tensor:
    """Set the logits of all but each row's choices to minus infinity; a row without a list keeps all."""
    allowed = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    for line, ids in zip(allowed, choices, strict=True):
        line[slice(None) if ids is None else list(ids)] = True
    return logits.masked_fill(~allowed, float("-inf"))


class ConstrainedReply:
    """One reply, which is appended to ``ids`` as it grows. ``choices``: what may come next; None for any token."""

    def __init__(self, ids: list[int], rule: Constraint | None, most: int, stop_ids: frozenset[int]) -> None:
        self.rule, self.over = rule, False
        self.choices: Sequence[int] | None = None
        self._ids, self._start, self._end, self._stop_ids = ids, len(ids), len(ids) + most, stop_ids
        self._logprobs: list[float] = []
        self._allowed: list[tuple[int, ...]] = []
        self._state: Any = None
        if rule is not None:
            self._state = rule.start()
            self._say_forced(rule)

    @property
    def said(self) -> int:
        """Number of tokens so far."""
        return len(self._ids) - self._start

    def say(self, token: int, logprob: float) -> None:
        """Append a token drawn from the choices, and the forced tokens after it."""
        rule = self.rule
        self._append(token, logprob)
        if rule is not None and not self.over:
            self._state = rule.advance(self._state, token)
            self._say_forced(rule)

    def _say_forced(self, rule: Constraint) -> None:
        while True:
            allowed = rule.get_allowed_tokens(self._state)
            self._allowed.append(allowed)
            if len(allowed) > 1:
                self.choices = allowed
                return
            self._append(allowed[0], 0.0)
            if self.over:
                return
            self._state = rule.advance(self._state, allowed[0])

    def _append(self, token: int, logprob: float) -> None:
        self._ids.append(token)
        self._logprobs.append(logprob)
        self.over = token in self._stop_ids or len(self._ids) == self._end

    def complete(self) -> Completion:
        ids = tuple(self._ids[self._start :])
        return Completion(
            ids, tuple(self._logprobs), "stop" if ids[-1] in self._stop_ids else "length", tuple(self._allowed)
        )


class FreeReplies:
    """The replies of one call, a token of each per step."""

    def __init__(self, lengths: Sequence[int], most: int, stop_ids: frozenset[int]) -> None:
        count = len(lengths)
        self._stops = np.array(sorted(stop_ids), dtype=np.int64)
        self.tokens = np.zeros((count, most), dtype=np.int64)
        self.logprobs = np.zeros((count, most), dtype=np.float64)
        self.ends = np.full(count, most)
        self.lengths = np.array(lengths)

    def say(
        self, step: int, rows: NDArray[np.int64], tokens: NDArray[np.int64], logprobs: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Append tokens to rows; return which of them have ended."""
        self.tokens[rows, step] = tokens
        self.logprobs[rows, step] = logprobs
        ended: NDArray[np.bool_] = (tokens[:, None] == self._stops).any(1)
        self.ends[rows[ended]] = step + 1
        return ended

    def get_next_inputs(self, step: int, rows: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the token each row feeds and its position; rows that have ended write beyond their end."""
        chosen = np.array(rows)
        return self.tokens[chosen, step], self.lengths[chosen] + np.minimum(step, self.ends[chosen])

    def complete(self, index: int) -> Completion:
        end = int(self.ends[index])
        ids = self.tokens[index, :end].tolist()
        logprobs = tuple(self.logprobs[index, :end].tolist())
        return Completion(tuple(ids), logprobs, "stop" if ids[-1] in self._stops else "length")


class Fork(NamedTuple):
    """Rows that need a lane of their own, the owner first; so far they have the tokens in the slot of the row ``source``."""

    rows: list[int]
    source: int


class Parting(NamedTuple):
    """The changes of lanes after a step in which rows of a lane differ."""

    handed: list[tuple[int, int]]
    """An owner that has ended, and the row that gets its slot."""
    forks: list[Fork]


class Lanes:
    """``rows`` are still generating, each in its ``lane`` at a ``place``; ``owners[lane]`` is the row with this slot.

    ``sources[row]`` leads to the row whose slot holds a row's tokens: itself, or another with the same tokens.
    """

    def __init__(self, texts: Sequence[Sequence[int]], cached: Sequence[int]) -> None:
        sets: dict[tuple[int, ...], list[int]] = {}
        for row, text in enumerate(texts):
            sets.setdefault(tuple(text), []).append(row)
        members = [sorted(rows, key=lambda row: (-cached[row], row)) for rows in sets.values()]
        self.owners = [rows[0] for rows in members]
        self.sources = list(range(len(texts)))
        self._set_members(members)

    def _set_members(self, members: Sequence[Sequence[int]]) -> None:
        """Note the members of every lane, its owner first."""
        for rows in members:
            for row in rows:
                self.sources[row] = rows[0]
        counts = np.array([len(rows) for rows in members])
        every = np.array([row for rows in members for row in rows], dtype=np.int64)
        self._tabulate(every, np.repeat(np.arange(len(members)), counts))

    def _tabulate(self, rows: Indices, lane: Indices) -> None:
        """Lay the rows, which are in the order of lanes, lane under lane; what a lane leaves free is filled with row 0."""
        counts = np.bincount(lane, minlength=len(self.owners))
        self.rows, self.lane = rows, lane
        self.place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.table = np.zeros((len(self.owners), int(counts.max(initial=1))), dtype=np.int64)
        self.table[lane, self.place] = rows

    @property
    def live(self) -> list[int]:
        """The lanes with rows that are still generating."""
        found: list[int] = np.unique(self.lane).tolist()
        return found

    def reorder(self, order: Sequence[int]) -> None:
        """Renumber the lanes: ``order`` are the old numbers of those that stay."""
        new = np.full(len(self.owners), -1)
        new[order] = np.arange(len(order))
        lane = new[self.lane]
        sorting = np.argsort(lane, kind="stable")
        self.owners = [self.owners[old] for old in order]
        self._tabulate(self.rows[sorting], lane[sorting])

    def part(self, said: Indices, ended: NDArray[np.bool_]) -> Parting:
        """Split the rows by their tokens; finished rows leave, and diverging ones wait for ``add``."""
        if self.table.shape[1] == 1:
            if ended.any():
                self._tabulate(self.rows[~ended], self.lane[~ended])
            return Parting([], [])
        parts: dict[tuple[int, int], list[int]] = {}
        for row, lane, token, over in zip(
            *(part.tolist() for part in (self.rows, self.lane, said, ended)), strict=True
        ):
            if not over:
                parts.setdefault((lane, token), []).append(row)
        parting = Parting([], [])
        members: list[list[int]] = [[] for _ in self.owners]
        for (lane, _), rows in parts.items():
            if members[lane]:
                parting.forks.append(Fork(rows, self.owners[lane]))
                continue
            members[lane] = rows
            before, self.owners[lane] = self.owners[lane], rows[0]
            if before != rows[0]:
                parting.handed.append((before, rows[0]))
                self.sources[before] = rows[0]
        self._set_members(members)
        return parting

    def add(self, sets: Sequence[list[int]]) -> None:
        """Give the rows of each set another lane."""
        lanes: list[list[int]] = [[] for _ in self.owners]
        for row, lane in zip(self.rows.tolist(), self.lane.tolist(), strict=True):
            lanes[lane].append(row)
        self.owners += [rows[0] for rows in sets]
        self._set_members([*lanes, *sets])

    def find_source(self, row: int) -> int:
        """Return the row whose slot holds a row's tokens."""
        while self.sources[row] != row:
            row = self.sources[row]
        return row
