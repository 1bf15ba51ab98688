"""FlexLoRA: the mean of the adapters' products, divided into factors by its singular values (Bai et al. 2024, arXiv:2402.11505).

    server   send (A, B) to every k in S
    client   train (A_k, B_k), from (A, B) on; return them
    server   M = sum of p_k B_k A_k = U S V';  B, A from the first `rank` singular values: the product of this rank nearest to M

`factors: balanced` gives B = U sqrt(S) and A = sqrt(S) V', `left` gives B = U S and A = V'. Signs are fixed: the entry of each
column of U that is largest in size is positive.

The rank of M is at most the sum of the clients' ranks. If this sum is small beside a large layer, the singular values are
computed from QR decompositions of the stacked factors, and M itself is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedagentgym.algorithms.adapters import AdapterRule, ProductAveraging, ProductSettings
from fedagentgym.algorithms.factors import Matrix, Pair
from fedagentgym.base.settings import Settings

Factors = Literal["balanced", "left"]
_LARGE = 256
"""Singular values are computed from the stacked factors only if the smaller side of the matrix has at least this length."""


class FlexLoRARule(AdapterRule):
    """The nearest product of the adapter's rank."""

    name: Literal["flexlora"] = "flexlora"
    factors: Factors = "balanced"

    def choose(self, target: Matrix, mean: Pair, before: Pair) -> Pair:
        return self._cut(*np.linalg.svd(target, full_matrices=False), before)

    def choose_from_factors(self, clients: Sequence[Pair], weights: Sequence[float], before: Pair) -> Pair | None:
        """The same factors from the stacked factors of a large layer, without its product."""
        if self.momentum > 0:
            return None  # the repeated move may have any rank
        shares = [self.step * weight / sum(weights) for weight in weights]
        parts = [*zip(shares, clients, strict=True), *([(1 - self.step, before)] if self.step != 1 else [])]
        low = np.vstack([pair.low for _, pair in parts])
        smaller = min(len(before.high), low.shape[1])
        if smaller < _LARGE or smaller < 4 * len(low):
            return None
        first, left = np.linalg.qr(np.hstack([share * pair.high for share, pair in parts]))
        last, right = np.linalg.qr(low.T)
        inner_left, sizes, inner_right = np.linalg.svd(left @ right.T)
        return self._cut(first @ inner_left, sizes, inner_right @ last.T, before)

    def _cut(self, left: Matrix, sizes: Matrix, right: Matrix, before: Pair) -> Pair:
        """The factors of the first singular values, at most as many as the adapter's rank and the product's rank."""
        longer = max(len(left), right.shape[1])
        rank = min(len(before.low), int((sizes > sizes[0] * longer * np.finfo(np.float64).eps).sum()))
        left, sizes, right = left[:, :rank], sizes[:rank], right[:rank]
        signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(rank)])
        left, right = left * signs, right * signs[:, None]
        roots = np.sqrt(sizes) if self.factors == "balanced" else sizes
        # where B is zero, A is kept: two zero factors have no gradient
        low, high = before.low.copy(), np.zeros_like(before.high)
        high[:, :rank] = left * roots
        low[:rank] = (roots if self.factors == "balanced" else np.ones(rank))[:, None] * right
        return Pair(low, high)


class FlexLoRASettings(ProductSettings):
    """`algorithm: {name: flexlora}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["flexlora"] = "flexlora"
    factors: Factors = Field(
        default="balanced",
        description="where singular values go: balanced, into both factors alike; left, into B alone",
    )

    @property
    def rule(self) -> FlexLoRARule:
        return FlexLoRARule(factors=self.factors, **self.rule_options)


class FlexLoRA(ProductAveraging[FlexLoRASettings]):
    """Averaging of products, cut to the adapter's rank."""

    settings_class: ClassVar[type[Settings]] = FlexLoRASettings
