"""Pieces of work that take turns: one order of operations, one call where they meet, and no neighbour's errors."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.process import ClientActivity, listen, report_step, work_for_client
from fedagentgym.base.together import get_group, meet, own_time, run_together, wait_for_others

PLANS = st.lists(st.lists(st.sampled_from(["a", "b", "wait"]), max_size=5), min_size=1, max_size=5)


@given(plans=PLANS)
def test_every_request_is_answered_in_one_order_with_as_few_calls_as_possible(plans: list[list[str]]) -> None:
    log: list[Any] = []
    running: list[int] = []

    def serve(key: str, requests: list[int]) -> list[str]:
        log.append((key, tuple(requests)))
        return [f"{key}{request}" for request in requests]

    def work(number: int) -> list[str | None]:
        found: list[str | None] = []
        for step in plans[number]:
            running.append(number)
            assert len(running) == 1
            running.pop()
            if step == "wait":
                wait_for_others("end")
                found.append(None)
            else:
                found.append(meet(step, partial(serve, step), number))
        return found

    works = [partial(work, number) for number in range(len(plans))]
    expected = [[None if s == "wait" else f"{s}{number}" for s in plan] for number, plan in enumerate(plans)]
    assert run_together(works) == expected
    first, log = log, []
    assert run_together(works) == expected and log == first
    for key in "ab":  # nobody asks twice in one call, and calls are in the order of the pieces
        assert all(list(asked) == sorted(set(asked)) for name, asked in first if name == key)
    if all(plan == plans[0] for plan in plans) and "wait" not in plans[0]:
        assert len(first) == len(plans[0])


def test_an_error_of_a_service_goes_to_those_that_asked_and_one_of_a_piece_ends_it_alone() -> None:
    def serve(requests: list[int]) -> list[int]:
        raise ValueError("broken")

    def ask(number: int) -> str:
        with pytest.raises(ValueError, match="broken"):
            meet("bad", serve, number)
        return str(meet("good", lambda requests: requests, number))

    assert run_together([partial(ask, 1), partial(ask, 2), lambda: "quiet"]) == ["1", "2", "quiet"]
    done = []

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_together([fail, lambda: done.append(meet("good", lambda requests: requests, 1))])
    assert done == [1]


def test_outside_a_group_a_request_is_served_at_once() -> None:
    assert get_group() is None and meet("any", lambda requests: [one + 1 for one in requests], 1) == 2
    wait_for_others("any")
    assert run_together([get_group]) == [None]


def test_a_wait_is_not_the_time_of_who_waits() -> None:
    def serve(requests: list[int]) -> list[int]:
        time.sleep(0.2)
        return requests

    def work(busy: float) -> float:
        began = own_time()
        time.sleep(busy)
        meet("key", serve, 1)
        return own_time() - began

    started = time.perf_counter()
    short, long = run_together([partial(work, 0.0), partial(work, 0.3)])
    whole = time.perf_counter() - started
    assert short < long and short + long <= whole + 0.05  # the time of all is that of the group, counted once


def test_reports_of_progress_belong_to_the_client_that_makes_them() -> None:
    heard: list[ClientActivity] = []

    def work(client: int) -> None:
        with work_for_client(client):
            for step in (1, 2):
                report_step(step, 2)
                meet("key", lambda requests: requests, client)

    with listen(heard.append):
        run_together([partial(work, 4), partial(work, 7)])
    assert [(one.client, one.step) for one in heard] == [(4, 0), (4, 1), (7, 0), (7, 1), (4, 2), (7, 2)]


def test_an_interruption_ends_all_pieces() -> None:
    ended, main = [], threading.main_thread().ident
    assert main is not None

    def work(number: int) -> None:
        try:
            for step in range(1000):
                meet("key", lambda requests: requests, number)
                if (number, step) == (2, 2):
                    signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.005)
        finally:
            ended.append((number, step))

    with pytest.raises(KeyboardInterrupt):
        run_together([partial(work, 1), partial(work, 2)])
    for thread in [one for one in threading.enumerate() if one.name == "together"]:
        thread.join(5)
    assert sorted(number for number, _ in ended) == [1, 2] and max(step for _, step in ended) < 999
