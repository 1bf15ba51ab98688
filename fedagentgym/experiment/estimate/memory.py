"""The memory of a device that holds one resident agent, by part.

Weights, gradients, moments and copies are exact: they follow from the number of parameters. Caches and activations depend on
the episodes; they are given for the longest episodes and the largest passes that the settings allow. A worker plays, scores,
computes gradients and steps one after the other, so the peak is the permanent part plus the largest of these. If clients judge
with a model of their own (FedGRPO's experts), that model is resident too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedagentgym.algorithms.base import SecondModel
from fedagentgym.experiment.estimate.activations import FULL, HALF, estimate_activations
from fedagentgym.experiment.estimate.player import PlannedAgent
from fedagentgym.learning.settings import LearningSettings, ShardingSettings

Phase = Literal["always", "playing", "scoring", "updating", "stepping"]


@dataclass(frozen=True)
class VllmShare:
    """vLLM's share of a device: always, or while it plays."""

    share: float
    sleeps: bool

    def make_part(self, device_bytes: int) -> Part:
        return Part("vLLM's share", "playing" if self.sleeps else "always", int(self.share * device_bytes))


@dataclass(frozen=True)
class Part:
    """One use of memory: purpose, phase, bytes."""

    name: str
    phase: Phase
    size: int
    owner: str = "agent"


def list_memory_parts(
    agent: PlannedAgent, learning: LearningSettings, kept_copies: Sequence[str], vllm: VllmShare | None
) -> tuple[Part, ...]:
    """All parts, permanent ones first. Gradients have the dtype of the weights until the optimizer steps."""
    weights = agent.parameters * agent.width + (agent.trainable * FULL if agent.has_adapter else 0)
    narrow = not agent.has_adapter and agent.width < FULL
    own = agent.trainable * FULL
    held = agent.trainable * (FULL if agent.has_adapter else agent.width)
    copied = (
        agent.on_gpu and not agent.has_adapter and agent.width == FULL
    )  # by autocast, until the backward pass is over
    kl = learning.kl.coefficient > 0
    anchor = ("start of the round",) if kl and learning.kl.reference == "round" else ()
    copies = dict.fromkeys((*anchor, *kept_copies))
    moments = 2 * own if learning.optimizer == "adamw" else 0
    parts = [
        Part("weights", "always", weights),
        Part("float32 masters of the weights", "always", own if narrow else 0),
        Part("moments", "always", moments),
        Part("base model of the KL term", "always", own if kl and learning.kl.reference == "base" else 0),
        *(Part(name, "always", own) for name in copies),
        *(_list_rollout_parts(agent, learning) if vllm is None else [vllm.make_part(agent.device_bytes)]),
        Part("weights put aside for the reference", "scoring", held if kl else 0),
        Part("weights in bfloat16 for products", "updating", agent.trainable * HALF if copied else 0),
        Part("gradients", "updating", held),
        Part("activations", "updating", estimate_activations(agent, learning)),
        Part("gradients in float32", "stepping", own),
        Part("roots of the moments", "stepping", _count_step_bytes(agent) if moments else 0),
    ]
    sharding = learning.sharding
    if sharding is not None and sharding.is_needed:
        parts = _spread_parts(parts, agent, sharding)
    return tuple(part for part in parts if part.size)


_PLAYED = ("keys and values of the episodes", "base weights while the adapter is merged", "activations", "vLLM's share")


def _spread_parts(parts: list[Part], agent: PlannedAgent, sharding: ShardingSettings) -> list[Part]:
    """The parts on the first of several devices, which plays: its share of what each weight needs, or none of it if that is
    offloaded to the machine's memory; what play needs; and the weights that are gathered while they are used."""
    devices = sharding.devices
    kept = [
        part if part.name in _PLAYED else replace(part, size=0 if sharding.offload else -(-part.size // devices))
        for part in parts
    ]
    blocks = agent.shape.layers * sum(inputs * outputs for _, inputs, outputs in agent.shape.iter_linear())
    around = max(0, agent.parameters - blocks)
    working = around + 2 * -(-blocks // max(1, agent.shape.layers))
    gathered = agent.trainable * FULL if agent.has_adapter else 0
    return [
        *kept,
        Part("weights put together", "playing", agent.parameters * agent.width + gathered),
        Part("weights of blocks at work", "scoring", working * agent.width),
        Part(
            "weights and gradients of blocks at work",
            "updating",
            working * (agent.width + (0 if agent.has_adapter else FULL)),
        ),
    ]


def list_second_parts(model: SecondModel, planned: PlannedAgent) -> tuple[Part, ...]:
    """A model besides the agent that learns; with the memory of its training, if it is trained."""
    parts = list_memory_parts(planned, model.learning, (), None)
    used = {"always", "playing", "scoring"} | ({"updating", "stepping"} if model.steps else set())
    return tuple(
        replace(part, name=f"{part.name} ({model.name})", owner=model.name)
        for part in parts
        if part.phase in used and (model.steps or part.name != "moments")
    )


def _count_step_bytes(agent: PlannedAgent) -> int:
    """AdamW on a GPU needs one more number for all weights at once; on a processor tensor by tensor."""
    if agent.on_gpu:
        return agent.trainable * FULL
    return 0 if agent.has_adapter else 2 * agent.shape.vocabulary * agent.shape.hidden * FULL


def _list_rollout_parts(agent: PlannedAgent, learning: LearningSettings) -> tuple[Part, ...]:
    rows = min(learning.parallel_episodes, learning.episodes_per_step)
    values = agent.shape.count_cache_values(rows * agent.context_length)
    blocks = agent.shape.layers * sum(inputs * outputs for _, inputs, outputs in agent.shape.iter_linear())
    merged = blocks * agent.width if agent.has_adapter else 0
    return (
        Part("keys and values of the episodes", "playing", values * agent.width),
        Part("base weights while the adapter is merged", "playing", merged),
    )


def compute_peak(parts: tuple[Part, ...]) -> int:
    """The peak."""
    sums: dict[tuple[str, Phase], int] = {}
    for part in parts:
        sums[part.owner, part.phase] = sums.get((part.owner, part.phase), 0) + part.size
    lasting = sum(size for (_, phase), size in sums.items() if phase == "always")
    return lasting + max((size for (_, phase), size in sums.items() if phase != "always"), default=0)


def compute_least(agent: PlannedAgent, learning: LearningSettings, kept_copies: Sequence[str]) -> int:
    """What is needed in any case: weights, gradients, moments and copies, without caches and activations."""
    parts = list_memory_parts(agent, learning, kept_copies, None)
    return compute_peak(tuple(part for part in parts if part.name in _NEEDED))


_NEEDED = frozenset(
    {"weights", "float32 masters of the weights", "moments", "base model of the KL term", "start of the round"}
    | {"weights put aside for the reference", "gradients", "gradients in float32"}
    | {"weights put together", "weights of blocks at work", "weights and gradients of blocks at work"}
)
