"""Activations of an update: what one pass over `micro_tokens` tokens keeps for its backward pass."""

from __future__ import annotations

from fedagentgym.experiment.estimate.player import PlannedAgent
from fedagentgym.learning.settings import LearningSettings


def estimate_activations(agent: PlannedAgent, learning: LearningSettings) -> int:
    """Bytes that the greatest pass of an update keeps, and the logits of the tokens that are learnt."""
    tokens = learning.micro_tokens
    shape = agent.shape
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    block = 6 * shape.hidden + 3 * queries + 2 * keys + 4 * shape.inner
    blocks = shape.hidden * shape.layers + block if learning.checkpointing else block * shape.layers
    return tokens * blocks * agent.width
