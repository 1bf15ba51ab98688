"""The cost of verifying a forged result: it is refused by its sizes, before anything is made of it."""

from __future__ import annotations

import lzma
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.leaderboard.evidence import RefutedError
from fedagentgym.leaderboard.verify import verify
from tests.leaderboard import forger
from tests.leaderboard.samples import AGENTS_SUITE

COSTS: dict[str, Callable[[Any], object]] = {
    "options of the agent": lambda plain: plain["entry"]["agent"]["settings"].update(
        options={f"o{number}": number for number in range(50_000)}
    ),
    "nested options": lambda plain: plain["entry"]["agent"]["settings"].update(options={"o": [[[]] * 100_000]}),
    "options of a scenario": lambda plain: plain["scenarios"][0].update(
        options={f"o{number}": number for number in range(50_000)}
    ),
    "versions": lambda plain: plain["made"].update(versions={f"o{number}": "1" for number in range(50_000)}),
    "a big file": lambda plain: plain["entry"].update(note="x" * (1 << 24)),
}


@pytest.mark.parametrize("what", COSTS)
def test_a_manifest_is_small(what: str, honest_agent: Path, tmp_path: Path) -> None:
    """Refused before anything is opened, in the time that its text takes to be read."""
    folder = forger.copy(honest_agent, tmp_path / "forged")
    forger.edit_json(folder / "manifest.json", COSTS[what])
    started = time.process_time()
    with pytest.raises(RefutedError, match=r"more than 2,000 values|at most"):
        verify(folder, suite=AGENTS_SUITE)
    assert time.process_time() - started < 5


def test_a_line_of_millions_of_lists_is_not_made(honest_agent: Path, tmp_path: Path) -> None:
    folder = forger.copy(honest_agent, tmp_path / "forged")
    file = next((folder / "episodes").iterdir())
    file.write_bytes(lzma.compress(b"[" + b"[]," * 3_000_000 + b"[]]\n"))
    forger.remake_digests(folder)
    tracemalloc.start()
    with pytest.raises(FedAgentGymError, match="more than the 200,000 lists and mappings"):
        verify(folder, suite=AGENTS_SUITE)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
