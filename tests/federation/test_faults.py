"""Ten clients, and in every round one raises, one hangs, one answers NaN, one another shape, one runs away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.federation.commits import Commit
from fedagentgym.federation.message import update_norm

KINDS = ("raise", "hang", "nan", "shape", "far")
REASONS = {"raise": "error", "hang": "timeout", "nan": "refused", "shape": "refused", "far": "refused"}


def test_the_run_goes_on_names_every_fault_and_stays_close(run_toy: Callable[..., Commit], tmp_path: Path) -> None:
    rounds = 3
    faults = {str(n): {str((n + 2 * k) % 10): kind for k, kind in enumerate(KINDS)} for n in range(1, rounds + 1)}
    options: dict[str, Any] = {"rounds": rounds, "clients": 10, "size": 2000}
    faulty = run_toy(tmp_path / "faulty", workers=2, deadline=3.0, faults=faults, **options)
    calm = run_toy(tmp_path / "calm", **options)
    for line in (tmp_path / "faulty" / "metrics.jsonl").read_text().splitlines()[1:]:
        record = json.loads(line)
        named = {(str(failure["client"]), failure["reason"]) for failure in record["failures"]}
        assert named == {(client, REASONS[kind]) for client, kind in faults[str(record["round"])].items()}
    assert np.isfinite(faulty.state.parameters["w"]).all()
    apart = update_norm(calm.state.parameters, faulty.state.parameters)
    travelled = update_norm({"w": np.zeros(2000, np.float32)}, calm.state.parameters)
    assert apart < 0.3 * travelled
