"""What a process is at inside a long piece of work, for whoever watches it.

The code that works says so and does not know who listens; without a listener a call costs next to nothing. Nothing that is
computed depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ClientActivity:
    """How far a client is with what it was asked to do: its step of so many (0 of 0 where there are none), its episodes."""

    client: int
    step: int = 0
    steps: int = 0
    episodes: int = 0


Listener = Callable[[ClientActivity], None]
_listener: Listener | None = None
_now: ClientActivity | None = None


@contextlib.contextmanager
def listen(listener: Listener | None) -> Iterator[None]:
    """Tell `listener` what goes on in this process while the block runs."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextlib.contextmanager
def work_for_client(client: int) -> Iterator[None]:
    """What is told in this block is this client's."""
    global _now
    _now = ClientActivity(client)
    tell(_now)
    try:
        yield
    finally:
        _now = None


def tell(activity: ClientActivity) -> None:
    """Pass on what a client is at; also what was heard from another process."""
    if _listener is not None:
        _listener(activity)


def tell_step(step: int, steps: int) -> None:
    """The client under way begins this step of so many."""
    global _now
    if _now is not None and _listener is not None:
        _now = replace(_now, step=step, steps=steps)
        tell(_now)


def tell_episodes(count: int) -> None:
    """So many more episodes of the client under way are over."""
    global _now
    if _now is not None and _listener is not None and count:
        _now = replace(_now, episodes=_now.episodes + count)
        tell(_now)
