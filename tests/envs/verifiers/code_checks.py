"""Checks of programs in the tests of the code verifier: that f(1) is 42, by calls, by a test, and by its output."""

from __future__ import annotations

from fedagentgym.envs.verifiers.code import Call, Checks
from fedagentgym.envs.verifiers.sandbox.pool import Limits

ANSWER = Checks("f", (Call((1,), 42), Call((2,), 42)))
ANSWER_BY_TEST = Checks("f", code="def check(candidate):\n    assert candidate(1) == 42\n", check="check")
ANSWER_BY_OUTPUT = Checks(outputs=(("1\n", "42\n"),))
SHORT = Limits(seconds=0.4)
