"""The optimizers of a learner: AdamW with its moments as plain arrays, plain gradient descent, and Muon for imitation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.base.errors import DataError
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.weights import is_sharded, to_array, to_tensor_like

_MOMENTS = ("exp_avg", "exp_avg_sq")
_COUNTS = "counts"


def make_optimizer(parameters: Mapping[str, Tensor], settings: LearningSettings) -> torch.optim.Optimizer:
    """The configured optimizer, fresh: no moments yet."""
    values = list(parameters.values())
    if settings.optimizer == "sgd":
        return torch.optim.SGD(values, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(
        values, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )


def get_moments(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Both moments of every parameter and the number of steps taken; empty before the first step, and if there are none."""
    known = {name: optimizer.state[value] for name, value in parameters.items() if optimizer.state.get(value)}
    if not known:
        return {}
    arrays = {
        f"{moment}/{name}": to_array(state[moment].float()) for name, state in known.items() for moment in _MOMENTS
    }
    return arrays | {_COUNTS: np.array([float(known[name]["step"]) if name in known else 0.0 for name in parameters])}


def load_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Load the moments of an earlier optimizer into a new one."""
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


def make_muon(matrices: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
    """Muon without decay, for whole matrices, or for parts of which each rank holds some rows."""
    if any(is_sharded(matrix) for matrix in matrices):
        return ShardedMuon(matrices, rate)
    return torch.optim.Muon(list(matrices), lr=rate, weight_decay=0.0)


class ShardedMuon(torch.optim.Optimizer):
    """`torch.optim.Muon`, one matrix after the other, each gathered, updated as a whole, and split again.

    Muon orthogonalises a matrix's momentum: on a part of the matrix it would be another step. Each rank keeps its part of the
    momentum.
    """

    def __init__(self, matrices: Sequence[Tensor], rate: float) -> None:
        super().__init__(list(matrices), {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Every rank computes the step of the whole matrix and keeps its part."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, group["lr"])

    def _move(self, matrix: Any, rate: float) -> None:
        whole = torch.nn.Parameter(matrix.full_tensor().clone())
        whole.grad = matrix.grad.full_tensor()
        muon = torch.optim.Muon([whole], lr=rate, weight_decay=0.0)
        state = self.state[matrix]
        if state:
            muon.state[whole] = {name: part.full_tensor().clone() for name, part in state.items()}
        muon.step()  # type: ignore[no-untyped-call]
        matrix.copy_(_part(whole.detach(), matrix))
        for name, value in muon.state[whole].items():
            state[name] = _part(value, matrix)


def _part(whole: Tensor, like: Any) -> Tensor:
    """This rank's part of a matrix that every rank has."""
    from torch.distributed.tensor import distribute_tensor

    parted: Tensor = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return parted
