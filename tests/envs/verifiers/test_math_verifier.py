"""Mathematical answers: what is equal, what is not, and what must not hang."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.mixture import MixtureEnv
from fedagentgym.envs.verifiers.formats import extract_answer
from fedagentgym.envs.verifiers.math import (
    VERIFIERS,
    MathVerifier,
    find_refusal,
    find_stated,
    grade_math,
    math_verifier_version,
)
from fedagentgym.envs.verifiers.math_exact import Exact, normalize, read_value, squeeze, strip_words

EQUAL = [
    ("18", "18 eggs per day"),
    ("18", "$18.00"),
    ("18", "The answer is 18."),
    ("18", "x = 18"),
    ("18", "36/2"),
    ("18", r"18\text{ cm}^2"),
    ("18", "15 + 3 = 18"),
    ("1,234", "1234"),
    ("1234", "1,234.00"),
    ("1234", "1{,}234"),
    (r"\$32,\!000", "32000"),
    ("0.5", "50%"),
    (r"10\%", "0.1"),
    (r"10\%", "10"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{3}", "0.3333333"),
    ("3/2", r"1\frac{1}{2}"),
    ("1.5", "1 1/2"),
    (r"-\frac34", r"\frac{-3}{4}"),
    ("3500000", "3.5 million"),
    ("10^{6}", "1,000,000"),
    ("2^{10}", "1024"),
    ("2^{2013}", r"2 \cdot 2^{2012}"),
    ("18", r"18^\circ"),
    ("(1,2)", "(1, 2.0)"),
    ("(1,2)", "1,2"),
    ("(1,-2)", "x=1, y=-2"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"),
    ("3,5,7", "7,5,3"),
    ("2,3", "x=2 or x=3"),
    ("2, 3", "2 and 3"),
    (r"\{1,2\}", "2,1"),
    (r"\pm 2", "2,-2"),
    (r"1 \pm \sqrt{2}", r"1-\sqrt2, 1+\sqrt2"),
    ("(1,2),(3,4)", "(3,4),(1,2)"),
    ("[1,2)", r"x\in[1,2)"),
    (r"1\le x<2", "[1,2)"),
    ("x>3", r"(3,\infty)"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)"),
    (r"x \ge 2", r"2 \le x"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(x+1)(x-1)", "x^2-1"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\sqrt{5}", "2.236067977"),
    (r"\frac{\pi}{2}", r"\pi/2"),
    ("x=3", "3"),
    ("3", "x=3"),
    ("y=2x+1", "2x-y+1=0"),
    ("1+i", "i+1"),
    (r"\binom{5}{2}", "10"),
    (r"\text{Evelyn}", "evelyn."),
    (r"\text{(C)}", "C"),
    ("12_{5}", "12_5"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2.0\end{pmatrix}"),
]
DIFFERENT = [
    ("18", "17"),
    ("18", "19"),
    ("18", "-18"),
    ("18", "18 or 19"),
    ("18", "not 18"),
    ("18", "18 million"),
    ("18", "18 and a half"),
    ("18", "18!"),
    ("18", "18 - x"),
    ("18", "eighteen thousand"),
    ("18", "3 of 18"),
    ("5", "5x"),
    ("5", "5 pi"),
    ("5", "5 y"),
    ("5x", "5"),
    ("5,10", "10"),
    ("10", "5,10"),
    (r"\frac{1}{3}", "0.33"),
    (r"\sqrt{5}", "2.24"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("(1,2,3)", "(3,2,1)"),
    ("1,2", "(2,1)"),
    ("(-1,6)", "(-1,-6)"),
    ("(1,2),(3,4)", "(4,3),(1,2)"),
    ("3,5,7", "7,5,4"),
    ("3,5,7", "3,5"),
    ("3,3,5", "3,5,5"),
    ("[1,2)", "[1,2]"),
    ("[1,2)", r"1\le x\le2"),
    (r"(3,\infty)", r"x\ge3"),
    (r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)\cup(4,\infty)"),
    ("x^2+2x+1", "(x-1)^2"),
    ("p - q", "q - p"),
    ("6 - 5i", "6+5i"),
    ("x=3", "y=3"),
    ("12_5", "12_6"),
    ("12_5", "12"),
    ("12_5", "7"),
    (r"\text{Evelyn}", "Bob"),
    ("even", "odd"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    (r"\infty", "5"),
    ("2^{2013}", "-(2^{2013})"),
    ("2^{2013}", "2^{2014}"),
    ("0", ""),
]
HOSTILE = {
    "tower": "9^{9^9}",
    "another tower": "9^9^9^9",
    "factorials": "(((9)!)!)!",
    "double factorials": "9!!!!!!!!",
    "power of a sum": "(x+y+z+w+1)^{200}",
    "digits": "7" * 100_000,
    "brackets": "(" * 3000 + "1" + ")" * 3000,
    "braces": "{" * 400 + "1" + "}" * 400,
    "equations": "x" + "=x" * 3000,
    "no character": "1\x00",
    "surrogate": "\ud800 1",
    "nested powers": "((x+y+z+w+1)^{12})^{12}",
    "product of sums": "(x+y+z+w+1)^{9}(x-y+z-w+1)^{9}(x+2y+z+w+1)^{9}",
    "integral": r"\int_0^1 \sin(x^{x^x}) e^{x^2} dx",
    "another integral": r"\int \frac{1}{x^5+x+1} dx",
    "product": r"\prod_{k=1}^{10000000} k",
    "sum": r"\sum_{k=1}^{99999} \frac{1}{k^3}",
    "roots": r"\sqrt{" * 11 + "2" + "}" * 11,
    "functions": r"\sin" * 100 + "x",
    "operators": "1" + "+1" * 450,
    "long list": ",".join(str(k) for k in range(200)),
    "prose": "we cannot know the answer since nothing is said about the second train",  # codespell:ignore said
    "symbols": "abcdefghijklmnopqrstuvwxyz" * 20,
}


SERIES = r"\sum_{k=1}^{3} k"  # what only computer algebra evaluates, so that a worker has to


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier()
    yield made
    made.close()


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_answers(verifier: MathVerifier, gold: str, answer: str) -> None:
    assert verifier.verify(gold, answer).correct
    assert verifier.verify(gold, gold).correct


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different_answers(verifier: MathVerifier, gold: str, answer: str) -> None:
    assert not verifier.verify(gold, answer).correct


def test_the_last_answer_block_and_the_last_box_count() -> None:
    assert extract_answer(r"\boxed{1} and \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert extract_answer(r"\boxed{5} <answer> 6 </answer>") == "6"
    assert extract_answer(r"<answer> it is \boxed{7} </answer>") == "7"
    assert extract_answer("<answer> 1 </answer> <answer> 2 </answer>") == "2"
    assert extract_answer("42") is None
    assert extract_answer(r"\boxed{never closed") is None
    assert grade_math(r"\boxed{1} \boxed{2}", "2").correct
    assert not grade_math(r"\boxed{1} \boxed{2}", "1").correct
    assert not grade_math("the answer is 2", "2").correct
    assert grade_math("<answer>2</answer>", ["3", "2"]).correct
    assert not grade_math("<answer>2</answer>", []).correct
    assert extract_answer(r"\boxed{1}" * 5000) == "1"


@given(st.fractions(max_denominator=10_000), st.integers(1, 9))
def test_rational_numbers_are_exact(value: Fraction, step: int) -> None:
    assert read_value(normalize(f"\\frac{{{value.numerator}}}{{{value.denominator}}}")) == Exact(value)
    near = read_value(normalize(f"{value.numerator + step}/{value.denominator}"))
    assert isinstance(near, Exact) and near.value != value


@given(st.text(max_size=120))
@example("\u00b2!")  # a digit to Unicode, and no number to Python
def test_any_text_is_read_without_an_error(text: str) -> None:
    spelled = normalize(find_stated(text))
    assert normalize(spelled) == normalize(normalize(spelled))
    for read in (read_value, squeeze, strip_words, find_refusal):
        read(spelled)


def _rewrites(gold: str) -> Iterator[str]:
    value = int(gold.replace(",", ""))
    yield from (f"{value}", f"{value:,}", f"{value}.0", f"{value}.00", f"\\frac{{{2 * value}}}{{2}}", f"{3 * value}/3")
    yield from (
        f"${value}",
        f"{value} dollars",
        f"{value} apples in total.",
        f"The answer is {value}.",
        f"\\${value:,}.00",
    )
    yield from (f"x = {value}", f"{value}\\text{{ km}}", f"{value} km/h", f"**{value}**", f" {value} .", f"= {value}")


def _near_misses(gold: str) -> Iterator[str]:
    value = int(gold.replace(",", ""))
    yield from (
        f"{value + 1}",
        f"{value - 1} dollars",
        f"{value}.5",
        f"{10 * value + 1}",
        f"\\frac{{{2 * value + 1}}}{{2}}",
    )
    yield from (f"{value}x", f"{value} or {value + 1}", f"({value}, {value + 1})")
    if value:
        yield from (f"-{value}" if value > 0 else f"{-value}", f"{2 * value} apples", f"1/{value + 1}")


def test_gsm8k_golds_their_rewrites_and_near_misses(verifier: MathVerifier, shared_data: Path) -> None:
    lines = (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()
    golds = [json.loads(line)["answer"].rpartition("####")[2].strip() for line in lines]
    assert len(golds) == 1319
    wrong = [gold for gold in golds if not verifier.verify(gold, gold).correct]
    for gold in dict.fromkeys(golds):
        wrong += [f"{gold} is {text}" for text in _rewrites(gold) if not verifier.verify(gold, text).correct]
    for gold in sorted(set(golds))[::4]:
        wrong += [f"{gold} is not {text}" for text in _near_misses(gold) if verifier.verify(gold, text).correct]
    assert wrong == []


@pytest.mark.parametrize("name", ["aime24", "amc23"])
def test_contest_golds_verify(verifier: MathVerifier, shared_data: Path, name: str) -> None:
    golds = [json.loads(line)["answer"] for line in (shared_data / name / "test.jsonl").read_text().splitlines()]
    for gold in golds:
        text = str(int(float(gold)))
        assert verifier.verify(text, str(gold)).correct
        assert not verifier.verify(text, str(float(gold) + 1)).correct


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_answers_are_wrong_within_two_seconds(verifier: MathVerifier, answer: str) -> None:
    verifier.verify(SERIES, "6")
    started = time.monotonic()
    assert not verifier.verify("x+1", answer).correct
    assert not grade_math(f"<answer> {answer} </answer>", "x+1").correct
    assert time.monotonic() - started < 30.0
    assert verifier.verify(SERIES, "6").correct


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _many_threads(count: int, clock: float) -> MathVerifier:
    verifier = MathVerifier(clock=clock)
    assert verifier.verify(SERIES, "6").correct
    burners = [
        "((x+y+z+w+1)^{12})^{12}",
        r"\int \frac{1}{x^5+x+1} dx",
        r"\int_0^1 \sin(x^{x^x}) e^{x^2} dx",
        "9^{9^9}",
        "(((9)!)!)!",
        "7" * 5000,
        "x=x=x=x=x",
        "\x00",
        "\ud800",
    ]
    verdicts: list[bool] = []
    order = random.Random(0).choices(burners, k=count)

    def work(mine: list[str]) -> None:
        verdicts.extend(verifier.verify("x+1", answer).correct for answer in mine)

    threads = [threading.Thread(target=work, args=(order[number::8],)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [False] * count
    return verifier


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_answers_from_eight_threads_leave_a_working_verifier(count: int) -> None:
    before = _resident()
    verifier = _many_threads(count, clock=0.2)
    verifier.pool.clock = 5.0
    assert verifier.verify(r"\sqrt{8}", r"2\sqrt{2}").correct
    assert not verifier.verify(r"\sqrt{8}", r"3\sqrt{2}").correct
    process = verifier.pool._parent
    assert process is not None
    verifier.close()
    assert process.returncode is not None
    assert not Path(f"/proc/{process.pid}").exists()
    assert _resident() - before < 100 << 20


def test_a_dead_worker_and_a_dead_parent_are_replaced(verifier: MathVerifier) -> None:
    made = MathVerifier(workers=1)
    assert made.verify(SERIES, "6").correct
    assert made.pool._parent is not None
    made.pool._parent.kill()
    made.pool._parent.wait()
    for worker in made.pool._idle:
        worker.close()
    assert made.verify(SERIES, "6.0").correct
    made.close()
    assert made.verify(SERIES, "6.0").correct
    made.close()


def test_a_forked_process_uses_workers_of_its_own(verifier: MathVerifier) -> None:
    assert verifier.verify(SERIES, "6").correct
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"1" if verifier.verify(SERIES, "6.0").correct else b"0")
            verifier.close()
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.waitpid(child, 0)
    assert verifier.verify(SERIES, "6.0").correct


def test_prose_is_not_given_to_computer_algebra(verifier: MathVerifier) -> None:
    thought = "I think that the answer could be something like five or eight, but certainly nothing else"
    assert verifier.verify("7", thought).reason == "not a number"
    assert verifier.verify(r"\\sqrt2", thought).reason == "prose"
    assert verifier.verify("x+1", r"\sqrt{x} + \sin x \text{ for all } x > 0").reason != "prose"


def test_the_version_names_the_library() -> None:
    assert math_verifier_version().startswith("exact/1+math-verify-0.9")


FALSE_CHAINS = (
    *("7 = 42", "1 = 2 = 42", "7 == 42", "7 &= 42", "7 := 42", "x = 7 = 42", "7 = x = 42", "seven = 42", "42 = 7 = 42"),
    *("\\$7 = \\$42", "7\\% = 42", "7 eggs = 42", "3 + 4 = 42", "3 x 4 = 42", "\\frac{84}{3} = 42", "6 * 7 = 41 = 42"),
)
TRUE_CHAINS = (
    "42 = 42",
    "6*7 = 42",
    "x = 42",
    "x = y = 42",
    "forty-two = 42",
    "84/2 = 42",
    "x = 6*7 = 42",
    "total = 42",
)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("form", ["<answer> ${}$ </answer>", "\\boxed{{{}}}"])
def test_a_chain_of_equations_is_right_only_if_all_of_it_is_true(verifier: str, form: str) -> None:
    assert [chain for chain in FALSE_CHAINS if grade_math(form.format(chain), "42", verifier).correct] == []
    assert [chain for chain in TRUE_CHAINS if not grade_math(form.format(chain), "42", verifier).correct] == []


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


def test_a_mixture_hands_the_verifier_on_and_names_all_versions() -> None:
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
