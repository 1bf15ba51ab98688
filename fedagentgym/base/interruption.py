"""Ctrl-C: what an interrupted piece of work says about what is saved and how to go on. And a process whose parent is gone.

Only the code that does the work knows what of it is safe. It says so where it begins, and the sentence travels with the
interruption up to whoever tells the user; to every caller in between it is still a `KeyboardInterrupt`.
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
    """Work that, when interrupted, is described by `describe()`; work within work knows better and is not overruled."""
    try:
        yield
    except WorkInterrupted:
        raise
    except KeyboardInterrupt:
        raise WorkInterrupted(describe()) from None


@contextlib.contextmanager
def postpone_interruption(told: str) -> Iterator[None]:
    """Let the block end before Ctrl-C interrupts: the first says `told`, and takes effect at the block's end; the second is
    what it always was. Only the main thread hears of signals, and a program's own handling is left alone where it ignores them.
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
        with contextlib.suppress(OSError, ValueError):  # a handler may stand in the middle of somebody's print
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
    """From now on this process ends when its parent was killed, also in the middle of a computation."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
