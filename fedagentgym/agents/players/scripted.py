"""Agents without a model: the environment's expert, whole or handicapped, and a random walker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from fedagentgym.agents.protocols import Move
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.settings import Settings
from fedagentgym.envs.scripted import NoisyExpert, check_noise, get_slot_text

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import Episode, TextEnv


class ScriptedPlayers:
    """``Players`` without a model."""

    def __init__(self, env: TextEnv, *, expert: bool, noise: float) -> None:
        self.env, self.expert, self.noise = env, expert, noise
        self._seats: dict[int, NoisyExpert] = {}
        self._next = 0

    def __enter__(self) -> ScriptedPlayers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._seats.clear()

    def enter(self, episodes: Sequence[Episode], streams: Sequence[Stream]) -> list[int]:
        first = self._next + 1
        for episode, stream in zip(episodes, streams, strict=True):
            self._next += 1
            expert = self.env.expert() if self.expert else None
            self._seats[self._next] = NoisyExpert(expert, self.noise, get_slot_text(self.env, episode), stream)
        return list(range(first, self._next + 1))

    def leave(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self._seats[row]

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        actions = [self._seats[row].act(episode).action for row, episode in zip(rows, episodes, strict=True)]
        return [Move(action, action) for action in actions]


class ScriptedAgent:
    """The expert (``noise`` = share of random actions, for weaker labelling policies) or the random walker."""

    def __init__(self, name: str, *, expert: bool, noise: float = 0.0) -> None:
        check_noise(noise)
        self.name, self.expert, self.noise = name, expert, noise

    def play(self, env: TextEnv) -> ScriptedPlayers:
        return ScriptedPlayers(env, expert=self.expert, noise=self.noise)

    def close(self) -> None:
        """Nothing is held."""


class ExpertOptions(Settings):
    """Options of the scripted expert."""

    noise: float = Field(default=0.0, ge=0.0, le=1.0, description="share of the actions that are random instead")


class NoOptions(Settings):
    """An agent without options."""


def make_expert_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> ScriptedAgent:
    """Make the environment's own expert, whole or handicapped."""
    options = ExpertOptions.load(settings.options, "agent.options")
    return ScriptedAgent(settings.name, expert=True, noise=options.noise)


def make_random_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> ScriptedAgent:
    """Make the random walker."""
    NoOptions.load(settings.options, "agent.options")
    return ScriptedAgent(settings.name, expert=False)
