"""A shop page for a person: one line per statement, and the possible clicks in words.

It is made from the text observation and the admissible actions alone, so a person sees nothing that an agent does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from fedagentgym.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SEPARATOR, SUB_PAGES

_BUTTONS = (BACK, PREVIOUS, NEXT, BUY, *SUB_PAGES, "Search")
_CLICK = re.compile(r"click\[(.*)\]", re.DOTALL)
_PRODUCT = re.compile(r"[a-z0-9]{10}")
_THANKS = "Thank you for shopping with us!"


def present_page(observation: str, actions: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The page's text, and a label for each action.

    >>> page = "Instruction: [SEP] a red hat [SEP] Back to Search [SEP] B000000001 [SEP] Hat [SEP] $3.0"
    >>> present_page(page, ["click[back to search]", "click[b000000001]"])
    ('Instruction: a red hat', ('back to search', 'B000000001  $3.0  Hat'))
    """
    segments = observation.split(SEPARATOR)
    if segments[0] == _THANKS:
        return _present_end(segments), tuple(actions)
    clicks = {match[1]: action for action in actions if (match := _CLICK.fullmatch(action)) is not None}
    labels = {action: name for name, action in clicks.items()}
    lines: list[str] = []
    option, place = "", 0
    while place < len(segments):
        text, following = segments[place], segments[place + 1 : place + 3]
        place += 1
        name = text if text in clicks else text.lower()
        if text in _BUTTONS or text == "WebShop":
            continue
        if name in clicks and _PRODUCT.fullmatch(name) and len(following) == 2:
            labels[clicks[name]] = f"{text}  {following[1]}  {following[0]}"
            place += 2
        elif text in clicks:
            if not option and lines:
                option = lines.pop()
            labels[clicks[text]] = f"{option}: {text}" if option else text
            continue
        else:
            lines.append(text)
        option = ""
    shown = "\n".join(lines).replace("Instruction:\n", "Instruction: ", 1)
    return shown, tuple(labels.get(action, action) for action in actions)


def _present_end(segments: Sequence[str]) -> str:
    """The page after a purchase without the codes that it was made for."""
    score = next((after for text, after in pairwise(segments) if text.startswith("Your score")), "")
    return f"{_THANKS}\nYour score: {score}" if score else _THANKS
