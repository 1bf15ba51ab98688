"""One figure of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of a benchmark: what, how much, in which unit, and the bar it is held against, if any."""

    name: str
    value: float
    unit: str
    bar: str = ""
