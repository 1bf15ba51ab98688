"""An evaluation as a run: a folder with its configuration, every episode and a record; an interrupted one is continued.

`fedagentgym eval` and the agents track of suites write it. Tasks are played in batches: their episodes are appended to
`evaluation/ranked.jsonl`, then counted in `progress.json`, so that a killed evaluation repeats at most its last batch of tasks.
The draws of an episode depend only on the seed and the number of its task.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fedagentgym.agents.players.endpoint import EndpointAgent
from fedagentgym.agents.players.own import Agent
from fedagentgym.agents.protocols import Player
from fedagentgym.base.encoding import canonical_json, digest
from fedagentgym.base.errors import OptionError
from fedagentgym.base.files import format_path, format_yaml, get_name, read_json, remove_partial, write_atomic
from fedagentgym.base.process import get_logger
from fedagentgym.base.progress import show_progress
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive
from fedagentgym.envs.protocols import find_verifier
from fedagentgym.federation.commits import lock_folder
from fedagentgym.learning.evaluation import (
    OpenedSet,
    SetsEvaluation,
    combine_sets,
    compute_policy_digest,
    count_most_tokens,
    explain_malformed,
    format_episodes,
    summarise,
    with_temperature,
)
from fedagentgym.learning.memory import describe_caches
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import Trajectory, group_by_task, read_lines
from fedagentgym.runs.claims import describe_evaluated, describe_tasks
from fedagentgym.runs.folder import CONFIG, RANKED, RunFolder
from fedagentgym.runs.record import AgentRecord, EnvRecord, RunRecord, Spent, Usage, describe_made

PROGRESS = "progress.json"
TASKS_AT_A_TIME = {"hosted": 8, "model": 256, "program": 1024}
"""Number of tasks in a batch: few, if each costs money."""
log = get_logger(__name__)


class EvaluatedEnv(Settings):
    """The environment of an evaluation; `client` and `variant` are set if it is the variant of a client of a split."""

    id: str
    options: dict[str, Any] = Field(default_factory=dict)
    client: int | None = None
    variant: dict[str, Any] | None = None


class EvaluationConfig(Settings):
    """`config.yaml` of an evaluation: the player and the tasks, without paths of this machine if there are other names."""

    name: str
    seed: int = Field(ge=0)
    agent: dict[str, Any] = Field(description="as `publish_settings` gives it")
    policy: dict[str, Any] | None = Field(default=None, description="the run and the round whose policy plays")
    env: EvaluatedEnv
    evaluation: EvaluationSettings
    plugins: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """All settings as plain values."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """The digest of what is played."""
        return digest({key: value for key, value in self.plain().items() if key not in ("name", "plugins")})


class Progress(Settings):
    """The number of tasks that an evaluation has finished, the bytes of their episodes, and their cost."""

    tasks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    env_steps: int = 0
    usage: Usage | None = None


def read_progress(run: RunFolder) -> Progress:
    """The progress of an evaluation; of a finished one the totals of its record."""
    if run.is_finished:
        record = run.record
        tasks = 0 if record.tasks is None else record.tasks.tasks
        return Progress(tasks=tasks, env_steps=record.spent.env_steps, usage=record.usage)
    place = run.path / PROGRESS
    return Progress.load(read_json(place), str(place)) if place.is_file() else Progress()


def prepare_folder(folder: Path, config: EvaluationConfig) -> RunFolder:
    """The folder of an evaluation. If it holds the same evaluation unfinished, that is continued; a finished or another one is
    removed. A folder with anything else in it is refused."""
    run = RunFolder(folder)
    if folder.exists() and not (folder.is_dir() and (run.is_run or not any(folder.iterdir()))):
        raise OptionError(f"{format_path(folder)} holds other files than an evaluation's: name another folder (--out)")
    if run.is_run and ("partition" in run.config or "evaluation" not in run.config):
        raise OptionError(f"{format_path(folder)} holds a training run: name another folder (--out)")
    is_same = run.is_run and canonical_json(run.config) == canonical_json(config.plain())
    if run.is_run and not is_same:
        log.warning("%s holds another evaluation, of %s: it is replaced", format_path(folder), run.config.get("name"))
    if run.is_run and (run.is_finished or not is_same):
        with lock_folder(folder):
            for entry in folder.iterdir():
                if entry.name != ".lock":
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return RunFolder(folder)


def run_evaluation(
    config: EvaluationConfig,
    folder: Path,
    agent: Player,
    sets: Sequence[OpenedSet],
    described: AgentRecord,
    before: Usage | None = None,
    about_set: Mapping[str, Mapping[str, Any]] | None = None,
) -> SetsEvaluation:
    """Play the remaining tasks, and write the record.

    Args:
        config: The evaluation.
        folder: Its folder, new or with the same evaluation under way; another evaluation in it is an `OptionError`.
        agent: The player.
        sets: The environments, opened by the configuration.
        described: The player for the record.
        before: The earlier usage of a hosted model, so that its cost limit holds for several evaluations together.
        about_set: Fields for the lines of each set, by the set's name.
    """
    run = RunFolder(folder)
    with lock_folder(folder) as check_place:
        remove_partial(folder)
        if run.is_run and canonical_json(run.config) != canonical_json(config.plain()):
            raise OptionError(f"{format_path(folder)} holds another evaluation: move it, or name another folder")
        write_atomic(folder / CONFIG, format_yaml(config.plain()))
        progress = read_progress(run)
        _restore_usage(agent, before, progress.usage)
        policy = compute_policy_digest(agent)
        about = {one.name: _describe_lines(one, policy, (about_set or {}).get(one.name, {})) for one in sets}
        batch = TASKS_AT_A_TIME[described.kind]
        progress = _play_remaining(folder, config.seed, agent, sets, about, batch, progress, check_place)
        # the numbers of all episodes, whenever they were played
        by_set: dict[str, list[Trajectory]] = {one.name: [] for one in sets}
        for line in read_lines(folder / RANKED):
            by_set[str(line.about.get("set", ""))].append(line.trajectory)
        summaries = {one.name: summarise(group_by_task(by_set[one.name]), one.settings) for one in sets}
        found = combine_sets(summaries, sets, config.evaluation)
        groups = [group for one in found.sets.values() for group in one.groups]
        if (malformed := explain_malformed(groups, agent)) is not None:
            log.warning(malformed)
        parsing = {"parser": agent.parser, "think": bool(agent.think)} if isinstance(agent, Agent) else {}
        record = _make_record(config, sets, described.model_copy(update=parsing), found, policy, progress)
        check_place()
        run.write_record(record)
        (folder / PROGRESS).unlink(missing_ok=True)
    return found


def _restore_usage(agent: Player, before: Usage | None, usage: Usage | None) -> None:
    """Set what a hosted model has used so far: in earlier evaluations, and in this one before it was continued."""
    if isinstance(agent, EndpointAgent):
        used = [one for one in (before, usage) if one is not None]
        for name, value in (sum_usage(used) or Usage()).model_dump().items():
            setattr(agent.endpoint.usage, name, value)


def _describe_lines(one: OpenedSet, policy: str | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the lines of a set besides the episodes."""
    about = {"split": one.settings.split, "temperature": one.settings.temperature, "policy": policy, **more}
    return {**about, "set": one.name} if one.name else about


def _play_remaining(
    folder: Path,
    seed: int,
    agent: Player,
    sets: Sequence[OpenedSet],
    about: Mapping[str, Mapping[str, Any]],
    batch: int,
    progress: Progress,
    check_place: Callable[[], None],
) -> Progress:
    """Play the tasks that are not yet counted, `batch` tasks at a time, and append their episodes; returns the progress."""
    file = folder / RANKED
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.truncate(file, progress.bytes)  # episodes that were written and not counted are played again
    episodes = {one.name: len(_choose_tasks(one)) * one.settings.repeats for one in sets}
    most = sum((count_most_tokens(agent, one.env, episodes[one.name]) or 0) for one in sets)
    _warn_of_caches(agent, min(sum(episodes.values()), max(one.settings.parallel_episodes for one in sets)))
    begun = 0
    with show_progress(get_name(folder), total=sum(episodes.values()), most_tokens=most or None) as bar:
        for one in sets:
            ids, player = _choose_tasks(one), with_temperature(agent, one.settings.temperature)
            first = min(max(progress.tasks - begun, 0), len(ids))
            bar.advance(first * one.settings.repeats)
            for start in range(first, len(ids), batch):
                started, usage = time.monotonic(), _read_usage(agent)
                rollouts = collect(
                    player,
                    one.env,
                    ids[start : start + batch],
                    group_size=one.settings.repeats,
                    seed=derive(seed, "set", one.name) if one.name else seed,
                    parallel=one.settings.parallel_episodes,
                    progress=bar,
                    first=start,
                )
                data = format_episodes(rollouts.groups, agent, one.env, about[one.name]).encode()
                check_place()
                with file.open("ab") as out:
                    out.write(data)
                    out.flush()
                    os.fsync(out.fileno())
                now = _read_usage(agent)
                more = None if now is None or usage is None else now.add(usage, -1)
                progress = Progress(
                    tasks=begun + start + len(rollouts.groups),
                    bytes=progress.bytes + len(data),
                    seconds=progress.seconds + time.monotonic() - started,
                    env_steps=progress.env_steps + rollouts.stats.steps,
                    usage=sum_usage([used for used in (progress.usage, more) if used is not None]),
                )
                write_atomic(folder / PROGRESS, canonical_json(progress.model_dump(mode="json")) + "\n")
            begun += len(ids)
    return progress


def _warn_of_caches(agent: Player, together: int) -> None:
    """Warn if the keys and values of so many episodes may be more than a processor's memory."""
    policy = getattr(agent, "policy", None)
    model, device = (getattr(policy, name, None) for name in ("model", "device"))
    if policy is None or model is None or getattr(device, "type", "") != "cpu":
        return
    if (warning := describe_caches(model, int(policy.context_length), together)) is not None:
        log.warning("%s", warning)


def _make_record(
    config: EvaluationConfig,
    sets: Sequence[OpenedSet],
    described: AgentRecord,
    found: SetsEvaluation,
    policy: str | None,
    progress: Progress,
) -> RunRecord:
    first = sets[0]
    episodes = sum(len(group) for one in found.sets.values() for group in one.groups)
    return RunRecord(
        kind="evaluation",
        name=config.name,
        seed=config.seed,
        config_digest=config.digest,
        env=EnvRecord(
            id=first.env.id,
            options=first.env.options.portable,
            pool=first.env.pool.digest,
            task_set=first.env.task_set.digest,
            verifier=find_verifier(first.env),
        ),
        evaluation_sets={one.name: one.describe() for one in sets if one.name},
        agent=described,
        tasks=None if first.name else describe_tasks(first.env, _choose_tasks(first), first.settings),
        ranked=describe_evaluated(found.to_plain(), None, policy),
        spent=Spent(episodes=episodes, env_steps=progress.env_steps),
        usage=progress.usage,
        made=describe_made(progress.seconds),
    )


def _choose_tasks(one: OpenedSet) -> list[str]:
    """The tasks of a set that are played, in order."""
    tasks = one.settings.tasks
    return list(one.env.pool.ids if tasks is None else one.env.pool.ids[:tasks])


def _read_usage(agent: Player) -> Usage | None:
    """The usage of a hosted model so far; None for every other agent."""
    return Usage.load(agent.usage) if isinstance(agent, EndpointAgent) else None


def sum_usage(used: Sequence[Usage]) -> Usage | None:
    """The total usage; None for an empty sequence."""
    total: Usage | None = None
    for one in used:
        total = one if total is None else total.add(one)
    return total
