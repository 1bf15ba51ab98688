"""RAM: what several clients changed is averaged, what one changed alone is kept whole (Yuan et al. 2026, arXiv:2601.13572).

The paper merges agents once, after they were trained by reinforcement learning. Here the server merges in every round, by the
changes of the adapters' products:

    server   d_k = B_k A_k - B A;  client k is active at a coordinate where |d_k| > threshold, and d_k is among the share
             `density` of the layer's coordinates that it changed most
    server   a coordinate at which c clients are active moves by the sum of their d_k, divided by c;  it stays if c = 0
    server   RAM+: a move at a coordinate that only client k changed (c = 1) is multiplied by 1 + strength * min(shared_k /
             unique_k, most); of k's active coordinates in the layer, others are active at shared_k and only k at unique_k
    server   the move goes into the base, B = 0, A as first drawn, as with `flora` and `draw: first`

Products of adapters are dense: with `density: 1` and `threshold: 0` RAM is the mean of the clients that changed the layer at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.algorithms.adapters import Merging, ProductSettings
from fedagentgym.algorithms.factors import Matrix, Pair
from fedagentgym.algorithms.flora import FLoRARule
from fedagentgym.base.settings import Settings


class RAMRule(FLoRARule):
    """The selective sum of changes; clients are not weighted."""

    name: Literal["ram"] = "ram"  # type: ignore[assignment]
    uses_weights: ClassVar[bool] = False
    threshold: float = 1e-5
    density: float = 1.0
    strength: float = 0.0
    most: float = 0.2

    def combine(self, changes: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
        active = [self._find_active(change) for change in changes]
        count = np.sum(active, axis=0)
        total = np.zeros_like(changes[0])
        for change, mask in zip(changes, active, strict=True):
            shared, unique = int((mask & (count > 1)).sum()), int((mask & (count == 1)).sum())
            stretch = 1.0 + self.strength * min(shared / unique, self.most) if unique else 1.0
            total += np.where(mask, np.where(count == 1, stretch, 1.0) * change, 0.0)
        return np.asarray(total / np.maximum(count, 1))

    def factorize(self, clients: Sequence[Pair], weights: Sequence[float], chosen: Pair) -> Pair | None:
        return None  # a selection of coordinates may have any rank

    def _find_active(self, change: Matrix) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        sizes = np.abs(change)
        active = sizes > self.threshold
        if self.density < 1:
            kept = max(1, round(self.density * sizes.size))
            active &= sizes >= np.partition(sizes, -kept, axis=None)[-kept]
        return np.asarray(active)


class RAMSettings(ProductSettings):
    """`algorithm: {name: ram, density: 0.2}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["ram"] = "ram"
    threshold: float = Field(default=1e-5, ge=0, description="largest change of the product B A that counts as none")
    density: float = Field(
        default=0.2, gt=0, le=1, description="share of a layer's coordinates at which a client is active"
    )
    strength: float = Field(
        default=0.0,
        ge=0,
        description="RAM+: stretch of moves at coordinates that one client changed alone; the paper's is 0.1",
    )
    most: float = Field(
        default=0.2, ge=0, description="RAM+: largest ratio of shared to unique coordinates that counts"
    )

    @model_validator(mode="after")
    def _refuse_weights(self) -> Self:
        if self.weights != "equal":
            raise ValueError("ram weighs all clients equally: leave out weights")
        return self

    @property
    def rule(self) -> RAMRule:
        own = {name: getattr(self, name) for name in ("threshold", "density", "strength", "most")}
        return RAMRule(**own, **self.rule_options)


class RAM(Merging[RAMSettings]):
    """Averaging that keeps what one client changed alone."""

    settings_class: ClassVar[type[Settings]] = RAMSettings
