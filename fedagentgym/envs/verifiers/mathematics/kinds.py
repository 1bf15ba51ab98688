"""The kinds of answers, and how several answers side by side become one.

Every rule of equality is chosen by the kind of the gold answer; `text` is what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedagentgym.envs.verifiers.mathematics.regions import (
    EMPTY,
    REALS,
    Interval,
    Region,
    bound,
    complement,
    infinity,
    intersect,
    unite,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of some kind, and the text that it was read from."""

    text: str


@dataclass(frozen=True, slots=True)
class Scalar(Answer):
    """One number, expression or matrix; also whatever could not be read as another kind."""


@dataclass(frozen=True, slots=True)
class Named(Answer):
    """A name with its value: `x = 3`, `f(x) = 2x`, `x \\in [1,2]` (then `element` is set)."""

    name: str
    of: Answer
    value: str
    element: bool = False


@dataclass(frozen=True, slots=True)
class Together(Answer):
    """Different names with their values: `x = 1, y = 2` or `(x,y) = (1,2)`."""

    values: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Equation(Answer):
    """Two or more sides with `=` or `\\approx` between them, none of them only a name."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inequality(Answer):
    """Sides with signs between them, not solved for one unknown."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reals(Answer):
    """A set of real numbers, from inequalities (then `name` is the unknown), unions of intervals, or a symbol."""

    region: Region
    name: str = ""


@dataclass(frozen=True, slots=True)
class Bracketed(Answer):
    """Items in brackets, in order: a point, a tuple, a vector or an interval."""

    brackets: str
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Braces(Answer):
    """Items in braces: a set."""

    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Listing(Answer):
    """Items side by side, in any order."""

    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Union(Answer):
    """Sets that are not all made of known real numbers, united."""

    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Ratio(Answer):
    """`3:4`, `3 to 4`, `1:2:3`."""

    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Based(Answer):
    """Digits with a base: `1011_2`."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Clock(Answer):
    """A time of day, in minutes."""

    minutes: int


@dataclass(frozen=True, slots=True)
class Congruence(Answer):
    """`x \\equiv 3 \\pmod{7}` or `3 \\pmod{7}`."""

    name: str
    rest: str
    modulus: str


def join(text: str, items: Sequence[Answer], alternatives: bool) -> Answer:
    items = [_condition(item) for item in items]
    if (excluded := _excluded(text, items)) is not None:
        return excluded
    if all(isinstance(item, Reals) and item.name for item in items):
        return _join_inequalities(text, items, alternatives)
    if any(isinstance(item, Named) and not item.element for item in items):
        return _join_names(text, items)
    found: list[Answer] = []
    for item in items:
        found += list(item.items) if isinstance(item, Listing) else [item]
    if any(is_surely_interval(item) for item in found):
        regions = [as_region(item) for item in found]
        if all(region is not None for region in regions):
            return Reals(text, unite([piece for region in regions if region for piece in region]))
    return Listing(text, tuple(found))


def _excluded(text: str, items: Sequence[Answer]) -> Answer | None:
    """`x \\ne 1, 2` leaves out both numbers."""
    first, *rest = items
    if not isinstance(first, Reals) or "\\ne" not in first.text or not all(isinstance(item, Scalar) for item in rest):
        return None
    bounds = [bound(item.text) for item in rest]
    points = [Interval(each, True, each, True) for each in bounds if each is not None]
    if len(points) != len(bounds):
        return None
    return Reals(text, intersect(first.region, complement(unite(points))), first.name)


def _condition(item: Answer) -> Answer:
    """`x \\in \\mathbb{R}` beside other conditions on x is one of them."""
    if isinstance(item, Named) and item.element and isinstance(item.of, Reals):
        return Reals(item.text, item.of.region, item.name)
    return item


def _join_inequalities(text: str, items: Sequence[Answer], alternatives: bool) -> Answer:
    regions = [item.region for item in items if isinstance(item, Reals)]
    names = {item.name for item in items if isinstance(item, Reals)}
    if len(names) > 1:
        return Listing(text, tuple(items))
    united = unite([piece for region in regions for piece in region])
    common = regions[0]
    for region in regions[1:]:
        common = intersect(common, region)
    return Reals(text, united if alternatives or not common else common, names.pop())


def _join_names(text: str, items: Sequence[Answer]) -> Answer:
    """`x = 1, y = 2` are values of different names, `x = 1, x = 2` and `x = 1, 2` are alternatives of one."""
    named = [item for item in items if isinstance(item, Named)]
    names = {item.name for item in named}
    if len(named) == len(items) and len(names) == len(items):
        return Together(text, tuple(named))
    if isinstance(items[0], Named) and len(names) == 1 and all(isinstance(item, Named | Scalar) for item in items):
        values: list[Answer] = []
        for item in items:
            value = item.of if isinstance(item, Named) else item
            values += list(value.items) if isinstance(value, Listing) else [value]
        return Named(text, named[0].name, Listing(text, tuple(values)), text)
    return Listing(text, tuple(items))


def unite_sets(text: str, items: Sequence[Answer]) -> Answer:
    regions = [as_region(item, points=True) for item in items]
    if all(region is not None for region in regions):
        united = unite([piece for region in regions if region for piece in region])
        if all(isinstance(item, Braces) for item in items):
            return Braces(text, tuple(part for item in items if isinstance(item, Braces) for part in item.items))
        return Reals(text, united)
    return Union(text, tuple(items))


def intersect_sets(text: str, items: Sequence[Answer]) -> Answer:
    region: Region = REALS
    for item in items:
        piece = as_region(item, points=True)
        if piece is None:
            return Scalar(text)
        region = intersect(region, piece)
    return Reals(text, region)


def subtract_sets(text: str, items: Sequence[Answer]) -> Answer:
    first, *rest = [as_region(item, points=True) for item in items]
    if first is None:
        return Scalar(text)
    for region in rest:
        if region is None:
            return Scalar(text)
        first = intersect(first, complement(region))
    return Reals(text, first)


def as_region(answer: Answer, points: bool = False) -> Region | None:
    """The set of real numbers that an answer is, if it is one; with `points` a set of numbers in braces is one too."""
    if isinstance(answer, Reals):
        return answer.region
    if isinstance(answer, Named) and answer.element:
        return as_region(answer.of, points)
    if isinstance(answer, Braces) and not answer.items:
        return EMPTY
    if isinstance(answer, Bracketed) and len(answer.items) == 2:
        low, high = bound(answer.items[0].text), bound(answer.items[1].text)
        if low is None or high is None:
            return None
        return (Interval(low, answer.brackets[0] == "[", high, answer.brackets[1] == "]"),)
    if points and isinstance(answer, Braces):
        bounds = [bound(item.text) for item in answer.items]
        known = [each for each in bounds if each is not None]
        return unite([Interval(each, True, each, True) for each in known]) if len(known) == len(bounds) else None
    return None


def is_surely_interval(answer: Answer) -> bool:
    if not isinstance(answer, Bracketed) or len(answer.items) != 2:
        return isinstance(answer, Reals) and not answer.name
    infinite = any(infinity(item.text) is not None for item in answer.items)
    return infinite or answer.brackets in ("(]", "[)")


def as_set(text: str, answer: Answer) -> Answer:
    """The set given for x by `x = ...` or `x \\in ...`."""
    if isinstance(answer, Listing):
        return Braces(text, answer.items)
    return Braces(text, (answer,)) if isinstance(answer, Scalar) else answer
