"""What is evaluated, in which environments, and how: an agent by name, an exported folder, or the policy of a run.

A folder and a run contain their prompt, their environment and the tasks on which the run was evaluated; given options replace
these. Without options the run's own evaluation is repeated, episode for episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.base.settings import merge
from fedagentgym.envs import open_env
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.agent_file import AgentFile, change_agent, read_agent_file
from fedagentgym.learning.evaluation_sets import OpenedSet, open_sets
from fedagentgym.learning.rollouts import Player
from fedagentgym.learning.settings import EvaluationSettings

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.experiment.export import OpenedPolicy
    from fedagentgym.partitions.client_split import Client


@dataclass(frozen=True)
class NamedClient:
    """A client of a split file, in whose variant of the environment an agent is evaluated."""

    file: Path
    number: int


@dataclass(frozen=True)
class JudgeRequest:
    """The given options. None and empty values default to those of the folder or the run, and then to the usual defaults.

    `agent` are settings by name, with `folder` if the agent is an exported one; `changes` update the folder's settings.
    """

    agent: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    changes: tuple[str, ...] = ()
    run: Path | None = None
    best: bool = False
    round: int | None = None
    env: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    client: NamedClient | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True)
class Judged:
    """Everything that an evaluation needs. `expected` is the run's result of this same evaluation, if it has one;
    `own_seed` tells whether the seed is the run's."""

    agent: Player
    sets: tuple[OpenedSet, ...]
    settings: EvaluationSettings
    seed: int
    name: str
    client: Client | None = None
    expected: float | None = None
    own_seed: bool = False

    def describe_set(self, one: OpenedSet) -> dict[str, Any]:
        """The fields of an episode line that describe its environment, so that it can be replayed from the file."""
        told: dict[str, Any] = {"options": type(one.env).portable_options(one.options)}
        if self.client is not None:
            told |= {"client": self.client.index}
            told |= {} if self.client.variant is None else {"variant": dict(self.client.variant)}
        return told


def open_judged(request: JudgeRequest) -> Judged:
    """Open the agent and its environments; environments first, so that a missing data set is reported before a model loads."""
    opened, file = _find_source(request)
    settings = _choose_settings(request, file)
    client = None if request.client is None else _open_client(request.client, request.env, request.options)
    sets = _open_worlds(request, opened, file, settings, client)
    seed = request.seed if request.seed is not None else file.seed if file is not None else 0
    unchanged = not (request.evaluation or request.options or request.changes or request.env or client)
    expected = file.result.get("success") if file is not None and unchanged and seed == file.seed else None
    agent = opened.agent if opened is not None else _make_agent(request, file, sets[0], seed)
    own_seed = file is not None and seed == file.seed
    return Judged(agent, sets, settings, seed, _name(request, opened), client, expected, own_seed)


def _find_source(request: JudgeRequest) -> tuple[OpenedPolicy | None, AgentFile | None]:
    if request.run is not None:
        if request.agent or request.folder is not None:
            raise OptionError("--run and --agent exclude each other: a run plays its own policy")
        if request.changes:
            raise OptionError(
                "--agent-set: the policy of a run is played as it was trained; export it to change its prompt"
            )
        from fedagentgym.experiment.export import open_policy

        opened = open_policy(request.run, number=request.round, best=request.best)
        return opened, opened.describe()
    if request.best or request.round is not None:
        raise OptionError("--best and --round choose among the rounds of a run: they go with --run")
    return None, None if request.folder is None else read_agent_file(request.folder)


def _choose_settings(request: JudgeRequest, file: AgentFile | None) -> EvaluationSettings:
    """The given options over those of the run's evaluation; a given environment or split replaces the run's sets."""
    plain: dict[str, Any] = {}
    if file is not None:
        plain = file.evaluation.model_dump(mode="json", exclude_none=True)
        other_world = request.env is not None and find_env_id(request.env) != file.env.id
        if other_world or request.client is not None or "split" in request.evaluation:
            plain.pop("sets", None)
        if other_world:
            plain.pop("split", None)
    return EvaluationSettings.load(merge(plain, request.evaluation), "evaluation")


def _open_worlds(
    request: JudgeRequest,
    opened: OpenedPolicy | None,
    file: AgentFile | None,
    settings: EvaluationSettings,
    client: Client | None,
) -> tuple[OpenedSet, ...]:
    if client is not None:
        return (_open_client_set(client, request, settings),)
    own: Mapping[str, Any] = {}
    if file is not None:
        own = file.env.options if opened is None else opened.run.runtime.client_split.options
    if request.env is None:
        if file is None:
            raise OptionError(
                "--env is missing: for example --env WebShop; only --run and folders that were exported know their own"
            )
        env_id = file.env.id
    else:
        env_id = find_env_id(request.env)
        own = own if file is not None and env_id == file.env.id else {}
    try:
        return open_sets(settings, env_id, {**own, **request.options})
    except UnknownNameError as error:
        if file is None or not file.plugins or request.env is not None:
            raise
        raise OptionError(
            f"{error}; the agent was trained with the plugins {', '.join(file.plugins)}: give --plugin"
        ) from None


def _open_client(named: NamedClient, env: str | None, options: Mapping[str, Any]) -> Client:
    from fedagentgym.partitions.client_split import load_client_split

    loaded = load_client_split(named.file, env=options)
    if env is not None and find_env_id(env) != loaded.record.env_id:
        raise OptionError(
            f"{named.file} divides {loaded.record.env_id}, the environment asked for is {find_env_id(env)}"
        )
    return loaded.client(named.number)


def _make_client_keywords(client: Client, split: str | None) -> dict[str, Any]:
    """A client's own tasks in its variant; with another split, all its tasks in that variant."""
    keywords = client.get_env_kwargs()
    if split is None:
        return keywords
    return {**{key: value for key, value in keywords.items() if key not in ("tasks", "pool")}, "split": split}


def open_client_env(
    named: NamedClient, *, env: str | None = None, split: str | None = None, options: Mapping[str, Any] | None = None
) -> TextEnv:
    """The environment of a client of a split file, in its variant."""
    client = _open_client(named, env, options or {})
    return open_env(client.client_split.record.env_id, **_make_client_keywords(client, split))


def _open_client_set(client: Client, request: JudgeRequest, settings: EvaluationSettings) -> OpenedSet:
    keywords = _make_client_keywords(client, request.evaluation.get("split"))
    env = open_env(client.client_split.record.env_id, **keywords)
    chosen = settings.model_copy(update={"split": keywords["split"]})
    return OpenedSet("", env, client.client_split.options, chosen)


def _make_agent(request: JudgeRequest, file: AgentFile | None, first: OpenedSet, seed: int) -> Player:
    from fedagentgym.agents.presets import make_agent

    if file is None:
        return make_agent(AgentSettings.load(request.agent, "agent"), first.env, seed)
    from fedagentgym.agents.engines.loading import set_threads

    settings = change_agent(file.agent, list(request.changes))
    set_threads(settings.threads)
    return make_agent(settings, first.env, seed)


def _name(request: JudgeRequest, opened: OpenedPolicy | None) -> str:
    """The agent's name in file names."""
    if opened is not None:
        return f"{opened.run.folder.resolve().name}-round-{opened.round}"
    if request.folder is not None:
        return request.folder.resolve().name
    return Path(str(request.agent.get("model") or request.agent.get("name"))).name
