"""The settings of an agent: one class for every kind, so that ``agent:`` in a configuration has the same keys everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.text.prompts import OBSERVATION, TEMPLATES
from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.settings import Settings


class AdapterSettings(Settings):
    """A LoRA adapter on a frozen base model (the `peft` library's); the update is ``alpha / rank * B @ A``."""

    rank: int = Field(default=8, ge=1, description="inner dimension of the update")
    alpha: float = Field(default=16.0, gt=0.0, description="scale of the update, divided by the rank")
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="dropout on the adapter's input while training")
    targets: tuple[str, ...] | Literal["all-linear"] = Field(
        default="all-linear", description="names of the adapted linear layers, or all of them but the output head"
    )
    layers: str = Field(
        default="all",
        pattern=r"^(all|last-[1-9][0-9]*)$",
        description="decoder blocks with an adapter: all, or last-N; below them an update needs no backward pass",
    )

    @property
    def last(self) -> int | None:
        """The number of adapted blocks, counted from the last; None for all."""
        return None if self.layers == "all" else int(self.layers.removeprefix("last-"))


class AgentSettings(Settings):
    """Which agent plays and how it is prompted: the section `agent` of a configuration. None leaves a choice to the agent.

    Examples:
        >>> AgentSettings.load({"name": "tiny", "decoding": {"temperature": 0.7}}).decoding.temperature
        0.7
    """

    name: str = Field(
        default="tiny", description="a registered agent: tiny, transformers, vllm, endpoint, expert, random, ..."
    )
    model: str | None = Field(
        default=None, min_length=1, description="name or hub id of an added language model, or a folder"
    )
    context: Literal["session", "window"] | None = Field(
        default=None,
        description="one growing dialogue per episode, or a fresh prompt with the last turns at every step",
    )
    history: int = Field(default=2, ge=0, description="window: how many past turns a prompt shows")
    longest_prompt: int | None = Field(
        default=None,
        ge=1,
        description="window: a prompt of more characters shows no past turns; null: any that fit",
    )
    template: str | None = Field(
        default=None,
        description="standard: prompt with instructions and the list of actions; compact: bare observations (tiny models); or a "
        "registered name",
    )
    system: str | None = Field(
        default=None,
        description="system prompt: the chat template's system message, or without one the beginning of every prompt; null: "
        "the chat template's own, if it has one",
    )
    request: str | None = Field(
        default=None,
        description="first message of an episode, in place of the environment's role and help; {observation} is replaced by the "
        "first observation",
    )
    chat: bool | None = Field(
        default=None, description="wrap prompts in the tokenizer's chat template; None: if it has one"
    )
    chat_options: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of the tokenizer's chat template by the template's own names, such as {enable_thinking: false}",
    )
    think: bool | None = Field(default=None, description="ask for <think>...</think> before the action, and require it")
    parser: Literal["strict", "published"] | None = Field(
        default=None, description="how an action is extracted from a reply and when its format counts as malformed"
    )
    decoding: Decoding | None = Field(default=None, description="how tokens are drawn")
    adapter: AdapterSettings | None = Field(default=None, description="train a LoRA adapter instead of all weights")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N; auto takes the GPU if there is one")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        default=None,
        description="type of the stored weights; None: float32 when they are trained (small steps vanish in bfloat16); under an "
        "adapter, whose own weights stay float32, bfloat16 on a GPU or a processor that has it (see `doctor`)",
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=None,
        description="compute threads on a CPU; None: one for any agent that is trained; auto: all cores, for a big model "
        "in a single process, whose last bits then depend on the number of cores",
    )
    context_length: int | None = Field(default=None, ge=16, description="use at most this many tokens of context")
    forward: Literal["auto", "own", "hf"] = Field(
        default="auto",
        description="rollouts by our own forward pass (auto: on a CPU) or by the model's modules",
    )
    rollouts: Literal["torch", "vllm"] = Field(
        default="torch",
        description="what generates: the model that is trained, or vLLM, to which changed weights are copied",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of this kind of agent")

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: str | None) -> str | None:
        if value is not None and value not in TEMPLATES:
            raise ValueError(str(unknown_name_error(TEMPLATES.kind, value, TEMPLATES.names())))
        return value

    @field_validator("request")
    @classmethod
    def _check_request(cls, value: str | None) -> str | None:
        if value is not None and OBSERVATION not in value:
            raise ValueError(f"write {OBSERVATION} where the world's first observation belongs")
        return value


class VllmOptions(Settings):
    """``agent.options`` if vLLM plays."""

    memory: float = Field(default=0.85, gt=0.0, le=1.0, description="share of the GPU's memory that vLLM may take")
    parallel: int = Field(default=1, ge=1, description="GPUs that share one copy of the model")
    sleep: bool = Field(
        default=False, description="release the GPU's memory between rollouts, for training on the same GPU"
    )
    eager: bool = Field(default=False, description="no CUDA graphs: slower, starts sooner")
    engine: dict[str, Any] = Field(default_factory=dict, description="further arguments of vllm.LLM, as they are")
