"""Pieces of work that run in turns, and wait for each other so that one batch can serve all of them.

`run_together` gives each piece a thread and lets one thread run at a time. A piece runs until it ends or makes a request by
`meet`. When every piece has ended or waits, the requests are served, in one call for each key, and the pieces continue in their
order. So nothing runs concurrently, the order of all operations is the same on every machine, and a piece needs to know nothing
of the others to share a batch with them. Outside of `run_together` a request is served at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


class _Stopped(BaseException):
    """Ends a piece of work whose group was interrupted."""


class _Member:
    """One piece of work: whether it `waits` or is `over`, and what it waits for."""

    def __init__(self, group: Group, work: Callable[[], Any]) -> None:
        self.group, self.work = group, work
        self.turn = threading.Event()
        self.thread = threading.Thread(target=copy_context().run, args=(self._run,), name="together", daemon=True)
        self.waits = self.over = False
        self.key: Hashable = None
        self.serve: Callable[[list[Any]], Sequence[Any]] | None = None
        self.request: Any = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.away = 0.0
        """Seconds that this piece waited, less its share of the time of services."""

    def _run(self) -> None:
        _member.set(self)
        self.turn.wait()
        try:
            if not self.group.stopped:
                self.result = self.work()
        except BaseException as error:
            self.error = error
        self.over = True
        self.group.pass_on()

    def wait(self, key: Hashable, serve: Callable[[list[Any]], Sequence[Any]] | None, request: Any) -> Any:
        began = time.perf_counter()
        self.waits, self.key, self.serve, self.request = True, key, serve, request
        self.turn.clear()
        self.group.pass_on()
        self.turn.wait()
        self.away += time.perf_counter() - began
        if self.group.stopped:
            raise _Stopped
        answer, error, self.answer, self.error = self.answer, self.error, None, None
        if error is not None:
            raise error
        return answer


class Group:
    """Pieces of work that are under way together.

    Attributes:
        size: The number of pieces.
    """

    def __init__(self, works: Sequence[Callable[[], Any]]) -> None:
        self.size = len(works)
        self.stopped = False
        self._members = [_Member(self, work) for work in works]
        self._ended = threading.Event()

    def run(self) -> list[Any]:
        try:
            for member in self._members:
                member.thread.start()
            self.pass_on()
            self._ended.wait()
        except BaseException:
            self.stopped = True
            raise
        for member in self._members:
            member.thread.join()
        for member in self._members:
            if member.error is not None:
                raise member.error
        return [member.result for member in self._members]

    def pass_on(self) -> None:
        """Let the next member run. After the start, only the running member calls this, just before it waits or ends."""
        alive = [member for member in self._members if not member.over]
        if not alive:
            self._ended.set()
            return
        if self.stopped:
            for member in alive:
                member.waits = False
        elif all(member.waits for member in alive):
            _serve(alive)
        next(member for member in alive if not member.waits).turn.set()


def _serve(waiting: Sequence[_Member]) -> None:
    """Serve the requests of waiting members, in one call for each key. If there are none, all members in `wait_for_others`
    go on."""
    asking = [member for member in waiting if member.serve is not None] or waiting
    by_key: dict[Hashable, list[_Member]] = {}
    for member in asking:
        by_key.setdefault(member.key, []).append(member)
    for members in by_key.values():
        began, serve = time.perf_counter(), members[0].serve
        try:
            answers = [None] * len(members) if serve is None else serve([member.request for member in members])
            for member, answer in zip(members, answers, strict=True):
                member.answer = answer
        except Exception as error:
            for member in members:
                member.error = error
        share = (time.perf_counter() - began) / len(members)
        for member in members:
            member.waits, member.request, member.away = False, None, member.away - share


_member: ContextVar[_Member | None] = ContextVar("member", default=None)


def run_together(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run pieces of work one at a time; they can share requests by `meet`. A single piece runs in the calling thread.

    Args:
        works: The pieces of work, as functions without arguments.

    Returns:
        Their results. When all have ended, the exception of the first piece that failed is raised.
    """
    return [work() for work in works] if len(works) < 2 else Group(works).run()


def get_group() -> Group | None:
    """Return the group that the calling piece of work belongs to, or None."""
    member = _member.get()
    return None if member is None else member.group


def meet(key: Hashable, serve: Callable[[list[Request]], Sequence[Answer]], request: Request) -> Answer:
    """Make a request that is served together with requests of the other pieces of the group.

    Args:
        key: Names the service; requests with equal keys are served by one call.
        serve: Takes the requests, in the order of the pieces of work, and returns an answer for each. Its exception is raised in
            all pieces that made one of the requests.
        request: The request.

    Returns:
        The answer.
    """
    member = _member.get()
    answer: Answer = serve([request])[0] if member is None else member.wait(key, serve, request)
    return answer


def wait_for_others(key: Hashable) -> None:
    """Wait until every other piece of work of the group has ended or waits here too."""
    member = _member.get()
    if member is not None:
        member.wait(key, None, None)


def own_time() -> float:
    """A clock like `time.perf_counter` that stands still while this piece of work waits for others. Of a service that it shares
    with others, only its share of the time counts."""
    member = _member.get()
    return time.perf_counter() - (0.0 if member is None else member.away)
