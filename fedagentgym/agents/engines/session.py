"""Sessions on a torch model: many growing rows over one slot cache.

What a row holds is a list of token ids, of which the first ``cached`` have keys and values. Everything else follows: given
tokens are only noted; the next ``generate`` runs whatever is not cached (the last reply's stop token, the observation) in one
go, rows of similar length together, and then goes on token by token. A new row starts from the longest prefix that any slot
holds, which covers copies of a prompt, siblings that enter later, instructions that all tasks share, and windows re-rendered
every turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedagentgym.agents.engines.forwards import Forward
from fedagentgym.agents.engines.row_session import BaseSession
from fedagentgym.agents.engines.sampling import sample_allowed_tokens, sample_tokens
from fedagentgym.agents.protocols import Completion, Constraint, Decoding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedagentgym.base.streams import Stream

_MIN_SHARED_PREFIX = 8
"""A common prefix below this many tokens is not worth a copy."""
_MAX_TOKENS_PER_PASS = 32_768
"""Tokens (padding included) that go through the model in one pass: bounds the memory of long prompts."""


class _Row:
    __slots__ = ("cached", "ids", "slot")

    def __init__(self, slot: int, ids: list[int], cached: int) -> None:
        self.slot, self.ids, self.cached = slot, ids, cached


class TorchSession(BaseSession):
    """``policy.Session`` over a ``Forward``. ``on_close`` gives back what the policy lent (merged adapters)."""

    def __init__(
        self, forward: Forward, context_length: int, stop_ids: frozenset[int], pad_id: int, on_close: Any = None
    ) -> None:
        super().__init__(context_length, on_close)
        self.forward, self.slots, self.pad_id = forward, forward.slots, pad_id
        self.set_stop_ids(stop_ids)
        self._rows: dict[int, _Row] = {}
        self._free: list[int] = []
        self._held = np.full((0, 0), -1, dtype=np.int32)

    def set_stop_ids(self, ids: Iterable[int]) -> None:
        """Let replies end at these tokens and no others."""
        self.stop_ids = frozenset(ids)
        self._stops = np.array(sorted(self.stop_ids), dtype=np.int64)

    def length(self, row: int) -> int:
        return len(self._rows[row].ids)

    def drop(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._free.append(self._rows.pop(row).slot)

    def append(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> None:
        for row, chunk in zip(rows, chunks, strict=True):
            self._rows[row].ids.extend(chunk)

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> list[int]:
        self._check_prompts(prompts)
        wanted = [tuple(prompt) for prompt in prompts for _ in range(copies)]
        self._reserve(len(self._rows) + len(wanted), max(map(len, wanted), default=0))
        siblings: dict[tuple[int, ...], list[int]] = {}
        for place, ids in enumerate(wanted):
            siblings.setdefault(ids, []).append(place)
        leaders = {ids: self._open_one(ids) for ids in siblings}
        self._prefill([self._rows[leaders[ids]] for ids, places in siblings.items() if len(places) > 1])
        opened = [-1] * len(wanted)
        for ids, places in siblings.items():
            for place, row in zip(places, [leaders[ids], *self._copy_rows(leaders[ids], len(places) - 1)], strict=True):
                opened[place] = row
        return opened

    def _open_one(self, ids: tuple[int, ...]) -> int:
        known, donor = self._find_longest_prefix(ids)
        slot = self._take_slot(donor)
        if donor is not None and slot != donor:
            self._copy_prefix(donor, [slot], known)
        self._held[slot, known:] = -1
        return self._add_row(slot, ids, known)

    def _prefill(self, rows: list[_Row]) -> None:
        """Run all but the last token of prompts that several rows share."""
        waiting = [row for row in rows if row.cached < len(row.ids) - 1]
        for group in _group_by_length([len(row.ids) - row.cached for row in waiting]):
            chosen = [waiting[index] for index in group]
            self._run_chunks(chosen, [row.ids[row.cached : -1] for row in chosen])

    def _copy_rows(self, first: int, count: int) -> list[int]:
        if not count:
            return []
        leader = self._rows[first]
        slots = [self._take_slot(None) for _ in range(count)]
        self._copy_prefix(leader.slot, slots, leader.cached)
        return [self._add_row(slot, leader.ids, leader.cached) for slot in slots]

    def _add_row(self, slot: int, ids: Sequence[int], cached: int) -> int:
        self._next += 1
        self._rows[self._next] = _Row(slot, list(ids), cached)
        return self._next

    def _take_slot(self, preferred: int | None) -> int:
        if preferred in self._free:
            self._free.remove(preferred)
            return preferred
        return self._free.pop(0)

    def _copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        if length:
            self.slots.copy_prefix(source, targets, length)
        self._held[targets] = -1
        self._held[targets, :length] = self._held[source, :length]

    def _find_longest_prefix(self, ids: tuple[int, ...]) -> tuple[int, int | None]:
        """Return how many leading tokens some slot holds, and which; the last token is always left to be run."""
        if not len(self._held) or len(ids) <= _MIN_SHARED_PREFIX:
            return 0, None
        differs = self._held[:, : len(ids) - 1] != np.array(ids[:-1], dtype=np.int32)
        lengths = np.where(differs.any(axis=1), differs.argmax(axis=1), len(ids) - 1)
        best = int(lengths.max())
        if best < _MIN_SHARED_PREFIX:
            return 0, None
        free = [slot for slot in self._free if lengths[slot] == best]
        return best, free[0] if free else int(lengths.argmax())

    def _reserve(self, rows: int, columns: int) -> None:
        before = self.slots.count
        self.slots.reserve(rows, columns)
        if self._held.shape != (self.slots.count, self.slots.columns):
            grown = np.full((self.slots.count, self.slots.columns), -1, dtype=np.int32)
            grown[: self._held.shape[0], : self._held.shape[1]] = self._held
            self._held = grown
        self._free.extend(range(before, self.slots.count))

    def generate(
        self,
        rows: Sequence[int],
        streams: Sequence[Stream],
        decoding: Decoding,
        constraints: Sequence[Constraint | None] | None = None,
    ) -> list[Completion]:
        most = decoding.max_new_tokens
        uniforms = np.stack([stream.uniform(most) for stream in streams]) if rows else np.zeros((0, most))
        fits = [index for index, row in enumerate(rows) if self.length(row) + most <= self.context_length]
        answers = [Completion((), (), "context")] * len(rows)
        if fits:
            working = [self._rows[rows[index]] for index in fits]
            rules = None if constraints is None else [constraints[index] for index in fits]
            for index, answer in zip(fits, self._generate(working, uniforms[fits], decoding, rules), strict=True):
                answers[index] = answer
        return answers

    def _generate(
        self,
        rows: list[_Row],
        uniforms: NDArray[np.float64],
        decoding: Decoding,
        constraints: Sequence[Constraint | None] | None,
    ) -> list[Completion]:
        most = decoding.max_new_tokens
        self._reserve(0, max(len(row.ids) for row in rows) + most)
        self._move_to_front(rows)
        rules = (
            _ConstraintStates(constraints)
            if constraints is not None and any(rule is not None for rule in constraints)
            else None
        )
        said = _GenerationState(rows, uniforms, torch.as_tensor(uniforms, device=self.slots.device), rules)
        logits = self._run_uncached(said.sort_rows(rows))
        for step in range(most):
            self._sample_tokens(said, step, logits, decoding)
            said.mark_ended(step, self._stops)
            if step == most - 1 or not len(said.live):
                break
            if rules is not None:
                rules.advance(said.live, said.tokens[said.live, step])
            if len(said.live) <= len(said.order) // 2:
                self._move_to_front([rows[index] for index in said.live.tolist()])
                said.keep_live(rows)
            logits = self._step(*said.get_next_inputs(step, self.pad_id))
        return [self._finish_reply(row, said, index) for index, row in enumerate(rows)]

    def _sample_tokens(self, said: _GenerationState, step: int, logits: Tensor, decoding: Decoding) -> None:
        chance = said.chance[step]
        if said.rules is None:
            drawn = sample_tokens(logits, chance, decoding.temperature, decoding.top_p)
        else:
            allowed = said.get_allowed_tokens(range(logits.shape[-1]), (self.pad_id,))
            drawn = sample_allowed_tokens(logits, chance, allowed, decoding.temperature, decoding.top_p)
        said.tokens[said.order, step] = drawn.ids.cpu().numpy()
        said.logprobs[said.order, step] = drawn.logprobs.cpu().numpy()

    def _finish_reply(self, row: _Row, said: _GenerationState, index: int) -> Completion:
        """Make the reply part of the row; its last token has no keys and values yet."""
        end = int(said.ends[index])
        ids = said.tokens[index, :end].tolist()
        held = len(row.ids)
        row.ids.extend(ids)
        row.cached = len(row.ids) - 1
        self._held[row.slot, held : row.cached] = ids[:-1]
        logprobs = tuple(said.logprobs[index, :end].tolist())
        allowed = tuple(said.rules.seen[index]) if said.rules is not None else ()
        return Completion(tuple(ids), logprobs, "stop" if ids[-1] in self.stop_ids else "length", allowed)

    def _step(self, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        window = self.slots.prepare_window(len(ids), positions, 1)
        tokens = torch.from_numpy(ids).to(self.slots.device)
        return self.forward.compute_logits(window, tokens.unsqueeze(1), torch.zeros_like(tokens))

    def _run_uncached(self, rows: list[_Row]) -> Tensor:
        """Run what the rows hold beyond their caches; return the logits after their last tokens."""
        chunks = [row.ids[row.cached :] for row in rows]
        groups = _group_by_length([len(chunk) for chunk in chunks])
        found = [self._run_chunks([rows[i] for i in group], [chunks[i] for i in group]) for group in groups]
        if len(groups) == 1:
            return found[0]
        back = np.argsort(np.concatenate(groups))
        return torch.cat(found)[torch.from_numpy(back).to(self.slots.device)]

    def _run_chunks(self, rows: list[_Row], chunks: list[list[int]]) -> Tensor:
        """Run one chunk per row and note it as cached."""
        lengths = [len(chunk) for chunk in chunks]
        longest = max(lengths)
        self._reserve(0, max(row.cached for row in rows) + longest)
        ids = np.full((len(rows), longest), self.pad_id)
        for line, chunk in zip(ids, chunks, strict=True):
            line[: len(chunk)] = chunk
        slots = [row.slot for row in rows]
        first = np.array([row.cached for row in rows])
        window = self.slots.prepare_window(len(rows) if slots == list(range(len(rows))) else slots, first, longest)
        last = torch.tensor(lengths, device=self.slots.device) - 1
        logits = self.forward.compute_logits(window, torch.from_numpy(ids).to(self.slots.device), last)
        for row, chunk in zip(rows, chunks, strict=True):
            held = self._held[row.slot]
            held[row.cached : row.cached + len(chunk)] = chunk
            row.cached += len(chunk)
            held[row.cached :] = -1
        return logits

    def _move_to_front(self, rows: list[_Row]) -> None:
        """Bring these rows into the first slots, moving only those that stand elsewhere."""
        taken = {row.slot for row in rows}
        holes = [slot for slot in range(len(rows)) if slot not in taken]
        if not holes:
            return
        strangers = [slot for slot in sorted(taken) if slot >= len(rows)]
        to_of = dict(zip([*holes, *strangers], [*strangers, *holes], strict=True))
        self.slots.permute(list(to_of), list(to_of.values()))
        self._held[list(to_of)] = self._held[list(to_of.values())]
        for row in self._rows.values():
            row.slot = to_of.get(row.slot, row.slot)
        self._free = [to_of.get(slot, slot) for slot in self._free]


def _group_by_length(lengths: list[int]) -> list[list[int]]:
    """Split indices into groups, in order of length, none drowned in padding and none too large for one pass."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    for index in order:
        length = lengths[index]
        if (
            not groups
            or length > 2 * lengths[groups[-1][0]] + 16
            or length * (len(groups[-1]) + 1) > _MAX_TOKENS_PER_PASS
        ):
            groups.append([])
        groups[-1].append(index)
    return groups if len(groups) != 1 else [list(range(len(lengths)))]


class _GenerationState:
    """What the rows of one call have said so far. ``order[i]`` is the row that stands in slot i; ``live`` ones still speak."""

    def __init__(
        self, rows: list[_Row], uniforms: NDArray[np.float64], chance: Tensor, rules: _ConstraintStates | None
    ) -> None:
        count, most = uniforms.shape
        self.tokens = np.zeros((count, most), dtype=np.int64)
        self.logprobs = np.zeros((count, most), dtype=np.float64)
        self.ends = np.full(count, most)
        self.lengths = np.array([len(row.ids) for row in rows])
        self.ended = np.zeros(count, dtype=bool)
        self.live = np.arange(count)
        self.rules = rules
        self._chance = chance
        self.keep_live(rows)

    def keep_live(self, rows: list[_Row]) -> None:
        """Go on with the rows that still speak, which now stand in the first slots."""
        slots = np.array([rows[index].slot for index in self.live.tolist()])
        self.live = self.order = self.live[np.argsort(slots)]
        self.chance = self._chance[torch.from_numpy(self.order).to(self._chance.device)].t().contiguous()

    def sort_rows(self, rows: list[_Row]) -> list[_Row]:
        return [rows[index] for index in self.order.tolist()]

    def mark_ended(self, step: int, stops: NDArray[np.int64]) -> None:
        stopped = self.live[np.isin(self.tokens[self.live, step], stops)]
        if len(stopped):
            self.ends[stopped] = step + 1
            self.ended[stopped] = True
            self.live = self.live[~self.ended[self.live]]

    def get_next_inputs(self, step: int, pad_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the token each row feeds and its position; rows that have ended write beyond their end."""
        ids = np.where(self.ended[self.order], pad_id, self.tokens[self.order, step])
        return ids, self.lengths[self.order] + np.minimum(step, self.ends[self.order])

    def get_allowed_tokens(self, every: range, nothing: tuple[int, ...]) -> list[Sequence[int]]:
        assert self.rules is not None
        return [
            nothing if self.ended[row] else self.rules.get_allowed_tokens(row, every) for row in self.order.tolist()
        ]


class _ConstraintStates:
    """The constraints of a call, one state per row, and what each row was allowed at every position."""

    def __init__(self, constraints: Sequence[Constraint | None]) -> None:
        self.constraints = constraints
        self.states = [None if rule is None else rule.start() for rule in constraints]
        self.seen: list[list[tuple[int, ...]]] = [[] for _ in constraints]

    def get_allowed_tokens(self, row: int, every: range) -> Sequence[int]:
        rule = self.constraints[row]
        if rule is None:
            return every
        ids = rule.get_allowed_tokens(self.states[row])
        self.seen[row].append(ids)
        return ids

    def advance(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            rule = self.constraints[row]
            if rule is not None:
                self.states[row] = rule.advance(self.states[row], token)
