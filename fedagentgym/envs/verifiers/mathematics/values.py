"""The value of an expression at a point: exact while it stays rational, else with sixty digits and more.

Points are rational numbers, so polynomials and fractions are evaluated exactly. Work is bounded: large powers, factorials and
digits are refused.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import TypeAlias, TypeGuard

import mpmath
from mpmath.libmp import NoConvergence

from fedagentgym.envs.verifiers.mathematics.syntax import Expr

DIGITS = 60
MOST_DIGITS = 1_500
MOST_BITS = 60_000
AGREEING = 45


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Value, ...], ...]


Value: TypeAlias = "Fraction | mpmath.mpf | mpmath.mpc | Matrix"
Point: TypeAlias = Mapping[str, Fraction]


class Undefined(Exception):
    """The expression has no value at this point."""


class TooLarge(Exception):
    """The value has more digits than any sensible answer."""


_local = threading.local()


def context() -> mpmath.ctx_mp.MPContext:
    """This thread's own arithmetic, so that its precision does not affect other code."""
    if not hasattr(_local, "context"):
        _local.context = mpmath.mp.clone()
        _local.context.dps = DIGITS
    return _local.context


class Evaluator:
    """Evaluates trees at a point; remembers how large the numbers on the way became."""

    def __init__(self, digits: int = DIGITS, natural_logarithm: bool = False, degree: Fraction | None = None) -> None:
        self.mp = context()
        self.mp.dps = digits
        self.natural, self.degree = natural_logarithm, degree
        self.largest = 0

    def value(self, expr: Expr, point: Point) -> Value:
        try:
            return self._checked(self._value(expr, point))
        except (ZeroDivisionError, ValueError, TypeError, NoConvergence):
            raise Undefined from None
        except OverflowError:
            raise TooLarge from None

    def _value(self, expr: Expr, point: Point) -> Value:
        head = expr.head
        match head:
            case "number":
                return self._checked(expr.number)
            case "symbol":
                if expr.name not in point:
                    raise Undefined
                return point[expr.name]
            case "pi":
                return +self.mp.pi
            case "e":
                return +self.mp.e
            case "i":
                return self.mp.mpc(0, 1)
            case "matrix" | "det":
                rows = tuple(tuple(self._value(entry, point) for entry in row.parts) for row in expr.parts)
                return Matrix(rows) if head == "matrix" else self._determinant(rows)
            case "sin" | "cos" | "tan" | "sec" | "csc" | "cot" | "cis":
                # a sign for degrees in an argument always means degrees
                outer, self.degree = self.degree, None
                try:
                    values = [self._value(expr.parts[0], point)]
                finally:
                    self.degree = outer
            case _:
                values = [self._value(part, point) for part in expr.parts]
        return self._checked(self._apply(head, values))

    def _checked(self, value: Value) -> Value:
        """Refuse infinite values and those with too many digits; note the size."""
        if isinstance(value, Matrix):
            return value
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            if bits > MOST_BITS:
                raise TooLarge
            size = value.numerator.bit_length() - value.denominator.bit_length()
        else:
            if not self.mp.isfinite(value):
                raise Undefined
            size = 0 if not value else int(self.mp.mag(value))
            if abs(size) > MOST_BITS:
                raise TooLarge
        self.largest = max(self.largest, size)
        return value

    def _apply(self, head: str, values: list[Value]) -> Value:
        match head:
            case "+":
                return reduce(self.add, values)
            case "*":
                return self.multiply(*values)
            case "negative":
                return self.multiply(Fraction(-1), values[0])
            case "/":
                return self.divide(*values)
            case "^":
                return self._power(*values)
            case "percent":
                return self.multiply(Fraction(1, 100), values[0])
            case "degree":
                return self.multiply(self.mp.pi / 180 if self.degree is None else self.degree, values[0])
        numbers = [value for value in values if not isinstance(value, Matrix)]
        if len(numbers) != len(values):
            raise Undefined
        return self._function(head, numbers)

    # ---- arithmetic -------------------------------------------------------------------------------------------------

    def as_float(self, value: Value) -> mpmath.mpf | mpmath.mpc:
        if isinstance(value, Matrix):
            raise Undefined
        return self.mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value

    def add(self, left: Value, right: Value) -> Value:
        if isinstance(left, Matrix) and isinstance(right, Matrix):
            if _shape(left) != _shape(right):
                raise Undefined
            pairs = zip(left.rows, right.rows, strict=True)
            return Matrix(tuple(tuple(self.add(a, b) for a, b in zip(*rows, strict=True)) for rows in pairs))
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left + right
        return self.as_float(left) + self.as_float(right)

    def multiply(self, left: Value, right: Value) -> Value:
        if isinstance(left, Matrix) and isinstance(right, Matrix):
            raise Undefined
        if isinstance(left, Matrix) or isinstance(right, Matrix):
            matrix, scale = (left, right) if isinstance(left, Matrix) else (right, left)
            assert isinstance(matrix, Matrix)
            return Matrix(tuple(tuple(self.multiply(scale, value) for value in row) for row in matrix.rows))
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left * right
        return self.as_float(left) * self.as_float(right)

    def divide(self, left: Value, right: Value) -> Value:
        if isinstance(right, Matrix):
            raise Undefined
        if not right:
            raise Undefined
        return self.multiply(left, 1 / right)

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Matrix) or isinstance(exponent, Matrix):
            raise Undefined
        if isinstance(exponent, Fraction):
            if not base:
                if exponent < 0:
                    raise Undefined
                return Fraction(1 if exponent == 0 else 0)
            if isinstance(base, Fraction) and exponent.denominator == 1:
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                if bits > 1 and bits * abs(exponent) > 2 * MOST_BITS:
                    raise TooLarge
                return base ** int(exponent)
            if isinstance(base, Fraction) and (exact := _exact_root(base, exponent.denominator)) is not None:
                return self._power(exact, Fraction(exponent.numerator))
        if base and abs(self.mp.log(abs(self.as_float(base)), 2)) * abs(self.as_float(exponent)) > MOST_BITS:
            raise TooLarge
        if isinstance(exponent, Fraction):
            if exponent.denominator == 1:
                return base ** int(exponent)
            if isinstance(base, Fraction | self.mp.mpf) and base < 0 and exponent.denominator % 2:
                size = self.mp.power(-self.as_float(base), self.as_float(exponent))
                return -size if exponent.numerator % 2 else size
        return self.mp.power(self.as_float(base), self.as_float(exponent))

    # ---- functions --------------------------------------------------------------------------------------------------

    def _function(self, head: str, values: list[Value]) -> Value:
        first = values[0]
        match head:
            case "sqrt":
                return self._power(first, Fraction(1, 2))
            case "root":
                return self._power(first, self.divide(Fraction(1), values[1]))
            case "abs":
                return abs(first) if isinstance(first, Fraction) else abs(self.as_float(first))
            case "floor" | "ceil":
                if isinstance(first, Fraction):
                    return Fraction(math.ceil(first) if head == "ceil" else math.floor(first))
                real = self._real(first)
                near = self.mp.nint(real)
                if abs(real - near) < self.mp.mpf(10) ** (-AGREEING):
                    return Fraction(int(near))
                return Fraction(int(self.mp.ceil(real) if head == "ceil" else self.mp.floor(real)))
            case "log":
                if self.natural and len(values) == 1:
                    return self.mp.ln(self.as_float(first))
                base = self.as_float(values[1]) if len(values) > 1 else self.mp.mpf(10)
                return self.mp.ln(self.as_float(first)) / self.mp.ln(base)
            case "max" | "min":
                ordered = sorted(values, key=self._real)
                return ordered[-1] if head == "max" else ordered[0]
            case "gcd" | "lcm":
                whole = [value.numerator for value in values if _is_whole(value)]
                if len(whole) != len(values):
                    raise Undefined
                return Fraction(math.gcd(*whole) if head == "gcd" else math.lcm(*whole))
            case "binom":
                of, chosen = values
                if _is_whole(of) and _is_whole(chosen):
                    if not 0 <= of <= 4000 or chosen < 0:
                        raise TooLarge
                    return Fraction(math.comb(int(of), int(chosen)))
                if max(abs(self.as_float(of)), abs(self.as_float(chosen))) > 1000:
                    raise TooLarge
                return self.mp.binomial(self.as_float(of), self.as_float(chosen))
            case "factorial":
                if abs(self.as_float(first)) > 1000:
                    raise TooLarge
                if not _is_whole(first):
                    return self.mp.factorial(self.as_float(first))
                if first < 0:
                    raise Undefined
                return Fraction(math.factorial(int(first)))
            case "sgn":
                real = self._real(first)
                return Fraction((real > 0) - (real < 0))
            case "cis":
                return self.mp.expj(self.as_float(first))
            case "exp" | "sinh" | "cosh" | "tanh" if abs(self.as_float(first)) > MOST_BITS / 2:
                raise TooLarge
        if head not in _NAMES:
            raise Undefined
        function: Callable[[object], Value] = getattr(self.mp, _NAMES[head])
        return function(self.as_float(first))

    def _real(self, value: Value) -> mpmath.mpf:
        number = self.as_float(value)
        if isinstance(number, self.mp.mpc):
            raise Undefined
        return number

    def _determinant(self, rows: tuple[tuple[Value, ...], ...]) -> Value:
        if any(len(row) != len(rows) for row in rows) or len(rows) > 4:
            raise Undefined
        if len(rows) == 1:
            return rows[0][0]
        total: Value = Fraction(0)
        for column, entry in enumerate(rows[0]):
            minor = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
            term = self.multiply(entry, self._determinant(minor))
            total = self.add(total, self.multiply(Fraction(-1), term) if column % 2 else term)
        return total

    # ---- equality ---------------------------------------------------------------------------------------------------

    def same(self, left: Value, right: Value) -> bool:
        """Equal exactly when both are rational, else in as many digits as the evaluation can be sure of."""
        if isinstance(left, Matrix) or isinstance(right, Matrix):
            if not (isinstance(left, Matrix) and isinstance(right, Matrix)) or _shape(left) != _shape(right):
                return False
            pairs = zip(left.rows, right.rows, strict=True)
            return all(self.same(a, b) for rows in pairs for a, b in zip(*rows, strict=True))
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left == right
        one, other = self.as_float(left), self.as_float(right)
        distance = abs(one - other)
        size = max(abs(one), abs(other))
        ten = self.mp.mpf(10)
        return bool(
            distance <= ten**-AGREEING * size or distance <= ten ** -(self.mp.dps - 8) * 2 ** max(self.largest, 0)
        )

    def is_real(self, value: Value) -> bool:
        if isinstance(value, Matrix):
            return all(self.is_real(entry) for row in value.rows for entry in row)
        if isinstance(value, Fraction | self.mp.mpf):
            return True
        return bool(abs(value.imag) <= self.mp.mpf(10) ** -AGREEING * max(1, abs(value.real)))

    def real(self, value: Value) -> Fraction | mpmath.mpf | None:
        """The value as a real number, if it is one."""
        if isinstance(value, Matrix) or not self.is_real(value):
            return None
        return value.real if isinstance(value, self.mp.mpc) else value


_NAMES = {name: name for name in ("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh", "exp", "ln")} | {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
}


def _shape(matrix: Matrix) -> tuple[int, int]:
    return len(matrix.rows), len(matrix.rows[0])


def _is_whole(value: Value) -> TypeGuard[Fraction]:
    return isinstance(value, Fraction) and value.denominator == 1


def _exact_root(base: Fraction, degree: int) -> Fraction | None:
    """The rational root, if there is one; of a negative number only an odd one."""
    if degree > 64 or (base < 0 and degree % 2 == 0):
        return None
    roots = []
    for number in (abs(base.numerator), base.denominator):
        low, high = 0, 1 << (number.bit_length() // degree + 1)
        if degree == 2:
            low = high = math.isqrt(number)
        while low < high:
            middle = (low + high) // 2
            if middle**degree < number:
                low = middle + 1
            else:
                high = middle
        if low**degree != number:
            return None
        roots.append(low)
    return Fraction(-roots[0] if base < 0 else roots[0], roots[1])


def constant(expr: Expr) -> Value:
    """The value of an expression without symbols."""
    return Evaluator().value(expr, {})
