"""Mathematics for very small models: level 1, numbers below 100, one or two steps, short regular sentences.

A very small model learns sums, differences and products as facts. The forms share some hundred facts and combine them in
thousands of ways. So an unseen problem is made of steps that were seen, and training on some problems helps with others.
"""

from __future__ import annotations

from math import gcd, lcm

from fedagentgym.envs.reasoning.generators.problems import Form, MathProblem, make_problem, split_words

SMALL = range(20)
UNITS = range(10)
ONES = range(1, 10)
DIGIT = range(2, 10)
POSITIVE = range(1, 20)
DESCENDING = tuple((a, b) for a in SMALL for b in range(a + 1))
BELOW_20 = tuple((a, b) for a in SMALL for b in UNITS if a + b < 20)
THREE_BELOW_20 = tuple((a, b, c) for a in SMALL for b in UNITS for c in UNITS if a + b + c < 20)
UP_AND_DOWN = tuple((x, a, b) for x, a in BELOW_20 for b in range(min(x + a, 9) + 1))
PRODUCTS = tuple((a, b) for a in DIGIT for b in DIGIT if a * b < 20)
NEAR = tuple((x, y) for x in SMALL for y in range(x) if x + y < 20 and x - y < 10)
SAME_BELOW = tuple((a, b, d) for d in range(3, 20) for a in range(1, min(d, 10)) for b in range(1, min(d, 10)))
SAME_BELOW_LESS = tuple((a, b, d) for a, b, d in SAME_BELOW if b < a)
TRIANGLES = tuple((a, b, c) for a in DIGIT for b in DIGIT for c in DIGIT if 2 * max(a, b, c) < a + b + c)
CHOICES = (
    ("hats", "coats"),
    ("cups", "plates"),
    ("pens", "books"),
    ("soups", "cakes"),
    ("shirts", "shoes"),
    ("cats", "dogs"),
    ("rings", "bags"),
    ("maps", "boats"),
)


def _add(a: int, b: int) -> MathProblem:
    return make_problem(f"What is {a} + {b} ?", a + b, f"{a} + {b} = {a + b}", f"{a}+{b}")


def _subtract(pair: tuple[int, int]) -> MathProblem:
    a, b = pair
    return make_problem(f"What is {a} - {b} ?", a - b, f"{a} - {b} = {a - b}", f"{a}-{b}")


def _add_twice(a: int, b: int, c: int) -> MathProblem:
    steps = f"{a} + {b} = {a + b} . {a + b} + {c} = {a + b + c}"
    return make_problem(f"What is {a} + {b} + {c} ?", a + b + c, steps, f"{a}+{b}+{c}")


def _subtract_add(pair: tuple[int, int], c: int) -> MathProblem:
    a, b = pair
    steps = f"{a} - {b} = {a - b} . {a - b} + {c} = {a - b + c}"
    return make_problem(f"What is {a} - {b} + {c} ?", a - b + c, steps, f"{a}-{b}+{c}")


def _multiply_add(pair: tuple[int, int], c: int) -> MathProblem:
    a, b = pair
    steps = f"{a} * {b} = {a * b} . {a * b} + {c} = {a * b + c}"
    return make_problem(f"What is {a} * {b} + {c} ?", a * b + c, steps, f"{a}*{b}+{c}")


def _add_fractions(parts: tuple[int, int, int]) -> MathProblem:
    a, b, d = parts
    text = f"What is {a} / {d} + {b} / {d} ?"
    return make_problem(text, f"{a + b}/{d}", f"{a} + {b} = {a + b}", f"Rational({a},{d})+Rational({b},{d})")


def _subtract_fractions(parts: tuple[int, int, int]) -> MathProblem:
    a, b, d = parts
    text = f"What is {a} / {d} - {b} / {d} ?"
    return make_problem(text, f"{a - b}/{d}", f"{a} - {b} = {a - b}", f"Rational({a},{d})-Rational({b},{d})")


def _equation_sum(pair: tuple[int, int]) -> MathProblem:
    x, a = pair
    text = f"x + {a} = {x + a} . What is x ?"
    return make_problem(text, x, f"{x + a} - {a} = {x}", f"solve(x+{a}-{x + a},x)[0]")


def _equation_difference(x: int, a: int) -> MathProblem:
    text = f"x - {a} = {x} . What is x ?"
    return make_problem(text, x + a, f"{x} + {a} = {x + a}", f"solve(x-{a}-{x},x)[0]")


def _equation_product(x: int, a: int) -> MathProblem:
    return make_problem(f"{a} * x = {a * x} . What is x ?", x, f"{a * x} / {a} = {x}", f"solve({a}*x-{a * x},x)[0]")


def _equation_two_sums(parts: tuple[int, int, int]) -> MathProblem:
    x, a, b = parts
    total = x + a + b
    steps = f"{total} - {b} = {x + a} . {x + a} - {a} = {x}"
    return make_problem(f"x + {a} + {b} = {total} . What is x ?", x, steps, f"solve(x+{a}+{b}-{total},x)[0]")


def _equation_up_and_down(parts: tuple[int, int, int]) -> MathProblem:
    x, a, b = parts
    total = x + a - b
    steps = f"{total} + {b} = {x + a} . {x + a} - {a} = {x}"
    return make_problem(f"x + {a} - {b} = {total} . What is x ?", x, steps, f"solve(x+{a}-{b}-{total},x)[0]")


def _equation_both(pair: tuple[int, int], b: int) -> MathProblem:
    a, x = pair
    total = a * x + b
    text = f"{a} * x + {b} = {total} . What is x ?"
    return make_problem(text, x, f"{total} - {b} = {a * x} . {a * x} / {a} = {x}", f"solve({a}*x+{b}-{total},x)[0]")


def _system_sum_difference(pair: tuple[int, int]) -> MathProblem:
    x, y = pair
    text = f"x + y = {x + y} and x - y = {x - y} . What is x ?"
    steps = f"{x + y} + {x - y} = {2 * x} . {2 * x} / 2 = {x}"
    return make_problem(text, x, steps, f"solve([x+y-{x + y},x-y-{x - y}],[x,y])[x]")


def _system_given_sum(pair: tuple[int, int]) -> MathProblem:
    y, x = pair
    text = f"x + y = {x + y} and x = {x} . What is y ?"
    return make_problem(text, y, f"{x + y} - {x} = {y}", f"solve([x+y-{x + y},x-{x}],[x,y])[y]")


def _system_chain(x: int, a: int) -> MathProblem:
    text = f"x = {x} and y = x + {a} . What is x + y ?"
    steps = f"{x} + {a} = {x + a} . {x} + {x + a} = {2 * x + a}"
    return make_problem(text, 2 * x + a, steps, f"(x+y).subs(solve([x-{x},y-x-{a}],[x,y]))")


def _system_up_up(x: int, a: int, b: int) -> MathProblem:
    text = f"x = {x} and y = x + {a} and z = y + {b} . What is z ?"
    steps = f"{x} + {a} = {x + a} . {x + a} + {b} = {x + a + b}"
    return make_problem(text, x + a + b, steps, f"solve([x-{x},y-x-{a},z-y-{b}],[x,y,z])[z]")


def _system_up_down(parts: tuple[int, int, int]) -> MathProblem:
    x, a, b = parts
    text = f"x = {x} and y = x + {a} and z = y - {b} . What is z ?"
    steps = f"{x} + {a} = {x + a} . {x + a} - {b} = {x + a - b}"
    return make_problem(text, x + a - b, steps, f"solve([x-{x},y-x-{a},z-y+{b}],[x,y,z])[z]")


def _remainder(a: int, b: int) -> MathProblem:
    text = f"What is the remainder of {a} / {b} ?"
    steps = f"{a // b} * {b} = {a // b * b} . {a} - {a // b * b} = {a % b}"
    return make_problem(text, a % b, steps, f"[r for r in range({b}) if ({a}-r)%{b}==0][0]")


def _remainder_of_sum(a: int, b: int, c: int) -> MathProblem:
    total = a + b
    text = f"What is the remainder of ( {a} + {b} ) / {c} ?"
    below = total // c * c
    steps = f"{a} + {b} = {total} . {total} - {below} = {total - below}"
    return make_problem(text, total % c, steps, f"[r for r in range({c}) if ({a}+{b}-r)%{c}==0][0]")


def _divisor(a: int, b: int) -> MathProblem:
    g = gcd(a, b)
    text = f"What is the greatest common divisor of {a} and {b} ?"
    steps = f"{a} / {g} = {a // g} . {b} / {g} = {b // g}"
    return make_problem(text, g, steps, f"max(g for g in range(1,20) if {a}%g==0 and {b}%g==0)")


def _multiple(a: int, b: int) -> MathProblem:
    m = lcm(a, b)
    text = f"What is the least common multiple of {a} and {b} ?"
    steps = f"{m} / {a} = {m // a} . {m} / {b} = {m // b}"
    return make_problem(text, m, steps, f"min(m for m in range(1,400) if m%{a}==0 and m%{b}==0)")


def _next_multiple(a: int, b: int) -> MathProblem:
    found = (a // b + 1) * b
    text = f"What is the first multiple of {b} above {a} ?"
    return make_problem(text, found, f"{found // b} * {b} = {found}", f"min(m for m in range({a}+1,60) if m%{b}==0)")


def _pairs(a: int, b: int, things: tuple[str, str]) -> MathProblem:
    one, other = things
    text = f"There are {a} {one} and {b} {other} . How many ways to pick one of each ?"
    return make_problem(text, a * b, f"{a} * {b} = {a * b}", f"len([1 for i in range({a}) for j in range({b})])")


def _either(a: int, b: int, things: tuple[str, str]) -> MathProblem:
    one, other = things
    text = f"There are {a} {one} and {b} {other} . How many ways to pick only one ?"
    return make_problem(text, a + b, f"{a} + {b} = {a + b}", f"len([*range({a}),*range({b})])")


def _how_many(pair: tuple[int, int]) -> MathProblem:
    b, a = pair
    text = f"How many numbers are there from {a} to {b} ?"
    steps = f"{b} - {a} = {b - a} . {b - a} + 1 = {b - a + 1}"
    return make_problem(text, b - a + 1, steps, f"len(range({a},{b}+1))")


def _perimeter(a: int, b: int) -> MathProblem:
    text = f"A rectangle is {a} by {b} . What is its perimeter ?"
    steps = f"{a} + {b} = {a + b} . 2 * {a + b} = {2 * (a + b)}"
    return make_problem(text, 2 * (a + b), steps, f"{a}+{b}+{a}+{b}")


def _area(a: int, b: int) -> MathProblem:
    text = f"A rectangle is {a} by {b} . What is its area ?"
    return make_problem(text, a * b, f"{a} * {b} = {a * b}", f"len([1 for i in range({a}) for j in range({b})])")


def _path(a: int, b: int, c: int) -> MathProblem:
    text = f"A path has parts of {a} , {b} and {c} . What is its length ?"
    steps = f"{a} + {b} = {a + b} . {a + b} + {c} = {a + b + c}"
    return make_problem(text, a + b + c, steps, f"{a}+{b}+{c}")


def _third_side(sides: tuple[int, int, int]) -> MathProblem:
    a, b, c = sides
    text = f"A triangle has sides {a} , {b} and x . Its perimeter is {a + b + c} . What is x ?"
    steps = f"{a} + {b} = {a + b} . {a + b + c} - {a + b} = {c}"
    return make_problem(text, c, steps, f"solve({a}+{b}+x-{a + b + c},x)[0]")


def _triangle(sides: tuple[int, int, int]) -> MathProblem:
    a, b, c = sides
    text = f"A triangle has sides {a} , {b} and {c} . What is its perimeter ?"
    steps = f"{a} + {b} = {a + b} . {a + b} + {c} = {a + b + c}"
    return make_problem(text, a + b + c, steps, f"{a}+{b}+{c}")


def _series_up(a: int, d: int) -> MathProblem:
    terms = [a + d * k for k in range(4)]
    text = f"What comes next : {terms[0]} , {terms[1]} , {terms[2]} ?"
    steps = f"{terms[1]} - {terms[0]} = {d} . {terms[2]} + {d} = {terms[3]}"
    return make_problem(text, terms[3], steps, f"interpolate([{terms[0]},{terms[1]},{terms[2]}],x).subs(x,4)")


def _series_down(a: int, d: int) -> MathProblem:
    terms = [a + d * k for k in (3, 2, 1, 0)]
    text = f"What comes next : {terms[0]} , {terms[1]} , {terms[2]} ?"
    steps = f"{terms[0]} - {terms[1]} = {d} . {terms[2]} - {d} = {terms[3]}"
    return make_problem(text, terms[3], steps, f"interpolate([{terms[0]},{terms[1]},{terms[2]}],x).subs(x,4)")


def _series_more(a: int, d: int, e: int) -> MathProblem:
    text = f"The first number is {a} , the next is {d} more and the last is {e} more . What is the last ?"
    steps = f"{a} + {d} = {a + d} . {a + d} + {e} = {a + d + e}"
    return make_problem(text, a + d + e, steps, f"sum([{a},{d},{e}])")


def _series_sum(a: int, d: int) -> MathProblem:
    terms = [a, a + d, a + 2 * d]
    text = f"What is the sum of {terms[0]} , {terms[1]} and {terms[2]} ?"
    steps = f"{terms[0]} + {terms[1]} = {2 * a + d} . {2 * a + d} + {terms[2]} = {sum(terms)}"
    return make_problem(text, sum(terms), steps, f"summation({a}+{d}*x,(x,0,2))")


TINY_FORMS: dict[str, tuple[Form[MathProblem], ...]] = {
    "arithmetic": (
        Form((SMALL, UNITS), _add),
        Form((DESCENDING,), _subtract),
        Form((DESCENDING, range(4)), _subtract_add),
        Form((UNITS, UNITS, UNITS), _add_twice),
        Form((PRODUCTS, ONES), _multiply_add),
    ),
    "fractions": (Form((SAME_BELOW,), _add_fractions), Form((SAME_BELOW_LESS,), _subtract_fractions)),
    "linear equations": (
        Form((BELOW_20,), _equation_sum),
        Form((UNITS, UNITS), _equation_difference),
        Form((UNITS, DIGIT), _equation_product),
        Form((PRODUCTS, ONES), _equation_both),
        Form((THREE_BELOW_20,), _equation_two_sums),
        Form((UP_AND_DOWN,), _equation_up_and_down),
    ),
    "systems": (
        Form((NEAR,), _system_sum_difference),
        Form((BELOW_20,), _system_given_sum),
        Form((UNITS, ONES), _system_chain),
        Form((UNITS, ONES, ONES), _system_up_up),
        Form((UP_AND_DOWN,), _system_up_down),
    ),
    "number theory": (
        Form((SMALL, DIGIT), _remainder),
        Form((POSITIVE, POSITIVE), _divisor),
        Form((DIGIT, DIGIT), _multiple),
        Form((SMALL, DIGIT), _next_multiple),
        Form((UNITS, UNITS, DIGIT), _remainder_of_sum),
    ),
    "counting": (
        Form((DIGIT, DIGIT, CHOICES), _pairs),
        Form((DIGIT, DIGIT, CHOICES), _either),
        Form((DESCENDING,), _how_many),
    ),
    "geometry": (
        Form((ONES, ONES), _perimeter),
        Form((DIGIT, DIGIT), _area),
        Form((ONES, ONES, ONES), _path),
        Form((TRIANGLES,), _triangle),
        Form((TRIANGLES,), _third_side),
    ),
    "series": (
        Form((UNITS, DIGIT), _series_up),
        Form((UNITS, DIGIT), _series_down),
        Form((UNITS, ONES), _series_sum),
        Form((UNITS, ONES, ONES), _series_more),
    ),
}

TINY_WORDS = split_words(
    """What is the remainder of greatest common divisor least multiple first above x y and There are hats coats cups
plates pens books soups cakes shirts shoes cats dogs rings bags maps boats How many ways to pick one each numbers there from A
rectangle by its perimeter area triangle has sides comes next sum z only path parts length Its The number more last"""
)
