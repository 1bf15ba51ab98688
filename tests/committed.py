"""The committed results: all of them in a clone, the smallest suites in a source distribution (`MANIFEST.in`)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "leaderboard" / "results"
VERIFIED = ROOT / "leaderboard" / "verified"
IS_COMPLETE = not (ROOT / "PKG-INFO").is_file()
"""False in an unpacked source distribution."""

needs_all_results = pytest.mark.skipif(not IS_COMPLETE, reason="a source distribution lacks the larger results")


def find_suite(name: str) -> Path:
    """The folder of a suite's committed results; skips the test in a source distribution without them."""
    if not IS_COMPLETE and not (RESULTS / name).is_dir():
        pytest.skip("a source distribution lacks the larger results")
    return RESULTS / name
