"""Build an agent from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fedagentgym.agents import AGENTS
from fedagentgym.agents.protocols import Agent
from fedagentgym.agents.settings import AgentSettings

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv


class AgentFactory(Protocol):
    """A registered agent: it builds an agent from settings."""

    def __call__(self, settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> Agent: ...


def make_agent(settings: AgentSettings | Mapping[str, Any] | str, env: TextEnv | None = None, seed: int = 0) -> Agent:
    """Build an agent. ``env`` is for agents that depend on an environment (a tiny model's cache); ``seed`` for new adapters.

    >>> make_agent("random").name
    'random'
    """
    chosen = settings if isinstance(settings, AgentSettings) else AgentSettings.load(settings, "agent")
    factory: AgentFactory = AGENTS.get(chosen.name)
    return factory(chosen, env=env, seed=seed)
