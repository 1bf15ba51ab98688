"""How many threads compute on the CPU.

One by default where something is learnt: sums come in one order, so that every place gives the same bits, and several workers do
not fight over the cores. A single big model gains from more; the last bits then depend on their number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from fedagentgym.base.extras import require
from fedagentgym.base.processor import count_usable_cores

Threads = int | Literal["auto"] | None
"""A number, all cores that this process may use, or None: nothing was said."""


def count_threads(wanted: Threads) -> int:
    """Return the number of threads that a setting stands for."""
    if wanted == "auto":
        return count_usable_cores()
    return wanted or 1


def set_threads(wanted: Threads) -> None:
    """Let torch compute with so many threads from now on, in this process."""
    require("torch", "train").set_num_threads(count_threads(wanted))


@contextlib.contextmanager
def use_threads(wanted: Threads) -> Iterator[None]:
    """Compute with so many threads; the number from before is put back."""
    torch = require("torch", "train")
    before = torch.get_num_threads()
    set_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
