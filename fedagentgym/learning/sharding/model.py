"""A model of which this rank holds a part: FSDP2 gathers each decoder block when it is run, and reduces its gradient.

All ranks run the same program on the same rows. Each computes every n-th of a step's batches; a rank with fewer batches than the
others makes empty passes, since every pass gathers weights from all. Gradients are summed, so they are those of the whole step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from fedagentgym.agents.engines.torch_policy import check_weights
from fedagentgym.learning import forward
from fedagentgym.learning.log_probs import ScoredRow, TokenLogprobs, find_choices
from fedagentgym.learning.memory import PassLimits, find_pass_limits
from fedagentgym.learning.rows import Row
from fedagentgym.learning.trajectory import NO_IDS
from fedagentgym.learning.whole_arrays import to_array, to_tensor_like

Compute = Callable[[torch.nn.Module], TokenLogprobs]


class _Root(torch.nn.Module):
    """Gathers the weights outside of the blocks (embeddings, last norm, head) for the duration of a computation."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Compute) -> TokenLogprobs:
        return compute(self.model)


class ShardedModel:
    """One rank's part of a model. It is the policy of a `PolicyUpdate`, and its `Passes`, on every rank alike.

    Only rank 0's initial weights matter: the others receive their parts from there.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mesh: DeviceMesh,
        device: torch.device,
        offload: bool,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.model, self.mesh, self.device = model, mesh, device
        self.rank, self.size = mesh.get_local_rank(), mesh.size()
        self._on_change = on_change
        self._limits: dict[int | Literal["auto"], PassLimits] = {}
        whole = {name: value.detach() for name, value in model.named_parameters()}
        self._root = _shard(model, mesh, offload)
        self._parts = [module for module in self._root.modules() if isinstance(module, FSDPModule)]
        self._take_from_first_rank(whole)
        self._pass_over_nothing()

    def _take_from_first_rank(self, whole: dict[str, Tensor]) -> None:
        from torch.distributed.tensor import distribute_tensor

        with torch.no_grad():
            for name, value in self.model.named_parameters():
                part: Any = value
                given = whole.pop(name).to(self.mesh.device_type)
                sent: Any = distribute_tensor(given, self.mesh, part.placements, src_data_rank=0)
                part.to_local().copy_(sent.to_local())

    # ---- as a policy --------------------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """The trainable parameters, whole on rank 0."""
        return {name: to_array(value) for name, value in self.parameters().items()}

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        own = self.parameters()
        check_weights(weights, own)
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(to_tensor_like(weights[name], parameter))
        self.bump_version()

    def bump_version(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def get_all_weights(self) -> dict[str, NDArray[Any]]:
        """All parameters, the frozen ones too, whole on rank 0."""
        return {name: to_array(value) for name, value in self.model.named_parameters()}

    # ---- whole again, for play ----------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Gather the model. Rank 0 keeps all weights until `release`; the others only send their parts."""
        for part in self._parts:
            if self.rank == 0:
                part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
            if self.rank != 0:
                part.reshard()

    def release(self) -> None:
        """Keep only this rank's part again."""
        self._forget_passes()
        for part in self._parts:
            part.set_reshard_after_forward(True, recurse=False)

    # ---- as passes ----------------------------------------------------------------------------------------------------

    def find_limits(self, micro_tokens: int | Literal["auto"]) -> PassLimits:
        """The limits of the smallest of the devices, computed once."""
        if micro_tokens not in self._limits:
            self._limits[micro_tokens] = self._agree_on_limits(micro_tokens)
        return self._limits[micro_tokens]

    def _agree_on_limits(self, micro_tokens: int | Literal["auto"]) -> PassLimits:
        found = find_pass_limits(self.model, self.device, micro_tokens)
        least = torch.tensor(found, dtype=torch.int64, device=self.mesh.device_type)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, self.mesh.get_group())
        return PassLimits(*(int(number) for number in least.tolist()))

    def iter_batches(
        self, rows: Sequence[ScoredRow], limits: PassLimits, *, shared: bool = True
    ) -> Iterator[list[int]]:
        batches = forward.batch_rows(self.model, rows, limits.micro_tokens)
        if not shared:
            yield from batches
            return
        dealt = deal_batches(batches, [len(row.ids) for row in rows], self.size)
        yield from dealt[self.rank]
        for _ in range(len(dealt[0]) - len(dealt[self.rank])):
            self._pass_over_nothing()

    def score(
        self,
        rows: Sequence[ScoredRow],
        temperature: float = 1.0,
        entropy: bool = False,
        *,
        kept: int | None = None,
        bias: Tensor | None = None,
    ) -> TokenLogprobs:
        chosen = any(len(find_choices(row)) for row in rows)

        def compute(model: torch.nn.Module) -> TokenLogprobs:
            computed = rows if chosen else [_NOTHING]
            scores = forward.compute_logprobs(model, computed, self.device, temperature, entropy, bias=bias)
            if chosen:
                return TokenLogprobs(
                    scores.logprobs.clone(), None if scores.entropy is None else scores.entropy.clone()
                )
            nothing = scores.logprobs.sum() * 0.0 + torch.zeros(sum(len(row.own) for row in rows), device=self.device)
            return TokenLogprobs(nothing, nothing.clone() if entropy else None)

        found: TokenLogprobs = self._root(compute)
        if not torch.is_grad_enabled():
            self._forget_passes()
        return found

    def _pass_over_nothing(self) -> None:
        """Take part in a pass of the other ranks, and in its backward pass if there is one; every gradient is zero."""
        loss = self.score([_NOTHING]).logprobs.sum() * 0.0
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]

    def _forget_passes(self) -> None:
        """After passes without a backward pass: FSDP keeps the order of all passes until there is one."""
        self._root.reset_iter_state()  # type: ignore[operator]

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        total = torch.tensor(list(numbers), dtype=torch.float64, device=self.mesh.device_type)
        torch.distributed.all_reduce(total, group=self.mesh.get_group())
        return [float(number) for number in total.tolist()]

    def add_up_tensors(self, parts: list[Tensor]) -> list[Tensor]:
        if not parts:
            return parts
        total = torch.cat(parts)
        torch.distributed.all_reduce(total, group=self.mesh.get_group())
        return list(torch.split(total, [len(part) for part in parts]))

    @contextlib.contextmanager
    def leave_out_parameters(self) -> Iterator[None]:
        """FSDP determines once which parameters have gradients, so only these are requested."""
        yield


def _shard(model: torch.nn.Module, mesh: DeviceMesh, offload: bool) -> torch.nn.Module:
    """Shard every decoder block, and the weights outside of them; gradients are sums over ranks, not means."""
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    root = _Root(model)
    for module in (*forward.find_blocks(model), root):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, offload_policy=policy)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return root


_NOTHING = Row(
    np.zeros(2, dtype=np.int64),
    np.ones(1, dtype=np.int64),
    np.zeros(1, dtype=np.float32),
    np.zeros(1),
    NO_IDS,
    NO_IDS,
)
"""The shortest row, computed by ranks that have fewer batches than others."""


def deal_batches(batches: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int) -> list[list[list[int]]]:
    """The batches of each rank, balanced: the largest are halved until each rank has as many, and batches that run at the
    same time have similar sizes. The first rank never has fewer than another.

    >>> deal_batches([[0, 1, 2, 3]], [5, 5, 5, 5], 2)
    [[[0, 1]], [[2, 3]]]
    """
    parts = [list(batch) for batch in batches]

    def measure(part: Sequence[int]) -> int:
        return sum(lengths[index] for index in part)

    while len(parts) % ranks and any(len(part) > 1 for part in parts):
        greatest = max((part for part in parts if len(part) > 1), key=measure)
        place, half = parts.index(greatest), len(greatest) // 2
        parts[place : place + 1] = [greatest[:half], greatest[half:]]
    parts.sort(key=measure, reverse=True)
    return [parts[rank::ranks] for rank in range(ranks)]
