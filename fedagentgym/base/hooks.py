"""Detection of misspelt hooks: names in a user's class that were meant to override a hook of a base class, but do not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

_PACKAGE = __name__.partition(".")[0]
SHORT = 8
"""Names of at most this many letters are alike if they are one edit apart, longer names if they are two edits apart."""

log = logging.getLogger(__name__)


class MisspeltHook(NamedTuple):
    """A public name of a user's class that overrides nothing, and the name in a base class that was probably meant."""

    owner: type
    name: str
    meant: str
    base: type

    def describe(self) -> str:
        """One sentence for the user."""
        return (
            f"{self.owner.__qualname__}.{self.name} replaces nothing of {self.base.__name__}, and is not called: did you mean"
            f" {self.meant!r}?"
        )


def find_misspelt_hooks(cls: type) -> Iterator[MisspeltHook]:
    """Find the public names of a user's class that resemble a name of one of this package's base classes, but override nothing.

    A name is no misspelling if the user's classes also define the name that it resembles.
    """
    own = [one for one in cls.__mro__ if not _is_of_package(one) and any(map(_is_of_package, one.__mro__))]
    bases = [one for one in cls.__mro__ if _is_of_package(one)]
    replaced = {name for one in own for name in _list_names(one)}
    hooks = {name: base for base in reversed(bases) for name in _list_names(base)}
    for one in own:
        for name in _list_names(one):
            if any(hasattr(base, name) or name in _list_names(base) for base in one.__mro__[1:]):
                continue
            near = ((count_edits(name, hook), hook) for hook in hooks.keys() - replaced)
            edits, meant = min(near, default=(len(name), ""))
            if edits <= (1 if len(name) <= SHORT else 2):
                yield MisspeltHook(one, name, meant, hooks[meant])


@cache
def warn_of_misspelt_hooks(cls: type) -> None:
    """Log a warning for every misspelt hook of a class, once per class."""
    for found in find_misspelt_hooks(cls):
        log.warning("%s", found.describe())


def _list_names(cls: type) -> list[str]:
    """The public names that a class defines itself, with its annotated fields."""
    return [name for name in {**vars(cls), **vars(cls).get("__annotations__", {})} if not name.startswith("_")]


def count_edits(first: str, second: str) -> int:
    """The smallest number of edits between two names: letters added, left out, replaced or swapped with the next one.

    >>> count_edits("client_weight", "client_weights"), count_edits("begni", "begin")
    (1, 1)
    """
    before, row = list[int](), list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        below = [i]
        for j, other in enumerate(second, 1):
            edits = min(row[j] + 1, below[j - 1] + 1, row[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                edits = min(edits, before[j - 2] + 1)
            below.append(edits)
        before, row = row, below
    return row[-1]


def _is_of_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == _PACKAGE
