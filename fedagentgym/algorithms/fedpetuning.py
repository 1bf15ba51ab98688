"""Fedpetuning: federated averaging of LoRA adapters, trained by reinforcement or by imitation.

FedAgent with McMahan's weights, an adapter instead of all weights, and a choice of what a client does in a round:

    objective: grpo    local_steps policy steps on the client's own tasks
    objective: sft     local_steps supervised steps on the worked solutions of its own tasks (the world's expert plays them)
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.fedagent import FedAgent, FedAgentSettings
from fedagentgym.algorithms.support.runtime import Site, Workbench
from fedagentgym.algorithms.support.state_arrays import writable
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive
from fedagentgym.federation.aggregation import Aggregation, Weighted
from fedagentgym.federation.message import Message
from fedagentgym.federation.operation import ClientContext
from fedagentgym.learning.settings import SupervisedSettings


class FedPETuningSettings(FedAgentSettings):
    """`algorithm: {name: fedpetuning, objective: sft}`; the agent needs an adapter."""

    name: Literal["fedpetuning"] = "fedpetuning"  # type: ignore[assignment]
    aggregation: Aggregation = Weighted()
    objective: Literal["grpo", "sft"] = Field(default="grpo", description="reinforcement or imitation")
    supervised: SupervisedSettings = Field(
        default=SupervisedSettings(), description="how solutions are imitated (sft); `steps` is local_steps"
    )


class FedPETuning(FedAgent):
    """FedAgent on adapters, by either objective."""

    settings_class: ClassVar[type[Settings]] = FedPETuningSettings

    def __init__(self, settings: Any, bench: Workbench) -> None:
        super().__init__(settings, bench)
        if bench.bench.agent.adapter is None:
            raise OptionError("fedpetuning averages LoRA adapters: set agent.adapter, for example to {rank: 8}")

    def train(self, state: Message, message: Message, client: ClientContext) -> tuple[Message, Message]:
        """One client's part of a round."""
        if self.settings.objective == "grpo":
            return super().train(state, message, client)
        site: Site = client.resources
        losses, weights = imitated(
            site, writable(message.weights), self.settings.supervised, self.settings.local_steps, client.derive("sft")
        )
        metrics = {"loss": losses[-1]}
        report = {"metrics": metrics, "episodes": []}
        return state, Message(weights=weights, control={"examples": site.examples}, report=report)


def imitated(
    site: Site, weights: dict[str, Any], supervised: SupervisedSettings, steps: int, seed: int
) -> tuple[list[float], dict[str, Any]]:
    """The weights after so many supervised steps on the expert's episodes of the site's tasks, each task at most once."""
    from fedagentgym.learning.local import trainable_policy
    from fedagentgym.learning.supervised import SupervisedTraining, examples
    from fedagentgym.learning.warm_start import demonstrations

    policy = trainable_policy(site.agent)
    policy.set_weights(weights)
    count = min(site.examples, steps * supervised.batch_size)
    played = demonstrations(site.agent, site.env, count, seed=derive(seed, "play"))
    training = SupervisedTraining(policy, supervised.model_copy(update={"steps": steps}))
    losses = training.run(examples(played, supervised.observation_weight), derive(seed, "learn"))
    return losses, policy.get_weights()
