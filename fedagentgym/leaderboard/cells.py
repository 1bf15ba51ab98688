"""A cell: one scenario under one seed, played by one entry. It is identified by its digest, so it is played once.

    CELL/cell.json             what is played, whose digest names the folder
    CELL/episodes.jsonl        the ranked episodes, as they are packed; on the agents track they are appended as they are played
    CELL/played.json           agents track: how many tasks were played, and what they took
    CELL/run/                  methods track: the training run
    CELL/revision              methods track: the git revision that played it
    CELL/packed/               methods track: the finished cell, if it was played elsewhere (`store`)

A killed cell continues where it stopped, with the same episodes as without the interruption: the
draws of an episode depend only on the seed and on the index of its task.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Player
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.worlds import play_worlds
from fedagentgym.base.encoding import canonical_json, digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import read_json, read_text, remove_partial, write_atomic
from fedagentgym.base.progress import Progress, show_progress
from fedagentgym.base.settings import Settings, merge
from fedagentgym.base.streams import derive
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.run import Run, check_same, read_result, resume_own, train
from fedagentgym.federation.commits import CommitStore, read_chain
from fedagentgym.federation.records import best_rounds, count_episodes, headline_bytes
from fedagentgym.federation.server import lock_folder
from fedagentgym.leaderboard.entries import (
    Entry,
    describe_agent,
    describe_plugins,
    identify_agent,
    load_settings,
    prepare_player,
)
from fedagentgym.leaderboard.record import AgentRecord, Usage
from fedagentgym.leaderboard.suite import OpenedScenario, Suite, check_budget, make_config
from fedagentgym.learning.evaluation import (
    Evaluation,
    compute_policy_digest,
    count_most_tokens,
    format_episodes,
    with_temperature,
)
from fedagentgym.learning.rollouts import RolloutStats, collect
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import Trajectory

PARALLEL = 64
TASKS_AT_A_TIME = {"hosted": 8, "model": 256, "program": 1024}
"""Number of tasks played before their episodes are written: few, if each costs money."""
PLAYED = "played.json"
PUBLISHED_FOLDER = "runs/run"
FORMAT = 3
"""Format of the stored cells: cells of another format are played again."""


@dataclass(frozen=True)
class Cell:
    """A cell of a suite: what is played, and where it is stored."""

    suite: Suite
    entry: Entry
    scenario: str
    seed: int
    folder: Path
    identity: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.scenario}-seed{self.seed}"

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    @property
    def episodes_file(self) -> Path:
        return self.folder / "episodes.jsonl"

    @property
    def packed_folder(self) -> Path:
        """The packed folder of a cell that was played before, elsewhere (in `store`)."""
        return self.folder / "packed"

    @property
    def revision_file(self) -> Path:
        return self.folder / "revision"

    @property
    def worlds_file(self) -> Path:
        """Ranked episodes in the clients' own worlds, in suites that rank there."""
        return self.folder / "worlds.jsonl"

    @cached_property
    def kind(self) -> str:
        """The kind of agent, on the agents track."""
        return str(self.identity["agent"]["kind"])

    def is_finished(self) -> bool:
        if self.suite.track == "methods":
            return self.episodes_file.is_file() or self.packed_folder.is_dir()
        return read_played(self).tasks == int(self.identity["tasks"])

    def describe_state(self) -> str:
        """The progress of the cell, in a few words."""
        if self.is_finished():
            return "finished"
        if self.suite.track == "agents":
            done = read_played(self).tasks
            return f"{done} of {self.identity['tasks']} tasks" if done else "waiting"
        rounds = CommitStore(self.run_folder / "rounds").list_rounds()
        return f"round {rounds[-1]} of {self.identity['rounds']}" if rounds else "waiting"


def make_cell(opened: OpenedScenario, entry: Entry, seed: int, root: Path) -> Cell:
    """The cell of an entry, in the folder of its digest."""
    identity = identify_cell(opened, entry, seed)
    name = digest(identity).removeprefix("sha256:")[:20]
    return Cell(opened.suite, entry, opened.name, seed, root / "cells" / name, identity)


def identify_cell(opened: OpenedScenario, entry: Entry, seed: int) -> dict[str, Any]:
    """The inputs that determine the ranked episodes of a cell, and on the methods track its run."""
    suite, plain = opened.suite, opened.describe().model_dump(mode="json")
    found = {"format": FORMAT, "track": suite.track, "temperature": suite.ranking.temperature, "seed": seed}
    for key in ("split", "tasks", "repeats", "pool", "task_ids", "verifier"):
        found[key] = plain[key]
    if suite.track == "agents":
        agent = identify_agent(describe_player(opened, entry))
        return {**found, "env": plain["env"], "options": plain["options"], "agent": agent}
    config = make_cell_config(suite, opened.name, entry, seed)
    plugins = [one.model_dump(mode="json") for one in describe_plugins(entry.plugins)]
    run = {"config": config.digest, "rounds": config.federation.rounds, "plugins": plugins}
    return {**found, **run, "client_split": plain["client_split"]}


def describe_player(opened: OpenedScenario, entry: Entry) -> AgentRecord:
    """The agent of a scenario of the agents track."""
    return describe_agent(load_player(opened, entry))


def load_player(opened: OpenedScenario, entry: Entry) -> AgentSettings:
    return prepare_player(load_settings(entry, opened.suite.ranking.temperature), opened.env)


def make_cell_config(suite: Suite, scenario: str, entry: Entry, seed: int) -> RunConfig:
    """The configuration of a run of the methods track."""
    config = make_config(suite, scenario, entry.changes, seed=seed, plugins=entry.plugins, stream=entry.stream)
    check_budget(suite, config)
    return config


def write_identity(cell: Cell) -> None:
    """Record in the cell's folder what it is; a folder with another record is refused."""
    place, text = cell.folder / "cell.json", canonical_json(cell.identity) + "\n"
    if place.is_file():
        if read_text(place) != text:
            raise DataError(f"{place} describes another cell than its folder's name: move or delete {cell.folder}")
        return
    write_atomic(place, text)


# ---- agents track -----------------------------------------------------------------------------------------------------


class Played(Settings):
    """The progress of a cell of the agents track: its first tasks and the bytes of their episodes, and what they took."""

    tasks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    env_steps: int = 0
    usage: Usage | None = None


def read_played(cell: Cell) -> Played:
    """The tasks of a cell that were played."""
    place = cell.folder / PLAYED
    return Played.load(read_json(place), str(place)) if place.is_file() else Played()


def play_agent_cells(cells: Sequence[Cell], opened: Mapping[str, OpenedScenario]) -> Iterator[Cell]:
    """Play cells of one entry one after the other. A hosted model has one count of its cost for all of them."""
    spent = sum_usage([read_played(cell) for cell in cells])
    for cell in cells:
        if cell.is_finished():
            yield cell
            continue
        where = opened[cell.scenario]
        player = make_agent(load_player(where, cell.entry), where.env)
        try:
            charge(player, spent)
            with lock_folder(cell.folder):
                remove_partial(cell.folder)
                write_identity(cell)
                play_missing_tasks(cell, where, with_temperature(player, cell.suite.ranking.temperature))
            spent = read_usage(player)
        finally:
            player.close()
        yield cell


def play_missing_tasks(cell: Cell, opened: OpenedScenario, player: Player) -> None:
    """Play the missing tasks, some at a time: their episodes are appended, then counted as played."""
    size, repeats = TASKS_AT_A_TIME[cell.kind], int(cell.identity["repeats"])
    played = read_played(cell)
    cell.episodes_file.touch()
    os.truncate(cell.episodes_file, played.bytes)  # episodes that were written and not counted are played again
    left = (len(opened.ids) - played.tasks) * repeats
    most = count_most_tokens(player, opened.env, left)
    with show_progress(cell.key, total=len(opened.ids) * repeats, most_tokens=most) as bar:
        bar.advance(played.tasks * repeats)
        while played.tasks < len(opened.ids):
            played = play_tasks(cell, opened, player, played, size, bar)
            write_atomic(cell.folder / PLAYED, canonical_json(played.model_dump(mode="json")) + "\n")


def play_tasks(cell: Cell, opened: OpenedScenario, player: Player, played: Played, size: int, bar: Progress) -> Played:
    """Play the next tasks and append their episodes; returns what is played then."""
    before, started = read_usage(player), time.monotonic()
    tasks = opened.ids[played.tasks : played.tasks + size]
    rollouts = collect(
        player,
        opened.env,
        tasks,
        group_size=int(cell.identity["repeats"]),
        seed=derive(cell.seed, "ranked"),
        parallel=PARALLEL,
        progress=bar,
        first=played.tasks,
    )
    after = read_usage(player)
    text = format_cell_episodes(opened, player, rollouts.groups, rollouts.stats, {}).encode("utf-8")
    with cell.episodes_file.open("ab") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    usage = after if after is None or before is None else add_usage(after, before, -1)
    return Played(
        tasks=played.tasks + len(tasks),
        bytes=played.bytes + len(text),
        seconds=played.seconds + time.monotonic() - started,
        env_steps=played.env_steps + rollouts.stats.steps,
        usage=usage if played.usage is None or usage is None else add_usage(played.usage, usage),
    )


def format_cell_episodes(
    opened: OpenedScenario,
    player: Player,
    groups: Sequence[tuple[Trajectory, ...]],
    stats: RolloutStats,
    about: Mapping[str, Any],
) -> str:
    """The stored ranked episodes."""
    found = Evaluation({}, {}, len(groups), tuple(groups), stats)
    return format_episodes(found, player, opened.env, {"split": opened.suite.ranking.split, **about})


# ---- the usage of a hosted model ---------------------------------------------------------------------------------------


def read_usage(player: object) -> Usage | None:
    """The usage of a hosted model so far; None for every other agent."""
    usage = getattr(player, "usage", None)
    return None if usage is None else Usage.load(dict(usage))


def charge(player: object, spent: Usage | None) -> None:
    """Let a hosted model's count continue from earlier usage, so that its limit holds across interruptions."""
    endpoint = getattr(player, "endpoint", None)
    if endpoint is not None and spent is not None:
        for name, value in spent.model_dump().items():
            setattr(endpoint.usage, name, value)


def add_usage(one: Usage, other: Usage, sign: int = 1) -> Usage:
    """The sum of two usages; with the sign -1 their difference."""
    return Usage(**{name: getattr(one, name) + sign * getattr(other, name) for name in Usage.model_fields})


def sum_usage(played: Sequence[Played]) -> Usage | None:
    """The total usage of cells; None if nothing is paid."""
    counted = [one.usage for one in played if one.usage is not None]
    return reduce(add_usage, counted) if counted else None


# ---- methods track ----------------------------------------------------------------------------------------------------


class BudgetGuard:
    """Watches a run and ends it when it exceeds the suite's budget; `records` are the rounds played before."""

    def __init__(self, suite: Suite, records: Sequence[Mapping[str, Any]] = ()) -> None:
        self.suite = suite
        self.episodes = count_episodes(records)

    def begin(self, rounds: int) -> None:
        """Reset the counts."""

    def round_done(self, record: Mapping[str, Any]) -> None:
        name, budget = self.suite.name, self.suite.budget
        self.episodes += count_episodes([record])
        sent = headline_bytes(record["bytes_total"])
        if budget.episodes is not None and self.episodes > budget.episodes:
            raise OptionError(f"{name}: at most {budget.episodes:,} episodes, this method played more")
        if budget.bytes is not None and sent > budget.bytes:
            raise OptionError(f"{name}: at most {budget.bytes:,} bytes, this method sent {sent:,}")


def play_method_cell(cell: Cell, opened: OpenedScenario) -> Cell:
    """Train, and play the ranked tasks with the round that the suite ranks."""
    if cell.is_finished():
        return cell
    with lock_folder(cell.folder):
        remove_partial(cell.folder)
        write_identity(cell)
        config = make_run_config(cell)
        run_training(cell, config)
        write_atomic(cell.revision_file, find_revision() or "")
        ranked = rank_run(cell, opened, config)
        if cell.suite.in_own_worlds:
            write_atomic(cell.worlds_file, rank_worlds(cell, config))
        write_atomic(cell.episodes_file, ranked)
    return cell


def find_revision() -> str | None:
    """The git revision of a package that runs from its repository; files that were changed since are listed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=, changed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def run_training(cell: Cell, config: RunConfig) -> None:
    """The cell's run: the finished one, or after resuming or playing it; a folder with the run of another cell is refused."""
    if (cell.run_folder / "result.json").is_file():
        check_same(config)
        read_result(cell.run_folder)
    elif (cell.run_folder / "config.yaml").is_file():
        chain = read_chain(cell.run_folder)
        resume_own(config, observers=[BudgetGuard(cell.suite, chain.list_records() if chain else ())])
    else:
        train(config, observers=[BudgetGuard(cell.suite)])


def make_run_config(cell: Cell) -> RunConfig:
    """The configuration of a cell's run, in its folder."""
    config = make_cell_config(cell.suite, cell.scenario, cell.entry, cell.seed)
    return load_config(config, [f"output.folder={json.dumps(str(cell.run_folder))}"])


def rank_run(cell: Cell, opened: OpenedScenario, config: RunConfig) -> str:
    """The ranked episodes: those of the last round, or of the one with the highest success on `val`."""
    run = Run.open(config, cell.run_folder)
    records = read_records(cell)
    (chosen,) = best_rounds(records) if cell.suite.ranked_round == "best" else {records[-1]["round"]}
    state = CommitStore(cell.run_folder / "rounds").read(chosen).state
    ranking = cell.suite.get_ranking(cell.scenario)
    player = with_temperature(run.runtime.load_weights(run.algorithm.policy_parameters(state)), ranking.temperature)
    found = collect(
        player, opened.env, opened.ids, group_size=ranking.repeats, seed=derive(cell.seed, "ranked"), parallel=PARALLEL
    )
    about = {"round": chosen, "policy": compute_policy_digest(player)}
    return format_cell_episodes(opened, player, found.groups, found.stats, about)


def rank_worlds(cell: Cell, config: RunConfig) -> str:
    """The ranked episodes of the last round in the clients' own worlds."""
    run, ranking, last = (
        Run.open(config, cell.run_folder),
        cell.suite.get_ranking(cell.scenario),
        config.federation.rounds,
    )
    state = CommitStore(cell.run_folder / "rounds").read(last).state
    settings = EvaluationSettings(**ranking.model_dump(), parallel_episodes=PARALLEL)
    played = play_worlds(run.algorithm, state, run.read_kept(last), settings, derive(cell.seed, "ranked"))
    return "".join(one.format_lines({"round": last, "split": ranking.split}) for one in played)


def read_records(cell: Cell) -> list[dict[str, Any]]:
    """The rounds of a cell's run."""
    chain = read_chain(cell.run_folder)
    if chain is None:
        raise DataError(f"{cell.run_folder} holds no committed round")
    return chain.list_records()


def publish_config(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration for publication: without the folder in which it ran here."""
    return merge(plain, {"output": {"folder": PUBLISHED_FOLDER}})
