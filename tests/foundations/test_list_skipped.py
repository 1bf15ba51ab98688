"""The list of tests that `make test` leaves out."""

from __future__ import annotations

from pathlib import Path

from tests.list_skipped import LeftOut, list_conditions, list_marked

TESTS = '''"""A module. It has tests."""
import pytest


@pytest.mark.slow(reason="a model of its own")
def test_a() -> None: ...


@pytest.mark.slow
def test_b() -> None:
    """It plays a game. For long."""


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.gpu)])
def test_c(size: int) -> None: ...


@pytest.mark.xfail(reason="not yet")
@pytest.mark.skipif(False, reason="never")
def test_d() -> None: ...


@pytest.mark.skipif(True, reason="always")
def test_e() -> None: ...
'''


def test_marked_tests_are_listed_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "test_marked_examples.py").write_text(TESTS)
    found = [one._replace(place=one.place.rpartition("::")[2]) for one in list_marked(tmp_path)]
    assert found == [
        LeftOut("gpu", "test_c[2]", "A module"),
        LeftOut("skipif", "test_e", "always"),
        LeftOut("slow", "test_a", "a model of its own"),
        LeftOut("slow", "test_b", "It plays a game"),
        LeftOut("xfail", "test_d", "not yet"),
    ]


def test_conditions_are_listed_with_their_reasons() -> None:
    found = list(list_conditions())
    assert all(one.reason for one in found)
    assert LeftOut("skip", "tests/gpu/test_gpu_checks.py", "needs a CUDA device") in [
        one._replace(place=one.place.partition(":")[0]) for one in found
    ]
