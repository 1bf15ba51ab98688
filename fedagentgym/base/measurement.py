"""One figure of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of a benchmark: its name, value and unit, and the limit it is compared with, if any."""

    name: str
    value: float
    unit: str
    bar: str = ""
