"""Evaluations of policies, in the environments that are chosen: an agent by name, an exported folder, or the policy of a run.

A folder and a run contain their prompt, their environment and the tasks on which the run was evaluated; given options replace
these. Without options the run's own evaluation is repeated, episode for episode. `check_episodes` replays a file of episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.foreign import SAFE_AGENTS
from fedagentgym.agents.protocols import Player
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import shorten_digest
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError, join_names, unknown_name_error
from fedagentgym.base.files import get_name
from fedagentgym.base.settings import merge
from fedagentgym.envs import open_env
from fedagentgym.envs.make import read_options
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.agent_file import AgentFile, change_agent, check_foreign_envs, read_agent_file
from fedagentgym.experiment.evaluation_run import (
    EvaluatedEnv,
    EvaluationConfig,
    prepare_folder,
    run_evaluation,
)
from fedagentgym.experiment.stored import NO_TRUST, Trust, read_stored_config
from fedagentgym.learning.evaluation import OpenedSet, SetsEvaluation, open_sets
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import read_lines
from fedagentgym.runs.folder import EVALUATION, RunFolder
from fedagentgym.runs.record import AgentRecord, describe_agent, publish_settings
from fedagentgym.runs.replay import find_difference, find_reply_reader

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.experiment.export import OpenedPolicy
    from fedagentgym.experiment.opened import Run
    from fedagentgym.partitions.client_split import Client


@dataclass(frozen=True)
class NamedClient:
    """A client of a split file, in whose variant of the environment an agent is evaluated."""

    file: Path
    number: int


@dataclass(frozen=True)
class EvaluationRequest:
    """The options of an evaluation. None and empty values default to those of the folder or the run, else to the usual defaults.

    `agent` has the settings of an agent; `folder` is set for an exported agent, and `changes` update its settings.
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
    """Everything that an evaluation needs. `described` is the agent for the record, `expected` the run's result of this same
    evaluation, if it has one; `own_seed` says whether the seed is the run's; `seen` counts the tasks on which its clients train.
    """

    agent: Player
    sets: tuple[OpenedSet, ...]
    config: EvaluationConfig
    described: AgentRecord
    client: Client | None = None
    expected: float | None = None
    own_seed: bool = False
    seen: int = 0

    def play(self, folder: Path) -> SetsEvaluation:
        """Play the episodes that the folder lacks; `evaluation_run.prepare_folder` makes, continues or replaces the folder."""
        run = prepare_folder(folder, self.config)
        # the lines of each set contain the options of its environment, so that they can be replayed from the file alone
        own = {} if self.client is None else {"client": self.client.index, "variant": self.config.env.variant}
        own = {key: value for key, value in own.items() if value is not None}
        about = {one.name: {"options": one.env.options.portable, **own} for one in self.sets}
        return run_evaluation(self.config, run.path, self.agent, self.sets, self.described, about_set=about)


def open_evaluation(request: EvaluationRequest) -> OpenedEvaluation:
    """Open the agent and its environments; environments first, so that a missing data set is reported before a model loads."""
    opened, file = _open_own(request)
    settings = _find_settings(request, file)
    client = None if request.client is None else _open_client(request.client, request.env, request.options)
    if client is None:
        sets = _open_worlds(request, opened, file, settings)
    else:
        sets = (_open_world_of(client, request.evaluation.get("split"), settings),)
    seed = request.seed if request.seed is not None else file.seed if file is not None else 0
    own_seed = file is not None and seed == file.seed
    unchanged = own_seed and not (request.evaluation or request.options or request.changes or request.env or client)
    first = sets[0]
    played, name = _find_agent(request, opened, file)
    described = describe_agent(played)
    agent: Player
    if opened is not None:
        agent, described = opened.agent, described.model_copy(update={"kind": "model"})
    else:
        from fedagentgym.agents.presets import make_agent

        agent = make_agent(played, first.env, seed)
    return OpenedEvaluation(
        agent=agent,
        sets=sets,
        config=EvaluationConfig(
            name=name,
            seed=seed,
            agent=publish_settings(played),
            policy=None if opened is None else {"run": opened.run.config.name, "round": opened.round},
            env=EvaluatedEnv(
                id=first.env.id,
                options=first.env.options.portable,
                client=None if client is None else client.index,
                variant=None if client is None or client.variant is None else dict(client.variant),
            ),
            evaluation=settings,
            plugins=tuple(Path(one).name if one.endswith(".py") else one for one in request.trust.plugins),
        ),
        described=described,
        client=client,
        expected=file.result.get("success") if file is not None and unchanged else None,
        own_seed=own_seed,
        seen=0 if opened is None or unchanged else _count_seen(opened.run, sets),
    )


def _open_own(request: EvaluationRequest) -> tuple[OpenedPolicy | None, AgentFile | None]:
    """The policy of the requested run and what it says of itself, or what an exported folder says; None for an agent by name."""
    if request.run is None:
        if request.best or request.round is not None:
            raise OptionError("--best and --round choose among the rounds of a run: they go with --run")
        return None, None if request.folder is None else read_agent_file(request.folder)
    if request.agent or request.folder is not None:
        raise OptionError("--run and --agent exclude each other: a run plays its own policy")
    if request.changes:
        raise OptionError(
            "--agent-set: the policy of a run is played as it was trained; export it to change its prompt"
        )
    from fedagentgym.experiment.export import open_policy

    opened = open_policy(request.run, number=request.round, best=request.best, trust=request.trust)
    return opened, opened.describe()


def _find_settings(request: EvaluationRequest, file: AgentFile | None) -> EvaluationSettings:
    """The requested settings over those of the agent's own evaluation. Another environment, split or client replaces its sets."""
    plain: dict[str, Any] = {}
    if file is not None:
        plain = file.evaluation.model_dump(mode="json", exclude_none=True)
        other_world = request.env is not None and find_env_id(request.env) != file.env.id
        if other_world or request.client is not None or "split" in request.evaluation:
            plain.pop("sets", None)
        if other_world:
            plain.pop("split", None)
    return EvaluationSettings.load(merge(plain, request.evaluation), "evaluation")


def _find_agent(
    request: EvaluationRequest, opened: OpenedPolicy | None, file: AgentFile | None
) -> tuple[AgentSettings, str]:
    """The settings of the agent that plays, and its name."""
    if opened is not None:
        return opened.run.config.agent, f"{opened.run.folder.resolve().name}-round-{opened.round}"
    if file is not None and request.folder is not None:
        from fedagentgym.agents.model.loading import set_threads

        played = change_agent(file.agent, list(request.changes))
        set_threads(played.threads)
        return played, request.folder.resolve().name
    played = AgentSettings.load(request.agent, "agent")
    return played, get_name(Path(str(request.agent.get("model") or request.agent.get("name"))))


def _open_world_of(client: Client, split: str | None, settings: EvaluationSettings) -> OpenedSet:
    """The environment of a client: with all tasks of a split, or with its own tasks."""
    env = client.open_env() if split is None else client.open_world(split)
    chosen = settings.model_copy(update={"split": split or client.client_split.record.env_split})
    return OpenedSet("", env, client.client_split.options, chosen)


def _count_seen(run: Run, sets: Sequence[OpenedSet]) -> int:
    """The number of evaluated tasks on which the clients of a run train. On an evaluation split any such task is an error, as at
    the start of the run; on another split, which the user named, they are counted."""
    from fedagentgym.experiment.opened import check_held_out
    from fedagentgym.partitions.verification import find_leaks

    if run.spec.partition.is_held:  # the tasks are on their owners' machines
        return 0
    split, seen = run.runtime.client_split, 0
    for one in sets:
        if one.env.canonical_split(one.settings.split) in one.env.evaluation_splits:
            check_held_out(split, one.env, one.settings.split, one.settings.tasks)
        else:
            evaluated = one.env.pool.ids[: one.settings.tasks]
            seen += len(find_leaks(split.record, split.pool, split.options, one.env, evaluated))
    return seen


def _open_worlds(
    request: EvaluationRequest, opened: OpenedPolicy | None, file: AgentFile | None, settings: EvaluationSettings
) -> tuple[OpenedSet, ...]:
    """The requested environments, or those of the agent's own run. An exported folder has only those of the run's options that
    mean the same on every machine."""
    own: Mapping[str, Any] = {}
    if file is not None:
        own = file.env.options if opened is None else opened.run.runtime.client_split.options
    if request.env is not None:
        env_id = find_env_id(request.env)
        own = own if file is not None and env_id == file.env.id else {}
    elif file is not None:
        env_id = file.env.id
    else:
        raise OptionError(
            "--env is missing: for example --env WebShop; only --run and folders that were exported know their own"
        )
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


def open_client_env(
    named: NamedClient, *, env: str | None = None, split: str | None = None, options: Mapping[str, Any] | None = None
) -> TextEnv:
    """The environment of a client of a split file, in its variant: with its own tasks, or with all tasks of `split`."""
    client = _open_client(named, env, options or {})
    return client.open_env() if split is None else client.open_world(split)


# ---- replaying recorded episodes ---------------------------------------------------------------------------------------


def check_episodes(
    place: str | Path,
    *,
    env: str | None = None,
    options: Mapping[str, Any] | None = None,
    split: str | None = None,
    only: str | None = None,
) -> list[str]:
    """Replay the actions of a file's episodes, or of all files of a run, and describe every difference in a sentence.

    `env`, `options` and `split` replace or complete the environment that a line, or the run that contains it, names. Unless `env`
    is given, it is also checked that replies lead to the actions, if the run says who played.
    """
    path = Path(place)
    run = RunFolder(path if path.is_dir() else path.resolve().parent.parent)
    files = sorted((path / EVALUATION).glob("*.jsonl")) if path.is_dir() else [path]
    sets = dict.fromkeys(str(line.about.get("set", "")) for file in files for line in read_lines(file))
    if not sets:
        raise DataError(f"{path} holds no episodes")
    if only is not None and only not in sets:
        raise unknown_name_error(f"evaluation set of {path}", only, [name for name in sets if name])
    if env is not None and only is None and len(sets) > 1:
        raise OptionError(
            f"{path} holds the evaluation sets {join_names(sets)}: say which of them --env plays (--only)"
        )
    reader = None
    if env is None and run.is_run:  # who wrote the replies, if the run's folder says so
        settings = AgentSettings.load(run.config.get("agent"), "agent")
        if run.is_finished:
            reader = find_reply_reader(settings, run.record.agent.kind, run.record.agent)
        else:
            trained = "partition" in run.config or run.config.get("policy") is not None
            kind = "model" if trained else describe_agent(settings).kind
            if kind != "program" or settings.name in SAFE_AGENTS:
                reader = find_reply_reader(settings, kind)
    differences = list[str]()
    for file in files:
        worlds: dict[str, TextEnv] = {}
        pools = set[str]()
        for line in read_lines(file):
            name, pool, found = str(line.about.get("set", "")), line.about.get("pool"), line.trajectory
            if only is not None and name != only:
                continue
            if line.brief:
                raise OptionError(
                    f"{line.where}: a brief line has no seed: `fedagentgym bench verify` checks its result"
                )
            if name not in worlds:
                worlds[name] = _open_world(file, run, name, line.about, env, dict(options or {}), split)
            expected = worlds[name].task_set.pool
            if isinstance(pool, str) and pool != expected and pool not in pools:
                pools.add(pool)
                differences.append(
                    f"the episodes are of the pool {shorten_digest(pool)}, this environment has the pool"
                    f" {shorten_digest(expected)}: its tasks are others under the same ids"
                )
            if (difference := find_difference(worlds[name], found, reader)) is not None:
                of_set = f"{name}, " if name else ""
                differences.append(f"{file.name}, {of_set}{found.task} copy {found.sample}: {difference}")
    return differences


def _open_world(
    path: Path,
    run: RunFolder,
    name: str,
    head: Mapping[str, Any],
    env: str | None,
    given: Mapping[str, Any],
    split: str | None,
) -> TextEnv:
    """The environment of a line: with the line's options, or those of the run that contains the file. Paths on this machine are
    not taken from a file."""
    written = head.get("env")
    if env is None and not isinstance(written, str):
        raise OptionError(f"{path} does not name the environment in which it was played: name it (--env)")
    env_id = find_env_id(written if env is None else env)
    chosen, variant, own = split or head.get("split", "val"), None, dict[str, Any]()
    if env_id == written:
        variant = head.get("variant")
        if "options" in head:
            if not isinstance(head["options"], dict):
                raise DataError(f"{path}: the options of an episode are not what `fedagentgym eval` writes")
            own = read_options(env_id, head["options"]).portable
        elif run.is_run and "partition" not in run.config:
            own = EvaluatedEnv.load(run.config.get("env"), "env").options
        elif run.is_run:
            stored = read_stored_config(run.path)
            trained_in, plain = stored.env, stored.plain.get("evaluation")
            evaluation = None if plain is None else EvaluationSettings.load(plain, "evaluation")
            check_foreign_envs(trained_in, evaluation, stored.where, paths=True)
            own = trained_in.options
            if evaluation is not None and evaluation.sets:
                sets = open_sets(evaluation, trained_in.id, own)
                own = next((dict(one.options) for one in sets if one.name == name), {})
    if not isinstance(chosen, str) or not isinstance(variant, dict | None):
        raise DataError(f"{path}: split or variant of an episode is not what `fedagentgym eval` writes")
    kept = {} if variant is None else {"variant": variant}
    return open_env(env_id, **{**own, **given, **kept, "split": chosen})
