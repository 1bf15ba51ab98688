"""The cost of verifying a forged result: it is refused by its sizes, before anything is made of it."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.leaderboard.verify import verify
from fedagentgym.runs.claims import RefutedError
from fedagentgym.runs.folder import RANKED, RECORD
from tests.leaderboard import forger
from tests.leaderboard.samples import AGENTS_SUITE

MANY = {f"o{number}": "1" for number in range(50_000)}
COSTS: dict[str, Callable[[Any], object]] = {
    "options of the agent": lambda plain: plain["agent"]["settings"].update(options=MANY),
    "nested options": lambda plain: plain["agent"]["settings"].update(options={"o": [[[]] * 100_000]}),
    "options of the environment": lambda plain: plain["env"].update(options=MANY),
    "versions": lambda plain: plain["made"].update(versions=MANY),
    "a big file": lambda plain: plain.update(name="x" * (1 << 24)),
}


@pytest.mark.parametrize("what", COSTS)
def test_a_record_is_small(what: str, honest_agent: Path, tmp_path: Path) -> None:
    """Refused before anything is played, in the time that its text takes to be read."""
    folder = forger.copy(honest_agent, tmp_path / "forged")
    forger.edit_json(folder / "guess-seed0" / RECORD, COSTS[what])
    started = time.process_time()
    with pytest.raises(RefutedError, match=r"more than 2,000 values|at most"):
        verify(folder, suite=AGENTS_SUITE)
    assert time.process_time() - started < 5


def test_a_line_of_millions_of_lists_is_not_made(honest_agent: Path, tmp_path: Path) -> None:
    folder = forger.copy(honest_agent, tmp_path / "forged")
    (folder / "guess-seed0" / RANKED).write_bytes(b"[" + b"[]," * 3_000_000 + b"[]]\n")
    tracemalloc.start()
    with pytest.raises(FedAgentGymError, match="more than the 200,000 lists and mappings"):
        verify(folder, suite=AGENTS_SUITE)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
