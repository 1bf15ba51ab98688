"""Number theory, counting and geometry at five levels, and the table of all subjects of generated mathematics."""

from __future__ import annotations

from fractions import Fraction
from math import comb, factorial, gcd, lcm

from fedagentgym.envs.reasoning.generators.math_numbers import (
    ALGEBRA_WORDS,
    ARITHMETIC,
    EQUATIONS,
    FRACTIONS,
    NAMES,
    NUMBER_WORDS,
    SERIES,
    SYSTEMS,
    to_latex,
)
from fedagentgym.envs.reasoning.generators.problems import Form, MathProblem, make_problem, split_words

# ---- number theory --------------------------------------------------------------------------------------------------


def _remainder(a: int, b: int) -> MathProblem:
    steps = f"{a // b} * {b} = {a // b * b} . {a} - {a // b * b} = {a % b}"
    return make_problem(
        f"What is the remainder when {a} is divided by {b}?",
        a % b,
        steps,
        f"[r for r in range({b}) if ({a}-r)%{b}==0][0]",
    )


SHARING = tuple((a, b) for a in range(24, 180) for b in range(a + 1, 180) if gcd(a, b) > 1)
SHARING_SMALL = tuple((a, b) for a in range(8, 140) for b in range(a + 1, 140) if gcd(a, b) > 1)


def _greatest_divisor(pair: tuple[int, int]) -> MathProblem:
    one, other = pair
    value = gcd(one, other)
    steps, left, right = [], max(one, other), min(one, other)
    while right:
        steps.append(f"{left} = {left // right} * {right} + {left % right}")
        left, right = right, left % right
    formal = f"max(d for d in range(1,{min(one, other)}+1) if {one}%d==0 and {other}%d==0)"
    return make_problem(f"What is the greatest common divisor of {one} and {other}?", value, " . ".join(steps), formal)


def _least_multiple(pair: tuple[int, int]) -> MathProblem:
    one, other = pair
    value = lcm(one, other)
    text = f"What is the smallest positive number that both {one} and {other} divide?"
    steps = f"gcd = {gcd(one, other)} . {one} * {other} / {gcd(one, other)} = {value}"
    return make_problem(text, value, steps, f"min(m for m in range({one},{one * other}+1,{one}) if m%{other}==0)")


def _power_remainder(a: int, n: int, m: int) -> MathProblem:
    value = pow(a, n, m)
    text = f"What is the remainder when {a}^{{{n}}} is divided by {m}?"
    powers = " . ".join(f"{a} ^ {k} = {pow(a, k, m)} mod {m}" for k in (1, 2, 3, 4))
    return make_problem(text, value, f"{powers} . {a} ^ {n} = {value} mod {m}", f"{a}**{n}%{m}")


MODULI = tuple((m, n) for m in range(7, 20) for n in range(m + 1, 24) if gcd(m, n) == 1)


def _chinese(moduli: tuple[int, int], near: int) -> MathProblem:
    m, n = moduli
    r, s, start = near % m, near % n, near // 50 * 50
    value = next(k for k in range(start, start + m * n) if k % m == r and k % n == s)
    text = f"What is the smallest whole number not below {start} that leaves the remainder {r} when divided by {m} and {s} "
    text += f"when divided by {n}?"
    steps = f"{value} = {value // m} * {m} + {r} . {value} = {value // n} * {n} + {s}"
    return make_problem(
        text, value, steps, f"min(k for k in range({start},{start}+{m * n}) if k%{m}=={r} and k%{n}=={s})"
    )


# ---- counting -------------------------------------------------------------------------------------------------------


def _outfits(name: str, a: int, b: int) -> MathProblem:
    text = (
        f"{name} has {a} shirts and {b} pairs of shoes. How many different outfits of one shirt and one pair are there?"
    )
    return make_problem(text, a * b, f"{a} * {b} = {a * b}", f"len([1 for i in range({a}) for j in range({b})])")


def _multiples_between(a: int, length: int, d: int) -> MathProblem:
    b = a + length
    value = b // d - (a - 1) // d
    text = f"How many whole numbers from {a} to {b} are divisible by {d}?"
    steps = f"{b} / {d} = {b // d} . {a - 1} / {d} = {(a - 1) // d} . {b // d} - {(a - 1) // d} = {value}"
    return make_problem(text, value, steps, f"len([k for k in range({a},{b}+1) if k%{d}==0])")


def _committee(name: str, n: int, k: int, m: int, j: int) -> MathProblem:
    value = comb(n, k) * comb(m, j)
    text = f"{name} forms a team of {k} of {n} players and {j} of {m} helpers. How many different teams are possible?"
    steps = f"C({n},{k}) = {comb(n, k)} . C({m},{j}) = {comb(m, j)} . {comb(n, k)} * {comb(m, j)} = {value}"
    return make_problem(text, value, steps, f"binomial({n},{k})*binomial({m},{j})")


def _arrangements(a: int, b: int, c: int, d: int) -> MathProblem:
    n = a + b + c + d
    value = factorial(n) // (factorial(a) * factorial(b) * factorial(c) * factorial(d))
    text = f"In how many different orders can {a} red, {b} blue, {c} green and {d} white balls be placed in a row?"
    steps = f"{a} + {b} + {c} + {d} = {n} . {n} ! = {factorial(n)}"
    for count in (a, b, c, d):
        steps += f" . {count} ! = {factorial(count)}"
    formal = f"prod(binomial(sum(({a},{b},{c},{d})[:i+1]),({a},{b},{c},{d})[i]) for i in range(4))"
    return make_problem(text, value, f"{steps} . {value}", formal)


def _inclusion(n: int, a: int, more: int, c: int) -> MathProblem:
    b, total = a + more, 100 * n
    value = total - total // a - total // b - total // c
    value += total // lcm(a, b) + total // lcm(a, c) + total // lcm(b, c) - total // lcm(a, b, c)
    text = f"How many whole numbers from 1 to {total} are divisible by none of {a}, {b} and {c}?"
    parts = f"{total // a} + {total // b} + {total // c} - {total // lcm(a, b)} - {total // lcm(a, c)} - {total // lcm(b, c)}"
    steps = f"{parts} + {total // lcm(a, b, c)} = {total - value} . {total} - {total - value} = {value}"
    return make_problem(text, value, steps, f"len([k for k in range(1,{total}+1) if k%{a} and k%{b} and k%{c}])")


# ---- geometry -------------------------------------------------------------------------------------------------------

TRIPLES = ((3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29), (9, 40, 41), (12, 35, 37), (11, 60, 61))


def _rectangle(ask: str, a: int, b: int) -> MathProblem:
    value = a * b if ask == "area" else 2 * (a + b)
    steps = f"{a} * {b} = {value}" if ask == "area" else f"{a} + {b} = {a + b} . 2 * {a + b} = {value}"
    text = f"A rectangle is {a} cm long and {b} cm wide. What is its {ask}?"
    return make_problem(
        text, value, steps, f"{a}*{b}" if ask == "area" else f"Polygon((0,0),({a},0),({a},{b}),(0,{b})).perimeter"
    )


def _triangle_area(base: int, height: int, shift: int) -> MathProblem:
    value = Fraction(base * height, 2)
    text = f"A triangle has the corners (0, 0), ({base}, 0) and ({shift}, {height}). What is its area?"
    steps = f"{base} * {height} = {base * height} . {base * height} / 2 = {value}"
    return make_problem(text, to_latex(value), steps, f"Triangle((0,0),({base},0),({shift},{height})).area")


def _right_triangle(triple: tuple[int, int, int], scale: int, ask: int, name: str) -> MathProblem:
    a, b, c = (side * scale for side in triple)
    sides, square = (a, b, c), (c * c - b * b, c * c - a * a, a * a + b * b)[ask]
    if ask == 2:
        text = f"{name} walks {a} m north and then {b} m east. How far is {name} from the start, in m?"
        steps, formal = (
            f"{a} * {a} + {b} * {b} = {square} . sqrt {square} = {c}",
            f"Point(0,0).distance(Point({b},{a}))",
        )
    else:
        known = b if ask == 0 else a
        text = f"{name} leans a ladder of {c} dm against a wall. Its foot is {known} dm from the wall. "
        text += "How high does it reach, in dm?"
        steps, formal = (
            f"{c} * {c} - {known} * {known} = {square} . sqrt {square} = {sides[ask]}",
            f"sqrt({c}**2-{known}**2)",
        )
    return make_problem(text, sides[ask], steps, formal)


def _circle(ask: str, r: int, k: int) -> MathProblem:
    value = Fraction(k, 360)
    if ask == "area":
        share = value * r * r
        formal = f"pi*{r}**2*Rational({k},360)"
    else:
        share = value * 2 * r
        formal = f"2*pi*{r}*Rational({k},360)"
    what = "area of a sector" if ask == "area" else "length of an arc"
    text = f"What is the {what} of {k} degrees in a circle of radius {r}? Answer in terms of $\\pi$."
    gold = to_latex(share) if share.denominator > 1 else ("" if share == 1 else str(share))
    steps = f"{k} / 360 = {value} . {value} * {'' if ask == 'area' else '2 * '}{r}{f' * {r}' if ask == 'area' else ''} = {share}"
    return make_problem(text, f"{gold}\\pi", steps, formal)


def _quadrilateral(a: int, b: int, c: int, d: int, e: int) -> MathProblem:
    x, y, z = a + b, a + c, d + e
    corners = [(0, 0), (x, -e), (x + b, y), (-d, z)]
    twice = sum(p[0] * q[1] - q[0] * p[1] for p, q in zip(corners, corners[1:] + corners[:1], strict=True))
    listed = ", ".join(f"({p}, {q})" for p, q in corners)
    text = f"What is the area of the quadrilateral with the corners {listed}, in this order?"
    formal = f"Polygon({listed}).area"
    products = " + ".join(
        f"({p[0] * q[1] - q[0] * p[1]})" for p, q in zip(corners, corners[1:] + corners[:1], strict=True)
    )
    return make_problem(
        text,
        to_latex(Fraction(abs(twice), 2)),
        f"{products} = {twice} . {abs(twice)} / 2 = {Fraction(abs(twice), 2)}",
        formal,
    )


NUMBER_THEORY = (
    (Form((range(30, 500), range(3, 18)), _remainder),),
    (Form((SHARING,), _greatest_divisor),),
    (Form((SHARING_SMALL,), _least_multiple),),
    (Form((range(2, 13), range(5, 40), range(7, 30)), _power_remainder),),
    (Form((MODULI, range(50, 1_050)), _chinese),),
)
COUNTING = (
    (Form((NAMES, range(3, 25), range(2, 20)), _outfits),),
    (Form((range(5, 90), range(20, 100), range(3, 12)), _multiples_between),),
    (Form((NAMES, range(5, 12), range(2, 5), range(4, 10), range(1, 4)), _committee),),
    (Form((range(1, 9), range(1, 9), range(1, 9), range(1, 9)), _arrangements),),
    (Form((range(1, 40), range(2, 12), range(1, 8), range(3, 14)), _inclusion),),
)
GEOMETRY = (
    (Form((("area", "perimeter"), range(3, 60), range(2, 50)), _rectangle),),
    (Form((range(3, 40), range(2, 40), range(12)), _triangle_area),),
    (Form((TRIPLES, range(1, 15), range(3), NAMES), _right_triangle),),
    (Form((("area", "arc"), range(2, 80), tuple(range(15, 360, 15))), _circle),),
    (Form((range(1, 12), range(1, 9), range(1, 12), range(1, 6), range(6)), _quadrilateral),),
)
DISCRETE_WORDS = split_words(
    """What is the remainder when divided by greatest common divisor of and smallest positive number that both divide
whole not below leaves has shirts pairs shoes How many different outfits one shirt pair are there numbers from to divisible
forms a team players helpers teams possible In how orders can red blue green white balls be placed in row none rectangle cm
long wide its area perimeter triangle corners walks m north then east far start leans ladder dm against wall Its foot high does
it reach sector degrees circle radius Answer terms length arc quadrilateral with this order mod gcd sqrt"""
)


Levels = tuple[tuple[Form[MathProblem], ...], ...]
LEVEL_FORMS: dict[str, Levels] = {
    "arithmetic": ARITHMETIC,
    "fractions": FRACTIONS,
    "linear equations": EQUATIONS,
    "systems": SYSTEMS,
    "number theory": NUMBER_THEORY,
    "counting": COUNTING,
    "geometry": GEOMETRY,
    "series": SERIES,
}
LEVEL_WORDS = (*NUMBER_WORDS, *ALGEBRA_WORDS, *DISCRETE_WORDS)
