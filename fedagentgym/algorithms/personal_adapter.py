"""A personal adapter: beside the low-rank adapter that all clients share, each has a second one of its own (FDLoRA, FedALT).

The sum of two low-rank adapters with the factors (A, B) and (A', B') is one adapter with the rows of A and A', and the columns
of B and B'. So the agent has one adapter of rank `agent.adapter.rank`; its last `personal_rank` rows and columns stay with the
client, and the others are averaged. Every engine that plays with an adapter plays with both.

    server   send (A, B)
    client   train (A, B) and (A'_k, B'_k); keep the second, return the first
    server   average the first
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.algorithms.personal import Personal
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.federation.message import Array, Parameters

ROWS, COLUMNS = "lora_A", "lora_B"


class PersonalAdapterSettings(AveragingSettings):
    """`algorithm: {name: personal-adapter, personal_rank: 4}` with `agent: {adapter: {rank: 8, alpha: 16}}`."""

    name: Literal["personal-adapter"] = "personal-adapter"
    personal_rank: int = Field(default=4, ge=1, description="rank of the adapter that stays with the client")


class PersonalAdapter(Personal[PersonalAdapterSettings]):
    """Federated averaging of a part of an adapter's rank, while the rest stays with each client."""

    settings_class: ClassVar[type[Settings]] = PersonalAdapterSettings

    def split(self, weights: Parameters) -> tuple[dict[str, Array], dict[str, Array]]:
        adapter, own = self.runtime.spec.agent.adapter, self.settings.personal_rank
        if adapter is None or own >= adapter.rank:
            found = "the agent has no adapter" if adapter is None else f"its rank is {adapter.rank}"
            raise OptionError(
                f"personal-adapter keeps {own} of an adapter's rank with the client, and {found}: set agent.adapter with a"
                " rank above algorithm.personal_rank"
            )
        axes = {name: _find_axis(name) for name in weights}
        parts = [(name, array, axis) for name, array in weights.items() if (axis := axes[name]) is not None]
        rest = {name: array for name, array in weights.items() if axes[name] is None}
        cut = adapter.rank - own
        return (
            rest | {name: _take(array, axis, slice(None, cut)) for name, array, axis in parts},
            {name: _take(array, axis, slice(cut, None)) for name, array, axis in parts},
        )

    def join(self, shared: Parameters, own: Parameters) -> dict[str, Array]:
        return {
            name: np.concatenate([shared[name], own[name]], axis=axis)
            if (axis := _find_axis(name)) is not None
            else shared[name]
            for name in self.runtime.initial_weights
        }


def _find_axis(name: str) -> int | None:
    """The axis of an adapter's array along which its rank runs; None for any other parameter."""
    parts = name.split(".")
    return 0 if ROWS in parts else 1 if COLUMNS in parts else None


def _take(array: Array, axis: int, part: slice) -> Array:
    return np.ascontiguousarray(array[part] if axis == 0 else array[:, part])
