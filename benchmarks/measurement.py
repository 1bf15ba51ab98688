"""One figure of a benchmark, and the unit in which limits of times are counted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of a benchmark: its name, value and unit, and the limit it is compared with, if any."""

    name: str
    value: float
    unit: str
    bar: str = ""


_WORDS = 4_700
_TRIALS = 20
_UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Yardstick:
    """The unit of limits on times: the seconds that a fixed piece of plain Python takes."""

    seconds: float

    @classmethod
    def measure(cls) -> Self:
        """Measure the unit: the processor time of the fastest of several trials."""
        times = []
        for _ in range(_TRIALS):
            began = time.process_time()
            _count_words()
            times.append(time.process_time() - began)
        return cls(min(times))

    def to_measurement(self) -> Measurement:
        """The unit as a figure, printed with the figures whose limits are multiples of it."""
        return Measurement("yardstick: a fixed piece of plain Python", 1e3 * self.seconds, "ms")

    def limit(self, count: float, unit: str) -> str:
        """The limit of a time: a number of yardsticks, and its value on this machine."""
        return f"< {count * self.seconds / _UNITS[unit]:.3g} ({count:,g} yardsticks)"

    def least_rate(self, count: float) -> str:
        """The limit of a rate per second: a number per yardstick, and its value on this machine."""
        return f"at least {count / self.seconds:,.0f} ({count:g} a yardstick)"


def _count_words() -> int:
    """Build strings, fill a mapping and sort it: typical work of an interpreter."""
    counts: dict[str, int] = {}
    for number in range(_WORDS):
        word = str(number * 7919 % 1013)
        counts[word] = counts.get(word, 0) + 1
    return len(" ".join(sorted(counts)))
