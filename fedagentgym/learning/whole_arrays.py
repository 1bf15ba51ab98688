"""Conversion between whole arrays and the tensors of a model, which may be sharded over several devices.

With shards, every rank calls these functions in the same order. Only rank 0's arrays matter; the others pass and receive
placeholders of the same shape, so that a machine holds each array once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
        return make_stand_in(tuple(plain.shape), torch.zeros((), dtype=plain.dtype).numpy().dtype)
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


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a shard."""
    return hasattr(tensor, "full_tensor")


def make_stand_in(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of that shape which takes no memory, for ranks whose values are not used."""
    return np.broadcast_to(np.zeros((), dtype=dtype), shape)
