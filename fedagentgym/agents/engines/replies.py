"""Growing replies: under a constraint one by one, without one all together.

A constraint often leaves a single token. Such a token needs no model: it is appended at once, with log-probability 0, and reaches
the model with the next chunk. So the model only runs where there is a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.agents.protocols import Completion, Constraint

if TYPE_CHECKING:
    from numpy.typing import NDArray


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

    def __init__(self, lengths: Sequence[int], most: int) -> None:
        count = len(lengths)
        self.tokens = np.zeros((count, most), dtype=np.int64)
        self.logprobs = np.zeros((count, most), dtype=np.float64)
        self.ends = np.full(count, most)
        self.lengths = np.array(lengths)

    def say(
        self,
        step: int,
        rows: NDArray[np.int64],
        tokens: NDArray[np.int64],
        logprobs: NDArray[np.float64],
        stop_ids: list[int],
    ) -> NDArray[np.bool_]:
        """Append tokens to rows; return which of them have ended."""
        self.tokens[rows, step] = tokens
        self.logprobs[rows, step] = logprobs
        ended = np.zeros(len(tokens), dtype=np.bool_)
        for stop in stop_ids:
            ended |= tokens == stop
        self.ends[rows[ended]] = step + 1
        return ended

    def get_next_inputs(self, step: int, rows: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the token each row feeds and its position; rows that have ended write beyond their end."""
        return self.tokens[rows, step], self.lengths[rows] + np.minimum(step, self.ends[rows])

    def complete(self, index: int, stop_ids: frozenset[int]) -> Completion:
        end = int(self.ends[index])
        ids = self.tokens[index, :end].tolist()
        logprobs = tuple(self.logprobs[index, :end].tolist())
        return Completion(tuple(ids), logprobs, "stop" if ids[-1] in stop_ids else "length")
