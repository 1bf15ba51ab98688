"""The agent `untrained-tiny`, so that checks of algorithms need no warm start: its replies are noise, but it learns.

Importing this module registers it; a configuration names the module under `plugins:`, so that workers know it too.
"""

from __future__ import annotations

from typing import Any

from fedagentgym.agents import AGENTS
from fedagentgym.agents.presets import make_token_agent
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.settings import merge
from fedagentgym.envs.scripted import list_words

NAME = "untrained-tiny"
DEFAULTS = {
    "context": "session",
    "template": "compact",
    "think": False,
    "parser": "strict",
    "chat": False,
    "decoding": {"temperature": 1.0, "max_new_tokens": 4, "constrained": True},
}


def make(settings: AgentSettings, *, env: Any = None, seed: int = 0) -> Any:
    """A tiny model with random weights, or with those of the folder `model`, behind the tiny agent's prompts; generation is
    constrained to admissible actions."""
    from fedagentgym.agents.engines.tiny import make_tiny_model
    from fedagentgym.agents.engines.torch_policy import TorchPolicy

    given = settings.model_dump(exclude_unset=True, exclude_none=True)
    chosen = AgentSettings.load(merge(DEFAULTS, given), "agent")
    if chosen.model is not None:
        policy = TorchPolicy.load(chosen.model, plain=True, name=NAME, adapter=chosen.adapter, seed=seed)
    else:
        model, tokenizer = make_tiny_model(list_words(env), "0.1m", 256, seed)
        policy = TorchPolicy(model, tokenizer, name=NAME, adapter=chosen.adapter, seed=seed)
    return make_token_agent(chosen, policy, policy.tokenizer)


AGENTS.register(NAME, make, replace=True)
