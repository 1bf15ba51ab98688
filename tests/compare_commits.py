"""Compare what two checkouts compute: digests of runs of all methods, of client splits and of episodes, bit for bit.

    git worktree add ../base 52deced
    python tests/compare_commits.py ../base [--quick] [--only methods,splits/uniform*,episodes]

computes the digests of the other checkout and of the one that holds this script, one process after the other, each with an
empty cache of its own, and prints what is equal, what differs, and what only one of them has. Differences from 52deced that are
intended are listed in `REASONS`, each with its reason; the exit code is 1 if there are others. `--save FILE` keeps the digests of
this checkout, and such a file may be given in place of the other one if it comes from the same machine and virtual environment.

This file lists what is computed, as plain values; `commit_probe.py` computes it, once per checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PROBE = Path(__file__).with_name("commit_probe.py")
KINDS = ("methods", "splits", "episodes")
REASONS = {
    "methods/*/state": "the layout of stored states may change; their numbers are compared",
    "methods/*/settings": "evaluation.resamples and output.tensorboard are gone, output.trackers is new",
    "splits/uniform roles*": "the server's tasks that no client holds are drawn before the clients",
    "methods/registered": "scaffold and feddyn are new",
}
"""Patterns of digests that may differ from 52deced, and why."""
Case = dict[str, Any]

# ---- methods: configurations of `fedagentgym.train` ------------------------------------------------------------------

GUESS = "fedagentgym/Guess-v0"
ROLES = {"public": 8, "auxiliary": 8, "server": 8}
BASE: Case = {
    "name": "probe",
    "env": {"id": GUESS},
    "partition": {"clients": 3, "tasks_per_client": 8, "roles": ROLES},
    "agent": {"name": "untrained-tiny"},
    "learning": {"tasks_per_step": 2, "group_size": 3, "learning_rate": 1e-3},
    "algorithm": {"name": "fedagent"},
    "federation": {"rounds": 2, "clients_per_round": 2, "quorum": None},
    "evaluation": {"every": 2, "tasks": 4},
}
LONGER = {"decoding": {"temperature": 1.0, "max_new_tokens": 8, "constrained": True}}
ADAPTER = {"agent": {"adapter": {"rank": 2, "alpha": 4.0}, **LONGER}}
UNEQUAL = {"partition": {"sampler": "coverage", "clients": 3, "mean_tasks": 8, "xi": 1.0}}
ALL_CLIENTS = {"federation": {"clients_per_round": 3}}
MORE_EPISODES = {"learning": {"tasks_per_step": 4, "group_size": 4}}
SHORTER_IS_BETTER = {"learning": {"objectives": [{"name": "reward"}, {"name": "length", "weight": 0.3}]}}
"""So that there is something to learn where an untrained agent never succeeds."""
PRETRAINED = {
    "agent": {"name": "tiny", "decoding": {"temperature": 1.0, "max_new_tokens": 40}},
    "warm_start": {"context_length": 256, "episodes": 300, "steps": 60, "learning_rate": 5e-3, "matrix_rate": 0.02},
}
"""An agent that can give answers, right or wrong."""


def tiny(name: str, **options: Any) -> Case:
    """The section `env` of an environment in its tiny size."""
    return {"env": {"id": f"fedagentgym/{name}-v0", "options": {"size": "tiny", **options}}}


def by(name: str, **settings: Any) -> Case:
    """The section `algorithm`."""
    return {"algorithm": {"name": name, **settings}}


def rule(name: str, **settings: Any) -> Case:
    """FedAgent with an aggregation rule."""
    return {**by("fedagent", local_steps=1, aggregation={"name": name, **settings}), **ALL_CLIENTS, **MORE_EPISODES}


EXPERTS: Case = {"neighbours": 3, "expert_steps": 1, "expert_refresh": 1}
METHODS: dict[str, Case] = {
    "fedagent": by("fedagent"),
    "fedavg-grpo": {**by("fedavg-grpo", local_steps=2), **UNEQUAL},
    "fedprox": by("fedprox", local_steps=2, proximal=10.0),
    "centralized": by("centralized", local_steps=2),
    "local": by("local", client=1, local_steps=2),
    "fedgrpo": by("fedgrpo", scorer="reward_model", **EXPERTS),
    "pubswap": {**by("pubswap", local_steps=5, swap_period=2, public_tasks=4), **MORE_EPISODES},
    "fedmoa": by("fedmoa", objectives=[["accuracy", "length"], ["accuracy/guess"]], hypergradient="cosine"),
    "fedpetuning": {**by("fedpetuning", local_steps=2), **ADAPTER, **UNEQUAL},
    "dpsda-fl": by("dpsda-fl", candidates=20, synthetic_tasks=10, iterations=2, secret=False),
    "zero-shot": {**by("zero-shot"), "federation": {"rounds": 1}},
}
"""The smallest working configuration of every registered algorithm; each section is laid over that of `BASE`."""
VARIANTS: dict[str, Case] = {
    "rule mean": rule("mean"),
    "rule weighted": {**rule("weighted"), **UNEQUAL},
    "rule median": rule("median"),
    "rule trimmed_mean": {
        **rule("trimmed_mean", trim=0.2),
        "partition": {"clients": 5, "tasks_per_client": 8},
        "federation": {"clients_per_round": 5},
    },
    "rule fedavgm": rule("fedavgm"),
    "rule fedadam": rule("fedadam"),
    "privacy": by("fedagent", privacy={"clip_norm": 0.5, "noise_multiplier": 0.1, "delta": 1e-3, "secret": False}),
    "proximal": by("fedagent", proximal=1.0),
    "keep_optimizer": {**by("fedagent", local_steps=2), "learning": {"keep_optimizer": True}, **ALL_CLIENTS},
    "checks": by("fedagent", checks={"clip_norm": 0.01, "max_ratio": None, "max_norm": 100.0}),
    "adapter": {**by("fedagent", local_steps=2), **ADAPTER},
    "gigpo": {"learning": {"advantage": {"name": "gigpo"}, "minibatches": 2, "gradient_epochs": 2, "entropy": 0.01}},
    "dr_grpo": {
        "learning": {
            "advantage": {"name": "dr_grpo"},
            "loss": {"name": "constant", "length": 32},
            "kl": {"coefficient": 0.1, "reference": "base"},
            "schedule": {"name": "cosine", "warmup": 2},
        }
    },
    "objectives": SHORTER_IS_BETTER,
    "preference": {"partition": {"sampler": "preference", "clients": 3, "tasks_per_client": 8, "omega": 0.9}},
    "warm start": {
        **by("fedagent", local_steps=1),
        "agent": {"name": "tiny"},
        "warm_start": {"episodes": 40, "steps": 6, "context_length": 256},
    },
    "fedgrpo self_answer": {**by("fedgrpo", aggregate="per_expert", **EXPERTS), **tiny("Math"), **PRETRAINED},
    "pubswap random donor": by("pubswap", local_steps=2, swap_period=1, swap="random", behaviour="donor"),
    "fedmoa mixture": {
        **by("fedmoa", local_steps=2, objectives=[["accuracy", "format"]]),
        **tiny("Mixture", kinds=["math", "qa"]),
        "partition": {"sampler": "by_source", "clients": 2},
        **PRETRAINED,
    },
    "fedpetuning sft": {**by("fedpetuning", local_steps=2, objective="sft"), **ADAPTER},
    "dpsda-fl sft": {
        **by("dpsda-fl", candidates=20, synthetic_tasks=10, objective="sft", secret=False),
        "agent": LONGER,
    },
    "ALFWorld window": {
        **by("fedagent", local_steps=1),
        **tiny("ALFWorld", max_turns=3),
        "partition": {"clients": 3, "tasks_per_client": 6, "variant": "scene_split"},
        "agent": {"context": "window", "history": 1, "template": "compact", **LONGER},
        **SHORTER_IS_BETTER,
    },
    "WebShop": {
        **by("fedagent", local_steps=1),
        **tiny("WebShop", max_turns=3),
        "partition": {"clients": 3, "tasks_per_client": 6, "variant": "catalog_split"},
        "agent": LONGER,
        **SHORTER_IS_BETTER,
    },
}
"""Further settings, mostly of FedAgent."""


def method_cases(quick: bool) -> dict[str, Case]:
    """Whole configurations: the sections `env`, `partition`, `algorithm` and `warm_start` replace those of `BASE`."""
    replaced = ("env", "partition", "algorithm", "warm_start")
    return {
        name: {**BASE, **{s: given if s in replaced else {**BASE[s], **given} for s, given in case.items()}}
        for name, case in {**METHODS, **({} if quick else VARIANTS)}.items()
    }


# ---- splits: keywords of `fedagentgym.federate` ----------------------------------------------------------------------

SAMPLERS: dict[str, Case] = {
    "uniform": {"tasks_per_client": 20},
    "preference": {"tasks_per_client": 20, "omega": 0.9},
    "preference_dirichlet": {"tasks_per_client": 20, "omega": 0.3},
    "coverage": {"mean_tasks": 20, "xi": 1.0},
    "preference_coverage": {"mean_tasks": 20, "xi": 4.0, "omega": 0.5},
    "hardness": {"tasks_per_client": 20, "xi": 1.0, "labels": "pool"},
    "dirichlet": {"beta": 0.3},
    "by_source": {},
}
"""Every registered sampler."""
MORE_SAMPLERS: dict[str, Case] = {
    "uniform overlap": {"tasks_per_client": 20, "overlap": 1.5},
    "uniform disjoint": {"disjoint": True},
    "uniform fedagent": {"tasks_per_client": 20, "compat": "fedagent"},
    "uniform roles": {"tasks_per_client": 20, "roles": ROLES, "server_overlap": 0.5},
    "preference logit": {"tasks_per_client": 20, "omega": 0.9, "anchor": "logit"},
    "preference fedagent": {"tasks_per_client": 20, "omega": 0.9, "compat": "fedagent"},
    "coverage fedagent": {"mean_tasks": 20, "min_tasks": 4, "max_tasks": 40, "xi": 1.0, "compat": "fedagent"},
    "hardness fedagent": {"tasks_per_client": 20, "xi": 1.0, "labels": "pool", "compat": "fedagent"},
    "dirichlet equal": {"beta": 0.1, "equal_size": True},
    "dirichlet hardness": {"beta": 0.3, "label": "hardness", "labels": "pool"},
}
THREE = {"size": "tiny", "kinds": ["math", "qa", "code"]}
POOLS: dict[str, Case] = {
    "Guess": {"env_id": GUESS, "clients": 6},
    "ALFWorld": {"env_id": "fedagentgym/ALFWorld-v0", "env": {"size": "tiny"}, "clients": 6},
    "WebShop": {"env_id": "fedagentgym/WebShop-v0", "env": {"size": "tiny"}, "clients": 5},
    "Mixture": {"env_id": "fedagentgym/Mixture-v0", "env": THREE, "clients": 6},
}
WITHOUT_DIFFICULTY = ("WebShop", "Mixture")
WORLDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("catalog_split", "index_fields", "bm25_weights", "lookalikes", "rank_wrapper"), ("WebShop",)),
    "scene_split": ("ALFWorld",),
    "wording": ("Math", "QA", "Code"),
}
"""Every registered way in which the clients' worlds differ, with its environments."""
PAPER: dict[str, Case] = {
    "preference": {"tasks_per_client": 100, "omega": 0.9},
    "coverage": {"min_tasks": 20, "mean_tasks": 100, "max_tasks": 300, "xi": 1},
    "hardness": {"tasks_per_client": 100, "xi": 1},
}
"""The FedAgent paper's splits, on full-sized environments with the labels that come with the package."""


def split_cases(quick: bool) -> dict[str, Case]:
    """Splits of tiny pools by every sampler, with every world, and in full form the paper's."""
    cases: dict[str, Case] = {}
    for pool in ("Guess",) if quick else POOLS:
        for name, parameters in {**SAMPLERS, **({} if quick else MORE_SAMPLERS)}.items():
            if "hardness" not in name or pool not in WITHOUT_DIFFICULTY:
                cases[f"{name} {pool}"] = {**POOLS[pool], "partition": name.split()[0], **parameters}
    for kind, names in WORLDS.items():
        for name in names[:1] if quick else names:
            options: Case = {"env_id": f"fedagentgym/{name}-v0", "env": {"size": "tiny"}, "tasks_per_client": 6}
            cases[f"variant {kind} {name}"] = {**options, "clients": 4, "variant": kind}
    for sampler, parameters in {} if quick else PAPER.items():
        for name in ("WebShop", "ALFWorld"):
            options = {
                "env_id": f"fedagentgym/{name}-v0",
                "env": {"goal_order": "fedagent"} if name == "WebShop" else {},
            }
            cases[f"paper {sampler} {name}"] = {**options, "partition": sampler, "clients": 100, **parameters}
    return cases


# ---- episodes: keywords of `gymnasium.make` --------------------------------------------------------------------------

TOOLS = {"Math": "calc", "QA": "search", "Code": "run"}
ENVIRONMENTS: dict[str, Case] = {
    **{pool: {"id": base["env_id"], **base.get("env", {})} for pool, base in POOLS.items()},
    **{name: {"id": f"fedagentgym/{name}-v0", "size": "tiny"} for name in TOOLS},
}
"""Every registered environment, in its tiny size where there is one."""
MORE_ENVIRONMENTS: dict[str, Case] = {
    "ALFWorld full": {"id": "fedagentgym/ALFWorld-v0", "wording": "put"},
    "WebShop full": {"id": "fedagentgym/WebShop-v0", "reward": "success10"},
    **{f"{n} full": {"id": f"fedagentgym/{n}-v0", "tools": [tool], "attempts": 2} for n, tool in TOOLS.items()},
}


def episode_cases(quick: bool) -> dict[str, Case]:
    """Every environment in every split."""
    return {
        f"{name} {split}": {**case, "split": split}
        for name, case in {**ENVIRONMENTS, **({} if quick else MORE_ENVIRONMENTS)}.items()
        for split in (("train",) if quick else ("train", "val", "test", "warmup"))
    }


def all_cases(kinds: Iterable[str], quick: bool) -> dict[str, Case]:
    """The cases to compute, by `kind/name`; `kind/registered` is the list of all names that there are."""
    made = {"methods": method_cases, "splits": split_cases, "episodes": episode_cases}
    return {f"{kind}/{name}": c for kind in kinds for name, c in {"registered": {}, **made[kind](quick)}.items()}


# ---- computing and comparing -----------------------------------------------------------------------------------------


def digests_of(checkout: Path, cases: Mapping[str, Case]) -> dict[str, str]:
    """Run the probe on a checkout, in a process of its own."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="compare-commits-") as scratch:
        own = {"PYTHONPATH": str(checkout), "FEDAGENTGYM_CACHE": f"{scratch}/cache", "PYTHONHASHSEED": "0"}
        own |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "HF_HUB_OFFLINE"), "1")
        kept = {name: value for name, value in os.environ.items() if name != "FEDAGENTGYM_DATA"}
        done = subprocess.run(
            [sys.executable, "-P", str(PROBE), str(checkout)],
            input=json.dumps(dict(cases)),
            capture_output=True,
            text=True,
            cwd=scratch,
            env={**kept, **own, "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
    if done.returncode:
        sys.exit(f"the probe of {checkout} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, str] = json.loads(done.stdout)
    say(f"{checkout}: {len(found)} digests of {len(cases)} cases in {time.monotonic() - started:.0f} s")
    return found


def describe_difference(name: str, here: str | None, other: str | None) -> str | None:
    """The difference; None if two digests are equal."""
    if here == other and not str(here).startswith("failed"):
        return None
    if here is None or other is None:
        text = here or other or ""
        what = "only in the other one" if here is None else "only here"
        return f"{what} ({text})" if text.startswith("failed") else what
    if name.endswith("/registered") or here.startswith("failed"):
        return f"here {here}; there {other}"
    return "different"


def find_reason(name: str) -> str | None:
    """The reason why a digest may differ, if there is one."""
    return next((reason for pattern, reason in REASONS.items() if fnmatchcase(name, pattern)), None)


def compare(here: Mapping[str, str], other: Mapping[str, str]) -> int:
    """Print a line for each case that differs, the reasons, and the sums; returns how many digests differ without a reason."""
    names = sorted({*here, *other})
    found = {name: describe_difference(name, here.get(name), other.get(name)) for name in names}
    differences = {name: text for name, text in found.items() if text is not None}
    explained = {name: reason for name in differences if (reason := find_reason(name)) is not None}
    for case, parts in groupby(differences, key=lambda name: "/".join(name.split("/")[:2])):
        told = [
            f"{name.removeprefix(case).lstrip('/') or 'names'}: {differences[name]}"
            for name in parts
            if name not in explained
        ]
        if told:
            say(f"  {case:<36} {'; '.join(told)}")
    for reason, count in Counter(explained.values()).items():
        say(f"  {count} differ: {reason}")
    wrong = len(differences) - len(explained)
    equal = len(found) - len(differences)
    say(f"{equal} equal, {len(explained)} different for a reason, {wrong} different, failed, or only in one")
    return wrong


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="another checkout, or a file that --save wrote")
    parser.add_argument("--quick", action="store_true", help="fewer cases: every registered name once")
    parser.add_argument(
        "--only", default=",".join(KINDS), help="kinds or patterns of cases, such as 'splits,methods/fed*'"
    )
    parser.add_argument("--save", type=Path, help="write the digests of this checkout to a file")
    chosen = parser.parse_args()
    patterns = [f"{one}/*" if one in KINDS else one for one in chosen.only.split(",")]
    cases = {
        name: case
        for name, case in all_cases(KINDS, chosen.quick).items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not cases:
        parser.error(f"--only {chosen.only} names no case of {', '.join(KINDS)}")
    if chosen.other.is_file():
        stored = json.loads(chosen.other.read_text("utf-8"))
        other = {name: value for name, value in stored.items() if "/".join(name.split("/")[:2]) in cases}
    elif (chosen.other / "fedagentgym" / "__init__.py").is_file():
        other = digests_of(chosen.other.resolve(), cases)
    else:
        parser.error(f"{chosen.other} is neither a checkout nor a file of digests")
    here = digests_of(HERE, cases)
    if chosen.save is not None:
        chosen.save.write_text(json.dumps(here, indent=1, sort_keys=True) + "\n", "utf-8")
    sys.exit(1 if compare(here, other) else 0)


if __name__ == "__main__":
    main()
