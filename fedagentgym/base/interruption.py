"""Ctrl-C: an interruption carries a sentence about what is saved and how to continue. Also: end when the parent was killed.

Only the code that does the work knows what is saved. It describes it where the work begins, and the sentence is attached to
the interruption that reaches the user; for every caller in between it is still a `KeyboardInterrupt`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType


class WorkInterrupted(KeyboardInterrupt):
    """An interruption together with a sentence about what is saved."""


@contextlib.contextmanager
def explain_interruption(describe: Callable[[], str]) -> Iterator[None]:
    """Work that, if interrupted, is described by `describe()`; the description of nested work takes precedence."""
    try:
        yield
    except WorkInterrupted:
        raise
    except KeyboardInterrupt:
        raise WorkInterrupted(describe()) from None


@contextlib.contextmanager
def postpone_interruption(told: str) -> Iterator[None]:
    """Delay Ctrl-C until the block ends: the first one prints `told` and takes effect at the end of the block; the second
    acts at once. Signals reach only the main thread; a program that ignores them is left alone.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    asked = False

    def wait(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            signal.signal(signal.SIGINT, usual)
            usual(number, frame)
            return
        asked = True
        with contextlib.suppress(OSError, ValueError):  # the signal may arrive in the middle of a print
            os.write(sys.stderr.fileno(), f"\n{told}\n".encode())

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is wait:
            signal.signal(signal.SIGINT, usual)
    if asked:
        raise KeyboardInterrupt


def end_with_parent(parent: int) -> None:
    """From now on, end this process when its parent is killed, even during a computation."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
