"""One batch for the rollouts of several learners that share a frozen model and have an adapter each.

The learners are members of a group (`base.together`). A learner that opens a session copies its adapter into an `AdapterBatch`,
so that the model can hold another learner's weights in the meantime. The rows of all sessions then generate as one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fedagentgym.agents.model.cached import AdapterBatch, CachedDecoder, list_adapters
from fedagentgym.agents.model.generate import MAX_ADAPTERS, TorchSession
from fedagentgym.agents.protocols import Completion, Constraint, Decoding, Session
from fedagentgym.base.together import Group, meet

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fedagentgym.agents.text.tokens import TextTokenizer

Changes = Mapping[str, "np.ndarray[Any, Any]"]


class AdapterPolicy(Protocol):
    """The part of `TorchPolicy` that is used here: a model with an adapter, whose frozen weights may be changed."""

    model: Any
    tokenizer: TextTokenizer
    context_length: int
    device: torch.device
    base_changes: Changes

    def claim(self) -> None: ...

    def set_base(self, changes: Changes) -> None: ...

    def bump_version(self) -> None: ...


class Asked(NamedTuple):
    """The arguments of one session's `_continue`."""

    rows: list[Any]
    uniforms: Sequence[NDArray[np.float64]]
    decoding: Decoding
    constraints: Sequence[Constraint | None]


class JoinedPlay:
    """The joint batch of a group's sessions on one policy."""

    def __init__(self, policy: AdapterPolicy, group: Group, rank: int) -> None:
        self.group, self.base = group, dict(policy.base_changes)
        self._policy, self._free = policy, list(range(min(group.size, MAX_ADAPTERS)))
        self._adapters = AdapterBatch(len(self._free), rank, policy.device)
        decoder = CachedDecoder(policy.model, policy.device, adapters=self._adapters)
        self.session = TorchSession(decoder, policy.context_length, policy.tokenizer.stop_ids)

    @property
    def used(self) -> bool:
        """True while a session is open."""
        return len(self._free) < self._adapters.count

    def fits(self, policy: AdapterPolicy, group: Group) -> bool:
        """Return whether a session can join: its group and the policy's frozen weights are those of this batch."""
        return group is self.group and _are_equal(self.base, policy.base_changes)

    def open(self) -> JoinedSession | None:
        """Open a session with the policy's present adapter. Returns None if there is no room or a weight is not finite."""
        if not self._free or not self._adapters.load(self._free[0]):
            return None
        adapter = self._free.pop(0)
        self.session.forget(adapter)
        return JoinedSession(self, adapter)

    def release(self, adapter: int) -> None:
        self._free.append(adapter)

    def serve(self, asked: Sequence[Asked]) -> list[list[Completion]]:
        """Continue the rows of several sessions with the same decoding."""
        # another member has changed the frozen weights, which this batch uses
        if not _are_equal(self.base, self._policy.base_changes):
            self._policy.claim()
            self._policy.set_base(self.base)
            self._policy.bump_version()
        found = self.session.continue_rows(
            [row for one in asked for row in one.rows],
            [uniform for one in asked for uniform in one.uniforms],
            asked[0].decoding,
            [rule for one in asked for rule in one.constraints],
        )
        ends = np.cumsum([len(one.rows) for one in asked])
        return [found[stop - len(one.rows) : stop] for one, stop in zip(asked, ends.tolist(), strict=True)]


def _are_equal(one: Changes, other: Changes) -> bool:
    return one is other or (
        one.keys() == other.keys() and all(np.array_equal(change, other[name]) for name, change in one.items())
    )


class JoinedSession(Session):
    """The rows of one member in the joint session."""

    def __init__(self, play: JoinedPlay, adapter: int) -> None:
        super().__init__(play.session.context_length, lambda: play.release(adapter))
        self._play, self._adapter = play, adapter

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> list[int]:
        opened = self._play.session.open(prompts, copies, self._adapter)
        self._rows.update((row, self._play.session.get_row(row)) for row in opened)
        return opened

    def drop(self, rows: Sequence[int]) -> None:
        super().drop(rows)
        self._play.session.drop(rows)

    def close(self) -> None:
        self._play.session.drop(list(self._rows))
        super().close()

    def _continue(
        self,
        rows: list[Any],
        uniforms: Sequence[NDArray[np.float64]],
        decoding: Decoding,
        constraints: Sequence[Constraint | None],
    ) -> list[Completion]:
        ruled = any(rule is not None for rule in constraints)
        return meet((self._play, decoding, ruled), self._play.serve, Asked(rows, uniforms, decoding, constraints))


def find_rank(model: Any) -> int | None:
    """Return the rank of a model's adapters; None if they cannot be stacked.

    They cannot if their ranks differ, a layer has several adapters, or the embedding or the head has one."""
    causal = model.get_base_model()
    if any(list_adapters(part) for part in (causal.model.embed_tokens, causal.lm_head)):
        return None
    found = [list_adapters(part) for part in causal.modules() if hasattr(part, "lora_A")]
    ranks = {low.shape[0] for adapters in found for low, _, _ in adapters}
    return ranks.pop() if len(ranks) == 1 and all(len(adapters) == 1 for adapters in found) else None
