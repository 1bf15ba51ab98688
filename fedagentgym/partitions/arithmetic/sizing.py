"""Client sizes with a given sum inside bounds: Beta-shaped, scaled, rounded (Algorithm 3, lines 1-6)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import GRID, StreamBatch

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def compute_total(clients: int, mean: float, overlap: float | None, items: int) -> int:
    """T: floor(overlap * items) if an overlap is asked for, else clients * mean, both without rounding on the way."""
    if overlap is not None:
        return math.floor(Fraction(repr(float(overlap))) * items)
    return math.floor(Fraction(repr(float(mean))) * clients)


def check_total(total: int, clients: int, low: int, high: int, what: str) -> None:
    if not clients * low <= total <= clients * high:
        raise OptionError(
            f"{total:,} {what} cannot be spread over {clients:,} clients with {low:,} to {high:,} each: "
            f"the total must lie between {clients * low:,} and {clients * high:,}"
        )


def sample_beta_sizes(
    seed: int, purpose: str, clients: int, total: int, low: int, mean: float, high: int, dispersion: float
) -> Ints:
    """Sizes between low and high that sum to `total`; the larger the dispersion parameter, the closer to each other."""
    if low == high:
        return np.full(clients, low, dtype=np.int64)
    share = (mean - low) / (high - low)
    if 0.0 < share < 1.0:
        uniform = StreamBatch(seed, purpose, "size", count=clients).uniform(1)[:, 0]
        drawn = betaincinv(share * dispersion, (1.0 - share) * dispersion, uniform)
    else:
        drawn = np.full(clients, share)
    shape = np.rint(drawn * GRID) / GRID
    return round_to_sum(scale_to_sum(low + shape * (high - low), total, low, high), total, low, high)


def scale_to_sum(sizes: Floats, total: int, low: int, high: int) -> Floats:
    """Scale sizes by one factor so that they sum to `total`; a size that would leave the bounds stays at the bound.

    Scaling first and clipping afterwards would change the sum. Instead, the sizes that violate a bound on the side with
    the larger total violation are fixed there, and the others are scaled again, until none violates a bound.
    """
    most = float(sizes.max(initial=0.0))
    sizes = np.rint(sizes / most * GRID) / GRID if most > 0 else np.ones_like(sizes)
    result = np.zeros_like(sizes)
    free = np.ones(sizes.size, dtype=bool)
    while free.any():
        left = total - math.fsum(result[~free])
        weight = math.fsum(sizes[free])
        scaled = sizes * (left / weight) if weight > 0 else np.full(sizes.size, left / free.sum())
        over, under = np.maximum(scaled - high, 0.0), np.maximum(low - scaled, 0.0)
        excess = math.fsum(over[free]) - math.fsum(under[free])
        leaving = free & ((over > 0) if excess > 0 else (under > 0) if excess < 0 else (over > 0) | (under > 0))
        if not leaving.any():
            result[free] = scaled[free]
            break
        result[leaving] = np.clip(scaled[leaving], low, high)
        free &= ~leaving
    return result


def round_to_sum(sizes: Floats, total: int, low: int, high: int) -> Ints:
    """Largest remainder: round down, then add one to those with the largest remainders; the sum is exactly `total`."""
    exact = np.rint(sizes * (1 << 20)).astype(np.int64)
    whole, remainder = exact >> 20, exact & ((1 << 20) - 1)
    missing = total - int(whole.sum())
    while missing:
        open_ = np.flatnonzero(whole < high) if missing > 0 else np.flatnonzero(whole > low)
        order = open_[np.argsort(-remainder[open_] if missing > 0 else remainder[open_], kind="stable")]
        chosen = order[: abs(missing)]
        whole[chosen] += 1 if missing > 0 else -1
        remainder[chosen] = 0
        missing = total - int(whole.sum())
    return whole
