"""Watching a run, and stopping one: the callback, the table of 80 columns, the line below it, Ctrl-C."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base import progress as screen
from fedagentgym.base.process import GENERATED, ClientActivity, listen, report_episodes, report_step, work_for_client
from fedagentgym.experiment.report import terminal
from fedagentgym.experiment.report.terminal import RoundTable, watch_run
from fedagentgym.federation import progress
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.progress import ProgressTracker, TrainingProgress
from fedagentgym.federation.records import COLUMNS, DIRECTIONS

RunToy = Callable[..., Commit]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_callback_hears_of_rounds_clients_and_evaluations(run_toy: RunToy, tmp_path: Path, workers: int) -> None:
    heard: list[TrainingProgress] = []
    plan = {"on_progress": heard.append, "evaluate": lambda number, state: {"success": 0.5}}
    run_toy(tmp_path, rounds=2, clients=3, workers=workers, plan=plan)
    assert [one.round for one in heard] == sorted(one.round for one in heard) and heard[-1].round == 2
    assert {one.phase for one in heard} == {"clients", "evaluation"}
    assert {one.answered for one in heard if one.round == 1} >= {1, 2, 3}
    if not workers:
        assert {client.client for one in heard for client in one.working} == {0, 1, 2}
    assert all(len(str(one)) < 80 for one in heard)


def test_a_watched_run_is_the_same_run(run_toy: RunToy, tmp_path: Path) -> None:
    watched = run_toy(tmp_path / "a", plan={"on_progress": lambda progress: None})
    assert watched.state.digest == run_toy(tmp_path / "b").state.digest


def test_what_a_client_is_at_is_told_only_while_somebody_listens() -> None:
    heard: list[ClientActivity] = []
    report_step(1, 2)
    with listen(heard.append):
        report_episodes(3)
        with work_for_client(7):
            report_step(2, 4)
            report_episodes(5)
            report_episodes(0)
    assert heard == [ClientActivity(7), ClientActivity(7, 2, 4), ClientActivity(7, 2, 4, 5)]


def test_time_left_is_told_as_soon_as_it_can_be_known() -> None:
    heard: list[TrainingProgress] = []
    now = [0.0]
    tracker = ProgressTracker(heard.append, clock=lambda: now[0])
    tracker.begin_round(1, 3)
    tracker.ask([4, 7])
    tracker.record_activity(ClientActivity(4, 1, 2))
    assert heard[-1].seconds_left is None
    now[0] = 10.0
    tracker.record_activity(ClientActivity(4, 2, 2, episodes=50))
    assert heard[-1].seconds_left == pytest.approx(30 + 2 * 40) and heard[-1].episodes_per_second == 5
    now[0] = 20.0
    tracker.answer(4)
    tracker.record_activity(ClientActivity(7, 1, 2))
    assert str(heard[-1]) == "round 1 of 3: client 7, step 1 of 2, 2.5 episodes/s, 1.7 min left"
    now[0] = 30.0
    tracker.begin_round(2, 3)
    assert heard[-1].seconds_left == pytest.approx(60)


# ---- the table --------------------------------------------------------------------------------------------------------

NUMBER = st.floats(-1e12, 1e12)
RECORD = st.fixed_dictionaries(
    {
        "round": st.integers(0, 10**6),
        "participants": st.lists(st.integers(0, 10**5), max_size=60),
        "failures": st.lists(st.just({}), max_size=60),
        "metrics": st.fixed_dictionaries({}, optional={"success": NUMBER, "reward": NUMBER}),
        "bytes_total": st.integers(0, 10**14).map(lambda size: dict.fromkeys(DIRECTIONS, dict.fromkeys(COLUMNS, size))),
        "seconds": st.floats(0, 1e7),
    },
    optional={
        "evaluation": st.fixed_dictionaries(
            {"overall": st.just({"success": {"mean": 0.5, "low": 0.1, "high": 1.0}}), "seconds": st.floats(0, 1e6)}
        )
    },
)


@given(records=st.lists(RECORD, min_size=1, max_size=4), rounds=st.integers(0, 10**6))
def test_no_line_of_the_table_is_wider_than_80_columns(records: list[dict[str, Any]], rounds: int) -> None:
    before, sys.stdout = sys.stdout, io.StringIO()
    try:
        table = RoundTable()
        table.begin(rounds)
        for record in records:
            table.round_done(record)
        lines = sys.stdout.getvalue().splitlines()
    finally:
        sys.stdout = before
    assert len(lines) == len(records) + 1 and max(map(len, lines)) <= 79


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests ask for quiet, which holds for the whole process."""
    monkeypatch.setattr(screen, "_verbosity", "normal")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("talkative")
def test_the_line_is_redrawn_on_a_terminal_and_makes_way_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(screen, "_REDRAW_EVERY_SECONDS", 0.0)
    with screen.show_status() as status:
        status.show("round 1 of 2: " + "client 7, " * 30)
        status.head = "round 1 of 2: "
        with screen.show_progress("evaluating", total=9) as bar:
            bar.advance(4)
    shown = out.getvalue().split("\r\x1b[2K")
    assert shown[0] == "" and len(shown[1]) <= 79 and shown[2] == "round 1 of 2: evaluating, 4 of 9" and shown[-1] == ""
    assert "\n" not in out.getvalue()


def test_a_log_gets_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with screen.show_status() as status:
        status.show("too soon")
        monkeypatch.setattr(screen, "_STATUS_LINE_EVERY_SECONDS", 0.0)
        status.show("round 1 of 2: client 7")
    assert out.getvalue() == "round 1 of 2: client 7\n"


def test_a_slow_model_says_so_before_its_first_episode_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(screen, "_FIRST_LINE_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(screen, "_LINE_EVERY_SECONDS", 0.0)
    with screen.show_progress("evaluating", total=4, most_tokens=4000):
        GENERATED.tokens += 1000
        deadline = time.perf_counter() + 5.0
        while not out.getvalue() and time.perf_counter() < deadline:
            time.sleep(0.01)
    assert re.match(r"evaluating: 0 of 4, 1,000 tokens, at most 0 s left  elapsed 0 s", out.getvalue())


def test_nothing_is_shown_to_somebody_who_asked_for_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_verbosity", "quiet")
    with watch_run() as watch:
        assert watch.observers == () and watch.on_progress is None


# ---- stopping ---------------------------------------------------------------------------------------------------------


def interrupt(times: int) -> Callable[[TrainingProgress], None]:
    """Press Ctrl-C so often as soon as the first client of round 2 has answered."""
    left = [times]

    def press(progress: TrainingProgress) -> None:
        if progress.round == 2 and progress.phase == "clients" and progress.answered == 1:
            while left[0]:
                left[0] -= 1
                os.kill(os.getpid(), signal.SIGINT)

    return press


@pytest.mark.parametrize(("times", "kept"), [(1, 2), (2, 1)])
def test_ctrl_c_lets_a_round_end_and_a_second_one_does_not(
    run_toy: RunToy, tmp_path: Path, capfd: pytest.CaptureFixture[str], times: int, kept: int
) -> None:
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_toy(tmp_path / "a", rounds=4, plan={"on_progress": interrupt(times)})
    assert signal.getsignal(signal.SIGINT) is usual
    assert "stopping after round 2" in capfd.readouterr().err
    assert len(list((tmp_path / "a" / "rounds").glob("*/round.json"))) == kept + 1
    assert run_toy(tmp_path / "a", rounds=4).state.digest == run_toy(tmp_path / "b", rounds=4).state.digest


@pytest.mark.parametrize("module", [progress, terminal])
def test_doctests(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_a_task_that_says_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `model add` is: a log has its figures, also while a library writes to nowhere."""
    monkeypatch.setattr(screen, "_FIRST_LINE_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(screen, "_LINE_EVERY_SECONDS", 0.0)
    size = iter(range(1, 1000))
    with (
        screen.show_progress("adding a, MB", 1000, measure=lambda: next(size)),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        time.sleep(0.5)
    with screen.show_progress("loading b"):
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("adding a, MB: 1 of 1000") and lines[1].startswith("adding a, MB: 2 of 1000")
    assert lines[-1].startswith("loading b: elapsed "), lines
