"""Arithmetic, fractions and series at five levels."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from fedagentgym.envs.reasoning.generators.problem import MathProblem
from fedagentgym.envs.reasoning.generators.space import Form, split_words

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon", "Kim", "Leo")
THINGS = ("apples", "books", "stamps", "marbles", "tickets", "pencils", "coins", "shells", "cards", "buttons")


def make_problem(text: str, answer: object, steps: str, formal: str) -> MathProblem:
    return MathProblem(text, (str(answer),), steps, formal)


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
