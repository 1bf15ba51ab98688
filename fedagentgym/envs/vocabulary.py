"""The words of an environment that does not list them, found by random play.

A small agent has every word of its environment as one token and spells all other words, so a word that is missed here costs a
few more tokens and causes no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.scripted import random_action

TASKS = 200
STEPS = 1_000


def list_words(env: TextEnv) -> Iterable[str]:
    """The words that the environment lists, or else those found by random play."""
    return env.vocabulary() or collect_words(env)


def collect_words(env: TextEnv) -> list[str]:
    """The words of the environment's description, observations and actions in some hundred tasks played at random.

    The result is deterministic: tasks are the first of the pool, and actions come from a named stream.
    """
    found: dict[str, None] = {}
    _add(found, env.role, env.action_help)
    left = STEPS
    for number in range(min(TASKS, len(env.pool))):
        draws = stream(0, "vocabulary", env.id, number)
        (episode,) = env.reset_many([env.pool[number]], [number])
        opening = episode.view.observation
        _add(found, env.goal(episode.task), opening, *(episode.view.admissible or ()))
        for _ in count():
            if episode.over or left == 0:
                break
            left -= 1
            (episode,) = env.step_many([episode], [random_action(episode, opening, draws)])
            _add(found, episode.view.observation, *(episode.view.admissible or ()))
    return list(found)


def _add(found: dict[str, None], *texts: str) -> None:
    for text in texts:
        found.update(dict.fromkeys(text.split()))
