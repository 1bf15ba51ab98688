"""How many threads compute on the CPU.

The default is one for agents that are trained: sums are then taken in one order, so that every worker gives the same bits, and
several workers do not compete for the cores. A single big model gains from more; the last bits then depend on their number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from fedagentgym.base.extras import require
from fedagentgym.base.process import count_usable_cores

Threads = int | Literal["auto"] | None
"""A number, all cores that this process may use, or None: not set."""


def count_threads(wanted: Threads) -> int:
    """Return the number of threads for a setting."""
    if wanted == "auto":
        return count_usable_cores()
    return wanted or 1


def set_threads(wanted: Threads) -> None:
    """Let torch compute with this many threads from now on, in this process."""
    require("torch", "train").set_num_threads(count_threads(wanted))


@contextlib.contextmanager
def use_threads(wanted: Threads) -> Iterator[None]:
    """Compute with this many threads; afterwards the former number is restored."""
    torch = require("torch", "train")
    before = torch.get_num_threads()
    set_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
