"""The settings of a run: every setting of every part, in one typed tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.support.spec import EnvSettings, ExperimentSpec, PartitionSettings
from fedagentgym.base.encoding import digest
from fedagentgym.base.settings import Settings, expand_name
from fedagentgym.federation.clients import FederationSettings
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings, WarmStartSettings

RESUMABLE: tuple[str, ...] = (
    *(f"federation.{key}" for key in ("backend", "workers", "device_per_worker", "deadline", "quorum", "options")),
    *(f"output.{key}" for key in ("keep_rounds", "trackers", "report")),
    "learning.sharding",
)
"""Keys that may be changed when a run is resumed: none of them changes the result."""


ROUNDS = "federation.rounds"
"""The key that may be raised when a run is resumed, if nothing in the run depends on its length."""


class OutputSettings(Settings):
    """What a run writes."""

    folder: str = Field(default="runs/run", description="the run's folder")
    keep_rounds: int = Field(default=3, ge=1, description="newest commits that are kept, besides the best one")
    sampled_episodes: int = Field(default=2, ge=0, description="training episodes that each client returns per round")
    trackers: tuple[dict[str, Any], ...] = Field(
        default=(),
        description="what else receives the numbers of every round: names, such as tensorboard, or name and options",
    )
    report: Literal["html", "none"] = Field(default="html", description="write report.html at the end")

    @field_validator("trackers", mode="before")
    @classmethod
    def _expand_tracker_names(cls, value: Any) -> Any:
        return [expand_name(one) for one in value] if isinstance(value, list | tuple) else value

    @field_validator("trackers")
    @classmethod
    def _check_tracker_names(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        if not all(isinstance(one.get("name"), str) for one in value):
            raise ValueError("each tracker is a name, or a mapping with the key 'name' and its options")
        return value


class RunConfig(Settings):
    """The settings of a run, one typed tree; `load_config` makes one, `train` runs it.

    All fields are described in the reference of settings.

    Example:
        >>> RunConfig.load({"env": {"id": "fedagentgym/Guess-v0"}, "partition": {"clients": 4}}).federation.rounds
        20
    """

    name: str = Field(default="run", pattern=r"^[\w.-]+$", description="name of the run, for files and tables")
    seed: int = Field(default=0, ge=0, description="seed of everything that is random in this run")
    env: EnvSettings = Field(description="the world")
    partition: PartitionSettings = Field(description="who holds which tasks")
    agent: AgentSettings = Field(default=AgentSettings(), description="who plays and learns")
    warm_start: WarmStartSettings | None = Field(
        default=None, description="how a tiny agent is pretrained; null: as before, or by the environment's recipe"
    )
    learning: LearningSettings = Field(default=LearningSettings(), description="the local policy step")
    algorithm: dict[str, Any] = Field(default={"name": "fedagent"}, description="the method and its own settings")
    federation: FederationSettings = Field(default=FederationSettings(), description="rounds, clients, where they run")
    evaluation: EvaluationSettings | None = Field(default=EvaluationSettings(), description="how progress is evaluated")
    output: OutputSettings = Field(default=OutputSettings(), description="what the run writes")
    plugins: tuple[str, ...] = Field(default=(), description="modules or files of your own that register things")

    @field_validator("algorithm", mode="before")
    @classmethod
    def _expand_algorithm_name(cls, value: Any) -> Any:
        given = expand_name(value)
        return {"name": "fedagent", **given} if isinstance(given, Mapping) else given

    def spec(self, agent: AgentSettings | None = None) -> ExperimentSpec:
        """Return the part of the settings that a method and its workers need.

        Args:
            agent: The agent's settings as resolved; by default those of this configuration.

        Returns:
            The part, as settings.
        """
        return ExperimentSpec(
            seed=self.seed,
            rounds=self.federation.rounds,
            env=self.env,
            partition=self.partition,
            agent=self.agent if agent is None else agent,
            learning=self.learning,
            algorithm=self.algorithm,
            sampled_episodes=self.output.sampled_episodes,
            evaluation=self.evaluation if self.evaluation is not None and self.evaluation.clients else None,
        )

    def plain(self) -> dict[str, Any]:
        """All settings, resolved, as plain values. Of the agent only the set fields: its preset determines the rest."""
        plain = {**self.model_dump(mode="json"), "agent": self.agent.model_dump(mode="json", exclude_unset=True)}
        if not self.federation.raised_from:
            plain["federation"].pop("raised_from")
        return plain

    @property
    def digest(self) -> str:
        """The digest of what is computed: everything but the name and settings that do not change the result."""
        return self.compute_digest(self.federation.rounds)

    def compute_digest(self, rounds: int) -> str:
        """Compute the digest that this run would have with another number of rounds.

        Args:
            rounds: The number of rounds.

        Returns:
            The digest, a text that begins with `sha256:`.
        """
        plain = self.plain()
        plain["federation"] |= {"rounds": rounds}
        plain["federation"].pop("raised_from", None)
        plain.pop("name")
        plain["output"] = {"sampled_episodes": plain["output"]["sampled_episodes"]}
        for path in RESUMABLE:
            section, _, key = path.partition(".")
            plain[section].pop(key, None)
        return digest(plain)

    def list_shorter(self) -> set[str]:
        """The digests that this run had before it was extended."""
        return {self.compute_digest(rounds) for rounds in self.federation.raised_from}

    def find_length_dependence(self) -> str | None:
        """The key of a learning rate that decays over the whole run, if there is one: such a run cannot be extended."""
        plain = self.plain()
        return _find_decay({key: plain[key] for key in ("learning", "algorithm")})


def _find_decay(plain: Mapping[str, Any], where: str = "") -> str | None:
    """The first schedule below that decays without a number of steps of its own."""
    for key, value in plain.items():
        if not isinstance(value, Mapping):
            continue
        if key == "schedule" and value.get("name", "constant") != "constant" and value.get("steps") is None:
            return f"{where}{key}"
        if (found := _find_decay(value, f"{where}{key}.")) is not None:
            return found
    return None
