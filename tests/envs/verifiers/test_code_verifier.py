"""Programs: what passes, what fails, and what must not get out, stay behind, or win by cheating."""

from __future__ import annotations

import gzip
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym  # noqa: F401 - registers the environments
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.verifiers.code import (
    Call,
    Checks,
    CodeVerifier,
    calls_of,
    extract_program,
    grade_code,
    remote_names,
    same_output,
)
from fedagentgym.envs.verifiers.sandbox import confine, messages, pool, runs
from fedagentgym.envs.verifiers.sandbox.confine import Protection
from fedagentgym.envs.verifiers.sandbox.pool import SandboxError
from tests.envs.verifiers.code_checks import ANSWER, ANSWER_BY_OUTPUT, ANSWER_BY_TEST, SHORT

BURN = "while True:\n        try:\n            while True: pass\n        except BaseException: pass"
HOSTILE = {
    "a loop that catches everything": f"def f(x):\n    {BURN}",
    "a loop at once": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "ignored signals": "import signal, time\nfor s in range(1, 65):\n"
    "    try: signal.signal(s, signal.SIG_IGN)\n    except Exception: pass\n"
    "while True: time.sleep(1)",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
    "daemon": "import os, time\ntry:\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(60)\n"
    "except BaseException: pass\ntime.sleep(60)",
    "ten gigabytes": "def f(x): return 'a' * 10 ** 10\nf(1)",
    "memory by pieces": "x = []\nwhile True: x.append([0] * 1000)",
    "flood": "import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)",
    "exit": "import sys; sys.exit(0)",
    "exit at once": "import os; os._exit(0)",
    "exit in the function": "import os\ndef f(x): os._exit(0)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "frame walk": "import sys, gc\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        for value in {**frame.f_locals, **frame.f_globals}.values():\n"
    "            if isinstance(value, dict) and 'expected' in value: return value['expected']\n        frame = frame.f_back\n"
    "    pairs = (one for one in gc.get_objects() if isinstance(one, tuple) and len(one) == 2)\n"
    "    return next((one[1] for one in pairs if one[1] == 42), None)",
    "always equal": "class E:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
    "    def __bool__(self): return True\ndef f(x): return E()",
    "always equal integer": "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def f(x): return E(3)",
    "always equal text": "class E(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\n"
    "def f(x): return E('a')",
    "every descriptor": 'import os\nfor fd in range(300):\n    try: os.write(fd, b\'{"passed": true, "reason": "passed"}\' * 9)\n'
    "    except BaseException: pass\ndef f(x): return 0",
    "a forged verdict": "import socket\ndef f(x):\n    channel = socket.socket(fileno=3)\n"
    "    forged = b'{\"d\": [[\"passed\", true]]}'\n    channel.sendall(len(forged).to_bytes(4, 'big') + forged)\n    return 0",
    "four megabytes": "x = 1\n" * 700_000,
    "deep brackets": "(" * 90_000 + "1" + ")" * 90_000,
    "deep signs": "x = " + "-" * 90_000 + "1",
    "threads without end": "import threading, time\nwhile True:\n"
    "    try: threading.Thread(target=time.sleep, args=(60,)).start()\n"
    "    except BaseException: pass",
    "files without end": "i = 0\nwhile True:\n    open(str(i), 'w').write('x' * 1000); i += 1",
    "a large file": "f = open('a', 'w')\nwhile True: f.write('x' * 10 ** 6)",
    "recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return f(x)\nf(1)",
    "a deep result": "def f(x):\n    a = []\n    for _ in range(100000): a = [a]\n    return a",
    "a result in itself": "def f(x):\n    a = []; a.append(a); return a",
    "a result without end": "def f(x):\n    while True: yield x",
    "a number without end": "def f(x): return 10 ** 10 ** 8",
    "colliding hashes": "def f(x): return set(i * (2 ** 61 - 1) for i in range(1, 9000))",
    "an error that breaks its reader": "class E(BaseException):\n    def __str__(self): raise E()\ndef f(x): raise E()",
    "patched built-ins": "import builtins, json\njson.dumps = lambda *a, **k: '42'\nbuiltins.isinstance = lambda a, b: True\n"
    "def f(x): return None",
    "no channel": "import os, time\nos.close(3)\ntime.sleep(60)",
    "nothing": "",
    "no character": "x = '\x00'",
    "surrogate": "x = '\ud800'",
}
FORBIDDEN = {
    "list the root": "import os; os.listdir('/')",
    "read a file": "open('/etc/passwd')",
    "read the tests' folder": f"open({str(Path(__file__))!r})",
    "write outside": "open('/tmp/fedagentgym-escaped', 'w')",
    "start a process": "import os; os.fork()",
    "start a program": "import subprocess; subprocess.run(['ls'])",
    "open a socket": "import socket; socket.socket()",
    "signal another process": "import os; os.kill(os.getppid(), 0)",
    "leave the group": "import os; os.setsid()",
    "make a folder": "import os; os.mkdir('x')",
    "link": "import os; os.symlink('/etc', 'x')",
    "share memory": "from multiprocessing.shared_memory import SharedMemory; SharedMemory(create=True, size=10)",
    "trace": "import ctypes, os\nif ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) != 0: raise PermissionError",
    "installed packages": "import gymnasium",
}


MALFORMED = [b'{"t": 1}', b'{"d": [[1]]}', b'{"i": "g"}', b"[" * 5000, b'{"a": 1, "b": 2}', b"{}"]


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_calls_tests_and_outputs(verifier: CodeVerifier) -> None:
    right = "def f(x):\n    return 42"
    assert verifier.verify(right, ANSWER).correct
    assert verifier.verify(right, ANSWER_BY_TEST).correct
    assert verifier.verify("print(int(input()) + 41)", ANSWER_BY_OUTPUT).correct
    half = verifier.verify("def f(x):\n    return 42 if x == 1 else 0", ANSWER)
    assert not half.correct and half.score == 0.5
    assert verifier.verify("def f(x):\n    raise ValueError('no')", ANSWER).reason.startswith("ValueError")
    assert verifier.verify("def f(x) return 42", ANSWER).reason.startswith("SyntaxError")
    assert not verifier.verify("def g(x):\n    return 42", ANSWER).correct
    assert not verifier.verify(right, Checks()).correct


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("(1, 2)", (1, 2), True),
        ("[1, 2]", (1, 2), False),
        ("{1: {2, 3}}", {1: {2, 3}}, True),
        ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}, True),
        ("2 ** 200", 2**200, True),
        ("0.1 + 0.2", 0.3, True),
        ("float('nan')", float("nan"), True),
        ("1.0", 1, True),
        ("True", 1, False),
        ("None", None, True),
        ("b'ab'", b"ab", True),
        ("1 + 2j", 1 + 2j, True),
        ("'\\ud800'", "\ud800", True),
        ("range(3)", [0, 1, 2], False),
        ("(x for x in [1])", [1], False),
        ("object()", None, False),
    ],
)
def test_results_are_compared_as_plain_data(verifier: CodeVerifier, written: str, expected: Any, same: bool) -> None:
    program = f"def f():\n    return {written}"
    assert verifier.verify(program, Checks("f", (Call((), expected),))).correct == same


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_plain_data_survives_the_channel(value: Any) -> None:
    back = messages.loads(messages.dumps(value))
    assert back == value
    assert type(back) is type(value)


def test_colliding_hashes_cost_their_reader_nothing() -> None:
    keys = b", ".join(b'{"i": "%x"}' % (number * (2**61 - 1)) for number in range(1, 9000))
    started = time.process_time()
    with pytest.raises(messages.NotPlain):
        messages.loads(b'{"s": [' + keys + b"]}")
    with pytest.raises(messages.NotPlain):
        messages.loads(b"[" + b", ".join([b'{"s": [' + keys[:30_000].rpartition(b",")[0] + b"]}"] * 20) + b"]")
    assert time.process_time() - started < 2.0


@given(
    st.binary(max_size=80)
    | st.sampled_from([b'{"t": 1}', b'{"d": [[1]]}', b'{"i": "g"}', b"[" * 5000, b'{"a": 1, "b": 2}', b"{}"])
)
def test_any_frame_is_plain_data_or_refused(frame: bytes) -> None:
    try:
        messages.loads(frame)
    except messages.NotPlain:
        return


def test_test_code_reaches_the_program_by_messages_only(verifier: CodeVerifier) -> None:
    tests = Checks(
        code="root = Node(1)\nroot.left = Node(2)\nassert total(root) == 3\nassert set(pairs()) == {(1, 2)}\n"
        "try:\n    fails()\n    assert False, 'no error'\nexcept ValueError:\n    pass\nassert helper(2) == 4",
        setup="def helper(x):\n    return x * 2",
    )
    assert set(remote_names(tests)) == {"Node", "total", "pairs", "fails"}
    program = (
        "class Node:\n    def __init__(self, v):\n        self.v, self.left = v, None\n"
        "def total(node):\n    return node.v + (total(node.left) if node.left else 0)\n"
        "def pairs():\n    yield (1, 2)\ndef fails():\n    raise ValueError('x')\n"
    )
    assert verifier.verify(program, tests).correct
    assert not verifier.verify(program.replace("node.v +", "1 +"), tests).correct
    looking = "import gc\ndef f(x):\n    texts = (o for o in gc.get_objects() if type(o) is str)\n"
    looking += "    return 42 if any('candidate' in text for text in texts) else 0"
    assert not verifier.verify(looking, ANSWER_BY_TEST).correct


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_humaneval_solutions_pass_and_others_fail(verifier: CodeVerifier, shared_data: Path, every: int) -> None:
    with gzip.open(shared_data / "humaneval" / "HumanEval.jsonl.gz") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 164
    wrong = []
    for row in rows[::every]:
        tests = Checks(row["entry_point"], code=row["test"], setup=row["prompt"], check="check")
        if not verifier.verify(row["prompt"] + row["canonical_solution"], tests).correct:
            wrong.append(f"{row['task_id']} refused")
        if verifier.verify(row["prompt"] + "    return None\n", tests).correct:
            wrong.append(f"{row['task_id']} passed")
    assert wrong == []


@pytest.mark.by_day(3)
@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_programs_fail_in_time_and_leave_nothing(verifier: CodeVerifier, folder: Path, program: str) -> None:
    for tests in (ANSWER, ANSWER_BY_TEST):
        started = time.monotonic()
        assert not verifier.verify(program, tests, SHORT).correct
        assert time.monotonic() - started < 30.0
    assert not verifier.verify(program, ANSWER_BY_OUTPUT, SHORT).correct
    assert list(folder.iterdir()) == []
    for slot in verifier.slots._idle:
        for server in (slot.program, slot.test):
            if server._process is not None:
                assert children_of(server._process.pid) == []
    assert verifier.verify("def f(x): return 42", ANSWER).correct


@pytest.mark.parametrize("program", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_a_program_cannot_get_out(verifier: CodeVerifier, program: str) -> None:
    ended = verifier.run(program)
    if {"system calls", "file access"} <= {one.name for one in verifier.protections() if one.up}:
        assert ended.status == "ended" and ended.code == 1
        assert "Error" in ended.err


def test_a_program_has_an_empty_world_of_its_own(verifier: CodeVerifier) -> None:
    shown = verifier.run(
        "import os, random\nprint(os.listdir('.'), dict(os.environ), random.random(), hash('a'), __name__)"
    )
    assert shown.code == 0 and shown.out.startswith("[] {}") and shown.out.strip().endswith("__main__")
    other = CodeVerifier(workers=1)
    assert other.run("import random\nprint(random.random(), hash('a'))").out.split() == shown.out.split()[2:4]
    other.close()
    assert (
        verifier.run("import threading\nt = threading.Thread(target=print, args=(3,)); t.start(); t.join()").out
        == "3\n"
    )
    assert verifier.run("raise ValueError('so')").err.rstrip().endswith("ValueError: so")
    assert verifier.run("print(input()[::-1])", "abc\n").out == "cba\n"


def test_programs_from_threads_and_after_a_server_died() -> None:
    verifier = CodeVerifier(workers=2)
    results: list[bool] = []

    def work() -> None:
        results.extend(verifier.verify("def f(x): return 42", ANSWER).correct for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 30
    processes = [slot.program._process for slot in verifier.slots._idle]
    for process in processes:
        assert process is not None
        process.kill()
        process.wait()
    assert verifier.verify("def f(x): return 42", ANSWER).correct
    running = [slot.program._process for slot in verifier.slots._idle if slot.program._process is not None]
    verifier.close()
    assert all(process.returncode is not None for process in running)


def test_what_a_system_lacks_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_reported", set())
    lacking = Protection("file access", False, "no Landlock")
    with caplog.at_level(logging.WARNING):
        pool.report_missing([Protection("limits", True, ""), lacking])
        pool.report_missing([lacking])
    assert [record.getMessage() for record in caplog.records] == [
        "the sandbox for programs lacks file access: no Landlock"
    ]


def test_root_needs_another_user_or_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    down = [Protection("limits", True, ""), Protection("other user", False, "another user cannot read the library")]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SandboxError, match=r"would run as root.*cannot read the library.*accept: "):
        pool.refuse_without(down, ())
    pool.refuse_without(down, ("other user",))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    pool.refuse_without(down, ())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may have another user")
def test_code_env_refuses_to_run_as_root_unless_told() -> None:
    verifier = CodeVerifier(workers=1, left_out=["other user"])
    with pytest.raises(SandboxError, match="left out on request"):
        verifier.verify("def f(x): return 42", ANSWER)
    with pytest.raises(SandboxError):
        verifier.run("print(1)")
    assert verifier.verify("def f(x): return 42", ANSWER, accept=["other user"]).correct
    verifier.close()


def test_the_option_sandbox_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gym.make("fedagentgym/Code-v0", sandbox={"accept": ["other user"]}).unwrapped.accept == ("other user",)
    for wrong in ({"accept": "other user"}, {"accept": ["users"]}, {"allow": []}, ["other user"], "other user"):
        with pytest.raises(FedAgentGymError):
            gym.make("fedagentgym/Code-v0", sandbox=wrong)
    with pytest.raises(FedAgentGymError, match="cannot be left out"):
        CodeVerifier(left_out=["limits"])


def test_a_graded_step_names_the_protections_in_force() -> None:
    env = gym.make("fedagentgym/Code-v0", size="tiny")
    _, info = env.reset(seed=0)
    assert info["protections"] == ""
    _, _, _, _, info = env.step("<answer> ```python\npass\n``` </answer>")
    assert "limits" in info["protections"].split(", ")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may have another user")
def test_another_user_has_to_reach_the_folders_of_runs(tmp_path: Path) -> None:
    """It could not write there, and a right program that writes a file would fail."""
    tmp_path.chmod(0o700)
    user, found = confine._choose_user([confine.NOBODY], "", (), str(tmp_path))
    reason = f"another user cannot enter {tmp_path} (Permission denied)"
    assert user is None and found == Protection("other user", False, reason)


@pytest.mark.parametrize("left_out", [(), ("private files", "process namespace", "user namespace")])
def test_folders_of_killed_servers_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = CodeVerifier(workers=1, left_out=left_out, accept=["other user"])
    assert made.protections()
    (slot,) = made.slots._idle
    process = slot.program._process
    assert process is not None
    thread = threading.Thread(target=made.run, args=("open('x', 'w').write('x')\nimport time\ntime.sleep(60)",))
    thread.start()
    deadline = time.monotonic() + 20
    while not children_of(process.pid) or (left_out and not list(tmp_path.glob("*/x"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    running = children_of(process.pid)
    process.kill()
    thread.join()
    while any(Path(f"/proc/{pid}").exists() for pid in running):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    other = CodeVerifier(workers=1, left_out=left_out, accept=["other user"])
    assert other.run("print(1)").out == "1\n"
    assert list(tmp_path.iterdir()) == []
    other.close()
    made.close()


def test_a_sweep_leaves_folders_in_use_and_those_of_others(tmp_path: Path) -> None:
    used, left = runs.make_folder(str(tmp_path)), tmp_path / f"{runs.PREFIX}left"
    deep = left
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "f").write_text("x")
    (left / "closed").mkdir(mode=0)
    (tmp_path / "other").mkdir()
    (tmp_path / f"{runs.PREFIX}link").symlink_to(tmp_path / "other")
    assert runs.sweep_folders(str(tmp_path)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["other", f"{runs.PREFIX}link", Path(used.path).name]
    )
    runs.remove_folder(used)
    assert not Path(used.path).exists()


def test_the_program_of_a_reply() -> None:
    assert extract_program("<answer>\n```python\na = 1\n```\n</answer>") == "a = 1"
    assert extract_program("```python\na = 1\n```") == "a = 1"
    assert extract_program("<answer> a = 1 </answer>") == "a = 1"
    assert extract_program("a = 1") is None
    f = "def f(x):\n    return x"
    reply = f"```python\n{f}\n```\nExample:\n```python\nprint(f(1))\n```\nOutput:\n```\n1\n```"
    for whole in (reply, f"<answer>{reply}</answer>", f"<answer>{reply}</answer> ends with </answer>"):
        assert extract_program(whole) == "1"
        assert extract_program(whole, Checks("f", (Call((1,), 1),))) == f
        assert extract_program(whole, Checks(code="assert f(1) == 1")) == f
        assert extract_program(whole, Checks(code="def check(f): assert f(1) == 1", check="check", entry="f")) == f
        assert extract_program(whole, Checks(outputs=(("", "1"),))) == "1"
    assert grade_code(reply, Checks("f", (Call((1,), 1),))).correct
    later = f"{reply}\n```python\ndef f(x): return 0\n```"
    assert not grade_code(later, Checks("f", (Call((1,), 1),))).correct


def test_plain_asserts_become_calls() -> None:
    assert calls_of(["assert f(1, [2]) == (3,)", "assert f(0, []) == ()"]) == (
        "f",
        (Call((1, [2]), (3,)), Call((0, []), ())),
    )
    for other in (
        "assert f(1)",
        "assert f(1) != 2",
        "assert f(g(1)) == 2",
        "assert abs(f(1)) == x",
        "f(1) == 2",
        "assert (",
    ):
        assert calls_of([other]) is None
    assert calls_of(["assert f(1) == 1", "assert g(1) == 1"]) is None


def test_outputs_are_compared_line_by_line() -> None:
    assert same_output("a \nb\n\n", "a\nb")
    assert not same_output("a\n\nb", "a\nb")
    assert not same_output("a b", "a  b")
