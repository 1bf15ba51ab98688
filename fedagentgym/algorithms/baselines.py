"""Baselines of federated methods: training on all tasks, training of one client alone, and no training.

    centralized  one site with the tasks of all clients, in the unchanged environment: the upper baseline. `pool: split` gives it
                 every task of the divided split, including those that no client holds and those of the roles: what the papers'
                 tables call centralized. `worlds: clients` plays each task in the world of a client that holds it
    local        one client alone, with its own tasks and environment, for the whole run: the lower baseline. The paper shows
                 clients 21, 42 and 84 of 100
    zero-shot    the initial agent: no client is called and nothing is learned

They run through the same loop as the federated methods, so that they commit rounds, can be resumed and have a learning curve.
The optimizer's state is kept between rounds. Nothing is sent, and no traffic is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.algorithms.base import BaseAlgorithm
from fedagentgym.algorithms.card import CLIENTS, SPLIT, Card, Scale, Work
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.runtime import Site
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive, stream
from fedagentgym.federation.algorithm import OPTIMIZER, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import Message
from fedagentgym.learning.rollouts import Rollouts
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import LocalReport, mean_metrics

if TYPE_CHECKING:
    from fedagentgym.learning.learner import LocalTraining

SITE = 0


class OneOptimizerSettings(AveragingSettings):
    """The settings of methods in which a site trains by itself."""

    keep_optimizer: bool = Field(
        default=True, description="one optimizer for the whole run, as in ordinary training without rounds"
    )


T = TypeVar("T", bound=OneOptimizerSettings)


class OneOptimizer(Averaging[T]):
    """Base class of methods in which a site trains by itself: by default it keeps its optimizer for the whole run."""

    @property
    def learning(self) -> LearningSettings:
        return self.runtime.learning.model_copy(update={"keep_optimizer": self.settings.keep_optimizer})


class CentralizedSettings(OneOptimizerSettings):
    """`algorithm: {name: centralized, local_steps: 3}`: `local_steps` policy steps between commits."""

    name: Literal["centralized"] = "centralized"
    pool: Literal["clients", "split"] = Field(
        default="clients",
        description="its tasks; clients: those that at least one client holds; split: all of the divided split",
    )
    worlds: Literal["unchanged", "clients"] = Field(
        default="unchanged",
        description="where its tasks are played: the unchanged environment, or the clients' variants",
    )

    @model_validator(mode="after")
    def _check_worlds(self) -> Self:
        if self.worlds == "clients" and self.pool == "split":
            raise ValueError("in the clients' variants only clients' tasks are played: leave out pool: split")
        return self


class Centralized(OneOptimizer[CentralizedSettings]):
    """FedAgent with a single client that holds the union of all clients' tasks, or the whole split."""

    settings_class: ClassVar[type[Settings]] = CentralizedSettings

    def client_ids(self) -> Sequence[int]:
        return [SITE]

    def resources(self, client: int) -> Site:
        return self._site

    @cached_property
    def _site(self) -> Site:
        client_split = self.runtime.client_split
        pool = client_split.pool
        if self.settings.pool == "clients":
            held = {task for client in client_split for task in client.tasks}
            pool = pool.subset([task for task in pool.ids if task in held])
        return self.runtime.get_site(SITE, env=self.runtime.open_env(pool=pool), learning=self.learning)

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """`local_steps` policy steps, in the unchanged environment or in the clients' variants."""
        if self.settings.worlds == "unchanged":
            return super().train_client(state, message, client)
        local = self.open_learner(client.resources, self.read_start(state, message, client))
        seed, metrics = client.derive("train"), []
        for _ in range(self.settings.local_steps):
            played = list(self._play_clients(local, seed))
            counted = mean_metrics([rollouts.compute_metrics() for rollouts in played])
            report = local.update([group for rollouts in played for group in rollouts.groups])
            metrics.append(counted | report.metrics)
        after, whole = local.get_state(), LocalReport(mean_metrics(metrics), tuple(metrics), report.groups)
        return Message(sets={OPTIMIZER: after.optimizer}), self.make_reply(client, local, after, whole)

    def _play_clients(self, local: LocalTraining, seed: int) -> Iterator[Rollouts]:
        """Play the episodes of a step. Its tasks are drawn from those of all clients, each played in its client's environment."""
        sizes = [len(member) for member in self.runtime.client_split]
        ends, draws = np.cumsum(sizes), stream(seed, "clients' tasks", local.step)
        drawn: dict[int, list[int]] = {}
        for place in sorted(local.draw_places(int(ends[-1]), draws)):
            holder = int(np.searchsorted(ends, place, side="right"))
            drawn.setdefault(holder, []).append(place - int(ends[holder] - sizes[holder]))
        for holder, places in drawn.items():
            env = self.runtime.get_site(holder).env
            tasks = [env.pool.ids[place] for place in places]
            yield local.collect_rollouts(derive(seed, "client", holder), tasks=tasks, env=env)

    @classmethod
    def describe(cls, settings: CentralizedSettings, scale: Scale) -> Card:
        """Return the card: one site with all tasks, and nothing is sent."""
        return replace(
            super().describe(settings, scale),
            round=scale.count_local_work(settings.local_steps),
            labelled=(CLIENTS,) if settings.pool == "clients" else (SPLIT,),
            metered=False,
            held_refusal="it needs all tasks in one place",
        )


class LocalSettings(OneOptimizerSettings):
    """`algorithm: {name: local, client: 21, local_steps: 3}`."""

    name: Literal["local"] = "local"
    client: int = Field(default=0, ge=0, description="number of the client that trains alone")


class Local(OneOptimizer[LocalSettings]):
    """FedAgent with a single client, so that the mean is this client's parameters."""

    settings_class: ClassVar[type[Settings]] = LocalSettings

    def client_ids(self) -> Sequence[int]:
        return [self.runtime.client_split.client(self.settings.client).index]

    @classmethod
    def describe(cls, settings: LocalSettings, scale: Scale) -> Card:
        """Return the card: one site with one client's tasks, and nothing is sent."""
        return replace(
            super().describe(settings, scale),
            round=scale.count_local_work(settings.local_steps),
            labelled=(settings.client,),
            metered=False,
        )


class ZeroShotSettings(Settings):
    """`algorithm: zero-shot`, usually with `federation: {rounds: 0}`."""

    name: Literal["zero-shot"] = "zero-shot"


class ZeroShot(BaseAlgorithm[ZeroShotSettings]):
    """A federation without training: the parameters stay as loaded."""

    settings_class: ClassVar[type[Settings]] = ZeroShotSettings

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        return RoundResult(state)

    @classmethod
    def describe(cls, settings: ZeroShotSettings, scale: Scale) -> Card:
        """Return the card: no work, and no answers."""
        return replace(super().describe(settings, scale), round=Work(), labelled=())
