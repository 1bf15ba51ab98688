"""Admissible actions that leave words to the player: `search[<query>]`.

The words that fill a slot are those of the task, as they stand there; "women's", "slip-ons" and "8.5" are one word each. Whoever
fills slots (experts, random players, constrained generation) takes them apart in this one way, so that what the expert says is
what a player that copies can say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedagentgym.envs.core import Episode, TextEnv

SLOT = re.compile(r"<[a-z_]+>")
_WORD = re.compile(r"[^\W_]+(?:['.,-][^\W_]+)*")


def slot_words(text: str) -> list[str]:
    """The words of a text, in order.

    >>> slot_words("Find women's slip-ons, size 8.5!")
    ['Find', "women's", 'slip-ons', 'size', '8.5']
    """
    return _WORD.findall(text)


def get_slot_text(env: TextEnv, episode: Episode) -> str:
    """The text whose words may fill a slot: the goal, and the first observation where the world names no goal.

    A first page holds more than the task (titles, buttons, separators), and nobody should search for that.
    """
    return env.goal(episode.task) or episode.view.observation


def fill_slot(action: str, words: str) -> str:
    """The action with its slot filled; one without a slot stays as it is.

    >>> fill_slot("search[<query>]", "red shoes")
    'search[red shoes]'
    """
    return SLOT.sub(lambda _: words, action, count=1)
