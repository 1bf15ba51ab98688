"""Local training: one client alone, with its own tasks and environment, for the whole run. The lower baseline.

The paper shows clients 21, 42 and 84 of 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.averaging import Averaging, AveragingSettings
from fedagentgym.algorithms.base import Scale, Work
from fedagentgym.base.settings import Settings
from fedagentgym.learning.settings import LearningSettings


class LocalSettings(AveragingSettings):
    """`algorithm: {name: local, client: 21, local_steps: 3}`."""

    name: Literal["local"] = "local"
    client: int = Field(default=0, ge=0, description="number of the client that trains alone")
    keep_optimizer: bool = Field(
        default=True, description="one optimizer for the whole run, as a single site would have"
    )


class Local(Averaging[LocalSettings]):
    """FedAgent with a single client, whose parameters are the mean."""

    settings_class: ClassVar[type[Settings]] = LocalSettings
    metered: ClassVar[bool] = False

    @classmethod
    def estimate_round(cls, settings: LocalSettings, scale: Scale) -> Work | None:
        """One site, and nothing is sent."""
        return scale.count_local_work(settings.local_steps)

    def client_ids(self) -> Sequence[int]:
        return [self.runtime.client_split.client(self.settings.client).index]

    @property
    def learning(self) -> LearningSettings:
        return self.runtime.learning.model_copy(update={"keep_optimizer": self.settings.keep_optimizer})
