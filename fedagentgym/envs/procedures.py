"""How the tasks of a category are solved, and how an expert can be made to solve them wrongly: by another procedure.

A world that knows this can teach an agent misconceptions (`learning/misconceptions.py`): demonstrations that follow, in some
categories, another category's procedure more often than their own. Practice can cure them; it has to happen where they are.
"""

from __future__ import annotations

from typing import NamedTuple


class Procedures(NamedTuple):
    """The procedure by which the tasks of a category are solved, and those that could be mistaken for it."""

    own: str
    others: tuple[str, ...]
