"""The `federation:` and `output:` parts of a configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings, expand_name


class FederationSettings(Settings):
    """Where the clients run, how many take part, and how many must answer."""

    backend: str = Field(default="in-process", description="in-process, flower-simulation or flower")
    rounds: int = Field(default=20, ge=0, description="communication rounds; 0 only evaluates the initial agent")
    raised_from: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="planned rounds of a run before it was extended; written when it is extended"
    )
    clients_per_round: int | None = Field(default=None, ge=1, description="clients drawn per round; all by default")
    workers: int = Field(default=0, ge=0, description="worker processes; 0 runs the clients in this process")
    device_per_worker: tuple[str, ...] = Field(
        default=(), description="devices that the workers take in turn, cuda:0, cuda:1"
    )
    quorum: float | int | None = Field(
        default=0.5, description="share (0.5) or number (3) of the called clients that must reply"
    )
    deadline: float | None = Field(default=None, gt=0, description="seconds that one client may take for one call")
    options: dict[str, Any] = Field(default_factory=dict, description="options of this backend")

    @field_validator("quorum")
    @classmethod
    def _check_quorum_value(cls, quorum: float | int | None) -> float | int | None:
        from fedagentgym.federation.clients import resolve_quorum

        try:
            resolve_quorum(quorum, 1)
        except OptionError as error:
            raise ValueError(str(error)) from None
        return quorum


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
