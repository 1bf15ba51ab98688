"""A mathematical problem as a plain value."""

from __future__ import annotations

from typing import NamedTuple


class MathProblem(NamedTuple):
    """The content of a mathematics task.

    `answers` are the golds, any of which counts; `solution` the steps of a worked solution (what the expert thinks);
    `formal` restates a generated problem as an expression for sympy or brute force, so that answers can be checked.
    """

    problem: str
    answers: tuple[str, ...]
    solution: str = ""
    formal: str = ""
