"""Multi-Krum: the plain mean of the m updates with the smallest scores of Krum (Blanchard et al. 2017)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedagentgym.federation.rules.krum import Krum


class MultiKrum(Krum):
    """The mean of the updates that Krum would choose first; with `chosen: 1` it is Krum."""

    name: Literal["multi_krum"] = "multi_krum"  # type: ignore[assignment]
    chosen: int | None = Field(default=None, ge=1, description="m: updates that are averaged; null: all but f")

    @property
    def least_updates(self) -> int:
        return max(super().least_updates, self.byzantine + (self.chosen or 1))

    def count_chosen(self, updates: int) -> int:
        return self.chosen or updates - self.byzantine
