"""The text of a PDDL problem as nested forms that remember where they stood.

Words are cut as the real engine's planner cuts them: blanks and parentheses separate, ``;`` starts a comment, ``?``
starts a word of its own. Depth is bounded, so that hostile input ends in an error and not in a full stack.
"""

from __future__ import annotations

import bisect
import re
from typing import Any, NamedTuple, TypeAlias

from fedagentgym.base.errors import DataError

MAX_DEPTH = 200
_WORD = re.compile(r"[()]|\??[^\s()?]+|\?")
_COMMENT = re.compile(r";[^\n]*")


class Form(NamedTuple):
    """A parenthesised form: its items, words or forms again, and the number of its first word in the text."""

    items: tuple[Any, ...]
    position: int


Item: TypeAlias = str | Form


class ProblemText:
    """A text with a name, to say in an error where something stood."""

    def __init__(self, text: str, where: str) -> None:
        self.text = _COMMENT.sub(lambda comment: " " * len(comment.group()), text) if ";" in text else text
        self.where = where

    def make_error(self, what: str, position: int) -> DataError:
        return DataError(f"{self.where}, PDDL problem line {self.find_line(position)}: {what}")

    def find_line(self, position: int) -> int:
        starts = [match.start() for match in _WORD.finditer(self.text)]
        offset = starts[position] if position < len(starts) else len(self.text.rstrip())
        ends = [index for index, sign in enumerate(self.text) if sign == "\n"]
        return bisect.bisect_left(ends, offset) + 1

    def read(self) -> Form:
        """The one form that the text consists of."""
        words = _WORD.findall(self.text)
        if not words:
            raise DataError(f"{self.where}: the PDDL problem is empty")
        if words[0] != "(":
            raise self.make_error(f"expected '(' and found {words[0][:60]!r}", 0)
        stack: list[tuple[list[Item], int]] = []
        for position, word in enumerate(words):
            if word == "(":
                if len(stack) == MAX_DEPTH:
                    raise self.make_error(f"forms are nested more than {MAX_DEPTH} deep", position)
                stack.append(([], position))
            elif word == ")":
                items, opened = stack.pop()
                form = Form(tuple(items), opened)
                if not stack:
                    if position + 1 != len(words):
                        raise self.make_error(
                            f"text follows the end of the problem: {words[position + 1][:60]!r}", position + 1
                        )
                    return form
                stack[-1][0].append(form)
            else:
                stack[-1][0].append(word)
        raise self.make_error("the text ends before every '(' is closed", len(words))


def to_tuples(form: Form) -> tuple[Any, ...]:
    """A form as nested tuples of strings."""
    return tuple(to_tuples(item) if isinstance(item, Form) else item for item in form.items)
