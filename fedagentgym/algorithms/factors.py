"""Products of two factors: the adapter of a layer, and the change of its frozen weights.

A change of frozen weights is kept and sent layer by layer, divided by the adapter's scale. Every round raises its rank. While two
factors have fewer numbers than the layer, they are stored: LAYER.lora_B.base and LAYER.lora_A.base. After that the change is
stored as a matrix, LAYER, in float64 in the server's memory and in float32 in messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedagentgym.agents.model.names import BASE, HIGH, LOW, pair_factors
from fedagentgym.base.errors import DataError
from fedagentgym.federation.message import Array, ArrayForm, AtMost, Parameters

Matrix = NDArray[np.float64]


class Pair(NamedTuple):
    """The factors of a layer: A [rank, inputs] and B [outputs, rank]."""

    low: Matrix
    high: Matrix

    @property
    def product(self) -> Matrix:
        return self.high @ self.low


def read_pairs(parameters: Parameters) -> dict[str, Pair]:
    """The factors of every adapted layer in float64, by the layer's name."""
    return {
        layer: Pair(parameters[low].astype(np.float64), parameters[high].astype(np.float64))
        for layer, (low, high) in pair_factors(parameters).items()
    }


def find_most_rank(outputs: int, inputs: int) -> int:
    """The highest rank at which factors have fewer numbers than the matrix.

    >>> find_most_rank(64, 64)
    31
    """
    return (outputs * inputs - 1) // (outputs + inputs)


def count_change(rank: int, outputs: int, inputs: int) -> int:
    """The size of a change of this rank, in numbers."""
    return rank * (outputs + inputs) if rank <= find_most_rank(outputs, inputs) else outputs * inputs


def add_change(
    base: Mapping[str, Array], layer: str, rest: Matrix, factors: Pair | None, dtype: DTypeLike
) -> dict[str, Array]:
    """Add to the change of one layer.

    Args:
        base: The arrays of the earlier changes, of all layers.
        layer: The layer.
        rest: The matrix to add.
        factors: The factors of `rest`; None if its rank may be full.
        dtype: The type of the factors that are kept and sent.

    Returns:
        The layer's arrays.
    """
    names, whole = (f"{layer}{LOW}{BASE}", f"{layer}{HIGH}{BASE}"), base.get(layer)
    before = [base[name] for name in names if name in base]
    if factors is not None and whole is None:
        low, high = factors.low.astype(dtype), factors.high.astype(dtype)
        if before:
            low, high = np.vstack([before[0], low]), np.hstack([before[1], high])
        if len(low) <= find_most_rank(*rest.shape):
            return dict(zip(names, (low, high), strict=True)) if len(low) else {}
    if before:
        whole = read_pairs(dict(zip(names, before, strict=True)))[layer].product
    return {layer: rest if whole is None else whole + rest}


def read_changes(base: Parameters) -> dict[str, Matrix]:
    """The changes by the layer's name, divided by the scale.

    Raises:
        DataError: If the factors of a layer do not belong together.
    """
    changes: dict[str, Matrix] = {name: array.astype(np.float64) for name, array in base.items() if not is_factor(name)}
    factors = {name: array for name, array in base.items() if is_factor(name)}
    pairs = pair_factors(factors)
    if {name for pair in pairs.values() for name in pair} != set(factors):
        raise DataError("in a change of the base, a layer has one factor alone")
    if layer := next((one for one, (low, high) in pairs.items() if len(factors[low]) != factors[high].shape[1]), None):
        raise DataError(f"in the change of {layer!r}, A and B have different ranks")
    if layer := next((one for one in pairs if one in changes), None):
        raise DataError(f"the change of {layer!r} is given twice, as a matrix and as factors")
    return changes | {layer: pair.product for layer, pair in read_pairs(factors).items()}


def iter_change_forms(parameters: Parameters) -> Iterator[tuple[str, ArrayForm]]:
    """The declarations of a change's arrays, from the factors of all adapted layers."""
    for layer, pair in read_pairs(parameters).items():
        outputs, inputs = len(pair.high), pair.low.shape[1]
        most = AtMost(find_most_rank(outputs, inputs))
        yield layer, ArrayForm("float32", (outputs, inputs), optional=True)
        yield f"{layer}{LOW}{BASE}", ArrayForm("float32", (most, inputs), optional=True)
        yield f"{layer}{HIGH}{BASE}", ArrayForm("float32", (outputs, most), optional=True)


def is_factor(name: str) -> bool:
    """True for the name of an A or a B."""
    return LOW in name or HIGH in name
