"""Sessions on a torch model: many growing rows over one slot cache.

A row is a list of token ids, of which the first `cached` have keys and values. Appending tokens only extends the list. The next
`generate` runs all tokens that are not cached (the last reply's stop token, the observation) in one pass, rows of similar length
together, and then continues token by token. A new row starts from the longest prefix that any slot holds, which covers siblings
that enter later and windows that are rendered again every turn. Rows that run together form a prefix tree, and a prefix of
several rows, such as the instructions, is run once.

Each token is drawn by inverse CDF with one uniform, and recorded with its log-probability under exactly that distribution. A
constraint often allows a single token. Such a token needs no model: it is appended at once, with log-probability 0, and reaches
the model with the next chunk. So the model only runs where there is a choice.

Rows that hold the same tokens so far share a *lane*, a slot of the cache, which belongs to one of them, the owner. Copies of a
task often stay equal: most replies of a group share their beginnings, and greedy replies are the same throughout.

Rows may have different adapters. Keys and values depend on the adapter, so only rows of the same adapter share anything. For
comparisons each token is marked with its row's adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.agents.model.cache import Chunks
from fedagentgym.agents.model.hf import Forward
from fedagentgym.agents.model.packed import count_shared, sort_rows
from fedagentgym.agents.protocols import Completion, Constraint, Decoding, FinishReason, Session, SessionRow
from fedagentgym.base.process import GENERATED

Indices = NDArray[np.int64]
_MIN_SHARED_PREFIX = 8
"""A common prefix below this many tokens is not worth a copy."""


@dataclass(slots=True, eq=False)
class _Row(SessionRow):
    slot: int
    cached: int
    fresh: bool = True
    """True if the row has not been run yet."""
    adapter: int = 0

    def read(self, stop: int | None = None) -> Sequence[int]:
        """Return the row's tokens up to `stop`, marked with its adapter, for comparisons with other rows."""
        ids = self.ids[:stop]
        return [token + (self.adapter << _ADAPTER_BIT) for token in ids] if self.adapter else ids


_ADAPTER_BIT = 20
"""A marked token holds the number of its row's adapter from this bit on. Every vocabulary has fewer than 2^20 tokens."""
MAX_ADAPTERS = 1 << 31 - _ADAPTER_BIT - 1


class TorchSession(Session):
    """A session of a torch model. `on_close` undoes what the policy did for the session, such as merging adapters."""

    def __init__(self, forward: Forward, context_length: int, stop_ids: frozenset[int], on_close: Any = None) -> None:
        super().__init__(context_length, on_close)
        self.forward, self.slots = forward, forward.slots
        self.stop_ids = stop_ids
        """The tokens at which a reply ends."""
        self._rows: dict[int, _Row] = {}
        self._free = list(range(self.slots.count))
        self._held = np.full((self.slots.count, self.slots.columns), -1, dtype=np.int32)

    def get_row(self, row: int) -> SessionRow:
        return self._rows[row]

    def drop(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._free.append(self._rows.pop(row).slot)

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1, adapter: int = 0) -> list[int]:
        self._check_prompts(prompts)
        wanted = [tuple(prompt) for prompt in prompts for _ in range(copies)]
        self._reserve(len(self._rows) + len(wanted), max(map(len, wanted), default=0))
        leaders: dict[tuple[int, ...], int] = {}
        for ids in dict.fromkeys(wanted):
            row = _Row(list(ids), -1, 0, adapter=adapter)
            known, donor = self._find_longest_prefix(row.read())
            slot = donor if donor in self._free else self._free[0]
            self._free.remove(slot)
            if donor is not None and slot != donor:
                self.slots.copy_columns(donor, [slot], 0, known)
                self._held[slot, :known] = self._held[donor, :known]
            self._held[slot, known:] = -1
            row.slot, row.cached = slot, known
            leaders[ids] = self._add(row)
        opened: dict[int, None] = {}
        copied: list[tuple[int, _Row]] = []
        for number in (leaders[ids] for ids in wanted):
            if number not in opened:
                opened[number] = None
                continue
            leader, slot = self._rows[number], self._free.pop(0)
            copied.append((slot, leader))
            opened[self._add(_Row(list(leader.ids), slot, leader.cached, adapter=adapter))] = None
        if copied:
            targets, sources = [slot for slot, _ in copied], [leader.slot for _, leader in copied]
            self.slots.copy_slots(targets, sources, max(leader.cached for _, leader in copied))
            self._held[targets] = self._held[sources]
        return list(opened)

    def _find_longest_prefix(self, ids: Sequence[int]) -> tuple[int, int | None]:
        """Return the length of the longest prefix of `ids` that a slot holds, without the last token, and the slot.

        The last token is always run, since its logits are needed."""
        if not len(self._held) or len(ids) <= _MIN_SHARED_PREFIX:
            return 0, None
        differs = self._held[:, : len(ids) - 1] != np.array(ids[:-1], dtype=np.int32)
        lengths = np.where(differs.any(axis=1), differs.argmax(axis=1), len(ids) - 1)
        best = int(lengths.max())
        if best < _MIN_SHARED_PREFIX:
            return 0, None
        free = [slot for slot in self._free if lengths[slot] == best]
        return best, free[0] if free else int(lengths.argmax())

    def forget(self, adapter: int) -> None:
        """Discard the cached keys and values of an adapter, whose weights have changed."""
        self._held[self._held >> _ADAPTER_BIT == adapter] = -1

    def _reserve(self, rows: int, columns: int) -> None:
        before = self.slots.count
        self.slots.reserve(rows, columns, self.context_length)
        if self._held.shape != (self.slots.count, self.slots.columns):
            grown = np.full((self.slots.count, self.slots.columns), -1, dtype=np.int32)
            grown[: self._held.shape[0], : self._held.shape[1]] = self._held
            self._held = grown
        self._free.extend(range(before, self.slots.count))

    def continue_rows(
        self,
        rows: list[_Row],
        uniforms: Sequence[NDArray[np.float64]],
        decoding: Decoding,
        constraints: Sequence[Constraint | None],
    ) -> list[Completion]:
        """`generate` for rows with enough room."""
        self._reserve(0, max(len(row.ids) for row in rows) + decoding.max_new_tokens)
        self._run_common_beginnings([row for row in rows if row.fresh])
        if any(rule is not None for rule in constraints):
            return self._generate_constrained(rows, np.stack(uniforms), decoding, constraints)
        return self._generate_freely(rows, np.stack(uniforms), decoding)

    _continue = continue_rows

    def _run_common_beginnings(self, rows: list[_Row]) -> None:
        """Run common prefixes of rows once, level by level of their tree, where this saves more tokens than a pass costs."""
        for row in rows:
            row.fresh = False
        distinct = {tuple(row.read()): row for row in sorted(rows, key=lambda row: row.cached)}
        rows = [row for row in distinct.values() if row.cached < len(row.ids) - 1]
        for branches in _iter_levels([row.read(-1) for row in rows]):
            shared = [([rows[index] for index in members], end) for members, end in branches]
            donors = [max(members, key=lambda row: row.cached) for members, _ in shared]
            missing = [sum(max(end - row.cached, 0) for row in members) for members, end in shared]
            run = [(donor, end) for donor, (_, end) in zip(donors, shared, strict=True) if donor.cached < end]
            if sum(missing) - sum(end - donor.cached for donor, end in run) <= self.forward.pass_cost:
                continue
            if run:
                self._run([donor for donor, _ in run], ends=[end for _, end in run])
            for donor, (members, end) in zip(donors, shared, strict=True):
                short = [row for row in members if row.cached < end]
                first = min((row.cached for row in short), default=end)
                if first < end:
                    self.slots.copy_columns(donor.slot, [row.slot for row in short], first, end)
                for row in short:
                    row.cached = end
                    self._held[row.slot, :end] = donor.read(end)

    def _generate_constrained(
        self,
        rows: list[_Row],
        uniforms: NDArray[np.float64],
        decoding: Decoding,
        constraints: Sequence[Constraint | None],
    ) -> list[Completion]:
        """Run the model where a constraint allows several tokens. Rows reach such places after different numbers of tokens."""
        most, device = decoding.max_new_tokens, self.slots.device
        replies = [
            ConstrainedReply(row.ids, rule, most, self.stop_ids) for row, rule in zip(rows, constraints, strict=True)
        ]
        while live := [index for index, reply in enumerate(replies) if not reply.over]:
            choices = [replies[index].choices for index in live]
            table = make_choice_table(choices, device)
            logits = self._run([rows[index] for index in live], None if table is None else table.clamp(min=0))
            chance = torch.as_tensor(uniforms[live, [replies[index].said for index in live]], device=device)
            if table is None:
                drawn = sample_tokens(forbid_others(logits, choices), chance, decoding.temperature, decoding.top_p)
            else:
                drawn = sample_choices(logits, chance, table, decoding.temperature, decoding.top_p)
            for index, token, logprob in zip(live, drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True):
                before = replies[index].said
                replies[index].say(token, logprob)
                GENERATED.tokens += replies[index].said - before
        return [reply.complete() for reply in replies]

    def _generate_freely(self, rows: list[_Row], uniforms: NDArray[np.float64], decoding: Decoding) -> list[Completion]:
        """Let all rows generate one token at a time. Rows with equal tokens run as one."""
        most, stops = decoding.max_new_tokens, np.array(sorted(self.stop_ids))
        tokens, logprobs = np.zeros((len(rows), most), dtype=np.int64), np.zeros((len(rows), most))
        starts, lengths = np.array([len(row.ids) for row in rows]), np.full(len(rows), most)
        lanes = Lanes([row.read() for row in rows], [row.cached for row in rows])
        adapters_by_row = _list_adapters(rows)
        self._gather_lanes(rows, lanes)
        logits = self._run([rows[owner] for owner in lanes.owners])
        for step in range(most):
            chance = torch.from_numpy(uniforms[lanes.table, step]).to(self.slots.device)
            drawn = sample_tokens(logits, chance, decoding.temperature, decoding.top_p)
            said, chances = (part.cpu().numpy()[lanes.lane, lanes.place] for part in drawn)
            tokens[lanes.rows, step], logprobs[lanes.rows, step] = said, chances
            GENERATED.tokens += len(said)
            ended = (said[:, None] == stops).any(1)
            lengths[lanes.rows[ended]] = step + 1
            if step == most - 1 or ended.all():
                break
            # diverging rows get the next slots, with a copy of the keys and values so far
            handed, forks = lanes.part(said, ended)
            for before, after in handed:
                rows[before].slot, rows[after].slot = rows[after].slot, rows[before].slot
            if forks:
                self._bring(rows, lanes, [fork.rows[0] for fork in forks], len(lanes.owners))
                forks.sort(key=lambda fork: rows[fork.rows[0]].slot)
                sources = [rows[fork.source].slot for fork in forks]
                columns = int(starts.max()) + step
                self.slots.copy_slots([rows[fork.rows[0]].slot for fork in forks], sources, columns)
                lanes.add([fork.rows for fork in forks])
            if ended.any() and len(lanes.live) <= len(lanes.owners) // 2:
                self._gather_lanes(rows, lanes)
            # the next token of every lane; a lane whose rows have ended writes beyond its end
            owners = np.array(lanes.owners)
            positions = starts[owners] + np.minimum(step, lengths[owners])
            adapters = None if adapters_by_row is None else adapters_by_row[owners]
            fed = Chunks(tokens[owners, step], np.arange(len(owners)), positions, np.ones_like(owners), adapters)
            logits = self.forward.compute_logits(fed)
        answers = []
        copied = []
        for index, row in enumerate(rows):
            ids = tokens[index, : lengths[index]].tolist()
            finish: FinishReason = "stop" if ids[-1] in self.stop_ids else "length"
            answers.append(Completion(tuple(ids), tuple(logprobs[index, : len(ids)].tolist()), finish))
            row.ids.extend(ids)
            row.cached = len(row.ids) - 1  # the last token has no keys and values yet
            self._held[row.slot] = -1
            self._held[row.slot, : row.cached] = row.read(-1)
            if (source := rows[lanes.find_source(index)]) is not row:
                copied.append((row, source))
        if copied:
            columns = max(row.cached for row, _ in copied)
            self.slots.copy_slots([row.slot for row, _ in copied], [source.slot for _, source in copied], columns)
        return answers

    def _gather_lanes(self, rows: list[_Row], lanes: Lanes) -> None:
        """Move the lanes that are still generating into the first slots."""
        live = lanes.live
        self._bring(rows, lanes, [lanes.owners[lane] for lane in live], 0)
        lanes.reorder(sorted(live, key=lambda lane: rows[lanes.owners[lane]].slot))

    def _run(self, rows: list[_Row], choices: Tensor | None = None, ends: Sequence[int] | None = None) -> Tensor:
        """Run the rows' tokens that are not cached, or only those up to `ends`.

        Returns the logits after the last token of each row, for the whole vocabulary or for `choices`.

        Rows with equal tokens and choices run once. Siblings run as one until their replies differ; early in an episode this
        saves most of a group's work.
        """
        texts = [tuple(row.read(None if ends is None else ends[index])) for index, row in enumerate(rows)]
        self._reserve(0, max(map(len, texts)))
        asked = [b""] * len(rows) if choices is None else [line.tobytes() for line in choices.cpu().numpy()]
        places: dict[tuple[int, bytes, tuple[int, ...]], int] = {}
        leaders: list[int] = []
        owner: list[int] = []
        for index, row in enumerate(rows):
            place = places.setdefault((row.cached, asked[index], texts[index]), len(leaders))
            if place == len(leaders):
                leaders.append(index)
            owner.append(place)
        found = [np.array(rows[index].ids[rows[index].cached : len(texts[index])], dtype=np.int64) for index in leaders]
        slots = np.array([rows[index].slot for index in leaders])
        cached = np.array([rows[index].cached for index in leaders])
        lengths, adapters = np.array([len(ids) for ids in found]), _list_adapters([rows[index] for index in leaders])
        run = Chunks(np.concatenate(found), slots, cached, lengths, adapters)
        if len(leaders) == len(rows):
            logits = self.forward.compute_logits(run, choices)
        else:
            logits = self.forward.compute_logits(run, None if choices is None else choices[leaders])
            logits = logits[torch.tensor(owner, device=logits.device)]
            twins: dict[int, list[int]] = {}
            for index, place in enumerate(owner):
                if leaders[place] != index:
                    twins.setdefault(leaders[place], []).append(rows[index].slot)
            for index, targets in twins.items():
                self.slots.copy_columns(rows[index].slot, targets, rows[index].cached, len(texts[index]))
        for row, place in zip(rows, owner, strict=True):
            held, count = self._held[row.slot], len(found[place])
            held[row.cached : row.cached + count] = texts[leaders[place]][row.cached :]
            row.cached += count
            held[row.cached :] = -1
        return logits

    def _bring(self, rows: list[_Row], lanes: Lanes, chosen: Sequence[int], first: int) -> None:
        """Move the chosen rows into the slots from `first` on, if they are not there yet.

        Rows that leave these slots take the freed ones. The slot of a row that shares another row's lane is not copied.
        """
        wanted = range(first, first + len(chosen))
        taken = {rows[index].slot for index in chosen}
        holes = [slot for slot in wanted if slot not in taken]
        if not holes:
            return
        strangers = [slot for slot in sorted(taken) if slot not in wanted]
        to_of = dict(zip([*holes, *strangers], [*strangers, *holes], strict=True))
        idle = {rows[index].slot for index, source in enumerate(lanes.sources) if source != index}
        moved = {to: of for to, of in to_of.items() if of not in idle}
        if moved:
            self.slots.copy_slots(list(moved), list(moved.values()))
        self._held[list(to_of)] = self._held[list(to_of.values())]
        for row in self._rows.values():
            row.slot = to_of.get(row.slot, row.slot)
        self._free = [to_of.get(slot, slot) for slot in self._free]


def _list_adapters(rows: Sequence[_Row]) -> Indices | None:
    """Return the number of each row's adapter; None if all are 0."""
    return np.array([row.adapter for row in rows]) if any(row.adapter for row in rows) else None


def _iter_levels(texts: Sequence[Sequence[int]]) -> Iterator[list[tuple[list[int], int]]]:
    """Yield the branches of the prefix tree of some texts, level by level from the root.

    A branch is the indices of two or more texts, and the number of tokens that these texts have in common."""
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
            yield [(order[start:stop], end) for start, stop, end in level]


# ---- growing replies ---------------------------------------------------------------------------------------------------


class ConstrainedReply:
    """One reply, which is appended to `ids` as it grows. `choices` are the tokens that may come next; None allows all."""

    def __init__(self, ids: list[int], rule: Constraint | None, most: int, stop_ids: frozenset[int]) -> None:
        self.rule, self.over, self.said = rule, False, 0
        self.choices: Sequence[int] | None = None
        self._ids, self._most, self._stop_ids = ids, most, stop_ids
        self._logprobs: list[float] = []
        self._allowed: list[tuple[int, ...]] = []
        self._state: Any = None
        if rule is not None:
            self._state = rule.start()
            self.say()

    def say(self, token: int | None = None, logprob: float = 0.0) -> None:
        """Append a drawn token, if one is given, and all tokens that are forced after it."""
        while True:
            if token is not None:
                self._ids.append(token)
                self._logprobs.append(logprob)
                self.said += 1
                self.over = token in self._stop_ids or self.said == self._most
                if self.rule is None or self.over:
                    return
                self._state = self.rule.advance(self._state, token)
            assert self.rule is not None
            self.choices = allowed = self.rule.get_allowed_tokens(self._state)
            self._allowed.append(allowed)
            if len(allowed) > 1:
                return
            token, logprob = allowed[0], 0.0

    def complete(self) -> Completion:
        ids = tuple(self._ids[-self.said :])
        return Completion(
            ids, tuple(self._logprobs), "stop" if ids[-1] in self._stop_ids else "length", tuple(self._allowed)
        )


class Fork(NamedTuple):
    """Rows that need a new lane, its owner first. Their tokens so far are in the slot of the row `source`."""

    rows: list[int]
    source: int


class Lanes:
    """The rows that share a slot. `rows` are those still generating, each in its `lane` at a `place`; `owners[lane]` is the row
    to which the lane's slot belongs.

    Following `sources[row]` leads to the row whose slot holds the row's tokens: itself, or another row with the same tokens.
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
        """Set the members of every lane; its owner comes first."""
        for rows in members:
            for row in rows:
                self.sources[row] = rows[0]
        counts = np.array([len(rows) for rows in members])
        every = np.array([row for rows in members for row in rows], dtype=np.int64)
        self._tabulate(every, np.repeat(np.arange(len(members)), counts))

    def _tabulate(self, rows: Indices, lane: Indices) -> None:
        """Build the table of rows, with a line for each lane, from rows in the order of lanes. Free places are filled with 0."""
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
        """Renumber the lanes. `order` lists the old numbers of the lanes that stay."""
        new = np.full(len(self.owners), -1)
        new[order] = np.arange(len(order))
        lane = new[self.lane]
        sorting = np.argsort(lane, kind="stable")
        self.owners = [self.owners[old] for old in order]
        self._tabulate(self.rows[sorting], lane[sorting])

    def part(self, said: Indices, ended: NDArray[np.bool_]) -> tuple[list[tuple[int, int]], list[Fork]]:
        """Split the lanes by the tokens of their rows. Finished rows leave, and diverging rows wait for `add`.

        Returns the owners that have finished, each with the row that gets its slot, and the diverging rows.
        """
        if self.table.shape[1] == 1:
            if ended.any():
                self._tabulate(self.rows[~ended], self.lane[~ended])
            return [], []
        parts: dict[tuple[int, int], list[int]] = {}
        for row, lane, token, over in zip(
            *(part.tolist() for part in (self.rows, self.lane, said, ended)), strict=True
        ):
            if not over:
                parts.setdefault((lane, token), []).append(row)
        handed: list[tuple[int, int]] = []
        forks: list[Fork] = []
        members: list[list[int]] = [[] for _ in self.owners]
        for (lane, _), rows in parts.items():
            if members[lane]:
                forks.append(Fork(rows, self.owners[lane]))
                continue
            members[lane] = rows
            before, self.owners[lane] = self.owners[lane], rows[0]
            if before != rows[0]:
                handed.append((before, rows[0]))
                self.sources[before] = rows[0]
        self._set_members(members)
        return handed, forks

    def add(self, sets: Sequence[list[int]]) -> None:
        """Give each set of rows a new lane, which its first row owns."""
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


# ---- drawing tokens ----------------------------------------------------------------------------------------------------


class SampledTokens(NamedTuple):
    ids: Tensor
    logprobs: Tensor


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float, top_p: float = 1.0) -> SampledTokens:
    """Draw one column per row of `logits` [rows, columns] with `uniforms` [rows], or several with `uniforms` [rows, draws].

    The uniforms are strictly between 0 and 1, in float64. The cumulative sum is computed in float64 and compared with
    `u * total`, so a token is drawn with its probability up to the float32 rounding of that probability. Columns at minus
    infinity are never drawn.
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
    """Mark the smallest set of most likely columns whose probability reaches `top_p`; ties go to the lower id."""
    ordered, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, before < top_p)


def make_choice_table(choices: Sequence[Sequence[int] | None], device: torch.device) -> Tensor | None:
    """Stack sets of token ids, [rows, widest], padded with -1. Returns None if a row is not constrained."""
    lists = [ids for ids in choices if ids is not None]
    if len(lists) < len(choices):
        return None
    width = max(map(len, lists))
    return torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in lists], device=device)


def sample_choices(
    logits: Tensor, uniforms: Tensor, table: Tensor, temperature: float, top_p: float = 1.0
) -> SampledTokens:
    """Draw from the distribution renormalised over each row's choices; `logits` are those of the table's tokens."""
    drawn = sample_tokens(logits.float().masked_fill(table < 0, float("-inf")), uniforms, temperature, top_p)
    return SampledTokens(table.gather(-1, drawn.ids.unsqueeze(-1)).squeeze(-1), drawn.logprobs)


def forbid_others(logits: Tensor, choices: Sequence[Sequence[int] | None]) -> Tensor:
    """Set the logits of all tokens but each row's choices to minus infinity. Rows without choices keep all logits."""
    allowed = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    for line, ids in zip(allowed, choices, strict=True):
        line[slice(None) if ids is None else list(ids)] = True
    return logits.masked_fill(~allowed, float("-inf"))
