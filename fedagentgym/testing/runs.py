"""Checks of algorithms and of trackers."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from fedagentgym.base.settings import merge
from fedagentgym.experiment.trackers import TRACKERS, make_tracker
from fedagentgym.testing.conditions import errors_as_failures

if TYPE_CHECKING:
    from fedagentgym.envs.pool import TaskPool
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
"""The configuration of a run that takes seconds, in an environment without dependencies."""


@errors_as_failures()
def check_algorithm(
    name: str,
    *,
    workers: int = 1,
    plugins: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunResult:
    """Check a registered method by several runs of two rounds with a tiny model.

    A run that is stopped and resumed, and a run with worker processes, must end with the same parameters as an uninterrupted
    sequential run. That run must not exceed the method's card: its episodes, optimizer steps, bytes of parameters sent, roles,
    and the kinds of data sent.

    Args:
        name: The name under which it is registered.
        workers: Number of worker processes in one of the runs; with 0 this run is skipped.
        plugins: Modules or files that the workers import, such as the one that registers the method.
        config: Changes to the small configuration that is run.
        **settings: Settings of the method.

    Returns:
        The result of the first run, whose folder is removed.

    Raises:
        AssertionError: If the check fails; the message is one sentence.
    """
    plain = merge(merge(SMALL_CONFIG, config or {}), {"algorithm": {"name": name, **settings}})
    plain["plugins"] = list(plugins)
    with tempfile.TemporaryDirectory() as scratch:
        with _note_roles() as opened:
            first = _run(plain, Path(scratch) / "sequential")
        resumed = _run_with_a_stop(plain, Path(scratch) / "resumed")
        if resumed.digest != first.digest:
            again = _run(plain, Path(scratch) / "again")
            assert first.digest == again.digest, f"{name}: the same run twice ends with different parameters"
            raise AssertionError(f"{name}: a resumed run ends with other parameters than an uninterrupted run")
        _check_states(name, first, resumed)
        if workers:
            pooled = _run(merge(plain, {"federation": {"workers": workers}}), Path(scratch) / "pool")
            assert pooled.digest == first.digest, (
                f"{name}: worker processes give other parameters than a sequential run"
            )
            _check_states(name, first, pooled)
        record = first.record
        assert record["final"]["round"] == record["rounds"], f"{name}: the run did not reach its last round"
        assert record["curve"], f"{name}: nothing was evaluated"
        _check_card(first, name, plain, opened)
    return first


def _run(plain: Mapping[str, Any], folder: Path) -> RunResult:
    from fedagentgym.experiment.run import train

    return train(merge(plain, {"output": {"folder": str(folder)}}), force=True)


def _run_with_a_stop(plain: Mapping[str, Any], folder: Path) -> RunResult:
    """Stop a run after round 1, as by a crash, and resume it."""
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
        train(merge(plain, {"output": {"folder": str(folder)}}), observers=[StopAfterOne()], force=True)
    except Stop:
        assert CommitStore(folder / "rounds").list_rounds()[-1] == 1
    return resume(folder, trust_plugins=True)


def _check_states(name: str, first: RunResult, other: RunResult) -> None:
    """Check that the states that clients keep, such as personal parameters, are equal in two runs."""
    from fedagentgym.federation.commits import CommitStore

    kept = [CommitStore(run.folder / "rounds").read_note(run.record["rounds"]).links.states for run in (first, other)]
    assert kept[0] == kept[1], f"{name}: clients of the same run end with other states"


@contextmanager
def _note_roles() -> Iterator[set[str]]:
    """Collect the roles whose tasks are opened in this process within the block."""
    from fedagentgym.partitions.client_split import ClientSplit

    original, opened = ClientSplit.role, set[str]()

    def open_role(client_split: ClientSplit, name: str) -> TaskPool:
        pool = original(client_split, name)
        opened.add(name)
        return pool

    with patch.object(ClientSplit, "role", open_role):
        yield opened


def _check_card(run: RunResult, name: str, plain: Mapping[str, Any], opened: Collection[str]) -> None:
    """Check a run against the card of its method. A method without `describe` is not checked."""
    from fedagentgym.algorithms.base import BaseAlgorithm, describe_method, get_algorithm_class
    from fedagentgym.algorithms.card import SECTIONS, Scale
    from fedagentgym.experiment.config import load_config
    from fedagentgym.experiment.estimate.plan import plan_work
    from fedagentgym.federation.commits import CommitStore

    config = load_config(plain)
    if get_algorithm_class(config.algorithm).describe.__func__ is BaseAlgorithm.describe.__func__:  # type: ignore[attr-defined]
        return
    card, sent = describe_method(config.algorithm, Scale(config.learning)), run.record["bytes"]
    unnamed = sorted(set(opened) - {*card.roles, *card.optional_roles})
    assert not unnamed, f"{name}: it opens tasks of the role {unnamed[0]!r}, which its card does not name (roles)"
    kinds = {one.kind for one in card.sent}
    for section in ("weights", "scores", "text"):
        allowed = SECTIONS[section]
        assert not sent["up"][section] or kinds & allowed, (
            f"{name}: its replies carry {section}, but its card names none of {', '.join(sorted(allowed))} (sent)"
        )
    plan = plan_work(config)
    if plan is None:
        return
    last = CommitStore(run.folder / "rounds").read(run.record["rounds"])
    size = sum(array.nbytes for array in last.state.parameters.values())
    base = sum(4 * array.size for array in last.state.memory["base"].values()) if plan.round.bases_down else 0
    work, spent = plan.count_until(run.record["rounds"]), run.record["spent"]
    for what, done, most in (
        ("episodes", spent["episodes"], work.episodes + work.scored),
        ("optimizer steps", spent["optimizer_steps"], work.optimizer_steps),
        (
            "bytes of parameters to the clients",
            sent["down"]["weights"],
            work.models_down * size + work.bases_down * base,
        ),
        ("bytes of parameters from the clients", sent["up"]["weights"], work.models_up * size),
    ):
        assert done <= most, f"{name}: {done:,} {what} in a run, and its card says {most:,} (round, preparation)"


TRACKER_DUTY = "a tracker has start(config), log(round_number, metrics) and finish(result)"


def check_tracker(name: str, **options: Any) -> None:
    """Check that a registered tracker accepts a whole run, does not change its arguments, and draws no random numbers.

    Args:
        name: The name under which it is registered.
        **options: Options of the tracker, as in `output.trackers`.

    Raises:
        AssertionError: If the check fails; the message is one sentence.
    """
    known = errors_as_failures(TRACKER_DUTY, partial(TRACKERS.get, name), who=f"the tracker {name!r}")
    with known, tempfile.TemporaryDirectory() as folder:
        config = {"name": "check", "seed": 0, "output": {"folder": folder}, "federation": {"rounds": 2}}
        result = {"rounds": 2, "final": {"round": 2}, "seconds": 1.0}
        metrics = {"train/loss": 0.5, "eval/success": 0.25, "bytes/total": 10.0, "failures": 0.0}
        given = copy.deepcopy((config, metrics, result))
        states = random.getstate(), repr(np.random.get_state())
        tracker = make_tracker({"name": name, **options})
        tracker.start(config)
        for number in range(3):
            tracker.log(number, metrics)
        tracker.finish(result)
        assert (config, metrics, result) == given, f"tracker {name!r} changes what it is given"
        assert (random.getstate(), repr(np.random.get_state())) == states, f"tracker {name!r} draws random numbers"
