"""The memory of a device that trains the agent of a run, by part, by the usual counts.

| part | bytes |
|---|---|
| weights | per parameter as many as its type has, 4 for an adapter's |
| copies of the trained parameters (masters, KL term, penalties) | 4 per trained parameter and copy |
| moments of AdamW | 8 per trained parameter |
| gradients | 4 per trained parameter |
| keys and values | of the episodes that are played at once, each filling its context |
| activations | `count_token_bytes` for each token of the longest pass, and four tensors of a chunk of logits |

A worker plays, computes gradients and steps one after the other: the peak is the permanent part and the largest phase. If
clients score with a model of their own (FedGRPO's experts), that model is resident too. `tests/experiment/test_memory_formula.py`
compares the counts with the tensors of a real step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedagentgym.agents.settings import VllmOptions
from fedagentgym.algorithms.card import SecondModel
from fedagentgym.experiment.estimate.agent import PlannedAgent
from fedagentgym.learning.memory import CHUNK_LOGITS, CPU_BUDGET, GPU_SHARE, count_token_bytes, limit_tokens
from fedagentgym.learning.settings import LearningSettings

FULL, HALF = 4, 2
"""Bytes of a number in float32, and in bfloat16, the type of products on a GPU."""
LOGIT_COPIES = 4
"""Tensors of a chunk's size that are alive at once: logits, their gradient, and intermediate ones."""


@dataclass(frozen=True)
class Part:
    """One use of memory: purpose, phase, bytes."""

    name: str
    phase: Literal["always", "playing", "updating", "stepping"]
    size: int
    owner: str = "agent"


def list_memory_parts(
    agent: PlannedAgent,
    learning: LearningSettings,
    kept_copies: Sequence[str],
    vllm: VllmOptions | None,
    *,
    learns: bool = True,
) -> tuple[Part, ...]:
    """All parts, permanent ones first; the parts of training only if the agent `learns`."""
    own, shape = agent.trainable * FULL, agent.shape
    blocks = shape.layers * sum(inputs * outputs for _, inputs, outputs in shape.iter_linear())
    narrow = not agent.has_adapter and agent.width < FULL
    cast = agent.on_gpu and not agent.has_adapter and not narrow
    adamw = learning.optimizer == "adamw"
    kl = learning.kl.reference if learning.kl.coefficient > 0 else None
    copies = dict.fromkeys((*(("start of the round",) if kl == "round" else ()), *kept_copies))
    tokens = min(learning.parallel_episodes, learning.episodes_per_step) * agent.context_length
    parts = [
        Part("weights", "always", agent.parameters * agent.width + (own if agent.has_adapter else 0)),
        Part("float32 masters of the weights", "always", own if narrow else 0),
        Part("moments", "always", 2 * own if adamw else 0),
        Part("base model of the KL term", "always", own if kl == "base" else 0),
        *(Part(name, "always", own) for name in copies),
        Part("gradients", "updating", own),
        Part("weights in bfloat16 for products", "updating", agent.trainable * HALF if cast else 0),
        Part("gradients, and AdamW's temporaries", "stepping", own * (2 if agent.on_gpu and adamw else 1)),
    ]
    sharding = learning.sharding
    if sharding is not None and sharding.is_needed:
        # the first of several devices, which plays, has: its share of all parts so far, or none of them if they are offloaded to
        # the machine's memory; all weights while it plays; and the weights that are gathered for two blocks of an update
        together = parts[0].size
        parts = [replace(part, size=0 if sharding.offload else -(-part.size // sharding.devices)) for part in parts]
        working = max(0, agent.parameters - blocks) + 2 * -(-blocks // max(1, shape.layers))
        parts += [
            Part("weights put together", "playing", together),
            Part("weights of blocks at work", "updating", working * (agent.width + (0 if agent.has_adapter else FULL))),
        ]
    if vllm is not None:
        parts.append(Part("vLLM's share", "playing" if vllm.sleep else "always", int(vllm.memory * agent.device_bytes)))
    else:
        merged = blocks * agent.width if agent.has_adapter and agent.on_gpu else 0
        cached = shape.count_cache_values(tokens) * agent.width
        parts.append(Part("keys and values of the episodes", "playing", cached))
        parts.append(Part("base weights while the adapter is merged", "playing", merged))
    parts.append(Part("activations", "updating", estimate_activations(agent, learning)))
    if not learns:  # the parts of an agent that only plays
        learned = ("moments", "base model of the KL term")
        parts = [part for part in parts if part.phase in ("always", "playing") and part.name not in learned]
    return tuple(part for part in parts if part.size)


def list_second_parts(model: SecondModel, planned: PlannedAgent) -> tuple[Part, ...]:
    """A model besides the agent that learns; with the memory of its training, if it is trained."""
    return tuple(
        replace(part, name=f"{part.name} ({model.name})", owner=model.name)
        for part in list_memory_parts(planned, model.learning, (), None, learns=model.steps > 0)
    )


def estimate_activations(agent: PlannedAgent, learning: LearningSettings) -> int:
    """Bytes of the largest pass: what all blocks keep, or their inputs and one block if they are recomputed; and logits."""
    shape, number = agent.shape, HALF if agent.on_gpu else FULL
    whole, recomputed = count_pass_tokens(agent, learning)
    token = count_token_bytes(shape.layers, shape.hidden, shape.heads * shape.head_width, shape.inner)
    inputs = shape.layers * shape.hidden * FULL
    kept = max(whole * token, recomputed * (inputs + token // shape.layers)) * number // FULL
    chosen = max(whole, recomputed) * agent.generated_tokens // max(agent.episode_tokens, 1) + 1
    return kept + LOGIT_COPIES * FULL * min(CHUNK_LOGITS[agent.device_type], chosen * shape.vocabulary)


def count_pass_tokens(agent: PlannedAgent, learning: LearningSettings) -> tuple[int, int]:
    """Tokens of the longest pass that is kept whole, and of the longest that is recomputed in the backward pass (0: none)."""
    step = learning.minibatch_rows or -(-learning.episodes_per_step * agent.rows_per_episode // learning.minibatches)
    if learning.micro_tokens == "auto":
        budget = agent.device_bytes // GPU_SHARE if agent.on_gpu else CPU_BUDGET
        shape = agent.shape
        fitting = budget // count_token_bytes(shape.layers, shape.hidden, shape.heads * shape.head_width, shape.inner)
        limit = limit_tokens(fitting, agent.device_type)
    else:
        limit = fitting = learning.micro_tokens
    longest = min(max(limit, agent.context_length), step * agent.context_length)
    if learning.checkpointing or (learning.sharding is not None and learning.sharding.is_needed):
        return 0, longest
    return min(longest, limit, fitting), longest if longest > fitting else 0


def compute_peak(parts: Sequence[Part]) -> int:
    """Bytes at the peak: the permanent parts, and the largest phase of one owner."""
    sums: dict[tuple[str, str], int] = {}
    for part in parts:
        sums[part.owner, part.phase] = sums.get((part.owner, part.phase), 0) + part.size
    lasting = sum(size for (_, phase), size in sums.items() if phase == "always")
    return lasting + max((size for (_, phase), size in sums.items() if phase != "always"), default=0)


def compute_least(
    agent: PlannedAgent, learning: LearningSettings, kept_copies: Sequence[str], *, learns: bool = True
) -> int:
    """Return the bytes needed in any case: permanent parts, gradients and gathered weights, without caches and activations."""
    parts = list_memory_parts(agent, learning, kept_copies, None, learns=learns)
    needed = ("gradients", "weights put together", "weights of blocks at work")
    return compute_peak([part for part in parts if part.phase == "always" or part.name in needed])
