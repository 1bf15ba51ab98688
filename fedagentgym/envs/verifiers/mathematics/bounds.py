"""Expressions and bounds from text: the sides of relations and the ends of intervals."""

from __future__ import annotations

import re
from fractions import Fraction

from fedagentgym.envs.verifiers.mathematics.numbers import number
from fedagentgym.envs.verifiers.mathematics.regions import INFINITE, End, end
from fedagentgym.envs.verifiers.mathematics.syntax import Expr, parse
from fedagentgym.envs.verifiers.mathematics.tokens import NeedsAlgebra, NotAnExpression
from fedagentgym.envs.verifiers.mathematics.units import without_units
from fedagentgym.envs.verifiers.mathematics.values import TooLarge, Undefined, constant


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
        return end(constant(tree))
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
