"""The agent of a run as numbers, from which its plan is computed; no model is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedagentgym.agents.model.shapes import ModelShape, find_shape, make_tiny_shape
from fedagentgym.agents.presets import (
    TINY_AGENTS,
    UNTRAINED_CONTEXT,
    UNTRAINED_SIZE,
    complete_settings,
    starts_from_nothing,
)
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.tokens import count_tokens
from fedagentgym.algorithms.runtime import EnvSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.base.process import check_bfloat16
from fedagentgym.envs import open_env
from fedagentgym.envs.make import count_turns
from fedagentgym.envs.scripted import list_words
from fedagentgym.learning.settings import WarmStartSettings

WIDTHS = {"float32": 4, "bfloat16": 2}
DEVICE_BYTES = 80 * 10**9
"""The memory of the GPU that a plan assumes where none is given."""
DEFAULT_CONTEXT = 32_768
"""Maximum context of a language model whose `context_length` is not set."""


@dataclass(frozen=True)
class PlannedAgent:
    """The numbers from which a plan is computed. `trainable` are the parameters that are trained and sent."""

    name: str
    model: str
    shape: ModelShape
    parameters: int
    trainable: int
    adapted: tuple[tuple[int, int], ...]
    """The outputs and inputs of every layer with an adapter."""
    has_adapter: bool
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
    chosen, start = complete_settings(settings), warm_start or WarmStartSettings()
    if chosen.decoding is None or chosen.context is None:
        raise OptionError(f"a plan needs an agent with a language model that is trained, not {settings.name!r}")
    made = chosen.model or ""
    if chosen.model is not None:
        shape, longest = find_shape(chosen.model), DEFAULT_CONTEXT
    elif chosen.name in TINY_AGENTS:
        options = {name: value for name, value in env.options.items() if name != "reward"}
        words = list_words(open_env(env.id, **options))
        size, longest = UNTRAINED_SIZE, UNTRAINED_CONTEXT
        if starts_from_nothing(chosen):
            size, longest = start.size, start.context_length
        made, shape = f"tiny, {size}", make_tiny_shape(size, count_tokens(words))
    else:
        raise OptionError(f"agent {chosen.name!r} needs a model: a folder or a hub id")
    adapter, parameters = chosen.adapter, shape.count_parameters()
    trainable = parameters
    adapted: tuple[tuple[int, int], ...] = ()
    if adapter is not None:
        adapted = tuple(shape.list_adapted(adapter.targets, adapter.last))
        trainable = shape.count_adapter_parameters(adapter.rank, adapter.targets, adapter.last, factors=adapter.train)
    # if no device is named, a GPU is assumed, except for models that are small enough to learn on a CPU; the base under an
    # adapter is stored in bfloat16 if the machine can compute with it
    on_gpu = chosen.device != "cpu" and (chosen.device != "auto" or chosen.name not in (*TINY_AGENTS, "smollm2"))
    halved = adapter is not None and (chosen.device != "cpu" or check_bfloat16().present)
    return PlannedAgent(
        name=settings.name,
        model=made,
        shape=shape,
        parameters=parameters,
        trainable=trainable,
        adapted=adapted,
        has_adapter=adapter is not None,
        on_gpu=on_gpu,
        width=WIDTHS[chosen.dtype or ("bfloat16" if halved else "float32")],
        context_length=chosen.context_length or longest,
        reply_tokens=chosen.decoding.max_new_tokens,
        turns=count_turns(env.id, env.options),
        rows_per_episode=count_rows(settings, env),
        device_bytes=device_bytes,
    )


def count_rows(settings: AgentSettings, env: EnvSettings) -> int:
    """Rows of the loss per episode at most: with a window every turn is a prompt of its own."""
    return count_turns(env.id, env.options) if complete_settings(settings).context == "window" else 1
