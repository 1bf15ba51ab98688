"""Activations: what the largest pass of an update keeps for its backward pass, and what the backward pass needs in addition.

The tensors are those that `learning/packed.py` and its operations keep; `tests/experiment/test_activations.py` compares the sum
with the storages of a real update. A row's tokens are counted as if no other row had the same prefix: shared prefixes are held
once, except for their keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedagentgym.agents.decoder.architectures import ARCHITECTURES
from fedagentgym.agents.model_shapes import ModelShape
from fedagentgym.experiment.estimate.player import PlannedAgent
from fedagentgym.learning.memory import CHUNK_LOGITS, CPU_BUDGET, GPU_SHARE, count_token_bytes, limit_tokens
from fedagentgym.learning.settings import LearningSettings

FULL, HALF = 4, 2
"""Bytes of a number in float32, and in bfloat16, the dtype of products on a GPU."""
LOGIT_COPIES = 4
"""Tensors of a chunk's size that are alive at once: logits, their gradient, and intermediate ones."""
GATE_COPIES = 3
"""Tensors of the inner layer's width that a block's backward pass makes in addition."""


@dataclass(frozen=True)
class Widths:
    """Bytes of a number by use: `stream` between the blocks, `product` in and out of matrix products, and of the
    copies that every adapted layer keeps of its input (None: layers with the same input share it)."""

    stream: int
    product: int
    copy: int | None

    @classmethod
    def of(cls, agent: PlannedAgent) -> Widths:
        """On a GPU autocast copies every product's input; on a processor only adapters in another type do."""
        if agent.on_gpu:
            shared = not agent.has_adapter and agent.width == HALF
            return cls(agent.width, HALF, None if shared else HALF)
        return cls(agent.width, agent.width, FULL if agent.has_adapter and agent.width == HALF else None)


def estimate_activations(agent: PlannedAgent, learning: LearningSettings) -> int:
    """Bytes of the largest pass, above weights and gradients."""
    shape, widths = agent.shape, Widths.of(agent)
    whole, longest = count_pass_tokens(agent, learning)
    share = min(1.0, agent.generated_tokens / max(agent.episode_tokens, 1))
    block = _count_block_bytes(agent, widths)
    kept = whole * ((shape.layers - 1) * block + _count_last_block_bytes(agent, widths, share))
    recomputed = longest * (shape.layers * shape.hidden * widths.stream + block)
    tokens = max(whole, longest)
    chosen = int(tokens * share) + 1
    logits = _count_logit_bytes(agent, chosen)
    ends = chosen * shape.hidden * 3 * widths.stream + tokens * 2 * shape.head_width * widths.stream
    gates = GATE_COPIES * shape.inner * widths.product
    return int(max(kept + max(logits, int(whole * share) * gates), recomputed + max(logits, longest * gates)) + ends)


def _count_logit_bytes(agent: PlannedAgent, chosen: int) -> int:
    """A chunk of logits with what its backward pass needs and, where the head learns and several chunks add to it, the head's
    gradient; that of a lone chunk comes when half of these tensors are gone."""
    shape = agent.shape
    whole = chosen * shape.vocabulary
    chunk = min(CHUNK_LOGITS[agent.device_type], whole) * FULL
    head = 0 if agent.has_adapter else shape.vocabulary * shape.hidden * agent.width
    if chunk < whole * FULL:
        return chunk * LOGIT_COPIES + head
    return max(chunk * LOGIT_COPIES, chunk * LOGIT_COPIES // 2 + head)


def count_pass_tokens(agent: PlannedAgent, learning: LearningSettings) -> tuple[int, int]:
    """Tokens of the longest pass that is kept whole, and of the longest that is recomputed in the backward pass (0: none).

    `micro_tokens: auto` keeps what fits a share of the device; a single row that is longer is recomputed.
    """
    step = learning.minibatch_rows or -(-learning.episodes_per_step * agent.rows_per_episode // learning.minibatches)
    most = step * agent.context_length
    if learning.micro_tokens == "auto":
        budget = agent.device_bytes // GPU_SHARE if agent.on_gpu else CPU_BUDGET
        fitting = budget // estimate_token_bytes(agent.shape)
        told = limit_tokens(fitting, agent.device_type)
    else:
        told = fitting = learning.micro_tokens
    longest = min(max(told, agent.context_length), most)
    sharding = learning.sharding
    if learning.checkpointing or (sharding is not None and sharding.is_needed):
        return 0, longest
    return min(longest, told, fitting), longest if longest > fitting else 0


def estimate_token_bytes(shape: ModelShape) -> int:
    """The bytes per token that an update assumes when it chooses the length of its passes (`learning/memory.py`)."""
    return count_token_bytes(shape.layers, shape.hidden, shape.heads * shape.head_width, shape.inner)


def _count_block_bytes(agent: PlannedAgent, widths: Widths) -> int:
    """What a block keeps per token: its input and the state after attention; queries, keys, values and the attention's output;
    the inner layer's two parts; and the inputs of its products."""
    shape = agent.shape
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    normed = queries + keys if ARCHITECTURES[shape.architecture].head_norms else 0
    made = 2 * queries + 2 * keys + normed + 2 * shape.inner
    return 2 * shape.hidden * widths.stream + made * widths.product + _count_input_bytes(agent, widths)


def _count_input_bytes(agent: PlannedAgent, widths: Widths) -> int:
    """Inputs of a block's products that are kept: of all layers that are trained, or once where they share a tensor."""
    inputs = {name: count for name, count, _ in agent.shape.iter_linear()}
    if widths.copy is None:
        return (inputs["q_proj"] + inputs["o_proj"] + inputs["up_proj"] + inputs["down_proj"]) * widths.product
    return sum(inputs[name] for name in agent.adapted or inputs) * widths.copy


def _count_last_block_bytes(agent: PlannedAgent, widths: Widths, share: float) -> int:
    """In the last block only the positions before a choice have queries and what follows from them."""
    shape = agent.shape
    keys = shape.key_heads * shape.head_width
    every = 2 * shape.hidden * widths.stream + 2 * keys * widths.product
    return int(every + share * (_count_block_bytes(agent, widths) - 2 * keys * widths.product))
