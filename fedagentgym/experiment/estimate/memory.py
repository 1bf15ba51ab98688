"""The memory of a device that holds one resident agent, by part.

Weights, gradients, moments and copies are exact: they follow from the number of parameters. Caches and activations depend
on what is played; they are given for the longest episodes and the greatest passes that the settings admit. A worker plays,
scores and updates one after the other, so the peak is what lasts, plus the greatest of the three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fedagentgym.experiment.estimate.activations import estimate_activations
from fedagentgym.experiment.estimate.player import PlannedAgent
from fedagentgym.learning.settings import LearningSettings, ShardingSettings

Phase = Literal["always", "playing", "scoring", "updating"]
FULL = 4
"""Bytes of a number in float32, in which gradients, moments and masters are kept."""


@dataclass(frozen=True)
class Part:
    """One use of memory: what for, when, how much."""

    name: str
    phase: Phase
    size: int


def list_memory_parts(
    agent: PlannedAgent, learning: LearningSettings, proximal: float, rollouts_by_vllm: bool
) -> tuple[Part, ...]:
    """All parts, those that last first."""
    weights = agent.parameters * agent.width + (agent.trainable * FULL if agent.has_adapter else 0)
    narrow = not agent.has_adapter and agent.width < FULL
    own = agent.trainable * FULL
    held = agent.trainable * (FULL if agent.has_adapter else agent.width)
    kl = learning.kl.coefficient > 0
    parts = [
        Part("weights", "always", weights),
        Part("float32 masters of the weights", "always", own if narrow else 0),
        Part("moments", "always", 2 * own),
        Part("base model of the KL term", "always", own if kl and learning.kl.reference == "base" else 0),
        Part("start of the round", "always", own if proximal > 0 or (kl and learning.kl.reference == "round") else 0),
        *(() if rollouts_by_vllm else _list_rollout_parts(agent, learning)),
        Part("weights put aside for the reference", "scoring", held if kl else 0),
        Part("gradients", "updating", own),
        Part("activations", "updating", estimate_activations(agent, learning)),
    ]
    sharding = learning.sharding
    if sharding is not None and sharding.is_needed:
        parts = _spread_parts(parts, agent, sharding)
    return tuple(part for part in parts if part.size)


_PLAYED = ("keys and values of the episodes", "base weights while the adapter is merged", "activations")


def _spread_parts(parts: list[Part], agent: PlannedAgent, sharding: ShardingSettings) -> list[Part]:
    """The parts on the first of several devices, which plays: its share of what each weight needs, or none of it if that lies in
    the machine's memory; what is played there is its own; and the weights that are put together for as long as they are used."""
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
    """What has to fit at the worst moment."""
    lasting = sum(part.size for part in parts if part.phase == "always")
    return lasting + max(
        sum(part.size for part in parts if part.phase == phase) for phase in ("playing", "scoring", "updating")
    )


def compute_least(agent: PlannedAgent, learning: LearningSettings, proximal: float) -> int:
    """What is needed whatever is played: weights, gradients, moments and copies, without caches and activations."""
    parts = list_memory_parts(agent, learning, proximal, rollouts_by_vllm=True)
    return compute_peak(tuple(part for part in parts if part.name != "activations"))
