"""The settings of FedGRPO, and checks for settings that would have no effect."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.experts import Answers, Judgement
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.learning.advantages import Deviation
from fedagentgym.learning.settings import LearningSettings


class FedGRPOSettings(Settings):
    """`algorithm: {name: fedgrpo, experts: 2, neighbours: 20, ...}`; needs the roles `auxiliary` and `server`."""

    name: Literal["fedgrpo"] = "fedgrpo"
    experts: int = Field(default=2, ge=1, description="clients that score a question (M)")
    neighbours: int = Field(default=20, ge=1, description="auxiliary examples that decide about competence (L)")
    selection: Literal["competence", "oracle", "random"] = Field(
        default="competence",
        description="who scores: the most competent on the examples most like the question, on those of its category (known only "
        "to an oracle), or (as the published code does) any client",
    )
    aggregate: Literal["pool", "per_expert", "split"] = Field(
        default="pool", description="how scores become advantages: over all, per expert first, or own candidates each"
    )
    std: Deviation = Field(
        default="population",
        description="what scores are divided by: n, n - 1, or (as the published code does) nothing",
    )
    scorer: Judgement = Field(
        default="self_answer",
        description="how an expert's model scores answers to a question whose answer it does not hold",
    )
    answers: Answers = Field(
        default="own",
        description="who checks candidates by gold (AE): no client, holders of the question, holders that are also preferred "
        "as experts, or (as the published code does) every client",
    )
    expert_agent: AgentSettings | None = Field(
        default=None, description="the clients' model for scoring, if it differs from the server's; null: the same"
    )
    expert_steps: int = Field(default=0, ge=0, description="policy steps of each client's own expert before round 1")
    expert_learning: dict[str, Any] = Field(
        default_factory=dict,
        description="keys of `learning` that differ for the experts' training, such as learning_rate",
    )
    expert_refresh: int = Field(default=0, ge=0, description="rounds between renewals of the experts; 0: never")
    answer_weight: float = Field(default=8.0, ge=0.0, description="weight of the experts' score")
    format_weight: float = Field(default=1.0, ge=0.0, description="weight of the format reward")

    @field_validator("answers", mode="before")
    @classmethod
    def _read_truth_value(cls, value: Any) -> Any:
        """YAML reads a bare `off` as false; true is short for `own`."""
        return {True: "own", False: "off"}[value] if isinstance(value, bool) else value

    @field_serializer("expert_agent")
    def _keep_what_was_said(self, value: AgentSettings | None) -> dict[str, Any] | None:
        """Dump only the set fields of an agent: its preset determines the rest."""
        return None if value is None else value.model_dump(mode="json", exclude_unset=True)

    def resolve_expert_learning(self, learning: LearningSettings) -> LearningSettings:
        """The policy step of the experts' training: the run's settings, updated with `expert_learning` key by key."""
        return LearningSettings.load({**learning.model_dump(), **self.expert_learning}, "algorithm.expert_learning")

    @property
    def asks_models(self) -> bool:
        """True if an expert's model is used: for competence, or for scoring candidates."""
        return self.answers != "all" or self.selection != "random"

    @model_validator(mode="after")
    def _refuse_models_that_nobody_asks(self) -> Self:
        if self.expert_learning and not self.expert_steps:
            raise ValueError("expert_learning is for the training of experts: set expert_steps")
        if self.answers != "all":
            return self
        if self.scorer != "self_answer":
            raise ValueError("with answers: all no model scores candidates: leave out scorer")
        trained = {
            "expert_agent": self.expert_agent,
            "expert_steps": self.expert_steps,
            "expert_refresh": self.expert_refresh,
        }
        if not self.asks_models and any(trained.values()):
            odd = next(name for name, value in trained.items() if value)
            raise ValueError(f"with answers: all and selection: random no expert's model is used: leave out {odd}")
        return self


def check_learning(settings: FedGRPOSettings, learning: LearningSettings) -> None:
    """Refuse settings of the policy step without effect: the server's reward and advantages come from the experts."""
    if learning.keep_optimizer:
        raise OptionError(
            "fedgrpo's server always keeps its optimizer, and experts start with a new one: leave out learning.keep_optimizer"
        )
    if settings.expert_steps:
        return
    plain = LearningSettings()
    if learning.advantage != plain.advantage or learning.format_penalty_on != plain.format_penalty_on:
        raise OptionError(
            "fedgrpo forms advantages from its experts' scores, as algorithm.aggregate and algorithm.std say: leave out"
            " learning.advantage and learning.format_penalty_on, or train experts with them (algorithm.expert_steps)"
        )
    own = {"score": settings.answer_weight, "format": settings.format_weight}
    said = {objective.name: objective.weight for objective in learning.objectives}
    if learning.objectives != plain.objectives and said != own:
        raise OptionError(
            f"fedgrpo's reward is {settings.answer_weight:g} x score + {settings.format_weight:g} x format (answer_weight and"
            " format_weight of algorithm), learning.objectives say another one: make them agree"
        )
