"""The numbered choices of a human player, and the action that a typed line means."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.slots import SLOT, fill_slot
from fedagentgym.envs.verifiers.formats import ANSWER, TAGS, THINK
from fedagentgym.envs.view import View

SHOWN_CHOICES = 60
_GAP = 2
_CALL = re.compile(r"[a-z_]{1,20}\[.*\]", re.DOTALL)


def format_choices(labels: Sequence[str], width: int, most: int = SHOWN_CHOICES) -> list[str]:
    """Lines with numbered choices, in as many columns as fit; a choice that is longer than a line is cut.

    >>> format_choices(["look", "go to fridge 1", "go to sink 1"], 40)
    ['1 look            3 go to sink 1', '2 go to fridge 1']
    """
    shown = list(labels[:most])
    digits = len(str(len(shown)))
    cells = [_cut(f"{number:>{digits}} {label}", width) for number, label in enumerate(shown, start=1)]
    if not cells:
        return []
    column = max(map(len, cells)) + _GAP
    rows = -(-len(cells) // max(1, (width + _GAP) // column))
    lines = ["".join(cell.ljust(column) for cell in cells[row::rows]).rstrip() for row in range(rows)]
    more = len(labels) - len(shown)
    return [*lines, f"... and {more} more: `actions` lists them all"] if more else lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 3, 1)]}..."


def resolve_line(line: str, env: TextEnv, view: View) -> str:
    """The action that a typed line means: a number or a choice's text, the words for a slot, a bare answer; anything else is
    the action itself.

    A line that equals an action is never interpreted otherwise.
    """
    text = line.strip()
    if env.takes == "reply":
        return wrap_answer(text, bool(getattr(env, "code_replies", False)))
    actions = view.admissible or ()
    if text in actions or not actions:
        return line
    if text.isascii() and text.isdigit() and 1 <= int(text) <= len(actions):
        chosen = actions[int(text) - 1]
        return line if SLOT.search(chosen) else chosen
    _, labels = env.present(view)
    said = [action for action, label in zip(actions, labels, strict=True) if text.lower() in _list_names(action, label)]
    if len(said) == 1:
        return said[0]
    slots = [action for action in actions if SLOT.search(action)]
    if len(slots) == 1 and text and not _CALL.fullmatch(text):
        return fill_slot(slots[0], text)
    return line


def needs_words(line: str, view: View) -> str | None:
    """The choice with this number, if it has a slot that needs words of the player."""
    text, actions = line.strip(), view.admissible or ()
    if text.isascii() and text.isdigit() and 1 <= int(text) <= len(actions) and SLOT.search(actions[int(text) - 1]):
        return actions[int(text) - 1]
    return None


def _list_names(action: str, label: str) -> tuple[str, ...]:
    inside = re.fullmatch(r"[a-z_]+\[(.*)\]", action, re.DOTALL)
    return (label.lower(), *((inside[1].lower(),) if inside else ()))


def wrap_answer(text: str, code: bool = False) -> str:
    """A bare answer as a complete reply; a reply in tags, in code fences, or with a tool call is unchanged.

    >>> wrap_answer("12")
    '<think> </think> <answer> 12 </answer>'
    """
    if not text or any(tag in text for tag in TAGS) or "```" in text or _CALL.fullmatch(text):
        return text
    answer = f"\n```python\n{text}\n```\n" if code else f" {text} "
    return f"{THINK[0]} {THINK[1]} {ANSWER[0]}{answer}{ANSWER[1]}"
