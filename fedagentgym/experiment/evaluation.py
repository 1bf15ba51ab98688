"""Evaluations of policies, in the environments that are chosen: an agent by name, an exported folder, or the policy of a run.

A folder and a run contain their prompt, their environment and the tasks on which the run was evaluated; given options replace
these. Without options the run's own evaluation is repeated, episode for episode. `check_episodes` replays a file of episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.protocols import Player
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError, join_names, unknown_name_error
from fedagentgym.base.settings import merge
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.agent_file import AgentFile, change_agent, check_foreign_envs, read_agent_file
from fedagentgym.experiment.stored import NO_TRUST, Trust, read_stored_config
from fedagentgym.learning.evaluation import OpenedSet, find_replay_differences, open_sets
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import read_json_lines

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.experiment.export import OpenedPolicy
    from fedagentgym.partitions.client_split import Client


_NOT_OPTIONS = ("split", "tasks", "pool", "variant", "render_mode")


@dataclass(frozen=True)
class NamedClient:
    """A client of a split file, in whose variant of the environment an agent is evaluated."""

    file: Path
    number: int


@dataclass(frozen=True)
class EvaluationRequest:
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
    trust: Trust = NO_TRUST


@dataclass(frozen=True)
class OpenedEvaluation:
    """Everything that an evaluation needs. `expected` is the run's result of this same evaluation, if it has one;
    `own_seed` says whether the seed is the run's."""

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
        plain: dict[str, Any] = {"options": type(one.env).portable_options(one.options)}
        if self.client is not None:
            plain |= {"client": self.client.index}
            plain |= {} if self.client.variant is None else {"variant": dict(self.client.variant)}
        return plain


def open_evaluation(request: EvaluationRequest) -> OpenedEvaluation:
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
    return OpenedEvaluation(agent, sets, settings, seed, _name(request, opened), client, expected, own_seed)


def _find_source(request: EvaluationRequest) -> tuple[OpenedPolicy | None, AgentFile | None]:
    if request.run is not None:
        if request.agent or request.folder is not None:
            raise OptionError("--run and --agent exclude each other: a run plays its own policy")
        if request.changes:
            raise OptionError(
                "--agent-set: the policy of a run is played as it was trained; export it to change its prompt"
            )
        from fedagentgym.experiment.export import open_policy

        opened = open_policy(request.run, number=request.round, best=request.best, trust=request.trust)
        return opened, opened.describe()
    if request.best or request.round is not None:
        raise OptionError("--best and --round choose among the rounds of a run: they go with --run")
    return None, None if request.folder is None else read_agent_file(request.folder)


def _choose_settings(request: EvaluationRequest, file: AgentFile | None) -> EvaluationSettings:
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
    request: EvaluationRequest,
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
    from fedagentgym.partitions.client_split import open_client_split

    loaded = open_client_split(named.file, env=options)
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


def _open_client_set(client: Client, request: EvaluationRequest, settings: EvaluationSettings) -> OpenedSet:
    keywords = _make_client_keywords(client, request.evaluation.get("split"))
    env = open_env(client.client_split.record.env_id, **keywords)
    chosen = settings.model_copy(update={"split": keywords["split"]})
    return OpenedSet("", env, client.client_split.options, chosen)


def _make_agent(request: EvaluationRequest, file: AgentFile | None, first: OpenedSet, seed: int) -> Player:
    from fedagentgym.agents.presets import make_agent

    if file is None:
        return make_agent(AgentSettings.load(request.agent, "agent"), first.env, seed)
    from fedagentgym.agents.engines.loading import set_threads

    settings = change_agent(file.agent, list(request.changes))
    set_threads(settings.threads)
    return make_agent(settings, first.env, seed)


def _name(request: EvaluationRequest, opened: OpenedPolicy | None) -> str:
    """The agent's name in file names."""
    if opened is not None:
        return f"{opened.run.folder.resolve().name}-round-{opened.round}"
    if request.folder is not None:
        return request.folder.resolve().name
    return Path(str(request.agent.get("model") or request.agent.get("name"))).name


# ---- replaying a file of episodes ------------------------------------------------------------------------------------


def check_episodes(
    file: str | Path,
    *,
    env: str | None = None,
    options: Mapping[str, Any] | None = None,
    split: str | None = None,
    only: str | None = None,
) -> list[str]:
    """Replay a file's actions; every difference is one sentence. Empty if there is none.

    `env`, `options` and `split` replace or complete the environment named by the file, or by the run that contains it.
    """
    path, given = Path(file), dict(options or {})
    heads = _read_heads(path)
    if only is not None and only not in heads:
        raise unknown_name_error(f"evaluation set of {path}", only, [name for name in heads if name])
    if env is not None and only is None and len(heads) > 1:
        raise OptionError(
            f"{path} holds the evaluation sets {join_names(heads)}: say which of them --env plays (--set)"
        )
    differences: list[str] = []
    for name, head in heads.items():
        if only is None or name == only:
            world = _open_world(path, name, head, env, given, split)
            differences += find_replay_differences(path, world, name)
    return differences


def _read_heads(path: Path) -> dict[str, dict[str, Any]]:
    """Return what the first line of each evaluation set contains besides its episode."""
    heads: dict[str, dict[str, Any]] = {}
    for _, about in read_json_lines(path):
        heads.setdefault(str(about.get("set", "")), about)
    if not heads:
        raise DataError(f"{path} holds no episodes")
    return heads


def _open_world(
    path: Path, name: str, head: Mapping[str, Any], env: str | None, given: Mapping[str, Any], split: str | None
) -> TextEnv:
    written = head.get("env")
    if env is None and not isinstance(written, str):
        raise OptionError(f"{path} does not name the environment in which it was played: name it (--env)")
    env_id = find_env_id(written if env is None else env)
    own = _find_options(path, name, head) if env_id == written else {}
    variant = head.get("variant") if env_id == written else None
    chosen = split or head.get("split", "val")
    if not isinstance(chosen, str) or not isinstance(variant, dict | None):
        raise DataError(f"{path}: split or variant of an episode is not what `fedagentgym eval` writes")
    kept = {} if variant is None else {"variant": variant}
    return open_env(env_id, **{**own, **given, **kept, "split": chosen})


def _find_options(path: Path, name: str, head: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a line, or those of the run that contains the file. Paths on this machine are not taken from a file."""
    if "options" in head:
        options = head["options"]
        if not isinstance(options, dict) or any(key in _NOT_OPTIONS for key in options):
            raise DataError(f"{path}: the options of an episode are not what `fedagentgym eval` writes")
        return ENVIRONMENTS.get(find_env_id(head["env"])).portable_options(options)  # type: ignore[no-any-return]
    return next((one for set_name, one in _iter_run_options(path) if set_name == name), {})


def _iter_run_options(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The options of each evaluation set of the run whose folder holds this file."""
    folder = path.resolve().parent.parent
    if not (folder / "config.yaml").is_file():
        return
    stored = read_stored_config(folder)
    env, evaluation = stored.env, stored.evaluation
    check_foreign_envs(env, evaluation, stored.where, paths=True)
    if evaluation is None or not evaluation.sets:
        yield "", env.options
        return
    for one in open_sets(evaluation, env.id, env.options):
        yield one.name, one.options
