"""Playing by script: actions drawn at random, an expert that errs on purpose, and the words that random play meets.

An admissible action may have a slot for the player's own words: `search[<query>]`. The words that fill a slot are those of the
task, unchanged; "women's", "slip-ons" and "8.5" are one word each. Experts, random players and constrained generation all split
texts in the same way, so that a player that copies words can produce what the expert produces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from fedagentgym.base.errors import OptionError, show_value
from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.protocols import Expert
from fedagentgym.envs.view import SLOT, Episode

_WORD = re.compile(r"[^\W_]+(?:['.,-][^\W_]+)*")


def slot_words(text: str) -> list[str]:
    """The words of a text, in order.

    >>> slot_words("Find women's slip-ons, size 8.5!")
    ['Find', "women's", 'slip-ons', 'size', '8.5']
    """
    return _WORD.findall(text)


def get_slot_text(env: TextEnv, episode: Episode) -> str:
    """The text whose words may fill a slot: the goal, or the observation of an episode at its start if there is no goal.

    The goal is preferred, since the first observation also contains titles, buttons and separators.
    """
    return env.goal(episode.task) or episode.view.observation


def fill_slot(action: str, words: str) -> str:
    """The action with its slot filled; an action without a slot is returned unchanged.

    >>> fill_slot("search[<query>]", "red shoes")
    'search[red shoes]'
    """
    return SLOT.sub(lambda _: words, action, count=1)


# ---- players ----------------------------------------------------------------------------------------------------------


MAX_QUERY_WORDS = 3


class Choice(NamedTuple):
    """The played action, and whether it was drawn at random."""

    action: str
    at_random: bool


class NoisyExpert:
    """An expert for one episode whose actions are replaced by random ones with probability `noise`.

    Without an expert every action is random, and no random number is used up to decide that. With `watching` the expert is
    queried at every turn, even if its action is not played, so it can keep track of what it would have done; otherwise it is
    queried only when its action is played. All random numbers come from `draws`, in the order in which they are needed.
    """

    def __init__(
        self, expert: Expert | None, noise: float, opening: str, draws: Stream, *, watching: bool = True
    ) -> None:
        self._expert, self._noise, self._opening, self._draws = expert, noise, opening, draws
        self._watching = watching

    def act(self, episode: Episode) -> Choice:
        action = self._expert.act(episode) if self._expert is not None and self._watching else None
        if self._expert is None or (self._noise > 0.0 and self._draws.uniform() < self._noise):
            return Choice(random_action(episode, self._opening, self._draws), True)
        return Choice(self._expert.act(episode) if action is None else action, False)


def open_expert(env: TextEnv) -> Expert:
    """A new expert of an environment. One that cannot act is refused: without an expert, every action would be random."""
    expert = env.expert()
    if not callable(getattr(expert, "act", None)):
        raise OptionError(f"{env.id}: expert() must return an object with the method act, got {show_value(expert)}")
    return expert


def check_noise(noise: float) -> None:
    """Raise `OptionError` unless the noise is between 0 and 1."""
    if not 0.0 <= noise <= 1.0:
        raise OptionError(f"noise must be a share of the actions, between 0 and 1, got {noise}")


def random_action(episode: Episode, opening: str, draws: Stream) -> str:
    """A random admissible action, each equally likely, with its slot filled by words of `opening`.

    If the environment lists no actions, the answer is one of those words, a number if there is one.
    """
    words = slot_words(opening) or ["a"]
    if not episode.view.admissible:
        guesses = [word for word in words if word.isdecimal()] or words
        return f"<answer>{draws.pick(guesses)}</answer>"
    action = draws.pick(episode.view.admissible)
    if SLOT.search(action) is None:
        return action
    return fill_slot(action, " ".join(draws.pick(words) for _ in range(1 + draws.integers(MAX_QUERY_WORDS))))


# ---- the words of an environment that does not list them --------------------------------------------------------------


TASKS = 200
STEPS = 1_000


def list_words(env: TextEnv) -> Iterable[str]:
    """The words that the environment lists; if it lists none, those of its description and those that random play meets.

    Random play opens the first 200 tasks of the pool and takes 1,000 steps in all. The result is deterministic: actions come
    from a named stream.
    """
    if words := env.vocabulary():
        return words
    found: dict[str, None] = {}
    _add(found, env.role, env.action_help)
    left = STEPS
    for number in range(min(TASKS, len(env.pool))):
        draws = stream(0, "vocabulary", env.id, number)
        (episode,) = env.reset_many([env.pool[number]], [number])
        opening = episode.view.observation
        _add(found, env.goal(episode.task), opening, *(episode.view.admissible or ()))
        while not episode.over and left > 0:
            left -= 1
            (episode,) = env.step_many([episode], [random_action(episode, opening, draws)])
            _add(found, episode.view.observation, *(episode.view.admissible or ()))
    return list(found)


def _add(found: dict[str, None], *texts: str) -> None:
    for text in texts:
        found.update(dict.fromkeys(text.split()))
