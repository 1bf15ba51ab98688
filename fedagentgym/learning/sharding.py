"""A policy that is sharded over ranks by FSDP2, which gathers each decoder block when it runs and reduces its gradient.

All ranks run the same program on the same rows. Of n ranks, each computes every n-th batch of a step; a rank with fewer batches
than the others makes empty passes, since every pass gathers weights from all ranks. Gradients are summed over ranks, so they are
those of the whole step. Rank 0 plays with the full weights, which are gathered for it before and released afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from fedagentgym.agents.model.decoder import Decoder
from fedagentgym.agents.model.policy import TorchPolicy, check_weights, to_array
from fedagentgym.agents.protocols import Session, SharedModel
from fedagentgym.base.devices import here
from fedagentgym.base.errors import OptionError
from fedagentgym.learning import forward
from fedagentgym.learning.forward import ScoredRow, TokenLogprobs, Value, find_choices
from fedagentgym.learning.memory import PassLimits, find_pass_limits
from fedagentgym.learning.settings import ShardingSettings
from fedagentgym.learning.trajectory import NO_IDS, Row
from fedagentgym.learning.weights import Arrays, to_tensor_like

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent

Compute = Callable[[torch.nn.Module], TokenLogprobs]


def shard_agent(agent: TokenAgent, settings: ShardingSettings) -> TokenAgent:
    """The agent with its policy sharded over the ranks; every rank calls this function."""
    whole = agent.policy
    if not isinstance(whole, TorchPolicy):
        raise OptionError(
            f"learning.sharding is for agents that torch plays and trains, and {agent.name!r} is not one: set"
            " agent.rollouts=torch or leave out learning.sharding"
        )
    if isinstance(whole.model, Decoder):  # its passes bypass the blocks that gather weights
        model = whole.model.to_transformers()
        whole = TorchPolicy(model, whole.tokenizer, name=whole.name, context_length=whole.context_length)
    return replace(agent, policy=ShardedPolicy(whole, settings.offload))


class ShardedPolicy(SharedModel):
    """One rank's part of a policy, which is both a `TrainablePolicy` and its own `Passes`.

    Every rank has loaded the same complete policy, and keeps its part.
    """

    def __init__(self, whole: TorchPolicy, offload: bool) -> None:
        self._whole = whole
        self.name, self.context_length, self.tokenizer = whole.name, whole.context_length, whole.tokenizer
        self.model, self.device = whole.model, whole.device
        self.mesh = init_device_mesh(self.device.type, (torch.distributed.get_world_size(),))
        self.rank, self.size = self.mesh.get_local_rank(), self.mesh.size()
        self._limits: dict[int | Literal["auto"], PassLimits] = {}
        self._gathered = False
        self._root = _shard(self.model, self.mesh, offload)
        self._parts = [module for module in self._root.modules() if isinstance(module, FSDPModule)]
        self._pass_over_nothing()

    # ---- as a policy --------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._whole.version

    def bump_version(self) -> None:
        self._whole.bump_version()

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return self._whole.parameters()

    def add_value_head(self) -> None:
        raise OptionError("a policy that is divided among devices has no value head: leave out learning.sharding")

    def get_weights(self) -> dict[str, NDArray[Any]]:
        return {name: to_array(value) for name, value in self.parameters().items()}

    def set_weights(self, weights: Arrays) -> None:
        own = self.parameters()
        check_weights(weights, own)
        self.claim()
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(to_tensor_like(weights[name], parameter))
        self.bump_version()

    def open_session(self) -> Session:
        """Open a session on the gathered weights; only on rank 0 and within `gathered`."""
        if not self._gathered or self.rank > 0:
            raise RuntimeError("a sharded policy can play only on rank 0, while its weights are gathered")
        return self._whole.open_session()

    def save(self, folder: str | Path) -> None:
        raise OptionError("a sharded policy is not saved while it is trained: export it from the run's folder")

    def close(self) -> None:
        self._whole.close()

    # ---- whole, for rank 0 ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather all weights on rank 0 for the duration of a block; the other ranks keep only their parts."""
        if self._gathered:
            yield
            return
        if here().alone:
            raise RuntimeError("weights are gathered by all ranks, before rank 0 computes alone")
        for part in self._parts:
            if self.rank == 0:
                part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
            if self.rank != 0:
                part.reshard()
        self._gathered = True
        try:
            yield
        finally:
            self._gathered = False
            self._forget_passes()
            for part in self._parts:
                part.set_reshard_after_forward(True, recurse=False)

    # ---- as passes ----------------------------------------------------------------------------------------------------

    @property
    def recomputes(self) -> bool:
        """True on a GPU: products use bfloat16 copies of the weights there, which a backward pass would hold until its end."""
        return self.device.type == "cuda"

    def find_limits(self, micro_tokens: int | Literal["auto"]) -> PassLimits:
        """The smallest limits of all devices, computed once."""
        if micro_tokens not in self._limits:
            found = find_pass_limits(self.model, self.device, micro_tokens)
            least = torch.tensor(found, dtype=torch.int64, device=self.mesh.device_type)
            torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, self.mesh.get_group())
            self._limits[micro_tokens] = PassLimits(*(int(number) for number in least.tolist()))
        return self._limits[micro_tokens]

    def iter_batches(
        self, rows: Sequence[ScoredRow], limits: PassLimits, *, shared: bool = True
    ) -> Iterator[list[int]]:
        batches = forward.batch_rows(self.model, rows, limits.micro_tokens)
        if not shared:
            yield from batches
            return
        shares = deal_batches(batches, [len(row.ids) for row in rows], self.size)
        yield from shares[self.rank]
        for _ in range(len(shares[0]) - len(shares[self.rank])):
            self._pass_over_nothing()

    def score(
        self,
        rows: Sequence[ScoredRow],
        temperature: float = 1.0,
        entropy: bool = False,
        *,
        kept: int | None = None,
        bias: Tensor | None = None,
        value: Value | None = None,
    ) -> TokenLogprobs:
        assert value is None
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
        """Forget the order of passes, which FSDP keeps until a backward pass; called if no backward pass follows."""
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
        """Leave nothing out: FSDP determines only once which parameters have gradients."""
        yield


class _Root(torch.nn.Module):
    """Gathers the weights outside of the blocks (embeddings, last norm, head) for the duration of a computation."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Compute) -> TokenLogprobs:
        return compute(self.model)


def _shard(model: torch.nn.Module, mesh: Any, offload: bool) -> torch.nn.Module:
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
    """The batches of each rank, balanced: the largest are halved until all ranks have the same number, if possible, and batches
    that run at the same time have similar sizes. The first rank never has fewer than another.

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
