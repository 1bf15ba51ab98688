"""Mathematics of the split `unseen`, with templates that no other split has: other combinations of the same operations.

Tiny problems are made of the words and steps of `math_tiny`; the other problems are of levels 2 and 4 in every subject.
"""

from __future__ import annotations

from fractions import Fraction
from math import perm

from fedagentgym.envs.reasoning.generators.math_levels import SHARING_SMALL, Levels
from fedagentgym.envs.reasoning.generators.math_numbers import NAMES, THINGS, format_constant, format_term, to_latex
from fedagentgym.envs.reasoning.generators.math_tiny import (
    CHOICES,
    DESCENDING,
    DIGIT,
    ONES,
    PRODUCTS,
    SAME_BELOW,
    SMALL,
    UNITS,
    UP_AND_DOWN,
)
from fedagentgym.envs.reasoning.generators.problems import Form, MathProblem, make_problem, split_words

# ---- tiny -------------------------------------------------------------------------------------------------------------

DOWN_TWICE = tuple((a, b, c) for a in SMALL for b in range(min(a, 9) + 1) for c in range(min(a - b, 9) + 1))
DOWN_AND_UP = tuple((a, b, c) for a in SMALL for b in range(min(a, 9) + 1) for c in ONES if a - b + c < 20)
THREE_THINGS = tuple((*one, other) for one in CHOICES for pair in CHOICES if pair != one for other in pair)


def _add_subtract(parts: tuple[int, int, int]) -> MathProblem:
    a, b, c = parts
    steps = f"{a} + {b} = {a + b} . {a + b} - {c} = {a + b - c}"
    return make_problem(f"What is {a} + {b} - {c} ?", a + b - c, steps, f"{a}+{b}-{c}")


def _subtract_twice(parts: tuple[int, int, int]) -> MathProblem:
    a, b, c = parts
    steps = f"{a} - {b} = {a - b} . {a - b} - {c} = {a - b - c}"
    return make_problem(f"What is {a} - {b} - {c} ?", a - b - c, steps, f"{a}-{b}-{c}")


def _three_fractions(parts: tuple[int, int, int], c: int) -> MathProblem | None:
    a, b, d = parts
    if c >= a + b:
        return None
    text = f"What is {a} / {d} + {b} / {d} - {c} / {d} ?"
    steps = f"{a} + {b} = {a + b} . {a + b} - {c} = {a + b - c}"
    return make_problem(text, f"{a + b - c}/{d}", steps, f"Rational({a},{d})+Rational({b},{d})-Rational({c},{d})")


def _equation_down_and_up(parts: tuple[int, int, int]) -> MathProblem:
    x, a, b = parts
    total = x - a + b
    steps = f"{total} - {b} = {x - a} . {x - a} + {a} = {x}"
    return make_problem(f"x - {a} + {b} = {total} . What is x ?", x, steps, f"solve(x-{a}+{b}-{total},x)[0]")


def _equation_product_less(pair: tuple[int, int], b: int) -> MathProblem | None:
    a, x = pair
    total = a * x - b
    if total < 0:
        return None
    steps = f"{total} + {b} = {a * x} . {a * x} / {a} = {x}"
    return make_problem(f"{a} * x - {b} = {total} . What is x ?", x, steps, f"solve({a}*x-{b}-{total},x)[0]")


def _system_less(pair: tuple[int, int]) -> MathProblem:
    x, a = pair
    text = f"x = {x} and y = x - {a} . What is x + y ?"
    steps = f"{x} - {a} = {x - a} . {x} + {x - a} = {2 * x - a}"
    return make_problem(text, 2 * x - a, steps, f"(x+y).subs(solve([x-{x},y-x+{a}],[x,y]))")


def _system_down_up(parts: tuple[int, int, int]) -> MathProblem:
    x, a, b = parts
    text = f"x = {x} and y = x - {a} and z = y + {b} . What is z ?"
    steps = f"{x} - {a} = {x - a} . {x - a} + {b} = {x - a + b}"
    return make_problem(text, x - a + b, steps, f"solve([x-{x},y-x+{a},z-y-{b}],[x,y,z])[z]")


def _remainder_of(sign: str, pair: tuple[int, int], c: int) -> MathProblem:
    a, b = pair
    total = a - b if sign == "-" else a * b
    below = total // c * c
    text = f"What is the remainder of ( {a} {sign} {b} ) / {c} ?"
    steps = f"{a} {sign} {b} = {total} . {total} - {below} = {total - below}"
    return make_problem(text, total % c, steps, f"[r for r in range({c}) if ({a}{sign}{b}-r)%{c}==0][0]")


def _either_of_three(a: int, b: int, c: int, things: tuple[str, str, str]) -> MathProblem:
    one, other, third = things
    text = f"There are {a} {one} , {b} {other} and {c} {third} . How many ways to pick only one ?"
    steps = f"{a} + {b} = {a + b} . {a + b} + {c} = {a + b + c}"
    return make_problem(text, a + b + c, steps, f"len([*range({a}),*range({b}),*range({c})])")


def _missing_part(a: int, b: int, x: int) -> MathProblem:
    total = a + b + x
    text = f"A path has parts of {a} , {b} and x . Its length is {total} . What is x ?"
    steps = f"{a} + {b} = {a + b} . {total} - {a + b} = {x}"
    return make_problem(text, x, steps, f"solve({a}+{b}+x-{total},x)[0]")


def _sum_with_next(a: int, d: int) -> MathProblem:
    text = f"The first number is {a} and the next is {d} more . What is the sum ?"
    steps = f"{a} + {d} = {a + d} . {a} + {a + d} = {2 * a + d}"
    return make_problem(text, 2 * a + d, steps, f"sum([{a},{a}+{d}])")


UNSEEN_TINY: dict[str, tuple[Form[MathProblem], ...]] = {
    "arithmetic": (Form((UP_AND_DOWN,), _add_subtract), Form((DOWN_TWICE,), _subtract_twice)),
    "fractions": (Form((SAME_BELOW, ONES), _three_fractions, 9),),
    "linear equations": (
        Form((DOWN_AND_UP,), _equation_down_and_up),
        Form((PRODUCTS, ONES), _equation_product_less, 9),
    ),
    "systems": (Form((DESCENDING,), _system_less), Form((DOWN_AND_UP,), _system_down_up)),
    "number theory": (
        Form((("-",), DESCENDING, DIGIT), _remainder_of),
        Form((("*",), PRODUCTS, DIGIT), _remainder_of),
    ),
    "counting": (Form((DIGIT, DIGIT, DIGIT, THREE_THINGS), _either_of_three),),
    "geometry": (Form((ONES, ONES, ONES), _missing_part),),
    "series": (Form((UNITS, ONES), _sum_with_next),),
}


# ---- levels 2 and 4 ---------------------------------------------------------------------------------------------------


def _boxes_and_more(name: str, thing: str, rows: int, each: int, more: int) -> MathProblem:
    total = rows * each
    text = f"{name} has {rows} boxes of {each} {thing} each and gets {more} more {thing}. How many {thing} does {name} have now?"
    steps = f"{rows} * {each} = {total} . {total} + {more} = {total + more}"
    return make_problem(text, total + more, steps, f"{rows}*{each}+{more}")


def _brackets_less(a: int, b: int, c: int, less: int, e: int) -> MathProblem:
    d = c - less
    value = (a + b) * less - e
    steps = f"{a} + {b} = {a + b} . {c} - {d} = {less} . {a + b} * {less} = {value + e} . {value + e} - {e} = {value}"
    return make_problem(f"Compute ({a} + {b}) * ({c} - {d}) - {e}.", value, steps, f"({a}+{b})*({c}-{d})-{e}")


def _fraction_of_more(k: int, d: int, n: int, more: int) -> MathProblem:
    whole = d * k
    text = f"What is {n}/{d} of {whole} plus {more}?"
    steps = f"{whole} / {d} = {k} . {k} * {n} = {k * n} . {k * n} + {more} = {k * n + more}"
    return make_problem(text, k * n + more, steps, f"Rational({n},{d})*{whole}+{more}")


def _fraction_sum_of_product(a: int, b: int, c: int, d: int, e: int) -> MathProblem:
    value = Fraction(a, b) + Fraction(c, d) * e
    steps = f"{c} * {e} = {c * e} . {a} * {d} + {c * e} * {b} = {a * d + c * e * b} . {a * d + c * e * b} / {b * d} = {value}"
    formal = f"Rational({a},{b})+Rational({c},{d})*{e}"
    return make_problem(f"Compute {a}/{b} + {c}/{d} * {e}.", to_latex(value), steps, formal)


def _taken_from(x: int, a: int, left: int) -> MathProblem:
    total = a * x + left
    steps = f"{total} - ({left}) = {a * x} . {a * x} / {a} = {x}"
    return make_problem(f"Solve {total} - {a}x = {left} for x.", x, steps, f"solve({total}-{a}*x-({left}),x)[0]")


def _two_brackets(a: int, more: int, b: int, d: int) -> MathProblem:
    c = a + more
    value = Fraction(a * b - c * d, more)
    text = f"Solve {a}(x {format_constant(b)}) = {c}(x {format_constant(d)}) for x."
    steps = f"{c} - {a} = {more} . {a * b} - ({c * d}) = {a * b - c * d} . {a * b - c * d} / {more} = {value}"
    return make_problem(text, to_latex(value), steps, f"solve({a}*(x+({b}))-{c}*(x+({d})),x)[0]")


def _times_the_other(y: int, k: int) -> MathProblem:
    total = k * y + y
    text = f"Solve x + y = {total} and x = {k}y. What is x?"
    steps = f"{k} + 1 = {k + 1} . {total} / {k + 1} = {y} . {k} * {y} = {k * y}"
    return make_problem(text, k * y, steps, f"solve([x+y-{total},x-{k}*y],[x,y])[x]")


def _put_in(x: int, a: int, b: int, c: int, d: int) -> MathProblem:
    y = a * x + b
    total = c * x + d * y
    text = f"Solve y = {a}x {format_constant(b)} and {c}x {format_term(d, 'y')} = {total}. Give the answer as (x, y)."
    steps = (
        f"{c} + {d} * {a} = {c + d * a} . {total} - ({d * b}) = {total - d * b} . {total - d * b} / {c + d * a} = {x}"
    )
    formal = f"Tuple(*[solve([{a}*x+({b})-y,{c}*x+{d}*y-({total})],[x,y])[k] for k in (x,y)])"
    return make_problem(text, f"({x}, {y})", f"{steps} . {a} * ({x}) {format_constant(b)} = {y}", formal)


def _product_remainder(a: int, b: int, m: int) -> MathProblem:
    value = a * b % m
    text = f"What is the remainder when {a} * {b} is divided by {m}?"
    steps = f"{a} * {b} = {a * b} . {a * b // m} * {m} = {a * b // m * m} . {a * b} - {a * b // m * m} = {value}"
    return make_problem(text, value, steps, f"[r for r in range({m}) if ({a}*{b}-r)%{m}==0][0]")


def _common_divisors(pair: tuple[int, int]) -> MathProblem:
    a, b = pair
    found = [d for d in range(1, a + 1) if a % d == 0 and b % d == 0]
    text = f"How many positive numbers divide both {a} and {b}?"
    steps = f"{' , '.join(map(str, found))} . {len(found)}"
    return make_problem(text, len(found), steps, f"len([d for d in range(1,{a}+1) if {a}%d==0 and {b}%d==0])")


def _not_multiples(a: int, length: int, d: int) -> MathProblem:
    b = a + length
    multiples = b // d - (a - 1) // d
    value = length + 1 - multiples
    text = f"How many whole numbers from {a} to {b} are not divisible by {d}?"
    steps = (
        f"{b} - {a} + 1 = {length + 1} . {b // d} - {(a - 1) // d} = {multiples} . {length + 1} - {multiples} = {value}"
    )
    return make_problem(text, value, steps, f"len([k for k in range({a},{b}+1) if k%{d}])")


def _rows_of(n: int, k: int, colours: tuple[str, str]) -> MathProblem:
    one, other = colours
    value = perm(n, k) * 2**k
    text = (
        f"In how many different orders can {k} of {n} players be placed in a row, each with a {one} or a {other} ball?"
    )
    factors = " * ".join(str(n - at) for at in range(k))
    steps = f"{factors} = {perm(n, k)} . 2 ^ {k} = {2**k} . {perm(n, k)} * {2**k} = {value}"
    return make_problem(text, value, steps, f"ff({n},{k})*2**{k}")


def _width_of(a: int, b: int) -> MathProblem:
    text = f"A rectangle with area {a * b} is {a} cm long. What is its perimeter?"
    steps = f"{a * b} / {a} = {b} . {a} + {b} = {a + b} . 2 * {a + b} = {2 * (a + b)}"
    return make_problem(text, 2 * (a + b), steps, f"2*({a}+Rational({a * b},{a}))")


def _box(a: int, b: int, c: int) -> MathProblem:
    value = 2 * (a * b + b * c + a * c)
    text = f"A box is {a} cm long, {b} cm wide and {c} cm high. What is the area of all its sides?"
    steps = f"{a} * {b} = {a * b} . {b} * {c} = {b * c} . {a} * {c} = {a * c} . 2 * {a * b + b * c + a * c} = {value}"
    return make_problem(text, value, steps, f"{a}*{b}+{b}*{c}+{a}*{c}+{a}*{b}+{b}*{c}+{a}*{c}")


def _which_term(a: int, d: int, n: int) -> MathProblem:
    value = a + (n - 1) * d
    text = f"A sequence starts with {a} and grows by {d} each time. Which term is {value}?"
    steps = f"{value} - {a} = {value - a} . {value - a} / {d} = {n - 1} . {n - 1} + 1 = {n}"
    return make_problem(text, n, steps, f"[n for n in range(1,200) if {a}+(n-1)*{d}=={value}][0]")


def _geometric_term(a: int, r: int, n: int) -> MathProblem:
    value = a * r ** (n - 1)
    text = f"A sequence starts with {a} and every number is {r} times the one before. What is term number {n}?"
    steps = f"{n} - 1 = {n - 1} . {r} ^ {n - 1} = {r ** (n - 1)} . {a} * {r ** (n - 1)} = {value}"
    return make_problem(text, value, steps, f"[{a}*{r}**k for k in range({n})][-1]")


_SIGNED = (*range(-12, 0), *range(1, 13))
COLOURS = (("red", "blue"), ("green", "white"), ("red", "white"), ("blue", "green"))


def _make_levels(second: Form[MathProblem], fourth: Form[MathProblem]) -> tuple[tuple[Form[MathProblem], ...], ...]:
    return (), (second,), (), (fourth,), ()


UNSEEN_LEVELS: dict[str, Levels] = {
    "arithmetic": _make_levels(
        Form((NAMES, THINGS, range(4, 13), range(6, 16), range(2, 20)), _boxes_and_more),
        Form((range(11, 60), range(7, 40), range(20, 60), range(2, 19), range(5, 60)), _brackets_less),
    ),
    "fractions": _make_levels(
        Form((range(3, 40), range(3, 13), range(1, 12), range(2, 60)), _fraction_of_more),
        Form((range(1, 12), range(5, 16), range(1, 12), range(5, 16), range(2, 12)), _fraction_sum_of_product),
    ),
    "linear equations": _make_levels(
        Form((range(2, 30), range(2, 13), range(-20, 40)), _taken_from),
        Form((range(2, 10), range(1, 9), _SIGNED, _SIGNED), _two_brackets),
    ),
    "systems": _make_levels(
        Form((range(2, 60), range(2, 12)), _times_the_other),
        Form((range(-9, 10), range(2, 9), _SIGNED, range(2, 9), range(2, 9)), _put_in),
    ),
    "number theory": _make_levels(
        Form((range(11, 60), range(11, 60), range(5, 30)), _product_remainder),
        Form((SHARING_SMALL,), _common_divisors),
    ),
    "counting": _make_levels(
        Form((range(5, 90), range(20, 100), range(3, 12)), _not_multiples),
        Form((range(5, 40), range(3, 6), COLOURS), _rows_of),
    ),
    "geometry": _make_levels(
        Form((range(3, 60), range(2, 50)), _width_of),
        Form((range(2, 40), range(2, 40), range(2, 40)), _box),
    ),
    "series": _make_levels(
        Form((range(2, 60), range(3, 25), range(8, 40)), _which_term),
        Form((range(1, 300), range(2, 5), range(4, 9)), _geometric_term),
    ),
}
UNSEEN_WORDS = split_words("plus not or ball all sides high Which number positive")
