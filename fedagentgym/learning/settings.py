"""What can be said about learning and evaluating: the `learning:`, `evaluation:` and `warm_start:` parts of a configuration.

Nothing here needs torch, so that a configuration can be read, listed and checked without it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedagentgym.base.choices import Choice
from fedagentgym.base.settings import Settings
from fedagentgym.learning.advantages import ADVANTAGES, GRPO, AdvantageEstimator

MicroTokens = Literal["auto"] | Annotated[int, Field(ge=1)]


class LossSettings(Settings):
    """How the losses of single tokens are averaged."""

    name: Literal["token", "sequence", "constant"] = Field(
        default="token",
        description="token: mean over all tokens (DAPO); sequence: mean over each row, then over rows (GRPO); "
        "constant: sum over `length` times rows (Dr. GRPO)",
    )
    length: int = Field(default=512, ge=1, description="constant: the length that every row is divided by")


class KLSettings(Settings):
    """The k3 estimate of KL(policy || reference), added to the loss. A bare number is the coefficient."""

    coefficient: float = Field(default=0.0, ge=0, description="weight of the KL term; 0 switches it off")
    reference: Literal["round", "base"] = Field(
        default="round",
        description="round: the policy that the site started its round from; base: the agent as first loaded",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, data: Any) -> Any:
        return {"coefficient": data} if isinstance(data, int | float) and not isinstance(data, bool) else data


class ScheduleSettings(Settings):
    """The learning rate as a function of the run-wide step."""

    name: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="shape of the decay after the warm-up"
    )
    warmup: int = Field(default=0, ge=0, description="steps over which the rate rises from 0")
    steps: int | None = Field(
        default=None, ge=1, description="step at which the decay ends; null: the length of the run"
    )
    floor: float = Field(default=0.0, ge=0, le=1, description="fraction of the rate that is left at the end")


class ObjectiveSettings(Settings):
    """One term of the learned reward."""

    name: str = Field(
        description="`reward`, `score`, a component of info['rewards'], or a group objective such as `length`"
    )
    weight: float = Field(default=1.0, description="its factor in the sum")


class LearningSettings(Settings):
    """One local policy step: how many episodes, what is rewarded, how the loss is formed and minimised."""

    tasks_per_step: int = Field(default=8, ge=1, description="tasks drawn with replacement for a step")
    group_size: int = Field(default=8, ge=1, description="episodes of each task (G)")
    parallel_episodes: int = Field(default=64, ge=1, description="episodes played side by side")
    learning_rate: float = Field(default=1e-6, ge=0, description="AdamW's step size")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's decay")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW's two decay rates of its moments")
    schedule: ScheduleSettings = Field(default=ScheduleSettings(), description="learning rate over the run")
    clip: tuple[float, float] = Field(default=(0.2, 0.2), description="the ratio is clipped to [1 - low, 1 + high]")
    dual_clip: float | None = Field(
        default=None, gt=1, description="bound of the loss of negative advantages; null: none"
    )
    kl: KLSettings = Field(default=KLSettings(), description="KL term: a coefficient, or {coefficient, reference}")
    entropy: float = Field(default=0.0, ge=0, description="weight of an entropy bonus")
    gradient_epochs: int = Field(default=1, ge=1, description="passes over the episodes of a step")
    minibatches: int = Field(default=1, ge=1, description="optimizer steps per pass")
    micro_tokens: MicroTokens = Field(
        default="auto",
        description="tokens per forward pass: memory, not value; auto: by the model's sizes, for passes of half a gigabyte",
    )
    gradient_clip: float | None = Field(
        default=1.0, gt=0, description="largest norm of the gradient; null: no clipping"
    )
    checkpointing: bool = Field(
        default=False,
        description="recompute activations in every backward pass; false: only where memory would not do (the same bits)",
    )
    advantage: Annotated[AdvantageEstimator, Choice(ADVANTAGES, "grpo")] = Field(
        default=GRPO(), description="rewards to advantages: an estimator's name, or {name: ..., its settings}"
    )
    loss: LossSettings = Field(default=LossSettings(), description="averaging over tokens")
    format_penalty: float = Field(default=0.1, ge=0, description="cost of a reply whose format is broken, at that turn")
    objectives: tuple[ObjectiveSettings, ...] = Field(
        default=(ObjectiveSettings(name="reward"),),
        min_length=1,
        description="what is rewarded: a weighted list of names",
    )
    keep_optimizer: bool = Field(default=False, description="carry the optimizer's moments from round to round")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        low, high = self.clip
        if not (0 <= low < 1 and high >= 0):
            raise ValueError(f"clip is [low, high] with 0 <= low < 1 and high >= 0, got {list(self.clip)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are two numbers in 0..1, got {list(self.betas)}")
        names = [objective.name for objective in self.objectives]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"objectives names {repeated[0]!r} twice")
        return self

    @property
    def episodes_per_step(self) -> int:
        return self.tasks_per_step * self.group_size


class EvaluationSettings(Settings):
    """How a policy is judged."""

    split: str = Field(
        default="val", description="split whose tasks are played, one of the environment's evaluation splits"
    )
    every: int = Field(default=5, ge=1, description="rounds between evaluations of a run")
    temperature: float = Field(default=0.4, ge=0, description="sampling temperature; 0 takes the likeliest token")
    tasks: int | None = Field(default=None, ge=1, description="play only the first so many tasks; null: all of them")
    repeats: int = Field(default=1, ge=1, description="episodes per task, each with a seed of its own")
    parallel_episodes: int = Field(default=64, ge=1, description="episodes played side by side")
    confidence: float = Field(default=0.95, gt=0, lt=1, description="level of the bootstrap intervals")
    resamples: int = Field(default=1000, ge=1, description="bootstrap resamples")


class SupervisedSettings(Settings):
    """How demonstrations are imitated."""

    steps: int = Field(default=400, ge=1, description="optimizer steps")
    batch_size: int = Field(default=16, ge=1, description="segments per step")
    learning_rate: float = Field(default=2e-3, ge=0, description="AdamW's step size")
    matrix_rate: float | None = Field(
        default=None, gt=0, description="Muon's step size for the layers' matrices; null: AdamW moves them too"
    )
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's decay")
    gradient_clip: float | None = Field(
        default=1.0, gt=0, description="largest norm of the gradient; null: no clipping"
    )
    schedule: ScheduleSettings = Field(default=ScheduleSettings(), description="learning rate over the steps")
    observation_weight: float = Field(default=0.1, ge=0, description="weight of a token that the world said")
    sort_lengths: bool = Field(
        default=True,
        description="batches of examples alike in length, for less padding; false where length is part of a habit",
    )
    micro_tokens: MicroTokens = Field(
        default="auto", description="tokens per forward pass, or auto: by the model's sizes"
    )


class WarmStartSettings(SupervisedSettings):
    """How many demonstrations, how noisy, and how they are imitated."""

    size: str = Field(
        default="0.1m", description="named size of a tiny model made from nothing (agents/engines/tiny.py)"
    )
    context_length: int = Field(default=1024, ge=16, description="longest text that the tiny model can read")
    episodes: int = Field(default=2000, ge=1, description="demonstrations, tasks of the pool in turn")
    noise: float = Field(default=0.1, ge=0, lt=1, description="share of the expert's actions replaced by random ones")
    imitate_noise: bool = Field(default=False, description="learn the random actions too: able, but careless")
    parallel_episodes: int = Field(default=256, ge=1, description="demonstrations played side by side")
