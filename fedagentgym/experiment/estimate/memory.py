"""The agent of a run as numbers, and the memory of a device that holds it, by part.

Weights, gradients, moments and copies are exact: they follow from the number of parameters. Caches and activations depend on
the episodes; they are given for the longest episodes and the largest passes that the settings allow. A worker plays, scores,
computes gradients and steps one after the other, so the peak is the permanent part plus the largest of these. If clients score
with a model of their own (FedGRPO's experts), that model is resident too.

Activations are what the largest pass of an update keeps for its backward pass, and what the backward pass needs in addition: the
tensors that the packed pass and its operations keep; `tests/experiment/test_activations.py` compares the sum with the storages of
a real update. A row's tokens are counted as if no other row had the same prefix: shared prefixes are held once, except for their
keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedagentgym.agents.decoder.architectures import ARCHITECTURES
from fedagentgym.agents.model_shapes import LINEAR_LAYERS, ModelShape, find_shape, make_tiny_shape
from fedagentgym.agents.presets import complete_settings
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.words import count_tokens
from fedagentgym.algorithms.base import SecondModel
from fedagentgym.algorithms.runtime import EnvSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.base.process import check_bfloat16
from fedagentgym.envs import open_env
from fedagentgym.envs.make import count_turns
from fedagentgym.envs.scripted import list_words
from fedagentgym.learning.memory import CHUNK_LOGITS, CPU_BUDGET, GPU_SHARE, count_token_bytes, limit_tokens
from fedagentgym.learning.settings import LearningSettings, ShardingSettings, WarmStartSettings

WIDTHS = {"float32": 4, "bfloat16": 2}
DEVICE_BYTES = 80 * 10**9
"""The memory of the GPU that a plan assumes where none is given."""


@dataclass(frozen=True)
class PlannedAgent:
    """The numbers from which a plan is computed. `trainable` are the parameters that are trained and sent."""

    name: str
    model: str
    shape: ModelShape
    parameters: int
    trainable: int
    adapted: tuple[str, ...]
    """The linear layers of a block to which an adapter is added; none if all weights are trained."""
    on_gpu: bool
    width: int
    """Bytes of a stored weight of the model; an adapter's own weights take four."""
    context_length: int
    reply_tokens: int
    turns: int
    rows_per_episode: int
    device_bytes: int = DEVICE_BYTES
    """The memory of the GPU, of which vLLM and the passes of an update take shares."""

    @property
    def has_adapter(self) -> bool:
        return bool(self.adapted)

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.on_gpu else "cpu"

    @property
    def episode_tokens(self) -> int:
        """Maximum number of tokens that the model reads and writes in an episode: with a window every turn is a
        prompt of its own."""
        return self.context_length * self.rows_per_episode

    @property
    def generated_tokens(self) -> int:
        """Tokens that the agent writes in an episode, at most."""
        return self.reply_tokens * self.turns


def plan_agent(
    settings: AgentSettings, env: EnvSettings, warm_start: WarmStartSettings | None, device_bytes: int = DEVICE_BYTES
) -> PlannedAgent:
    """The numbers of a run's agent; an error if they are not known without loading it."""
    chosen = complete_settings(settings)
    if chosen.decoding is None or chosen.context is None:
        raise OptionError(f"a plan needs an agent with a language model that is trained, not {settings.name!r}")
    shape, longest = _find_model(chosen, env, warm_start)
    adapter = chosen.adapter
    parameters = shape.count_parameters()
    trainable = (
        parameters if adapter is None else shape.count_adapter_parameters(adapter.rank, adapter.targets, adapter.last)
    )
    turns = count_turns(env.id, env.options)
    return PlannedAgent(
        name=settings.name,
        model=chosen.model or f"tiny, {(warm_start or WarmStartSettings()).size}",
        shape=shape,
        parameters=parameters,
        trainable=trainable,
        adapted=() if adapter is None else find_adapted_layers(adapter.targets),
        on_gpu=_is_gpu(chosen),
        width=WIDTHS[
            chosen.dtype or ("bfloat16" if adapter is not None and _has_bfloat16(chosen.device) else "float32")
        ],
        context_length=chosen.context_length or longest,
        reply_tokens=chosen.decoding.max_new_tokens,
        turns=turns,
        rows_per_episode=count_rows(settings, env),
        device_bytes=device_bytes,
    )


def count_rows(settings: AgentSettings, env: EnvSettings) -> int:
    """Rows of the loss per episode at most: with a window every turn is a prompt of its own."""
    return count_turns(env.id, env.options) if complete_settings(settings).context == "window" else 1


def find_adapted_layers(targets: Sequence[str] | Literal["all-linear"]) -> tuple[str, ...]:
    """The names of the layers to which an adapter is added."""
    return tuple(name for name in LINEAR_LAYERS if targets == "all-linear" or name in targets)


def _is_gpu(settings: AgentSettings) -> bool:
    """Return whether to assume a GPU if no device is named: yes, except for models that are made to learn on a processor."""
    return settings.device != "cpu" and (settings.device != "auto" or settings.name not in ("tiny", "smollm2"))


def _has_bfloat16(device: str) -> bool:
    """Return whether a base under an adapter is stored in half the bytes; without a named device a GPU is assumed."""
    return device != "cpu" or check_bfloat16().present


def _find_model(
    settings: AgentSettings, env: EnvSettings, warm_start: WarmStartSettings | None
) -> tuple[ModelShape, int]:
    """The shape of the model, and its maximum context length unless the agent sets one."""
    if settings.model is not None:
        return find_shape(settings.model), DEFAULT_CONTEXT
    if settings.name != "tiny":
        raise OptionError(f"agent {settings.name!r} needs a model: a folder or a hub id")
    start = warm_start or WarmStartSettings()
    words = list_words(open_env(env.id, **_without_reward(env.options)))
    return make_tiny_shape(start.size, count_tokens(words)), start.context_length


DEFAULT_CONTEXT = 32_768
"""Maximum context of a language model whose `context_length` is not set."""


def _without_reward(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "reward"}


# ---- activations ----------------------------------------------------------------------------------------------------

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
        limit = limit_tokens(fitting, agent.device_type)
    else:
        limit = fitting = learning.micro_tokens
    longest = min(max(limit, agent.context_length), most)
    sharding = learning.sharding
    if learning.checkpointing or (sharding is not None and sharding.is_needed):
        return 0, longest
    return min(longest, limit, fitting), longest if longest > fitting else 0


def estimate_token_bytes(shape: ModelShape) -> int:
    """The bytes per token that an update assumes when it chooses the length of its passes (`learning/memory.py`)."""
    return count_token_bytes(shape.layers, shape.hidden, shape.heads * shape.head_width, shape.inner)


def _count_block_bytes(agent: PlannedAgent, widths: Widths) -> int:
    """Return what a block keeps per token: its input and the state after attention; queries, keys, values and the attention's
    output; the inner layer's two parts; and the inputs of its products."""
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


# ---- all parts ------------------------------------------------------------------------------------------------------

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
    merged = blocks * agent.width if agent.has_adapter and agent.on_gpu else 0
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
    """Return what is needed in any case: weights, gradients, moments and copies, without caches and activations."""
    parts = list_memory_parts(agent, learning, kept_copies, None)
    return compute_peak(tuple(part for part in parts if part.name in _NEEDED))


_NEEDED = frozenset(
    {"weights", "float32 masters of the weights", "moments", "base model of the KL term", "start of the round"}
    | {"weights put aside for the reference", "gradients", "gradients in float32"}
    | {"weights put together", "weights of blocks at work", "weights and gradients of blocks at work"}
)
