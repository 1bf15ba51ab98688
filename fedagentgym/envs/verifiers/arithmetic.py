"""A calculator for untrusted input: numbers, + - * / // % **, brackets and a few functions, exact, within limits."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from fractions import Fraction

LONGEST = 300
LARGEST_BITS = 4_000
LARGEST_SHOWN_DIVISOR = 10_000
_BINARY: dict[type, Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _Refused(Exception):
    pass


def calculate(expression: str) -> str:
    """The value of an expression as a short text, or what is wrong with it.

    >>> calculate("3 * (4 + 5)"), calculate("1 / 3 + 1 / 6"), calculate("9 ** 9 ** 9"), calculate("2 +")
    ('27', '1/2', 'Error : the number is too large .', 'Error : not an expression .')
    """
    if len(expression) > LONGEST:
        return "Error : the expression is too long ."
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("\u00d7", "*"), mode="eval")
        value = _value(tree.body)
    except _Refused as refused:
        return f"Error : {refused} ."
    except ZeroDivisionError:
        return "Error : division by zero ."
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return "Error : not an expression ."
    return str(value) if value.denominator <= LARGEST_SHOWN_DIVISOR else f"{float(value):.10g}"


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _limited(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            return _limited(Fraction(_BINARY[type(node.op)](left, right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _function(node.func.id, [_value(argument) for argument in node.args])
    raise _Refused("not an expression")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _Refused("powers are whole numbers")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * size > LARGEST_BITS:
        raise _Refused("the number is too large")
    return base ** int(exponent)


def _function(name: str, arguments: list[Fraction]) -> Fraction:
    whole = [int(argument) for argument in arguments if argument.denominator == 1]
    if name == "abs" and len(arguments) == 1:
        return abs(arguments[0])
    if name in ("min", "max") and arguments:
        return (min if name == "min" else max)(arguments)
    if name in ("gcd", "lcm") and len(whole) == len(arguments) >= 1:
        return _limited(Fraction((math.gcd if name == "gcd" else math.lcm)(*whole)))
    if name == "sqrt" and len(arguments) == 1 and arguments[0] >= 0:
        root = Fraction(math.isqrt(arguments[0].numerator), math.isqrt(arguments[0].denominator))
        return root if root * root == arguments[0] else Fraction(str(round(math.sqrt(arguments[0]), 10)))
    if name in ("factorial", "comb") and len(whole) == len(arguments) and all(0 <= number <= 300 for number in whole):
        if name == "comb" and len(whole) == 2:
            return Fraction(math.comb(*whole))
        if name == "factorial" and len(whole) == 1:
            return _limited(Fraction(math.factorial(whole[0])))
    raise _Refused("functions are abs min max gcd lcm sqrt factorial comb, of whole numbers where it matters")


def _limited(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > LARGEST_BITS:
        raise _Refused("the number is too large")
    return value
