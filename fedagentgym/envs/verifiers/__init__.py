"""Verifiers: total functions from a reply and a gold answer to a verdict. Usable alone, without an environment.

- `formats`: the form of a reply (think/answer layout, tags, fenced code, repetition);
- `math`: equality with a number, expression, tuple, set or interval (`grade_math`);
- `qa`: exact match and F1 after SQuAD normalisation, multiple choice (`grade_qa`, `grade_choice`);
- `code`: tests of a program, run in a sandboxed process (`grade_code`).

No reply makes a verifier raise or hang. `math`, `qa` and `code` have version strings, which are stored with results.
"""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """The result of a verifier.

    Attributes:
        correct: Whether the reply is right.
        score: Its score, between 0 and 1: for questions the F1 of the words, for programs the share of passed tests.
        parsed: The answer that was read from the reply; None if there was none.
        reason: How it was graded, in a short phrase.
    """

    correct: bool
    score: float
    parsed: str | None
    reason: str


def wrong(reason: str, parsed: str | None = None) -> Verdict:
    return Verdict(False, 0.0, parsed, reason)


def right(reason: str, parsed: str | None = None) -> Verdict:
    return Verdict(True, 1.0, parsed, reason)
