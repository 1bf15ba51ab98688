"""The plan's count of an update's memory against the tensors that a step of a small model really makes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fedagentgym.agents.model.policy import add_adapter
from fedagentgym.agents.model.shapes import ModelShape
from fedagentgym.agents.protocols import Decoding, SharedModel
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.experiment.estimate.agent import PlannedAgent
from fedagentgym.experiment.estimate.memory import list_memory_parts
from fedagentgym.learning.learner import PolicyUpdate
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Row

from .test_estimate import make_config

SHAPE = ModelShape("qwen3", 384, 6, 6, 2, 64, 1_024, 500, tied=True)
LENGTH, OWN = 256, 64
FACTOR = 1.25
"""Between what is counted and what is made, either way; `docs/how-to/estimate-a-run.md` names it."""


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


def make_policy(adapter: bool) -> Any:
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(make_config(SHAPE), dtype=torch.float32)
    if adapter:
        model = add_adapter(model, AdapterSettings(rank=4), 0)
    policy = LoadedModel(model=model.eval(), device=torch.device("cpu"), bump_version=lambda: None)
    policy.parameters = lambda: {name: value for name, value in model.named_parameters() if value.requires_grad}
    policy.get_weights = lambda: {name: value.detach().numpy().copy() for name, value in policy.parameters().items()}
    return policy


def make_rows() -> list[Row]:
    random, nothing = np.random.default_rng(0), np.zeros(0, dtype=np.int32)
    places, behaviour = np.arange(LENGTH - OWN, LENGTH), np.full(OWN, -6.0, dtype=np.float32)
    return [
        Row(random.integers(500, size=LENGTH), places, behaviour, random.standard_normal(OWN), nothing, nothing)
        for _ in range(3)
    ]


@pytest.mark.by_day(3)
@pytest.mark.parametrize("adapter", [False, True], ids=("all weights", "adapter"))
@pytest.mark.parametrize("checkpointing", [False, True], ids=("kept", "recomputed"))
def test_a_step_makes_what_is_counted(adapter: bool, checkpointing: bool) -> None:
    """The second step of three passes, so that the moments are there: gradients and activations."""
    settings = LearningSettings.load(
        {"micro_tokens": LENGTH, "group_size": 3, "tasks_per_step": 1, "checkpointing": checkpointing}
    )
    policy, rows = make_policy(adapter), make_rows()
    update = PolicyUpdate(policy, Decoding(), settings)
    update.train_step(rows)
    with StorageMeter() as meter:
        update.train_step(rows)
    trained = sum(value.numel() for value in policy.parameters().values())
    agent = PlannedAgent(
        name="random",
        model="random",
        shape=SHAPE,
        parameters=SHAPE.count_parameters(),
        trainable=trained,
        adapted=0,
        has_adapter=adapter,
        on_gpu=False,
        width=4,
        context_length=LENGTH,
        reply_tokens=OWN,
        turns=1,
        rows_per_episode=1,
    )
    parts = list_memory_parts(agent, settings, (), None)
    counted = sum(part.size for part in parts if part.phase == "updating")
    assert 1 / FACTOR < counted / meter.peak < FACTOR
    lasting = [
        *policy.model.parameters(),
        *(v for s in update._optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor) and v.ndim),
    ]
    assert sum(part.size for part in parts if part.phase == "always") == sum(value.nbytes for value in lasting)
