"""The `learning:`, `evaluation:` and `warm_start:` parts of a configuration.

Nothing here needs torch, so that a configuration can be read, listed and checked without it.
"""

from __future__ import annotations

import math
from operator import not_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedagentgym.base.settings import Choice, Settings
from fedagentgym.envs.tasks import UNSEEN
from fedagentgym.learning.advantages import ADVANTAGES, GAE, GRPO, AdvantageEstimator
from fedagentgym.learning.losses import LOSSES, BaseLoss, ClippedLoss, CorrectionSettings, check_clip

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

USUAL_CLIP = (0.2, 0.2)
MicroTokens = Literal["auto"] | Annotated[int, Field(ge=1)]
TaskOrder = Literal["drawn", "distinct", "epochs"]


NO_ENDS = (
    "learning.mask_truncated finds cut replies by their last token, and a harness ends replies with texts of its own:"
    " leave it out with agent.harness"
)
"""The error for `mask_truncated` together with a harness."""


class KLSettings(Settings):
    """The k3 estimate of KL(policy || reference), added to the loss. A bare number is the coefficient."""

    coefficient: float = Field(default=0.0, ge=0, description="weight of the KL term; 0 switches it off")
    reference: Literal["round", "base"] = Field(
        default="round",
        description="round: the policy with which the client began the round; base: the agent as first loaded",
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

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.name != "constant" and self.steps is not None and self.steps <= self.warmup:
            raise ValueError(f"steps, at which the decay ends, must be above warmup ({self.warmup}), got {self.steps}")
        return self

    def compute_factor(self, step: int, run_steps: int | None) -> float:
        """The factor of the learning rate at `step` in a run of `run_steps` steps.

        >>> [ScheduleSettings(name="linear", steps=4).compute_factor(step, None) for step in range(5)]
        [1.0, 0.75, 0.5, 0.25, 0.0]
        """
        if step < self.warmup:
            return (step + 1) / self.warmup
        end = self.steps if self.steps is not None else run_steps
        if self.name == "constant" or end is None or end <= self.warmup:
            return 1.0
        done = min(1.0, (step - self.warmup) / (end - self.warmup))
        shape = 1 - done if self.name == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.floor + (1 - self.floor) * shape


class ObjectiveSettings(Settings):
    """One term of the learned reward."""

    name: str = Field(
        description="`reward`, `score`, a component of info['rewards'], or a group objective such as `length`"
    )
    weight: float = Field(default=1.0, description="factor of the objective in the sum")


class ShardingSettings(Settings):
    """Several devices for one update: each holds a part of the weights, gradients and moments (PyTorch's FSDP2)."""

    devices: int = Field(default=2, ge=1, description="devices of one machine, each with a process of torchrun")
    offload: bool = Field(
        default=False,
        description="keep the parts in the machine's memory, and copy them to the GPU only for computation",
    )

    @property
    def is_needed(self) -> bool:
        """True for several devices, or with offloading."""
        return self.devices > 1 or self.offload


class LearningSettings(Settings):
    """One policy step of a client: episodes, rewards, loss and optimizer. The section `learning` of a configuration."""

    tasks_per_step: int = Field(default=8, ge=1, description="tasks of a step, drawn by task_order")
    task_order: TaskOrder = Field(
        default="drawn",
        exclude_if=lambda order: order == "drawn",
        description="how tasks are drawn; drawn: with replacement; distinct: without replacement within a step; epochs: in"
        " shuffled passes over the pool",
    )
    group_size: int = Field(default=8, ge=1, description="episodes of each task (G)")
    parallel_episodes: int = Field(default=64, ge=1, description="episodes played in parallel")
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw",
        description="adamw, or sgd: plain gradient descent",
    )
    learning_rate: float = Field(default=1e-6, ge=0, description="the optimizer's learning rate")
    weight_decay: float = Field(default=0.01, ge=0, description="decay of the weights (sgd: added to the gradient)")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="decay rates of AdamW's two moments")
    schedule: ScheduleSettings = Field(default=ScheduleSettings(), description="learning rate over the run")
    clip: tuple[float, float] = Field(
        default=USUAL_CLIP, description="losses token, sequence, constant: the ratio is clipped to [1 - low, 1 + high]"
    )
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        description="token, sequence, constant: the loss of a negative advantage is at most this many times the advantage's size",
    )
    kl: KLSettings = Field(default=KLSettings(), description="KL term: a coefficient, or {coefficient, reference}")
    entropy: float = Field(default=0.0, ge=0, description="weight of an entropy bonus")
    gradient_epochs: int = Field(default=1, ge=1, description="passes over the episodes of a step")
    minibatches: int = Field(default=1, ge=1, description="optimizer steps per pass")
    minibatch_rows: int | None = Field(
        default=None,
        ge=1,
        description="rows of an optimizer step, in place of `minibatches`; a pass then takes as many steps as it needs",
    )
    minibatch_fill: bool = Field(
        default=False,
        description="with minibatch_rows: rows keep their order, and rows drawn a second time fill the last step, as in the"
        " published code",
    )
    behaviour: Literal["auto", "recorded", "recomputed"] = Field(
        default="auto",
        description="source of the log-probs of the rollout policy; recorded: during rollouts; recomputed: by the model before "
        "the update; auto: recomputed with top_p below 1, a model that is not float32, another rollout engine, a correction or a"
        " harness",
    )
    empty_minibatches: Literal["skip", "step"] = Field(
        default="skip",
        description="mini-batches from which no token learns; skip: no optimizer step; step: a step by moments, weight decay and"
        " the method's own terms",
    )
    micro_tokens: MicroTokens = Field(
        default="auto",
        description="tokens per forward pass; affects memory and speed, and only the last bits of results; auto: from the model's"
        " sizes, for passes of half a gigabyte, or of a quarter of a GPU's memory",
    )
    gradient_clip: float | None = Field(
        default=1.0, gt=0, description="largest norm of the gradient; null: no clipping"
    )
    checkpointing: bool = Field(
        default=False,
        description="recompute activations in every backward pass; false: only if memory is short (the same bits)",
    )
    advantage: Annotated[AdvantageEstimator, Choice(ADVANTAGES, "grpo")] = Field(
        default=GRPO(), description="advantage estimator: its name, or {name: ..., its settings}"
    )
    loss: Annotated[BaseLoss, Choice(LOSSES, "token")] = Field(
        default=ClippedLoss(),
        description="policy loss; token, sequence, constant: PPO's clipped loss, averaged over all tokens, over each row and then"
        " over rows, or as sum / (`length` * rows); gspo, cispo, sapo, vespo, reinforce; or {name: ..., its settings}",
    )
    correction: CorrectionSettings | None = Field(
        default=None,
        exclude_if=not_,
        description="importance weights for the mismatch of rollout and training log-probs: a name, or {name, clip_min, "
        "clip_max}; null: none",
    )
    format_penalty: float = Field(default=0.1, ge=0, description="penalty of a reply with a broken format")
    format_penalty_on: Literal["episode", "turn"] = Field(
        default="episode",
        description="return that the penalty lowers before advantages are computed: that of the whole episode, or that of the "
        "malformed turn alone (needs a baseline over turns), as in the published code",
    )
    objectives: tuple[ObjectiveSettings, ...] = Field(
        default=(ObjectiveSettings(name="reward"),),
        min_length=1,
        description="objectives of the learned reward: a list of names, each with a weight",
    )
    mask_truncated: bool = Field(
        default=False,
        exclude_if=not_,
        description="replies that were cut off before an end token have advantages but no loss, as in TRL"
        " (mask_truncated_completions)",
    )
    keep_optimizer: bool = Field(default=False, description="carry the optimizer's moments from round to round")
    sharding: ShardingSettings | None = Field(
        default=None,
        description="{devices: 4, offload: false}: the processes of torchrun share each update; null: one process computes it",
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        check_clip(self.clip)
        if not self.loss.uses_clip and (self.clip != USUAL_CLIP or self.dual_clip is not None):
            raise ValueError(
                f"clip and dual_clip are for the losses token, sequence and constant: {self.loss.name} ignores them"
            )
        if self.correction is not None and self.behaviour == "recorded":
            raise ValueError(
                "correction compares recorded with recomputed log-probs: it needs behaviour: recomputed or auto"
            )
        if self.correction is not None and self.loss.corrects_itself and self.correction.name.startswith("sequence"):
            raise ValueError(f"the loss {self.loss.name} needs a correction of tokens, token_truncate or token_mask")
        if self.advantage.uses_values and self.sharding is not None and self.sharding.is_needed:
            raise ValueError(
                "a policy that is divided among devices has no value head: leave out sharding, or use an advantage other than gae"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are two numbers in 0..1, got {list(self.betas)}")
        if self.optimizer == "sgd" and self.betas != (0.9, 0.999):
            raise ValueError("betas are for the moments of adamw: sgd has none")
        if self.minibatch_rows is not None and self.minibatches != 1:
            raise ValueError(
                "minibatches counts the steps of a pass, minibatch_rows the rows of a step: give one of them"
            )
        if self.minibatch_fill and self.minibatch_rows is None:
            raise ValueError("minibatch_fill needs minibatch_rows")
        if self.format_penalty_on == "turn" and not self.advantage.compares_turns:
            raise ValueError(
                f"format_penalty_on: turn needs an advantage whose baseline is over turns; {self.advantage.name!r} with these"
                " settings compares episodes"
            )
        names = [objective.name for objective in self.objectives]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"objectives names {repeated[0]!r} twice")
        return self

    @property
    def keeps_state(self) -> bool:
        """True if a client keeps a state of its learner between rounds: the moments, or a value head of its own."""
        return self.keep_optimizer or self.keeps_head

    @property
    def keeps_head(self) -> bool:
        """True if a client has a value head of its own."""
        return isinstance(self.advantage, GAE) and self.advantage.head == "own"

    @property
    def sends_head(self) -> bool:
        """True if a value head is among the parameters that are sent."""
        return isinstance(self.advantage, GAE) and self.advantage.head == "shared"

    @property
    def episodes_per_step(self) -> int:
        """Number of episodes of a step: tasks times episodes of each."""
        return self.tasks_per_step * self.group_size


TEST_SPLITS = ("test", UNSEEN)
"""The splits by which nothing is chosen, neither settings nor the best round of a run."""


def is_test_split(env: TextEnv | type[TextEnv], split: str) -> bool:
    """True if an environment's split, by whatever name, is one by which nothing is chosen."""
    return env.canonical_split(split) in TEST_SPLITS


OWN_WORLD, EVERY_WORLD = "own_world", "every_world"
"""Names of the evaluations in the clients' variants of the environment."""


class EvaluationSet(Settings):
    """A set of tasks for evaluation. A set with only a name is the installed data set of that name; any other set gives `split`,
    `env` or `options`."""

    name: str = Field(pattern=r"^[\w.-]{1,60}$", description="name of the set in records")
    env: str | None = Field(default=None, description="environment, its id or short name; null: that of the run")
    options: dict[str, Any] | None = Field(
        default=None, description="the environment's options; null: those of the run, or the data set of this name"
    )
    split: str = Field(default="test", description="split whose tasks are played")
    tasks: int | None = Field(
        default=None, ge=1, description="number of tasks to play, from the first on; null: as evaluation.tasks"
    )
    repeats: int | None = Field(default=None, ge=1, description="episodes per task; null: as evaluation.repeats")
    temperature: float | None = Field(
        default=None, ge=0, description="sampling temperature; null: as evaluation.temperature"
    )
    category: str | None = Field(
        default=None,
        min_length=1,
        description="category of the run's tasks that this set evaluates in a client's own mixture, such as a mixture's member; "
        "null: the category with the set's name, if there is one",
    )
    select: bool | None = Field(
        default=None,
        description="whether its success takes part in choosing the best round; null: yes, unless its split is test or unseen,"
        " which never do",
    )


def is_due(number: int, every: int, rounds: int) -> bool:
    """Return whether a round is evaluated: one in `every` rounds is, and the last one of a run."""
    return number % every == 0 or number == rounds


class EvaluationSettings(Settings):
    """The settings of an evaluation: the section `evaluation` of a configuration, and the settings of `evaluate`."""

    split: str = Field(
        default="val", description="split whose tasks are played, one of the environment's evaluation splits"
    )
    every: int = Field(default=5, ge=1, description="rounds between evaluations of a run")
    temperature: float = Field(default=0.4, ge=0, description="sampling temperature; 0 takes the likeliest token")
    tasks: int | None = Field(default=None, ge=1, description="number of tasks to play, from the first on; null: all")
    repeats: int = Field(default=1, ge=1, description="episodes per task, each with a seed of its own")
    parallel_episodes: int = Field(default=64, ge=1, description="episodes played in parallel")
    confidence: float = Field(default=0.95, gt=0, lt=1, description="level of the intervals")
    sets: tuple[EvaluationSet, ...] = Field(
        default=(),
        description="sets that are evaluated instead of `split`; the best round has the highest mean success on the sets with"
        " `select`",
    )
    at_clients: tuple[Literal["held_out", "own_world", "every_world"], ...] = Field(
        default=(),
        description="further evaluations of each client; held_out: held-out tasks in the client's own mixture; own_world: the "
        "client's variant of the environment, or without variants all tasks and the client's own mixture; every_world: each "
        "client's policy in each client's variant",
    )
    newcomers: int = Field(
        default=0,
        ge=0,
        description="with own_world: number of further variants of the same kind, which no client has",
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [one.name for one in self.sets]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"sets has two sets named {double!r}: give each a name of its own")
        if len(set(self.at_clients)) < len(self.at_clients):
            raise ValueError("at_clients names the same evaluation twice")
        if self.sets and {OWN_WORLD, EVERY_WORLD} & set(self.at_clients):
            raise ValueError("the tasks of own_world and every_world are those of evaluation.split: leave out sets")
        if self.newcomers and OWN_WORLD not in self.at_clients:
            raise ValueError("newcomers are evaluated with at_clients: [own_world]")
        return self

    def is_due(self, number: int, rounds: int) -> bool:
        """Return whether a round is evaluated.

        Args:
            number: Number of the round.
            rounds: Number of rounds of the run.

        Returns:
            True every `every` rounds and after the last.
        """
        return is_due(number, self.every, rounds)


class RankingSettings(Settings):
    """The settings of the evaluation that ranks a run: held-out tasks, played once, at the end, and used for nothing else."""

    split: str = Field(default="test", description="split whose tasks are played")
    tasks: int | None = Field(default=None, ge=1, description="number of tasks, from the first on; null: all")
    repeats: int = Field(default=1, ge=1, description="episodes per task")
    temperature: float = Field(default=0.4, ge=0, description="sampling temperature")
    round: Literal["last", "best"] = Field(
        default="last", description="the round whose policy plays; best: of those that `evaluation` evaluates"
    )
    own_worlds: bool = Field(
        default=False,
        description="also in each client's variant of the environment, with the policy that the client uses",
    )
    seed: int | None = Field(default=None, ge=0, description="seed of the episodes; null: the run's")

    @property
    def evaluation(self) -> EvaluationSettings:
        """These settings as `EvaluationSettings`."""
        return EvaluationSettings(
            split=self.split, tasks=self.tasks, repeats=self.repeats, temperature=self.temperature
        )


class SupervisedSettings(Settings):
    """The settings of imitating demonstrations."""

    steps: int = Field(default=400, ge=1, description="optimizer steps")
    batch_size: int = Field(default=16, ge=1, description="segments per step")
    learning_rate: float = Field(default=2e-3, ge=0, description="AdamW's learning rate")
    matrix_rate: float | None = Field(
        default=None, gt=0, description="Muon's learning rate for the layers' matrices; null: AdamW for these too"
    )
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's decay")
    gradient_clip: float | None = Field(
        default=1.0, gt=0, description="largest norm of the gradient; null: no clipping"
    )
    schedule: ScheduleSettings = Field(default=ScheduleSettings(), description="learning rate over the steps")
    observation_weight: float = Field(default=0.1, ge=0, description="weight of an observation's token in the loss")
    sort_lengths: bool = Field(
        default=True,
        description="batches of examples of similar length, for less padding; false if length matters for what is learned",
    )
    micro_tokens: MicroTokens = Field(default="auto", description="tokens per forward pass; auto: by the model's sizes")


PRETRAINED: dict[str, Any] = {
    "episodes": 600,
    "noise": 0.0,
    "steps": 75,
    "batch_size": 8,
    "learning_rate": 1e-4,
    "schedule": {"name": "linear", "warmup": 10},
    "observation_weight": 0.0,
    "micro_tokens": 4096,
    "parallel_episodes": 64,
}
"""Defaults of imitation by a pretrained model: few demonstrations without noise, each used once."""
PRETRAINED_ADAPTER_RATE = 1e-3


class ImitationSettings(SupervisedSettings):
    """The settings of a method's imitation of solutions; `algorithm.local_steps` is the number of its steps."""

    @model_validator(mode="after")
    def _refuse_steps(self) -> Self:
        if self.steps != SupervisedSettings.model_fields["steps"].default:
            raise ValueError("steps of imitation are counted by algorithm.local_steps: leave out steps")
        return self


class MisconceptionSettings(Settings):
    """Demonstrations by a wrong procedure; in some categories, most demonstrations are wrong."""

    share: float = Field(default=0.5, ge=0, le=1, description="share of the categories that get a misconception")
    right: float = Field(
        default=0.35, ge=0, le=1, description="share of right demonstrations in categories with a misconception"
    )
    otherwise: float = Field(default=0.65, ge=0, le=1, description="share of right demonstrations in the others")
    seed: int = Field(default=0, ge=0, description="seed of the draw of categories, other procedures and tasks")


class WarmStartSettings(SupervisedSettings):
    """The settings of a warm start: the number of demonstrations, their noise, and their imitation."""

    size: str = Field(default="0.1m", description="named size of a tiny model made from scratch")
    context_length: int = Field(default=1024, ge=16, description="maximum context of a tiny model made from scratch")
    episodes: int = Field(default=2000, ge=1, description="number of demonstrations, taking the pool's tasks in turn")
    noise: float = Field(default=0.1, ge=0, lt=1, description="share of the expert's actions replaced by random ones")
    imitate_noise: bool = Field(
        default=False, description="learn the random actions too: a capable agent that makes errors"
    )
    parallel_episodes: int = Field(default=256, ge=1, description="demonstrations played in parallel")
    misconceptions: MisconceptionSettings | None = Field(
        default=None,
        description="demonstrations by wrong procedures; null: all by the right ones",
    )

    def for_pretrained(self, adapter: bool) -> WarmStartSettings:
        """These settings with the defaults for a pretrained model; the class's defaults are for a model made from scratch."""
        rate = {"learning_rate": PRETRAINED_ADAPTER_RATE} if adapter else {}
        return type(self).load({**PRETRAINED, **rate, **self.model_dump(exclude_unset=True)}, "warm_start")
