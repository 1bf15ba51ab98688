"""Rules, chosen by name, that combine the clients' parameters into the next global ones.

A rule gives each client a weight and makes an accumulator, to which updates are added in the order of the client
numbers. So a mean never holds more than a few models, and its result does not depend on the order of replies. Server
optimizers treat `global - mean` as a gradient (Reddi et al. 2021) and keep their moments in the server's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from pydantic import Field

from fedagentgym.base.choices import Choice, NamedSettings
from fedagentgym.base.errors import DataError
from fedagentgym.base.registry import Registry
from fedagentgym.federation.running_mean import RunningMean
from fedagentgym.federation.server_state import ServerState, add_prefix
from fedagentgym.federation.vectors import LONGEST_BLOCK, Array, Parameters, blocks

AGGREGATION_RULES = Registry(
    "aggregation rule",
    {
        "mean": "fedagentgym.federation.aggregation:Mean",
        "weighted": "fedagentgym.federation.aggregation:WeightedMean",
        "median": "fedagentgym.federation.aggregation:Median",
        "trimmed_mean": "fedagentgym.federation.aggregation:TrimmedMean",
        "fedavgm": "fedagentgym.federation.aggregation:FedAvgM",
        "fedadam": "fedagentgym.federation.aggregation:FedAdam",
    },
)


class Accumulator(Protocol):
    """One running aggregation."""

    def add(self, update: Parameters, weight: float) -> None:
        """Add a client's parameters; they come in the order of the client numbers."""

    def finish(self) -> ServerState:
        """The next global state; at least one update was added."""


class AggregationRule(NamedSettings):
    """Base of all rules; the fields of a subclass are its options in a configuration.

    `needs_all` declares that the rule's accumulator keeps every update until the end, as a median must.
    """

    needs_all: ClassVar[bool] = False

    def weigh(self, examples: Sequence[float]) -> list[float]:
        """The clients' weights, from their numbers of examples: equal by default."""
        return [1.0] * len(examples)

    def begin(self, state: ServerState) -> Accumulator:
        """An aggregation that starts from this global state."""
        raise NotImplementedError


class Mean(AggregationRule):
    """The plain mean over the clients that answered."""

    name: Literal["mean"] = "mean"

    def begin(self, state: ServerState) -> Accumulator:
        return _MeanStep(state, lambda mean: replace(state, parameters=mean.finish()))


class WeightedMean(AggregationRule):
    """The mean weighted by the clients' numbers of tasks; with equal numbers it is `mean`, bit for bit."""

    name: Literal["weighted"] = "weighted"

    def weigh(self, examples: Sequence[float]) -> list[float]:
        equal = len(set(examples)) == 1 and examples[0] > 0
        return [1.0] * len(examples) if equal else list(examples)

    def begin(self, state: ServerState) -> Accumulator:
        return Mean().begin(state)


class Median(AggregationRule):
    """The median of every coordinate: robust while fewer than half of the clients send wrong values."""

    name: Literal["median"] = "median"
    needs_all: ClassVar[bool] = True

    def begin(self, state: ServerState) -> Accumulator:
        return _CoordinateStep(state, self._average_middle)

    def _average_middle(self, ordered: Array) -> Array:
        count = len(ordered)
        return np.asarray(np.mean(ordered[(count - 1) // 2 : count // 2 + 1], axis=0, dtype=np.float64))


class TrimmedMean(AggregationRule):
    """The mean of every coordinate without its extremes."""

    name: Literal["trimmed_mean"] = "trimmed_mean"
    needs_all: ClassVar[bool] = True
    trim: float = Field(default=0.1, ge=0.0, lt=0.5, description="share of the clients that is cut at either end")

    def begin(self, state: ServerState) -> Accumulator:
        return _CoordinateStep(state, self._average_inner)

    def _average_inner(self, ordered: Array) -> Array:
        cut = int(self.trim * len(ordered))
        return np.asarray(np.mean(ordered[cut : len(ordered) - cut], axis=0, dtype=np.float64))


class FedAvgM(AggregationRule):
    """The mean, with server momentum."""

    name: Literal["fedavgm"] = "fedavgm"
    learning_rate: float = Field(default=1.0, gt=0.0, description="server learning rate")
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="share of the previous step that is kept")

    def begin(self, state: ServerState) -> Accumulator:
        return _MeanStep(state, lambda mean: self._step(state, mean.finish(narrow=False)))

    def _step(self, state: ServerState, mean: Parameters) -> ServerState:
        parameters, moments = {}, {}
        for name, value in state.parameters.items():
            old = state.optimizer.get(f"velocity/{name}", 0.0)
            velocity = self.momentum * old + (mean[name] - value.astype(np.float64))
            moved = value.astype(np.float64) + self.learning_rate * velocity
            parameters[name] = np.asarray(moved, dtype=value.dtype)
            moments[name] = np.asarray(velocity)
        return ServerState(parameters, add_prefix("velocity/", moments), state.memory)


class FedAdam(AggregationRule):
    """The mean, with Adam on the server (no bias correction, as published)."""

    name: Literal["fedadam"] = "fedadam"
    learning_rate: float = Field(default=1e-3, gt=0.0, description="server learning rate")
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0, description="decay of the first moment")
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0, description="decay of the second moment")
    epsilon: float = Field(default=1e-3, gt=0.0, description="degree of adaptivity (the published tau)")

    def begin(self, state: ServerState) -> Accumulator:
        return _MeanStep(state, lambda mean: self._step(state, mean.finish(narrow=False)))

    def _step(self, state: ServerState, mean: Parameters) -> ServerState:
        parameters, moments = {}, {}
        for name, value in state.parameters.items():
            wide = value.astype(np.float64)
            step = mean[name] - wide
            first = self.beta1 * state.optimizer.get(f"first/{name}", 0.0) + (1 - self.beta1) * step
            second = self.beta2 * state.optimizer.get(f"second/{name}", 0.0) + (1 - self.beta2) * step**2
            moved = wide + self.learning_rate * first / (np.sqrt(second) + self.epsilon)
            parameters[name] = np.asarray(moved, dtype=value.dtype)
            moments[f"first/{name}"], moments[f"second/{name}"] = np.asarray(first), np.asarray(second)
        return ServerState(parameters, moments, state.memory)


Aggregation = Annotated[
    AggregationRule,
    Choice(AGGREGATION_RULES),
    Field(description="how the server combines what the clients return: mean, weighted, median, trimmed_mean, ..."),
]
"""The type of a setting that chooses a rule."""


def aggregate(rule: AggregationRule, state: ServerState, updates: Iterable[tuple[Parameters, float]]) -> ServerState:
    """The next global state from (parameters, weight) of each client, in the order of the client numbers."""
    accumulator = rule.begin(state)
    for update, weight in updates:
        accumulator.add(update, weight)
    return accumulator.finish()


class _MeanStep:
    """A running mean, to which the rule's last step is applied at the end."""

    def __init__(self, state: ServerState, step: Callable[[RunningMean], ServerState]) -> None:
        self._mean, self._step = RunningMean(state.parameters), step

    def add(self, update: Parameters, weight: float) -> None:
        self._mean.add(update, weight)

    def finish(self) -> ServerState:
        return self._step(self._mean)


class _CoordinateStep:
    """All updates, and a rule that reduces each coordinate's sorted values to one number; weights are ignored.

    Coordinates are processed in blocks, so that little memory is needed besides the updates, most of it in cache.
    """

    def __init__(self, state: ServerState, rule: Callable[[Array], Array]) -> None:
        self._state, self._rule = state, rule
        self._updates: list[Parameters] = []

    def add(self, update: Parameters, weight: float) -> None:
        self._updates.append(update)

    def finish(self) -> ServerState:
        if not self._updates:
            raise DataError("cannot aggregate: no update was added")
        parameters = {name: self._combine(name, value) for name, value in self._state.parameters.items()}
        return replace(self._state, parameters=parameters)

    def _combine(self, name: str, current: Array) -> Array:
        rows = [update[name].reshape(-1) for update in self._updates]
        combined = np.empty(current.size, dtype=current.dtype)
        for block in blocks(current.size, LONGEST_BLOCK // len(rows)):
            ordered = np.stack([row[block] for row in rows])
            ordered.sort(axis=0)
            combined[block] = self._rule(ordered)
        return combined.reshape(current.shape)
