"""Exact comparison of mathematical answers: spellings of generated answers, other answers, and lists of both."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.spellings import draw_spellings, grade, list_golds, list_pairs
from fedagentgym.envs.verifiers.math import MathVerifier
from fedagentgym.envs.verifiers.math_exact import Exact, same_value


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier()
    yield made
    made.close()


@pytest.fixture(scope="module")
def golds() -> list[str]:
    return list_golds()


def test_spellings_of_generated_answers(verifier: MathVerifier, golds: list[str]) -> None:
    found = grade(verifier, draw_spellings(golds, seed=1, tries=2_000))
    assert len(found.failed) <= 2, found.failed
    assert found.passed == []


@pytest.mark.slow
def test_hundred_thousand_spellings_of_generated_answers(verifier: MathVerifier, golds: list[str]) -> None:
    found = grade(verifier, draw_spellings(golds, seed=2, tries=100_000))
    assert len(found.failed) <= 100, found.failed
    assert found.passed == []


@pytest.mark.parametrize("verdict", ["right", "wrong"])
def test_listed_answers(verifier: MathVerifier, verdict: str) -> None:
    """Half of them and more are wrong answers that look right."""
    chosen = [pair for pair in list_pairs() if pair.correct == (verdict == "right")]
    assert len(chosen) > 300
    found = grade(verifier, chosen)
    assert [*found.failed, *found.passed] == []
    golds = dict.fromkeys(pair.gold for pair in chosen)
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
