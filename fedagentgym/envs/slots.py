"""Admissible actions with a slot for the player's own words: `search[<query>]`.

The words that fill a slot are those of the task, unchanged; "women's", "slip-ons" and "8.5" are one word each. Experts,
random players and constrained generation all split texts by this module, so that a player that copies words can produce what
the expert produces.
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
    """The text whose words may fill a slot: the goal, or the first observation if there is no goal.

    The first observation alone would not do: it also contains titles, buttons and separators.
    """
    return env.goal(episode.task) or episode.view.observation


def fill_slot(action: str, words: str) -> str:
    """The action with its slot filled; an action without a slot is returned unchanged.

    >>> fill_slot("search[<query>]", "red shoes")
    'search[red shoes]'
    """
    return SLOT.sub(lambda _: words, action, count=1)
