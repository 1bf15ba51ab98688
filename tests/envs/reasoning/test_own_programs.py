"""Tests of programs in data of one's own: they decide, or the row is refused. No tests accept every program."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.envs import TaskPool, open_env
from fedagentgym.envs.verifiers.code_tests import UndecidedError, complete_tests
from fedagentgym.errors import DataError

CODE = "fedagentgym/Code-v0"
RUN = {"sandbox": {"accept": ["other user"]}}
GOOD, NONE = "def add(a, b): return a + b", "def add(a, b): return None"
ASSERT = "assert add(1, 2) == 3"
TEST = f"def test_add():\n    {ASSERT}\n"
UNITTEST = (
    "import unittest\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
)

DECIDE = [
    TEST,
    TEST + "def test_more():\n    assert add(2, 2) == 4\n",
    TEST + "test_add()\n",
    f"def test_add(a=1):\n    assert add(a, 2) == 3\n{ASSERT}",
    f"def check():\n    {ASSERT}\n",
    f"if __name__ == '__main__':\n    {ASSERT}\n",
    "if add(1, 2) != 3:\n    raise ValueError\n",
    "def same(a, b):\n    assert a == b\nfor a in range(3):\n    same(add(a, 1), a + 1)\n",
    "def same(a):\n    assert add(a, 1) == a + 1\nlist(map(same, [1, 2]))\n",
    "import unittest\nunittest.TestCase().assertEqual(add(1, 2), 3)\n",
    f"try:\n    {ASSERT}\nexcept AssertionError:\n    raise ValueError\n",
    "try:\n    bad = add(1, 2) != 3\nexcept Exception:\n    bad = True\nassert not bad\n",
]
ACCEPT_ALL = [
    "def t():\n    assert add(1, 2) == 3\nt",
    "assert lambda: add(1, 2) == 3",
    "assert [add(1, 2) == 3]",
    "assert {add(1, 2) == 3}",
    "# add(1, 2) == 3",
    "add(1, 2) == 3",
    f"{ASSERT}\nadd(2, 2) == 4",
    "print(add(1, 2) == 3)",
    "assert True",
    "assert (add(1, 2) == 3, 'wrong')",
    "assert 1 + 2 == 3",
    "from solution import add\nassert add(1, 2) == 3",
    UNITTEST,
    f"{UNITTEST}unittest.main(exit=False)\n",
    f"{UNITTEST}{ASSERT}\n",
    f"class TestAdd:\n    def test_add(self):\n        {ASSERT}\n",
    f"async def test_add():\n    {ASSERT}\n",
    f"def test_add():\n    {ASSERT}\n    yield\n",
    f"def test_add(a, b):\n    assert add(a, b) == 3\n{ASSERT}\n",
    f"{TEST}{TEST}",
    f"def run():\n    {ASSERT}\n",
    f"def check():\n    def inner():\n        {ASSERT}\n",
    f"try:\n    {ASSERT}\nexcept AssertionError:\n    print('no')\n",
    f"import contextlib\nwith contextlib.suppress(AssertionError):\n    {ASSERT}\n",
    f"try:\n    {ASSERT}\nexcept:\n    pass\n",
    f"def run():\n    {ASSERT}\ntry:\n    run()\nexcept (ValueError, Exception):\n    pass\n",
    f"def test_add():\n    return\n    {ASSERT}\n",
    f"{TEST}def test_more():\n    return add(2, 2) == 4\n",
    "assert add(1, 2) == 3 or True",
    "for a in []:\n    assert add(a, 1) == a + 1\n",
    f"def add(a, b):\n    return a + b\n{ASSERT}\n",
    f"if False:\n    {ASSERT}\n",
    "def assert_same(a, b):\n    print(a == b)\nassert_same(add(1, 2), 3)\n",
]


def play(env: Any, program: str) -> bool:
    (start,) = env.reset_many([env.pool.ids[0]], [0])
    (end,) = env.step_many([start], [f"<answer>\n```python\n{program}\n```\n</answer>"])
    return bool(end.view.success)


def open_row(**fields: Any) -> Any:
    return open_env(CODE, data=[{"question": "Write add(a, b).", **fields}], **RUN)


def open_payload(**payload: Any) -> Any:
    rows = [{"category": "own", "payload": {"statement": "Write add(a, b).", **payload}}]
    return open_env(CODE, pool=TaskPool.from_records(rows, env=CODE), **RUN)


@pytest.mark.parametrize("code", DECIDE)
def test_test_code_decides_in_every_form(code: str) -> None:
    for env in (open_row(tests=code), open_row(tests=[code], setup="import math"), open_payload(code=code)):
        assert play(env, GOOD) and not play(env, NONE)


@pytest.mark.parametrize("code", ACCEPT_ALL)
def test_test_code_that_accepts_every_program_is_refused(code: str) -> None:
    for tests in (code, [code], ["import math", code]):
        with pytest.raises(DataError, match=r"row 1: the field 'tests' ") as caught:
            open_row(tests=tests)
        assert "\n" not in str(caught.value)
    for payload in ({"code": code}, {"tests": {"code": code}}):
        with pytest.raises(DataError, match=r"'code' of fedagentgym/Code-v0 "):
            play(open_payload(**payload), NONE)


def test_tests_of_the_same_name_in_a_list_all_run() -> None:
    for first, last in ((3, 0), (0, 3)):
        env = open_row(tests=[f"def test_add():\n    assert add(1, 2) == {one}\n" for one in (first, last)])
        assert not play(env, GOOD)
    assert play(open_row(tests=[TEST, TEST]), GOOD)


@pytest.mark.parametrize("question", ["Write add(a, b).", "def add(a, b):\n    '''Add.'''\n"])
def test_a_check_whose_asserts_never_run_is_refused(question: str) -> None:
    inner = "def check(candidate):\n    def inner():\n        assert candidate(1, 2) == 3\n"
    with pytest.raises(DataError, match="holds no assert that runs"):
        open_row(question=question, tests=inner, entry="add")
    env = open_row(question=question, tests=inner + "    inner()\n", entry="add")
    assert play(env, GOOD) and not play(env, NONE)
    with pytest.raises(DataError, match="defines no function 'verify'"):
        play(open_payload(code=inner, check="verify", entry="add"), NONE)


@given(st.lists(st.sampled_from(DECIDE[:4]), min_size=1, max_size=3), st.lists(st.sampled_from(ACCEPT_ALL), max_size=2))
def test_parts_are_completed_without_losing_a_line(decide: list[str], others: list[str]) -> None:
    try:
        code = complete_tests((*decide, *others))
    except UndecidedError:
        assert others or len(decide) > 1
    else:
        assert all(part in code for part in (*decide, *others))
        assert complete_tests((code,)) == code  # nothing is added twice


CASES = [
    {"entry": "add", "tests": [{"input": [1, 2], "expected": 3}]},
    {"tests": [{"input": "1 2", "expected_output": "3"}]},
    {"tests": [{"input": "1 2", "output": "3"}, {"stdin": "1 2", "output": "3"}]},
    {"tests": [{}]},
    {"tests": [{"output": "3"}]},
    {"tests": {"input": ["1 2"], "output": ["3"]}},
    {"tests": {}},
    {"tests": [{"input": "1 2", "output": None}]},
    {"tests": {"inputs": ["1 2"], "outputs": [None]}},
    {"tests": {"outputs": [["1 2", None]]}},
    {"tests": {"outputs": [{"input": "1 2", "output": "3"}]}},
    {"entry": "add", "tests": {"calls": [{"args": [1, 2], "expected": 3}]}},
    {"entry": "add", "tests": {"calls": [["ab", 3]]}},
    {"entry": "add", "tests": {"calls": ["ab"]}},
]


@pytest.mark.parametrize("fields", CASES)
def test_cases_without_the_keys_that_are_read_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="row 1: ") as caught:
        open_row(**fields)
    assert any(word in str(caught.value) for word in ("'output'", "'calls'", "output is null"))
    if isinstance(fields["tests"], dict) and "inputs" not in fields["tests"]:
        with pytest.raises(DataError, match="of fedagentgym/Code-v0"):
            play(open_payload(**fields), NONE)


def test_a_missing_input_of_a_program_is_empty() -> None:
    program = "import sys\nprint(len(sys.stdin.read()))"
    for tests in ([{"input": None, "output": "0"}], {"outputs": [[None, "0"]]}, {"inputs": [None], "outputs": [0]}):
        assert play(open_row(tests=tests), program)
    nothing = open_row(entry="add", tests=[{"input": [1, 2], "output": None}])  # a function may return None
    assert play(nothing, NONE) and not play(nothing, GOOD)


def test_published_tests_are_unchanged(shared_data: Path) -> None:
    with gzip.open(shared_data / "humaneval" / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    own = open_env(CODE, data=str(shared_data / "humaneval"), split="all")
    published = open_env(CODE, source="humaneval", data=str(shared_data / "humaneval"), split="all")
    for row, mine, theirs in zip(rows, own.pool, published.pool, strict=True):
        assert complete_tests((row["test"],), row["prompt"], "check") == row["test"]
        assert mine.payload.tests == theirs.payload.tests
