"""Two single values: plain numbers with their conventions, expressions, matrices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

import mpmath

from fedagentgym.envs.verifiers.mathematics.equality import equal_expressions
from fedagentgym.envs.verifiers.mathematics.numbers import Number, gold_number, is_decimal_of, number, same_number
from fedagentgym.envs.verifiers.mathematics.syntax import Expr, parse
from fedagentgym.envs.verifiers.mathematics.tokens import NeedsAlgebra, NotAnExpression
from fedagentgym.envs.verifiers.mathematics.units import without_units
from fedagentgym.envs.verifiers.mathematics.values import Evaluator, Undefined, Value, constant

_IN_DEGREES = re.compile(r"\u00b0(?!\s*[CF])|[0-9]\s*degrees?\s*$")


def equal_scalars(gold: str, answer: str, algebra: Callable[[str, str], bool]) -> bool:
    """Compare exactly where both are plain numbers, else by the values of the expressions."""
    wanted, given = gold_number(gold), number(answer)
    if wanted is not None and given is not None:
        return same_number(wanted, given)
    try:
        return _equal_readings(gold, wanted, answer, given)
    except NeedsAlgebra:
        return algebra(gold, answer)


def _equal_readings(gold: str, wanted: Number | None, answer: str, given: Number | None) -> bool:
    gold_trees, answer_trees = _trees(gold, wanted, letters=False), _trees(answer, given, letters=True)
    for left in gold_trees:
        for right in answer_trees:
            if _equal_trees(left, right, wanted, given):
                return True
    return False


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


def _equal_trees(gold: Expr, answer: Expr, wanted: Number | None, given: Number | None) -> bool:
    marked = [any(node.head == "degree" for node in tree.walk()) for tree in (gold, answer)]
    if equal_expressions(gold, answer, ignore_degrees=any(marked)):
        return True
    percent = [tree.head == "percent" for tree in (gold, answer)]
    if percent[0] != percent[1]:
        bare = (gold.parts[0] if percent[0] else gold, answer.parts[0] if percent[1] else answer)
        if equal_expressions(*bare):
            return True
    return _are_decimals(wanted, answer) or _are_decimals(given, gold)


def _are_decimals(decimal: Number | None, exact: Expr) -> bool:
    """Is a plain number the decimals of an irrational constant?"""
    if decimal is None or decimal.places < 6 or exact.symbols():
        return False
    value = real_constant(exact)
    if value is None or isinstance(value, Fraction):
        return value is not None and is_decimal_of(decimal.value, decimal.places, value)
    shown = decimal.value / 100 if decimal.percent else decimal.value
    return is_decimal_of(shown, decimal.places + 2 * decimal.percent, as_fraction(value))


def real_constant(expr: Expr) -> Fraction | mpmath.mpf | None:
    try:
        return Evaluator().real(constant(expr))
    except Undefined:
        return None


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
    wanted, given = [_term(term) for term in gold], [_term(term) for term in answer]
    if any(term is None for term in (*wanted, *given)):
        return [term.replace(" ", "") for term in gold] == [term.replace(" ", "") for term in answer]
    known, told = [term for term in wanted if term is not None], [term for term in given if term is not None]
    for one in range(len(known)):
        for other in range(one):
            left, right = Expr("*", (known[one], told[other])), Expr("*", (known[other], told[one]))
            if not equal_expressions(left, right):
                return False
    return _zeros(known) == _zeros(told)


def _term(text: str) -> Expr | None:
    trees = _trees(text, number(text), letters=True)
    return trees[0] if trees else None


def _zeros(terms: Sequence[Expr]) -> list[bool]:
    return [_is_zero(term) for term in terms]


def _is_zero(term: Expr) -> bool:
    if term.symbols():
        return False
    value: Value = constant(term)
    return Evaluator().same(value, Fraction(0))
