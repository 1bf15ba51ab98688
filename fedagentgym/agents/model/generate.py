"""Sessions on a torch model: many growing rows over one slot cache.

What a row holds is a list of token ids, of which the first ``cached`` have keys and values. Everything else follows: given
tokens are only noted; the next ``generate`` runs whatever is not cached (the last reply's stop token, the observation) in one
go, rows of similar length together, and then goes on token by token. A new row starts from the longest prefix that any slot
holds, which covers siblings that enter later and windows re-rendered every turn. Rows that run together form a tree, and what
several of them begin with, such as instructions, is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedagentgym.agents.model.cache import Chunks
from fedagentgym.agents.model.hf import Forward
from fedagentgym.agents.model.packed import count_shared, sort_rows
from fedagentgym.agents.model.replies import (
    ConstrainedReply,
    FreeReplies,
    Lanes,
    Parting,
    forbid_others,
    make_choice_table,
    sample_choices,
    sample_tokens,
)
from fedagentgym.agents.protocols import Completion, Constraint, Decoding
from fedagentgym.base.errors import DataError
from fedagentgym.base.process import GENERATED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedagentgym.base.streams import Stream

_MIN_SHARED_PREFIX = 8
"""A common prefix below this many tokens is not worth a copy."""


class BaseSession:
    """Base class of the sessions of all engines: they end once, and refuse a prompt without space for a reply.

    ``_rows`` are the engine's; ``on_close`` returns what the policy lent.
    """

    def __init__(self, context_length: int, on_close: Callable[[], object] | None = None) -> None:
        self.context_length = context_length
        self._rows: dict[int, Any] = {}
        self._next = 0
        self._on_close = on_close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        self._rows.clear()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        for prompt in prompts:
            if not prompt:
                raise DataError("a prompt of no tokens cannot be continued")
            if len(prompt) >= self.context_length:
                raise DataError(
                    f"a prompt of {len(prompt)} tokens does not fit into the model's context of {self.context_length}: "
                    "shorten the prompt (template, history) or use a model with a longer context"
                )


@dataclass(slots=True, eq=False)
class _Row:
    slot: int
    ids: list[int]
    cached: int
    fresh: bool = True
    """True if it has not been run yet."""


class TorchSession(BaseSession):
    """``protocols.Session`` over a ``Forward``. ``on_close`` gives back what the policy lent (merged adapters)."""

    def __init__(self, forward: Forward, context_length: int, stop_ids: frozenset[int], on_close: Any = None) -> None:
        super().__init__(context_length, on_close)
        self.forward, self.slots = forward, forward.slots
        self.stop_ids = stop_ids
        """Replies end at these tokens and no others."""
        self._rows: dict[int, _Row] = {}
        self._free = list(range(self.slots.count))
        self._held = np.full((self.slots.count, self.slots.columns), -1, dtype=np.int32)

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
        leaders = {ids: self._open_one(ids) for ids in dict.fromkeys(wanted)}
        return self._copy_again([leaders[ids] for ids in wanted])

    def _open_one(self, ids: tuple[int, ...]) -> int:
        known, donor = self._find_longest_prefix(ids)
        slot = self._take_slot(donor)
        if donor is not None and slot != donor:
            self.slots.copy_columns(donor, [slot], 0, known)
            self._held[slot, :known] = self._held[donor, :known]
        self._held[slot, known:] = -1
        return self._add_row(slot, ids, known)

    def _run_common_beginnings(self, rows: list[_Row]) -> None:
        """Run what several rows begin with once: level by level of their tree, where it saves more tokens than a pass costs."""
        for row in rows:
            row.fresh = False
        distinct = {tuple(row.ids): row for row in sorted(rows, key=lambda row: row.cached)}
        rows = [row for row in distinct.values() if row.cached < len(row.ids) - 1]
        for branches in _iter_levels([row.ids[:-1] for row in rows]):
            shared = [([rows[index] for index in branch.rows], branch.end) for branch in branches]
            donors = [max(members, key=lambda row: row.cached) for members, _ in shared]
            missing = [sum(max(end - row.cached, 0) for row in members) for members, end in shared]
            run = [(donor, end) for donor, (_, end) in zip(donors, shared, strict=True) if donor.cached < end]
            if sum(missing) - sum(end - donor.cached for donor, end in run) <= self.forward.pass_cost:
                continue
            if run:
                self._run_chunks([donor for donor, _ in run], [donor.ids[donor.cached : end] for donor, end in run])
            for donor, (members, end) in zip(donors, shared, strict=True):
                self._copy_beginning(donor, [row for row in members if row.cached < end], end)

    def _copy_beginning(self, donor: _Row, rows: list[_Row], end: int) -> None:
        """Give rows the first tokens of another."""
        first = min((row.cached for row in rows), default=end)
        if first < end:
            self.slots.copy_columns(donor.slot, [row.slot for row in rows], first, end)
        for row in rows:
            row.cached = end
            self._held[row.slot, :end] = donor.ids[:end]

    def _copy_again(self, wanted: Sequence[int]) -> list[int]:
        """Return the wanted rows; where one is wanted again, a copy of it."""
        opened: dict[int, None] = {}
        copied: list[tuple[int, _Row]] = []
        for number in wanted:
            if number in opened:
                leader = self._rows[number]
                copied.append((self._take_slot(None), leader))
                number = self._add_row(copied[-1][0], leader.ids, leader.cached)
            opened[number] = None
        if copied:
            targets, sources = [slot for slot, _ in copied], [leader.slot for _, leader in copied]
            self.slots.copy_slots(targets, sources, max(leader.cached for _, leader in copied))
            self._held[targets] = self._held[sources]
        return list(opened)

    def _add_row(self, slot: int, ids: Sequence[int], cached: int) -> int:
        self._next += 1
        self._rows[self._next] = _Row(slot, list(ids), cached)
        return self._next

    def _take_slot(self, preferred: int | None) -> int:
        if preferred in self._free:
            self._free.remove(preferred)
            return preferred
        return self._free.pop(0)

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
        self.slots.reserve(rows, columns, self.context_length)
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
        fits = [index for index, row in enumerate(rows) if len(self._rows[row].ids) + most <= self.context_length]
        answers = [Completion((), (), "context")] * len(rows)
        if fits:
            working = [self._rows[rows[index]] for index in fits]
            self._reserve(0, max(len(row.ids) for row in working) + most)
            self._run_common_beginnings([row for row in working if row.fresh])
            if constraints is None or all(constraints[index] is None for index in fits):
                found = self._speak_freely(working, uniforms[fits], decoding)
            else:
                found = self._speak_within(working, uniforms[fits], decoding, [constraints[index] for index in fits])
            for index, answer in zip(fits, found, strict=True):
                answers[index] = answer
        return answers

    def _speak_within(
        self,
        rows: list[_Row],
        uniforms: NDArray[np.float64],
        decoding: Decoding,
        constraints: Sequence[Constraint | None],
    ) -> list[Completion]:
        """Run the model wherever a constraint leaves a choice; rows reach their next choice after different numbers of tokens."""
        most = decoding.max_new_tokens
        replies = [
            ConstrainedReply(row.ids, rule, most, self.stop_ids) for row, rule in zip(rows, constraints, strict=True)
        ]
        while live := [index for index, reply in enumerate(replies) if not reply.over]:
            choices = [replies[index].choices for index in live]
            table = make_choice_table(choices, self.slots.device)
            logits = self._run_uncached([rows[index] for index in live], None if table is None else table.clamp(min=0))
            chance = torch.as_tensor(uniforms[live, [replies[index].said for index in live]], device=self.slots.device)
            if table is None:
                drawn = sample_tokens(forbid_others(logits, choices), chance, decoding.temperature, decoding.top_p)
            else:
                drawn = sample_choices(logits, chance, table, decoding.temperature, decoding.top_p)
            for index, token, logprob in zip(live, drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True):
                before = replies[index].said
                replies[index].say(token, logprob)
                GENERATED.tokens += replies[index].said - before
        return [reply.complete() for reply in replies]

    def _speak_freely(self, rows: list[_Row], uniforms: NDArray[np.float64], decoding: Decoding) -> list[Completion]:
        """Let all rows generate a token at a time, rows with equal tokens as one."""
        most = decoding.max_new_tokens
        replies = FreeReplies([len(row.ids) for row in rows], most, self.stop_ids)
        lanes = Lanes([row.ids for row in rows], [row.cached for row in rows])
        self._gather_lanes(rows, lanes)
        logits = self._run_uncached([rows[owner] for owner in lanes.owners])
        for step in range(most):
            chance = torch.from_numpy(uniforms[lanes.table, step]).to(self.slots.device)
            drawn = sample_tokens(logits, chance, decoding.temperature, decoding.top_p)
            said, logprobs = (part.cpu().numpy()[lanes.lane, lanes.place] for part in drawn)
            GENERATED.tokens += len(said)
            ended = replies.say(step, lanes.rows, said, logprobs)
            if step == most - 1 or ended.all():
                break
            self._part_lanes(rows, lanes, lanes.part(said, ended), int(replies.lengths.max()) + step)
            if ended.any() and len(lanes.live) <= len(lanes.owners) // 2:
                self._gather_lanes(rows, lanes)
            logits = self._step(*replies.get_next_inputs(step, lanes.owners))
        return self._finish_replies(rows, replies, lanes)

    def _gather_lanes(self, rows: list[_Row], lanes: Lanes) -> None:
        """Move the lanes that are still generating into the first slots."""
        live = lanes.live
        self._bring([rows[lanes.owners[lane]] for lane in live], 0, _find_idle_slots(rows, lanes))
        lanes.reorder(sorted(live, key=lambda lane: rows[lanes.owners[lane]].slot))

    def _part_lanes(self, rows: list[_Row], lanes: Lanes, parting: Parting, columns: int) -> None:
        """Give diverging rows the next slots, and a copy of their tokens so far."""
        for before, after in parting.handed:
            rows[before].slot, rows[after].slot = rows[after].slot, rows[before].slot
        if parting.forks:
            self._bring(
                [rows[fork.rows[0]] for fork in parting.forks], len(lanes.owners), _find_idle_slots(rows, lanes)
            )
            forks = sorted(parting.forks, key=lambda fork: rows[fork.rows[0]].slot)
            sources = [rows[fork.source].slot for fork in forks]
            self.slots.copy_slots([rows[fork.rows[0]].slot for fork in forks], sources, columns)
            lanes.add([fork.rows for fork in forks])

    def _finish_replies(self, rows: list[_Row], replies: FreeReplies, lanes: Lanes) -> list[Completion]:
        """Make the replies part of the rows; the last token of each has no keys and values yet."""
        answers = [replies.complete(index) for index in range(len(rows))]
        for row, answer in zip(rows, answers, strict=True):
            row.ids.extend(answer.token_ids)
            row.cached = len(row.ids) - 1
            self._held[row.slot] = -1
            self._held[row.slot, : row.cached] = row.ids[:-1]
        copied = [(row, rows[lanes.find_source(index)]) for index, row in enumerate(rows)]
        copied = [(row, source) for row, source in copied if row is not source]
        if copied:
            columns = max(row.cached for row, _ in copied)
            self.slots.copy_slots([row.slot for row, _ in copied], [source.slot for _, source in copied], columns)
        return answers

    def _step(self, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Run one token of each of the first rows."""
        return self.forward.compute_logits(Chunks(ids, np.arange(len(ids)), positions, np.ones_like(ids)))

    def _run_uncached(self, rows: list[_Row], choices: Tensor | None = None) -> Tensor:
        """Run the rows' tokens beyond their caches; return the logits after their last tokens, all or those of ``choices``."""
        return self._run_chunks(rows, [row.ids[row.cached :] for row in rows], choices)

    def _run_chunks(self, rows: list[_Row], chunks: list[list[int]], choices: Tensor | None = None) -> Tensor:
        """Run one chunk per row and note it as cached; rows that hold the same tokens run once."""
        self._reserve(0, max(row.cached + len(chunk) for row, chunk in zip(rows, chunks, strict=True)))
        leaders, owner = _find_twins(rows, chunks, choices)
        found = [np.array(chunks[index], dtype=np.int64) for index in leaders]
        slots = np.array([rows[index].slot for index in leaders])
        cached = np.array([rows[index].cached for index in leaders])
        run = Chunks(np.concatenate(found), slots, cached, np.array([len(ids) for ids in found]))
        asked = choices if choices is None or len(leaders) == len(rows) else choices[leaders]
        logits = self.forward.compute_logits(run, asked)
        if len(leaders) < len(rows):
            logits = logits[torch.tensor(owner, device=logits.device)]
            self._copy_to_twins(rows, chunks, leaders, owner)
        for row, place in zip(rows, owner, strict=True):
            held, ids = self._held[row.slot], found[place]
            held[row.cached : row.cached + len(ids)] = ids
            row.cached += len(ids)
            held[row.cached :] = -1
        return logits

    def _copy_to_twins(self, rows: list[_Row], chunks: list[list[int]], leaders: list[int], owner: list[int]) -> None:
        """Copy the result of a row to others with the same tokens."""
        targets: list[list[int]] = [[] for _ in leaders]
        for index, place in enumerate(owner):
            if leaders[place] != index:
                targets[place].append(rows[index].slot)
        for index, slots in zip(leaders, targets, strict=True):
            if slots:
                row = rows[index]
                self.slots.copy_columns(row.slot, slots, row.cached, row.cached + len(chunks[index]))

    def _bring(self, rows: list[_Row], first: int, idle: set[int]) -> None:
        """Move these rows into the slots from ``first`` on, moving only those that are elsewhere.

        The rows there move to the freed slots; the content of ``idle`` slots is not needed.
        """
        wanted = range(first, first + len(rows))
        taken = {row.slot for row in rows}
        holes = [slot for slot in wanted if slot not in taken]
        if not holes:
            return
        strangers = [slot for slot in sorted(taken) if slot not in wanted]
        to_of = dict(zip([*holes, *strangers], [*strangers, *holes], strict=True))
        moved = {to: of for to, of in to_of.items() if of not in idle}
        if moved:
            self.slots.copy_slots(list(moved), list(moved.values()))
        self._held[list(to_of)] = self._held[list(to_of.values())]
        for row in self._rows.values():
            row.slot = to_of.get(row.slot, row.slot)
        self._free = [to_of.get(slot, slot) for slot in self._free]


class _Branch(NamedTuple):
    """Rows that have their first ``end`` tokens in common."""

    rows: list[int]
    end: int


def _iter_levels(texts: Sequence[Sequence[int]]) -> Iterator[list[_Branch]]:
    """Yield the branches of the tree of some rows of tokens, from the root on: sets of two or more rows, by their indices."""
    rows = [np.array(text, dtype=np.int64) for text in texts]
    order = sort_rows(rows)
    common = [count_shared(rows[one], rows[other]) for one, other in pairwise(order)]
    level = [(0, len(rows), 0)] if len(rows) > 1 else []
    while level:
        below = []
        for start, stop, depth in level:
            cuts = [start, *(place + 1 for place in range(start, stop - 1) if common[place] <= depth), stop]
            below += [(one, other, min(common[one : other - 1])) for one, other in pairwise(cuts) if other - one > 1]
        level = below
        if level:
            yield [_Branch(order[start:stop], end) for start, stop, end in level]


def _find_idle_slots(rows: list[_Row], lanes: Lanes) -> set[int]:
    """The slots of rows whose tokens another row's slot holds."""
    return {
        row.slot for row, index, source in zip(rows, range(len(rows)), lanes.sources, strict=True) if source != index
    }


def _find_twins(rows: list[_Row], chunks: list[list[int]], choices: Tensor | None) -> tuple[list[int], list[int]]:
    """Return the first of every set of rows with equal tokens and requests, and for each row the index of its first.

    Siblings stay together until their replies differ; early in an episode this saves most of a group's work.
    """
    asked = [b""] * len(rows) if choices is None else [line.tobytes() for line in choices.cpu().numpy()]
    places: dict[tuple[int, bytes, tuple[int, ...]], int] = {}
    leaders: list[int] = []
    owner: list[int] = []
    for index, (row, chunk) in enumerate(zip(rows, chunks, strict=True)):
        key = (row.cached, asked[index], tuple(row.ids[: row.cached + len(chunk)]))
        place = places.setdefault(key, len(leaders))
        if place == len(leaders):
            leaders.append(index)
        owner.append(place)
    return leaders, owner
