"""`check_algorithm`: the requirements of a federated algorithm, tested in a small environment with an untrained agent."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.base.settings import merge

if TYPE_CHECKING:
    from fedagentgym.experiment.run import RunResult

SMALL_CONFIG: Mapping[str, Any] = {
    "name": "check",
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"clients": 3, "tasks_per_client": 8, "roles": {"public": 8}},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 2, "group_size": 3, "learning_rate": 1e-3},
    "federation": {"rounds": 2, "clients_per_round": 2, "quorum": None},
    "evaluation": {"every": 1, "tasks": 4},
    "output": {"report": "none"},
    "plugins": ["fedagentgym.testing.untrained"],
}
"""A run of seconds in an environment without dependencies."""


def check_algorithm(
    name: str,
    *,
    workers: int = 1,
    plugins: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunResult:
    """Run an algorithm for two rounds and check the requirements of every algorithm; returns the run.

    `settings` are the algorithm's own, `config` updates the small configuration, `plugins` name the module or file that
    registers the algorithm. Raises `AssertionError` with one sentence.
    """
    plain = merge(merge(SMALL_CONFIG, config or {}), {"algorithm": {"name": name, **settings}})
    plain["plugins"] = [*plain["plugins"], *plugins]
    with tempfile.TemporaryDirectory() as scratch:
        first = _run(plain, Path(scratch) / "sequential")
        again = _run(plain, Path(scratch) / "again")
        assert first.digest == again.digest, f"{name}: the same run twice ends with different parameters"
        _check_resume(plain, Path(scratch) / "resumed", first, name)
        if workers:
            pooled = _run(merge(plain, {"federation": {"workers": workers}}), Path(scratch) / "pool")
            assert pooled.digest == first.digest, (
                f"{name}: worker processes give other parameters than a sequential run"
            )
        _check_record(first, name)
    return first


def _run(plain: Mapping[str, Any], folder: Path) -> RunResult:
    from fedagentgym.experiment.run import train

    return train(merge(plain, {"output": {"folder": str(folder)}}))


def _check_resume(plain: Mapping[str, Any], folder: Path, first: RunResult, name: str) -> None:
    """Stop after round 1, as after a crash, and resume."""
    from fedagentgym.experiment.run import resume, train
    from fedagentgym.federation.commits import CommitStore

    class Stop(Exception):
        pass

    class StopAfterOne:
        def begin(self, rounds: int) -> None:
            assert rounds > 1

        def round_done(self, record: Mapping[str, Any]) -> None:
            if record["round"] == 1:
                raise Stop

    try:
        train(merge(plain, {"output": {"folder": str(folder)}}), observers=[StopAfterOne()])
    except Stop:
        assert CommitStore(folder / "rounds").list_rounds()[-1] == 1
    resumed = resume(folder)
    assert resumed.digest == first.digest, f"{name}: a resumed run ends with other parameters than one without a stop"


def _check_record(run: RunResult, name: str) -> None:
    record = run.record
    assert record["final"]["round"] == record["rounds"], f"{name}: the run did not reach its last round"
    assert record["first"] is not None, f"{name}: nothing was evaluated"
