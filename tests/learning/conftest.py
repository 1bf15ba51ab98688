"""A small random language model behind the policy protocol, and trajectories made of random tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.protocols import SharedModel
from fedagentgym.learning.trajectory import Segment, Trajectory, Turn

VOCABULARY = 23


class ToyPolicy(SharedModel):
    """A `TrainablePolicy` as far as learning looks at it."""

    name = "toy"
    context_length = 64

    def __init__(self, seed: int = 0, layers: int = 2) -> None:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        config = Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.5,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = Qwen2ForCausalLM(config).eval()
        self.device = torch.device("cpu")
        self.version = 0

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: value.detach().float().numpy().copy() for name, value in self.parameters().items()}

    def set_weights(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.claim()
        with torch.no_grad():
            for name, value in self.parameters().items():
                value.copy_(torch.from_numpy(np.array(weights[name])))
        self.version += 1

    def bump_version(self) -> None:
        self.version += 1


@pytest.fixture
def policy() -> ToyPolicy:
    return ToyPolicy()


def random_segment(random: np.random.Generator, turns: list[int], prompt: int, shift: float = 0.3) -> Segment:
    """A session segment: a prompt, then replies of the given lengths with observations of two tokens between them."""
    ids, mask = [], []
    for index, size in enumerate(turns):
        between = 0 if index == 0 else 2
        ids += random.integers(VOCABULARY, size=between + size).tolist()
        mask += [False] * between + [True] * size
    logprobs = np.where(mask, -np.log(VOCABULARY) + shift * random.standard_normal(len(mask)), 0.0)
    return Segment(
        random.integers(VOCABULARY, size=prompt).astype(np.int32),
        np.array(ids, dtype=np.int32),
        np.array(mask, dtype=np.bool_),
        logprobs.astype(np.float32),
    )


def random_trajectory(random: np.random.Generator, task: str = "toy/train/00000", sample: int = 0) -> Trajectory:
    sizes = random.integers(1, 5, size=random.integers(1, 4)).tolist()
    turns = tuple(
        Turn(
            f"sight {random.integers(3)}",
            "a b c",
            ("a",),
            float(random.random()),
            True,
            True,
            {"format": 1.0},
            0.0,
            size,
        )
        for size in sizes
    )
    segment = random_segment(random, sizes, int(random.integers(2, 6)))
    return Trajectory(task, 1, turns, (segment,), "kind", sample, score=float(random.random()))


@pytest.fixture
def make_groups() -> Callable[..., list[tuple[Trajectory, ...]]]:
    def make(count: int = 2, size: int = 4, seed: int = 0) -> list[tuple[Trajectory, ...]]:
        random = np.random.default_rng(seed)
        return [
            tuple(random_trajectory(random, f"toy/train/{group:05d}", sample) for sample in range(size))
            for group in range(count)
        ]

    return make
