"""Exact comparison of mathematical answers: spellings of generated answers, other answers, and lists of both."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.verifiers.math import MathVerifier
from fedagentgym.envs.verifiers.math_exact import Exact, read_value, same_value

PAIRS = [
    line.split("\t") for line in Path(__file__).with_name("math_pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]
]
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


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier()
    yield made
    made.close()


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
    """A way to write a generated answer, or with `change` that of another one."""
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


@pytest.fixture(scope="module")
def golds() -> list[str]:
    envs = [open_env(MathEnv, size=size, split="train") for size in ("default", "tiny")]
    return [env.pool[index].payload.answers[0] for env in envs for index in range(len(env.pool))]


def count_failures(verifier: MathVerifier, golds: list[str], seed: int, tries: int) -> tuple[list[str], list[str]]:
    """Right spellings that fail, and spellings of other numbers that pass."""
    rng, failed, passed = random.Random(seed), [], []
    for _ in range(tries):
        gold = rng.choice(golds)
        answer, other = spell(gold, rng), spell(gold, rng, change=rng.choice((-2, -1, 1, 2)))
        if not verifier.verify(gold, answer).correct:
            failed.append(f"{gold} | {answer}")
        if verifier.verify(gold, other).correct:
            passed.append(f"{gold} | {other}")
    return failed, passed


def test_spellings_of_generated_answers(verifier: MathVerifier, golds: list[str]) -> None:
    failed, passed = count_failures(verifier, golds, seed=1, tries=2_000)
    assert len(failed) <= 2, failed
    assert passed == []


@pytest.mark.slow
def test_hundred_thousand_spellings_of_generated_answers(verifier: MathVerifier, golds: list[str]) -> None:
    failed, passed = count_failures(verifier, golds, seed=2, tries=100_000)
    assert len(failed) <= 100, failed
    assert passed == []


@pytest.mark.parametrize("verdict", ["right", "wrong"])
def test_listed_answers(verifier: MathVerifier, verdict: str) -> None:
    """Half of them and more are wrong answers that look right."""
    chosen = [(gold, answer) for said, gold, answer in PAIRS if said == verdict]
    assert len(chosen) > 300
    assert [pair for pair in chosen if verifier.verify(*pair).correct != (verdict == "right")] == []
    golds = dict.fromkeys(gold for gold, _ in chosen)
    assert [gold for gold in golds if not verifier.verify(gold, f" ${gold}$ .").correct] == []


ROUNDED = (
    ("1/3", "0.333333", True),
    ("1/3", "0.33333", False),
    ("1/3", "0.333334", False),
    ("2/3", "0.666667", True),
    ("2/3", "0.666666", True),
    ("1/3000000", "0.000000", False),
    ("1/8", "0.125000", True),
    ("1/8", "0.125001", False),
    (r"2\pi", "6.283185", True),
    (r"2\pi", "6.28", False),
    (r"2\pi", r"\frac{44}{7}", False),
    ("0.333333", "1/3", True),
    ("0.5", "0.500001", False),
    (r"\frac{1}{3}", r"33.\overline{3}\%", True),
)


@pytest.mark.parametrize(("gold", "answer", "correct"), ROUNDED)
def test_decimals_are_exact_or_six_of_a_number_without_an_end(
    verifier: MathVerifier, gold: str, answer: str, correct: bool
) -> None:
    assert verifier.verify(gold, answer).correct is correct


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
@settings(deadline=None, max_examples=50)
def test_equality_is_that_of_rational_numbers(one: Fraction, other: Fraction) -> None:
    assert same_value(Exact(one), Exact(one)) and same_value(Exact(one, pi=True), Exact(one, pi=True))
    assert same_value(Exact(one), Exact(other)) == (one == other)
    assert same_value(Exact(one), Exact(other, pi=True)) == (one == other == 0)


CONNECTIVES = (
    *(
        r"\lor",
        r"\vee",
        r"\land",
        r"\wedge",
        r"\oplus",
        r"\implies",
        r"\Rightarrow",
        r"\Longrightarrow",
        r"\iff",
        r"\to",
    ),
    *(
        r"\rightarrow",
        r"\mapsto",
        r"\veebar",
        r"\Leftrightarrow",
        r"\propto",
        r"\vdash",
        r"\perp",
        r"\prec",
        r"\&",
        r"\subset",
    ),
)
NEGATIONS = (r"\neg", r"\lnot", r"\nexists", r"\cancel", r"\sout", r"\xcancel")


@pytest.mark.parametrize("gold", ["7", "-3", "1/2", r"\frac{5}{3}", r"2\pi", "(1, 2)"])
def test_a_right_number_beside_another_or_denied_is_no_answer(verifier: MathVerifier, gold: str) -> None:
    """Whatever command says so: of one that it does not know the library keeps the numbers."""
    other = "(4, 5)" if "(" in gold else "987"
    for command in CONNECTIVES:
        assert not verifier.verify(gold, f"{other} {command} {gold}").correct, command
        assert not verifier.verify(gold, f"{gold} {command} {other}").correct, command
    for command in NEGATIONS:
        assert not verifier.verify(gold, f"{command} {gold}").correct, command
        assert not verifier.verify(gold, f"{command}{{{gold}}}").correct, command


@pytest.mark.parametrize("gold", ["7", "-3", "1/2", r"\frac{5}{3}"])
def test_the_library_alone_pays_no_number_that_is_denied_or_hedged(gold: str) -> None:
    library = MathVerifier(verifier="math-verify")
    said = (
        r"{} \text{{ is wrong}}",
        r"{} (incorrect)",
        r"\text{{not }} {}",
        r"987 \lor {}",
        r"{} \wedge 987",
        r"\neg {}",
    )
    assert [text for text in said if library.verify(gold, text.format(gold)).correct] == []
    right = ("{}", "${}$", "x = {}", r"{} \text{{ cm}}")
    assert [text for text in right if not library.verify(gold, text.format(gold)).correct] == []
    library.close()


TOKENS = [*"0123456789.,/()-+*%^!|", "12", "10", "x", "what", "multiple"]


def is_sum_of_products(text: str) -> bool:
    """Could a reader take this for an expression? Numbers with signs and operators between them, in any number of brackets."""
    bare = re.sub(r"[()|% ]", "", re.sub(r"(?<=[0-9]) x (?=[0-9])", "*", text).rstrip(" .,!"))
    return re.search(r"[0-9] +[0-9.]", re.sub(r"^[-+ ]*[0-9]+ [0-9]+ ?/ ?[0-9]+", "", text.strip(" .,"))) is None and (
        re.fullmatch(r"[-+]*[0-9.,]+!?(?:[-+*/^]+[0-9.,]+!?)*", bare) is not None
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_a_right_number_among_others_is_no_answer(verifier: MathVerifier, seed: int) -> None:
    """What tiny models write: tokens in no order, of which the library would read some and pass over the rest."""
    rng, passed = random.Random(seed), []
    for _ in range(1_500):
        gold = rng.choice(["9", "2", "12", "1/2", "2/10", "18", "-3", "6", "0"])
        parts = [rng.choice(TOKENS) for _ in range(rng.randint(1, 4))] + [gold.replace("/", " / ")]
        rng.shuffle(parts)
        answer = " ".join(parts)
        if verifier.verify(gold, answer).correct and not is_sum_of_products(answer):
            passed.append((gold, answer))
    assert passed == []
