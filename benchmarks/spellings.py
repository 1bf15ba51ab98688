"""The verifiers of mathematics on many spellings of right and of wrong answers.

* Spellings of generated answers: each gold is written in another way, and so is a wrong number close to it.
* Listed answers: `tests/envs/verifiers/math_pairs.tsv`, more than half of them wrong answers that look right.
* sympy's formulas: those by which sympy tests its own parser, each graded against its own value and against that of the next
  formula. They come with sympy, and few of them are numbers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from fractions import Fraction
from importlib import import_module
from typing import Any, NamedTuple

from benchmarks import ROOT
from benchmarks.findings import Findings
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.verifiers.math import EXACT, LIBRARY, MathVerifier
from fedagentgym.envs.verifiers.math_exact import Exact, read_value

AROUND = (
    "{}",
    "{}",
    "${}$",
    "$$ {} $$",
    r"\({}\)",
    r"\[ {} \]",
    "`{}`",
    "**{}**",
    "{{{}}}",
    r"\displaystyle {}",
    r"\boxed{{{}}}",
    r"$\mathbf{{{}}}$",
    r"\text{{{}}}",
    " {} .",
    "= {}",
    "x = {}",
    "$y = {}$",
    "The total is {}",
    "the answer is {}.",
    "Final answer: {}",
    "So the result is ${}$.",
    "It is {}",
    r"\approx {}",
    "about {}",
    "####  {}",
    r"\therefore {}",
)
UNITS = (
    "{} cm",
    "{} eggs",
    r"{}\text{{ km/h}}",
    "{} square units",
    r"{}\ \mathrm{{m}}^2",
    "{} dollars",
    r"\${}",
    "{} apples left",
)


def is_decimal(value: Fraction) -> bool:
    return 10**60 % value.denominator == 0


def spell_number(value: Fraction, rng: random.Random) -> str:
    """Another way to write a number."""
    sign = rng.choice("--\u2212\u2013") if value < 0 else rng.choice(("", "", "", "+"))
    whole, (over, under) = abs(value) // 1, (abs(value.numerator), value.denominator)
    factor = rng.choice((1, 1, 2, 3, 10))
    ways = [
        f"{over * factor}/{under * factor}",
        rf"\frac{{{over * factor}}}{{{under * factor}}}",
        rf"\dfrac{{{over}}}{{{under}}}",
    ]
    ways += [
        rf"\tfrac {{{over}}} {{{under}}}",
        f"{over} / {under}",
        rf"\left(\frac{{{over}}}{{{under}}}\right)",
        f"({over})/({under})",
    ]
    if over < 10 and under < 10:
        ways.append(rf"\frac{over}{under}")
    if value.denominator == 1:
        ways += [str(over), str(over), f"{over:,}", f"{over}.0", f"{over}.", rf"{over:,}".replace(",", "{,}")] * 2
        if over >= 10_000:
            ways += [f"{over:,}".replace(",", " "), f"{over:,}".replace(",", r"\,"), f"{over:,}".replace(",", r",\!")]
    elif is_decimal(value):
        shown = f"{float(abs(value)):.12f}".rstrip("0")
        ways += [shown, shown + "0"] if Fraction(shown) == abs(value) else []
        ways += [shown[1:]] if shown.startswith("0.") and Fraction(shown) == abs(value) else []
    elif over / under > 0.01:
        ways.append(f"{Fraction(over * 10**9, under).__round__() / 10**9:.9f}")
    if value.denominator > 1 and whole:
        ways += [f"{whole} {over - whole * under}/{under}", rf"{whole}\frac{{{over - whole * under}}}{{{under}}}"]
    return sign + rng.choice(ways)


def spell(gold: str, rng: random.Random, change: int = 0) -> str:
    """Another way to write a generated answer or, with `change`, a wrong answer close to it."""
    value = read_value(gold)
    assert value is not None, gold
    if isinstance(value, Exact):
        number = value.value + change
        text = spell_number(number, rng)
        if value.pi:
            if number == 0:
                return "0"
            whole = rng.choice((f"{number.numerator}", f"{number.numerator} ", rf"{number.numerator}\cdot "))
            over = rf"\frac{{{number.numerator}\pi}}{{{number.denominator}}}"
            text = rng.choice((whole + r"\pi", whole + "\u03c0", whole + "pi")) if number.denominator == 1 else over
            text = rng.choice(
                (
                    text,
                    rf"{number.numerator}/{number.denominator} \pi",
                    rf"\frac{{{number.numerator}}}{{{number.denominator}}} \pi",
                )
            )
        return rng.choice(AROUND if value.pi or rng.random() < 0.8 else UNITS).format(text)
    numbers = [item.value for item in value.values()]
    if change:
        numbers[rng.randrange(len(numbers))] += change
    parts = [spell_number(number, rng) for number in numbers]
    parts = [part if "," not in part else str(number) for part, number in zip(parts, numbers, strict=True)]
    inside = rng.choice((", ", ", ", ",")).join(parts)
    names = "xyz"[: len(parts)]
    named = ", ".join(f"{name} = {part}" for name, part in zip(names, parts, strict=True))
    return rng.choice(
        (
            f"({inside})",
            f"({inside})",
            f"$({inside})$",
            rf"\left({inside}\right)",
            rf"\langle {inside} \rangle",
            rf"\boxed{{({inside})}}",
            f"`({inside})`",
            f"The solution is ({inside}).",
            f"({', '.join(names)}) = ({inside})",
            named,
            inside,
        )
    )


class Pair(NamedTuple):
    """A gold and an answer, and whether it is right."""

    gold: str
    answer: str
    correct: bool


class Count(NamedTuple):
    """The number of graded pairs, the right answers that fail, the wrong ones that pass, and the seconds of the slowest pair."""

    pairs: int
    failed: Sequence[Pair]
    passed: Sequence[Pair]
    slowest: float


def grade(verifier: MathVerifier, pairs: Iterable[Pair]) -> Count:
    """Grade every pair."""
    count, slowest = 0, 0.0
    failed: list[Pair] = []
    passed: list[Pair] = []
    for pair in pairs:
        began = time.perf_counter()
        found = verifier.verify(pair.gold, pair.answer).correct
        slowest, count = max(slowest, time.perf_counter() - began), count + 1
        if found != pair.correct:
            (failed if pair.correct else passed).append(pair)
    return Count(count, failed, passed, slowest)


def list_golds(most: int | None = None) -> list[str]:
    """The answers of all generated training tasks, or of the first `most` tasks of each size."""
    pools = [open_env(MathEnv, size=size, split="train").pool for size in ("default", "tiny")]
    return [pool[place].payload.answers[0] for pool in pools for place in range(len(pool))[:most]]


def draw_spellings(golds: Sequence[str], seed: int, tries: int) -> list[Pair]:
    """`tries` spellings of golds, and as many of wrong numbers close to them."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(tries):
        gold = rng.choice(golds)
        pairs.append(Pair(gold, spell(gold, rng), True))
        pairs.append(Pair(gold, spell(gold, rng, change=rng.choice((-2, -1, 1, 2))), False))
    return pairs


def list_pairs() -> list[Pair]:
    """The listed answers."""
    lines = (ROOT / "tests" / "envs" / "verifiers" / "math_pairs.tsv").read_text("utf-8").splitlines()[1:]
    return [Pair(gold, answer, said == "right") for said, gold, answer in (line.split("\t") for line in lines)]


def list_sympys() -> list[Pair]:
    """sympy's formulas as answers, each with its own value as gold (right) and with the next formula's value (wrong)."""
    import sympy

    formulas: Any = import_module("sympy.parsing.tests.test_latex").GOOD_PAIRS
    values = [sympy.sympify(value) for _, value in formulas]
    pairs = [Pair(sympy.latex(value), text, True) for value, (text, _) in zip(values, formulas, strict=True)]
    shifted = zip(values[1:], values, formulas, strict=False)
    return pairs + [
        Pair(sympy.latex(other), text, False)
        for other, value, (text, _) in shifted
        if value.is_number and other.is_number and abs(sympy.N(value) - sympy.N(other)) > 1e-6
    ]


def find_spellings(quick: bool) -> Findings:
    """The errors of the two verifiers; math-verify, which takes longer, grades a tenth of the spellings."""
    spellings = draw_spellings(list_golds(300 if quick else None), 1, 100 if quick else 5_000)
    cases = {
        ("spellings of generated answers", EXACT): spellings,
        ("spellings of generated answers", LIBRARY): spellings[: len(spellings) // 10],
        ("listed answers", EXACT): list_pairs()[: 100 if quick else None],
        ("listed answers", LIBRARY): list_pairs()[: 100 if quick else None],
        ("formulas of sympy's tests", EXACT): list_sympys()[: 20 if quick else None],
        ("formulas of sympy's tests", LIBRARY): list_sympys()[: 20 if quick else None],
    }
    rows: dict[str, tuple[float | str, ...]] = {}
    for (name, verifier), pairs in cases.items():
        grader = MathVerifier(verifier=verifier)
        grader.verify("x+1", "1+x")  # starts the worker, so that no pair waits for it
        found = grade(grader, pairs)
        grader.close()
        correct = sum(pair.correct for pair in pairs)
        rows[f"{name}, `{verifier}`"] = (
            correct,
            len(found.failed),
            found.pairs - correct,
            len(found.passed),
            found.slowest,
        )
    columns = {"right answers": ",d", "refused": ",d", "wrong answers": ",d", "paid": ",d", "slowest, s": ".2f"}
    return Findings("answers", columns, rows)
