"""Linear equations and systems at five levels."""

from __future__ import annotations

from fractions import Fraction

from fedagentgym.envs.reasoning.generators.math_numbers import NAMES, make_problem, to_latex
from fedagentgym.envs.reasoning.generators.problem import MathProblem
from fedagentgym.envs.reasoning.generators.space import Form, split_words

NOT_ZERO = (*range(-12, 0), *range(1, 13))


def format_term(coefficient: int, name: str, first: bool = False) -> str:
    """A term of a sum with its sign."""
    size = "" if abs(coefficient) == 1 else f"{abs(coefficient)}"
    if first:
        return f"{'-' if coefficient < 0 else ''}{size}{name}"
    return f"{'-' if coefficient < 0 else '+'} {size}{name}"


def format_constant(constant: int) -> str:
    return f"{'-' if constant < 0 else '+'} {abs(constant)}"


# ---- one unknown ----------------------------------------------------------------------------------------------------


def _one_step(x: int, a: int, b: int) -> MathProblem:
    total = a * x + b
    text = f"Solve {a}x + {b} = {total} for x."
    return make_problem(text, x, f"{total} - {b} = {a * x} . {a * x} / {a} = {x}", f"solve({a}*x+{b}-{total},x)[0]")


def _number_story(name: str, x: int, a: int, b: int) -> MathProblem:
    total = a * x - b
    text = f"{name} thinks of a number, multiplies it by {a}, subtracts {b}, and gets {total}. What is the number?"
    return make_problem(text, x, f"{total} + {b} = {a * x} . {a * x} / {a} = {x}", f"solve({a}*x-{b}-({total}),x)[0]")


def _both_sides(x: int, a: int, more: int, b: int) -> MathProblem:
    big = a + more
    c = big * x + b - a * x
    text = f"Solve {big}x {format_constant(b)} = {a}x {format_constant(c)} for x."
    steps = f"{big} - {a} = {more} . {c} - ({b}) = {c - b} . {c - b} / {more} = {x}"
    return make_problem(text, x, steps, f"solve({big}*x+({b})-{a}*x-({c}),x)[0]")


def _with_brackets(a: int, b: int, c: int, d: int) -> MathProblem:
    value = Fraction(d - a * b, a + c)
    text = f"Solve {a}(x {format_constant(b)}) + {c}x = {d} for x."
    steps = f"{a} + {c} = {a + c} . {d} - ({a * b}) = {d - a * b} . {d - a * b} / {a + c} = {value}"
    return make_problem(text, to_latex(value), steps, f"solve({a}*(x+({b}))+{c}*x-({d}),x)[0]")


def _with_fractions(a: int, p: int, b: int, q: int, c: int) -> MathProblem:
    value = Fraction(c) / (Fraction(a, p) + Fraction(b, q))
    text = f"Solve {a}x/{p} + {b}x/{q} = {c} for x."
    over = a * q + b * p
    steps = f"{a} * {q} + {b} * {p} = {over} . {c} * {p * q} / {over} = {value}"
    return make_problem(text, to_latex(value), steps, f"solve(Rational({a},{p})*x+Rational({b},{q})*x-{c},x)[0]")


# ---- several unknowns -----------------------------------------------------------------------------------------------


def _heads(name: str, x: int, y: int) -> MathProblem:
    text = f"{name} has {x + y} coins, some of gold and some of silver. There are {x - y if x >= y else y - x} more "
    text += f"{'gold' if x >= y else 'silver'} coins than {'silver' if x >= y else 'gold'} coins. How many are of gold?"
    gap = x - y
    steps = f"{x + y} {format_constant(gap)} = {2 * x} . {2 * x} / 2 = {x}"
    return make_problem(text, x, steps, f"solve([x+y-{x + y},x-y-({gap})],[x,y])[x]")


def _given_pair(x: int, y: int, a: int, b: int) -> MathProblem:
    c = a * x + b * y
    text = f"If {a}x {format_term(b, 'y')} = {c} and x = {x}, what is y?"
    steps = f"{a} * {x} = {a * x} . {c} - ({a * x}) = {b * y} . {b * y} / ({b}) = {y}"
    return make_problem(text, y, steps, f"solve([{a}*x+({b})*y-({c}),x-({x})],[x,y])[y]")


def _two_by_two(ask: str, x: int, y: int, a: int, b: int) -> MathProblem:
    c, d = a * x + y, x + b * y
    text = f"Solve {a}x + y = {c} and x + {b}y = {d}. What is {ask}?"
    steps = f"{b} * ({c}) - ({d}) = {b * c - d} . {b * c - d} / {a * b - 1} = {x} . {c} - {a} * ({x}) = {y}"
    value = x if ask == "x" else y
    return make_problem(text, value, steps, f"solve([{a}*x+y-({c}),x+{b}*y-({d})],[x,y])[{ask}]")


def _pair_answer(x: int, y: int, a: int, more: int) -> MathProblem:
    b = a + more
    c, d = a * x + 2 * y, b * x - 3 * y
    text = f"Solve the system {a}x + 2y = {c}, {b}x - 3y = {d}. Give the answer as an ordered pair (x, y)."
    top = 3 * c + 2 * d
    steps = f"3 * ({c}) + 2 * ({d}) = {top} . {top} / {3 * a + 2 * b} = {x} . ({c} - {a} * ({x})) / 2 = {y}"
    formal = f"Tuple(*[solve([{a}*x+2*y-({c}),{b}*x-3*y-({d})],[x,y])[k] for k in (x,y)])"
    return make_problem(text, f"({x}, {y})", steps, formal)


def _three(x: int, y: int, z: int, a: int) -> MathProblem:
    one, two, three = x + y + z, a * x - y, y + 2 * z
    text = f"Solve x + y + z = {one}, {a}x - y = {two}, y + 2z = {three}. Give the answer as (x, y, z)."
    right = 2 * one - three
    steps = f"2 * ({one}) - ({three}) = {right} = 2 x + y . ({right} + ({two})) / {a + 2} = {x}"
    steps += f" . {a} * ({x}) - ({two}) = {y} . {one} - ({x}) - ({y}) = {z}"
    formal = f"Tuple(*[solve([x+y+z-({one}),{a}*x-y-({two}),y+2*z-({three})],[x,y,z])[k] for k in (x,y,z)])"
    return make_problem(text, f"({x}, {y}, {z})", steps, formal)


_X = range(-15, 16)
EQUATIONS = (
    (Form((range(1, 30), range(2, 13), range(1, 25)), _one_step),),
    (Form((NAMES, range(2, 30), range(2, 13), range(1, 25)), _number_story),),
    (Form((_X, range(2, 9), range(2, 10), NOT_ZERO), _both_sides),),
    (Form((range(2, 10), NOT_ZERO, range(2, 10), range(5, 40)), _with_brackets),),
    (Form((range(1, 6), range(2, 9), range(1, 6), range(2, 9), range(1, 30)), _with_fractions),),
)
SYSTEMS = (
    (Form((NAMES, range(5, 40), range(5, 40)), _heads),),
    (Form((range(-9, 15), range(-9, 15), range(2, 10), NOT_ZERO), _given_pair),),
    (Form((("x", "y"), range(-12, 13), range(-12, 13), range(2, 9), range(2, 9)), _two_by_two),),
    (Form((range(-12, 13), range(-12, 13), range(2, 9), range(1, 7)), _pair_answer),),
    (Form((range(-8, 9), range(-8, 9), range(-8, 9), range(2, 8)), _three),),
)
ALGEBRA_WORDS = split_words(
    """Solve for x y z thinks of a number multiplies it by subtracts and gets What is the has coins some gold silver
There are more than How many If what system Give the answer as an ordered pair"""
)
