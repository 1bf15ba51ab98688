"""Players that err on purpose: an expert that sometimes takes a random action, and a random player."""

from __future__ import annotations

from typing import NamedTuple

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import Stream
from fedagentgym.envs.core import Episode, Expert
from fedagentgym.envs.slots import SLOT, fill_slot, slot_words

MOST_QUERY_WORDS = 3


class Choice(NamedTuple):
    """The played action, and whether it was drawn at random."""

    action: str
    at_random: bool


class NoisyExpert:
    """An expert for one episode whose actions are replaced by random ones with probability `noise`.

    Without an expert every action is random, and no draw decides that. With `watching` the expert is queried at every turn,
    even if its action is not played, so it knows what it would have done; without, it decides from the episode as it finds
    it. All draws come from `draws`, in the order in which they are needed.
    """

    def __init__(
        self, expert: Expert | None, noise: float, opening: str, draws: Stream, *, watching: bool = True
    ) -> None:
        self._expert, self._noise, self._opening, self._draws = expert, noise, opening, draws
        self._watching = watching

    def act(self, episode: Episode) -> Choice:
        if self._expert is None:
            return self._random(episode)
        if self._watching:
            action = self._expert.act(episode)
            return self._random(episode) if self._goes_wrong() else Choice(action, False)
        return self._random(episode) if self._goes_wrong() else Choice(self._expert.act(episode), False)

    def _goes_wrong(self) -> bool:
        return self._noise > 0.0 and self._draws.uniform() < self._noise

    def _random(self, episode: Episode) -> Choice:
        return Choice(random_action(episode, self._opening, self._draws), True)


def check_noise(noise: float) -> None:
    """Raise unless this is a share."""
    if not 0.0 <= noise <= 1.0:
        raise OptionError(f"noise is a share of the actions, between 0 and 1, got {noise}")


def random_action(episode: Episode, opening: str, draws: Stream) -> str:
    """An admissible action, each equally likely, its slot filled with words that the episode began with.

    An environment that lists no actions gets one of those words as its answer, a number if there is one.
    """
    words = slot_words(opening) or ["a"]
    if not episode.view.admissible:
        guesses = [word for word in words if word.isdecimal()] or words
        return f"<answer>{draws.pick(guesses)}</answer>"
    action = draws.pick(episode.view.admissible)
    if SLOT.search(action) is None:
        return action
    return fill_slot(action, " ".join(draws.pick(words) for _ in range(1 + draws.integers(MOST_QUERY_WORDS))))
