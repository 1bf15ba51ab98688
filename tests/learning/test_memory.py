"""The settings that decide how many tokens go through a model at a time, and those that must not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from fedagentgym.agents.protocols import Decoding
from fedagentgym.base.errors import OptionError
from fedagentgym.base.rounding import format_bytes
from fedagentgym.learning import memory
from fedagentgym.learning.learner import PolicyUpdate
from fedagentgym.learning.memory import estimate_token_bytes, find_pass_limits
from fedagentgym.learning.settings import LearningSettings, SupervisedSettings
from fedagentgym.learning.supervised import SupervisedTraining, make_examples
from fedagentgym.learning.trajectory import Trajectory, build_rows

from .conftest import ToyPolicy

CPU = torch.device("cpu")
Groups = list[tuple[Trajectory, ...]]


class Sizes:
    """A model as far as its memory is estimated."""

    def __init__(self, hidden: int, layers: int, inner: int, heads: int) -> None:
        self.config = LlamaConfig(
            hidden_size=hidden, num_hidden_layers=layers, intermediate_size=inner, num_attention_heads=heads
        )


TINY, SMALL, LARGE = Sizes(64, 2, 128, 4), Sizes(576, 30, 1536, 9), Sizes(4096, 32, 14336, 32)


def test_the_number_of_tokens_falls_with_the_models_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "read_free_bytes", lambda device: 1 << 40)
    tiny, small, large = (find_pass_limits(model, CPU, "auto") for model in (TINY, SMALL, LARGE))
    assert tiny.micro_tokens == memory.MAX_TOKENS["cpu"] and large.micro_tokens == memory.MIN_TOKENS
    assert small.micro_tokens == small.kept == memory.CPU_BUDGET // estimate_token_bytes(SMALL)
    assert large.kept < large.micro_tokens


@pytest.mark.parametrize("heads", [3, 9])
def test_keys_and_values_that_may_not_fit_are_warned_of(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Sizes(576, 30, 1536, 9)
    model.config.num_key_value_heads = heads
    needed = 64 * 8192 * 30 * 2 * heads * 64 * 4  # keys and values of every block, in single precision
    monkeypatch.setattr(memory, "_read_free", lambda: needed)
    assert memory.describe_caches(model, 8192, 64) is None
    monkeypatch.setattr(memory, "_read_free", lambda: needed - 1)
    said = memory.describe_caches(model, 8192, 64)
    assert said is not None and f"64 episodes at a time of up to 8,192 tokens may need {format_bytes(needed)}" in said
    assert memory.describe_caches(model, 4096, 64) is None and memory.describe_caches(model, 8192, 8) is None


@pytest.mark.parametrize("told", ["auto", 512])
def test_free_memory_decides_what_is_kept_and_nothing_else(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    found = []
    for free in (0, 10 * estimate_token_bytes(SMALL), 1 << 40):
        monkeypatch.setattr(memory, "read_free_bytes", lambda device, free=free: free)
        found.append(find_pass_limits(SMALL, CPU, told))
    assert [limits.kept for limits in found[:2]] == [0, 10] and found[2].kept > 10
    assert len({limits.micro_tokens for limits in found}) == 1
    assert told == "auto" or found[2].micro_tokens == 512


def test_a_step_has_the_same_bits_whatever_memory_is_free(
    monkeypatch: pytest.MonkeyPatch, make_groups: Callable[..., Groups]
) -> None:
    groups, weights = make_groups(2, 4), []
    rows = build_rows(groups, [tuple(np.full(len(t.turns), t.score - 0.5) for t in group) for group in groups])
    for free in (0, 1 << 40):
        monkeypatch.setattr(memory, "read_free_bytes", lambda device, free=free: free)
        policy = ToyPolicy()
        PolicyUpdate(policy, Decoding(), LearningSettings(learning_rate=1e-2)).train_step(rows)
        SupervisedTraining(policy, SupervisedSettings()).train_step(make_examples([t for g in groups for t in g]))
        weights.append(policy.get_weights())
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_free_memory_is_what_the_machine_and_a_container_leave_for_each_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(memory, "_read_available", lambda: 8000)
    files = [(str(tmp_path), "memory.max", "memory.current", "inactive_file ")]
    monkeypatch.setattr(memory, "_GROUP_FILES", files)
    seconds = count()
    monkeypatch.setattr(memory.time, "monotonic", lambda: next(seconds))
    assert memory.read_free_bytes(CPU) == 2000
    for name, text in {
        "memory.max": "5000\n",
        "memory.current": "3000\n",
        "memory.stat": "anon 7\ninactive_file 400\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert memory.read_free_bytes(CPU) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.read_free_bytes(CPU) == 2000


def test_the_estimate_is_what_a_pass_keeps() -> None:
    """Against the tensors that autograd really keeps in a packed pass, weights not counted."""
    from transformers import LlamaForCausalLM

    from fedagentgym.agents.model import packed

    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=6, **sizes))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    ids = np.random.default_rng(0).integers(50, size=128)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        packed.compute_hidden(model, [ids], [np.arange(128)], CPU)
    real = sum(storage.nbytes() for storage in kept.values()) / 128
    assert 0.75 * real < estimate_token_bytes(model) < 1.5 * real


@pytest.mark.parametrize("wrong", [0, -1, "all"])
def test_micro_tokens_is_a_number_or_auto(wrong: Any) -> None:
    assert LearningSettings().micro_tokens == SupervisedSettings().micro_tokens == "auto"
    assert LearningSettings.load({"micro_tokens": 8}).micro_tokens == 8
    with pytest.raises(OptionError, match="micro_tokens"):
        LearningSettings.load({"micro_tokens": wrong})
