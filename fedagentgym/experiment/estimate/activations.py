"""Activations of an update: what the greatest pass keeps for its backward pass (`learning/memory.py` chooses its length)."""

from __future__ import annotations

from fedagentgym.experiment.estimate.player import PlannedAgent
from fedagentgym.learning.settings import LearningSettings

LONGEST_PASS = 16_384
"""Tokens of the greatest pass on a GPU where `micro_tokens` is auto; a small card takes shorter ones."""


def estimate_activations(agent: PlannedAgent, learning: LearningSettings) -> int:
    """Bytes that the greatest pass keeps, in single precision: of each block its input, both norms, queries, keys and values,
    the attention's output and the inner layer three times; recomputed, the inputs of all blocks and one block whole."""
    shape = agent.shape
    tokens = LONGEST_PASS if learning.micro_tokens == "auto" else learning.micro_tokens
    block = 6 * shape.hidden + 4 * shape.heads * shape.head_width + 3 * shape.inner
    sharding = learning.sharding
    recomputed = learning.checkpointing or (sharding is not None and sharding.is_needed)
    kept = shape.layers * shape.hidden + block if recomputed else shape.layers * block
    return 4 * tokens * kept
