"""Arithmetic, fractions, series, linear equations and systems at five levels."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from fedagentgym.envs.reasoning.generators.problems import Form, MathProblem, make_problem, split_words

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon", "Kim", "Leo")
THINGS = ("apples", "books", "stamps", "marbles", "tickets", "pencils", "coins", "shells", "cards", "buttons")


def to_latex(value: Fraction | int) -> str:
    """A gold for a rational number: a whole number or a LaTeX fraction."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def _story_sum(name: str, thing: str, a: int, b: int) -> MathProblem:
    text = f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?"
    return make_problem(text, a + b, f"{a} + {b} = {a + b}", f"{a}+{b}")


def _story_rows(name: str, thing: str, rows: int, each: int, gone: int) -> MathProblem:
    total = rows * each
    text = f"{name} puts {thing} in {rows} boxes, {each} in each box, and gives {gone} of them away. How many {thing} are left?"
    steps = f"{rows} * {each} = {total} . {total} - {gone} = {total - gone}"
    return make_problem(text, total - gone, steps, f"{rows}*{each}-{gone}")


def _precedence(a: int, b: int, c: int, d: int) -> MathProblem:
    value = a + b * (c - d)
    steps = f"{c} - {d} = {c - d} . {b} * {c - d} = {b * (c - d)} . {a} + {b * (c - d)} = {value}"
    return make_problem(f"Compute {a} + {b} * ({c} - {d}).", value, steps, f"{a}+{b}*({c}-{d})")


def _shopping(name: str, a: int, price: int, b: int, other: int, extra: int) -> MathProblem:
    spent = a * price + b * other
    text = (
        f"{name} buys {a} notebooks for {price} coins each and {b} pens for {other} coins each, "
        f"and pays with {spent + extra} coins. How many coins does {name} get back?"
    )
    steps = f"{a} * {price} = {a * price} . {b} * {other} = {b * other} . {a * price} + {b * other} = {spent}"
    steps += f" . {spent + extra} - {spent} = {extra}"
    return make_problem(text, extra, steps, f"{spent + extra}-({a}*{price}+{b}*{other})")


def _brackets(a: int, b: int, c: int, d: int, e: int) -> MathProblem:
    one, other = a * b - c, d + e
    value = one * other
    steps = f"{a} * {b} = {a * b} . {a * b} - {c} = {one} . {d} + {e} = {other} . {one} * {other} = {value}"
    return make_problem(f"Compute ({a} * {b} - {c}) * ({d} + {e}).", value, steps, f"({a}*{b}-{c})*({d}+{e})")


def _percent_chain(price: int, up: int, down: int) -> MathProblem:
    base = price * 100
    raised = Fraction(base * (100 + up), 100)
    final = raised * (100 - down) / 100
    text = f"A price of {base} coins is raised by {up}% and then lowered by {down}%. What is the price now, in coins?"
    steps = f"{base} * {100 + up} / 100 = {raised} . {raised} * {100 - down} / 100 = {final}"
    return make_problem(text, to_latex(final), steps, f"Rational({base}*{100 + up}*{100 - down},10000)")


# ---- fractions ------------------------------------------------------------------------------------------------------


def _fraction_of(k: int, d: int, n: int) -> MathProblem:
    whole = d * k
    value = Fraction(whole * n, d)
    text = f"What is {n}/{d} of {whole}?"
    return make_problem(
        text, to_latex(value), f"{whole} / {d} = {k} . {k} * {n} = {value}", f"Rational({n},{d})*{whole}"
    )


def _fraction_pair(sign: int) -> Callable[[int, int, int, int], MathProblem]:
    def make(a: int, b: int, c: int, d: int) -> MathProblem:
        value = Fraction(a, b) + sign * Fraction(c, d)
        symbol = "+" if sign > 0 else "-"
        over, under = a * d + sign * c * b, b * d
        steps = f"{a} * {d} = {a * d} . {c} * {b} = {c * b} . {a * d} {symbol} {c * b} = {over} . {over} / {under} = {value}"
        formal = f"Rational({a},{b}){symbol}Rational({c},{d})"
        return make_problem(f"Compute {a}/{b} {symbol} {c}/{d}.", to_latex(value), steps, formal)

    return make


def _fraction_product(a: int, b: int, c: int, d: int) -> MathProblem:
    value = Fraction(a, b) / Fraction(c, d)
    steps = f"{a} * {d} = {a * d} . {b} * {c} = {b * c} . {a * d} / {b * c} = {value}"
    return make_problem(f"Divide {a}/{b} by {c}/{d}.", to_latex(value), steps, f"Rational({a},{b})/Rational({c},{d})")


def _fraction_story(name: str, a: int, b: int, c: int, d: int) -> MathProblem:
    left = (1 - Fraction(a, a + b)) * (1 - Fraction(c, c + d))
    text = (
        f"{name} drinks {a}/{a + b} of a full bottle, and later {c}/{c + d} of what is left. "
        "What fraction of the bottle is left then?"
    )
    steps = f"1 - {a}/{a + b} = {b}/{a + b} . 1 - {c}/{c + d} = {d}/{c + d} . {b * d} / {(a + b) * (c + d)} = {left}"
    return make_problem(text, to_latex(left), steps, f"(1-Rational({a},{a + b}))*(1-Rational({c},{c + d}))")


def _fraction_nested(a: int, b: int, c: int, d: int) -> MathProblem:
    inner = b + Fraction(c, d)
    value = a + 1 / inner
    text = f"Write $ {a} + \\frac{{1}}{{{b} + \\frac{{{c}}}{{{d}}}}} $ as one fraction."
    steps = f"{b} * {d} + {c} = {b * d + c} . {d} / {b * d + c} + {a} = {value}"
    return make_problem(text, to_latex(value), steps, f"{a}+1/({b}+Rational({c},{d}))")


# ---- series ---------------------------------------------------------------------------------------------------------


def _next_term(a: int, d: int) -> MathProblem:
    shown = ", ".join(str(a + d * k) for k in range(4))
    text = f"What is the next number of the sequence {shown}, ...?"
    steps = f"{a + d} - {a} = {d} . {a + 3 * d} + {d} = {a + 4 * d}"
    return make_problem(text, a + 4 * d, steps, f"interpolate([{shown}],x).subs(x,5)")


def _nth_term(a: int, d: int, n: int) -> MathProblem:
    value = a + (n - 1) * d
    text = f"A sequence starts with {a} and grows by {d} each time. What is term number {n}?"
    steps = f"{n} - 1 = {n - 1} . {n - 1} * {d} = {(n - 1) * d} . {a} + {(n - 1) * d} = {value}"
    return make_problem(text, value, steps, f"[{a}+k*{d} for k in range({n})][-1]")


def _sum_terms(a: int, d: int, n: int) -> MathProblem:
    last = a + (n - 1) * d
    value = n * (a + last) // 2
    text = f"What is the sum of the first {n} numbers of the sequence {a}, {a + d}, {a + 2 * d}, ...?"
    steps = f"{a} + {n - 1} * {d} = {last} . {a} + {last} = {a + last} . {n} * {a + last} / 2 = {value}"
    return make_problem(text, value, steps, f"sum({a}+k*{d} for k in range({n}))")


def _geometric(a: int, r: int, n: int) -> MathProblem:
    value = a * (r**n - 1) // (r - 1)
    text = f"A sequence starts with {a} and every number is {r} times the one before. What is the sum of the first {n} numbers?"
    steps = f"{r} ^ {n} = {r**n} . {r**n} - 1 = {r**n - 1} . {a} * {r**n - 1} / {r - 1} = {value}"
    return make_problem(text, value, steps, f"sum({a}*{r}**k for k in range({n}))")


def _recurrence(a: int, b: int, p: int, q: int, n: int) -> MathProblem:
    terms = [a, b]
    while len(terms) < n:
        terms.append(p * terms[-1] + q * terms[-2])
    text = (
        f"A sequence starts with {a}, {b}, and every further number is {p} times the one before plus {q} times the one "
        f"before that. What is term number {n}?"
    )
    steps = " . ".join(f"{p} * {terms[k - 1]} + {q} * {terms[k - 2]} = {terms[k]}" for k in range(2, n))
    formal = f"Matrix([[{p},{q}],[1,0]])**{n - 2}*Matrix([{b},{a}])"
    return make_problem(text, terms[-1], steps, f"({formal})[0]")


def _infinite(a: int, p: int, gap: int) -> MathProblem:
    q = p + gap
    value = Fraction(a) / (1 - Fraction(p, q))
    text = f"What is the sum of the infinite geometric series with first term {a} and ratio {p}/{q}?"
    return make_problem(
        text,
        to_latex(value),
        f"1 - {p}/{q} = {1 - Fraction(p, q)} . {a} * {q} / {gap} = {value}",
        f"summation({a}*Rational({p},{q})**k,(k,0,oo))",
    )


_A, _B = range(12, 90), range(10, 60)
ARITHMETIC = (
    (Form((NAMES, THINGS, range(10, 60), range(5, 40)), _story_sum),),
    (Form((NAMES, THINGS, range(4, 13), range(6, 16), range(2, 20)), _story_rows),),
    (Form((_A, range(3, 15), range(15, 40), range(2, 14)), _precedence),),
    (Form((NAMES, range(3, 12), range(12, 40), range(2, 9), range(3, 12), range(1, 30)), _shopping),),
    (
        Form((range(11, 30), range(7, 20), range(5, 60), range(12, 40), range(9, 50)), _brackets),
        Form((range(2, 90), range(4, 51), range(4, 51)), _percent_chain),
    ),
)
_N, _D = range(1, 12), range(5, 16)
FRACTIONS = (
    (Form((range(3, 40), range(3, 13), range(1, 12)), _fraction_of),),
    (Form((_N, _D, _N, _D), _fraction_pair(1)),),
    (Form((_N, _D, _N, _D), _fraction_pair(-1)), Form((_N, _D, _N, _D), _fraction_product)),
    (Form((NAMES, range(1, 7), range(1, 8), range(1, 7), range(1, 8)), _fraction_story),),
    (Form((range(1, 20), range(1, 20), range(1, 12), range(2, 14)), _fraction_nested),),
)
SERIES = (
    (Form((range(1, 90), range(2, 60)), _next_term),),
    (Form((range(2, 60), range(3, 25), range(8, 40)), _nth_term),),
    (Form((range(1, 40), range(2, 15), range(8, 31)), _sum_terms),),
    (Form((range(1, 300), range(2, 5), range(4, 9)), _geometric),),
    (
        Form((range(1, 7), range(1, 7), range(1, 5), range(1, 5), range(5, 9)), _recurrence),
        Form((range(1, 60), range(1, 12), range(1, 12)), _infinite),
    ),
)
NUMBER_WORDS = split_words(
    f"""{" ".join(NAMES + THINGS)} has and gets more How many does have now puts in boxes each box gives of them away
are left Compute buys notebooks for coins pens pays with get back A price is raised by % then lowered What the What's as one
fraction Divide drinks a full bottle later what Write next number sequence starts grows time term sum first numbers every
times before further plus that infinite geometric series ratio"""
)


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
