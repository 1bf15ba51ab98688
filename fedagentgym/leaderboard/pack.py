"""`bench pack`: one folder from the cells of an entry, which anybody can verify."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedagentgym.agents.presets import starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_path, read_json, read_text
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.export import export_policy
from fedagentgym.leaderboard.aggregate import CellData, choose_round, describe_clients, make_point
from fedagentgym.leaderboard.cells import (
    Cell,
    describe_player,
    format_config,
    read_parts,
    read_records,
    sum_spent,
    sum_usage,
)
from fedagentgym.leaderboard.entries import Entry, describe_agent, describe_entry, describe_learner
from fedagentgym.leaderboard.folder import PackedCell, Result, write_result
from fedagentgym.leaderboard.record import AgentRecord, CurvePoint, EntryRecord, Manifest, Spent
from fedagentgym.leaderboard.runs import SuiteRun
from fedagentgym.learning.export import parse_json_lines
from fedagentgym.learning.trajectory import Group, Trajectory

EPSILON = "privacy/epsilon"


def pack_run(run: SuiteRun, folder: Path) -> Manifest:
    """Write the result of a run whose cells are all finished."""
    if run.missing:
        raise DataError(
            f"{run.folder}: {len(run.missing)} of {len(run.cells)} cells are not finished, {run.missing[0].key} is the first:"
            f" resume with: fedagentgym bench resume {run.folder}"
        )
    return write_result(collect_result(run), folder)


def check_weights(run: SuiteRun, folder: Path) -> None:
    """Refuse, before anything is written, to write weights that there are not, or to a place that is taken."""
    if run.suite.track != "methods":
        raise OptionError(
            f"{run.suite.name} is on the agents track, where nothing is trained: there are no weights to write"
        )
    if folder.exists():
        raise OptionError(f"{format_path(folder)} exists: move it, or name another folder for the weights")


def write_weights(run: SuiteRun, folder: Path) -> list[Path]:
    """The policies that were ranked, one folder for each cell of the methods track: what others verify the words by."""
    check_weights(run, folder)
    places = [folder / cell.key for cell in run.cells]
    for cell, place in zip(run.cells, places, strict=True):
        adapter = load_config(cell.run_folder / "config.yaml").agent.adapter
        export_policy(cell.run_folder, place, best=True, adapter_only=adapter is not None)
    return places


def collect_result(run: SuiteRun) -> Result:
    """The cells of a run with their episodes."""
    methods = run.suite.track == "methods"
    packed = [pack_method_cell(cell, run) if methods else pack_agent_cell(cell, run.entry) for cell in run.cells]
    return Result(
        suite=run.suite,
        entry=describe_run_entry(run),
        scenarios=tuple(opened.describe() for opened in run.opened.values()),
        cells=tuple(cell for cell, _ in packed),
        seconds=sum(seconds for _, seconds in packed),
        revision=find_revision(),
    )


def describe_run_entry(run: SuiteRun) -> EntryRecord:
    """The agent, for the record."""
    first = run.cells[0]
    if run.suite.track == "agents":
        return describe_entry(run.entry, describe_entry_agent(run), None)
    config = load_config(first.run_folder / "config.yaml")
    return describe_entry(run.entry, describe_learner(config.agent), str(config.algorithm["name"]))


def describe_entry_agent(run: SuiteRun) -> AgentRecord:
    """The agent of an entry. A tiny one is another model in every environment: the weights are those of the cells."""
    found = [describe_player(opened, run.entry) for opened in run.opened.values()]
    settings = AgentSettings.load(run.entry.agent or {}, "agent")
    return describe_agent(settings) if starts_from_nothing(settings) else found[0]


def find_revision() -> str | None:
    """The git revision of a package that runs from its repository."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    told = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or None


# ---- cells ------------------------------------------------------------------------------------------------------------


def group_by_task(trajectories: Iterable[Trajectory]) -> tuple[Group, ...]:
    """Consecutive episodes of one task."""
    return tuple(tuple(members) for _, members in groupby(trajectories, key=lambda one: one.task))


def parse_groups(text: str, where: str) -> tuple[Group, ...]:
    """The episodes of a text of JSON lines, grouped by task."""
    return group_by_task(trajectory for trajectory, _ in parse_json_lines(text.splitlines(), where))


def pack_agent_cell(cell: Cell, entry: Entry) -> tuple[PackedCell, float]:
    """A cell of the agents track, and how long it took."""
    parts = read_parts(cell)
    text = "".join(line + "\n" for part in parts for line in part["lines"])
    groups = parse_groups(text, str(cell.folder))
    spent = Spent(episodes=sum(len(group) for group in groups), env_steps=sum(part["env_steps"] for part in parts))
    own = starts_from_nothing(AgentSettings.load(entry.agent or {}, "agent"))
    policy = cell.identity["agent"]["weights"] if own else None
    data = CellData(cell.scenario, cell.seed, groups, spent, policy=policy, usage=sum_usage(parts))
    return PackedCell(data, text), sum(part["seconds"] for part in parts)


def pack_method_cell(cell: Cell, run: SuiteRun) -> tuple[PackedCell, float]:
    """A cell of the methods track, and how long it took."""
    records = read_records(cell)
    judged = [record for record in records if "evaluation" in record]
    texts = {
        record["round"]: read_text(cell.run_folder / "evaluation" / f"{record['round']:04d}.jsonl") for record in judged
    }
    points = make_points(records, texts, cell)
    ranked = read_text(cell.ranked_file)
    episodes = list(parse_json_lines(ranked.splitlines(), str(cell.ranked_file)))
    config = load_config(cell.run_folder / "config.yaml")
    client_split = run.opened[cell.scenario].client_split
    assert client_split is not None
    groups = group_by_task(trajectory for trajectory, _ in episodes)
    about = episodes[0][1]
    if about.get("round") != choose_round(points):
        raise DataError(
            f"{cell.ranked_file} was played by another round than the run's best on `val`: delete it and resume"
        )
    data = CellData(
        cell.scenario,
        cell.seed,
        groups,
        sum_spent(records, records[-1]["round"]),
        points,
        describe_clients(client_split, groups),
        policy=about.get("policy"),
        config=config.digest,
        epsilon=find_epsilon(records),
    )
    seconds = float(read_json(cell.run_folder / "result.json")["seconds"])
    return PackedCell(data, ranked, "".join(texts.values()), format_config(config)), seconds


def make_points(records: Sequence[Mapping[str, Any]], texts: Mapping[int, str], cell: Cell) -> tuple[CurvePoint, ...]:
    """The learning curve of a run."""
    return tuple(
        make_point(number, parse_groups(text, f"{cell.run_folder}, round {number}"), sum_spent(records, number))
        for number, text in texts.items()
    )


def find_epsilon(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The privacy budget that the whole run spent, if it was accounted."""
    spent = [record["metrics"][EPSILON] for record in records if EPSILON in record["metrics"]]
    return max(spent) if spent else None
