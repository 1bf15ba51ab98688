"""Limits of a server's requests to a client's machine: the settings of a recipe, and who decides each of them.

A recipe is the part of a run's configuration that a Flower node gets from the server. `RULES` is the table of SECURITY.md, and a
test holds it equal to the settings; `admit_recipe` applies it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.agents.foreign import check_foreign_agent, find_agents
from fedagentgym.agents.models.store import identify_model
from fedagentgym.algorithms.base import BaseAlgorithm, get_algorithm_class, load_settings, make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import DataError, OptionError, RefusedError
from fedagentgym.envs.make import env_class, read_options
from fedagentgym.envs.registry import find_env_id

SANDBOX = "sandbox"
_MODEL_NAME = re.compile(r"sha256:[0-9a-f]{64}|[\w][\w.-]*(/[\w][\w.-]*)?")


class Rule(NamedTuple):
    """The party that decides a setting of a recipe, and what a node does with it; `keys` with all keys below them."""

    keys: tuple[str, ...]
    who: str
    node: str


OF_PACKAGE = "of this package, or of plugins that the owner names"
RULES = (
    Rule(("seed", "rounds", "sampled_episodes"), "server", "numbers in range"),
    Rule(
        ("env.id", "env.split", "evaluation.sets.env", "evaluation.sets.split"),
        "server",
        f"environments {OF_PACKAGE}",
    ),
    Rule(
        ("env.options", "evaluation.sets.options"),
        "server, but for places and protections",
        "data sets by the word `installed`, no path; no `sandbox`: the owner's `accept` says which protections may be missing",
    ),
    Rule(("partition.file", "partition.labels"), "owner", "nothing: a server names no file of a node"),
    Rule(("partition",), "server", f"samplers and variants {OF_PACKAGE}"),
    Rule(("agent.name",), "server", f"agents that are loaded from a model, {OF_PACKAGE}; none that calls a server"),
    Rule(
        ("agent.model",), "server, among what the owner has", "the digest or the name of a model that is there, no path"
    ),
    Rule(
        ("agent.options",), "server, but for arguments of libraries", "`memory`, `parallel`, `sleep`, `eager`, `noise`"
    ),
    Rule(("agent",), "server", "prompt, parser, decoding, adapter, device, type and threads"),
    Rule(("learning",), "server", f"numbers, and names {OF_PACKAGE}"),
    Rule(("algorithm",), "server", f"methods {OF_PACKAGE}; agents in them as `agent`"),
    Rule(("evaluation",), "server", "numbers and names"),
    Rule(("target",), "owner", "the application that the app was made for, or one in `trust`"),
    Rule(("plugins",), "owner", "those in `plugins`"),
    Rule(("client",), "owner", "the numbers in `clients`"),
)


@dataclass(frozen=True)
class Owner:
    """The decisions of a machine's owner about what a server's recipe cannot decide.

    `accept` are the protections of the sandbox that may be missing.
    """

    accept: tuple[str, ...] = ()


def find_rule(key: str) -> Rule:
    """The rule of a setting: the one with the longest key above it."""
    matching = [(len(own), rule) for rule in RULES for own in rule.keys if key == own or key.startswith(f"{own}.")]
    if not matching:
        raise OptionError(f"there is no rule about {key!r} of a recipe")
    return max(matching, key=lambda one: one[0])[1]


def format_rules() -> str:
    """The rules as a table in Markdown."""
    lines = ["| setting of a recipe | who decides | what a node admits |", "|---|---|---|"]
    for rule in RULES:
        lines.append(f"| {', '.join(f'`{key}`' for key in rule.keys)} | {rule.who} | {rule.node} |")
    return "\n".join(lines) + "\n"


# ---- on a node ------------------------------------------------------------------------------------------------------


def admit_recipe(spec: ExperimentSpec, owner: Owner) -> ExperimentSpec:
    """The recipe as this machine builds it, or one sentence about what its owner did not allow."""
    try:
        check_recipe(spec)
    except DataError as error:
        raise RefusedError(str(error)) from None
    return _accept_missing(spec, owner.accept)


def check_recipe(spec: ExperimentSpec) -> None:
    """Raise unless a recipe decides nothing that only the owner of a machine does; the message quotes the recipe alone."""
    where = "the server's recipe"
    for name in ("file", "labels"):
        if getattr(spec.partition, name) is not None:
            raise DataError(f"{where}: partition.{name} names a file of this machine, which only its owner does")
    method = load_settings(get_algorithm_class(spec.algorithm), spec.algorithm)
    for part in (spec, method):
        for key, agent in find_agents(part, where):
            check_foreign_agent(agent, where)
            if agent.model is not None and not _MODEL_NAME.fullmatch(agent.model):
                raise DataError(f"{key}: a model is named by its digest or name, not by a path of this machine")
    for env_id, options in _list_envs(spec):
        read_options(env_id, options).refuse_foreign(where)


def _list_envs(spec: ExperimentSpec) -> list[tuple[str, Mapping[str, Any]]]:
    sets = () if spec.evaluation is None else spec.evaluation.sets
    named = [(spec.env.id, spec.env.options), *((one.env or spec.env.id, one.options or {}) for one in sets)]
    return [(find_env_id(name), options) for name, options in named]


def _accept_missing(spec: ExperimentSpec, accept: Collection[str]) -> ExperimentSpec:
    """The recipe with the protections that the owner lets be missing, where programs run."""
    if not accept or env_class(find_env_id(spec.env.id)).Options.get_marks().get(SANDBOX) != "owner":
        return spec
    options = {**spec.env.options, SANDBOX: {"accept": list(accept)}}
    return spec.model_copy(update={"env": spec.env.model_copy(update={"options": options})})


# ---- on the server --------------------------------------------------------------------------------------------------


def make_recipe(spec: ExperimentSpec) -> ExperimentSpec:
    """The part of a configuration that is sent to nodes: model folders of the server by the digests of their files."""
    agent = spec.agent.model_copy(update={"model": _name_model(spec.agent.model)})
    expert = spec.algorithm.get("expert_agent")
    algorithm = dict(spec.algorithm)
    if isinstance(expert, Mapping) and expert.get("model") is not None:
        algorithm["expert_agent"] = {**expert, "model": _name_model(expert["model"])}
    return spec.model_copy(update={"agent": agent, "algorithm": algorithm})


def _name_model(model: str | None) -> str | None:
    return identify_model(model) if model is not None and Path(model).expanduser().is_dir() else model


def build_algorithm(
    spec: ExperimentSpec | Mapping[str, Any],
    device: str | None = None,
    owner: Mapping[str, Any] | None = None,
    **held: Any,
) -> BaseAlgorithm[Any]:
    """Build a worker's application from an `ApplicationSpec`: the algorithm, whose operations it serves. With an `owner` the spec
    is one of others, which its decisions bind."""
    if held:
        raise RefusedError(
            "this machine holds tasks of its own, and this run divides others: it needs partition.sampler held"
        )
    loaded = spec if isinstance(spec, ExperimentSpec) else ExperimentSpec.load(spec, "spec")
    if owner is not None:
        loaded = admit_recipe(loaded, Owner(**owner))
    return make_algorithm(loaded, Runtime(loaded, device))
