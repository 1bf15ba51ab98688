"""The procedures that solve the tasks of each category, and how an expert is made to err: by following another procedure.

An environment that declares procedures can teach an agent misconceptions (`learning/misconceptions.py`): demonstrations that,
in some categories, follow another category's procedure more often than the right one. Training on tasks of these categories
can correct them.
"""

from __future__ import annotations

from typing import NamedTuple


class Procedures(NamedTuple):
    """The procedure that solves the tasks of a category, and those that could be mistaken for it."""

    own: str
    others: tuple[str, ...]
