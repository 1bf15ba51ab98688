"""A forger: changes what a result says, and makes every digest and, if asked, every aggregate anew."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedagentgym.agents.presets import make_agent
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.files import compress, read_compressed
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.leaderboard.aggregate import (
    CellData,
    aggregate,
    choose_round,
    describe_cell,
    describe_clients,
    make_point,
)
from fedagentgym.leaderboard.record import CellRecord, Manifest, Spent
from fedagentgym.leaderboard.results import (
    ResultFolder,
    format_document,
    group_by_task,
    make_client_table,
    make_curves,
    to_text,
)
from fedagentgym.leaderboard.suite import Suite, open_scenario
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.trajectory import parse_json_lines, to_json_line

Lines = list[dict[str, Any]]


def copy(honest: Path, folder: Path) -> Path:
    shutil.copytree(honest, folder)
    return folder


def read_packed(path: Path) -> Lines:
    return [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().splitlines()]


def write_packed(path: Path, lines: Lines) -> None:
    path.write_bytes(compress("".join(json.dumps(line) + "\n" for line in lines)))


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change a document in place, in the layout that the package writes."""
    packed = path.suffix == ".xz"
    plain = json.loads(read_compressed(path) if packed else path.read_text())
    change(plain)
    text = format_document(plain)
    path.write_bytes(compress(text) if packed else text.encode())


def edit_lines(folder: Path, name: str, change: Callable[[Lines], object]) -> None:
    lines = read_packed(folder / name)
    found = change(lines)
    write_packed(folder / name, found if isinstance(found, list) else lines)


def play_expertly(suite: Suite, cell: CellRecord, split: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Episodes of the expert under the seeds of a cell, as if a model had written its actions."""
    opened, is_val = open_scenario(suite, cell.scenario), split == suite.selection.split
    env = open_env(opened.env.id, **{**opened.options, "split": split})
    part, seed = (suite.selection, "evaluation") if is_val else (suite.get_ranking(cell.scenario), "ranked")
    ids = list(env.pool.ids[: part.tasks])
    groups = collect(make_agent("expert", env), env, ids, group_size=part.repeats, seed=derive(cell.seed, seed)).groups
    found = {}
    for trajectory in (one for group in groups for one in group):
        plain = json.loads(to_json_line(trajectory, brief=is_val))
        for turn in plain["turns"]:
            turn.update(reply=f"<action>{turn['action']}</action>", format=True, tokens=4)
        found[trajectory.task, trajectory.sample] = plain
    return found


def play_badly(env: TextEnv, line: dict[str, Any]) -> dict[str, Any]:
    """The same episode with the worst guess in every turn; without observations if it has none."""
    brief = "seed" not in line
    (episode,) = env.reset_many([line["task"]], [line.get("seed", 0)])
    turns = []
    while not episode.over:
        shown, action = episode.view, "guess 1"
        (episode,) = env.step_many([episode], [action])
        seen = {"reward": episode.reward, "score": episode.view.score, "valid": episode.view.valid}
        seen |= {} if brief else {"observation": shown.observation, "admissible": list(shown.admissible or ())}
        seen |= {"rewards": {name: episode.view.rewards.get(name, 0.0) for name in env.reward_names}}
        turns.append({**line["turns"][0], "reply": f"<action>{action}</action>", "action": action, **seen})
    ends = {"success": episode.view.success, "terminated": episode.terminated, "truncated": episode.truncated}
    return {**ends, "score": episode.view.score, "turns": turns} | ({} if brief else {"last": episode.view.observation})


def solve_failed(folder: Path, suite: Suite, cell: CellRecord, count: int, round_: int | None = None) -> None:
    """Replace failed episodes of a cell by those of the expert: ranked ones, or those of a round on val."""
    split = suite.ranking.split if round_ is None else suite.selection.split
    better, left = play_expertly(suite, cell, split), count

    def solve(lines: Lines) -> None:
        nonlocal left
        for line in lines:
            if left and not line["success"] and round_ in (None, line.get("round")):
                line.update(better[line["task"], line["sample"]])
                left -= 1

    kind = "episodes" if round_ is None else "selection"
    edit_lines(folder, f"{kind}/{cell.key}.jsonl.xz", solve)
    assert not left, "there are as many failures"


def remake_digests(folder: Path) -> None:
    """Give the manifest the digests of the files as they are now."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    files = {name: file_digest(folder / name) for name in sorted(names) if name != "manifest.json"}
    edit_json(folder / "manifest.json", lambda plain: plain.update(files=files))


def remake_all(folder: Path, suite: Suite) -> None:
    """Give the manifest, the curves and the clients the numbers that follow from the episodes as they are now."""
    manifest, curves = (
        ResultFolder(folder).manifest,
        {(one.scenario, one.seed): one for one in ResultFolder(folder).curves.cells},
    )
    cells = []
    for record in manifest.cells:
        lines = read_text(folder / "episodes" / f"{record.key}.jsonl.xz")
        groups = group_by_task(trajectory for trajectory, _ in parse_json_lines(lines, "forged", brief=True))
        data = CellData(
            record.scenario,
            record.seed,
            groups,
            record.spent,
            policy=record.policy,
            config=record.config,
            usage=record.usage,
            epsilon=record.epsilon,
            revision=record.revision,
        )
        if suite.track == "agents":
            turns = sum(len(trajectory.turns) for group in groups for trajectory in group)
            data = replace(data, spent=Spent(episodes=sum(map(len, groups)), env_steps=turns))
        else:
            data = add_method(
                folder, suite, data, {point.round: point.spent for point in curves[record.scenario, record.seed].points}
            )
        cells.append(data)
    overall, by_scenario = aggregate(suite, cells)
    records = tuple(describe_cell(suite, cell) for cell in cells)
    forged = manifest.model_copy(update={"overall": overall, "by_scenario": by_scenario, "cells": records})
    assert isinstance(forged, Manifest)
    (folder / "manifest.json").write_text(to_text(forged))
    if suite.track == "methods":
        (folder / "curves.json.xz").write_bytes(compress(to_text(make_curves(cells))))
        (folder / "clients.json.xz").write_bytes(compress(to_text(make_client_table(cells))))
    remake_digests(folder)


def add_method(folder: Path, suite: Suite, data: CellData, spent: dict[int, Any]) -> CellData:
    lines = read_text(folder / "selection" / f"{data.scenario}-seed{data.seed}.jsonl.xz")
    by_round: dict[int, list[Any]] = {}
    policies = {}
    for trajectory, about in parse_json_lines(lines, "forged", brief=True):
        by_round.setdefault(about["round"], []).append(trajectory)
        policies[about["round"]] = about["policy"]
    points = tuple(make_point(number, group_by_task(found), spent[number]) for number, found in by_round.items())
    client_split = open_scenario(suite, data.scenario).client_split
    assert client_split is not None
    clients = describe_clients(client_split, data.groups)
    return replace(data, points=points, clients=clients, policy=policies[choose_round(suite, points)])


def read_text(path: Path) -> list[str]:
    return lzma.decompress(path.read_bytes()).decode().splitlines()
