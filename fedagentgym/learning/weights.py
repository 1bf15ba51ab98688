"""The weights of a learner, on a model that several learners share, and the optimizers that update them.

One model is in memory, and it holds the weights of one learner at a time. Before other weights are loaded, the present owner
saves its own (`TrainablePolicy.claim`); it loads them again with `acquire` when it is used next. So a learner never computes
with another's weights, and nothing is copied as long as only one learner is used.

The optimizer updates the model's own parameters, or float32 masters if the model has a narrower dtype. In bfloat16, with eight
significant bits, a step of 1e-6 on a weight of 0.02 would round to nothing, and the weights would not move. A learner sends and
stores the masters.

Tensors may be sharded over several devices. Then every rank calls these functions in the same order, with the same arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.agents.model.names import VALUE_HEAD
from fedagentgym.agents.model.policy import to_array
from fedagentgym.agents.protocols import TrainablePolicy
from fedagentgym.base.errors import DataError
from fedagentgym.learning.advantages import GAE
from fedagentgym.learning.settings import LearningSettings

Arrays = Mapping[str, NDArray[Any]]
Tensors = dict[str, Tensor]
NARROW_DTYPES = (torch.bfloat16, torch.float16)


class OwnedWeights:
    """The trainable parameters of one learner, in full precision.

    `values` are weights in full precision for a model of a narrow dtype, which already holds them rounded.
    """

    def __init__(self, policy: TrainablePolicy, values: Arrays | None = None) -> None:
        self._policy = policy
        policy.claim(self)
        self._parameters = policy.parameters()
        self._narrow = [name for name, value in self._parameters.items() if value.dtype in NARROW_DTYPES]
        self._saved: Tensors | None = None
        self._base: Arrays | None = getattr(policy, "base_changes", None)
        self.full: Tensors = dict(self._parameters)
        """The tensors that the optimizer updates; valid while the model holds these weights."""
        for name in self._narrow:
            parameter = self._parameters[name]
            self.full[name] = (
                parameter.detach().float().clone()
                if values is None
                else to_tensor_like(values[name], parameter, torch.float32)
            )

    def save_weights(self) -> None:
        """Copy the weights that only the model holds, since another owner's weights are about to be loaded."""
        wide = (name for name in self._parameters if name not in self._narrow)
        self._saved = {name: self._parameters[name].detach().clone() for name in wide}

    @torch.no_grad()
    def acquire(self) -> None:
        """Load these weights into the model again, if it holds others."""
        if self._saved is None:
            return
        self._policy.claim(self)
        if self._base is not None:
            self._policy.set_base(self._base)  # type: ignore[attr-defined]
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
        """Copies as tensors, also while the model holds other weights."""
        return {name: value.detach().clone() for name, value in (self.full | (self._saved or {})).items()}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Copies as plain arrays, also while the model holds other weights."""
        return {name: to_array(value) for name, value in (self.full | (self._saved or {})).items()}


def to_tensor_like(array: NDArray[Any], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of an array's values, distributed like another tensor of its shape."""
    kind = dtype or like.dtype
    if not is_sharded(like):
        return torch.from_numpy(np.array(array)).to(device=like.device, dtype=kind)

    sharded: Any = like
    whole = torch.from_numpy(np.array(array)).to(device=sharded.device_mesh.device_type, dtype=kind)
    return _part(whole, sharded).to(like.device)


def to_parameter_tensors(arrays: Arrays, parameters: Tensors) -> Tensors:
    """Tensors like the parameters with other values, such as those of a reference."""
    if set(arrays) != set(parameters):
        unmatched = min(set(arrays) ^ set(parameters))
        raise DataError(f"reference weights do not belong to this model: parameter {unmatched!r} is on one side only")
    return {name: to_tensor_like(arrays[name], value) for name, value in parameters.items()}


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a shard."""
    return hasattr(tensor, "full_tensor")


_MOMENTS = ("exp_avg", "exp_avg_sq")
_COUNTS = "counts"


class Optimizer(Protocol):
    """The part of an optimizer of torch that is used here."""

    param_groups: list[dict[str, Any]]
    defaults: dict[str, Any]
    state: Any

    def zero_grad(self) -> None: ...

    def step(self) -> Any: ...


MAX_TOGETHER = 1 << 19
"""About the number of values that are stepped in one call, which needs a temporary copy of them."""


class AdamW:
    """The same as `torch.optim.AdamW`, to the bit, in a few calls for all parameters. A small model's step takes half the time.
    The first use of torch's class also imports torch's compiler, which takes 1.5 seconds."""

    epsilon = 1e-8

    def __init__(self, groups: Sequence[dict[str, Any]], betas: tuple[float, float], decay: float) -> None:
        self.param_groups: list[dict[str, Any]] = [dict(group) for group in groups]
        self.defaults: dict[str, Any] = {"lr": self.param_groups[0]["lr"]}
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._betas, self._decay = betas, decay

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for value in group["params"]:
                value.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient; those of a group with the same number of steps are updated together."""
        first, second = self._betas
        for group in self.param_groups:
            rate = group["lr"]
            together: dict[tuple[float, int], list[Tensor]] = {}
            filled = 0
            for value in group["params"]:
                if value.grad is not None:
                    if value not in self.state:
                        self.state[value] = {"step": 0.0, **{name: torch.zeros_like(value) for name in _MOMENTS}}
                    state = self.state[value]
                    state["step"] = float(state["step"]) + 1
                    filled += value.numel()
                    together.setdefault((state["step"], filled // MAX_TOGETHER), []).append(value)
            for (count, _), values in together.items():
                gradients = [value.grad for value in values if value.grad is not None]
                means, squares = ([self.state[value][name] for value in values] for name in _MOMENTS)
                torch._foreach_mul_(values, 1 - rate * self._decay)
                torch._foreach_lerp_(means, gradients, 1 - first)
                torch._foreach_mul_(squares, second)
                torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
                roots = torch._foreach_sqrt(squares)
                torch._foreach_div_(roots, (1 - second**count) ** 0.5)
                torch._foreach_add_(roots, self.epsilon)
                torch._foreach_addcdiv_(values, means, roots, value=-(rate / (1 - first**count)))


def make_optimizer(parameters: Mapping[str, Tensor], settings: LearningSettings) -> Optimizer:
    """The configured optimizer, still without moments. A value head is a group of its own, with its own learning rate."""
    values, head = list_groups(parameters)
    rates = list_rates(settings)
    groups: list[dict[str, Any]] = [
        {"params": part, "lr": rate} for part, rate in zip((values, head), rates, strict=False)
    ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    if all(value.device.type == "cpu" and not is_sharded(value) for value in values):
        return AdamW(groups, settings.betas, settings.weight_decay)
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )


def list_rates(settings: LearningSettings) -> list[float]:
    """The unscheduled learning rate of each group of parameters: the model's, and with `gae` the value head's."""
    head = [settings.advantage.learning_rate] if isinstance(settings.advantage, GAE) else []
    return [settings.learning_rate, *head]


def list_groups(parameters: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of the model, and those of its value head."""
    head = [value for name, value in parameters.items() if name.startswith(VALUE_HEAD)]
    return [value for name, value in parameters.items() if not name.startswith(VALUE_HEAD)], head


def get_moments(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Both moments of every parameter and the number of its steps; empty before the first step and for SGD, which has none."""
    known = {name: optimizer.state[value] for name, value in parameters.items() if optimizer.state.get(value)}
    if not known:
        return {}
    arrays = {
        f"{moment}/{name}": to_array(state[moment].float()) for name, state in known.items() for moment in _MOMENTS
    }
    return arrays | {_COUNTS: np.array([float(known[name]["step"]) if name in known else 0.0 for name in parameters])}


def load_moments(optimizer: Optimizer, parameters: Mapping[str, Tensor], arrays: Mapping[str, NDArray[Any]]) -> None:
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


MOMENTUM = "momentum_buffer"
"""The name of Muon's momentum, in the optimizer's state and in arrays."""


def get_momenta(optimizer: Optimizer, matrices: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Muon's momentum of every matrix; empty before the first step."""
    known = {name: optimizer.state[value] for name, value in matrices.items() if optimizer.state.get(value)}
    return {f"{MOMENTUM}/{name}": to_array(state[MOMENTUM].float()) for name, state in known.items()}


def load_momenta(optimizer: Optimizer, matrices: Mapping[str, Tensor], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Load Muon's momentum of an earlier optimizer into a new one."""
    for name, matrix in matrices.items():
        if (array := arrays.get(f"{MOMENTUM}/{name}")) is not None:
            optimizer.state[matrix] = {MOMENTUM: to_tensor_like(array, matrix)}


def make_muon(matrices: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
    """Muon without weight decay, for whole matrices or for sharded ones."""
    if any(is_sharded(matrix) for matrix in matrices):
        return ShardedMuon(matrices, rate)
    return torch.optim.Muon(list(matrices), lr=rate, weight_decay=0.0)


class ShardedMuon(torch.optim.Optimizer):
    """`torch.optim.Muon` for sharded matrices: each in turn is gathered, updated as a whole, and split again.

    Muon orthogonalises a matrix's momentum, so its step on a part of the matrix would be another one. Each rank keeps its part
    of the momentum.
    """

    def __init__(self, matrices: Sequence[Tensor], rate: float) -> None:
        super().__init__(list(matrices), {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix: each rank computes the step of the whole matrix and keeps its part."""
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
