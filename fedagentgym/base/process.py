"""Functions about a whole process: log lines, Ctrl-C, ending with the parent, the processor, and reports of progress.

The library adds no handlers to the logger `fedagentgym`; a command adds one (`log_to_stderr`).

An interruption carries a sentence about what is saved and how to continue. Only the code that does the work knows what is saved,
so this code gives the sentence where its work begins (`explain_interruption`). For every caller in between, the interruption is
still a `KeyboardInterrupt`.

The code that computes reports its progress (`report_step`, `report_episodes`); a listener, if there is one, receives the reports.
Without a listener a call costs almost nothing. No result depends on the reports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from fedagentgym.base import devices
from fedagentgym.base.escape import escape_terminal


def get_logger(name: str) -> logging.Logger:
    """The logger of a module: `get_logger(__name__)`."""
    return logging.getLogger(name if name.startswith("fedagentgym") else f"fedagentgym.{name}")


class LineFormatter(logging.Formatter):
    """Writes each message on one line, so that a text quoted in it can neither move the cursor nor begin a new line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = "\\n".join(record.message.splitlines())
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return escape_terminal(super().format(record))


def log_to_stderr() -> None:
    """Print this package's warnings on standard error, one line each; called when a command starts."""
    root = logging.getLogger("fedagentgym")
    root.setLevel(logging.WARNING)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)


_OWNED = threading.Event()


def own_process() -> None:
    """Note that this process is the package's: a command or a worker. The global switches of other processes are not changed."""
    _OWNED.set()


def is_own_process() -> bool:
    """True if this process is the package's own, so that its global switches may be set."""
    return _OWNED.is_set()


class WorkInterrupted(KeyboardInterrupt):
    """An interruption together with a sentence about what is saved."""


@contextlib.contextmanager
def explain_interruption(describe: Callable[[], str]) -> Iterator[None]:
    """Attach the sentence of `describe()` to an interruption of the block; the sentence of a nested block takes precedence."""
    try:
        yield
    except WorkInterrupted:
        raise
    except KeyboardInterrupt:
        raise WorkInterrupted(describe()) from None


@contextlib.contextmanager
def postpone_interruption(message: str) -> Iterator[None]:
    """Delay Ctrl-C until the block ends: the first one prints `message` and takes effect at the end of the block; the second
    acts at once.

    This does nothing outside the main thread (only the main thread receives signals), in a program that ignores Ctrl-C, and in
    the ranks of a sharded run (torchrun kills them half a minute after it has passed Ctrl-C on to them).
    """
    usual = signal.getsignal(signal.SIGINT)
    if devices.here().shards or threading.current_thread() is not threading.main_thread() or not callable(usual):
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
            os.write(sys.stderr.fileno(), f"\n{message}\n".encode())

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is wait:
            signal.signal(signal.SIGINT, usual)
    if asked:
        raise KeyboardInterrupt


def end_with_parent(parent: int) -> None:
    """From now on, end this process when its parent has ended, even during a computation."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
"""Instruction sets with bfloat16 products, as Linux names them; without any of them, bfloat16 is computed by slow conversion."""
_CPU_FILE = Path("/proc/cpuinfo")


class Ability(NamedTuple):
    """A capability that the processor has or lacks, and the reason to think so."""

    present: bool
    reason: str


def check_bfloat16() -> Ability:
    """Return the processor's ability to multiply fast in bfloat16, as far as the system says."""
    flags = _read_cpu_field("flags", "Features")
    if flags is None:
        return Ability(False, f"unknown: {_CPU_FILE} cannot be read")
    found = [flag for flag in BFLOAT16_FLAGS if flag in flags.split()]
    return Ability(
        bool(found), f"the processor has {' and '.join(found or ['neither ' + ' nor '.join(BFLOAT16_FLAGS)])}"
    )


def read_processor_name() -> str:
    """Return the system's name for this kind of processor, or the architecture if it has none."""
    return (_read_cpu_field("model name") or "").strip() or platform.machine()


def _read_cpu_field(*names: str) -> str | None:
    """Return the first core's entry under one of these names."""
    try:
        lines = _CPU_FILE.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in names), None)


def count_usable_cores() -> int:
    """Return how many threads of this process may compute at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- reports of progress --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientActivity:
    """The progress of a client: its step out of a total (0 of 0 if it has no steps), and its finished episodes."""

    client: int
    step: int = 0
    steps: int = 0
    episodes: int = 0


Listener = Callable[[ClientActivity], None]
_listener: Listener | None = None
_now: ContextVar[ClientActivity | None] = ContextVar("now", default=None)


@contextlib.contextmanager
def listen(listener: Listener | None) -> Iterator[None]:
    """Send the reports of this process to `listener` while the block runs."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextlib.contextmanager
def work_for_client(client: int) -> Iterator[None]:
    """Attribute the reports of this block to this client."""
    before = _now.set(ClientActivity(client))
    report_progress(ClientActivity(client))
    try:
        yield
    finally:
        _now.reset(before)


def report_progress(activity: ClientActivity) -> None:
    """Report the progress of a client; also used to forward reports of another process."""
    if _listener is not None:
        _listener(activity)


def report_step(step: int, steps: int) -> None:
    """Report that the current client begins this step out of a total."""
    now = _now.get()
    if now is not None and _listener is not None:
        _now.set(replace(now, step=step, steps=steps))
        report_progress(replace(now, step=step, steps=steps))


@dataclass
class Generated:
    """The number of tokens that the models of this process have generated; progress shows it before an episode is over."""

    tokens: int = 0


GENERATED = Generated()


def report_episodes(count: int) -> None:
    """Report that the current client finished more episodes."""
    now = _now.get()
    if now is not None and _listener is not None and count:
        _now.set(replace(now, episodes=now.episodes + count))
        report_progress(replace(now, episodes=now.episodes + count))
