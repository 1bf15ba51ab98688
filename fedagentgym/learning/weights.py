"""The weights of a learner, on a model that several learners share.

One model is in memory, and it holds the weights of one learner at a time. Whoever loads other weights first lets the present
owner save its own (`TrainablePolicy.claim`); the owner loads them again with `acquire` when it is used next. So a learner
never computes with another's weights, and nothing is copied as long as one learner is used at a time.

The optimizer updates the model's own parameters, or float32 masters if the model has a narrower dtype: bfloat16 has eight bits,
a step of 1e-6 on a weight of 0.02 rounds to nothing, and a run would not move. The masters are what a learner sends and stores.

Tensors may be sharded over several devices. Then every rank calls these functions in the same order; only rank 0's arrays
matter, the others pass and receive placeholders of the same shape, so that a machine holds each array once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.agents.protocols import WeightOwner
from fedagentgym.base.errors import DataError

Arrays = Mapping[str, NDArray[Any]]
Tensors = dict[str, Tensor]
NARROW_DTYPES = (torch.bfloat16, torch.float16)


class TrainedModel(Protocol):
    """The part of a `TrainablePolicy` that a learner uses."""

    model: torch.nn.Module
    device: torch.device

    def parameters(self) -> dict[str, torch.nn.Parameter]: ...

    def get_weights(self) -> dict[str, NDArray[Any]]: ...

    def set_weights(self, weights: Arrays) -> None: ...

    def bump_version(self) -> None: ...

    def claim(self, owner: WeightOwner | None = None) -> None: ...


class OwnedWeights:
    """The trainable parameters of one learner, in full precision.

    `values` are the unrounded values of a narrow model, which already holds their rounded values.
    """

    def __init__(self, policy: TrainedModel, values: Arrays | None = None) -> None:
        self._policy = policy
        policy.claim(self)
        self._parameters = policy.parameters()
        self._narrow = [name for name, value in self._parameters.items() if value.dtype in NARROW_DTYPES]
        self._saved: Tensors | None = None
        self.full: Tensors = dict(self._parameters)
        """What the optimizer updates; valid while the model holds these weights."""
        for name in self._narrow:
            parameter = self._parameters[name]
            self.full[name] = (
                parameter.detach().float().clone()
                if values is None
                else to_tensor_like(values[name], parameter, torch.float32)
            )

    def save_weights(self) -> None:
        """Copy what only the model holds: another owner's weights are about to be loaded."""
        wide = (name for name in self._parameters if name not in self._narrow)
        self._saved = {name: self._parameters[name].detach().clone() for name in wide}

    @torch.no_grad()
    def acquire(self) -> None:
        """Load these weights into the model again, if it holds others."""
        if self._saved is None:
            return
        self._policy.claim(self)
        for name, value in self._saved.items():
            self._parameters[name].copy_(value)
        self._saved = None
        self.copy_to_model()
        self._policy.bump_version()

    def copy_gradients_from_model(self) -> None:
        """Copy the gradients of narrow parameters to their masters."""
        for name in self._narrow:
            gradient = self._parameters[name].grad
            self.full[name].grad = None if gradient is None else gradient.float()
            self._parameters[name].grad = None

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Round the masters into the model."""
        for name in self._narrow:
            self._parameters[name].copy_(self.full[name])

    def clone(self) -> Tensors:
        """Copies as tensors, wherever the weights are."""
        return {name: value.detach().clone() for name, value in self._read().items()}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Copies as plain arrays, wherever the weights are."""
        return {name: to_array(value) for name, value in self._read().items()}

    def _read(self) -> Tensors:
        return self.full if self._saved is None else {**self.full, **self._saved}


def to_array(tensor: Tensor) -> NDArray[Any]:
    """A copy of a tensor's values, gathered."""
    plain: Any = tensor.detach()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()  # numpy has no such type; nothing is lost
    array: NDArray[Any]
    if not is_sharded(plain):
        array = plain.cpu().numpy().copy()
        return array
    whole = plain.full_tensor()
    if torch.distributed.get_rank() != 0:
        shape, dtype = tuple(plain.shape), torch.zeros((), dtype=plain.dtype).numpy().dtype
        return np.broadcast_to(np.zeros((), dtype=dtype), shape)  # a placeholder that takes no memory
    array = whole.cpu().numpy()
    return array if plain.device.type != "cpu" else array.copy()


def to_tensor_like(array: NDArray[Any], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of an array's values, distributed like another tensor of its shape."""
    kind = dtype or like.dtype
    if not is_sharded(like):
        return torch.from_numpy(np.array(array)).to(device=like.device, dtype=kind)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    mesh = sharded.device_mesh
    if torch.distributed.get_rank() == 0:
        whole = torch.from_numpy(np.array(array)).to(device=mesh.device_type, dtype=kind)
    else:
        whole = torch.empty(tuple(like.shape), dtype=kind, device=mesh.device_type)
    placed: Tensor = distribute_tensor(whole, mesh, sharded.placements, src_data_rank=0).to(like.device)
    return placed


def to_parameter_tensors(arrays: Arrays, parameters: Tensors) -> Tensors:
    """Tensors like the parameters with other values, such as those of a reference."""
    if set(arrays) != set(parameters):
        odd = min(set(arrays) ^ set(parameters))
        raise DataError(f"reference weights do not belong to this model: parameter {odd!r} is on one side only")
    return {name: to_tensor_like(arrays[name], value) for name, value in parameters.items()}


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a shard."""
    return hasattr(tensor, "full_tensor")
