"""A run with everything that its configuration names opened: data, agent, method."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.base import BaseAlgorithm, get_algorithm_class
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base import devices
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, unknown_name_error
from fedagentgym.experiment.config import (
    RunConfig,
    check_participants,
)
from fedagentgym.experiment.deployment import Deployment, DividedDeployment, HeldDeployment
from fedagentgym.experiment.estimate.plan import check_fit
from fedagentgym.federation.commits import CONFIGURATION, CommitStore, extend_inputs
from fedagentgym.learning.evaluation import OpenedSet
from fedagentgym.learning.recipe import prepare_agent
from fedagentgym.partitions.client_split import ClientSplit


@dataclass(frozen=True, eq=False)
class Run:
    """A configuration with everything that it names opened (`Run.open`): it is played with `finish`."""

    config: RunConfig
    folder: Path
    spec: ExperimentSpec
    runtime: Runtime
    algorithm: BaseAlgorithm[Any]
    sets: tuple[OpenedSet, ...]
    agent_note: Mapping[str, Any]
    plugins: tuple[str, ...] = ()
    """The plugins that workers load: the configuration's, where the user has them."""
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
        """The server's side of where the tasks are."""
        return (HeldDeployment if self.spec.partition.is_held else DividedDeployment)(self.algorithm)

    @property
    def inputs(self) -> dict[str, str]:
        """The digests of what the run is made from: a commit contains them, and a run resumes only with the same."""
        inputs = {CONFIGURATION: self.config.digest, "client split": self.runtime.client_split.digest}
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
        shorter = self.config.federation.raised_from  # before it was extended
        return extend_inputs(inputs, newest, lambda: {self.config.compute_digest(rounds) for rounds in shorter})

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
        opened = Runtime(config.spec())
        client_split = opened.client_split
        check_participants(config, len(client_split))
        sets = () if config.evaluation is None else opened.open_sets(config.evaluation)
        known = client_split.table.names
        for one in sets:
            if one.category is not None and one.category not in known:
                raise unknown_name_error(f"category in the evaluation set {one.name!r}", one.category, known)
    except DataError as missing:
        raise (missing if unfit is None else DataError(f"{missing}; besides, {unfit}")) from None
    if unfit is not None:
        raise unfit
    return client_split, sets


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
