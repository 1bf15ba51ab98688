"""Are two equations, or two inequalities, equivalent?

They are if one is a constant times the other, or if both have the same solution for the name on the gold's left. An equation
with more or fewer solutions is not equivalent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from fedagentgym.envs.verifiers.mathematics.bounds import expression
from fedagentgym.envs.verifiers.mathematics.equality import points
from fedagentgym.envs.verifiers.mathematics.syntax import Expr
from fedagentgym.envs.verifiers.mathematics.values import Evaluator, Undefined, Value

_ZERO = Fraction(0)
Relation = tuple[tuple[str, ...], tuple[str, ...]]


def _difference(left: Expr, right: Expr) -> Expr:
    return Expr("+", (left, Expr("negative", (right,))))


def same_equations(gold: Sequence[str], answer: Sequence[str]) -> bool:
    """Is one equation a constant times the other?"""
    trees = [expression(side) for side in (*gold, *answer)]
    known = [tree for tree in trees if tree is not None]
    return len(known) == 4 and factor_between(_difference(*known[:2]), _difference(*known[2:])) is not None


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


def is_general_form_of(name: str, value: Expr, left: Expr, right: Expr) -> bool:
    """Is `left = right` the equation `name = value` with everything on one side?"""
    for side, zero in ((left, right), (right, left)):
        if zero == Expr("number", number=_ZERO) and side.symbols() == {name}:
            return factor_between(_difference(Expr("symbol", name=name), value), side) is not None
    return False


def solved_for(name: str, value: Expr, left: Expr, right: Expr) -> bool:
    """Is `left = right` linear in the name, with this value as its solution?"""
    difference, evaluator, compared = _difference(left, right), Evaluator(), 0
    if name not in difference.symbols() or name in value.symbols():
        return False
    for point in points(difference.symbols() | value.symbols()):
        try:
            at = [evaluator.value(difference, {**point, name: Fraction(place)}) for place in (0, 1, 3)]
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
        found = next((step for step in given if step[0] == sign and _is_positive_multiple(tree, step[1], sign)), None)
        if found is None:
            return False
        given.remove(found)
    return True


def _is_positive_multiple(gold: Expr, answer: Expr, sign: str) -> bool:
    factor = factor_between(gold, answer)
    real = None if factor is None else Evaluator().real(factor)
    return real is not None and (real > 0 or sign == "\\ne")


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
        found.append(({"<": ">", "\\le": "\\ge"}.get(sign, sign), _difference(left, right)))
    return found
