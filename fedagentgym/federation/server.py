"""The server loop: rounds of one algorithm from the newest commit to the last round.

In each round: draw participants, let the algorithm call them and combine their answers, make client states durable, commit,
and only then look at what was learned: evaluate, write samples, append the line of metrics. A run killed at any instant goes on
from the newest commit to the same final state, bit for bit; what was not yet written about that commit is written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import write_atomic
from fedagentgym.federation.algorithm import Algorithm, Round, RoundResult, draw_participants
from fedagentgym.federation.clients import Backend, Clients, identity
from fedagentgym.federation.commits import Commit, CommitStore
from fedagentgym.federation.message import is_finite
from fedagentgym.federation.meter import add_counts
from fedagentgym.federation.server_state import ServerState
from fedagentgym.federation.settings import FederationSettings

Record = dict[str, Any]


class Observer(Protocol):
    """Somebody who watches: a table on the terminal, TensorBoard."""

    def begin(self, rounds: int) -> None:
        """The run goes to this round."""

    def round_done(self, record: Mapping[str, Any]) -> None:
        """A round is committed and written down."""


@dataclass(frozen=True)
class ServerConfig:
    """All that the loop needs beside the algorithm and the backend.

    `evaluate` looks at a global state (round number, state) every `evaluate_every` rounds, before the first and after the last;
    what it returns has at least `success`, by which the best round is known.
    `stream_of` is for tests that force clients to draw alike.
    """

    folder: Path
    seed: int
    settings: FederationSettings
    keep_rounds: int = 3
    evaluate: Callable[[int, ServerState], Mapping[str, Any]] | None = None
    evaluate_every: int = 1
    observers: Sequence[Observer] = ()
    stream_of: Callable[[int], int] = field(default=identity)


def run_rounds(algorithm: Algorithm[Any], backend: Backend, plan: ServerConfig) -> Commit:
    """Go from the newest commit in the run's folder, or from nothing, to the last round; returns its commit."""
    if not algorithm.client_ids():
        raise OptionError("a federation needs at least one client")
    for observer in plan.observers:
        observer.begin(plan.settings.rounds)
    with lock_folder(plan.folder):
        rounds = CommitStore(plan.folder / "rounds")
        rounds.remove_partial()
        journal = MetricsLog(plan.folder / "metrics.jsonl")
        commit = rounds.read_latest()
        if commit is None:
            commit = _run_and_commit_round(algorithm, backend, plan, rounds, None)
        else:
            backend.prune(commit.heads)
        journal.truncate(commit.round)
        if commit.round not in journal.rounds:
            _evaluate_and_log(plan, rounds, journal, commit)
        while commit.round < plan.settings.rounds:
            commit = _run_and_commit_round(algorithm, backend, plan, rounds, commit)
            _evaluate_and_log(plan, rounds, journal, commit)
        return commit


def _run_and_commit_round(
    algorithm: Algorithm[Any], backend: Backend, plan: ServerConfig, rounds: CommitStore, before: Commit | None
) -> Commit:
    """One round, from the commit before it to its own; without one, the preparation that becomes round 0."""
    started = time.monotonic()
    number = 0 if before is None else before.round + 1
    settings = plan.settings
    clients = Clients(
        backend,
        algorithm.operations,
        algorithm.client_ids(),
        round_number=number,
        seed=plan.seed,
        heads={} if before is None else before.heads,
        quorum=settings.quorum,
        deadline=settings.deadline,
        metered=algorithm.metered,
        stream_of=plan.stream_of,
    )
    drawn = draw_participants(plan.seed, number, clients.ids, settings.clients_per_round)
    round_ = Round(number, settings.rounds, plan.seed, drawn, clients)
    if before is None:
        result = algorithm.prepare(algorithm.initial_state(), round_)
    else:
        result = algorithm.run_round(before.state, round_)
    check_finite(result.state, number)
    record = _make_record(round_, result, before, time.monotonic() - started)
    commit = Commit(number, result.state, clients.heads, record)
    backend.commit(clients.heads)
    rounds.write(commit)
    backend.prune(clients.heads)
    if result.episodes:
        write_lines(plan.folder / "trajectories" / f"{number:04d}.jsonl", result.episodes)
    return commit


def _make_record(round_: Round, result: RoundResult, before: Commit | None, seconds: float) -> Record:
    """The line that is kept of a round."""
    counts = round_.clients.meter.get_counts()
    total = counts if before is None else add_counts(before.record["bytes_total"], counts)
    spent = seconds + (0.0 if before is None else before.record["seconds_total"])
    return {
        "round": round_.number,
        "participants": list(round_.participants) if round_.number else [],
        "metrics": finite_metrics(result.metrics),
        "clients": {str(client): finite_metrics(numbers) for client, numbers in sorted(result.clients.items())},
        "client_seconds": {str(client): value for client, value in sorted(round_.clients.seconds.items())},
        "failures": round_.clients.failures,
        "bytes": counts,
        "bytes_total": total,
        "seconds": seconds,
        "seconds_total": spent,
        "digest": result.state.digest,
    }


def finite_metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    """Metrics as they are recorded: one that is not finite says nothing, and JSON has no word for it."""
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _evaluate_and_log(plan: ServerConfig, rounds: CommitStore, journal: MetricsLog, commit: Commit) -> None:
    """Evaluate if it is time, tell everybody, and let old commits go."""
    record = dict(commit.record)
    last = commit.round == plan.settings.rounds
    if plan.evaluate is not None and (last or commit.round % max(1, plan.evaluate_every) == 0):
        started = time.monotonic()
        found = plan.evaluate(commit.round, commit.state)
        record["evaluation"] = {**found, "seconds": time.monotonic() - started}
    journal.append(record)
    for observer in plan.observers:
        observer.round_done(record)
    newest = rounds.list_rounds()[-plan.keep_rounds :]
    rounds.keep_only({*newest, *best_rounds(journal.records)})


def check_finite(state: ServerState, round_number: int) -> None:
    """The last gate before a commit: a global state with a NaN never becomes one."""
    for name, array in state.message.get_arrays().items():
        if not is_finite(array):
            raise DataError(
                f"round {round_number} would make {name!r} of the global state non-finite; the last committed round is"
                " intact: lower the learning rate or bound the updates (algorithm.checks.max_norm)"
            )


def best_rounds(records: Sequence[Mapping[str, Any]]) -> set[int]:
    """The evaluated round with the highest success, the earliest of equals; empty before any evaluation."""
    evaluated = [(record["evaluation"]["success"], -record["round"]) for record in records if "evaluation" in record]
    return {-max(evaluated)[1]} if evaluated else set()


class MetricsLog:
    """`metrics.jsonl`: one line per committed round, in order. A torn last line is dropped when the run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = list(read_metrics_log(path))

    @property
    def rounds(self) -> set[int]:
        return {record["round"] for record in self.records}

    def truncate(self, last: int) -> None:
        """Forget lines beyond round `last` and what was torn."""
        self.records = [record for record in self.records if record["round"] <= last]
        if self.path.exists() or self.records:
            write_atomic(self.path, "".join(canonical_json(record) + "\n" for record in self.records))

    def append(self, record: Record) -> None:
        self.records.append(record)
        with self.path.open("a", encoding="ascii") as file:
            file.write(canonical_json(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_metrics_log(path: Path) -> Iterator[Record]:
    """The whole lines of a metrics file, up to the first that is torn."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                return
            if not line.endswith("\n") or not isinstance(record, dict) or "round" not in record:
                return
            yield record


def write_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """A JSON-lines file, whole or absent."""
    write_atomic(path, "".join(canonical_json(value) + "\n" for value in values))


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """One process per run: a second one on the same folder is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise DataError(f"cannot use the run folder {folder}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"the run in {folder} is under way in another process") from None
        yield
