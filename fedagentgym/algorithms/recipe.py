"""Limits of a server's requests to a client's machine: the settings of a recipe, and who decides each of them.

A recipe is the part of a run's configuration that a Flower node gets from the server. The table of SECURITY.md has a rule for
every setting, which a test checks; `admit_recipe` applies them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.agents.foreign import check_foreign_agent, find_agents, replace_agents
from fedagentgym.agents.model.store import identify_model
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.base import BaseAlgorithm, get_algorithm_class, make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import DataError, RefusedError
from fedagentgym.envs.make import env_class, read_options
from fedagentgym.envs.registry import find_env_id

SANDBOX = "sandbox"
_MODEL_NAME = re.compile(r"sha256:[0-9a-f]{64}|[\w][\w.-]*(/[\w][\w.-]*)?")


@dataclass(frozen=True)
class Owner:
    """The decisions of a machine's owner about what a server's recipe cannot decide.

    `accept` names the protections of the sandbox that may be missing. `harness` is the command of the program that plays;
    `processes` of them run at a time.
    """

    accept: tuple[str, ...] = ()
    harness: tuple[str, ...] = ()
    processes: int = 4


# ---- on a node ------------------------------------------------------------------------------------------------------


def admit_recipe(spec: ExperimentSpec, owner: Owner) -> ExperimentSpec:
    """The recipe as this machine builds it; a `RefusedError` says what its owner did not allow."""
    try:
        check_recipe(spec)
    except DataError as error:
        raise RefusedError(str(error)) from None
    if spec.agent.harness is not None:
        if not owner.harness:
            raise RefusedError(
                "a program plays in this run, and this machine names none: give --node-config harness=/a/program"
            )
        named = {"command": list(owner.harness), "processes": owner.processes}
        whole = {**spec.agent.harness.model_dump(exclude_unset=True, exclude={"name"}), **named}
        agent = {**spec.agent.model_dump(exclude_unset=True), "harness": whole}
        spec = spec.model_copy(update={"agent": AgentSettings.load(agent, "agent")})
    if not owner.accept or env_class(find_env_id(spec.env.id)).Options.get_marks().get(SANDBOX) != "owner":
        return spec
    # the environment runs programs: its sandbox may lack the protections that the owner accepts
    options = {**spec.env.options, SANDBOX: {"accept": list(owner.accept)}}
    return spec.model_copy(update={"env": spec.env.model_copy(update={"options": options})})


def check_recipe(spec: ExperimentSpec) -> None:
    """Raise `DataError` if a recipe decides anything that only the owner of a machine may; the message quotes only the recipe."""
    where = "the server's recipe"
    for name in ("file", "labels"):
        if getattr(spec.partition, name) is not None:
            raise DataError(f"{where}: partition.{name} names a file of this machine, which only its owner may do")
    method = get_algorithm_class(spec.algorithm).settings_class.load(dict(spec.algorithm), "algorithm")
    for part in (spec, method):
        for key, agent in find_agents(part, where):
            check_foreign_agent(agent, where)
            if agent.model is not None and not _MODEL_NAME.fullmatch(agent.model):
                raise DataError(f"{key}: a model is named by its digest or name, not by a path of this machine")
    sets = () if spec.evaluation is None else spec.evaluation.sets
    opened = [(spec.env.id, spec.env.options), *((one.env or spec.env.id, one.options or {}) for one in sets)]
    for name, options in opened:
        read_options(find_env_id(name), options).refuse_foreign(where)


# ---- on the server --------------------------------------------------------------------------------------------------


def make_recipe(spec: ExperimentSpec) -> ExperimentSpec:
    """The part of a configuration that is sent to nodes, in which digests of files replace the server's model folders."""
    method = get_algorithm_class(spec.algorithm).settings_class.load(dict(spec.algorithm), "algorithm")
    named = replace_agents(method, _name_model)
    plain = named.model_dump(mode="json", exclude_unset=True)
    changed = {key: plain[key] for key, value in named if value is not getattr(method, key)}
    sent: ExperimentSpec = replace_agents(spec, _name_model)
    return sent.model_copy(update={"algorithm": {**spec.algorithm, **changed}})


def _name_model(agent: AgentSettings) -> AgentSettings:
    if agent.model is None or not Path(agent.model).expanduser().is_dir():
        return agent
    return agent.model_copy(update={"model": identify_model(agent.model)})


def build_algorithm(
    spec: ExperimentSpec | Mapping[str, Any],
    device: str | None = None,
    owner: Mapping[str, Any] | None = None,
    **held: Any,
) -> BaseAlgorithm[Any]:
    """Build a worker's application: the algorithm, whose operations the worker serves. With `owner`, the decisions of this
    machine's owner, the spec comes from a server; it is checked and changed by these decisions."""
    if held:
        raise RefusedError(
            "this machine holds tasks of its own, and this run divides others: it needs partition.sampler held"
        )
    loaded = spec if isinstance(spec, ExperimentSpec) else ExperimentSpec.load(spec, "spec")
    if owner is not None:
        loaded = admit_recipe(loaded, Owner(**owner))
    return make_algorithm(loaded, Runtime(loaded, device))
