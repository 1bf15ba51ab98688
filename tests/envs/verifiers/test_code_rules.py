"""The rules by which programs are graded, on what a sandbox would have answered: none is started here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fedagentgym.envs.verifiers import Verdict
from fedagentgym.envs.verifiers.code import (
    MAX_PROGRAM_LENGTH,
    Call,
    Checks,
    CodeVerifier,
    calls_of,
    grade_code,
    refusal,
    remote_names,
    same_output,
)
from fedagentgym.envs.verifiers.sandbox.pool import Ended, Limits

DEFINED: Mapping[str, Any] = {}
"""The first answer of a slot: the program itself ran."""
WELL = Ended("ended", 0, "", "")


class Slot:
    """Gives the answers that it was made with, and keeps the questions."""

    def __init__(
        self, values: Sequence[Mapping[str, Any]], verdict: Any, scripts: Sequence[Ended], ended: Ended
    ) -> None:
        self.values, self.verdict, self.scripts, self.ended = values, verdict, list(scripts), ended
        self.asked: list[tuple[Any, ...]] = []

    def calls(self, program: str, requests: Any, limits: Limits) -> tuple[list[Mapping[str, Any]], Ended]:
        self.asked.append(("calls", program, requests, limits))
        return [DEFINED, *self.values], self.ended

    def test_program(self, program: str, test: Any, limits: Limits) -> tuple[Any, Ended]:
        self.asked.append(("test", program, test, limits))
        return self.verdict, self.ended

    def script(self, program: str, given: str, limits: Limits) -> Ended:
        self.asked.append(("script", program, given, limits))
        return self.scripts.pop(0)


def judge(
    checks: Checks,
    *values: Any,
    verdict: Any = None,
    scripts: Sequence[Ended] = (),
    ended: Ended = WELL,
    **options: Any,
) -> tuple[Verdict, list[tuple[Any, ...]]]:
    slot, accepted = Slot(values, verdict, scripts, ended), []

    class Slots:
        @contextlib.contextmanager
        def one(self, accept: tuple[str, ...]) -> Iterator[Slot]:
            accepted.append(accept)
            yield slot

    verifier = CodeVerifier(accept=("a",))
    verifier.slots = Slots()  # type: ignore[assignment]
    found = verifier.verify(options.pop("program", "program"), checks, accept=("b",), **options)
    assert accepted == [("a", "b")]
    return found, slot.asked


TWO = Checks("f", (Call((1,), 10), Call((2,), 20)))


def test_the_score_is_the_share_of_the_calls_that_give_what_is_expected() -> None:
    assert judge(TWO, {"value": 10}, {"value": 20})[0] == Verdict(True, 1.0, "program", "passed")
    assert judge(TWO, {"value": 10}, {"value": 21})[0] == Verdict(False, 0.5, "program", "wrong result")
    assert judge(TWO, {"value": 10})[0] == Verdict(False, 0.5, "program", "wrong result")
    assert judge(TWO)[0] == Verdict(False, 0.0, "program", "wrong result")
    assert judge(TWO, {"value": 10}, {"error": "ValueError", "text": "no"})[0].reason == "ValueError: no"
    assert judge(TWO, {"error": "KeyError"}, {"value": 20})[0].reason == "KeyError: "
    late = judge(TWO, {"value": 10}, ended=Ended("timeout", -9, "", ""))[0]
    assert late == Verdict(False, 0.5, "program", "timeout")


def test_a_verdict_shows_the_first_two_hundred_characters() -> None:
    found, _ = judge(TWO, {"error": "ValueError", "text": "y" * 300}, program="x" * 300)
    assert (found.parsed, found.reason) == ("x" * 200, f"ValueError: {'y' * 188}")


def test_a_program_is_run_under_the_limits_of_the_call_or_of_the_verifier() -> None:
    slot = Slot((), None, [WELL, WELL], WELL)
    verifier = CodeVerifier(Limits(seconds=2.0))
    verifier.slots = SimpleNamespace(one=lambda accept: contextlib.nullcontext(slot))  # type: ignore[assignment]
    assert verifier.run("x = 1", "given", Limits(seconds=1.0)) == verifier.run("x = 1", "given") == WELL
    assert slot.asked == [("script", "x = 1", "given", Limits(seconds=seconds)) for seconds in (1.0, 2.0)]


def test_calls_are_asked_by_name_and_arguments_under_the_limits() -> None:
    narrow = Limits(seconds=1.0)
    for given, used in ((None, Limits()), (narrow, narrow)):
        _, asked = judge(TWO, limits=given)
        wanted = [{"do": "call", "name": "f", "args": [number]} for number in (1, 2)]
        assert asked == [("calls", "program", wanted, used)]
    assert judge(TWO._replace(preamble="import math"))[1][0][1] == "import math\nprogram"
    assert judge(TWO._replace(preamble=" \n"))[1][0][1] == "program"


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (0.1 + 0.2, 0.3, True),
        (1.0 + 1e-11, 1.0, False),
        (float("inf"), float("inf"), True),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (1.0, float("nan"), False),
        (1, 1.0, True),
        (True, 1.0, False),
        ("a", 1.0, False),
        (True, 1, False),
        (0, False, False),
        (True, True, True),
        ([0.1 + 0.2], [0.3], False),
    ],
)
def test_two_floats_may_differ_in_their_last_bits(value: Any, expected: Any, same: bool) -> None:
    assert judge(Checks("f", (Call((), expected),)), {"value": value})[0].correct == same


def test_a_value_too_deep_to_compare_is_wrong() -> None:
    deep: list[Any] = []
    other: list[Any] = []
    for _ in range(100_000):
        deep, other = [deep], [other]
    assert not judge(Checks("f", (Call((), other),)), {"value": deep})[0].correct
    while deep:  # taken apart from the outside, since the interpreter would recurse
        deep, other = deep[0], other[0]


BY_TEST = Checks("f", code="def check(g): assert g(1)", check="check")


def test_test_code_counts_as_one_and_runs_only_after_calls_that_passed() -> None:
    assert judge(BY_TEST, verdict={"passed": True})[0] == Verdict(True, 1.0, "program", "ended")
    assert judge(BY_TEST, verdict={"passed": 1, "reason": "odd"})[0] == Verdict(False, 0.0, "program", "odd")
    assert judge(BY_TEST, verdict={"passed": False, "reason": "AssertionError"})[0].reason == "AssertionError"
    assert judge(BY_TEST, verdict=None, ended=Ended("memory", -9, "", ""))[0].reason == "memory"
    both = BY_TEST._replace(calls=TWO.calls)
    passed = {"passed": True, "reason": "passed"}
    assert judge(both, {"value": 10}, {"value": 20}, verdict=passed)[0] == Verdict(True, 1.0, "program", "passed")
    failed, asked = judge(both._replace(outputs=(("1", "one"),)), {"value": 10}, {"value": 0}, verdict=passed)
    assert failed.score == 0.5 and [kind for kind, *_ in asked] == ["calls"]
    late, _ = judge(both, {"value": 10}, {"value": 20}, verdict={"passed": False, "reason": "AssertionError"})
    assert late == Verdict(False, pytest.approx(2 / 3), "program", "AssertionError")


BY_OUTPUT = Checks(outputs=(("1", "one"), ("2", "two")))


def test_a_script_has_to_end_well_and_to_print_what_is_expected() -> None:
    good, bad = Ended("ended", 0, "one\n", ""), Ended("ended", 0, "ten", "")
    two = Ended("ended", 0, "two", "")
    found, asked = judge(BY_OUTPUT, scripts=[good, two])
    assert found == Verdict(True, 1.0, "program", "passed") and [given for _, _, given, _ in asked] == ["1", "2"]
    assert judge(BY_OUTPUT, scripts=[bad, two])[0] == Verdict(False, 0.5, "program", "wrong output")
    broken = Ended("ended", 3, "one", "Traceback\nValueError: no\n")
    assert judge(BY_OUTPUT, scripts=[broken, two])[0] == Verdict(False, 0.5, "program", "ValueError: no")
    assert judge(BY_OUTPUT, scripts=[Ended("ended", 3, "one", ""), two])[0].reason == "exit code 3"
    assert judge(BY_OUTPUT, scripts=[good, Ended("timeout", 0, "two", "")])[0] == Verdict(
        False, 0.5, "program", "timeout"
    )


def test_scripts_do_not_run_after_test_code_that_failed() -> None:
    checks = BY_OUTPUT._replace(code="check", check="check")
    found, asked = judge(checks, verdict={"passed": False, "reason": "no"})
    assert found == Verdict(False, 0.0, "program", "no") and [kind for kind, *_ in asked] == ["test"]
    ended = [Ended("ended", 0, word, "") for word in ("one", "two")]
    assert judge(checks, verdict={"passed": True, "reason": "passed"}, scripts=ended)[0].score == 1.0
    calls_failed = BY_OUTPUT._replace(calls=TWO.calls, entry="f")
    assert len(judge(calls_failed, scripts=ended)[1]) == 3, "without test code, outputs count beside failed calls"


def test_programs_that_are_not_tried() -> None:
    assert refusal("x" * MAX_PROGRAM_LENGTH) is None and refusal("x" * (MAX_PROGRAM_LENGTH + 1)) == "too long"
    assert refusal("") == refusal(" \n\t") == "no program"
    assert refusal("x = '\ud800'") == refusal("x\x00") == "not text"
    verifier = CodeVerifier()
    assert verifier.verify("x\x00" * 200, TWO) == Verdict(False, 0.0, ("x\x00" * 200)[:200], "not text")
    assert verifier.verify("x" * 300, Checks("f")) == Verdict(False, 0.0, "x" * 200, "no tests")
    assert verifier.run("  ") == Ended("refused", -1, "", "no program")
    assert grade_code("no program here", TWO).reason == "no program"


def test_names_that_test_code_takes_from_the_program() -> None:
    code = """
import math, os.path as path
from json import dumps as write
def check(candidate, limit=3):
    total = helper(limit)
    try:
        assert candidate(total) == solve(METADATA, math.pi, path, write, len([1]))
    except ValueError as error:
        raise Own(error)
class Own(Exception): pass
"""
    assert remote_names(Checks("f", code=code)) == ["helper", "solve", "f"]
    assert remote_names(Checks("solve", code=code)) == ["helper", "solve"]
    assert remote_names(Checks(code=code, setup="def helper(n): return n")) == ["solve"]


def test_asserts_that_are_no_plain_calls() -> None:
    assert calls_of(["assert f() == 1"]) == ("f", (Call((), 1),))
    for other in (
        "f(1) == 2",
        "assert f(1)",
        "assert f(x=1) == 2",
        "assert f(1) == 2 == 2",
        "assert f(1) is None",
        "assert 2 == f(1)",
        "assert a.f(1) == 2",
        "assert f(*[1]) == 2",
        "assert f(1) == 2; assert f(2) == 3",
        "",
    ):
        assert calls_of([other]) is None, other
    assert calls_of([]) is None


def test_blanks_at_the_ends_of_lines_and_empty_last_lines_do_not_count() -> None:
    assert same_output("a\t\nb  \n \n", "a\nb") and same_output("", "\n\n")
    assert not same_output(" a", "a") and not same_output("\na", "a") and not same_output("a\nb", "a")
