"""The rounds of a federation, from the newest commit to the last round: select, send, collect, apply, commit.

A run that is killed at any time continues from the newest commit to the same final state and the same records, bit for bit.
Missing files that follow from that commit are written again. The chain of commits is checked before a run continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedagentgym.base.devices import here
from fedagentgym.base.encoding import bytes_digest
from fedagentgym.base.errors import DataError, OptionError, show_value
from fedagentgym.base.files import remove_partial, write_atomic
from fedagentgym.base.process import get_logger, listen, postpone_interruption
from fedagentgym.base.shorten import show_fields
from fedagentgym.federation.algorithm import (
    Algorithm,
    Clients,
    FederationSettings,
    Round,
    RoundResult,
    ServerState,
    draw_participants,
)
from fedagentgym.federation.backends import Backend
from fedagentgym.federation.checks import load_secret
from fedagentgym.federation.commits import (
    Chain,
    Commit,
    CommitStore,
    Links,
    check_evidence,
    identify_evaluation,
    lock_folder,
    read_chain,
)
from fedagentgym.federation.message import is_finite
from fedagentgym.federation.progress import ProgressCallback, ProgressTracker
from fedagentgym.federation.records import Meter, MetricsLog, Record, add_counts, best_rounds
from fedagentgym.federation.states import read_state_digests
from fedagentgym.learning.settings import is_due

log = get_logger(__name__)


class Observer(Protocol):
    """An observer of a run, such as a table on the terminal or a tracker."""

    def begin(self, rounds: int) -> None:
        """The run starts or continues; `rounds` is the number of its last round."""

    def round_done(self, record: Mapping[str, Any]) -> None:
        """A round is committed and recorded."""


@dataclass(frozen=True)
class ServerConfig:
    """The arguments of `run_rounds` besides the method and the backend.

    Attributes:
        folder: The run's folder.
        seed: The run's seed.
        settings: Rounds, participants, quorum and deadline.
        keep_rounds: Number of the newest global states that are kept, besides that of the best round.
        evaluate: A function of the round's number and the global state, which returns a mapping with at least `success`. The best
            round has the highest `success`, or the highest `choice` if the mapping has one; with `choice` None a round cannot be
            the best.
        evaluate_every: Rounds between evaluations; the initial state and that of the last round are evaluated too.
        observers: Objects with `begin(rounds)` and `round_done(record)`.
        streams: Stream numbers to use in place of clients' own numbers, for tests in which two clients draw alike.
        inputs: Digests of the run's inputs, such as its configuration; a run resumes only if they are the same.
        hide_failures: Whether the errors of failed clients, which can quote their data, stay out of the records.
        private: Whether participants and noise are drawn from a secret in the run's folder, and single clients are left out of
            the records.
        on_progress: Called with a `TrainingProgress` many times a round.
        began: The time by `time.monotonic()` at which the process began this run; the first round that it plays counts from then.
    """

    folder: Path
    seed: int
    settings: FederationSettings
    keep_rounds: int = 3
    evaluate: Callable[[int, ServerState], Mapping[str, Any]] | None = None
    evaluate_every: int = 1
    observers: Sequence[Observer] = ()
    streams: Mapping[int, int] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    hide_failures: bool = False
    private: bool = False
    on_progress: ProgressCallback | None = None
    began: float | None = None

    def __repr__(self) -> str:
        return show_fields(self)

    def __post_init__(self) -> None:
        if self.keep_rounds < 1:
            raise OptionError("keep_rounds is at least 1: a run continues from its newest round")


class FinishedRounds(NamedTuple):
    """The commit of the last round, and the records of all rounds with their evaluations."""

    commit: Commit
    records: Sequence[Record]


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run in progress: its method, its clients, the files that its rounds write. Only a private run has a `secret`."""

    algorithm: Algorithm[Any]
    backend: Backend
    plan: ServerConfig
    secret: int | None
    tracker: ProgressTracker | None
    rounds: CommitStore
    metrics: MetricsLog
    check_place: Callable[[], None]
    warned: set[int] = field(default_factory=set)
    """The round whose failure was logged; empty until a client fails, since only the first failure is logged."""


def run_rounds(algorithm: Algorithm[Any], backend: Backend, plan: ServerConfig) -> FinishedRounds:
    """Run a method from the newest commit in the run's folder, or from the start, to the last round.

    `fedagentgym.train` calls this; call it to run a method on a backend without a configuration.

    Args:
        algorithm: The method.
        backend: The backend that runs the clients.
        plan: Folder, seed, settings and observers.

    Returns:
        The last `commit`, with `round`, `state` and the `record` of the round; and the `records` of all rounds.

    Raises:
        OptionError: If there are no clients.
        DataError: If the folder holds rounds that do not belong to this run, or are damaged.
        FedAgentGymError: If too few clients replied; the last committed round is intact.
    """
    if not algorithm.client_ids():
        raise OptionError("a federation needs at least one client")
    for observer in plan.observers:
        observer.begin(plan.settings.rounds)
    tracker = None if plan.on_progress is None else ProgressTracker(plan.on_progress)
    with lock_folder(plan.folder) as check_place, listen(None if tracker is None else tracker.record_activity):
        remove_partial(plan.folder)
        rounds, metrics = CommitStore(plan.folder / "rounds"), MetricsLog(plan.folder / "metrics.jsonl")
        chain = read_chain(plan.folder, plan.inputs)
        begun = chain is not None
        secret = here().share(lambda: load_secret(plan.folder, begun=begun)) if plan.private else None
        run = OpenRun(algorithm, backend, plan, secret, tracker, rounds, metrics, check_place)

        # Episodes of a round that was not committed are removed: the round is played again.
        newest = -1 if chain is None else chain.newest.round
        for path in (*plan.folder.glob("trajectories/*.jsonl"), *plan.folder.glob("evaluation/*.jsonl")):
            if path.stem.isdecimal() and int(path.stem) > newest:
                path.unlink(missing_ok=True)
        commit, evaluation, began = None, None, plan.began
        if chain is None:
            metrics.restore([], 0)
        else:
            commit = _check_newest(run, chain)
            evaluation, records = chain.evaluations.get(commit.round), chain.list_records()
            if evaluation is None and _is_evaluation_due(plan, commit.round):  # killed before its end
                metrics.restore(records[:-1], 0)
                evaluation, began = _evaluate_and_log(run, commit), None
            else:
                metrics.restore(records, 1)
                _remove_old(run)

        while commit is None or commit.round < plan.settings.rounds:
            commit = play_round(run, commit, evaluation, began)
            evaluation, began = _evaluate_and_log(run, commit), None
        return FinishedRounds(commit, metrics.records)


def play_round(
    run: OpenRun, before: Commit | None, evaluation: Mapping[str, Any] | None, began: float | None = None
) -> Commit:
    """Play one round from the previous commit and its evaluation, and return its commit; without a previous commit, this is the
    preparation, round 0.

    Ctrl-C takes effect after the commit. A second Ctrl-C stops at once; the round is then played again when the run resumes.
    `began` is the time from which the round's seconds count, by default now.
    """
    algorithm, backend, plan, settings = run.algorithm, run.backend, run.plan, run.plan.settings
    number = 0 if before is None else before.round + 1
    if run.tracker is not None:
        run.tracker.begin_round(number, settings.rounds)
    with postpone_interruption(f"stopping after round {number}; Ctrl-C again stops at once and discards this round"):
        started = time.monotonic() if began is None else began

        # Select. The guarantee of a private run holds only if an observer cannot draw the same participants.
        ids, source = algorithm.client_ids(), plan.seed if run.secret is None else run.secret
        drawn = draw_participants(source, number, ids, settings.clients_per_round)

        # Send and collect. The method sends messages to these clients, which start from their own states of the last commit.
        clients = Clients(
            backend,
            algorithm.operations,
            ids,
            round_number=number,
            seed=plan.seed,
            heads={} if before is None else dict(before.heads),
            quorum=settings.quorum,
            deadline=settings.deadline,
            meter=Meter(counting=algorithm.metered),
            streams=plan.streams,
            progress=run.tracker,
        )
        this_round = Round(number, settings.rounds, plan.seed, drawn, clients, run.secret)

        # Apply. The method combines the replies into the next global state; a NaN in it would spoil every later round.
        begun = algorithm.initial_state() if before is None else before.state
        result = (algorithm.prepare if before is None else algorithm.run_round)(begun, this_round)
        hook = f"{'prepare' if before is None else 'run_round'} of {type(algorithm).__name__}"
        if not isinstance(result, RoundResult):
            raise OptionError(f"{hook} must return a RoundResult, got {show_value(result)}")
        result.check(begun.parameters, hook)
        check_finite(result.state, number)
        record = _make_record(plan, this_round, result, before, time.monotonic() - started)
        _warn_of_first_failure(run, number, clients.failures)

        # Commit. Client states and episodes are on disk before the commit that refers to them; old states are removed later.
        backend.commit(clients.heads)
        known, old = ({}, {}) if before is None else (before.links.states, before.heads)
        episodes = "".join(f"{episode}\n" for episode in result.episodes) if not plan.private else ""
        if episodes:
            write_atomic(plan.folder / "trajectories" / f"{number:04d}.jsonl", episodes)
        links = Links(
            inputs=plan.inputs,
            previous=None if before is None else before.digest,
            previous_evaluation=None if evaluation is None else identify_evaluation(evaluation),
            states=read_state_digests(plan.folder / "states", clients.heads, old, known),
            trajectories=bytes_digest(episodes.encode("ascii")) if episodes else None,
        )
        commit = Commit(number, result.state.digest, clients.heads, record, links, result.state)
        run.check_place()
        run.rounds.write(commit)
    return commit


def _warn_of_first_failure(run: OpenRun, number: int, failures: Sequence[Mapping[str, object]]) -> None:
    """Log the first failure of a client, unless its text must stay with the client; the round goes on without the client."""
    if run.warned or run.plan.hide_failures or not failures:
        return
    run.warned.add(number)
    first = next((one for one in failures if one["reason"] == "error"), failures[0])
    log.warning(
        "round %d goes on without client %s (%s; metrics.jsonl lists all failures): %s",
        number,
        first["client"],
        first["reason"],
        first["message"],
    )


def _make_record(
    plan: ServerConfig, this_round: Round, result: RoundResult, before: Commit | None, seconds: float
) -> Record:
    """The record of a round. In a private run, only the method's own metrics may concern single clients."""
    number, clients = this_round.number, this_round.clients
    counts, failures = clients.meter.counts, clients.failures
    if plan.hide_failures:  # the error and the trace of a failure can quote the client's tasks
        failures = [{**one, "message": "not kept: the run is private", "detail": ""} for one in failures]
    record: Record = {
        "round": number,
        "participants": list(this_round.participants) if number else [],
        "metrics": _drop_infinite(result.metrics),
        "clients": {str(client): _drop_infinite(numbers) for client, numbers in sorted(result.clients.items())},
        "client_seconds": {str(client): value for client, value in sorted(clients.seconds.items())},
        "failures": failures,
        "bytes": counts,
        "bytes_total": counts if before is None else add_counts(before.record["bytes_total"], counts),
        "seconds": seconds,
        "seconds_total": seconds + (0.0 if before is None else before.record["seconds_total"]),
        "digest": result.state.digest,
    }
    if not plan.private:
        return record
    if failures:
        log.warning(
            "round %d: %d answers of clients were not used; records of a private run do not say whose",
            number,
            len(failures),
        )
    for name in ("bytes", "bytes_total"):
        record[name] = {way: {**columns, "report": 0} for way, columns in record[name].items()}
    return {**record, "participants": [], "clients": {}, "client_seconds": {}, "failures": []}


def _drop_infinite(numbers: Mapping[str, float]) -> dict[str, float]:
    """The metrics whose values are finite; JSON cannot represent the others."""
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _is_evaluation_due(plan: ServerConfig, number: int) -> bool:
    return plan.evaluate is not None and is_due(number, plan.evaluate_every, plan.settings.rounds)


def _evaluate_and_log(run: OpenRun, commit: Commit) -> Mapping[str, Any] | None:
    """Evaluate if it is due, notify observers, and remove old global states; returns the evaluation."""
    plan, record = run.plan, dict(commit.record)
    evaluation: Mapping[str, Any] | None = None
    if plan.evaluate is not None and _is_evaluation_due(plan, commit.round):
        started = time.monotonic()
        if run.tracker is not None:
            run.tracker.begin_evaluation(commit.round, plan.settings.rounds)
        found = plan.evaluate(commit.round, commit.state)
        evaluation = {**found, "seconds": time.monotonic() - started}
        run.check_place()
        run.rounds.write_evaluation(commit, evaluation)
        record["evaluation"] = evaluation
    run.metrics.append(record)
    for observer in plan.observers:
        observer.round_done(record)
    _remove_old(run)
    return evaluation


def _remove_old(run: OpenRun) -> None:
    """Remove the global states of old rounds, and the client states to which no round that is kept refers."""
    run.rounds.keep_only(run.plan.keep_rounds, best_rounds(run.metrics.records))
    run.backend.prune([run.rounds.read_note(number).heads for number in run.rounds.list_rounds()])


def _check_newest(run: OpenRun, chain: Chain) -> Commit:
    """Check that all files of the run match its chain, and return the newest commit, from which the algorithm continues."""
    algorithm, plan = run.algorithm, run.plan
    ids, count = algorithm.client_ids(), plan.settings.clients_per_round
    check_evidence(
        plan.folder, chain, lambda number: () if plan.private else draw_participants(plan.seed, number, ids, count)
    )
    commit = run.rounds.read(chain.newest.round)
    if strangers := sorted(set(commit.heads) - set(ids)):
        raise DataError(f"round {commit.round} has states of clients {strangers[:10]} that are not in this federation")
    check_finite(commit.state, commit.round)
    expected = {name: (value.dtype, value.shape) for name, value in algorithm.initial_state().parameters.items()}
    found = {name: (value.dtype, value.shape) for name, value in commit.state.parameters.items()}
    if different := sorted(name for name in {**expected, **found} if expected.get(name) != found.get(name)):
        raise DataError(
            f"round {commit.round} holds a global state of another form: {different[0]!r} does not fit this run"
        )
    return commit


def check_finite(state: ServerState, round_number: int) -> None:
    """Refuse a global state with NaN or infinity; this is the last check before a commit."""
    for name, array in state.message.get_arrays().items():
        if not is_finite(array):
            raise DataError(
                f"round {round_number} would make {name!r} of the global state non-finite; the last committed round is"
                " intact: lower the learning rate or bound the updates (algorithm.checks.max_norm)"
            )
