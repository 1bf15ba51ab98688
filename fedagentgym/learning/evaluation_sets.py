"""Evaluating a policy on several sets of tasks: a run on MATH that is evaluated on six test sets, for example.

Every set has the same weight in the mean over all, whatever its number of tasks, as in the papers' averages; the interval of that
mean is that over the tasks of all sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.base.errors import FedAgentGymError, OptionError, UnknownNameError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.statistics import Estimate
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.registry import find_env_id
from fedagentgym.learning.evaluation import (
    Evaluation,
    estimate_measures,
    evaluate,
    format_episodes,
    tabulate_measures,
)
from fedagentgym.learning.rollouts import Player
from fedagentgym.learning.settings import EvaluationSet, EvaluationSettings


@dataclass(frozen=True)
class OpenedSet:
    """A set with its environment and its settings. The run's own split, used if no sets are given, has no name."""

    name: str
    env: TextEnv
    options: Mapping[str, Any]
    settings: EvaluationSettings
    category: str | None = None
    """The run's category that it evaluates, if its name differs from the set's."""

    def describe(self) -> dict[str, Any]:
        """The description of the set, for records."""
        verifier = self.env.get_verifier_version()
        return {
            "env": self.env.id,
            "options": type(self.env).portable_options(self.options),
            "split": self.settings.split,
            "pool": self.env.pool.digest,
            "task_set": self.env.task_set.digest,
            **({} if verifier is None else {"verifier": verifier}),
        }


@dataclass(frozen=True)
class SetsEvaluation:
    """The results of an evaluation for each set, by name."""

    sets: Mapping[str, Evaluation]
    overall: Mapping[str, Estimate]
    stand_for: Mapping[str, str] = field(default_factory=dict)
    """The category of the run's tasks that a set evaluates, by the set's name."""

    def to_plain(self) -> dict[str, Any]:
        """Plain values for a result file: the sets replace the categories; their own categories are below `sets`."""
        if list(self.sets) == [""]:
            return self.sets[""].to_plain()
        below = {name: found.to_plain() for name, found in self.sets.items()}
        return {
            "tasks": sum(plain["tasks"] for plain in below.values()),
            "episodes": sum(plain["episodes"] for plain in below.values()),
            "overall": {name: estimate._asdict() for name, estimate in self.overall.items()},
            "categories": {name: plain["overall"] for name, plain in below.items()},
            "sets": below,
        }

    def measure_categories(self) -> dict[str, float]:
        """The success in every category, over the tasks of all sets; a set's own name represents the whole set, and so does
        the category that it evaluates. Sets that evaluate one category together have equal weights."""
        found: dict[str, list[float]] = {}
        for evaluation in self.sets.values():
            for group in evaluation.groups:
                solved = float(np.mean([trajectory.success for trajectory in group]))
                found.setdefault(group[0].category, []).append(solved)
        means = {category: float(np.mean(values)) for category, values in found.items()}
        whole = {name: one.overall["success"].mean for name, one in self.sets.items() if name}
        judged = {
            category: [whole[name] for name in self.stand_for if self.stand_for[name] == category]
            for category in self.stand_for.values()
        }
        return means | whole | {category: float(np.mean(values)) for category, values in judged.items()}


def open_sets(settings: EvaluationSettings, env_id: str, options: Mapping[str, Any]) -> tuple[OpenedSet, ...]:
    """The environments in which a run is evaluated; `env_id` and `options` are the run's own."""
    if not settings.sets:
        env = open_env(env_id, **{**options, "split": settings.split})
        return (OpenedSet("", env, options, settings),)
    return tuple(_open_set(one, settings, env_id, options) for one in settings.sets)


def _open_set(one: EvaluationSet, settings: EvaluationSettings, env_id: str, options: Mapping[str, Any]) -> OpenedSet:
    where = f"the evaluation set {one.name!r}"
    try:
        found_id, found_options = _find_env(one, env_id, options)
        if surplus := [key for key in found_options if key in ("split", "tasks", "pool", "variant")]:
            raise OptionError(f"{surplus[0]!r} is not an option of an evaluation's environment")
        env = open_env(found_id, **found_options, split=one.split)
    except FedAgentGymError as error:
        raise type(error)(f"{where}: {error}") from None
    resolved = {
        "split": one.split,
        "tasks": settings.tasks if one.tasks is None else one.tasks,
        "repeats": settings.repeats if one.repeats is None else one.repeats,
        "temperature": settings.temperature if one.temperature is None else one.temperature,
    }
    return OpenedSet(one.name, env, found_options, settings.model_copy(update=resolved), one.category)


def _find_env(one: EvaluationSet, env_id: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The environment of a set, and its options."""
    if one.env is None and one.options is None and (found_set := _find_data_set(one.name)) is not None:
        return found_set
    found = env_id if one.env is None else find_env_id(one.env)
    if one.options is not None:
        return found, dict(one.options)
    return found, dict(options) if found == env_id else {}


def _find_data_set(name: str) -> tuple[str, dict[str, Any]] | None:
    """The environment and options of the installed data set with this name, if there is one."""
    from fedagentgym.envs.reasoning.sources import INSTALLED, SOURCES, find_source

    try:
        source = find_source(name)
    except UnknownNameError:
        return None
    return find_env_id(SOURCES[source].task), {"source": source, "data": INSTALLED}


def evaluate_sets(
    agent: Player,
    sets: Sequence[OpenedSet],
    settings: EvaluationSettings,
    *,
    seed: int,
    file: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    about_set: Callable[[OpenedSet], Mapping[str, Any]] | None = None,
) -> SetsEvaluation:
    """Evaluate an agent on every set; `file` gets the episodes of all of them, each line with the name of its set, with
    `about` and with what `about_set` returns for the set."""
    found: dict[str, Evaluation] = {}
    lines = []
    for one in sets:
        own = derive(seed, "set", one.name) if one.name else seed
        found[one.name] = evaluate(agent, one.env, one.settings, seed=own)
        of_set = {} if about_set is None else about_set(one)
        told = {**(about or {}), **of_set, "split": one.settings.split, **({"set": one.name} if one.name else {})}
        if file is not None:
            lines.append(format_episodes(found[one.name], agent, one.env, told))
    if file is not None:
        write_atomic(file, "".join(lines))
    stand_for = {one.name: one.category for one in sets if one.category is not None}
    return SetsEvaluation(found, _average_sets(found, settings), stand_for)


def _average_sets(found: Mapping[str, Evaluation], settings: EvaluationSettings) -> Mapping[str, Estimate]:
    """The mean over sets of the measures that all of them have, with its interval."""
    if len(found) == 1:
        return next(iter(found.values())).overall
    tables = {name: tabulate_measures(evaluation.groups) for name, evaluation in found.items()}
    common = [name for name in next(iter(tables.values()))[0] if all(name in names for names, _ in tables.values())]
    strata = [values[:, [names.index(measure) for measure in common]] for names, values in tables.values()]
    return estimate_measures(common, strata, settings.confidence)
