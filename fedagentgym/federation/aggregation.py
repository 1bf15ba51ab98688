"""How the server turns its clients' parameters into the next global ones. One rule = one settings class with `apply`.

Every sum is taken in float64, in the order of the client numbers, so the result depends neither on the order of replies nor
on parallelism; a mean of one client is that client, bit for bit. Server optimizers treat `global - mean` as a gradient
(Reddi et al. 2021) and keep their moments in `memory`, which is part of the global state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from fedagentgym.base.errors import DataError
from fedagentgym.base.settings import Settings

Array = NDArray[Any]
Parameters = Mapping[str, Array]
LONGEST_BLOCK = 1 << 17
_AT_ONCE = 12
"""Vectors that are added in one pass."""


class Contribution(NamedTuple):
    """What one client brings: its parameters and how many examples stand behind them."""

    client: int
    parameters: Parameters
    examples: float = 1.0


class Aggregated(NamedTuple):
    """The next global parameters and what the rule remembers."""

    parameters: dict[str, Array]
    memory: dict[str, Array]


class Mean(Settings):
    """The plain mean over the clients that answered."""

    name: Literal["mean"] = "mean"

    def apply(self, current: Parameters, given: Sequence[Contribution], memory: Parameters) -> Aggregated:
        return Aggregated(weighted_mean(current, given, [1.0] * len(given)), dict(memory))


class Weighted(Settings):
    """The mean weighted by the clients' numbers of tasks; with equal numbers it is `mean`, bit for bit."""

    name: Literal["weighted"] = "weighted"

    def apply(self, current: Parameters, given: Sequence[Contribution], memory: Parameters) -> Aggregated:
        sizes = [each.examples for each in given]
        equal = len(set(sizes)) == 1 and sizes[0] > 0
        return Aggregated(weighted_mean(current, given, [1.0] * len(given) if equal else sizes), dict(memory))


class Median(Settings):
    """The median of every coordinate: up to half of the clients may lie."""

    name: Literal["median"] = "median"

    def apply(self, current: Parameters, given: Sequence[Contribution], memory: Parameters) -> Aggregated:
        return Aggregated(_by_coordinate(current, given, lambda stack: np.median(stack, axis=0)), dict(memory))


class TrimmedMean(Settings):
    """The mean of every coordinate without its extremes."""

    name: Literal["trimmed_mean"] = "trimmed_mean"
    trim: float = Field(default=0.1, ge=0.0, lt=0.5, description="share of the clients that is cut at either end")

    def apply(self, current: Parameters, given: Sequence[Contribution], memory: Parameters) -> Aggregated:
        cut = int(self.trim * len(given))

        def trimmed(stack: Array) -> Array:
            inner = np.sort(stack, axis=0)[cut : len(given) - cut]
            return np.asarray(inner.sum(axis=0) / len(inner))

        return Aggregated(_by_coordinate(current, given, trimmed), dict(memory))


class FedAvgM(Settings):
    """The mean, with server momentum."""

    name: Literal["fedavgm"] = "fedavgm"
    learning_rate: float = Field(default=1.0, gt=0.0, description="server learning rate")
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="how much of the last step goes on")

    def apply(self, current: Parameters, given: Sequence[Contribution], memory: Parameters) -> Aggregated:
        mean = weighted_mean(current, given, [1.0] * len(given), narrow=False)
        parameters, kept = {}, {}
        for name, value in current.items():
            old = memory.get(f"velocity/{name}", 0.0)
            velocity = self.momentum * old + (mean[name] - value.astype(np.float64))
            parameters[name] = (value.astype(np.float64) + self.learning_rate * velocity).astype(value.dtype)
            kept[f"velocity/{name}"] = np.asarray(velocity)
        return Aggregated(parameters, kept)


class FedAdam(Settings):
    """The mean, with Adam on the server (no bias correction, as published)."""

    name: Literal["fedadam"] = "fedadam"
    learning_rate: float = Field(default=1e-3, gt=0.0, description="server learning rate")
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0, description="decay of the first moment")
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0, description="decay of the second moment")
    epsilon: float = Field(default=1e-3, gt=0.0, description="degree of adaptivity (the published tau)")

    def apply(self, current: Parameters, given: Sequence[Contribution], memory: Parameters) -> Aggregated:
        mean = weighted_mean(current, given, [1.0] * len(given), narrow=False)
        parameters, kept = {}, {}
        for name, value in current.items():
            wide = value.astype(np.float64)
            step = mean[name] - wide
            first = self.beta1 * memory.get(f"first/{name}", 0.0) + (1 - self.beta1) * step
            second = self.beta2 * memory.get(f"second/{name}", 0.0) + (1 - self.beta2) * step**2
            parameters[name] = (wide + self.learning_rate * first / (np.sqrt(second) + self.epsilon)).astype(
                value.dtype
            )
            kept[f"first/{name}"], kept[f"second/{name}"] = np.asarray(first), np.asarray(second)
        return Aggregated(parameters, kept)


Aggregation = Annotated[
    Mean | Weighted | Median | TrimmedMean | FedAvgM | FedAdam,
    Field(discriminator="name", description="how the server combines what the clients return"),
    BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
]


def weighted_mean(
    current: Parameters, given: Sequence[Contribution], weights: Sequence[float], *, narrow: bool = True
) -> dict[str, Array]:
    """Sum of weight * parameters over sum of weights, in float64 and client order; `narrow` gives the global dtypes back.

    The mean is read-only, so that it can be sent and committed where it lies.
    """
    ordered = _ordered(given)
    share = {each.client: weight for each, weight in zip(given, weights, strict=True)}
    total = 0.0
    for each in ordered:
        total += share[each.client]
    if not total > 0.0:
        raise DataError("cannot average clients whose weights are all zero")
    result = {}
    for name, value in current.items():
        parts = [(each.parameters[name].reshape(-1), share[each.client]) for each in ordered]
        mean = np.empty(value.size, dtype=value.dtype if narrow else np.float64)
        rows = np.empty((min(len(parts), _AT_ONCE) + 1, min(value.size, LONGEST_BLOCK)), dtype=np.float64)
        for block in blocks(value.size):
            summed = _weighted_sum(parts, block, rows[:, : block.stop - block.start])
            summed /= total
            mean[block] = summed
        mean.flags.writeable = False
        result[name] = mean.reshape(value.shape)
    return result


def _weighted_sum(parts: Sequence[tuple[Array, float]], block: slice, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of weight * vector over one stretch, in order: a few at a time are laid in `rows`, below the sum so far."""
    summed: NDArray[np.float64] = rows[-1]
    filled = 0
    for vector, weight in parts:
        if filled == len(rows) - 1:
            rows[0], filled = _added(rows[:filled], summed), 1
        rows[filled] = vector[block]
        if weight != 1.0:
            rows[filled] *= weight
        filled += 1
    return _added(rows[:filled], summed)


def _added(rows: NDArray[np.float64], out: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of rows, from -0.0: from 0.0, a lone -0.0 would lose its sign."""
    np.add.reduce(rows, axis=0, out=out, initial=-0.0)
    return out


def blocks(size: int) -> Iterator[slice]:
    """Stretches of a long vector that stay in a processor's cache while several passes are made over them."""
    for start in range(0, size, LONGEST_BLOCK):
        yield slice(start, min(size, start + LONGEST_BLOCK))


def _by_coordinate(
    current: Parameters, given: Sequence[Contribution], rule: Callable[[Array], Array]
) -> dict[str, Array]:
    ordered = _ordered(given)
    return {
        name: rule(np.stack([each.parameters[name].astype(np.float64) for each in ordered])).astype(value.dtype)
        for name, value in current.items()
    }


def _ordered(given: Sequence[Contribution]) -> list[Contribution]:
    if not given:
        raise DataError("cannot aggregate: no client answered")
    return sorted(given, key=lambda each: each.client)
