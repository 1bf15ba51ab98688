"""The changing state of a household game."""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    """Everything that changes in play. Sets of objects or receptacles are bit sets, numbered as in the game."""

    place: int
    held: int
    opened: int
    contents: tuple[int, ...]
    """Per receptacle, the objects in it."""
    laid: tuple[int, ...]
    """Per location, the objects at it."""
    taken: tuple[int, ...]
    """Per receptacle, the objects that were taken out of it and not put back."""
    clean: int
    hot: int
    cool: int
    sliced: int
    toggled: int
    won: bool
