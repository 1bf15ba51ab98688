"""Checks of algorithms and of trackers."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.base.settings import merge
from fedagentgym.experiment.trackers import make_tracker

if TYPE_CHECKING:
    from fedagentgym.experiment.result import RunResult

SMALL_CONFIG: Mapping[str, Any] = {
    "name": "check",
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"clients": 3, "tasks_per_client": 8, "roles": {"public": 8}},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 2, "group_size": 3, "learning_rate": 1e-3},
    "federation": {"rounds": 2, "clients_per_round": 2, "quorum": None},
    "evaluation": {"every": 1, "tasks": 4},
    "output": {"report": "none"},
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
    """Run a registered method for two rounds, several times, with a tiny model.

    Two runs must end with the same parameters, as must one that is stopped and resumed, and one with worker processes.

    Args:
        name: The name by which it is registered.
        workers: Worker processes of one of the runs; 0 leaves that run out.
        plugins: The module or file that registers the method, for the workers.
        config: Changes of the small configuration that is run.
        **settings: The method's settings.

    Returns:
        The first run; its folder is removed.

    Raises:
        AssertionError: What is wrong, in one sentence.
    """
    plain = merge(merge(SMALL_CONFIG, config or {}), {"algorithm": {"name": name, **settings}})
    plain["plugins"] = list(plugins)
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
            _check_states(name, first, pooled)
        _check_record(first, name)
    return first


def _run(plain: Mapping[str, Any], folder: Path) -> RunResult:
    from fedagentgym.experiment.run import train

    return train(merge(plain, {"output": {"folder": str(folder)}}))


def _check_resume(plain: Mapping[str, Any], folder: Path, first: RunResult, name: str) -> None:
    """Stop after round 1, as after a crash, and resume."""
    from fedagentgym.experiment.run import resume, train
    from fedagentgym.experiment.stored import Trust
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
    resumed = resume(folder, trust=Trust(folder=True))
    assert resumed.digest == first.digest, f"{name}: a resumed run ends with other parameters than one without a stop"
    _check_states(name, first, resumed)


def _check_states(name: str, first: RunResult, other: RunResult) -> None:
    """Return what clients keep, such as parameters of their own, must be the same too."""
    from fedagentgym.federation.commits import CommitStore

    kept = [CommitStore(run.folder / "rounds").read_note(run.record["rounds"]).links.states for run in (first, other)]
    assert kept[0] == kept[1], f"{name}: clients of the same run end with other states"


def _check_record(run: RunResult, name: str) -> None:
    record = run.record
    assert record["final"]["round"] == record["rounds"], f"{name}: the run did not reach its last round"
    assert record["curve"], f"{name}: nothing was evaluated"


def check_tracker(name: str, **options: Any) -> None:
    """Check that a registered tracker takes a whole run, leaves what it is given unchanged, and draws no random numbers.

    Args:
        name: The name by which it is registered.
        **options: Its options, as in `output.trackers`.

    Raises:
        AssertionError: What is wrong, in one sentence.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = {"name": "check", "seed": 0, "output": {"folder": folder}, "federation": {"rounds": 2}}
        result = {"rounds": 2, "final": {"round": 2}, "seconds": 1.0}
        metrics = {"train/loss": 0.5, "evaluation/success": 0.25, "bytes/total": 10.0, "failures": 0.0}
        given = copy.deepcopy((config, metrics, result))
        states = random.getstate(), repr(np.random.get_state())
        tracker = make_tracker({"name": name, **options})
        tracker.start(config)
        for number in range(3):
            tracker.log(number, metrics)
        tracker.finish(result)
        assert (config, metrics, result) == given, f"tracker {name!r} changes what it is given"
        assert (random.getstate(), repr(np.random.get_state())) == states, f"tracker {name!r} draws random numbers"
