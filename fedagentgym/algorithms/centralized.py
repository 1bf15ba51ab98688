"""Centralized training: one site with the tasks of all clients, in the unchanged environment. The upper baseline.

`pool: split` gives it every task of the divided split, including those that no client holds and those of the roles: what the
papers' tables call centralized.

It runs through the same loop as the federated methods with one client, so that it commits, resumes and draws a curve; its
optimizer state is kept between commits. Nothing is sent, and no traffic is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.averaging import Averaging, AveragingSettings
from fedagentgym.algorithms.base import Scale, Work
from fedagentgym.algorithms.support.runtime import Site
from fedagentgym.base.settings import Settings
from fedagentgym.learning.settings import LearningSettings

SITE = 0


class CentralizedSettings(AveragingSettings):
    """`algorithm: {name: centralized, local_steps: 3}`: `local_steps` policy steps between commits."""

    name: Literal["centralized"] = "centralized"
    pool: Literal["clients", "split"] = Field(
        default="clients", description="its tasks: those that at least one client holds, or all of the divided split"
    )
    keep_optimizer: bool = Field(
        default=True, description="one optimizer for the whole run, as a single site would have"
    )


class Centralized(Averaging[CentralizedSettings]):
    """FedAgent with a single client that holds the union of all clients' tasks, or the whole split."""

    settings_class: ClassVar[type[Settings]] = CentralizedSettings
    metered: ClassVar[bool] = False

    @classmethod
    def estimate_round(cls, settings: CentralizedSettings, scale: Scale) -> Work | None:
        """One site, and nothing is sent."""
        return scale.count_local_work(settings.local_steps)

    def client_ids(self) -> Sequence[int]:
        return [SITE]

    @property
    def learning(self) -> LearningSettings:
        return self.runtime.learning.model_copy(update={"keep_optimizer": self.settings.keep_optimizer})

    def resources(self, client: int) -> Site:
        return self._site

    @cached_property
    def _site(self) -> Site:
        client_split = self.runtime.client_split
        pool = client_split.pool
        if self.settings.pool == "clients":
            held = {task for member in client_split for task in member.tasks}
            pool = pool.subset([task for task in pool.ids if task in held])
        return self.runtime.make_site(SITE, self.runtime.open_env(pool=pool), learning=self.learning)
