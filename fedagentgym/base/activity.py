"""Reports of what a process is doing during a long computation.

The code that computes calls these functions; a listener, if there is one, receives the reports. Without a listener a call
costs almost nothing. No result depends on the reports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ClientActivity:
    """The progress of a client: its step out of a total (0 of 0 if it has no steps), and its finished episodes."""

    client: int
    step: int = 0
    steps: int = 0
    episodes: int = 0


Listener = Callable[[ClientActivity], None]
_listener: Listener | None = None
_now: ClientActivity | None = None


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
    global _now
    _now = ClientActivity(client)
    tell(_now)
    try:
        yield
    finally:
        _now = None


def tell(activity: ClientActivity) -> None:
    """Report the progress of a client; also used to forward reports of another process."""
    if _listener is not None:
        _listener(activity)


def tell_step(step: int, steps: int) -> None:
    """Report that the current client begins this step out of a total."""
    global _now
    if _now is not None and _listener is not None:
        _now = replace(_now, step=step, steps=steps)
        tell(_now)


def tell_episodes(count: int) -> None:
    """Report that the current client finished more episodes."""
    global _now
    if _now is not None and _listener is not None and count:
        _now = replace(_now, episodes=_now.episodes + count)
        tell(_now)
