"""Ctrl-C: what an interrupted piece of work says about what is saved and how to go on. And a process whose parent is gone.

Only the code that does the work knows what of it is safe. It says so where it begins, and the sentence travels with the
interruption up to whoever tells the user; to every caller in between it is still a `KeyboardInterrupt`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator


class WorkInterrupted(KeyboardInterrupt):
    """An interruption together with a sentence about what is saved."""


@contextlib.contextmanager
def explain_interruption(describe: Callable[[], str]) -> Iterator[None]:
    """Work that, when interrupted, is described by `describe()`; work within work knows better and is not overruled."""
    try:
        yield
    except WorkInterrupted:
        raise
    except KeyboardInterrupt:
        raise WorkInterrupted(describe()) from None


def end_with_parent(parent: int) -> None:
    """From now on this process ends when its parent was killed, also in the middle of a computation."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
