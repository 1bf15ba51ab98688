"""The door to this room: settings in, agent out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedagentgym.agents import AGENTS
from fedagentgym.agents.protocols import Agent
from fedagentgym.agents.settings import AgentSettings

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv


def make_agent(settings: AgentSettings | Mapping[str, Any] | str, env: TextEnv | None = None, seed: int = 0) -> Agent:
    """Build an agent. ``env`` is for agents that depend on a world (a tiny model's cache); ``seed`` for new adapters.

    >>> make_agent("random").name
    'random'
    """
    chosen = settings if isinstance(settings, AgentSettings) else AgentSettings.load(settings, "agent")
    agent: Agent = AGENTS.get(chosen.name)(chosen, env=env, seed=seed)
    return agent
