"""An exported adapter that `peft` and `transformers` alone load does what the run's own agent does."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.exported_adapter import measure
from fedagentgym.experiment.export import export_policy
from fedagentgym.experiment.run import train

pytest.importorskip("peft")

CHANGES = (
    "agent.adapter.rank=8",
    "partition.clients=8",
    "learning.learning_rate=4.0e-3",
    "federation.rounds=2",
    "algorithm.name=fedagent",
    "evaluation.tasks=96",
    "evaluation.temperature=0",
)


@pytest.mark.slow
def test_peft_and_transformers_alone_have_the_same_success(tmp_path: Path) -> None:
    run = train("tiny-skills", [*CHANGES, f"output.folder={tmp_path / 'run'}"])
    export_policy(run.folder, tmp_path / "adapter", adapter_only=True)
    found = measure(run.folder, tmp_path / "adapter")
    assert 0.1 < found["run"][0] < 1.0
    assert found["adapter"][0] == pytest.approx(found["run"][0], abs=0.03), (
        "greedy replies, of which rounding changes few"
    )
