"""A question over facts as a plain value."""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """A text and its title."""

    title: str
    text: str


class Question(NamedTuple):
    """The content of a question task.

    `facts` are the texts for answering it (support and distractors, as shown); `path` the titles to look up,
    in order, and `solution` the support in words (what the expert thinks); `options` the letters of a multiple choice.
    """

    question: str
    answers: tuple[str, ...]
    facts: tuple[Fact, ...] = ()
    path: tuple[str, ...] = ()
    solution: str = ""
    options: tuple[tuple[str, str], ...] = ()
