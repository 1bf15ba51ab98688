"""The plan's activations against the storages that an update and a supervised step really hold at their peak."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fedagentgym.agents.engines.torch_policy import add_adapter
from fedagentgym.agents.model_shapes import KNOWN_SHAPES, ModelShape
from fedagentgym.agents.protocols import Decoding, SharedModel
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.experiment.estimate.memory import (
    PlannedAgent,
    estimate_activations,
    estimate_token_bytes,
    find_adapted_layers,
)
from fedagentgym.learning import memory
from fedagentgym.learning.settings import LearningSettings, SupervisedSettings
from fedagentgym.learning.supervised import Example, SupervisedTraining
from fedagentgym.learning.trajectory import Row
from fedagentgym.learning.update import PolicyUpdate

from .test_estimate import make_config

TEN_MILLION = ModelShape("qwen2", 384, 6, 6, 6, 64, 1_024, 500, tied=True)
GROUPED = ModelShape("qwen3", 384, 6, 6, 2, 64, 1_024, 500, tied=True)
TOLERANCE = 0.2


class StorageMeter(TorchDispatchMode):
    """Bytes of the storages that were made inside and are alive, and their greatest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {
            value.untyped_storage()._cdata for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)
        }
        for value in tree_iter(made):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if storage._cdata not in self.alive and storage._cdata not in given:
                    self.alive[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._drop, storage._cdata)
        self.peak = max(self.peak, self.now)
        return made

    def _drop(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


class LoadedModel(SharedModel, SimpleNamespace):
    """The part of a policy that an update needs."""


def make_policy(shape: ModelShape, adapter: bool, dtype: torch.dtype) -> Any:
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(make_config(shape), dtype=dtype)
    if adapter:
        model = add_adapter(model, AdapterSettings(rank=4), 0)
    policy = LoadedModel(model=model.eval(), device=torch.device("cpu"), bump_version=lambda: None)
    policy.parameters = lambda: {name: value for name, value in model.named_parameters() if value.requires_grad}
    policy.get_weights = lambda: {name: value.detach().float().numpy() for name, value in policy.parameters().items()}
    return policy


def plan_agent(shape: ModelShape, adapter: bool, dtype: torch.dtype, length: int, own: int) -> PlannedAgent:
    return PlannedAgent(
        name="random",
        model="random",
        shape=shape,
        parameters=shape.count_parameters(),
        trainable=shape.count_adapter_parameters(4, "all-linear") if adapter else shape.count_parameters(),
        adapted=find_adapted_layers("all-linear") if adapter else (),
        on_gpu=False,
        width=dtype.itemsize,
        context_length=length,
        reply_tokens=own,
        turns=1,
        rows_per_episode=1,
    )


def make_rows(count: int, length: int, own: int, vocabulary: int) -> list[Row]:
    random, nothing = np.random.default_rng(0), np.zeros(0, dtype=np.int32)
    rows = []
    for _ in range(count):
        places = np.arange(length - own, length)
        behaviour = np.full(own, -6.0, dtype=np.float32)
        rows.append(
            Row(
                random.integers(vocabulary, size=length),
                places,
                behaviour,
                random.standard_normal(own),
                nothing,
                nothing,
            )
        )
    return rows


def measure_peak(step: Callable[[], object]) -> int:
    """Of a second step, when the moments are there."""
    step()
    with StorageMeter() as meter:
        step()
    return meter.peak


CASES: tuple[Any, ...] = (
    (TEN_MILLION, False, torch.float32, {}),
    (GROUPED, False, torch.float32, {"checkpointing": True}),
    (GROUPED, True, torch.float32, {}),
    pytest.param(GROUPED, True, torch.bfloat16, {}, marks=pytest.mark.slow),
    pytest.param(GROUPED, False, torch.float32, {}, marks=pytest.mark.slow),
    pytest.param(TEN_MILLION, True, torch.float32, {}, marks=pytest.mark.slow),
    pytest.param(KNOWN_SHAPES["smollm2"], False, torch.float32, {}, marks=pytest.mark.slow),
    pytest.param(KNOWN_SHAPES["smollm2"], True, torch.float32, {"checkpointing": True}, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("shape", "adapter", "dtype", "options"), CASES)
def test_activations_of_an_update(
    shape: ModelShape, adapter: bool, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """Three passes of one row each: gradients are there while the last is computed."""
    length, own = (256, 64) if shape.layers < 10 else (384, 96)
    settings = LearningSettings.load({"micro_tokens": length, "group_size": 3, "tasks_per_step": 1, **options})
    policy, rows = make_policy(shape, adapter, dtype), make_rows(3, length, own, shape.vocabulary)
    update = PolicyUpdate(policy, Decoding(), settings)
    trained = sum(value.nbytes for value in policy.parameters().values())
    measured = measure_peak(lambda: update.train_step(rows)) - trained
    assert estimate_activations(plan_agent(shape, adapter, dtype, length, own), settings) == pytest.approx(
        measured, rel=TOLERANCE
    )


@pytest.mark.parametrize(
    "shape", [TEN_MILLION, pytest.param(KNOWN_SHAPES["smollm2"], marks=pytest.mark.slow)], ids=("10M", "135M")
)
def test_activations_of_a_supervised_step(shape: ModelShape) -> None:
    length = 256
    policy = make_policy(shape, False, torch.float32)
    training = SupervisedTraining(policy, SupervisedSettings(steps=1, batch_size=3, micro_tokens=length))
    examples = [
        Example(row.ids, np.r_[0.0, np.ones(length - 1)].astype(np.float32))
        for row in make_rows(3, length, 1, shape.vocabulary)
    ]
    trained = sum(value.nbytes for value in policy.parameters().values())
    measured = measure_peak(lambda: training.train_step(examples)) - trained
    settings = LearningSettings.load({"micro_tokens": length, "group_size": 3, "tasks_per_step": 1})
    agent = plan_agent(shape, False, torch.float32, length, length)
    assert estimate_activations(agent, settings) == pytest.approx(measured, rel=TOLERANCE)


def test_a_plan_takes_a_token_for_what_the_update_does() -> None:
    for shape in set(KNOWN_SHAPES.values()):
        assert estimate_token_bytes(shape) == memory.estimate_token_bytes(SimpleNamespace(config=make_config(shape)))
