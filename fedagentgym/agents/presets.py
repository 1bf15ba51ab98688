"""Makes agents by name. Language models are the tiny ones, any transformers model, SmolLM2, and four of the agent papers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedagentgym.agents import AGENTS
from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.loading import choose_device, choose_dtype, set_threads
from fedagentgym.agents.model.pretrained import find_tiny_folder, read_player_settings
from fedagentgym.agents.model.store import locate_model
from fedagentgym.agents.players.own import Agent
from fedagentgym.agents.protocols import Decoding, Player, Policy
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.errors import FedAgentGymError, OptionError, describe_error, show_value
from fedagentgym.base.imports import missing_explained
from fedagentgym.base.settings import merge
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.envs.scripted import list_words

if TYPE_CHECKING:
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.agents.text.tokens import TextTokenizer
    from fedagentgym.envs.core import TextEnv

_PAPER = {
    "context": "window",
    "history": 2,
    "template": "standard",
    "think": True,
    "parser": "published",
    "decoding": {"temperature": 1.0, "max_new_tokens": 512},
}
_TINY = {
    "context": "session",
    "template": "compact",
    "think": False,
    "parser": "strict",
    "chat": False,
    "dtype": "float32",
    "decoding": {"temperature": 1.0, "max_new_tokens": 16},
}
_UNTRAINED = {**_TINY, "decoding": {"temperature": 1.0, "max_new_tokens": 4, "constrained": True}}
UNTRAINED_SIZE, UNTRAINED_CONTEXT = "0.1m", 256
"""The size and the context length of `untrained-tiny`."""
TINY_AGENTS = ("tiny", "untrained-tiny")
"""Agents whose model is made for its environment, whose words are its tokens."""
_SMOLLM2 = {
    "context": "session",
    "template": "standard",
    "think": False,
    "parser": "strict",
    "decoding": {"temperature": 1.0, "max_new_tokens": 128, "constrained": True},
}
DEFAULT_MODELS = {
    "smollm2": "smollm2",
    "qwen2.5-1.5b-instruct": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b-instruct": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "llama-3.2-3b-instruct": "meta-llama/Llama-3.2-3B-Instruct",
}
"""Agents with a default model, which `agent.model` overrides."""
_GENERAL = {**_PAPER, "context": "session", "parser": "strict"}
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(DEFAULT_MODELS, _PAPER),
    "smollm2": _SMOLLM2,
    "tiny": _TINY,
    "untrained-tiny": _UNTRAINED,
    "transformers": _GENERAL,
    "vllm": _GENERAL,
}


class AgentFactory(Protocol):
    """A registered function that builds an agent from its settings."""

    def __call__(self, settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> Player: ...


@missing_explained()
def make_agent(
    settings: Player | AgentSettings | Mapping[str, Any] | str, env: EnvLike | None = None, seed: int = 0
) -> Player:
    """Make an agent from its settings.

    Args:
        settings: `AgentSettings`, a mapping of settings, or the name of an agent: `tiny`, `transformers`, `endpoint`, `expert`,
            `random`, `human`, or a registered name. For a registered class, `options` are the arguments of the class. An agent
            is returned unchanged.
        env: The environment that it will play, for agents that depend on one, such as the tiny models of the package.
        seed: Seed of new weights: of an adapter, and of `untrained-tiny`.

    Returns:
        The agent.

    Raises:
        UnknownNameError: If there is no such agent.
        OptionError: If a setting is invalid, or the registered class or function does not make an agent.

    Examples:
        >>> make_agent("random").name
        'random'
    """
    if isinstance(settings, type):
        raise OptionError(
            f"an agent is an instance, not a class: give {settings.__name__}() in place of {settings.__name__}"
        )
    if callable(getattr(settings, "play", None)):
        return settings  # type: ignore[return-value]
    if not isinstance(settings, AgentSettings | Mapping | str):
        raise OptionError(
            "an agent is an instance of a class derived from fedagentgym.Agent, or the name or the settings of one, got"
            f" {show_value(settings)}"
        )
    chosen = settings if isinstance(settings, AgentSettings) else AgentSettings.load(settings, "agent")
    target: Any = AGENTS.get(chosen.name)
    made: Player
    if isinstance(target, type) and hasattr(target, "reply"):
        if not issubclass(target, Agent):
            raise OptionError(f"agent {chosen.name!r}: derive {target.__name__} from fedagentgym.agents.Agent")
        given = chosen.model_dump(exclude_unset=True, exclude_defaults=True)
        if surplus := sorted(set(given) - {"name", "options"}):
            raise OptionError(f"agent {chosen.name!r} takes options alone, got agent.{surplus[0]}")
        try:
            made = target(**chosen.options)
            made.name = chosen.name
        except FedAgentGymError:
            raise
        except Exception as error:
            reason = describe_error(error)
            raise OptionError(f"agent {chosen.name!r} cannot be made with its options: {reason}") from error
        return made
    if not callable(target):
        hint = "register a class derived from Agent, or a function that makes an agent"
        raise OptionError(f"agent {chosen.name!r} is registered as {show_value(target)}: {hint}")
    made = target(chosen, env=None if env is None else open_env(env), seed=seed)
    if not callable(getattr(made, "play", None)):
        raise OptionError(
            f"agent {chosen.name!r}: the registered function returned {show_value(made)}, which is no agent"
        )
    if isinstance(made, Agent):
        made.name = chosen.name
    if chosen.harness is not None and not isinstance(made, TokenAgent):
        raise OptionError(f"agent.harness needs a language model in this process, which agent {chosen.name!r} is not")
    return made


def starts_from_nothing(settings: AgentSettings) -> bool:
    """Return whether this is a tiny agent without `model`, whose model is made for its environment."""
    return settings.name == "tiny" and settings.model is None


def get_model(settings: AgentSettings) -> str | None:
    """Return the model that an agent is loaded from: a name, a folder or a hub id."""
    return settings.model or DEFAULT_MODELS.get(settings.name)


def require_model(settings: AgentSettings) -> str:
    """Return the model that a warm start trains; an agent without a model is refused."""
    model = get_model(settings)
    if model is None:
        AGENTS.get_target(settings.name)  # raises another error for an unknown agent
        raise OptionError(
            f"warm_start trains a language model, and agent {settings.name!r} has none: name one (agent.model), or leave it out"
        )
    return model


def apply_defaults(settings: AgentSettings, defaults: Mapping[str, Any] = _GENERAL) -> AgentSettings:
    """Return the settings with `defaults`, such as a preset, for all keys that are not set.

    Keys of `decoding` that are not set have their defaults too.
    """
    given = settings.model_dump(exclude_unset=True, exclude_none=True)
    return AgentSettings.load(merge(defaults, given), "agent")


def make_token_agent(settings: AgentSettings, policy: Policy, tokenizer: TextTokenizer) -> TokenAgent:
    """Make an agent from a policy, with the prompts, parser and decoding of `settings`, to which a preset was already applied."""
    template = Template(settings.template or "standard", bool(settings.think), settings.system, settings.request)
    chat = tokenizer.has_chat_template if settings.chat is None else settings.chat
    if settings.chat_options:
        if not chat:
            raise OptionError("agent.chat_options are variables of a chat template, but none is used: leave them out")
        tokenizer.set_chat_options(settings.chat_options)
    harness = None
    if settings.harness is not None:
        from fedagentgym.agents.gateway.harness import Harness

        harness = Harness(settings.harness)
    return TokenAgent(
        settings.name,
        policy,
        template,
        settings.decoding or Decoding(),
        settings.context or "session",
        settings.history,
        settings.parser or "strict",
        chat,
        settings.longest_prompt,
        harness,
    )


def _load_agent(settings: AgentSettings, named: str | Path, seed: int) -> TokenAgent:
    source = locate_model(named)

    def load_learner() -> TorchPolicy:
        from fedagentgym.agents.model.policy import TorchPolicy

        if settings.threads is not None:
            set_threads(settings.threads)
        device = choose_device(settings.device)
        return TorchPolicy.load(
            source,
            dtype=settings.dtype or choose_dtype(settings.adapter is not None, device),
            device=settings.device,
            name=settings.name,
            context_length=settings.context_length,
            adapter=settings.adapter,
            seed=seed,
            forward=settings.forward,
            plain=settings.name == "tiny",
        )

    if settings.rollouts == "vllm":
        from fedagentgym.agents.model.vllm import make_torch_vllm_policy

        pair = make_torch_vllm_policy(settings, source, load_learner)
        return make_token_agent(settings, pair, pair.tokenizer)
    if settings.rollouts == "vllm-server":
        from fedagentgym.agents.model.vllm_server import make_vllm_server_policy

        pair = make_vllm_server_policy(settings, source, load_learner)
        return make_token_agent(settings, pair, pair.tokenizer)
    policy = load_learner()
    return make_token_agent(settings, policy, policy.tokenizer)


def _refuse_options(settings: AgentSettings) -> None:
    if settings.options and settings.rollouts == "torch":
        raise OptionError(f"agent {settings.name!r} takes no options, got {sorted(settings.options)[0]!r}")


def make_transformers_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> TokenAgent:
    """Load any causal language model from a folder or the hub."""
    _refuse_options(settings)
    chosen = apply_defaults(settings)
    if chosen.model is None:
        raise OptionError(f"agent {settings.name!r} needs a model: a folder or a hub id")
    return _load_agent(chosen, chosen.model, seed)


def make_vllm_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> TokenAgent:
    """Load any causal language model, with rollouts by vLLM."""
    return make_transformers_agent(settings.model_copy(update={"rollouts": "vllm"}), env=env, seed=seed)


def make_tiny_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> TokenAgent:
    """Load the model folder `model`, or the environment's tiny model with the prompts and decoding of its training."""
    _refuse_options(settings)
    if settings.model is not None:
        return _load_agent(apply_defaults(settings, _TINY), settings.model, seed)
    if env is None:
        raise OptionError("agent 'tiny' belongs to an environment: name one, or a model folder")
    folder = find_tiny_folder(env)
    return _load_agent(apply_defaults(settings, merge(_TINY, read_player_settings(folder))), folder, seed)


def make_untrained_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> TokenAgent:
    """Make a tiny model with random weights, which can be trained. Its replies are random admissible actions."""
    from fedagentgym.agents.model.loading import make_tiny_model
    from fedagentgym.agents.model.policy import TorchPolicy

    _refuse_options(settings)
    chosen = apply_defaults(settings, _UNTRAINED)
    if chosen.model is not None:
        policy = TorchPolicy.load(chosen.model, plain=True, name=chosen.name, adapter=chosen.adapter, seed=seed)
    elif env is None:
        raise OptionError(f"agent {chosen.name!r} needs an environment for its vocabulary: name one, or a model folder")
    else:
        model, tokenizer = make_tiny_model(list_words(env), UNTRAINED_SIZE, UNTRAINED_CONTEXT, seed)
        policy = TorchPolicy(model, tokenizer, name=chosen.name, adapter=chosen.adapter, seed=seed)
    return make_token_agent(chosen, policy, policy.tokenizer)


def make_smollm2_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> TokenAgent:
    """Load SmolLM2-135M-Instruct, the smallest chat model in the package index (`fedagentgym model add`).

    By itself it hardly keeps a format, so in environments that take commands its replies are constrained.
    """
    _refuse_options(settings)
    return _load_agent(apply_defaults(settings, _SMOLLM2), settings.model or DEFAULT_MODELS["smollm2"], seed)


def make_paper_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> TokenAgent:
    """Load a model of the agent papers, with the papers' prompts, parser and decoding."""
    _refuse_options(settings)
    return _load_agent(apply_defaults(settings, _PAPER), settings.model or DEFAULT_MODELS[settings.name], seed)


def complete_settings(settings: AgentSettings) -> AgentSettings:
    """Return the settings of an agent, completed with the defaults of its preset. No model is loaded.

    `model` stays None for a tiny agent whose model is found or made for its environment.
    """
    if settings.name not in _PRESETS:
        return settings
    model = {"model": found} if (found := get_model(settings)) else {}
    return apply_defaults(settings, {**_PRESETS[settings.name], **model})
