"""The comparison of two commits distinguishes equal from different, and reasons count only for the digests that they name."""

from __future__ import annotations

import pytest

from tests.compare_commits import KINDS, all_cases, compare


def test_differences_count_unless_they_have_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    base = {"methods/fedagent/policy": "1", "methods/fedagent/state": "2", "splits/uniform Guess/file": "3"}
    assert compare(base, base) == 0
    assert compare({**base, "methods/fedagent/state": "other"}, base) == 0
    assert "1 differ: the layout of stored states" in capsys.readouterr().out
    assert compare({**base, "methods/fedagent/policy": "other"}, base) == 1
    assert compare({**base, "episodes/Guess train/expert": "4"}, base) == 1
    failed = {"methods/fedagent/failed": "failed: ValueError: no"}
    assert compare(failed, failed) == 1, "what fails on both sides is not equal"
    assert "only here" in capsys.readouterr().out


def test_every_kind_has_cases() -> None:
    quick, all_of_them = (all_cases(KINDS, quick) for quick in (True, False))
    assert set(quick) < set(all_of_them)
    assert {name.partition("/")[0] for name in quick} == set(KINDS)
