"""Rules, chosen by name, that combine the clients' parameters into the next global parameters.

A rule gives each client a weight and makes an accumulator, to which updates are added in the order of the client
numbers. So a mean never holds more than a few models, and its result does not depend on the order of replies. FedAdam treats
`global - mean` as a gradient (Reddi et al. 2021) and keeps its moments in the server's state. `step_server` applies the
server learning rate and momentum after any rule.

Whether an update is refused can depend on the norms of all others, and a client's weight on the reports of all others, so
`UpdateStore` keeps the updates of a round until both are known.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from fractions import Fraction
from numbers import Real
from types import TracebackType
from typing import IO, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import DataError, OptionError, show_value
from fedagentgym.base.imports import Registry
from fedagentgym.base.settings import Choice, NamedSettings
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.message import MAX_BLOCK, Array, Parameters, blocks

HELD_MODELS = 10
"""Maximum number of updates that wait in memory, to be summed in one pass."""
HELD_BYTES = 1 << 31
"""Maximum size of the waiting updates in bytes; a larger update waits alone."""

AGGREGATION_RULES = Registry(
    "aggregation rule",
    {
        "mean": "fedagentgym.federation.aggregation:Mean",
        "weighted": "fedagentgym.federation.aggregation:WeightedMean",
        "median": "fedagentgym.federation.aggregation:Median",
        "trimmed_mean": "fedagentgym.federation.aggregation:TrimmedMean",
        "fedadam": "fedagentgym.federation.aggregation:FedAdam",
        "krum": "fedagentgym.federation.rules.krum:Krum",
        "multi_krum": "fedagentgym.federation.rules.krum:MultiKrum",
        "qfedavg": "fedagentgym.federation.rules.qfedavg:QFedAvg",
    },
)


class Accumulator(Protocol):
    """One running aggregation."""

    def add(self, update: Parameters, weight: float) -> None:
        """Add a client's parameters; they come in the order of the client numbers."""

    def finish(self) -> ServerState:
        """The next global state; at least one update was added."""


class AggregationRule(NamedSettings):
    """Base class of aggregation rules: derive a class, write `begin`, register it with `fedagentgym.register_aggregation`.

    The fields are the rule's options in configurations; `name` is its registered name. A rule whose accumulator uses the weights
    that it is given sets `uses_weights`; with any other rule, clients of unequal weights are refused before the first round. A
    rule that needs all updates at once, such as a median, sets `needs_all`. `fedagentgym.testing.check_aggregation` tests a rule.

    Examples:
        >>> from typing import Literal
        >>> from fedagentgym.federation import AggregationRule, Mean
        >>> class Balanced(AggregationRule):
        ...     name: Literal["balanced"] = "balanced"
        ...     uses_weights = True
        ...     def weigh(self, examples):
        ...         return [number ** 0.5 for number in examples]
        ...     def begin(self, state):
        ...         return Mean().begin(state)
    """

    needs_all: ClassVar[bool] = False
    uses_weights: ClassVar[bool] = False
    """True if clients of greater weight count for more. By default a rule counts as ignoring weights, so that unequal weights are
    refused and not silently lost."""

    @property
    def least_updates(self) -> int:
        """The smallest number of updates from which a rule that `needs_all` computes a result."""
        return 1

    def weigh(self, examples: Sequence[float]) -> list[float]:
        """Return the clients' weights in the aggregate. A rule that does not define `weigh` leaves the weights to the method.

        Args:
            examples: Number of examples of each client.

        Returns:
            The weight of each, at least 0; by default all are 1.
        """
        return [1.0] * len(examples)

    def begin(self, state: ServerState) -> Accumulator:
        """Start an aggregation; called once a round.

        Args:
            state: The global state from which the round began.

        Returns:
            An object with `add(update, weight)`, called for each client in the order of the numbers, and `finish()`, which
            returns the next global state.
        """
        raise NotImplementedError


class LossRule(AggregationRule):
    """Base class of rules that also depend on the clients' success: `begin` gets the loss 1 - success of each client."""

    def begin(self, state: ServerState, losses: Sequence[float] = ()) -> Accumulator:
        raise NotImplementedError


class _OnMean(AggregationRule):
    """Base class of rules on the plain mean: all clients have equal weight, unless the method gives them other weights."""

    uses_weights: ClassVar[bool] = True

    def weigh(self, examples: Sequence[float]) -> list[float]:
        return [1.0] * len(examples)  # defined here, so that the rule decides the weights and not the method

    def begin(self, state: ServerState) -> Accumulator:
        return _MeanStep(state, self)

    def move(self, state: ServerState, mean: RunningMean) -> ServerState:
        """The next global state, from the mean of all updates."""
        raise NotImplementedError


class Mean(_OnMean):
    """The plain mean of the parameters of the clients that answered."""

    name: Literal["mean"] = "mean"

    def move(self, state: ServerState, mean: RunningMean) -> ServerState:
        return replace(state, parameters=mean.compute())


class WeightedMean(AggregationRule):
    """The mean weighted by the clients' numbers of tasks; with equal numbers it is `mean`, bit for bit."""

    name: Literal["weighted"] = "weighted"
    uses_weights: ClassVar[bool] = True

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
        return _TrimmedStep(state, lambda count: (count - 1) // 2)


class TrimmedMean(AggregationRule):
    """The mean of every coordinate without its extremes."""

    name: Literal["trimmed_mean"] = "trimmed_mean"
    needs_all: ClassVar[bool] = True
    trim: float = Field(default=0.1, ge=0.0, lt=0.5, description="share of the clients that is cut at either end")

    def begin(self, state: ServerState) -> Accumulator:
        share = Fraction(str(self.trim))  # as it was written: 0.29 * 100 is below 29 in binary
        return _TrimmedStep(state, lambda count: int(share * count))


class FedAdam(_OnMean):
    """The mean, with Adam on the server (no bias correction, as published)."""

    name: Literal["fedadam"] = "fedadam"
    learning_rate: float = Field(default=1e-3, gt=0.0, description="server learning rate")
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0, description="decay of the first moment")
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0, description="decay of the second moment")
    epsilon: float = Field(default=1e-3, gt=0.0, description="degree of adaptivity (the published tau)")

    def move(self, state: ServerState, mean: RunningMean) -> ServerState:
        parameters, moments, wide_mean = {}, {}, mean.compute(narrow=False)
        for name, value in state.parameters.items():
            wide = value.astype(np.float64)
            step = wide_mean[name] - wide
            first = self.beta1 * state.optimizer.get(f"first/{name}", 0.0) + (1 - self.beta1) * step
            second = self.beta2 * state.optimizer.get(f"second/{name}", 0.0) + (1 - self.beta2) * step**2
            moved = wide + self.learning_rate * first / (np.sqrt(second) + self.epsilon)
            parameters[name] = np.asarray(moved, dtype=value.dtype)
            moments[f"first/{name}"], moments[f"second/{name}"] = np.asarray(first), np.asarray(second)
        return ServerState(parameters, moments, state.memory)


Aggregation = Annotated[
    AggregationRule,
    Choice(AGGREGATION_RULES),
    Field(description="how the server combines what the clients return: mean, weighted, median, krum, ..."),
]
"""The type of a setting that chooses a rule."""


def aggregate(
    rule: AggregationRule,
    state: ServerState,
    updates: Iterable[tuple[Parameters, float]],
    losses: Sequence[float] = (),
) -> ServerState:
    """Compute the next global state from the clients' parameters.

    Args:
        rule: The aggregation rule.
        state: The global state from which the round began.
        updates: Parameters and weight of each client, in the order of the clients' numbers.
        losses: The loss of each client, from 0 to 1, for a rule that depends on it (`qfedavg`).

    Returns:
        The next global state.

    Examples:
        >>> import numpy as np
        >>> from fedagentgym.federation import Mean, ServerState
        >>> state = ServerState({"w": np.zeros(2, "float32")})
        >>> updates = [({"w": np.ones(2, "float32")}, 1.0), ({"w": np.full(2, 3, "float32")}, 1.0)]
        >>> aggregate(Mean(), state, updates).parameters["w"].tolist()
        [2.0, 2.0]
    """
    accumulator = begin_aggregation(rule, state, losses)
    for update, weight in updates:
        accumulator.add(update, weight)
    return accumulator.finish()


def begin_aggregation(rule: AggregationRule, state: ServerState, losses: Sequence[float] = ()) -> Accumulator:
    """Start an aggregation by a rule, and check that its `begin` returns an accumulator."""
    found = rule.begin(state, losses) if isinstance(rule, LossRule) else rule.begin(state)
    if not all(callable(getattr(found, method, None)) for method in ("add", "finish")):
        raise OptionError(
            f"the aggregation rule {rule.name}: begin returned {show_value(found)} in place of an object with"
            " add(update, weight) and finish()"
        )
    return found


def are_weights(found: Any, count: int) -> bool:
    """Return whether `found` is a sequence of `count` weights: finite numbers of at least 0."""
    if not isinstance(found, Sequence | np.ndarray) or len(found) != count:
        return False
    return all(isinstance(weight, Real) and 0 <= float(weight) < float("inf") for weight in found)


def compute_weights(rule: AggregationRule, examples: Sequence[float]) -> list[float]:
    """Return the clients' weights by a rule, and check that its `weigh` returns a number of at least 0 for each."""
    found = rule.weigh(examples)
    if not are_weights(found, len(examples)):
        raise OptionError(
            f"the aggregation rule {rule.name}: weigh returned {show_value(found)} in place of a number of at least 0 for each"
            f" of {len(examples)} clients"
        )
    return list(found)


def step_server(state: ServerState, combined: ServerState, step: float, momentum: float) -> ServerState:
    """Move the global parameters theta to theta + step * v, where v = momentum * v + (combined - theta).

    With `step` 1 and `momentum` 0 the result is the combined parameters. With momentum it is FedAvgM (Hsu et al. 2019); with
    momentum 1, v is the sum of all moves so far.

    Args:
        state: The global state from which the round began.
        combined: The result of the aggregation rule, best in float64.
        step: The server learning rate.
        momentum: Share of the previous v that is added to the new one.

    Returns:
        The next global state in the dtypes of `state`; with momentum, v is among its moments in float64.
    """
    parameters, moments = {}, {}
    for name, theta in state.parameters.items():
        move = combined.parameters[name] - theta.astype(np.float64)
        if momentum > 0:
            move = moments[f"velocity/{name}"] = momentum * state.optimizer.get(f"velocity/{name}", 0.0) + move
        parameters[name] = np.asarray(theta + step * move, dtype=theta.dtype)
    return replace(combined, parameters=parameters, optimizer={**combined.optimizer, **moments})


class _TrimmedStep:
    """The mean of every coordinate without its lowest and highest values; weights are ignored.

    `count_cut` maps the number of updates to the number of values that are cut at either end. Coordinates are processed in
    blocks, so that little memory is needed besides the updates, most of it in cache.
    """

    def __init__(self, state: ServerState, count_cut: Callable[[int], int]) -> None:
        self._state, self._count_cut = state, count_cut
        self._updates: list[Parameters] = []

    def add(self, update: Parameters, weight: float) -> None:
        self._updates.append(update)

    def finish(self) -> ServerState:
        if not self._updates:
            raise DataError("cannot aggregate: no update was added")
        parameters, cut = {}, self._count_cut(len(self._updates))
        for name, current in self._state.parameters.items():
            rows = [update[name].reshape(-1) for update in self._updates]
            combined = np.empty(current.size, dtype=current.dtype)
            for block in blocks(current.size, MAX_BLOCK // len(rows)):
                ordered = np.stack([row[block] for row in rows])
                ordered.sort(axis=0)
                combined[block] = np.mean(ordered[cut : len(rows) - cut], axis=0, dtype=np.float64)
            parameters[name] = combined.reshape(current.shape)
        return replace(self._state, parameters=parameters)


class RunningMean:
    """Sum of weight * update over the sum of weights, for arrays with the names, shapes and dtypes of `current`.

    Sums are taken in float64, in the order in which updates are added, so that the mean of one client equals that client's
    update bit for bit. A few updates are summed in one pass over the memory; their number and total size are limited.
    """

    def __init__(self, current: Parameters) -> None:
        self._current = current
        self._total = 0.0
        self._pending: list[tuple[Parameters, float]] = []
        self._bytes = 0
        self._sums: dict[str, NDArray[np.float64]] = {}

    def add(self, update: Parameters, weight: float = 1.0) -> None:
        """Add an update with a weight; its arrays must not change before the mean is taken."""
        size = sum(update[name].nbytes for name in self._current)
        if self._pending and (len(self._pending) == HELD_MODELS or self._bytes + size > HELD_BYTES):
            for name, value in self._current.items():  # the waiting updates go into the sums
                sums = self._sums.get(name)
                if sums is None:
                    sums = np.empty(value.size, dtype=np.float64)
                for block, summed in self._sum_blocks(name, value.size):
                    sums[block] = summed
                self._sums[name] = sums
            self._pending, self._bytes = [], 0
        self._pending.append((update, weight))
        self._bytes += size
        self._total += weight

    def compute(self, *, narrow: bool = True) -> dict[str, Array]:
        """The mean, in the dtypes of `current` if `narrow`, else in float64; read-only, to be sent and stored without a copy."""
        if not self._pending:
            raise DataError("cannot average: no update was added")
        if not self._total > 0.0:
            raise DataError("cannot average clients whose weights are all zero")
        result = {}
        for name, value in self._current.items():
            mean = np.empty(value.size, dtype=value.dtype if narrow else np.float64)
            for block, summed in self._sum_blocks(name, value.size):
                summed /= self._total
                mean[block] = summed
            mean.flags.writeable = False
            result[name] = mean.reshape(value.shape)
        return result

    def _sum_blocks(self, name: str, size: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Block by block, the sum so far plus the waiting updates, in a buffer that the next block overwrites."""
        sums = self._sums.get(name)
        first = 0 if sums is None else 1
        parts = [(update[name].reshape(-1), weight) for update, weight in self._pending]
        longest = next(blocks(size), slice(0))  # no later block is longer
        rows = np.empty((first + len(parts) + 1, longest.stop), dtype=np.float64)
        for block in blocks(size):
            buffer = rows[:, : block.stop - block.start]
            if sums is not None:
                buffer[0] = sums[block]
            for row, (vector, weight) in zip(buffer[first:], parts, strict=False):
                row[:] = vector[block]
                if weight != 1.0:
                    row *= weight
            summed: NDArray[np.float64] = buffer[-1]
            # from -0.0: starting at 0.0, the sign of a lone -0.0 would be lost
            np.add.reduce(buffer[:-1], axis=0, out=summed, initial=-0.0)
            yield block, summed


class _MeanStep(RunningMean):
    """A running mean from which the rule computes the next global state at the end."""

    def __init__(self, state: ServerState, rule: _OnMean) -> None:
        super().__init__(state.parameters)
        self._state, self._rule = state, rule

    def finish(self) -> ServerState:
        return self._rule.move(self._state, self)


class _Place(NamedTuple):
    """The position of an array in the file."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int


class UpdateStore(AbstractContextManager["UpdateStore"]):
    """The updates of one round by client: the first few in memory, the rest in a temporary file (in the folder that `TMPDIR`
    names), so that a round needs the same memory for ten clients and for ten thousand. Leaving the context removes the file.
    """

    def __init__(self, held_models: int = HELD_MODELS, held_bytes: int = HELD_BYTES) -> None:
        self._held_models, self._held_bytes = held_models, held_bytes
        self._memory: dict[int, Parameters] = {}
        self._places: dict[int, list[_Place]] = {}
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._exit = ExitStack()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.clear()
        self._exit.close()

    def put(self, client: int, parameters: Parameters) -> None:
        """Keep a client's parameters."""
        size = sum(array.nbytes for array in parameters.values())
        if len(self._memory) < self._held_models and self._bytes + size <= self._held_bytes:
            self._memory[client] = parameters
            self._bytes += size
            return
        try:
            if self._file is None:
                self._file = self._exit.enter_context(tempfile.TemporaryFile(prefix="fedagentgym-"))  # noqa: SIM115
            places, offset = [], self._file.seek(0, 2)
            for name, array in parameters.items():
                places.append(_Place(name, array.dtype, array.shape, offset))
                offset += self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            self._file.flush()
            self._places[client] = places
        except OSError as error:
            raise DataError(
                f"a client's update could not be written to a temporary file ({error.strerror}): let TMPDIR name a"
                " folder with more space"
            ) from None

    def take(self, clients: Sequence[int]) -> Iterator[Parameters]:
        """The parameters of these clients, one after the other; each can be read once."""
        for client in clients:
            if client in self._memory:
                yield self._memory.pop(client)
                continue
            assert self._file is not None
            arrays: dict[str, Array] = {}
            for name, dtype, shape, offset in self._places.pop(client):
                self._file.seek(offset)
                data = self._file.read(dtype.itemsize * math.prod(shape))
                arrays[name] = np.ndarray(shape, dtype=dtype, buffer=data)
            yield arrays
