"""The numbers of a record, computed from its episodes: to write a record, and to check one with `check_run`.

`check_run` takes a run's folder and the content that it should have (`Due`). It replays every episode in the environments of
this machine and computes every number again. Some numbers cannot be proven from a folder and are taken as written: the cost of
training, numbers of tokens, a hosted model's usage, and the results of evaluations at clients. The first false claim is raised.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.algorithms.reports import count_categories, measure_mixture
from fedagentgym.algorithms.worlds import World, list_worlds, measure_categories, summarise_worlds
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.statistics import CONFIDENCE, mean
from fedagentgym.base.streams import derive
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.protocols import find_verifier
from fedagentgym.envs.tasks import Task
from fedagentgym.federation.records import count_episodes, headline_bytes, sum_counts
from fedagentgym.learning.evaluation import summarise
from fedagentgym.learning.settings import OWN_WORLD, EvaluationSettings, RankingSettings, is_test_split
from fedagentgym.learning.trajectory import Group, Line, Trajectory, format_line, group_by_task, read_lines
from fedagentgym.runs.folder import EVALUATION, RANKED, WORLDS, RunFolder
from fedagentgym.runs.record import ClientRecord, CurvePoint, EnvRecord, Evaluated, RunRecord, Spent, TasksRecord
from fedagentgym.runs.replay import ReplyReader, find_difference

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import ClientSplit

TOLERANCE = 1e-9
"""Relative tolerance: sums of the same numbers differ in their last digits from machine to machine."""


class RefutedError(DataError):
    """A claim of a result is false: `claim` names it, the text gives the place."""

    def __init__(self, claim: str, where: str) -> None:
        super().__init__(f"{claim}: {where}")
        self.claim = claim


@contextlib.contextmanager
def refute(
    claim: str, where: str = "", *, error: type[FedAgentGymError] = FedAgentGymError, below: Path | None = None
) -> Iterator[None]:
    """Turn an error of the block into a `RefutedError` of a claim; its text names files relative to the folder `below`."""
    try:
        yield
    except RefutedError:
        raise
    except error as found:
        text = f"{where}{found}"
        raise RefutedError(claim, text if below is None else text.replace(f"{below}/", "")) from None


# ---- numbers ----------------------------------------------------------------------------------------------------------


def sum_spent(records: Sequence[Mapping[str, Any]], until: int) -> Spent:
    """The cost of a training run up to and including a round, from its rounds' records, with all preparation before it."""
    kept = [record for record in records if record["round"] <= until]
    total = kept[-1]["bytes_total"]
    return Spent(
        rounds=until,
        episodes=count_episodes(kept),
        env_steps=sum_counts(kept, "env_steps"),
        bytes_down=headline_bytes(total, "down"),
        bytes_up=headline_bytes(total, "up"),
        optimizer_steps=sum_counts(kept, "optimizer_steps"),
        looks=sum("evaluation" in record for record in kept),
    )


def describe_evaluated(plain: Mapping[str, Any], number: int | None, policy: str | None) -> Evaluated:
    """An evaluation for a record, from its plain form."""
    kept = {name: plain[name] for name in ("tasks", "episodes", "overall", "categories")}
    more = {name: plain[name] for name in ("sets", "at_clients", "beliefs") if name in plain}
    return Evaluated(round=number, policy=policy, **kept, **more)


def measure_groups(groups: Sequence[Group], number: int | None, policy: str | None, confidence: float) -> Evaluated:
    """An evaluation for a record, from the episodes of one set of tasks."""
    found = summarise(groups, EvaluationSettings(confidence=confidence))
    return describe_evaluated(found.to_plain(), number, policy)


def make_point(found: Evaluated, spent: Spent) -> CurvePoint:
    """An evaluated round of a learning curve."""
    assert found.round is not None
    success = {name: estimates["success"]["mean"] for name, estimates in found.categories.items()}
    return CurvePoint(round=found.round, policy=found.policy, spent=spent, overall=found.overall, categories=success)


def describe_clients(client_split: ClientSplit, categories: Mapping[str, float]) -> tuple[ClientRecord, ...]:
    """Every client of a division: its tasks by category, and its success on them, from the success in each category."""
    names = client_split.table.names
    found = []
    for number, counts in enumerate(count_categories(client_split)):
        held = {name: int(count) for name, count in zip(names, counts, strict=True) if count}
        total = sum(held.values())
        own, coverage = measure_mixture(held, categories) if total else (0.0, 0.0)
        mixture = {category: count / total for category, count in held.items()}
        success = own if coverage else None
        found.append(ClientRecord(client=number, tasks=total, mixture=mixture, coverage=coverage, success=success))
    return tuple(found)


def describe_tasks(env: TextEnv, ids: Sequence[str], ranking: RankingSettings | EvaluationSettings) -> TasksRecord:
    """The ranked tasks for a record."""
    return TasksRecord(
        split=ranking.split,
        tasks=len(ids),
        repeats=ranking.repeats,
        temperature=ranking.temperature,
        pool=env.task_set.pool,
        task_ids=digest(list(ids)),
        task_set=replace(env.task_set, ids=list(ids)).digest,
        verifier=find_verifier(env),
    )


def describe_env(env: TextEnv, client_split: ClientSplit | None = None, protections: str | None = None) -> EnvRecord:
    """The environment for a record, with its own tasks, or those that are divided among clients."""
    tasks = env if client_split is None else client_split
    return EnvRecord(
        id=env.id,
        options=env.options.portable,
        pool=tasks.pool.digest,
        task_set=tasks.task_set.digest,
        verifier=find_verifier(env),
        protections=protections,
    )


# ---- what belongs into a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Episodes that belong to a run: these tasks of an environment, each `repeats` times, under seeds derived from `seed`."""

    env: TextEnv
    split: str
    ids: Sequence[str]
    repeats: int
    seed: int

    @property
    def expected(self) -> list[tuple[str, int, int]]:
        """The task, the seed and the sample of each episode."""
        places = [(task, derive(self.seed, "episode", place)) for place, task in enumerate(self.ids)]
        return [(task, seed, sample) for task, seed in places for sample in range(self.repeats)]

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """The tasks, each made once however often it was played."""
        return {task: self.env.pool[task] for task in self.ids}


@dataclass(frozen=True)
class Due:
    """The content that a run's folder should have by its configuration, with the environments of this machine.

    A training run also has a division of tasks and a `curve`, evaluated after each of `rounds`; `ranking.round` says which of
    them is ranked. `own_worlds` says whether clients' own variants are ranked too.
    """

    agent: str
    reader: ReplyReader | None
    ranked: Part
    ranking: RankingSettings | EvaluationSettings
    curve: Part | None = None
    rounds: Sequence[int] = ()
    client_split: ClientSplit | None = None
    confidence: float = CONFIDENCE

    @property
    def own_worlds(self) -> bool:
        return isinstance(self.ranking, RankingSettings) and self.ranking.own_worlds


@dataclass(frozen=True)
class Played:
    """The episodes of a run's folder: of the curve by round, the ranked ones, and those in the worlds of clients."""

    curve: Mapping[int, tuple[Group, ...]]
    ranked: tuple[Group, ...]
    worlds: Sequence[tuple[World, tuple[Group, ...]]] = ()
    cut_short: int = 0
    """The number of episodes that may have ended because the context was full."""


def compute_numbers(record: RunRecord, due: Due, played: Played) -> RunRecord:
    """The record with every number that follows from the episodes recomputed; policies and costs of training stay as written."""
    points, sure = {point.round: point for point in record.curve}, due.confidence
    rounds = [measure_groups(groups, number, points[number].policy, sure) for number, groups in played.curve.items()]
    best = max(rounds, key=lambda one: (one.overall["success"]["mean"], -(one.round or 0)), default=None)
    by_best = isinstance(due.ranking, RankingSettings) and due.ranking.round == "best"
    chosen = None if best is None else best.round if by_best else rounds[-1].round
    ranked = measure_groups(played.ranked, chosen, None if record.ranked is None else record.ranked.policy, sure)
    if played.worlds:
        own = [
            (world, mean([float(one.success) for group in groups for one in group]), measure_categories(groups))
            for world, groups in played.worlds
        ]
        ranked = ranked.model_copy(update={"at_clients": {OWN_WORLD: summarise_worlds(own)}})
    success = {name: estimates["success"]["mean"] for name, estimates in ranked.categories.items()}
    found: dict[str, Any] = {
        "tasks": describe_tasks(due.ranked.env, due.ranked.ids, due.ranking),
        "ranked": ranked,
        "clients": () if due.client_split is None else describe_clients(due.client_split, success),
        "curve": tuple(make_point(one, points[one.round or 0].spent) for one in rounds),
    }
    if best is not None:
        said = {} if record.final is None else {name: getattr(record.final, name) for name in ("at_clients", "beliefs")}
        chooses = due.curve is not None and not is_test_split(due.curve.env, due.curve.split)
        found |= {"final": rounds[-1].model_copy(update=said), "best_round": best.round if chooses else None}
        found["rounds"] = record.spent.rounds
    if record.kind == "evaluation":
        turns = [len(one.turns) for group in played.ranked for one in group]
        found["spent"] = Spent(episodes=len(turns), env_steps=sum(turns))
    return record.model_copy(update=found)


@dataclass(frozen=True)
class Examined:
    """A run whose episodes were played again and whose numbers were computed again.

    `selection` holds the episodes on the curve's split of the ranked round, and `rivals` counts the other evaluated rounds.
    """

    record: RunRecord
    ranked: tuple[Group, ...]
    selection: tuple[Group, ...] = ()
    rivals: int = 0
    cut_short: int = 0


def check_run(run: RunFolder, due: Due, where: str = "") -> Examined:
    """Check the episodes and numbers of a finished run; raises `RefutedError` at the first that is false. Messages name the run
    by `where`."""
    record, ranked, rounds = run.record, run.record.ranked, list(due.rounds)
    policies = {point.round: point.policy for point in record.curve}
    if list(policies) != rounds or len(policies) != len(record.curve) or sorted(run.list_evaluations()) != rounds:
        raise RefutedError("complete", f"{where}: rounds {rounds} were to be evaluated")
    if ranked is None:
        raise RefutedError("complete", f"{where}: nothing is ranked")

    def replay(expected: Expected, line: Line) -> Trajectory:
        """Return the episode of a line; raise if it is not the expected one, its form is wrong, or its replay differs."""
        env, task = expected.part.env, expected.task
        found = replace(line.trajectory, seed=expected.seed) if line.brief else line.trajectory
        if (found.task, found.seed, found.sample) != (task, expected.seed, expected.sample):
            there = f"{found.task} with seed {found.seed}, copy {found.sample}"
            wanted = f"{task} with seed {expected.seed}, copy {expected.sample}"
            raise RefutedError("complete", f"{expected.place}: {wanted} belongs here, found {there}")
        here = f"{expected.place} ({found.task}, copy {found.sample})"
        for field, value in expected.about.items():
            if (written := line.about.get(field)) != value:
                problem = f"{field!r} is {str(written)[:60]!r}, it should be {str(value)[:60]!r}"
                raise RefutedError("schema", f"{here}: {problem}")
        if format_line(found, expected.about, brief=line.brief) != line.text:
            problem = "the line is not written as an episode is: a field is added, doubled or of another kind"
            raise RefutedError("schema", f"{here}: {problem}")
        difference = find_difference(env, found, due.reader, task=expected.part.tasks[task], brief=line.brief)
        if difference is not None:
            raise RefutedError("replayed", f"{here}: {difference}")
        return found

    played = read_played(run, due, record, where, replay)
    found = compute_numbers(record, due, played)
    assert found.ranked is not None
    chosen = found.ranked.round
    if ranked.round != chosen:
        raise RefutedError("selection", f"{where}: round {chosen} is to be ranked, but round {ranked.round} is")
    if chosen is not None and (ranked.policy is None or ranked.policy != policies[chosen]):
        raise RefutedError("selection", f"{where}: the ranked policy is not that of round {chosen}")
    plain, written = found.model_dump(mode="json"), record.model_dump(mode="json")
    for name in plain:
        compare(f"{where}: {name}", plain[name], written[name])
    selection = () if chosen is None else played.curve[chosen]
    return Examined(record, played.ranked, selection, max(len(record.curve) - 1, 0), played.cut_short)


@dataclass(frozen=True)
class Expected:
    """An expected episode of a run: its file, its place as messages name it, its part, and the fields of its line."""

    file: str
    place: str
    part: Part
    task: str
    seed: int
    sample: int
    about: Mapping[str, Any]


def read_played(
    run: RunFolder, due: Due, record: RunRecord, where: str, visit: Callable[[Expected, Line], Trajectory]
) -> Played:
    """Read every episode of a run that has a ranking; `visit` gets the expected episode and the line, and returns the episode."""
    cut, ranked = 0, record.ranked
    assert ranked is not None

    def take(file: str, parts: Mapping[str, tuple[Part, Mapping[str, Any]]]) -> list[tuple[Group, ...]]:
        """The groups of each part of a file; its episodes have the fields of the part, and follow one another."""
        nonlocal cut
        lines, groups = _read(run, file, where), list[tuple[Group, ...]]()
        for more, (part, own) in parts.items():
            place, env, episodes = f"{where}: {file}{more}", part.env, list[Trajectory]()
            verifier = {} if find_verifier(env) is None else {"verifier": find_verifier(env)}
            about = {
                "env": env.id,
                "pool": env.task_set.pool,
                "agent": due.agent,
                **verifier,
                "split": part.split,
                **own,
            }
            for number, (task, seed, sample) in enumerate(part.expected, start=1):
                if (line := next(lines, None)) is None:
                    problem = f"{len(part.expected)} episodes belong here, found {len(episodes)}"
                    raise RefutedError("complete", f"{place}: {problem}")
                expected = Expected(file, f"{place}, episode {number}", part, task, seed, sample, about)
                episodes.append(found := visit(expected, line))
                # ended before the environment ended it: its context was full, which cannot be checked
                cut += not found.terminated and len(found.actions) < env.max_turns
            groups.append(group_by_task(episodes))
        if next(lines, None) is not None:
            raise RefutedError("complete", f"{where}: {file}: there are more episodes than belong here")
        return groups

    curve = {}
    for point in record.curve:
        if due.curve is None:
            raise RefutedError("complete", f"{where}: an evaluation has no learning curve")
        about = {"round": point.round, "policy": point.policy}
        (curve[point.round],) = take(f"{EVALUATION}/{point.round:04d}.jsonl", {"": (due.curve, about)})
    key, value = ("temperature", due.ranking.temperature) if record.kind == "evaluation" else ("round", ranked.round)
    (groups,) = take(RANKED, {"": (due.ranked, {key: value, "policy": ranked.policy})})
    if not due.own_worlds:
        return Played(curve, groups, (), cut)
    # clients whose worlds are equal are played once, or each with a policy of its own: the first line states which
    assert due.client_split is not None
    worlds = list_worlds(due.client_split, apart=False)
    first = next(_read(run, WORLDS, where), None)
    if first is not None and first.about.get("clients") != list(worlds[0].clients):
        worlds = list_worlds(due.client_split, apart=True)
    parts = {
        f", {world.name}": (
            replace(due.ranked, env=world.open_env(due.ranked.split)),
            {"round": ranked.round, **world.describe()},
        )
        for world in worlds
    }
    return Played(curve, groups, list(zip(worlds, take(WORLDS, parts), strict=True)), cut)


def _read(run: RunFolder, name: str, where: str) -> Iterator[Line]:
    """The lines of a file of episodes; a line that is no episode refutes the claim `schema`."""
    if not (run.path / name).is_file():
        raise RefutedError("complete", f"{where}: {name} is missing")
    with refute("schema", f"{where}: ", below=run.path):
        yield from read_lines(run.path / name)


def compare(place: str, expected: Any, found: Any) -> None:
    """Raise at the first value that differs; numbers may differ in their last digits."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if (key in expected) != (key in found):
                state = "missing" if key in expected else "one too many"
                raise RefutedError("recomputed", f"{place}: {key!r} is {state}")
            compare(f"{place}.{key}", expected[key], found[key])
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            raise RefutedError("recomputed", f"{place}: {len(found)} values, {len(expected)} follow from the episodes")
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            compare(f"{place}[{number}]", one, other)
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=1e-12):
            raise RefutedError("recomputed", f"{place} is written as {found!r}, {expected!r} follows from the episodes")
    elif expected != found:
        difference = f"{str(found)[:80]!r}, it should be {str(expected)[:80]!r}"
        raise RefutedError("recomputed", f"{place} is written as {difference}")
