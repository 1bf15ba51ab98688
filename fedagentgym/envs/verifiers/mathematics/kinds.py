"""The kinds of answers. Every rule of equality is chosen by the kind of the gold answer; `text` is what was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fedagentgym.envs.verifiers.mathematics.regions import Region


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number, expression or matrix; also whatever could not be read as another kind."""

    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """A name with its value: `x = 3`, `f(x) = 2x`, `x \\in [1,2]` (then `element` is set)."""

    text: str
    name: str
    of: Answer
    value: str
    element: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """Different names with their values: `x = 1, y = 2` or `(x,y) = (1,2)`."""

    text: str
    values: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Equation:
    """Two or more sides with `=` or `\\approx` between them, none of them only a name."""

    text: str
    sides: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inequality:
    """Sides with signs between them, not solved for one unknown."""

    text: str
    sides: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reals:
    """A set of real numbers, from inequalities (then `name` is the unknown), unions of intervals, or a symbol."""

    text: str
    region: Region
    name: str = ""


@dataclass(frozen=True, slots=True)
class Bracketed:
    """Items in brackets, in order: a point, a tuple, a vector or an interval."""

    text: str
    brackets: str
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Braces:
    """Items in braces: a set."""

    text: str
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Items side by side, in any order."""

    text: str
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Union:
    """Sets that are not all made of known real numbers, united."""

    text: str
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """`3:4`, `3 to 4`, `1:2:3`."""

    text: str
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Based:
    """Digits with a base: `1011_2`."""

    text: str
    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day, in minutes."""

    text: str
    minutes: int


@dataclass(frozen=True, slots=True)
class Congruence:
    """`x \\equiv 3 \\pmod{7}` or `3 \\pmod{7}`."""

    text: str
    name: str
    rest: str
    modulus: str


Answer: TypeAlias = (
    Scalar
    | Named
    | Together
    | Equation
    | Inequality
    | Reals
    | Bracketed
    | Braces
    | Listing
    | Union
    | Ratio
    | Based
    | Clock
    | Congruence
)
