"""Small policies of several families, and steps that they are trained by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.agents.engines.tiny import make_tiny_model
from fedagentgym.agents.engines.torch_policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.learning.learners import open_update
from fedagentgym.learning.rows import Row, build_trajectory_rows
from fedagentgym.learning.settings import LearningSettings, ShardingSettings
from fedagentgym.learning.sharding.policy import ShardedPolicy
from fedagentgym.learning.update import PolicyUpdate
from tests.learning.conftest import random_trajectory

RATE = 2e-5
"""AdamW's steps are of this size also where a gradient is little more than rounding, and there they differ by a part of it."""
Arrays = Mapping[str, NDArray[Any]]


def make_policy(
    family: str = "Qwen2",
    *,
    adapter: bool = False,
    tied: bool = True,
    forward: Literal["auto", "own", "hf"] = "auto",
    dtype: torch.dtype = torch.float32,
) -> TorchPolicy:
    """A model of this family with random weights."""
    import transformers

    tiny, tokenizer = make_tiny_model(["go to the fridge and take an apple from it then put it on a red table"], "0.1m")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=tokenizer.size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        eos_token_id=tiny.config.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
    lora = AdapterSettings(rank=4, alpha=8.0) if adapter else None
    return TorchPolicy(model.to(dtype), tokenizer, adapter=lora, forward=forward)


def shard(policy: TorchPolicy, devices: int = 2) -> ShardedPolicy:
    return ShardedPolicy(policy, ShardingSettings(devices=devices))


def make_rows(seed: int, count: int = 7) -> list[Row]:
    """Rows of random trajectories."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    while len(rows) < count:
        trajectory = random_trajectory(random)
        rows += build_trajectory_rows(trajectory, random.standard_normal(len(trajectory.turns)))
    return rows[:count]


def open_learner(policy: Any, settings: Mapping[str, Any] | None = None, proximal: float = 0.0) -> PolicyUpdate:
    chosen = LearningSettings.load({"learning_rate": RATE, **(settings or {})}, "learning")
    return open_update(policy, Decoding(), chosen, proximal, None)


def take_steps(learner: PolicyUpdate, seeds: Sequence[int]) -> list[dict[str, float]]:
    return [learner.train_step(make_rows(seed), order=seed) for seed in seeds]


def find_difference(first: Arrays, second: Arrays) -> float:
    assert first.keys() == second.keys()
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)
