"""The settings of agents. One class serves all kinds, so that `agent:` in a configuration always has the same keys."""

from __future__ import annotations

from math import isfinite
from operator import not_
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, field_validator, model_validator

from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.text.prompts import OBSERVATION, TEMPLATES
from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.settings import Settings


class AdapterSettings(Settings):
    """A LoRA adapter of the `peft` library on a frozen base model. The update of a weight is `alpha / rank * B @ A`."""

    rank: int = Field(default=8, ge=1, description="inner dimension of the update")
    alpha: float = Field(default=16.0, gt=0.0, description="scale of the update, divided by the rank")
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="dropout on the adapter's input while training")
    targets: tuple[str, ...] | Literal["all-linear"] = Field(
        default="all-linear", description="names of the adapted linear layers, or all of them but the output head"
    )
    layers: str = Field(
        default="all",
        pattern=r"^(all|last-[1-9][0-9]*)$",
        description="decoder blocks with an adapter: all, or last-N, which needs no backward pass through the blocks below",
    )
    train: Literal["both", "B"] = Field(
        default="both",
        description="factors that are trained: both, or B alone with A fixed at its random initial value",
    )

    @property
    def last(self) -> int | None:
        """The number of adapted blocks, counted from the last; None for all."""
        return None if self.layers == "all" else int(self.layers.removeprefix("last-"))


class HarnessLimits(Settings):
    """Limits of an episode. An episode that exceeds a limit of time is begun again or lost; calls beyond `calls` are refused."""

    idle: float = Field(default=120.0, gt=0.0, le=86_400.0, description="longest time without a request, in seconds")
    longest: float = Field(default=1800.0, gt=0.0, le=604_800.0, description="longest episode, in seconds")
    calls: int = Field(default=64, ge=1, le=10_000, description="most calls of the model in an episode")
    retries: int = Field(
        default=2, ge=0, le=100, description="further attempts after a crash or timeout, with the same random draws"
    )


class HarnessSettings(Settings):
    """A program that plays in place of this package's player, through an OpenAI-compatible server in this process."""

    name: Literal["owner"] | None = Field(
        default=None, description="owner: in a Flower deployment, the owner of each machine names the program"
    )
    command: tuple[str, ...] = Field(
        default=(), description="the program and its arguments, such as [python, my_agent.py]"
    )
    clients: dict[int, tuple[str, ...]] = Field(
        default_factory=dict,
        exclude_if=not_,
        description="commands of clients with another program, by client number, such as {1: [python, other_agent.py]}",
    )
    processes: int = Field(
        default=4,
        ge=1,
        le=64,
        description="number of processes of the program, each of which plays one episode at a time",
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment variables to set for the program")
    keep: tuple[str, ...] = Field(
        default=(), description="environment variables that it inherits besides PATH, HOME, LANG and VIRTUAL_ENV"
    )
    world: Literal["gateway", "own"] = Field(
        default="gateway",
        description="gateway: the program acts by /v1/step; own: the program has its own environment, and reports a reward",
    )
    history: Literal["tokens", "template"] = Field(
        default="tokens",
        description="tokens: a conversation that goes on keeps the generated ids; template: every prompt is rendered anew, as"
        " by other servers",
    )
    tools: Literal["hermes", "json", "action-tags", "none"] | None = Field(
        default=None,
        description="format of tool calls in replies; null: hermes with a chat template, action-tags without",
    )
    limits: HarnessLimits = Field(default=HarnessLimits(), description="limits of an episode")
    failed: Literal["zero", "drop"] = Field(
        default="zero",
        description="zero: an episode that the program reports as failed keeps its reward so far; drop: it is left out",
    )
    strict: bool = Field(
        default=True, description="refuse request fields that change the distribution; false: ignore and count them"
    )
    evaluate: bool = Field(default=True, description="false: this package's player plays evaluations")
    reward_range: tuple[float, float] = Field(
        default=(0.0, 1.0), description="with world own: lowest and highest reward that may be reported"
    )

    program: str | None = Field(
        default=None,
        pattern="^sha256:[0-9a-f]{64}$",
        description="in records, replaces command and variables: the digest of the command and of the files that it names",
    )

    @property
    def runs_code(self) -> bool:
        """True if the settings name a program or its variables, which only the user of the machine may choose."""
        return bool(self.command or self.clients or self.env or self.keep)

    @model_validator(mode="after")
    def _check_program(self) -> HarnessSettings:
        if self.name is not None and self.runs_code:
            raise ValueError(
                "name: owner leaves the program to the owner of each machine: leave out command, clients, env and keep"
            )
        if self.clients and not self.command:
            raise ValueError("clients names programs that replace command, so command must be set too")
        if not all(self.clients.values()):
            raise ValueError("clients: a command has at least one word")
        if not self.reward_range[0] < self.reward_range[1] or not all(map(isfinite, self.reward_range)):
            raise ValueError("reward_range must be two finite numbers, the lower one first")
        commands = (word for command in (self.command, *self.clients.values()) for word in command)
        if any("\0" in text for text in (*commands, *self.env, *self.env.values(), *self.keep)):
            raise ValueError("a command or variable holds a NUL character")
        if any("=" in name or not name for name in (*self.env, *self.keep)):
            raise ValueError("the name of a variable must not be empty or contain '='")
        return self


_PROMPTED = ("context", "history", "longest_prompt", "template", "system", "request", "think", "parser")
_USED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("expert", "random", "human"), ()),
    "endpoint": ("model", *_PROMPTED, "decoding"),
    "trl": (*_PROMPTED, "chat", "chat_options", "decoding", "context_length"),
}
"""The settings that agents use whose model is not loaded here, besides `name` and `options`. All others are refused."""


def draws_tokens(name: str) -> bool:
    """Return whether an agent draws tokens at a temperature; True for all agents that plugins registered."""
    return "decoding" in _USED.get(name, ("decoding",))


class AgentSettings(Settings):
    """The section `agent` of a configuration: the agent and its prompts. With None, the agent's own default applies.

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
        description="session: one growing dialogue per episode; window: a new prompt with the last turns at every turn; null:"
        " the agent's default",
    )
    history: int = Field(default=2, ge=0, description="window: number of past turns that a prompt shows")
    longest_prompt: int | None = Field(
        default=None,
        exclude_if=not_,
        ge=1,
        description="window: a prompt with more characters than this shows no past turns; null: as many as fit",
    )
    template: str | None = Field(
        default=None,
        description="standard: prompt with instructions and the list of actions; compact: bare observations, for tiny models; or"
        " a registered name",
    )
    system: str | None = Field(
        default=None,
        description="system message of the chat template, or without a chat template the beginning of every prompt; null: "
        "the chat template's own, if it has one",
    )
    request: str | None = Field(
        default=None,
        description="first message of an episode, in place of the environment's role and help; {observation} is replaced by the "
        "first observation",
    )
    chat: bool | None = Field(
        default=None, description="wrap prompts in the tokenizer's chat template; null: if it has one"
    )
    chat_options: dict[str, Any] = Field(
        default_factory=dict,
        description="variables of the tokenizer's chat template by name, such as {enable_thinking: false}",
    )
    think: bool | None = Field(default=None, description="ask for <think>...</think> before the action, and require it")
    parser: Literal["strict", "published"] | None = Field(
        default=None, description="rules for reading the action from a reply, and for a broken format"
    )
    decoding: Decoding | None = Field(default=None, description="how tokens are drawn")
    adapter: AdapterSettings | None = Field(default=None, description="train a LoRA adapter instead of all weights")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N; auto takes the GPU if there is one")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        default=None,
        description="type of the stored weights; null: float32 if they are trained, since small steps vanish in bfloat16; under"
        " an adapter (always float32), bfloat16 on a GPU or on a CPU with bfloat16 (see `doctor`), unless the method changes the"
        " base",
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=None,
        description="compute threads on a CPU; null: one for an agent that is trained; auto: all cores, for a big model in a"
        " single process, with last bits that depend on the number of cores",
    )
    context_length: int | None = Field(default=None, ge=16, description="use at most this many tokens of context")
    forward: Literal["auto", "own", "hf"] = Field(
        default="auto",
        description="forward pass of rollouts: own, this package's; hf, the model's own modules; auto, own on a CPU for a"
        " supported model, else hf",
    )
    rollouts: Literal["torch", "vllm", "vllm-server"] = Field(
        default="torch",
        description="engine of rollouts: torch, the model that is trained; vllm, vLLM in this process, which gets changed"
        " weights; vllm-server, servers (`vllm serve`), which load adapters",
    )
    harness: HarnessSettings | None = Field(
        default=None,
        exclude_if=not_,
        description="a program that plays by sending requests to the model; null: this package's player",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of the agent, which depend on its name")

    @model_validator(mode="after")
    def _check_use(self) -> AgentSettings:
        given = self.model_dump(exclude_unset=True, exclude_defaults=True, exclude={"name", "options", "harness"})
        if unused := [name for name in given if name not in _USED.get(self.name, given)]:
            taken = ", ".join((*_USED[self.name], "options"))
            raise ValueError(f"agent {self.name!r} does not use {unused[0]}: it takes {taken}")
        return self

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: str | None) -> str | None:
        if value is not None and value not in TEMPLATES:
            raise ValueError(str(unknown_name_error(TEMPLATES.kind, value, TEMPLATES.names(), registered=True)))
        return value

    @field_validator("request")
    @classmethod
    def _check_request(cls, value: str | None) -> str | None:
        if value is not None and OBSERVATION not in value:
            raise ValueError(f"write {OBSERVATION} where the first observation belongs")
        return value


class VllmOptions(Settings):
    """`agent.options` with `rollouts: vllm`."""

    memory: float = Field(default=0.85, gt=0.0, le=1.0, description="share of the GPU's memory that vLLM may take")
    parallel: int = Field(default=1, ge=1, description="GPUs that share one copy of the model")
    sleep: bool = Field(
        default=False, description="release the GPU's memory between rollouts, for training on the same GPU"
    )
    eager: bool = Field(default=False, description="no CUDA graphs: slower, starts sooner")
    batch_invariant: bool = Field(
        default=False,
        description="kernels whose results do not depend on the rest of the batch: slower, in a separate process, for GPUs of"
        " compute capability 9.0 or newer",
    )
    adapters: int = Field(
        default=1, ge=1, le=64, description="adapters in one batch; a run sets it from federation.together"
    )
    engine: dict[str, Any] = Field(default_factory=dict, description="further arguments of vllm.LLM")


class VllmServerOptions(Settings):
    """`agent.options` with `rollouts: vllm-server`."""

    url: str | tuple[str, ...] = Field(
        default="http://localhost:8000",
        description="address of a server, or of several, which load adapters in turn",
    )
    folder: str | None = Field(
        default=None,
        description="folder for adapters, which the servers read at the same path; null: a temporary folder",
    )
    key_variable: str = Field(
        default="VLLM_API_KEY", description="environment variable that holds the key, if one is needed"
    )
    concurrency: int = Field(default=256, ge=1, le=4096, description="concurrent requests")
    timeout: float = Field(default=600.0, gt=0.0, le=86_400.0, description="seconds to wait for a complete answer")
    retries: int = Field(default=3, ge=0, le=100, description="further attempts after a busy, broken or missing answer")
    pause: float = Field(
        default=1.0, ge=0.0, description="seconds before the first retry; doubles each time, at most 30"
    )
    serve: bool = Field(default=False, description="start `vllm serve` at the address, and stop it with this process")
    start_seconds: float = Field(
        default=900.0, gt=0.0, description="serve: seconds within which the server must answer"
    )
    adapters: int = Field(
        default=1, ge=1, le=64, description="serve: adapters in one batch; a run sets it from federation.together"
    )
    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="serve: further arguments of `vllm serve`, such as {gpu_memory_utilization: 0.6}",
    )


def _dump_given(settings: AgentSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude_unset=True)


SaidAgent = Annotated[AgentSettings, PlainSerializer(_dump_given)]
"""Settings of an agent of which only the given fields are written: the agent's preset determines the others."""
