"""The rules of the mathematics verifier: every pair of gold and answer that stands in `math_pairs.tsv`, and other opinions."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.mixture import MixtureEnv
from fedagentgym.envs.verifiers.math import MathVerifier, grade_math, math_verifier_version


class Pair(NamedTuple):
    """A gold, an answer, what the verifier should say, and the rule that says so."""

    rule: str
    verdict: str
    gold: str
    answer: str


LINES = (Path(__file__).with_name("math_pairs.tsv")).read_text(encoding="utf-8").splitlines()[1:]
PAIRS = [Pair(*line.split("\t")) for line in LINES]
RULES = sorted({pair.rule for pair in PAIRS})

OTHER_OPINIONS = {
    ("approximation", "right"): "the value that follows an approximation sign is read as a plain answer",
    ("approximation", "wrong"): "decimals must be the rounded or cut off decimals of the gold",
    ("assignment", "right"): "names order the values; cases and sentences are read",
    ("assignment", "wrong"): "names are not lost: values in another order are other values",
    ("base", "right"): "more spellings of a base are read",
    ("base", "wrong"): "the base is part of the number",
    ("chain", "right"): "a name may stand on the right, and units behind a number",
    ("chain", "wrong"): "only a true chain counts for its value",
    ("congruence", "right"): "residue classes are compared",
    ("empty set", "right"): "all spellings of the empty set are one",
    ("expression", "right"): "degrees, imaginary roots and complex exponentials are evaluated",
    ("expression", "wrong"): "letters in two cases are two letters",
    ("inequality", "right"): "inequalities are solved",
    ("inequality", "wrong"): "the two bounds are not an inequality",
    ("interval", "right"): "inequalities, absolute values and set builders are solved",
    ("interval", "wrong"): "a list or set of the bounds is not the interval",
    ("list", "right"): "both signs of an imaginary root are read",
    ("list", "wrong"): "a pair in brackets is a point or interval, and repeated items count",
    ("matrix", "right"): "entries are evaluated one by one, and rows in square brackets are read",
    ("notation", "right"): "more notations are read",
    ("notation", "wrong"): "the rules above, in other notation",
    ("number", "right"): "sentences, mixed numbers and powers of ten are read",
    ("number", "wrong"): "a bound or a ratio is not a number",
    ("percent", "right"): "mixed percentages are read",
    ("ratio", "right"): "ratios are compared proportionally",
    ("ratio", "wrong"): "a ratio is not a fraction, and all its terms count",
    ("reals", "right"): "all spellings of the real numbers are one",
    ("repeating decimal", "right"): "repeating decimals are exact",
    ("set", "right"): "more spellings of braces are read",
    ("set", "wrong"): "an interval or point is not a set of two",
    ("text", "right"): "words are compared in any case",
    ("text", "wrong"): "words are not products of letters",
    ("time", "right"): "times of day are read",
    ("time", "wrong"): "morning is not afternoon",
    ("tuple", "right"): "angle brackets, thousands separators and a set of one point are read",
    ("tuple", "wrong"): "brackets count",
    ("unit", "right"): "units of any form are left out",
    ("unit", "wrong"): "words that change the number, and letters that are variables, are no units",
}
"""Differences from math-verify, and their reasons: by rule and by our verdict."""


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier()
    yield made
    made.close()


@pytest.mark.parametrize("rule", RULES)
def test_every_pair_of_a_rule_is_judged_right(verifier: MathVerifier, rule: str) -> None:
    failed = [
        pair
        for pair in PAIRS
        if pair.rule == rule and verifier.verify(pair.gold, pair.answer).correct != (pair.verdict == "right")
    ]
    assert failed == []


def test_every_gold_equals_itself(verifier: MathVerifier) -> None:
    golds = dict.fromkeys(pair.gold for pair in PAIRS)
    assert [gold for gold in golds if not verifier.verify(gold, gold).correct] == []
    assert [gold for gold in golds if not verifier.verify(gold, f" ${gold}$ .").correct] == []


def test_half_of_the_pairs_are_wrong_answers() -> None:
    count = Counter(pair.verdict for pair in PAIRS)
    assert len(PAIRS) >= 400 and set(count) == {"right", "wrong"}
    assert count["wrong"] >= len(PAIRS) / 2
    assert len({(pair.gold, pair.answer) for pair in PAIRS}) == len(PAIRS)


@pytest.mark.slow
def test_every_difference_from_math_verify_has_a_reason() -> None:
    library = MathVerifier(clock=5.0, verifier="math-verify")
    different = {
        (pair.rule, pair.verdict)
        for pair in PAIRS
        if library.verify(pair.gold, pair.answer).correct != (pair.verdict == "right")
    }
    library.close()
    assert different - set(OTHER_OPINIONS) == set()


def test_expressions_that_sympy_rewrites_stay_equal_and_neighbours_do_not(verifier: MathVerifier) -> None:
    import sympy

    x, y = sympy.symbols("x y")
    draw = random.Random(5)
    leaves = [
        x,
        y,
        sympy.Integer(2),
        sympy.Integer(3),
        sympy.sqrt(2),
        sympy.pi,
        sympy.Rational(1, 2),
        x**2,
        sympy.sin(x),
    ]
    failed = []
    for _ in range(60):
        a, b, c, d = (draw.choice(leaves) for _ in range(4))
        made = draw.choice([(a + b) * (c - d), (a + b) ** 2 + c, a * b / (c**2 + 1), (a - 2 * b) * (c + 1) + d])
        rewritten = draw.choice([sympy.expand, sympy.factor, sympy.together])(made)
        gold, same, other = (sympy.latex(each) for each in (made, rewritten, made + draw.choice([1, x, -y])))
        if not verifier.verify(gold, same).correct:
            failed.append(f"{gold} is {same}")
        if verifier.verify(gold, other).correct:
            failed.append(f"{gold} is not {other}")
    assert failed == []


def test_golds_of_generated_problems_equal_themselves_and_no_neighbour(verifier: MathVerifier) -> None:
    pool = open_env(MathEnv, split="all").pool
    golds = sorted({answer for index in range(0, len(pool), 11) for answer in pool[index].payload.answers})
    assert len(golds) > 200
    assert [gold for gold in golds if not verifier.verify(gold, gold).correct] == []
    neighbours = [pair for pair in itertools.pairwise(golds) if _value(pair[0]) != _value(pair[1])]
    assert [pair for pair in neighbours if verifier.verify(*pair).correct] == []
    assert [pair for pair in neighbours if verifier.verify(pair[1], pair[0]).correct] == []


def _value(gold: str) -> object:
    """The same value however the fraction is written, by sympy."""
    import sympy

    plain = (
        gold.replace("\\frac{", "(")
        .replace("}{", ")/(")
        .replace("}", ")")
        .replace(")\\pi", ")*pi")
        .replace("\\pi", "*pi")
    )
    return sympy.sympify(plain)


_TOKENS = r"""\frac{ \sqrt{ \sqrt[ { } ( ) [ ] \{ \} | , ; : = < > \le \ne \approx \in \cup \cap \setminus \pm ^ _ ^{ _{ ! % ° ' &
    \\ \begin{pmatrix} \end{pmatrix} \begin{cases} \sin \log \ln \binom \lfloor \overline{3} 0. 1 2 7 9999 x y e i \pi \infty
    \mathbb{R} \emptyset or and to base mod \pmod{ \equiv \cdot \times / - + * ** ... \ldots ½ ² ⁻³ ∞ √ ٣ \left \text{ m } pm
    max( cm m/s^2 \langle ]0,1[ 1,234 ^T \quad $ # ~ \u2060 9^{9^9} 9! (999!)^{50} e^{9999} \sin(10^{9999})"""
TOKENS = _TOKENS.split()


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(
        ["7", r"\frac12", "x^2+1", r"\{0,1\}", "(1,2)", "x=1,y=2", "x>2", "y=2x+1", "1:2", "12_5", "x+y<3", r"\sqrt2"]
    ),
    st.lists(st.sampled_from(TOKENS), max_size=60),
    st.sampled_from(["", " "]),
)
def test_no_answer_of_hostile_tokens_ends_in_an_error(
    verifier: MathVerifier, gold: str, tokens: list[str], blank: str
) -> None:
    answer = blank.join(tokens)
    assert isinstance(verifier.verify(gold, answer).correct, bool)
    assert isinstance(verifier.verify(answer or "1", gold).correct, bool)


LARGE = [
    r"\sin(10^{9999}+\sqrt2)",
    "(999!)^{50}",
    r"e^{e^{e^{9}}}",
    "9999^{9999}",
    r"\sqrt{2}^{9999}",
    r"\binom{x}{999.5}",
]
LARGE += [r"\cos" * 60 + "(9999^{999})", r"\exp(\exp(\exp(3)))", r"\sqrt2+" * 120 + "1", ",".join([r"\sqrt2+x"] * 24)]
LARGE += [r"(-\infty,1)\cup" * 50 + "(1,2)", "1:" * 300 + "1", r"\cosh(29999)", "2^{x^{9999}}", "7" + "!" * 30]


@pytest.mark.parametrize("answer", LARGE)
def test_large_values_are_refused_or_computed_without_an_error(verifier: MathVerifier, answer: str) -> None:
    for gold in ("7", r"\sqrt2", "x+1", "(1,2)", r"\{1,2\}", "x>3"):
        assert not verifier.verify(gold, answer).correct
    assert verifier.verify(answer, answer).correct


def test_the_library_as_it_is_can_be_chosen() -> None:
    assert math_verifier_version("math-verify").startswith("math-verify-0.9")
    env = open_env(MathEnv, size="tiny", verifier="math-verify")
    assert env.get_verifier_version() == math_verifier_version("math-verify")
    assert open_env(MathEnv, size="tiny").get_verifier_version() == math_verifier_version()
    (episode,) = env.step_many(
        env.reset_many([env.pool.ids[0]], [0]), [env.expert().act(env.reset_many([env.pool.ids[0]], [0])[0])]
    )
    assert episode.view.success and episode.view.extra["verdict"] == "math-verify"
    assert grade_math(r"<answer> x^2+y^2=7 </answer>", "7", "math-verify").correct
    assert not grade_math(r"<answer> x^2+y^2=7 </answer>", "7").correct


def test_a_mixture_hands_the_verifier_on_and_tells_all_versions() -> None:
    mixed = open_env(MixtureEnv, kinds=("math", "qa"), size="tiny", verifier="math-verify")
    assert mixed.get_verifier_version().split()[0].startswith("math-verify-")
    assert mixed.get_verifier_version().split()[1].startswith("qa/")
    with pytest.raises(FedAgentGymError, match="verifier= is for mathematics"):
        open_env(MixtureEnv, kinds=("qa",), size="tiny", verifier="math-verify")
    with pytest.raises(FedAgentGymError, match="verifier"):
        open_env(MathEnv, size="tiny", verifier="sympy")
    with pytest.raises(FedAgentGymError, match="verifier"):
        MathVerifier(verifier="sympy")


@pytest.mark.parametrize(
    ("reply", "correct"),
    [
        ("<think> x </think>\n<answer> \\boxed{\\frac{1}{2}} </answer>", True),
        ("the answer is $0.5$", True),
        ("<answer> 1/2 </answer>", False),
        ("a box goes first: \\boxed{7}, then <answer> $\\frac{1}{2}$ </answer>", False),
        ("", False),
        ("$ {9^{9^9}} $", False),
        ("$" * 5_000, False),
        ("$0.5$" + " " * 200_000, False),
    ],
)
def test_the_library_on_the_whole_reply_looks_for_the_answer_itself(reply: str, correct: bool) -> None:
    """As published training code does: a number without a box or dollar signs is no answer, and a box goes first."""
    assert grade_math(reply, "\\frac{1}{2}", "math-verify-reply").correct is correct


def test_the_library_on_the_whole_reply_is_named_where_it_judged() -> None:
    env = open_env(MathEnv, size="tiny", verifier="math-verify-reply")
    assert env.get_verifier_version() == math_verifier_version("math-verify-reply") == "math-verify-reply-0.9.0"
    gold = env.pool[0].payload.answers[0]
    for said, success in ((f"so \\boxed{{{gold}}}", True), (f"<answer> {gold} </answer>", False)):
        (episode,) = env.step_many(env.reset_many([env.pool.ids[0]], [0]), [said])
        assert episode.view.success is success
