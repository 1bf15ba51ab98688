"""Are two expressions equal? They are when their values agree at every point where both have one."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from fedagentgym.envs.verifiers.mathematics.syntax import Expr
from fedagentgym.envs.verifiers.mathematics.values import DIGITS, MOST_DIGITS, Evaluator, TooLarge, Undefined


@lru_cache(maxsize=512)
def points(symbols: frozenset[str]) -> tuple[dict[str, Fraction], ...]:
    """Where expressions in these symbols are compared: both signs, small and large, the same for ever."""
    found = []
    for turn, (low, spread) in enumerate(((1, 3), (3, 5), (-2, 1), (0, 1), (-5, 9))):
        point = {}
        for name in sorted(symbols):
            seed = sum((place + 3) * ord(letter) for place, letter in enumerate(name)) * (turn + 7)
            point[name] = low + Fraction(seed % 101 + 1, 103) * spread
        found.append(point)
    return tuple(found)


def has_imaginary_unit(expr: Expr) -> bool:
    return any(node.head == "i" for node in expr.walk())


def equal_expressions(gold: Expr, answer: Expr, ignore_degrees: bool = False) -> bool:
    """Do both have the same value wherever both have one? `\\log` may mean either of its two usual bases, on both sides."""
    if "infty" in gold.symbols() | answer.symbols():
        return gold == answer
    settings: list[tuple[bool, Fraction | None]] = [(False, None)]
    if any(node.head == "log" and len(node.parts) == 1 for tree in (gold, answer) for node in tree.walk()):
        settings.append((True, None))
    if ignore_degrees:
        settings += [(natural, Fraction(1)) for natural, _ in tuple(settings)]
    return any(_equal(gold, answer, natural, degree) for natural, degree in settings)


def _equal(gold: Expr, answer: Expr, natural: bool, degree: Fraction | None) -> bool:
    symbols = gold.symbols() | answer.symbols()
    complex_allowed = not symbols or has_imaginary_unit(gold) or has_imaginary_unit(answer)
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
