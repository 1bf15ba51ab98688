"""Plans of updates on several devices, and the advice for a model that does not fit."""

from __future__ import annotations

import re

import pytest

from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate import plan as fit
from fedagentgym.experiment.estimate.plan import RunPlan, plan_run

SHARED = ("weights", "moments", "base model of the KL term", "gradients")


def plan(*changes: str) -> RunPlan:
    return plan_run(load_config("paper-webshop:qwen2.5-7b", ("federation.workers=0", *changes)))


def read_sizes(found: RunPlan) -> dict[str, int]:
    return {part.name: part.size for part in found.memory}


def test_each_device_holds_its_part_and_the_first_one_plays() -> None:
    alone, spread = plan("learning.checkpointing=true"), plan("learning.sharding={devices: 4}")
    one, four = read_sizes(alone), read_sizes(spread)
    for name in SHARED:
        assert four[name] == -(-one[name] // 4)
    assert four["weights put together"] == one["weights"], "all weights, for as long as the first device plays"
    for name in ("keys and values of the episodes", "activations"):
        assert four[name] == one[name]
    assert spread.devices == 4 * alone.devices
    offloaded = read_sizes(plan("learning.sharding={devices: 4, offload: true}"))
    assert not any(name in offloaded for name in SHARED)
    assert read_sizes(plan("learning.sharding={devices: 1}")) == read_sizes(plan())


def test_a_model_that_does_not_fit_is_told_how_many_devices_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "find_device_memory", lambda device: 80 * 10**9)
    with pytest.raises(OptionError, match=r"shards \(learning.sharding=.*\)") as said:
        fit.check_fit(load_config("paper-webshop:qwen2.5-7b"))
    advised = re.search(
        r"\((learning\.sharding=\{.*?\}), (federation.workers=0), torchrun --nproc-per-node \d\)", str(said.value)
    )
    assert advised is not None
    fit.check_fit(load_config("paper-webshop:qwen2.5-7b", advised.groups()))
