"""Short `repr` texts of values with many episodes, tasks or weights, which an interactive session would print in full."""

from __future__ import annotations

import reprlib
from dataclasses import fields, is_dataclass

MAX_LENGTH = 400
"""Maximum number of characters of such a text."""


def _make_shortener() -> reprlib.Repr:
    found = reprlib.Repr()
    vars(found).update(maxlevel=2, maxdict=3, maxlist=3, maxtuple=3, maxstring=60, maxother=60)
    return found


_SHORTENER = _make_shortener()


def show_fields(value: object) -> str:
    """The `__repr__` of a dataclass or named tuple, with long fields cut.

    >>> from typing import NamedTuple
    >>> Many = NamedTuple("Many", [("name", str), ("parts", tuple[int, ...])])
    >>> show_fields(Many("all", tuple(range(10_000))))
    "Many(name='all', parts=(0, 1, 2, ...))"
    """
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.repr]
    else:
        names = list(getattr(value, "_fields", ()))
    parts = (f"{name}={' '.join(_SHORTENER.repr(getattr(value, name)).split())}" for name in names)
    text = f"{type(value).__name__}({', '.join(parts)})"
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}...)"
