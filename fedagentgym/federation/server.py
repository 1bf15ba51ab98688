"""The server loop: rounds of one algorithm from the newest commit to the last round.

In each round: draw participants, let the algorithm call them and combine their replies, make client states and sampled
episodes durable, commit, and only then evaluate and append the line of metrics. A run that is killed at any time continues from
the newest commit to the same final state and the same records, bit for bit; files about that commit that are missing are
written again. The chain of commits is checked before a run continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedagentgym.base import ranks
from fedagentgym.base.encoding import bytes_digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_path, remove_partial, write_atomic
from fedagentgym.base.process import get_logger, listen, postpone_interruption
from fedagentgym.federation.algorithm import Algorithm, Round, RoundResult, ServerState, draw_participants
from fedagentgym.federation.checks import load_secret
from fedagentgym.federation.clients import Backend, Clients, FederationSettings, hide_text
from fedagentgym.federation.commits import (
    Chain,
    Commit,
    CommitStore,
    Links,
    check_evidence,
    identify_evaluation,
    read_chain,
)
from fedagentgym.federation.message import is_finite
from fedagentgym.federation.progress import ProgressCallback, ProgressTracker
from fedagentgym.federation.records import MetricsLog, Record, add_counts, best_rounds
from fedagentgym.federation.states import read_state_digests

log = get_logger(__name__)
BYTES = ("bytes", "bytes_total")


class Observer(Protocol):
    """An observer of a run: a table on the terminal, trackers."""

    def begin(self, rounds: int) -> None:
        """The run goes up to this round."""

    def round_done(self, record: Mapping[str, Any]) -> None:
        """A round is committed and recorded."""


@dataclass(frozen=True)
class ServerConfig:
    """The arguments of `run_rounds` besides the method and the backend.

    Attributes:
        folder: The run's folder.
        seed: The run's seed.
        settings: Rounds, participants, quorum and deadline.
        keep_rounds: How many of the newest commits are kept.
        evaluate: Evaluates a global state, given the round and the state, and returns a mapping with at least `success`, and
            with `choice` if another number than success names the best round (none: null).
        evaluate_every: Rounds between evaluations; the first state and the last are evaluated too.
        observers: Objects with `begin(rounds)` and `round_done(record)`.
        streams: Numbers by which clients draw, in place of their own; for tests that force clients to draw alike.
        inputs: Digests of what the run is made from; a run resumes only with the same.
        hide_failures: Whether the errors of failed clients, which can quote their data, stay out of the records.
        private: Whether participants and noise are drawn from a secret in the run's folder, and the records say nothing of single
            clients.
        on_progress: Called with a `TrainingProgress` many times a round.
        began: When the process began this run, by `time.monotonic()`: the first round that it plays takes the time since then.
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


class FinishedRounds(NamedTuple):
    """The commit of the last round, and the records of all rounds with their evaluations."""

    commit: Commit
    records: Sequence[Record]


def run_rounds(algorithm: Algorithm[Any], backend: Backend, plan: ServerConfig) -> FinishedRounds:
    """Run a method from the newest commit in the run's folder, or from the start, to the last round.

    `fedagentgym.train` calls this; call it to run a method on a backend without a configuration.

    Args:
        algorithm: The method.
        backend: Where the clients run.
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
    with lock_folder(plan.folder), listen(None if tracker is None else tracker.hear):
        remove_partial(plan.folder)
        rounds = CommitStore(plan.folder / "rounds")
        metrics = MetricsLog(plan.folder / "metrics.jsonl")
        chain = read_chain(plan.folder, plan.inputs)
        begun = chain is not None
        secret = ranks.share(lambda: load_secret(plan.folder, begun=begun)) if plan.private else None
        if chain is None:
            remove_uncommitted(plan.folder, -1)
            metrics.restore([], 0)
            commit = _run_round(algorithm, backend, plan, secret, rounds, None, None, tracker)
            plan = replace(plan, began=None)
            evaluation = _evaluate_and_log(plan, rounds, metrics, commit, tracker)
        else:
            commit = _check_newest(algorithm, plan, rounds, chain)
            backend.prune(commit.heads)
            evaluation = chain.evaluations.get(commit.round)
            if evaluation is None and _is_evaluation_due(plan, commit.round):
                metrics.restore(chain.list_records()[:-1], 0)
                evaluation = _evaluate_and_log(plan, rounds, metrics, commit, tracker)
                plan = replace(plan, began=None)
            else:
                metrics.restore(chain.list_records(), 1)
                rounds.keep_only(plan.keep_rounds, best_rounds(metrics.records))
        while commit.round < plan.settings.rounds:
            commit = _run_round(algorithm, backend, plan, secret, rounds, commit, evaluation, tracker)
            plan = replace(plan, began=None)
            evaluation = _evaluate_and_log(plan, rounds, metrics, commit, tracker)
        return FinishedRounds(commit, metrics.records)


def _check_newest(algorithm: Algorithm[Any], plan: ServerConfig, rounds: CommitStore, chain: Chain) -> Commit:
    """The newest commit, from which this algorithm continues, of a run whose files all match its chain."""
    ids, count = algorithm.client_ids(), plan.settings.clients_per_round
    remove_uncommitted(plan.folder, chain.newest.round)
    check_evidence(
        plan.folder, chain, lambda number: () if plan.private else draw_participants(plan.seed, number, ids, count)
    )
    commit = rounds.read(chain.newest.round)
    if strangers := sorted(set(commit.heads) - set(ids)):
        raise DataError(f"round {commit.round} has states of clients {strangers[:10]} that are not in this federation")
    check_finite(commit.state, commit.round)
    expected = {name: (value.dtype, value.shape) for name, value in algorithm.initial_state().parameters.items()}
    found = {name: (value.dtype, value.shape) for name, value in commit.state.parameters.items()}
    if odd := sorted(name for name in {**expected, **found} if expected.get(name) != found.get(name)):
        raise DataError(f"round {commit.round} holds a global state of another form: {odd[0]!r} does not fit this run")
    return commit


def _run_round(
    algorithm: Algorithm[Any],
    backend: Backend,
    plan: ServerConfig,
    secret: int | None,
    rounds: CommitStore,
    before: Commit | None,
    evaluation: Mapping[str, Any] | None,
    tracker: ProgressTracker | None,
) -> Commit:
    """One round, from the previous commit to its own; without a previous one, the preparation, which becomes round 0.

    Ctrl-C takes effect after the commit; a second Ctrl-C at once, and the round is then played again.
    """
    number = 0 if before is None else before.round + 1
    settings = plan.settings
    if tracker is not None:
        tracker.begin_round(number, settings.rounds)
    with postpone_interruption(f"stopping after round {number}; Ctrl-C again stops at once and discards this round"):
        started = time.monotonic() if plan.began is None else plan.began
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
            streams=plan.streams,
            progress=tracker,
        )
        drawn = draw_participants(
            plan.seed if secret is None else secret, number, clients.ids, settings.clients_per_round
        )
        round_ = Round(number, settings.rounds, plan.seed, drawn, clients, secret)
        if before is None:
            result = algorithm.prepare(algorithm.initial_state(), round_)
        else:
            result = algorithm.run_round(before.state, round_)
        check_finite(result.state, number)
        failures = [hide_text(failure) for failure in clients.failures] if plan.hide_failures else clients.failures
        record = _make_record(round_, result, failures, before, time.monotonic() - started)
        if secret is not None:
            record = hide_clients(record)
        backend.commit(clients.heads)
        known, old = ({}, {}) if before is None else (before.links.states, before.heads)
        links = Links(
            inputs=plan.inputs,
            previous=None if before is None else before.digest,
            previous_evaluation=None if evaluation is None else identify_evaluation(evaluation),
            states=read_state_digests(plan.folder / "states", clients.heads, old, known),
            trajectories=write_trajectories(plan.folder, number, result.episodes if secret is None else ()),
        )
        commit = Commit(number, result.state.digest, clients.heads, record, links, result.state)
        rounds.write(commit)
        backend.prune(clients.heads)
    return commit


def _make_record(
    round_: Round, result: RoundResult, failures: Sequence[Mapping[str, object]], before: Commit | None, seconds: float
) -> Record:
    """The recorded line of a round."""
    counts = round_.clients.meter.counts
    total = counts if before is None else add_counts(before.record["bytes_total"], counts)
    spent = seconds + (0.0 if before is None else before.record["seconds_total"])
    return {
        "round": round_.number,
        "participants": list(round_.participants) if round_.number else [],
        "metrics": finite_metrics(result.metrics),
        "clients": {str(client): finite_metrics(numbers) for client, numbers in sorted(result.clients.items())},
        "client_seconds": {str(client): value for client, value in sorted(round_.clients.seconds.items())},
        "failures": list(failures),
        "bytes": counts,
        "bytes_total": total,
        "seconds": seconds,
        "seconds_total": spent,
        "digest": result.state.digest,
    }


def hide_clients(record: Record) -> Record:
    """The record of a round of a private run: what single clients did is left out. The method's own numbers are its care."""
    if record["failures"]:
        log.warning(
            "round %d: %d answers of clients were not used; records of a private run do not say whose",
            record["round"],
            len(record["failures"]),
        )
    sizes = {name: {way: {**columns, "report": 0} for way, columns in record[name].items()} for name in BYTES}
    return {**record, **sizes, "participants": [], "clients": {}, "client_seconds": {}, "failures": []}


def finite_metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    """Drop non-finite metrics; JSON cannot represent them."""
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _is_evaluation_due(plan: ServerConfig, number: int) -> bool:
    last = number == plan.settings.rounds
    return plan.evaluate is not None and (last or number % max(1, plan.evaluate_every) == 0)


def _evaluate_and_log(
    plan: ServerConfig, rounds: CommitStore, metrics: MetricsLog, commit: Commit, tracker: ProgressTracker | None
) -> Mapping[str, Any] | None:
    """Evaluate if it is due, notify observers, and remove old global states; returns the evaluation."""
    record = dict(commit.record)
    evaluation: Mapping[str, Any] | None = None
    if plan.evaluate is not None and _is_evaluation_due(plan, commit.round):
        started = time.monotonic()
        if tracker is not None:
            tracker.begin_evaluation(commit.round, plan.settings.rounds)
        found = plan.evaluate(commit.round, commit.state)
        evaluation = {**found, "seconds": time.monotonic() - started}
        rounds.write_evaluation(commit, evaluation)
        record["evaluation"] = evaluation
    metrics.append(record)
    for observer in plan.observers:
        observer.round_done(record)
    rounds.keep_only(plan.keep_rounds, best_rounds(metrics.records))
    return evaluation


def check_finite(state: ServerState, round_number: int) -> None:
    """The last check before a commit: a global state with a NaN is never committed."""
    for name, array in state.message.get_arrays().items():
        if not is_finite(array):
            raise DataError(
                f"round {round_number} would make {name!r} of the global state non-finite; the last committed round is"
                " intact: lower the learning rate or bound the updates (algorithm.checks.max_norm)"
            )


def write_trajectories(folder: Path, number: int, episodes: Sequence[str]) -> str | None:
    """Write the sampled episodes of a round, if there are any; its commit contains their digest."""
    if not episodes:
        return None
    text = "".join(f"{episode}\n" for episode in episodes)
    write_atomic(folder / "trajectories" / f"{number:04d}.jsonl", text)
    return bytes_digest(text.encode("ascii"))


def remove_uncommitted(folder: Path, newest: int) -> None:
    """Remove the episodes of rounds that were not committed; they are played again."""
    for path in (*folder.glob("trajectories/*.jsonl"), *folder.glob("evaluation/*.jsonl")):
        if path.stem.isdecimal() and int(path.stem) > newest:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the run folder: a second process on the same folder is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(
            os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644), "r+b"
        )
    except (OSError, ValueError) as error:
        raise DataError(f"cannot use the run folder {format_path(folder)}: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"another process is working on the run in {folder}") from None
        yield
