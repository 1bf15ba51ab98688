"""The parts of a configuration that define what is learned, by whom, and from what: plain values sent to every worker."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import join_names
from fedagentgym.base.settings import Settings
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings


class EnvSettings(Settings):
    """The `env:` part: which environment, which of its splits is divided among clients, and its options."""

    id: str = Field(description="environment id, such as fedagentgym/ALFWorld-v0")
    split: str = Field(default="train", description="split whose tasks the clients share; never one for evaluation")
    options: dict[str, Any] = Field(default_factory=dict, description="keywords of the environment, such as size: tiny")


class PartitionSettings(Settings):
    """The `partition:` part: a split file, or a sampler with its parameters next to its name."""

    model_config = ConfigDict(extra="allow")

    file: str | None = Field(default=None, description="a split file made by `fedagentgym split make`")
    sampler: str = Field(
        default="uniform", description="uniform, preference, coverage, hardness, dirichlet, by_source, ..."
    )
    clients: int | None = Field(default=None, ge=1, description="number of clients")
    seed: int | None = Field(default=None, description="seed of the split; the run's seed by default")
    roles: dict[str, int] = Field(default_factory=dict, description="tasks set aside: public, auxiliary, server")
    variant: str | dict[str, Any] | None = Field(default=None, description="how the clients' environments differ")
    labels: str | None = Field(default=None, description="file of hardness labels")
    server_overlap: float = Field(
        default=1.0, ge=0.0, le=1.0, description="share of the server's tasks that clients hold too"
    )

    @model_validator(mode="after")
    def _one_way(self) -> PartitionSettings:
        if self.file is None and self.clients is None:
            raise ValueError("say how many clients there are, or name a split file")
        given = [*self.model_extra] if self.model_extra else []
        given += [
            n
            for n, f in type(self).model_fields.items()
            if n != "file" and getattr(self, n) != f.get_default(call_default_factory=True)
        ]
        if self.file is not None and given:
            raise ValueError(f"a split file determines everything: leave out {join_names(given)}")
        return self


class ExperimentSpec(Settings):
    """The parts of a run's configuration that an algorithm and its workers need."""

    seed: int = Field(default=0, ge=0, description="seed of everything that is random in this run")
    rounds: int = Field(default=1, ge=0, description="rounds of the run, for schedules")
    env: EnvSettings
    partition: PartitionSettings
    agent: AgentSettings = Field(default=AgentSettings(), description="who learns")
    learning: LearningSettings = Field(default=LearningSettings(), description="the local policy step")
    algorithm: dict[str, Any] = Field(description="name of the method and its own settings")
    sampled_episodes: int = Field(default=2, ge=0, description="training episodes that each client returns per round")
    evaluation: EvaluationSettings | None = Field(
        default=None, description="how clients evaluate their trained models; null: they do not"
    )
