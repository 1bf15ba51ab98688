"""Run the tests of a task on a program that cannot be trusted.

There are three kinds of tests: calls of a function with expected results, test code that calls the program (HumanEval's
`check`, MBPP's asserts), and inputs with expected outputs. The program runs in a confined child process that never sees the
expected results. The results of calls come back as plain data and are compared here, and so are outputs. Test code runs in
another child and reaches the program by messages. So a program gains nothing by searching for the expected results, by
returning objects that equal everything, or by ending early.
"""

from __future__ import annotations

import ast
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedagentgym.base.errors import DataError, join_names, require_type
from fedagentgym.base.shorten import show_fields
from fedagentgym.envs.verifiers import Verdict, wrong
from fedagentgym.envs.verifiers.code_tests import UndecidedError, complete_tests, list_unbound
from fedagentgym.envs.verifiers.formats import last_answer, last_fenced_code
from fedagentgym.envs.verifiers.sandbox import messages
from fedagentgym.envs.verifiers.sandbox.confine import Protection, list_names_up
from fedagentgym.envs.verifiers.sandbox.pool import Ended, Limits, Slots

CODE_VERIFIER_VERSION = "code/3"
MAX_PROGRAM_LENGTH = 200_000


class Call(NamedTuple):
    """One test of a function: the result that is expected for some arguments.

    Attributes:
        args: The arguments.
        expected: The result.
    """

    args: tuple[Any, ...]
    expected: Any

    def __repr__(self) -> str:
        return show_fields(self)


class Checks(NamedTuple):
    """The tests of a program; any of the three kinds (`calls`, `code`, `outputs`) may be empty.

    Attributes:
        entry: Name of the function that is tested.
        calls: Expected results of the function.
        code: Test code, which raises if a test fails.
        setup: Trusted helpers and imports of the test code.
        check: Name of a function in `code` that takes the program's function.
        outputs: Pairs of an input of the whole program and its expected output.
        preamble: Imports and helpers of the task, which are put in front of the program.
    """

    entry: str = ""
    calls: tuple[Call, ...] = ()
    code: str = ""
    setup: str = ""
    check: str = ""
    outputs: tuple[tuple[str, str], ...] = ()
    preamble: str = ""

    def __repr__(self) -> str:
        return show_fields(self)


class CodeVerifier:
    """Runs programs in slots of its own, for any number of threads.

    `left_out` names protections of the sandbox that are not activated (for tests of the sandbox itself). `accept`, here and
    in the methods, names protections that may be missing; `other user` is the only one without which programs are refused,
    and only under root.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - a constant
        workers: int | None = None,
        accept: Collection[str] = (),
        left_out: Collection[str] = (),
    ) -> None:
        self.limits, self.accept, self.slots = limits, tuple(accept), Slots(workers, left_out)

    def verify(
        self, program: str, tests: Checks, limits: Limits | None = None, accept: Collection[str] = ()
    ) -> Verdict:
        """Run the tests of a program. `correct` is true if all pass; `score` is the share that does (test code counts as one)."""
        if refused := refusal(program):
            return wrong(refused, program[:200])
        if not (tests.calls or tests.code or tests.outputs):
            return wrong("no tests", program[:200])
        limits = limits or self.limits
        program = f"{tests.preamble}\n{program}" if tests.preamble.strip() else program
        passed, reasons = [], []  # type: list[bool], list[str]
        with self.slots.one((*self.accept, *accept)) as slot:
            if tests.calls:
                requests = [{"do": "call", "name": tests.entry, "args": list(call.args)} for call in tests.calls]
                answers, ended = slot.calls(program, requests, limits)
                given = [*answers[1:], *([{}] * len(tests.calls))]  # the first answer is that of loading
                passed = [_same(answer, call.expected) for call, answer in zip(tests.calls, given, strict=False)]
                failed = next((answer for answer in answers if "error" in answer), None)
                if not all(passed) and ended.status != "ended":
                    reasons.append(ended.status)
                elif not all(passed):
                    reasons.append(f"{failed['error']}: {failed.get('text', '')}" if failed else "wrong result")
            if tests.code and all(passed):
                test = {"source": tests.code, "setup": tests.setup, "check": tests.check, "entry": tests.entry}
                verdict, ended = slot.test_program(program, {**test, "remote": remote_names(tests)}, limits)
                passed.append(bool(verdict and verdict.get("passed") is True))
                reasons.append(str(verdict["reason"]) if verdict and "reason" in verdict else ended.status)
            for written, expected in tests.outputs if all(passed) or not tests.code else ():
                ended = slot.script(program, written, limits)
                passed.append(ended.status == "ended" and ended.code == 0 and same_output(ended.out, expected))
                if ended.status == "ended" and ended.code != 0:
                    reasons.append(ended.err.strip().rsplit("\n", 1)[-1] or f"exit code {ended.code}")
                elif not passed[-1]:
                    reasons.append("wrong output" if ended.status == "ended" else ended.status)
        first_failure = next((reason for reason in reasons if reason != "passed"), "passed")
        return Verdict(all(passed), sum(passed) / len(passed), program[:200], first_failure[:200])

    def run(self, program: str, given: str = "", limits: Limits | None = None, accept: Collection[str] = ()) -> Ended:
        """Run a whole program and return how it ended and what it wrote."""
        if refused := refusal(program):
            return Ended("refused", -1, "", refused)
        with self.slots.one((*self.accept, *accept)) as slot:
            return slot.script(program, given, limits or self.limits)

    def protections(self) -> tuple[Protection, ...]:
        """Every protection around programs on this system, up or down, with the reason."""
        return self.slots.protections()

    def close(self) -> None:
        self.slots.close()


def refusal(program: str) -> str | None:
    """The reason why a program is refused without running it, or None."""
    if len(program) > MAX_PROGRAM_LENGTH:
        return "too long"
    if not program.strip():
        return "no program"
    try:
        program.encode("utf-8")
    except UnicodeEncodeError:
        return "not text"
    return "not text" if "\x00" in program else None


def extract_program(reply: str, tests: Checks | None = None) -> str | None:
    """The program of a reply: a fenced block of its answer, or of the whole reply if it has no answer.

    It is the last block that defines a name which the tests ask for, else the last block, else the bare answer.
    """
    block = last_answer(reply)
    fenced = last_fenced_code(reply if block is None else block, () if tests is None else list_asked(tests))
    return fenced if fenced is not None else block


def list_asked(tests: Checks) -> list[str]:
    """The names that a program must define for the tests."""
    require_type("the tests of a program are Checks", tests, Checks)
    return [tests.entry] if tests.entry else remote_names(tests) if tests.code else []


def same_output(out: str, expected: str) -> bool:
    """Return whether outputs are equal, apart from blanks at the ends of lines and empty lines at the end."""
    return [line.rstrip() for line in out.rstrip().split("\n")] == [
        line.rstrip() for line in expected.rstrip().split("\n")
    ]


def _same(answer: Mapping[str, Any], expected: Any) -> bool:
    """True if an answer has the expected value by Python's equality; two floats may differ in their last bits, and a bool
    equals only a bool."""
    if "value" not in answer:
        return False
    value = answer["value"]
    if isinstance(value, float) and isinstance(expected, float):
        return (
            value == expected
            or math.isclose(value, expected, rel_tol=1e-12)
            or (value != value and expected != expected)
        )
    if isinstance(value, messages.Handle) or isinstance(value, bool) != isinstance(expected, bool):
        return False
    try:
        return bool(value == expected)
    except RecursionError:
        return False


def remote_names(tests: Checks) -> list[str]:
    """Names that test code uses without defining them, so that the program must define them."""
    remote = list_unbound([ast.parse(source) for source in (tests.setup, tests.code)])
    return remote if tests.entry in remote or not tests.entry else [*remote, tests.entry]


def calls_of(asserts: Sequence[str]) -> tuple[str, tuple[Call, ...]] | None:
    """The function and its calls in a list of `assert f(1, 2) == 3`; None unless all are of this form, with literals."""
    names, calls = set(), []
    for source in asserts:
        try:
            (statement,) = ast.parse(source).body
            if not (isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare)):
                return None
            compared = statement.test
            call = compared.left
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords):
                return None
            if len(compared.ops) != 1 or not isinstance(compared.ops[0], ast.Eq):
                return None
            calls.append(
                Call(tuple(ast.literal_eval(given) for given in call.args), ast.literal_eval(compared.comparators[0]))
            )
            names.add(call.func.id)
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
            return None
    return (names.pop(), tuple(calls)) if len(names) == 1 else None


def parse_checks(given: Mapping[str, Any]) -> Checks:
    """The tests of a plain mapping: `entry` and `calls`, `code`, or `outputs`."""
    try:
        calls = tuple(Call(tuple(_read_list(args)), expected) for args, expected in _read_pairs(given, "calls"))
        outputs = tuple(_read_output(*pair) for pair in _read_pairs(given, "outputs"))
    except (TypeError, ValueError):
        raise DataError(
            "'calls' of fedagentgym/Code-v0 are pairs of arguments and result, 'outputs' of input and output"
        ) from None
    named = {name: _read_name(given, name) for name in ("entry", "code", "setup", "check", "preamble")}
    if calls and not named["entry"]:
        raise DataError("'calls' of fedagentgym/Code-v0 need 'entry', the name of the function")
    if not (calls or outputs or named["code"].strip()):
        raise DataError(
            "the tests of fedagentgym/Code-v0 must have calls, code or outputs under 'calls', 'code' or 'outputs', got"
            f" {join_names(map(str, given)) or 'an empty mapping'}"
        )
    if named["code"].strip():
        try:
            named["code"] = complete_tests((named["code"],), named["setup"], named["check"])
        except UndecidedError as error:
            raise DataError(f"'code' of fedagentgym/Code-v0 {error}") from None
    return Checks(calls=calls, outputs=outputs, **named)


def _read_list(value: Any) -> Any:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    return value


def _read_pairs(given: Mapping[str, Any], name: str) -> Iterator[Any]:
    return map(_read_list, _read_list(() if given.get(name) is None else given[name]))


def _read_output(given: Any, expected: Any) -> tuple[str, str]:
    """An input of a whole program and its output; an input that is null is empty."""
    if expected is None:
        raise TypeError
    return "" if given is None else str(given), str(expected)


def _read_name(given: Mapping[str, Any], name: str) -> str:
    return "" if given.get(name) is None else str(given[name])


_default: CodeVerifier | None = None
_default_lock = threading.Lock()


def default_verifier() -> CodeVerifier:
    """The verifier that this process shares; its servers start with the first program."""
    global _default
    with _default_lock:
        if _default is None:
            _default = CodeVerifier()
        return _default


def grade_code(reply: str, tests: Checks, limits: Limits | None = None, accept: Collection[str] = ()) -> Verdict:
    """Grade a reply with a program by running its tests in a sandboxed process.

    Args:
        reply: The whole reply. The program is the last fenced block of its answer that defines a name which the tests ask for,
            or else the last fenced block, or else the answer itself.
        tests: The tests.
        limits: Seconds, memory and output that the program may use; by default 5 s, 512 MiB and 1 MiB.
        accept: Protections of the sandbox that may be missing on this machine, such as `other user` under root.

    Returns:
        The verdict: `correct` if all tests pass, `score` the share that does. No program makes this raise or hang.
    """
    program = extract_program(reply, tests)
    return wrong("no program") if program is None else default_verifier().verify(program, tests, limits, accept)


def describe_protections(start: bool = False) -> str:
    """The names of the protections that are active around this process's programs, for records.

    Empty before the first program, unless `start` is true.
    """
    if start:
        default_verifier().protections()
    return ", ".join(list_names_up(_default.slots.seen)) if _default is not None else ""
