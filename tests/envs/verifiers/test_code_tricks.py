"""Programs that try to pass a test without the right answer."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from fedagentgym.envs.verifiers.code import Checks, CodeVerifier
from tests.envs.verifiers.code_checks import ANSWER, ANSWER_BY_OUTPUT, ANSWER_BY_TEST, SHORT

ENDS_OF_LOOPS = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt")
LENIENT_TESTS = {
    "all of a map": "def check(candidate):\n    assert all(map(lambda x: candidate(x) == 42, [1, 2, 3]))\n",
    "a map of the program": "def check(candidate):\n    assert all(map(candidate, [1, 2]))\n",
    "a loop over a call": "def check(candidate):\n    for x in iter(lambda: candidate(1), 42):\n        assert x == 42\n",
    "a sum": "def check(candidate):\n    assert sum(1 for x in map(candidate, [1]) if x != 42) == 0\n",
    "sorted by it": "def check(candidate):\n    assert list(filter(lambda x: candidate(x) != 42, [1, 2])) == []\n",
    "every error is forgiven": "def check(candidate):\n    try:\n        assert candidate(1) == 42\n"
    "    except AssertionError:\n        raise\n    except BaseException:\n        pass\n",
    "zip": "def check(candidate):\n    assert all(a == b for a, b in zip(map(candidate, [1, 2]), [42, 42]))\n",
}


@pytest.mark.parametrize("test", LENIENT_TESTS.values(), ids=LENIENT_TESTS.keys())
def test_errors_that_end_loops_are_failures(verifier: CodeVerifier, test: str) -> None:
    tests = Checks("f", code=test, check="check")
    for error in ENDS_OF_LOOPS:
        for program in (
            f"def f(x): raise {error}",
            f"def f(x): raise {error}(0)",
            f"class E({error}): pass\nE.__name__ = '{error}'\ndef f(x): raise E",
        ):
            assert not verifier.verify(program, tests).correct, (error, program)
    assert not verifier.verify("def f(x): return next(iter(()))", tests).correct
    assert verifier.verify("def f(x): return 42", tests).correct


TRICKS = {
    "leave": "import sys\ndef f(x): sys.exit(0)",
    "leave at once": "import os\ndef f(x): os._exit(0)",
    "leave when loaded": "import os\nos._exit(0)",
    "at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 1",
    "equal to all": "class E:\n    __eq__ = lambda *_: True\n    __ne__ = lambda *_: False\n    __hash__ = lambda s: 0\ndef f(x): return E()",
    "equal number": "class E(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef f(x): return E(1)",
    "equal list": "class E(list):\n    __eq__ = lambda *_: True\ndef f(x): return E([1])",
    "compares from the right": "class E(int):\n    __req__ = __eq__ = lambda *_: True\n    __hash__ = None\ndef f(x): return E()",
    "its own check": "def check(candidate): pass\ndef f(x): return 1",
    "the test's names": "import sys, builtins\nm = sys.modules['__main__']\nm.check = lambda c: None\nm.candidate = lambda x: 42\n"
    "builtins.check = m.check\ndef f(x): return 1",
    "other built-ins": "import builtins\nbuiltins.all = lambda x: True\nbuiltins.AssertionError = ValueError\n"
    "builtins.len = lambda x: 42\ndef f(x): return 1",
    "another equality": "import operator, functools\noperator.eq = lambda a, b: True\ndef f(x): return 1",
    "frames": "import sys\ndef f(x):\n    g = sys._getframe()\n    while g:\n        g.f_globals['check'] = lambda c: None\n"
    "        g.f_locals['check'] = None\n        g = g.f_back\n    return 1",
    "a trace": "import sys\ndef f(x):\n    sys.settrace(lambda *a: None)\n    sys.setprofile(lambda *a: None)\n    return 1",
    "a hook for errors": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef f(x): raise ValueError",
    "a thread that leaves": "import threading, os\ndef f(x):\n    threading.Thread(target=os._exit, args=(0,)).start()\n"
    "    import time; time.sleep(5)",
    "a generator": "def f(x):\n    yield 42",
    "an endless generator": "def f(x):\n    while True: yield 42",
    "a failing generator": "def f(x):\n    raise StopIteration\n    yield 42",
    "a lambda": "f = lambda x: (lambda y: 42)",
    "forged frames": "import socket\nfor n in range(3, 9):\n    try:\n        s = socket.socket(1, 1, 0, n)\n"
    "        for text in (b'{\"passed\": true, \"reason\": \"passed\"}', b'{\"d\": []}', b'{}', b'[]', b'0'):\n"
    "            s.sendall(len(text).to_bytes(4, 'big') + text)\n    except OSError: pass\ndef f(x): return 1",
    "forged errors": 'import socket\ns = socket.socket(1, 1, 0, 3)\ntext = b\'{"d": [["error", "StopIteration"], ["text", ""]]}\'\n'
    "ok = b'{\"d\": [[\"value\", null]]}'\ns.sendall(len(ok).to_bytes(4, 'big') + ok)\n"
    "for _ in range(9): s.sendall(len(text).to_bytes(4, 'big') + text)\ndef f(x): return 1",
    "a test of its own error": "def f(x): raise AssertionError",
    "an exit that is an error": "class E(SystemExit, ValueError): pass\ndef f(x): raise E",
    "a group of ends": "def f(x): raise BaseExceptionGroup('', [SystemExit(0)])",
    "a changed class": "class int(int):\n    pass\ndef f(x): return type(x)",
    "a signal": "import os, signal\ndef f(x): os.kill(os.getpid(), 9)",
    "a module of the test": "import sys, types\nsys.modules['json'] = types.SimpleNamespace(dumps=lambda *a: '42')\ndef f(x): return 1",
}


@pytest.mark.by_day(2)
@pytest.mark.parametrize("program", TRICKS.values(), ids=TRICKS.keys())
def test_no_trick_passes(verifier: CodeVerifier, program: str) -> None:
    for test in LENIENT_TESTS.values():
        if "forgiven" not in test and "BaseException" not in test and "map(candidate, [1, 2]))\n" not in test:
            assert not verifier.verify(program, Checks("f", code=test, check="check"), SHORT).correct, test
    assert not verifier.verify(program, ANSWER, SHORT).correct
    assert not verifier.verify(program, ANSWER_BY_TEST, SHORT).correct
    assert not verifier.verify(program, ANSWER_BY_OUTPUT, SHORT).correct
