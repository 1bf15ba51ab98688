"""A program finds nothing of the programs that ran before it in the same warm server."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator

import pytest

from fedagentgym.envs.verifiers.code import CodeVerifier
from fedagentgym.envs.verifiers.sandbox.pool import Limits
from tests.envs.verifiers.escape.residue import make_planting_checks, make_planting_script, make_search

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
LIMITS = Limits(seconds=30.0)


@pytest.fixture
def verifier() -> Iterator[CodeVerifier]:
    with_one_server = CodeVerifier(workers=1, accept=["other user"])
    yield with_one_server
    with_one_server.close()


@pytest.mark.by_day(2)
@pytest.mark.parametrize("heap", [4 << 20, 32 << 20, 128 << 20], ids=lambda size: f"{size >> 20} MiB of heap")
@pytest.mark.parametrize("trials", [4, pytest.param(70, marks=pytest.mark.slow)])
def test_no_byte_of_an_earlier_run_is_found(verifier: CodeVerifier, heap: int, trials: int) -> None:
    search = make_search(heap)
    for number in range(trials):
        mark = f"MARK-{secrets.token_hex(12)}"
        source, given = make_planting_script(mark, (60, 20_000, 900_000)[number % 3])
        planted = verifier.run(source, given, LIMITS)
        assert planted.code == 1 and mark in planted.out and mark in planted.err
        source, checks = make_planting_checks(mark)
        assert verifier.verify(source, checks, LIMITS).score == 0.5
        found = verifier.run(search, "", LIMITS)
        assert found.out.splitlines()[-1] == "[]" and found.code == 0
        assert int(found.out.split()[1]) > 1000, "the search read next to no memory"


def test_the_search_finds_what_is_there(verifier: CodeVerifier) -> None:
    mark = f"MARK-{secrets.token_hex(12)}"
    found = verifier.run(f"kept = [{mark!r} * 3 for _ in range(3)]\n" + make_search(32 << 20), "", LIMITS)
    assert mark in found.out


def test_a_program_that_writes_while_it_answers_does_not_block(verifier: CodeVerifier) -> None:
    source, checks = make_planting_checks("MARK-loud")
    loud = source.replace("print(", "print('x' * 300_000);print(")
    assert verifier.verify(loud, checks, LIMITS).score == 0.5
    stopped = verifier.run("while True: print('x' * 100_000)", "", Limits(output=1 << 20))
    assert stopped.status == "too much output" and len(stopped.out) <= (1 << 20) + 65536
