"""Every method of the papers on the whole machinery: two runs alike, resumed alike, and (slow) in worker processes alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedagentgym.algorithms.base import BaseAlgorithm
from fedagentgym.base.settings import merge
from fedagentgym.experiment.run import RunResult, train
from fedagentgym.testing import check_algorithm
from fedagentgym.testing.runs import SMALL_CONFIG

ROLES = {"partition": {"roles": {"public": 8, "auxiliary": 8, "server": 8}}}
SPEAKING = {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}}
ADAPTER = {"agent": {**SPEAKING, "adapter": {"rank": 2, "alpha": 4.0}}}
OWN = {"name": "gae", "head": "own"}
VALUES = {"advantage": "gae", "tasks_per_step": 6, "group_size": 1}
UNLIKE = [
    {"name": "untrained-tiny"},
    {"name": "untrained-tiny", "decoding": {"max_new_tokens": 6}},
]
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fedmoa": (
        "fedmoa",
        {"local_steps": 3, "objectives": [["accuracy", "length"], ["accuracy/guess"]], "hypergradient": "cosine"},
        {},
    ),
    "pubswap": ("pubswap", {"local_steps": 5, "swap_period": 2, "public_tasks": 2}, ROLES),
    "pubswap, random and donor": (
        "pubswap",
        {"local_steps": 2, "swap_period": 1, "public_tasks": 2, "swap": "random", "behaviour": "donor"},
        ROLES,
    ),
    "hacpo": ("hacpo", {"local_steps": 3, "swap_period": 2, "public_tasks": 2}, ROLES),
    "hacpo, unlike agents": ("hacpo", {"local_steps": 1, "public_tasks": 2, "agents": UNLIKE}, ROLES),
    "swarm": ("swarm", {"local_steps": 2, "public_tasks": 3, "local": 2, "external": 2}, ROLES),
    "fedgrpo": ("fedgrpo", {"scorer": "reward_model", "neighbours": 3, "expert_steps": 1, "expert_refresh": 1}, ROLES),
    "fedpetuning": ("fedpetuning", {"local_steps": 2}, ADAPTER),
    "fedpetuning, sft": ("fedpetuning", {"local_steps": 2, "objective": "sft"}, ADAPTER),
    "scaffold": ("scaffold", {"local_steps": 2}, {"learning": {"keep_optimizer": True}}),
    "feddyn": ("feddyn", {"local_steps": 2}, {"learning": {"optimizer": "sgd", "gradient_clip": None}}),
    "fedit": ("fedit", {"local_steps": 2}, ADAPTER),
    "ffa-lora": ("ffa-lora", {"local_steps": 2}, merge(ADAPTER, {"agent": {"adapter": {"train": "B"}}})),
    "fedsa-lora": ("fedsa-lora", {"local_steps": 2}, ADAPTER),
    "fedsa-lora, share B": ("fedsa-lora", {"local_steps": 2, "share": "B"}, ADAPTER),
    "flexlora": ("flexlora", {"local_steps": 2, "ranks": [1, 2], "init": "each"}, ADAPTER),
    "fedex-lora": ("fedex-lora", {"local_steps": 2, "server_momentum": 0.5}, ADAPTER),
    "flora": ("flora", {"local_steps": 2}, ADAPTER),
    "flora, first draw": ("flora", {"local_steps": 2, "draw": "first", "weights": "tasks"}, ADAPTER),
    "ram": ("ram", {"local_steps": 2, "strength": 0.1}, ADAPTER),
    "fgrpo": ("fgrpo", {"local_steps": 2, "temperature": 0.1}, {}),
    "es": ("es", {"population": 4, "antithetic": True, "sigma": 0.02, "rate": 0.02}, {}),
    "fedprox, value head": ("fedprox", {"local_steps": 2}, {"learning": VALUES}),
    "fedprox, value heads": ("fedprox", {"local_steps": 2}, {"learning": {**VALUES, "advantage": OWN}}),
    "local-all": ("local-all", {"local_steps": 2}, {}),
    "personal-head": ("personal-head", {"local_steps": 2}, {"learning": {"keep_optimizer": True}}),
    "personal-layers": ("personal-layers", {"local_steps": 2, "layers": ["model.layers.0.*"]}, {}),
    "personal-adapter": ("personal-adapter", {"local_steps": 2, "personal_rank": 1}, ADAPTER),
    "fedavg-finetune": (  # its card rounds a round's share down: exact where the number of clients can be halved
        "fedavg-finetune",
        {"local_steps": 2, "finetune_steps": 1, "finetune_every": 2},
        {"partition": {"clients": 4}},
    ),
    "clustered": ("clustered", {"local_steps": 2, "split_below": 1.0, "largest_cosine": 1.0}, {}),
    "dpsda-fl": ("dpsda-fl", {"candidates": 20, "synthetic_tasks": 10, "iterations": 2, "secret": False}, {}),
    "dpsda-fl, sft": (
        "dpsda-fl",
        {"candidates": 20, "synthetic_tasks": 10, "objective": "sft", "secret": False},
        {"agent": SPEAKING},
    ),
}


def check(run: str, workers: int) -> RunResult:
    name, settings, config = RUNS[run]
    return check_algorithm(name, config=config, workers=workers, **settings)


@pytest.mark.by_day(5)
@pytest.mark.parametrize("run", RUNS)
def test_methods_hold_what_every_algorithm_must(run: str) -> None:
    found = check(run, workers=0)
    assert (found.record["spent"]["optimizer_steps"] > 0) == (run != "es"), "what learns nothing ends alike in any case"
    first, *_, last = [point["policy"] for point in found.record["curve"]]
    assert (first == last) == (RUNS[run][0] in ("local-all", "hacpo", "swarm")), "these train no policy at the server"
    if run == "pubswap":  # 2 rounds x 2 clients x (3 private and 2 public steps) x 2 tasks x 3 answers
        assert found.record["spent"]["episodes"] == 2 * 2 * (3 + 2) * 2 * 3


LENGTH, SAMPLED = 900_000, 5
"""The length of a long observation, and the number of episodes of which a client returns so long ones."""


@pytest.mark.by_day(3)
@pytest.mark.parametrize("run", {settings[0]: run for run, settings in reversed(RUNS.items())}.values())
def test_many_long_episodes_fit_into_a_report(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever method returns sampled episodes declares a report that holds them."""
    sample, sampled = BaseAlgorithm.sample_episodes, 0

    def lengthen(*given: Any) -> list[dict[str, Any]]:
        nonlocal sampled
        found = sample(*given)
        for one in found:
            one["turns"][0]["observation"] = "a" * LENGTH
        sampled += len(found)
        return found

    monkeypatch.setattr(BaseAlgorithm, "sample_episodes", lengthen)
    name, settings, config = RUNS[run]
    if name == "swarm":  # a private step at the end, whose episodes are sampled
        settings = {**settings, "local_steps": 3, "swap_period": 2}
    plain = merge(merge(SMALL_CONFIG, config), {"algorithm": {"name": name, **settings}})
    output = {"folder": str(tmp_path / "run"), "sampled_episodes": SAMPLED}
    train(merge(plain, {"federation": {"rounds": 1}, "output": output}))
    assert (sampled == 0) == (name in ("fedgrpo", "dpsda-fl"))
    kept = [line for file in tmp_path.rglob("trajectories/*.jsonl") for line in file.read_text().splitlines()]
    assert sum(len(line) > LENGTH for line in kept) == sampled / settings.get("population", 1)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_methods_give_the_same_bits_in_worker_processes(run: str) -> None:
    """A worker takes seconds to start: of the ordinary tests, FedAgent's has one."""
    check(run, workers=1)
