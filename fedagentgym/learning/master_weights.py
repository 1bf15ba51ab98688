"""The parameters that the optimizer updates: the model's own, or float32 copies if the model has a narrower dtype.

bfloat16 has eight bits: a step of 1e-6 on a weight of 0.02 rounds to nothing, and a run would not move. So the steps are taken
on full-precision masters, and the model holds their rounded values. A site sends and stores the masters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from fedagentgym.learning.whole_arrays import to_array, to_tensor_like

NARROW_DTYPES = (torch.bfloat16, torch.float16)


class MasterWeights:
    """The trainable parameters of a model in full precision; `values` are the unrounded values of narrow parameters."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], values: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self.parameters = parameters
        self._narrow = [name for name, parameter in parameters.items() if parameter.dtype in NARROW_DTYPES]
        self.full: dict[str, torch.Tensor] = dict(parameters)
        for name in self._narrow:
            parameter = parameters[name]
            self.full[name] = (
                parameter.detach().float().clone()
                if values is None
                else to_tensor_like(values[name], parameter, torch.float32)
            )

    def copy_gradients_from_model(self) -> None:
        """Copy the gradients of narrow parameters to their masters."""
        for name in self._narrow:
            gradient = self.parameters[name].grad
            self.full[name].grad = None if gradient is None else gradient.float()
            self.parameters[name].grad = None

    def copy_weights_to_model(self) -> None:
        """Round the masters into the model."""
        with torch.no_grad():
            for name in self._narrow:
                self.parameters[name].copy_(self.full[name])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Copies as plain arrays."""
        return {name: to_array(value) for name, value in self.full.items()}

    def clone_tensors(self) -> dict[str, torch.Tensor]:
        """Copies as tensors."""
        return {name: value.detach().clone() for name, value in self.full.items()}
