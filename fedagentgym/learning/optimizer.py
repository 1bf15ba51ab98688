"""AdamW over a policy's trainable parameters, its state as plain arrays, and the learning rate over the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.learning.settings import LearningSettings, ScheduleSettings

if TYPE_CHECKING:
    import torch

_MOMENTS = ("exp_avg", "exp_avg_sq")
_COUNTS = "counts"


def make_adamw(parameters: Mapping[str, torch.Tensor], settings: LearningSettings) -> torch.optim.AdamW:
    """A fresh optimizer: no moments yet."""
    import torch

    return torch.optim.AdamW(
        list(parameters.values()), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )


def get_moments(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    """Both moments of every parameter and the number of steps taken; empty before the first step."""
    from fedagentgym.learning.weights import to_array

    known = {name: optimizer.state[value] for name, value in parameters.items() if value in optimizer.state}
    if not known:
        return {}
    arrays = {
        f"{moment}/{name}": to_array(state[moment].float()) for name, state in known.items() for moment in _MOMENTS
    }
    return arrays | {_COUNTS: np.array([float(known[name]["step"]) if name in known else 0.0 for name in parameters])}


def load_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Load the moments of an earlier optimizer into a new one."""
    import torch

    from fedagentgym.learning.weights import to_tensor_like

    counts = arrays.get(_COUNTS)
    if counts is None or len(counts) != len(parameters):
        raise DataError("the optimizer state does not belong to this model: it has another number of parameters")
    for (name, parameter), count in zip(parameters.items(), counts, strict=True):
        if count == 0:
            continue
        state: dict[str, Any] = {"step": torch.tensor(float(count))}
        for moment in _MOMENTS:
            array = arrays.get(f"{moment}/{name}")
            if array is None or array.shape != tuple(parameter.shape):
                raise DataError(f"the optimizer state does not belong to this model: {moment} of {name!r}")
            state[moment] = to_tensor_like(array, parameter)
        optimizer.state[parameter] = state


def learning_rate_factor(schedule: ScheduleSettings, step: int, run_steps: int | None) -> float:
    """The factor of the learning rate at a run-wide step.

    >>> [learning_rate_factor(ScheduleSettings(name="linear", steps=4), step, None) for step in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    end = schedule.steps if schedule.steps is not None else run_steps
    if schedule.name == "constant" or end is None or end <= schedule.warmup:
        return 1.0
    done = min(1.0, (step - schedule.warmup) / (end - schedule.warmup))
    shape = 1 - done if schedule.name == "linear" else (1 + math.cos(math.pi * done)) / 2
    return schedule.floor + (1 - schedule.floor) * shape
