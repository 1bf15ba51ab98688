"""A policy whose updates span several devices: whole until the first one, then sharded, and gathered for play.

It wraps the policy that was loaded. A process that never trains, such as a server that only evaluates, thus
starts no other ranks.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.agents.engines.torch_policy import TorchPolicy, check_weights
from fedagentgym.agents.protocols import Decoding, Session
from fedagentgym.base.errors import OptionError
from fedagentgym.learning.rows import Row
from fedagentgym.learning.settings import LearningSettings, ShardingSettings, SupervisedSettings
from fedagentgym.learning.sharding.commands import (
    describe_model,
    examples_to_plain,
    learning_to_plain,
    make_whole_policy,
    rows_to_plain,
    supervised_to_plain,
)
from fedagentgym.learning.sharding.model import ShardedModel
from fedagentgym.learning.sharding.ranks import Ranks, list_devices, open_ranks
from fedagentgym.learning.supervised import Example, SupervisedTraining
from fedagentgym.learning.update import PolicyUpdate, check_exploration

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.agents.text.tokens import HuggingFaceTokenizer

Arrays = Mapping[str, NDArray[Any]]


def shard_agent(agent: TokenAgent, settings: ShardingSettings | None) -> TokenAgent:
    """The agent with a policy whose updates span the devices of the settings."""
    if settings is None or not settings.is_needed:
        return agent
    policy = agent.policy
    if not isinstance(policy, TorchPolicy):
        raise OptionError(
            f"learning.sharding is for agents that torch plays and trains, {agent.name!r} is not one: set"
            " agent.rollouts=torch or leave out learning.sharding"
        )
    return replace(agent, policy=ShardedPolicy(policy, settings))


class ShardedPolicy:
    """`TrainablePolicy` around one in this process. Rank 0 plays, on all weights, while the others wait."""

    def __init__(self, whole: TorchPolicy, settings: ShardingSettings) -> None:
        self._whole, self.settings = whole, settings
        self.name, self.context_length = whole.name, whole.context_length
        self.tokenizer: HuggingFaceTokenizer = whole.tokenizer
        self.model: torch.nn.Module = whole.model
        self.device = whole.device
        self.number = 0
        self._ranks: Ranks | None = None
        self._parts: ShardedModel | None = None
        self._sessions = 0

    @property
    def version(self) -> int:
        return self._whole.version

    def bump_version(self) -> None:
        self._whole.bump_version()

    @property
    def ranks(self) -> Ranks:
        """The group that holds the parts; it starts with the first update."""
        if self._ranks is None:
            self._ranks = open_ranks(list_devices(self.device, self.settings.devices))
        return self._ranks

    def spread(self) -> ShardedModel:
        """This rank's part, after the others have theirs. It is trained only while nobody plays."""
        if self._sessions:
            raise OptionError("a policy whose updates span several devices is trained only while no session is open")
        if self._parts is None:
            self.number = self.ranks.make_number()
            described = describe_model(self.model, self._whole.adapter)
            offload = self.settings.offload
            with self.ranks.together("sharding", self.number, described=described, offload=offload):
                self._parts = ShardedModel(self.model, self.ranks.mesh, self.device, offload, self.bump_version)
            weakref.finalize(self, self.ranks.drop, self.number)
        return self._parts

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return self._whole.parameters()

    def get_weights(self) -> dict[str, NDArray[Any]]:
        if self._parts is None or self._sessions:
            return self._whole.get_weights()
        with self.ranks.together("a look at the weights", self.number):
            return self._parts.get_weights()

    def set_weights(self, weights: Arrays) -> None:
        if self._parts is None:
            self._whole.set_weights(weights)
            return
        parts = self.spread()
        check_weights(weights, parts.parameters())
        with self.ranks.together("a change of the weights", self.number):
            parts.set_weights(weights)

    def open_update(
        self, decoding: Decoding, settings: LearningSettings, proximal: float, base: Arrays | None
    ) -> PolicyUpdate:
        return ShardedUpdate(self, decoding, settings, proximal=proximal, base=base)

    def open_imitation(self, settings: SupervisedSettings) -> SupervisedTraining:
        return ShardedImitation(self, settings)

    def open_session(self) -> Session:
        """Rows on all weights, which stay gathered until the last session is closed."""
        self._count_in()
        return self._whole.open_session(self._count_out)

    @contextlib.contextmanager
    def put_together(self) -> Iterator[None]:
        """For the duration of a computation here with all weights."""
        self._count_in()
        try:
            yield
        finally:
            self._count_out()

    def _count_in(self) -> None:
        if self._parts is not None and not self._sessions:
            with self.ranks.together("gathering", self.number):
                self._parts.gather()
        self._sessions += 1

    def _count_out(self) -> None:
        self._sessions -= 1
        if not self._sessions and self._parts is not None:
            self._parts.release()

    def save(self, folder: str | Path) -> None:
        if self._parts is None:
            self._whole.save(folder)
            return
        parts = self.spread()
        with self.ranks.together("a look at all weights", self.number):
            weights = parts.get_all_weights()
        make_whole_policy(self._whole, weights).save(folder)

    def close(self) -> None:
        self._whole.close()


class ShardedUpdate(PolicyUpdate):
    """A `PolicyUpdate` on every rank: all ranks execute each call."""

    def __init__(
        self,
        policy: ShardedPolicy,
        decoding: Decoding,
        settings: LearningSettings,
        *,
        proximal: float = 0.0,
        base: Arrays | None = None,
    ) -> None:
        check_exploration(decoding)
        parts = policy.spread()
        chosen = _recompute_on_gpu(settings, policy.device)
        self._ranks, self._model, self._number = policy.ranks, policy.number, policy.ranks.make_number()
        told = {"decoding": decoding.model_dump(mode="json"), "learning": learning_to_plain(chosen)}
        with self._together(
            "the start of an update", model=policy.number, proximal=float(proximal), base=base is not None, **told
        ):
            super().__init__(parts, decoding, chosen, proximal=proximal, base=base, passes=parts)
        weakref.finalize(self, self._ranks.drop, self._number)

    def _together(self, do: str, **arguments: Any) -> AbstractContextManager[None]:
        return self._ranks.together(do, self._number, **arguments)

    def load(self, weights: Arrays, optimizer: Arrays, anchor: Arrays) -> None:
        check_weights(weights, self._masters.full)
        counts = np.array(optimizer["counts"]) if optimizer else None
        with self._together("the load of a site", model=self._model, counts=counts, anchor=bool(anchor)):
            super().load(weights, optimizer, anchor)

    def get_weights(self) -> dict[str, NDArray[Any]]:
        with self._together("a look at the update's weights"):
            return super().get_weights()

    def get_optimizer_state(self) -> dict[str, NDArray[Any]]:
        with self._together("a look at the moments"):
            return super().get_optimizer_state()

    def get_anchor_weights(self) -> dict[str, NDArray[Any]]:
        with self._together("a look at the anchor"):
            return super().get_anchor_weights()

    def train_step(self, rows: Sequence[Row], rate: float = 1.0, order: int = 0) -> dict[str, float]:
        with self._together("a policy step", rows=rows_to_plain(rows), rate=float(rate), order=order):
            return super().train_step(rows, rate, order)

    def score_rows(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        with self._together("the scoring of rows", rows=rows_to_plain(rows)):
            return super().score_rows(rows)

    def compute_bias_gradient(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        with self._together("a gradient at the last block", rows=rows_to_plain(rows)):
            return super().compute_bias_gradient(rows)


class ShardedImitation(SupervisedTraining):
    """A `SupervisedTraining` that every rank has."""

    def __init__(self, policy: ShardedPolicy, settings: SupervisedSettings) -> None:
        parts = policy.spread()
        self._ranks, self._number = policy.ranks, policy.ranks.make_number()
        told = supervised_to_plain(settings)
        with self._ranks.together("the start of imitation", self._number, model=policy.number, settings=told):
            super().__init__(parts, settings, passes=parts)
        weakref.finalize(self, self._ranks.drop, self._number)

    def train_step(self, batch: Sequence[Example]) -> float:
        with self._ranks.together("a supervised step", self._number, batch=examples_to_plain(batch)):
            return super().train_step(batch)


def _recompute_on_gpu(settings: LearningSettings, device: torch.device) -> LearningSettings:
    """On a GPU products use bfloat16 copies of the weights, which a backward pass would hold whole until its end: the blocks'
    activations are recomputed instead."""
    return settings.model_copy(update={"checkpointing": True}) if device.type == "cuda" else settings
