"""A question over facts as a plain value."""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """A piece of text and what it is about."""

    title: str
    text: str


class Question(NamedTuple):
    """What a question task holds.

    `facts` are the texts that it is to be answered from (support and distractors, as shown); `path` the titles to look up,
    in order, and `solution` the support in words (what the expert thinks); `options` the letters of a multiple choice.
    """

    question: str
    answers: tuple[str, ...]
    facts: tuple[Fact, ...] = ()
    path: tuple[str, ...] = ()
    solution: str = ""
    options: tuple[tuple[str, str], ...] = ()
