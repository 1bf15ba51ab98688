"""Are two single values, two equations, or two inequalities equal?

Expressions are equal when their values agree at every point where both have one. Equations and inequalities are
equivalent if one is a constant times the other, or if both have the same solution for the name on the gold's left.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import mpmath

from fedagentgym.envs.verifiers.mathematics.numbers import (
    Number,
    gold_number,
    is_decimal_of,
    number,
    same_number,
    without_units,
)
from fedagentgym.envs.verifiers.mathematics.regions import expression
from fedagentgym.envs.verifiers.mathematics.syntax import Expr, NeedsAlgebra, NotAnExpression, difference, parse
from fedagentgym.envs.verifiers.mathematics.values import (
    DIGITS,
    MOST_DIGITS,
    Evaluator,
    TooLarge,
    Undefined,
    Value,
    constant,
)


@lru_cache(maxsize=512)
def points(symbols: frozenset[str]) -> tuple[dict[str, Fraction], ...]:
    """Points at which expressions in these symbols are compared: both signs, small and large, the same for ever."""
    found = []
    for turn, (low, spread) in enumerate(((1, 3), (3, 5), (-2, 1), (0, 1), (-5, 9))):
        point = {}
        for name in sorted(symbols):
            seed = sum((place + 3) * ord(letter) for place, letter in enumerate(name)) * (turn + 7)
            point[name] = low + Fraction(seed % 101 + 1, 103) * spread
        found.append(point)
    return tuple(found)


def equal_expressions(gold: Expr, answer: Expr, ignore_degrees: bool = False) -> bool:
    """Do both have the same value wherever both have one? `\\log` may mean either of its two usual bases, on both sides."""
    if "infty" in gold.symbols() | answer.symbols():
        return gold == answer
    settings: list[tuple[bool, Fraction | None]] = [(False, None)]
    if any(node.head == "log" and len(node.parts) == 1 for node in (*gold.walk(), *answer.walk())):
        settings.append((True, None))
    if ignore_degrees:
        settings += [(natural, Fraction(1)) for natural, _ in tuple(settings)]
    return any(_agree(gold, answer, natural, degree) for natural, degree in settings)


def _agree(gold: Expr, answer: Expr, natural: bool, degree: Fraction | None) -> bool:
    symbols = gold.symbols() | answer.symbols()
    complex_allowed = not symbols or gold.has("i") or answer.has("i")
    compared = 0
    for point in points(symbols) if symbols else ({},):
        digits = DIGITS
        while True:
            evaluator = Evaluator(digits, natural, degree)
            try:
                wanted, given = evaluator.value(gold, point), evaluator.value(answer, point)
            except Undefined:
                break
            needed = DIGITS + int(evaluator.largest * 0.302)
            inexact = not (isinstance(wanted, Fraction) and isinstance(given, Fraction))
            if inexact and needed > digits + 25:
                if needed > MOST_DIGITS:
                    raise TooLarge
                digits = needed
                continue
            if not complex_allowed and evaluator.is_real(wanted) != evaluator.is_real(given):
                break
            if not evaluator.same(wanted, given):
                return False
            compared += 1
            break
    return compared >= (2 if symbols else 1)


_ZERO = Fraction(0)
Relation = tuple[tuple[str, ...], tuple[str, ...]]


def same_equations(gold: Sequence[str], answer: Sequence[str]) -> bool:
    """Is one equation a constant times the other?"""
    trees = [expression(side) for side in (*gold, *answer)]
    known = [tree for tree in trees if tree is not None]
    return len(known) == 4 and factor_between(difference(*known[:2]), difference(*known[2:])) is not None


def factor_between(gold: Expr, answer: Expr) -> Value | None:
    """The constant by which the gold must be multiplied to give the answer, if there is one other than zero."""
    evaluator = Evaluator()
    factor: Value | None = None
    compared = 0
    for point in points(gold.symbols() | answer.symbols()):
        try:
            wanted, given = evaluator.value(gold, point), evaluator.value(answer, point)
            if evaluator.same(wanted, _ZERO):
                if not evaluator.same(given, _ZERO):
                    return None
                continue
            found = evaluator.divide(given, wanted)
        except Undefined:
            continue
        if evaluator.same(found, _ZERO) or (factor is not None and not evaluator.same(factor, found)):
            return None
        factor, compared = found, compared + 1
    return factor if compared >= 2 else None


def solves(name: str, value: Expr, left: Expr, right: Expr) -> bool:
    """Is `left = right` linear in the name, with this value as its solution? A number solves only `name - number = 0`."""
    if not value.symbols():
        for side, zero in ((left, right), (right, left)):
            if zero == Expr("number", number=_ZERO) and side.symbols() == {name}:
                return factor_between(difference(Expr("symbol", name=name), value), side) is not None
        return False
    equation, evaluator, compared = difference(left, right), Evaluator(), 0
    if name not in equation.symbols() or name in value.symbols():
        return False
    for point in points(equation.symbols() | value.symbols()):
        try:
            at = [evaluator.value(equation, {**point, name: Fraction(place)}) for place in (0, 1, 3)]
            solution = evaluator.value(value, point)
            slope = evaluator.add(at[1], evaluator.multiply(Fraction(-1), at[0]))
            linear = evaluator.add(at[0], evaluator.multiply(Fraction(3), slope))
            if not evaluator.same(at[2], linear) or evaluator.same(slope, _ZERO):
                return False
            found = evaluator.divide(evaluator.multiply(Fraction(-1), at[0]), slope)
        except Undefined:
            continue
        if not evaluator.same(found, solution):
            return False
        compared += 1
    return compared >= 2


def same_inequalities(gold: Relation, answer: Relation) -> bool:
    """Is every step of one a positive constant times a step of the other, with the same sign?"""
    wanted, given = _steps(gold), _steps(answer)
    if wanted is None or given is None or len(wanted) != len(given):
        return False
    for sign, tree in wanted:
        for step in given:
            factor = factor_between(tree, step[1]) if step[0] == sign else None
            real = None if factor is None else Evaluator().real(factor)
            if real is not None and (real > 0 or sign == "\\ne"):
                given.remove(step)
                break
        else:
            return False
    return True


def _steps(relation: Relation) -> list[tuple[str, Expr]] | None:
    """Every step as an expression that is more than zero (or not less, or not equal)."""
    sides, signs = relation
    trees = [expression(side) for side in sides]
    found = []
    for left, sign, right in zip(trees, signs, trees[1:], strict=False):
        if left is None or right is None:
            return None
        if re.match(r"<|\\le", sign):
            left, right = right, left
        found.append(({"<": ">", "\\le": "\\ge"}.get(sign, sign), difference(left, right)))
    return found


_IN_DEGREES = re.compile(r"\u00b0(?!\s*[CF])|[0-9]\s*degrees?\s*$")


def equal_scalars(gold: str, answer: str, algebra: Callable[[str, str], bool]) -> bool:
    """Compare exactly where both are plain numbers, else by the values of the expressions."""
    wanted, given = gold_number(gold), number(answer)
    if wanted is not None and given is not None:
        return same_number(wanted, given)
    try:
        gold_trees, answer_trees = _trees(gold, wanted, letters=False), _trees(answer, given, letters=True)
        for left, right in itertools.product(gold_trees, answer_trees):
            if equal_expressions(left, right, ignore_degrees=left.has("degree") or right.has("degree")):
                return True
            if (left.head == "percent") != (right.head == "percent"):
                bare = [tree.parts[0] if tree.head == "percent" else tree for tree in (left, right)]
                if equal_expressions(bare[0], bare[1]):
                    return True
            if _are_decimals(wanted, right) or _are_decimals(given, left):
                return True
        return False
    except NeedsAlgebra:
        return algebra(gold, answer)


def _trees(text: str, plain: Number | None, letters: bool) -> list[Expr]:
    """The readings of one side: as written, without units behind it, and `1/2x` as one over 2x."""
    if plain is not None:
        tree = Expr("number", number=plain.value)
        if _IN_DEGREES.search(text):
            return [Expr("degree", (tree,))]
        return [Expr("percent", (tree,)) if plain.percent else tree]
    found = []
    for form in (text, without_units(text, letters)):
        for tight in (False, True):
            if form is None or (tight and "/" not in form):
                continue
            bare = number(form) if letters else gold_number(form)
            try:
                tree = Expr("number", number=bare.value) if bare is not None else parse(form, tight)
            except NotAnExpression:
                continue
            if tree not in found:
                found.append(tree)
    return found


def _are_decimals(decimal: Number | None, exact: Expr) -> bool:
    """Is a plain number the decimals of an irrational constant?"""
    if decimal is None or decimal.places < 6 or exact.symbols():
        return False
    try:
        value = Evaluator().real(constant(exact))
    except Undefined:
        return False
    if value is None:
        return False
    if isinstance(value, Fraction):
        return is_decimal_of(decimal.value, decimal.places, value)
    shown = decimal.value / 100 if decimal.percent else decimal.value
    return is_decimal_of(shown, decimal.places + 2 * decimal.percent, as_fraction(value))


def as_fraction(value: Fraction | mpmath.mpf) -> Fraction:
    """The exact value of the digits that were computed."""
    if isinstance(value, Fraction):
        return value
    sign, mantissa, exponent, _ = value._mpf_
    size = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -size if sign else size


def proportional(gold: Sequence[str], answer: Sequence[str]) -> bool:
    """Are the terms of two ratios proportional?"""
    if len(gold) != len(answer):
        return False
    trees = [_trees(term, number(term), letters=True) for term in (*gold, *answer)]
    if not all(trees):
        return [term.replace(" ", "") for term in gold] == [term.replace(" ", "") for term in answer]
    terms = [readings[0] for readings in trees]
    wanted, given = terms[: len(gold)], terms[len(gold) :]
    for one in range(len(gold)):
        for other in range(one):
            left, right = Expr("*", (wanted[one], given[other])), Expr("*", (wanted[other], given[one]))
            if not equal_expressions(left, right):
                return False
    zeros = [not term.symbols() and Evaluator().same(constant(term), _ZERO) for term in terms]
    return zeros[: len(gold)] == zeros[len(gold) :]
