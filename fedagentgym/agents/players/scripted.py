"""Agents without a model: the environment's expert, whole or handicapped, and a random walker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from fedagentgym.agents.protocols import Move
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.constraints import SLOT
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import Episode, Expert, TextEnv

_WORD = re.compile(r"[^\W_]+")
_QUERY_WORDS = 3


def check_noise(noise: float) -> None:
    if not 0.0 <= noise <= 1.0:
        raise OptionError(f"noise is a share of the actions, between 0 and 1, got {noise}")


def random_action(episode: Episode, start: str, stream: Stream) -> str:
    """Return an admissible action, each equally likely, its slot filled with words that the episode began with.

    A world that lists no actions gets one of those words as its answer, a number if there is one.
    """
    words = _WORD.findall(start) or ["a"]
    if not episode.view.admissible:
        guesses = [word for word in words if word.isdecimal()] or words
        return f"<answer>{stream.pick(guesses)}</answer>"
    action = stream.pick(episode.view.admissible)
    slot = SLOT.search(action)
    if slot is None:
        return action
    query = " ".join(stream.pick(words) for _ in range(1 + stream.integers(_QUERY_WORDS)))
    return action[: slot.start()] + query + action[slot.end() :]


class _Seat(NamedTuple):
    stream: Stream
    start: str
    expert: Expert | None


class ScriptedPlayers:
    """``policy.Players`` without a model."""

    def __init__(self, env: TextEnv, *, expert: bool, noise: float) -> None:
        self.env, self.expert, self.noise = env, expert, noise
        self._seats: dict[int, _Seat] = {}
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
            self._seats[self._next] = _Seat(stream, episode.view.observation, expert)
        return list(range(first, self._next + 1))

    def leave(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self._seats[row]

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        return [self._act(self._seats[row], episode) for row, episode in zip(rows, episodes, strict=True)]

    def _act(self, seat: _Seat, episode: Episode) -> Move:
        wanted = seat.expert.act(episode) if seat.expert is not None else ""
        if seat.expert is None or (self.noise > 0.0 and seat.stream.uniform() < self.noise):
            wanted = random_action(episode, seat.start, seat.stream)
        return Move(wanted, wanted)


class ScriptedAgent:
    """The expert (``noise`` = share of random actions, to make weaker labellers of hardness) or the random walker."""

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


def expert(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> ScriptedAgent:
    """Make the environment's own expert, whole or handicapped."""
    options = ExpertOptions.load(settings.options, "agent.options")
    return ScriptedAgent(settings.name, expert=True, noise=options.noise)


def random(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> ScriptedAgent:
    """Make the random walker."""
    NoOptions.load(settings.options, "agent.options")
    return ScriptedAgent(settings.name, expert=False)
