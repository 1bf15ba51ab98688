"""Fedpetuning: federated averaging of LoRA adapters, trained by reinforcement learning or imitation.

FedAgent with clients weighted by their numbers of tasks, an adapter instead of all weights, and a choice of the objective:

    objective: grpo    local_steps policy steps on the client's own tasks
    objective: sft     local_steps supervised steps on solutions of its own tasks, played by the environment's expert
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import WeightedSettings
from fedagentgym.algorithms.card import Card, Scale, Work, count_imitation
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.reports import evaluate_local_model
from fedagentgym.algorithms.runtime import Runtime, Site, copy_arrays
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive
from fedagentgym.federation.aggregation import LossRule
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import Message
from fedagentgym.learning.settings import ImitationSettings, SupervisedSettings
from fedagentgym.learning.state import SiteState


class FedPETuningSettings(WeightedSettings):
    """`algorithm: {name: fedpetuning, objective: sft}`; the agent needs an adapter."""

    name: Literal["fedpetuning"] = "fedpetuning"
    objective: Literal["grpo", "sft"] = Field(default="grpo", description="grpo: reinforcement; sft: imitation")
    supervised: ImitationSettings = Field(
        default=ImitationSettings(), description="how solutions are imitated (sft); `steps` is local_steps"
    )

    @model_validator(mode="after")
    def _refuse_what_the_objective_ignores(self) -> Self:
        if self.objective == "sft" and self.proximal > 0:
            raise ValueError("the proximal term belongs to policy steps: it cannot be combined with objective=sft")
        if self.objective == "grpo" and self.supervised != ImitationSettings():
            raise ValueError("supervised is about imitation: it needs objective=sft")
        if self.objective == "sft" and isinstance(self.rule, LossRule):
            raise ValueError(f"{self.rule.name} needs the clients' success, which imitation does not measure")
        return self


class FedPETuning(Averaging[FedPETuningSettings]):
    """FedAgent on adapters, by either objective."""

    settings_class: ClassVar[type[Settings]] = FedPETuningSettings

    def __init__(self, settings: FedPETuningSettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        if settings.objective == "sft" and runtime.learning.keep_optimizer:
            raise OptionError(
                "fedpetuning with objective=sft makes a new optimizer in every round: leave out learning.keep_optimizer"
            )
        if runtime.spec.agent.adapter is None:
            raise OptionError("fedpetuning averages LoRA adapters: set agent.adapter, for example to {rank: 8}")

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """One client's part of a round."""
        if self.settings.objective == "grpo":
            return super().train_client(state, message, client)
        site = client.resources
        supervised, steps = self.settings.supervised, self.settings.local_steps
        start = SiteState(copy_arrays(message.weights))
        losses, after = imitate_solutions(site, start, supervised, steps, client.derive("sft"))
        metrics = {"loss": losses[-1], "optimizer_steps": float(steps)}
        metrics |= evaluate_local_model(self.runtime, site, site.model.load(after.weights), client.round)
        report = {"metrics": metrics, "episodes": []}
        return state, Message(weights=after.weights, control=site.reported_counts, report=report)

    @classmethod
    def describe(cls, settings: FedPETuningSettings, scale: Scale) -> Card:
        """Return the card of averaging, except that imitation plays no episodes with the model."""
        card = super().describe(settings, scale)
        if settings.objective == "grpo":
            return card
        imitated = count_imitation(settings.local_steps, settings.supervised.batch_size)
        imitated += Work(models_down=1, models_up=1)
        return replace(card, round=imitated * scale.asked, value_refusal="with objective=sft it imitates")


def imitate_solutions(
    site: Site, start: SiteState, supervised: SupervisedSettings, steps: int, seed: int, *, run_steps: int | None = None
) -> tuple[list[float], SiteState]:
    """The losses of `steps` supervised steps, and the state after them; the expert plays the site's tasks, each at most once.

    The optimizer continues from the moments of `start`, if it has any. The learning rate's schedule is over `run_steps`, by
    default `steps`.
    """
    from fedagentgym.learning.state import get_trainable_policy
    from fedagentgym.learning.supervised import SupervisedTraining, collect_demonstrations, make_examples

    policy = get_trainable_policy(site.agent)
    policy.set_weights(start.weights)
    count = min(len(site.env.pool), steps * supervised.batch_size)
    played = collect_demonstrations(site.agent, site.env, count, seed=derive(seed, "play"))
    settings = supervised.model_copy(update={"steps": run_steps or steps})
    training = SupervisedTraining(policy, settings, moments=start.optimizer, step=start.step)
    losses = training.run(make_examples(played, supervised.observation_weight), derive(seed, "learn"), steps=steps)
    return losses, SiteState(training.get_weights(), training.get_moments(), step=training.step)
