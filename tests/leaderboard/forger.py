"""A forger: changes what a result says, and makes every digest and, if asked, every number anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedagentgym.agents.presets import make_agent
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.leaderboard.play import make_run_config
from fedagentgym.leaderboard.results import ENTRY, SUITE, Result, RunKey, parse_run
from fedagentgym.leaderboard.suite import Suite, open_scenario
from fedagentgym.leaderboard.verify import Held, make_agent_due, make_due
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.trajectory import format_line, group_by_task, read_lines
from fedagentgym.runs.archive import Archive, write_archive
from fedagentgym.runs.claims import Played, compute_numbers
from fedagentgym.runs.folder import CONFIG, METRICS, RANKED, RECORD, WORLDS, RunFolder, format_document

Lines = list[dict[str, Any]]


def unpack(archive: Path, folder: Path) -> Path:
    """An archive as the folder of its runs: what a forger edits."""
    packed = Archive(archive)
    folder.mkdir(parents=True)
    for name in (SUITE, ENTRY):
        (folder / name).write_bytes(packed.read(name))
    for run in packed.runs:
        packed.extract(run, folder / run)
    return folder


def pack(folder: Path, archive: Path) -> Path:
    """The archive of a folder as it is, with all digests made anew."""
    order = (RECORD, CONFIG, RANKED, METRICS, WORLDS)

    def read(run: Path) -> dict[str, bytes]:
        names = [path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()]
        names = sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))
        return {name: (run / name).read_bytes() for name in names}

    runs = sorted(path for path in folder.iterdir() if path.is_dir())
    suite = Result(folder).suite
    places = [f"{scenario}-seed{seed}" for scenario in suite.scenarios for seed in suite.seeds]
    runs.sort(key=lambda run: places.index(run.name) if run.name in places else len(places))
    documents = {name: (folder / name).read_bytes() for name in (SUITE, ENTRY)}
    write_archive(archive, documents, ((run.name, read(run)) for run in runs))
    return archive


def copy(honest: Path, folder: Path) -> Path:
    """A folder to be forged, of an archive or of another folder."""
    if honest.suffix == ".zip":
        return unpack(honest, folder)
    shutil.copytree(honest, folder)
    return folder


def read_file(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change a document in place, in the layout that the package writes."""
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(canonical_json(plain) + "\n")


def edit_lines(folder: Path, name: str, change: Callable[[Lines], object]) -> None:
    lines = read_file(folder / name)
    found = change(lines)
    kept = found if isinstance(found, list) else lines
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in kept))


def list_runs(folder: Path) -> list[Path]:
    """The folders of the runs, in the order of the suite."""
    return [folder / f"{scenario}-seed{seed}" for scenario, seed in Result(folder).keys]


def play_expertly(suite: Suite, key: RunKey, split: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Episodes of the expert under the seeds of a run, as if a model had written its actions."""
    opened, is_val = open_scenario(suite, key[0]), split == suite.selection.split
    env = open_env(opened.env.id, **{**opened.options, "split": split})
    part, seed = (suite.selection, "evaluation") if is_val else (suite.get_ranking(key[0]), "ranked")
    ids = list(env.pool.ids[: part.tasks])
    groups = collect(make_agent("expert", env), env, ids, group_size=part.repeats, seed=derive(key[1], seed)).groups
    found = {}
    for trajectory in (one for group in groups for one in group):
        plain = json.loads(format_line(trajectory, brief=is_val))
        for turn in plain["turns"]:
            turn.update(reply=f"<action>{turn['acts'][0]}</action>", format=True, tokens=4)
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
        turns.append({**line["turns"][0], "reply": f"<action>{action}</action>", "acts": [action], **seen})
    ends = {"success": episode.view.success, "terminated": episode.terminated, "truncated": episode.truncated}
    return {**ends, "score": episode.view.score, "turns": turns} | ({} if brief else {"last": episode.view.observation})


def solve_failed(run: Path, suite: Suite, count: int, round_: int | None = None) -> None:
    """Replace failed episodes of a run by those of the expert: ranked ones, or those of a round on val."""
    split = suite.ranking.split if round_ is None else suite.selection.split
    better, left = play_expertly(suite, parse_run(run.name, ""), split), count

    def solve(lines: Lines) -> None:
        nonlocal left
        for line in lines:
            if left and not line["success"]:
                line.update(better[line["task"], line["sample"]])
                left -= 1

    edit_lines(run, RANKED if round_ is None else f"evaluation/{round_:04d}.jsonl", solve)
    assert not left, "there are as many failures"


def remake_all(folder: Path, suite: Suite) -> None:
    """Give every record the numbers that follow from the episodes as they are now."""
    result = Result(folder)
    for key in result.keys:
        run = RunFolder(folder / f"{key[0]}-seed{key[1]}")
        record, opened = run.record, open_scenario(suite, key[0]).at(key[1])
        held = Held(result, suite, {key[0]: opened})
        if suite.track == "agents":
            due = make_agent_due(held, key, record.agent)
        else:
            due = make_due(held, key, make_run_config(suite, result.entry, key))
        curve, policies = {}, {}
        for number, file in run.list_evaluations().items():
            lines = list(read_lines(file))
            curve[number] = group_by_task(line.trajectory for line in lines)
            policies[number] = lines[0].about["policy"]
        spent = {point.round: point for point in record.curve}
        points = tuple(spent[number].model_copy(update={"policy": policies[number]}) for number in curve)
        ranked = list(read_lines(run.path / RANKED))
        assert record.ranked is not None
        policy = record.ranked.model_copy(update={"policy": ranked[0].about["policy"]})
        before = record.model_copy(update={"curve": points, "ranked": policy})
        played = Played(curve, group_by_task(line.trajectory for line in ranked))
        (run.path / RECORD).write_text(format_document(compute_numbers(before, due, played)))
