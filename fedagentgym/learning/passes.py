"""Passes of a step's rows through the model: all of them here, or a share of them on each of several devices.

A step is written once, for both. What it may not know is which of its rows are computed here: it asks for its batches, scores
them, and adds up what it finds. With a model that is whole there is one share, and adding up changes nothing. A policy that is
sharded makes its passes itself (`learning/sharding.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, cast

import torch
from torch import Tensor

from fedagentgym.agents.protocols import TrainablePolicy
from fedagentgym.learning import forward
from fedagentgym.learning.forward import ScoredRow, TokenLogprobs, Value
from fedagentgym.learning.memory import PassLimits, find_pass_limits

if TYPE_CHECKING:
    from fedagentgym.learning.sharding import ShardedPolicy


@dataclass(frozen=True)
class WholePasses:
    """The calls of a step on a model that lies on one device."""

    policy: TrainablePolicy
    rank: ClassVar[int] = 0
    """Which share this is; the first is 0."""
    recomputes: ClassVar[bool] = False
    """True if activations are recomputed in the backward pass, whatever is configured."""

    def find_limits(self, micro_tokens: int | Literal["auto"]) -> PassLimits:
        """The limits of a pass, the same for every share."""
        return find_pass_limits(self.policy.model, self.policy.device, micro_tokens)

    def iter_batches(
        self, rows: Sequence[ScoredRow], limits: PassLimits, *, shared: bool = True
    ) -> Iterator[list[int]]:
        """Numbers of the rows that go through the model together here; all of them, unless they are `shared`."""
        yield from forward.batch_rows(self.policy.model, rows, limits.micro_tokens)

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
        """`forward.compute_logprobs` of the model."""
        policy = self.policy
        return forward.compute_logprobs(
            policy.model, rows, policy.device, temperature, entropy, kept=kept, bias=bias, value=value
        )

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """The sums of numbers over all shares."""
        return list(numbers)

    def add_up_tensors(self, parts: list[Tensor]) -> list[Tensor]:
        """The sums of tensors over all shares."""
        return parts

    @contextlib.contextmanager
    def leave_out_parameters(self) -> Iterator[None]:
        """While it lasts, gradients of parameters are not wanted."""
        parameters = self.policy.parameters()
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters.values():
                parameter.requires_grad_(True)


Passes: TypeAlias = "WholePasses | ShardedPolicy"


def get_passes(policy: TrainablePolicy) -> Passes:
    """The passes of a policy: its own, if it is sharded."""
    return cast("ShardedPolicy", policy) if hasattr(policy, "iter_batches") else WholePasses(policy)


def clip_gradients(parameters: Sequence[torch.Tensor], most: float | None) -> float:
    """Shorten the gradient, all of it, to a length; returns the length that it had."""
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), most or float("inf"))
    return to_number(norm)


def to_number(tensor: Tensor) -> float:
    """A single number, also where its parts lie on several devices."""
    join = getattr(tensor, "full_tensor", None)
    return float(tensor if join is None else join())
