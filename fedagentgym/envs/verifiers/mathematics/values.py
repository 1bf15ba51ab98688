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
from typing import TypeAlias

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
        if head == "number":
            return self._checked(expr.number)
        if head == "symbol":
            if expr.name not in point:
                raise Undefined
            return point[expr.name]
        if head == "pi":
            return +self.mp.pi
        if head == "e":
            return +self.mp.e
        if head == "i":
            return self.mp.mpc(0, 1)
        if head in ("matrix", "det"):
            return self._matrix(expr, point)
        if head in ("sin", "cos", "tan", "sec", "csc", "cot", "cis"):
            return self._checked(self._trigonometric(head, expr.parts[0], point))
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
        if head == "+":
            total = values[0]
            for value in values[1:]:
                total = self.add(total, value)
            return total
        if head == "*":
            return self.multiply(*values)
        if head == "negative":
            return self.multiply(Fraction(-1), values[0])
        if head == "/":
            return self.divide(*values)
        if head == "^":
            return self._power(*values)
        if head == "percent":
            return self.multiply(Fraction(1, 100), values[0])
        if head == "degree":
            return self._degrees(values[0])
        numbers = [value for value in values if not isinstance(value, Matrix)]
        if len(numbers) != len(values):
            raise Undefined
        return self._function(head, numbers)

    def _degrees(self, value: Value) -> Value:
        if self.degree is not None:
            return self.multiply(self.degree, value)
        return self.multiply(self.mp.pi / 180, value)

    # ---- arithmetic -------------------------------------------------------------------------------------------------

    def _float(self, value: Value) -> mpmath.mpf | mpmath.mpc:
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
        return self._float(left) + self._float(right)

    def multiply(self, left: Value, right: Value) -> Value:
        if isinstance(left, Matrix) and isinstance(right, Matrix):
            raise Undefined
        if isinstance(left, Matrix) or isinstance(right, Matrix):
            matrix, scale = (left, right) if isinstance(left, Matrix) else (right, left)
            assert isinstance(matrix, Matrix)
            return Matrix(tuple(tuple(self.multiply(scale, value) for value in row) for row in matrix.rows))
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left * right
        return self._float(left) * self._float(right)

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
            return self._rational_power(base, exponent)
        self._limit_power(base, exponent)
        return self.mp.power(self._float(base), self._float(exponent))

    def _limit_power(self, base: Value, exponent: Value) -> None:
        if not base:
            return
        size = abs(self.mp.log(abs(self._float(base)), 2))
        if size * abs(self._float(exponent)) > MOST_BITS:
            raise TooLarge

    def _rational_power(self, base: Value, exponent: Fraction) -> Value:
        if isinstance(base, Matrix):
            raise Undefined
        if not base:
            if exponent <= 0:
                if exponent == 0:
                    return Fraction(1)
                raise Undefined
            return Fraction(0)
        if exponent.denominator == 1:
            if isinstance(base, Fraction):
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                if bits > 1 and bits * abs(exponent) > 2 * MOST_BITS:
                    raise TooLarge
                return base ** int(exponent)
            self._limit_power(base, exponent)
            return base ** int(exponent)
        if isinstance(base, Fraction) and (exact := _exact_root(base, exponent.denominator)) is not None:
            return self._rational_power(exact, Fraction(exponent.numerator))
        self._limit_power(base, exponent)
        real = isinstance(base, Fraction | self.mp.mpf)
        if real and base < 0 and exponent.denominator % 2:
            size = self.mp.power(-self._float(base), self._float(exponent))
            return -size if exponent.numerator % 2 else size
        return self.mp.power(self._float(base), self._float(exponent))

    # ---- functions --------------------------------------------------------------------------------------------------

    def _trigonometric(self, head: str, argument: Expr, point: Point) -> Value:
        """A sign for degrees in an argument always means degrees."""
        outer, self.degree = self.degree, None
        try:
            value = self._value(argument, point)
        finally:
            self.degree = outer
        if isinstance(value, Matrix):
            raise Undefined
        return self._function(head, [value])

    def _function(self, head: str, values: list[Value]) -> Value:
        first = values[0]
        if head == "sqrt":
            return self._rational_power(first, Fraction(1, 2))
        if head == "root":
            return self._power(first, self.divide(Fraction(1), values[1]))
        if head == "abs":
            return abs(first) if isinstance(first, Fraction) else abs(self._float(first))
        if head in ("floor", "ceil"):
            return self._rounded(first, up=head == "ceil")
        if head == "log":
            return self._logarithm(values)
        if head in ("max", "min"):
            ordered = sorted(values, key=self._real)
            return ordered[-1] if head == "max" else ordered[0]
        if head in ("gcd", "lcm"):
            return Fraction((math.gcd if head == "gcd" else math.lcm)(*(self._whole(value) for value in values)))
        if head == "binom":
            return self._binomial(*values)
        if head == "factorial":
            return self._factorial(first)
        if head == "sgn":
            real = self._real(first)
            return Fraction((real > 0) - (real < 0))
        if head in ("exp", "sinh", "cosh", "tanh") and abs(self._float(first)) > MOST_BITS / 2:
            raise TooLarge
        if head == "cis":
            return self.mp.expj(self._float(first))
        name = _NAMES.get(head)
        if name is None:
            raise Undefined
        function: Callable[[object], Value] = getattr(self.mp, name)
        return function(self._float(first))

    def _logarithm(self, values: list[Value]) -> Value:
        base = self._float(values[1]) if len(values) > 1 else self.mp.mpf(10)
        if self.natural and len(values) == 1:
            return self.mp.ln(self._float(values[0]))
        return self.mp.ln(self._float(values[0])) / self.mp.ln(base)

    def _real(self, value: Value) -> mpmath.mpf:
        number = self._float(value)
        if isinstance(number, self.mp.mpc):
            raise Undefined
        return number

    def _whole(self, value: Value) -> int:
        if not isinstance(value, Fraction) or value.denominator != 1:
            raise Undefined
        return int(value)

    def _rounded(self, value: Value, up: bool) -> Value:
        if isinstance(value, Fraction):
            return Fraction(math.ceil(value) if up else math.floor(value))
        real = self._real(value)
        near = self.mp.nint(real)
        if abs(real - near) < self.mp.mpf(10) ** (-AGREEING):
            return Fraction(int(near))
        return Fraction(int(self.mp.ceil(real) if up else self.mp.floor(real)))

    def _binomial(self, of: Value, chosen: Value) -> Value:
        if isinstance(of, Fraction) and isinstance(chosen, Fraction) and of.denominator == chosen.denominator == 1:
            if not 0 <= of <= 4000 or chosen < 0:
                raise TooLarge
            return Fraction(math.comb(int(of), int(chosen)))
        if max(abs(self._float(of)), abs(self._float(chosen))) > 1000:
            raise TooLarge
        return self.mp.binomial(self._float(of), self._float(chosen))

    def _factorial(self, of: Value) -> Value:
        if abs(self._float(of)) > 1000:
            raise TooLarge
        if isinstance(of, Fraction) and of.denominator == 1:
            if of < 0:
                raise Undefined
            return Fraction(math.factorial(int(of)))
        return self.mp.factorial(self._float(of))

    # ---- matrices ---------------------------------------------------------------------------------------------------

    def _matrix(self, expr: Expr, point: Point) -> Value:
        found = Matrix(tuple(tuple(self._value(entry, point) for entry in row.parts) for row in expr.parts))
        return found if expr.head == "matrix" else self._determinant(found.rows)

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
        one, other = self._float(left), self._float(right)
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


def _exact_root(base: Fraction, degree: int) -> Fraction | None:
    """The rational root, if there is one; of a negative number only an odd one."""
    if degree > 64 or (base < 0 and degree % 2 == 0):
        return None
    over, under = _whole_root(abs(base.numerator), degree), _whole_root(base.denominator, degree)
    if over is None or under is None:
        return None
    return Fraction(-over if base < 0 else over, under)


def _whole_root(number: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(number)
        return root if root * root == number else None
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**degree < number:
            low = middle + 1
        else:
            high = middle
    return low if low**degree == number else None


def constant(expr: Expr) -> Value:
    """The value of an expression without symbols."""
    return Evaluator().value(expr, {})
