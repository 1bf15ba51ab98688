"""An opened run: the data, the agent and the method that its configuration names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms import APPLICATION, HELD_APPLICATION
from fedagentgym.algorithms.base import BaseAlgorithm, get_algorithm_class
from fedagentgym.algorithms.held import call_join, evaluate_at_clients
from fedagentgym.algorithms.reports import evaluate_mixtures
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base import devices
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, join_names, unknown_name_error
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env, read_options
from fedagentgym.experiment.config import RunConfig, check_participants, digest_plain
from fedagentgym.experiment.estimate.plan import check_fit
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.commits import CONFIGURATION, CommitStore, extend_inputs
from fedagentgym.learning.evaluation import OpenedSet, SetsEvaluation, open_sets
from fedagentgym.learning.recipe import prepare_agent
from fedagentgym.learning.trajectory import read_lines
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.partitions.verification import find_leaks, refuse_imitated
from fedagentgym.runs.folder import RunFolder

CLIENT_SPLIT = "client split"

if TYPE_CHECKING:
    from fedagentgym.federation.backends import Backend


@dataclass(frozen=True, eq=False)
class Run:
    """A configuration with its opened data, agent and method; `Run.open` makes it, and `finish` plays it."""

    config: RunConfig
    folder: Path
    spec: ExperimentSpec
    runtime: Runtime
    algorithm: BaseAlgorithm[Any]
    sets: tuple[OpenedSet, ...]
    agent_note: Mapping[str, Any]
    plugins: tuple[str, ...] = ()
    """The plugins that workers load: those of the configuration, at their paths on this machine."""
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, config: RunConfig, folder: Path, plugins: tuple[str, ...] | None = None) -> Run:
        """Open what a configuration names; data first, so that missing data is reported before any work."""
        began = time.monotonic()
        client_split, sets = devices.here().make_first(lambda: open_data(config))
        agent, agent_note = devices.here().make_first(lambda: resolve_agent(config))
        spec = config.spec(agent)
        runtime = Runtime(spec, client_split=client_split)
        if spec.evaluation is not None:
            runtime.evaluation_sets = sets
        algorithm = get_algorithm_class(config.algorithm)(config.method, runtime)
        clients = len(algorithm.client_ids())
        algorithm.check_start(min(config.federation.clients_per_round or clients, clients))
        loaded = config.plugins if plugins is None else plugins
        return cls(config, folder, spec, runtime, algorithm, sets, agent_note, loaded, began)

    @cached_property
    def deployment(self) -> Deployment:
        """The part of a run that depends on where the tasks are."""
        return (HeldDeployment if self.spec.partition.is_held else Deployment)(self.algorithm)

    @property
    def inputs(self) -> dict[str, str]:
        """The digests of the run's inputs. Commits contain them, and a run is resumed only with the same digests."""
        inputs = {CONFIGURATION: self.config.digest, CLIENT_SPLIT: self.runtime.client_split.digest}
        if described := self.describe_sets():
            inputs["evaluation sets"] = digest(described)
        rounds = CommitStore(self.folder / "rounds")
        numbers = rounds.list_notes()
        if not numbers:
            return inputs
        try:
            newest = rounds.read_note(numbers[-1])
        except FedAgentGymError:
            return inputs  # the check of the chain reports what is wrong with it
        if newest.links.inputs.get(CLIENT_SPLIT) != inputs[CLIENT_SPLIT]:
            self._refuse_other_tasks()
        shorter = self.config.federation.raised_from  # before it was extended
        return extend_inputs(inputs, newest, lambda: {digest_plain(self.config.plain(), rounds) for rounds in shorter})

    def _refuse_other_tasks(self) -> None:
        """Raise if the environment has other tasks than when the run was played: its pool is in the record, and in the episodes
        of the first evaluation."""
        folder, env = RunFolder(self.folder), self.config.env
        files = list(folder.list_evaluations().values())
        known, present = None, self.runtime.client_split.record.pool_digest
        with contextlib.suppress(FedAgentGymError):  # a file that was changed: the check of the chain reports it
            if folder.is_finished:
                known = folder.record.env.pool
            elif files and len(self.sets) == 1 and not self.sets[0].name:
                line = next(read_lines(files[0]), None)
                known, present = None if line is None else line.about.get("pool"), self.sets[0].env.task_set.pool
        if known is None or known == present:
            return
        marks = read_options(env.id, env.options).get_marks()
        places = ", ".join(f"{name}: {value}" for name, value in env.options.items() if marks.get(name) == "local")
        raise DataError(f"the tasks of {env.id} are others than those of the run{f' ({places})' if places else ''}")

    def describe_sets(self) -> dict[str, Any]:
        """The named evaluation sets, if there are any."""
        evaluation = self.config.evaluation
        return {} if evaluation is None or not evaluation.sets else {one.name: one.describe() for one in self.sets}


def open_data(config: RunConfig) -> tuple[ClientSplit, tuple[OpenedSet, ...]]:
    """The division of the run's tasks, and the evaluation environments. Missing data is reported before anything
    loads, together with a model that does not fit."""
    unfit: OptionError | None = None
    try:
        check_fit(config)
    except OptionError as error:
        unfit = error
    try:
        client_split = Runtime(config.spec()).client_split
        check_participants(config, len(client_split))
        evaluation = config.evaluation
        sets = () if evaluation is None else open_sets(evaluation, config.env.id, client_split.options)
        known = client_split.table.names
        for one in sets:
            if one.category is not None and one.category not in known:
                raise unknown_name_error(f"category in the evaluation set {one.name!r}", one.category, known)
        ranking = config.ranking
        ranked = (
            None if ranking is None else open_env(config.env.id, **{**client_split.options, "split": ranking.split})
        )
        if ranking is not None and ranked is not None and (ranking.tasks or 0) > len(ranked.pool):
            there = f"the split {ranking.split!r} has {len(ranked.pool)} tasks"
            raise DataError(f"ranking.tasks: {there}, not {ranking.tasks}")
        if not config.partition.is_held:
            for one in sets:
                check_held_out(client_split, one.env, one.settings.split, one.settings.tasks)
            if ranking is not None and ranked is not None:
                check_held_out(client_split, ranked, ranking.split, ranking.tasks)
        if config.warm_start is not None:
            shown = open_env(config.env.id, **{**client_split.options, "split": "warmup"})
            for one in sets:
                refuse_imitated(shown, one.env, one.settings.split, one.settings.tasks)
    except DataError as missing:
        raise (missing if unfit is None else DataError(f"{missing}; besides, {unfit}")) from None
    if unfit is not None:
        raise unfit
    return client_split, sets


def check_evaluated(env: TextEnv, split: str) -> None:
    """Refuse a split that is not an evaluation split of the environment."""
    if env.canonical_split(split) not in env.evaluation_splits:
        listed = join_names(env.evaluation_splits)
        raise OptionError(f"a run may learn from the split {split!r}: evaluate {env.id} on one of {listed}")


def check_held_out(client_split: ClientSplit, env: TextEnv, split: str, tasks: int | None) -> None:
    """Refuse to evaluate on tasks from which a run learns: success there is not success on held-out tasks."""
    check_evaluated(env, split)
    evaluated = env.pool.ids[:tasks]
    record, pool, options = client_split.record, client_split.pool, client_split.options
    if leaked := find_leaks(record, pool, options, env, evaluated):
        raise DataError(
            f"clients train on {len(leaked):,} of the {len(evaluated):,} evaluated tasks of the split {split!r}, such as"
            f" {leaked[0]}: the splits of {env.id} must have no task in common"
        )


def resolve_agent(config: RunConfig) -> tuple[AgentSettings, dict[str, Any]]:
    """The agent to load, and a note of its origin; a warm start is made now unless it exists."""
    options = {key: value for key, value in config.env.options.items() if key != "reward"}
    return prepare_agent(config.agent, config.env.id, options, config.warm_start)


def prepare_agents(configs: Iterable[RunConfig]) -> None:
    """Make the agents from which runs start, each once, before several processes need them."""
    made = []
    for config in configs:
        plain = config.plain()
        start = (plain["env"]["id"], plain["env"]["options"], plain["warm_start"], plain["agent"])
        if start not in made:
            made.append(start)
            resolve_agent(config)


@dataclass(frozen=True)
class Deployment:
    """The part of the server that depends on where tasks are; for clients, the sites of `algorithms/runtime.py` are this part.

    In this class the server can open all tasks. It asks no client whether it takes part, and evaluates the global model on each
    client's mixture of categories.
    """

    algorithm: BaseAlgorithm[Any]
    application: ClassVar[str] = APPLICATION
    """The target that workers and clients' machines build."""

    def check_backend(self, name: str) -> None:
        """Refuse a backend that does not reach the tasks; in this class every backend does."""

    def ask_all(self, backend: Backend, deadline: float | None) -> None:
        """Ask all clients, before the first round, whether they take part. In this class none is asked: the server's
        configuration decides."""

    def evaluate_held_out(
        self, backend: Backend, round_number: int, state: ServerState, deadline: float | None, found: SetsEvaluation
    ) -> dict[str, Any]:
        """The success of the global model for every client; `found` is its evaluation on the run's own sets."""
        return evaluate_mixtures(found, self.algorithm.runtime.client_split)


@dataclass(frozen=True)
class HeldDeployment(Deployment):
    """Clients hold their tasks: each is asked whether it takes part, and evaluates on its held-out tasks."""

    application: ClassVar[str] = HELD_APPLICATION

    def check_backend(self, name: str) -> None:
        if name == "in-process":
            raise OptionError(
                "the tasks of this run lie on the clients' machines (partition.sampler held): start it as a Flower deployment,"
                " with `fedagentgym flower init` and `flwr run`"
            )

    def ask_all(self, backend: Backend, deadline: float | None) -> None:
        call_join(self.algorithm, backend, deadline)

    def evaluate_held_out(
        self, backend: Backend, round_number: int, state: ServerState, deadline: float | None, found: SetsEvaluation
    ) -> dict[str, Any]:
        return evaluate_at_clients(self.algorithm, backend, round_number, state, deadline)
