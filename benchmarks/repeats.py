"""Repetitions that are compared: client splits from their seeds, episodes in another process, committed results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import ROOT
from benchmarks.findings import Findings
from benchmarks.fixed_replies import list_audited, list_sizes, name_env
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.scripted import NoisyExpert
from fedagentgym.experiment.config import list_presets, load_config
from fedagentgym.leaderboard.results import Result
from fedagentgym.partitions.client_split import ClientSplit, federate, load_client_split

SPLITS = ROOT / "tests" / "golden"
BOARD = ROOT / "leaderboard"
SEEDS = 3
DRAWN: dict[str, dict[str, Any]] = {
    "uniform": {"clients": 8},
    "preference": {"clients": 8, "omega": 0.5, "tasks_per_client": 16},
    "preference_dirichlet": {"clients": 8, "omega": 0.5, "tasks_per_client": 16},
    "coverage": {"clients": 8, "xi": 16, "mean_tasks": 64},
    "preference_coverage": {"clients": 8, "omega": 0.5, "xi": 16, "mean_tasks": 64},
    "hardness": {"clients": 8, "xi": 16, "tasks_per_client": 16, "labels": "pool"},
    "dirichlet": {"clients": 8, "beta": 0.3},
    "by_source": {"clients": 8},
    "pathological": {"clients": 8, "categories_per_client": 2},
    "shards": {"clients": 8, "shards_per_client": 2},
    "natural": {"by": "town"},
    "held": {"clients": 8},
}
"""A split of Skills by every sampler."""
EPISODES = 50
NOISE = 0.3


# ---- splits -----------------------------------------------------------------------------------------------------------


def find_splits(quick: bool) -> Findings:
    """The numbers of proven checks of client splits: their content, their pool, and drawing them again from their seed."""
    presets = []
    for name in list_presets():
        try:
            presets.append(Runtime(load_config(name).spec()).client_split)
        except DataError:  # its data set is not installed here
            continue
        if quick:
            break
    drawn = [
        federate("fedagentgym/Skills-v0", partition=name, seed=seed, **parameters)
        for name, parameters in DRAWN.items()
        for seed in range(1 if quick else SEEDS)
    ]
    rows = {
        "committed split files": count_checks([load_client_split(path) for path in sorted(SPLITS.glob("split-*"))]),
        "presets whose data are installed": count_checks(presets),
        "by every sampler": count_checks(drawn),
    }
    return Findings("client splits", dict.fromkeys(("splits", "clients", "checks", "proven", "refuted"), ",d"), rows)


def count_checks(splits: Sequence[ClientSplit]) -> tuple[int, ...]:
    """The numbers of splits, clients and checks, of proven ones and of refuted ones."""
    found = [check.ok for one in splits for check in one.verify()]
    return len(splits), sum(map(len, splits)), len(found), found.count(True), found.count(False)


# ---- episodes ---------------------------------------------------------------------------------------------------------


def find_replays(quick: bool) -> Findings:
    """The number of episodes that are the same, word by word, in a process with another hash seed of Python."""
    count = 3 if quick else EPISODES
    rows: dict[str, tuple[float | str, ...]] = {}
    ours, theirs = digest_episodes(count), digest_episodes_apart(count)
    for name, digests in ours.items():
        rows[name] = (len(digests), sum(one == other for one, other in zip(digests, theirs[name], strict=True)))
    return Findings("environment", {"episodes played twice": ",d", "the same": ",d"}, rows)


def digest_episodes(count: int) -> dict[str, list[str]]:
    """The digests of `count` episodes of every environment and size, by a player who errs on purpose."""
    found = {}
    for env_id in list_audited():
        for size in list_sizes(env_id):
            env = open_env(env_id, split="test", **({"size": size} if size else {}))
            name = f"{name_env(env_id)}{f', {size}' if size else ''}"
            found[name] = [digest(play_once(env, seed)) for seed in range(count)]
    return found


def digest_episodes_apart(count: int) -> dict[str, list[str]]:
    """The digests of `digest_episodes`, computed in another process with another hash seed."""
    code = f"import json; from benchmarks.repeats import digest_episodes; print(json.dumps(digest_episodes({count})))"
    environment = {**os.environ, "PYTHONHASHSEED": "4321", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def play_once(env: TextEnv, seed: int) -> list[Any]:
    """An episode of the task that a seed chooses: every observation, action, reward, and the admissible actions."""
    task = env.pool.ids[seed % len(env.pool)]
    (episode,) = env.reset_many([task], [seed])
    player = NoisyExpert(env.expert(), NOISE, episode.view.observation, stream(seed, "replays", task))
    seen: list[Any] = [task]
    while True:
        view = episode.view
        seen.append([view.observation, view.reward, view.score, view.success, view.valid, list(view.admissible or ())])
        if episode.over:
            return seen
        action = player.act(episode).action
        seen.append(action)
        (episode,) = env.step_many([episode], [action])


# ---- committed results ------------------------------------------------------------------------------------------------


def find_results(quick: bool) -> Findings:
    """For each suite, the numbers of committed results, of those that were replayed in full, of their episodes, and of refuted
    claims."""
    rows: dict[str, tuple[float | str, ...]] = {}
    for suite in sorted(path for path in (BOARD / "results").iterdir() if path.is_dir()):
        archives = sorted(suite.glob("*.zip"))[: 2 if quick else None]
        results = [Result(path, [BOARD / "verified"]) for path in archives]
        verified = [
            one.verification
            for one in results
            if one.verification is not None and one.verification.result == one.digest
        ]
        replayed = [
            claim.about for one in verified for claim in one.claims if claim.name == "replayed" and one.replayed
        ]
        refuted = sum(claim.status == "refuted" for one in verified for claim in one.claims)
        rows[suite.name] = (len(results), len(replayed), sum(map(count_episodes, replayed)), refuted)
    columns = dict.fromkeys(("results", "played again", "episodes", "claims refuted"), ",d")
    return Findings("suite", columns, rows)


def count_episodes(about: str) -> int:
    """The episodes that a claim is about.

    >>> count_episodes("every episode was played again (1,280 ranked episodes, 320 on val)")
    1600
    """
    return sum(int(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,]*(?= )", about))
