"""Sets of real numbers made of intervals: from inequalities, interval notation, and the operations on sets.

The sides of relations and the ends of intervals are read from text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key
from typing import TypeAlias

import mpmath

from fedagentgym.envs.verifiers.mathematics.numbers import number, without_units
from fedagentgym.envs.verifiers.mathematics.syntax import Expr, NeedsAlgebra, NotAnExpression, difference, parse
from fedagentgym.envs.verifiers.mathematics.values import Evaluator, TooLarge, Undefined, constant

End: TypeAlias = "Fraction | mpmath.mpf | float"
INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`; a bound belongs to it when it is closed there."""

    low: End
    low_closed: bool
    high: End
    high_closed: bool


Region: TypeAlias = tuple[Interval, ...]
REALS: Region = (Interval(-INFINITE, False, INFINITE, False),)
EMPTY: Region = ()


def compare_ends(one: End, other: End) -> int:
    """-1, 0 or 1; two values that agree in as many digits as are computed are the same."""
    if one == other:
        return 0
    if isinstance(one, float) or isinstance(other, float):
        return -1 if float(one) < float(other) else 1
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return -1 if one < other else 1
    evaluator = Evaluator()
    if evaluator.same(one, other):
        return 0
    return -1 if evaluator.as_float(one) < evaluator.as_float(other) else 1


def _starts_before(one: Interval, other: Interval) -> int:
    return compare_ends(one.low, other.low) or int(other.low_closed) - int(one.low_closed)


def _ends_before(one: Interval, other: Interval) -> int:
    return compare_ends(one.high, other.high) or int(one.high_closed) - int(other.high_closed)


def unite(pieces: Sequence[Interval]) -> Region:
    """The union as separate intervals in order."""
    found: list[Interval] = []
    for piece in sorted(pieces, key=cmp_to_key(_starts_before)):
        order = compare_ends(piece.low, piece.high)
        if order > 0 or (order == 0 and not (piece.low_closed and piece.high_closed)):
            continue
        if found:
            last = found[-1]
            order = compare_ends(piece.low, last.high)
            if order < 0 or (order == 0 and (piece.low_closed or last.high_closed)):
                if _ends_before(last, piece) < 0:
                    found[-1] = Interval(last.low, last.low_closed, piece.high, piece.high_closed)
                continue
        found.append(piece)
    return tuple(found)


def intersect(one: Region, other: Region) -> Region:
    found = []
    for left in one:
        for right in other:
            low = left if _starts_before(left, right) >= 0 else right
            high = left if _ends_before(left, right) <= 0 else right
            found.append(Interval(low.low, low.low_closed, high.high, high.high_closed))
    return unite(found)


def complement(region: Region) -> Region:
    found, start, closed = [], -INFINITE, False  # type: list[Interval], End, bool
    for piece in region:
        found.append(Interval(start, closed, piece.low, not piece.low_closed))
        start, closed = piece.high, not piece.high_closed
    found.append(Interval(start, closed, INFINITE, False))
    return unite([piece for piece in found if not (piece.low == INFINITE or piece.high == -INFINITE)])


def same_regions(one: Region, other: Region) -> bool:
    return len(one) == len(other) and all(
        _starts_before(left, right) == 0 and _ends_before(left, right) == 0
        for left, right in zip(one, other, strict=True)
    )


_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "\\ne": "\\ne", "=": "="}


def solve(left: Expr, sign: str, right: Expr) -> Region | None:
    """The region of an inequality in one unknown that is linear, or the absolute value of something linear; else None."""
    names = left.symbols() | right.symbols()
    if len(names) != 1:
        return None
    name = next(iter(names))
    if right.head == "abs" and not left.symbols():
        left, sign, right = right, _TURNED[sign], left
    if left.head != "abs" or right.symbols():
        return _solve_linear(left, sign, right, name)
    inner, value = left.parts[0], Evaluator().real(constant(right))
    if value is None:
        return None
    if value < 0:
        return REALS if sign in (">", "\\ge", "\\ne") else EMPTY
    above = _solve_linear(inner, sign, right, name)
    below = _solve_linear(inner, _TURNED[sign], Expr("negative", (right,)), name)
    if above is None or below is None:
        return None
    return intersect(above, below) if sign in ("<", "\\le", "\\ne") else unite(above + below)


def _solve_linear(left: Expr, sign: str, right: Expr, name: str) -> Region | None:
    evaluator, sides = Evaluator(), difference(left, right)
    try:
        start, one, three, below = (evaluator.value(sides, {name: Fraction(place)}) for place in (0, 1, 3, -5))
        slope = evaluator.add(one, evaluator.multiply(Fraction(-1), start))
        for place, value in ((3, three), (-5, below)):
            if not evaluator.same(value, evaluator.add(start, evaluator.multiply(Fraction(place), slope))):
                return None
        real = evaluator.real(slope)
        if real is None or evaluator.same(real, Fraction(0)):
            return None
        root = evaluator.real(evaluator.divide(evaluator.multiply(Fraction(-1), start), slope))
    except Undefined:
        return None
    return None if root is None else half_line(root, sign if real > 0 else _TURNED[sign])


def half_line(bound: End, sign: str) -> Region:
    """All x with x < bound, and so on for the other signs."""
    if sign in ("<", "\\le"):
        return (Interval(-INFINITE, False, bound, sign == "\\le" and not isinstance(bound, float)),)
    if sign in (">", "\\ge"):
        return (Interval(bound, sign == "\\ge" and not isinstance(bound, float), INFINITE, False),)
    point = (Interval(bound, True, bound, True),)
    return point if sign == "=" else complement(point)


def infinity(text: str) -> float | None:
    found = re.fullmatch(r"([-+]?)\s*(?:\\infty|infinity|inf|oo)", text.strip())
    if found is None:
        return None
    return -INFINITE if found[1] == "-" else INFINITE


def bound(text: str) -> End | None:
    """A real number or an infinity, from text."""
    if (infinite := infinity(text)) is not None:
        return infinite
    tree = expression(text)
    if tree is None or tree.symbols():
        return None
    try:
        return Evaluator().real(constant(tree))
    except (Undefined, TooLarge):
        return None


def expression(text: str) -> Expr | None:
    """The tree of an expression, with a plain number's units and sentence left out; None where there is none."""
    found = number(text)
    if found is not None:
        value = found.value / 100 if found.percent else found.value
        return Expr("number", number=Fraction(value))
    try:
        return parse(text)
    except (NotAnExpression, NeedsAlgebra):
        bare = without_units(text)
        return None if bare is None else expression(bare)
