"""Converts the results of before to archives, once: python leaderboard/convert.py OLD NEW. Deleted with the commit after."""

from __future__ import annotations

import json
import lzma
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from fedagentgym.algorithms.worlds import list_worlds
from fedagentgym.agents.models.store import identify_model
from fedagentgym.base.encoding import canonical_json
from fedagentgym.leaderboard.entries import Entry, find_packaged, load_settings, make_baseline
from fedagentgym.leaderboard.play import make_evaluation_config, make_run_config
from fedagentgym.leaderboard.results import ENTRY, SUITE, Result
from fedagentgym.leaderboard.suite import load_suite, open_scenario, to_yaml
from fedagentgym.leaderboard.verify import Held, make_agent_due, make_due
from fedagentgym.learning.episodes import format_line, group_by_task
from fedagentgym.learning.trajectory import Trajectory, Turn
from fedagentgym.runs.archive import write_archive
from fedagentgym.runs.claims import Played, compute_numbers
from fedagentgym.runs.folder import CONFIG, RANKED, RECORD, WORLDS, format_document, publish_config
from fedagentgym.runs.folder import to_yaml as write_yaml
from fedagentgym.runs.record import (
    AgentRecord,
    CurvePoint,
    EnvRecord,
    Evaluated,
    Made,
    PrivacyRecord,
    RunRecord,
    Spent,
    SplitRecord,
    Usage,
)


SHIPPED_BEFORE = Path('/tmp/base/fedagentgym/agents/shipped')


def unpack(path: Path) -> str:
    return lzma.decompress(path.read_bytes()).decode()


def parse(line: dict[str, Any], window: bool, seed: int = 0) -> Trajectory:
    turns = tuple(
        Turn(
            turn.get("observation", ""),
            turn["reply"],
            (turn["action"],),
            turn["reward"],
            turn["valid"],
            turn["format"],
            turn["rewards"],
            turn["score"],
            turn["tokens"],
            turn["learn"],
            tuple(turn.get("admissible", ())),
            number if window else 0,
        )
        for number, turn in enumerate(line["turns"])
    )
    return Trajectory(
        line["task"],
        line.get("seed", seed),
        turns,
        (),
        line["category"],
        line["sample"],
        line["score"],
        line["success"],
        line["terminated"],
        line["truncated"],
        {},
        line.get("last", ""),
    )


FIRST = ("env", "pool", "agent", "verifier", "split")
OWN = {"task", "seed", "sample", "category", "score", "success", "terminated", "truncated", "turns", "last", "labels"}


def order(line: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {name: value for name, value in line.items() if name not in OWN} | more
    return {name: about[name] for name in FIRST if name in about} | {k: v for k, v in about.items() if k not in FIRST}


def convert(old: Path, new: Path) -> str:
    manifest = json.loads((old / "manifest.json").read_text())
    suite = load_suite(manifest["suite"]["name"])
    told = manifest["entry"]
    if told["baseline"]:
        entry = make_baseline(suite, told["name"])
        assert entry.title == told["title"], (entry.title, told["title"])
    else:
        method = told["method"]
        assert method is None, told
        entry = Entry(
            name=told["name"],
            title=told["title"],
            agent=told["agent"]["settings"],
            submitted_by=told["submitted_by"],
            link=told["link"],
            note=told["note"],
        )
    methods = suite.track == "methods"
    table: Any = {}
    if methods:
        curves = {(c["scenario"], c["seed"]): c["points"] for c in json.loads(unpack(old / "curves.json.xz"))["cells"]}
        configs = {(c["scenario"], c["seed"]): c["config"] for c in json.loads(unpack(old / "configs.json.xz"))["cells"]}
    opened = {one["name"]: open_scenario(suite, one["name"]) for one in manifest["scenarios"]}
    result = Result(Path())
    result.__dict__.update(suite=suite, entry=entry)
    held = Held(result, suite, opened)
    count = len(manifest["cells"])
    made = manifest["made"]

    def runs() -> Any:
        for cell in manifest["cells"]:
            key = (cell["scenario"], cell["seed"])
            name = f"{key[0]}-seed{key[1]}"
            scenario = held.open(key)
            files: dict[str, bytes] = {}
            lines = [json.loads(line) for line in unpack(old / "episodes" / f"{name}.jsonl.xz").splitlines()]
            told_agent = {k: told["agent"][k] for k in ("kind", "settings", "model", "revision", "weights")}
            if methods:
                config = make_run_config(suite, entry, key)
                check_config(name, configs[key], publish_config(config.plain()))
                due = make_due(held, key, config)
                window = due.speaker.window
                split = scenario.client_split
                assert split is not None
                by_round: dict[int, list[Trajectory]] = {}
                texts: dict[int, list[str]] = {}
                policies = {}
                for line in map(json.loads, unpack(old / "selection" / f"{name}.jsonl.xz").splitlines()):
                    one = parse(line, window)
                    by_round.setdefault(line["round"], []).append(one)
                    texts.setdefault(line["round"], []).append(format_line(one, order(line), brief=True) + "\n")
                    policies[line["round"]] = line["policy"]
                spent = {p["round"]: {k: v for k, v in p["spent"].items() if k != "labelled"} for p in curves[key]}
                points = tuple(
                    CurvePoint(round=r, policy=policies[r], spent=Spent(**spent[r]), overall={}, categories={})
                    for r in by_round
                )
                worlds: list[Any] = []
                if suite.in_own_worlds:
                    rows = [json.loads(line) for line in unpack(old / "worlds" / f"{name}.jsonl.xz").splitlines()]
                    out = []
                    for line in rows:
                        out.append(format_line(parse(line, window), order(line), brief=True) + "\n")
                    together = list_worlds(split, apart=False)
                    apart = rows[0]["clients"] != list(together[0].clients)
                    for world in list_worlds(split, apart=True) if apart else together:
                        mine = [parse(r, window) for r in rows if r["clients"] == list(world.clients)]
                        worlds.append((world, group_by_task(mine)))
                    assert sum(len(g) for _, gs in worlds for g in gs) == len(rows)
                total = {k: v for k, v in cell["spent"].items() if k != "labelled"}
                assert "optimizer_steps" in total and "looks" in total, total
                base = RunRecord(
                    kind="training",
                    name=config.name,
                    algorithm=str(config.algorithm["name"]),
                    seed=config.seed,
                    config_digest=config.digest,
                    env=EnvRecord(
                        id=scenario.env.id,
                        options=type(scenario.env).portable_options(split.options),
                        pool=split.pool.digest,
                        task_set=split.task_set.digest,
                        verifier=scenario.env.get_verifier_version(),
                    ),
                    client_split=SplitRecord(digest=split.digest, clients=len(split)),
                    agent=AgentRecord(**told_agent),
                    curve=points,
                    ranked=Evaluated(
                        round=cell["chosen_round"], policy=cell["policy"], tasks=0, episodes=0, overall={}, categories={}
                    ),
                    spent=Spent(**total),
                    labelled=cell["spent"].get("labelled"),
                    privacy=None if cell["epsilon"] is None else PrivacyRecord(epsilon=cell["epsilon"]),
                    made=Made(**{**made, "seconds": made["seconds"] / count, "revision": cell.get("revision")}),
                )
                ranked = [parse(line, window) for line in lines]
                played = Played({r: group_by_task(e) for r, e in by_round.items()}, group_by_task(ranked), worlds)
                record = compute_numbers(base, due, played)
                assert record.ranked is not None and record.ranked.round == cell["chosen_round"]
                abouts = [order(line) for line in lines]
                plain = publish_config(config.plain())
            else:
                config_ = make_evaluation_config(scenario, entry, key[1])
                kind = told["agent"]["kind"]
                due = make_agent_due(held, key, kind)
                window = due.speaker.window
                agent = AgentRecord(**{**told_agent, "settings": config_.agent})
                if cell["policy"] is not None:
                    assert identify_model(SHIPPED_BEFORE / Path(find_packaged(load_settings(entry, 0.4), scenario.env).model).name) == cell["policy"]
                    here = identify_model(str(find_packaged(load_settings(entry, 0.4), scenario.env).model))
                    agent = agent.model_copy(update={"weights": here})
                ranked = [parse(line, window) for line in lines]
                env = scenario.env
                base = RunRecord(
                    kind="evaluation",
                    name=config_.name,
                    seed=config_.seed,
                    config_digest=config_.digest,
                    env=EnvRecord(
                        id=env.id,
                        options=type(env).portable_options(scenario.options),
                        pool=env.pool.digest,
                        task_set=env.task_set.digest,
                        verifier=env.get_verifier_version(),
                    ),
                    agent=agent,
                    spent=Spent(),
                    ranked=Evaluated(tasks=0, episodes=0, overall={}, categories={}),
                    usage=None if cell["usage"] is None else Usage(**cell["usage"]),
                    made=Made(**{**made, "seconds": made["seconds"] / count}),
                )
                record = compute_numbers(base, due, Played({}, group_by_task(ranked)))
                abouts = [order(line, temperature=due.ranking.temperature, policy=None) for line in lines]
                plain = config_.plain()
            files[RECORD] = format_document(record).encode()
            files[CONFIG] = write_yaml(plain).encode()
            files[RANKED] = "".join(
                format_line(one, about) + "\n" for one, about in zip(ranked, abouts, strict=True)
            ).encode()
            if methods:
                if suite.in_own_worlds:
                    files[WORLDS] = "".join(out).encode()
                for r, rows_ in texts.items():
                    files[f"evaluation/{r:04d}.jsonl"] = "".join(rows_).encode()
            yield name, files

    documents = {SUITE: to_yaml(suite).encode(), ENTRY: format_document(entry.publish()).encode()}
    target = new / suite.name / f"{entry.name}.zip"
    write_archive(target, documents, runs())
    return f"{target} {target.stat().st_size}"


def check_config(name: str, old: Any, new: Any) -> None:
    """The configuration of before, but for what has another form now."""
    old, new = json.loads(json.dumps(old)), json.loads(json.dumps(new))
    new.pop("ranking")
    for section in (old, new):
        section["evaluation"].pop("clients", None)
        section["evaluation"].pop("at_clients", None)
        section["evaluation"].pop("newcomers", None)
        section["learning"].pop("optimizer", None)
        section["algorithm"].pop("local_passes", None)
        section["algorithm"].pop("worlds", None)
        if section.get("warm_start"):
            section["warm_start"].setdefault("misconceptions", None)
    if canonical_json(old) != canonical_json(new):
        odd = [k for k in {**old, **new} if canonical_json(old.get(k)) != canonical_json(new.get(k))]
        raise SystemExit(f"{name}: {odd}: {[(old.get(k), new.get(k)) for k in odd]}")


if __name__ == "__main__":
    source, to = Path(sys.argv[1]), Path(sys.argv[2])
    names = sys.argv[3:]
    jobs = sorted(place.parent for place in source.glob("*/*/manifest.json"))
    jobs = [job for job in jobs if not names or f"{job.parent.name}/{job.name}" in names or job.parent.name in names]
    jobs = [job for job in jobs if not (to / job.parent.name / f"{job.name}.zip").exists()]
    with ProcessPoolExecutor(2) as pool:
        for done in pool.map(convert, jobs, [to] * len(jobs)):
            print(done, flush=True)
