"""The kinds of answers. Every rule of equality is chosen by the kind of the gold answer; `text` is what was read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedagentgym.envs.verifiers.mathematics.regions import EMPTY, Interval, Region, bound, infinity, unite


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
        return numbers_of(answer.items)
    return None


def numbers_of(items: Iterable[Answer]) -> Region | None:
    """The set of these real numbers, if all of them are."""
    bounds = [bound(item.text) for item in items]
    known = [each for each in bounds if each is not None]
    return unite([Interval(each, True, each, True) for each in known]) if len(known) == len(bounds) else None


def union_of(items: Iterable[Answer], points: bool = False) -> Region | None:
    """The union of sets of real numbers, if all of the items are; `points` as for `as_region`."""
    regions = [as_region(item, points) for item in items]
    known = [region for region in regions if region is not None]
    return unite([piece for region in known for piece in region]) if len(known) == len(regions) else None


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
