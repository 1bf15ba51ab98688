"""Muon on matrices of which each rank holds some rows: a matrix is gathered, updated as a whole, and split again.

Muon orthogonalises a matrix's momentum, for which it needs the whole matrix: on a part it would be another step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedagentgym.learning.weights import is_sharded


def make_muon(matrices: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
    """Muon without decay, for whole matrices or for parts."""
    if any(is_sharded(matrix) for matrix in matrices):
        return ShardedMuon(matrices, rate)
    return torch.optim.Muon(list(matrices), lr=rate, weight_decay=0.0)


class ShardedMuon(torch.optim.Optimizer):
    """`torch.optim.Muon`, one matrix after the other; each rank keeps its part of the momentum."""

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
