"""The output of a run on the terminal: a line per round, a status line below them, and a summary at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.escape import add_plugins, quote_word
from fedagentgym.base.progress import StatusLine, get_console, is_quiet, make_table, show_status
from fedagentgym.base.rounding import count_things, format_duration, format_fixed, format_range, format_share
from fedagentgym.experiment.report.results import AloneAndTogether
from fedagentgym.federation.progress import ProgressCallback, TrainingProgress
from fedagentgym.learning.evaluation import TOLERATED
from fedagentgym.pages.render import format_percent
from fedagentgym.runs.folder import RunFolder


class RoundTable:
    """One line per round, under a heading: participants, success, cost, remaining time.

    A line fits 80 columns whatever its numbers. `status` is the line below the table, cleared before each row.
    """

    COLUMNS = ("round", "clients", "success", "reward", "held-out", "MB", "time", "left")
    WIDTHS = (9, 12, 7, 7, 11, 7, 7, 7)

    def __init__(self, status: StatusLine | None = None) -> None:
        self._status = status
        self._begun = False
        self._started = time.monotonic()
        self._rounds = 0

    def begin(self, rounds: int) -> None:
        self._rounds = rounds

    def round_done(self, record: Mapping[str, Any]) -> None:
        from fedagentgym.federation.records import headline_bytes

        if self._status is not None:
            self._status.clear()
        number, members, metrics = record["round"], record["participants"], record["metrics"]
        if not self._begun:
            self._begun = True
            self._first = number
            self._line(self.COLUMNS)
        place, clients = f"{number}/{self._rounds}", ",".join(map(str, members))
        if record["failures"]:
            clients = f"{len(members)}, {len(record['failures'])} failed"
        elif len(clients) > self.WIDTHS[1]:
            clients = f"{len(members)} clients"
        held_out, seconds, left = "", record["seconds"], ""
        if "evaluation" in record:  # the mean and half of its interval's width
            found = record["evaluation"]["overall"]["success"]
            held_out = f"{format_fixed(found['mean'], 3)} ±{format_fixed((found['high'] - found['low']) / 2, 2)}"
            seconds += record["evaluation"].get("seconds", 0.0)
        if (done := number - self._first) and self._rounds:
            each = (time.monotonic() - self._started) / (done + 1)
            left = format_duration(each * (self._rounds - number))
        megabytes = headline_bytes(record["bytes_total"]) / 1e6
        self._line(
            (
                place if self._rounds and len(place) <= self.WIDTHS[0] else str(number),
                clients,
                _format_number(metrics.get("success")),
                _format_number(metrics.get("reward")),
                held_out,
                format_fixed(megabytes, 2 if megabytes < 1000 else 0),
                format_duration(seconds),
                left,
            )
        )
        broken = metrics.get("format/broken", 0.0)
        if broken > TOLERATED:
            text = (
                f"  {format_share(broken)} of this round's replies were malformed: read some in the folder trajectories"
            )
            get_console().print(text, highlight=False)

    def show_progress(self, progress: TrainingProgress) -> None:
        """Show the progress of the round below the table."""
        if self._status is None:
            return
        self._status.head = f"{str(progress).partition(':')[0]}: "
        if progress.phase == "clients":
            self._status.show(str(progress))

    def _line(self, cells: tuple[str, ...]) -> None:
        text = " ".join(cell[:width].rjust(width) for cell, width in zip(cells, self.WIDTHS, strict=True))
        get_console().print(text, highlight=False, markup=False)


class RunWatch(NamedTuple):
    """The observers that `train` and `resume` take."""

    observers: tuple[RoundTable, ...] = ()
    on_progress: ProgressCallback | None = None


@contextlib.contextmanager
def watch_run() -> Iterator[RunWatch]:
    """The table of a run with its status line, while the block runs; nothing with --quiet."""
    if is_quiet():
        yield RunWatch()
        return
    with show_status() as status:
        table = RoundTable(status)
        yield RunWatch((table,), table.show_progress)


def _format_number(value: float | None) -> str:
    """
    >>> _format_number(0.25), _format_number(-1234567.0)
    ('0.250', '-1.2e+06')
    """
    if value is None:
        return ""
    return f"{value:.2g}" if abs(value) >= 1e5 else format_fixed(value, 3 if abs(value) < 100 else 0)


def print_comparison(found: AloneAndTogether) -> None:
    """Print success by category: at the start, alone, together."""
    out = get_console()
    rows = [
        (
            f"{row.name} (its own)" if row.held else row.name,
            *("" if cell is None else format_percent(cell.mean) for cell in row.cells),
        )
        for row in found.rows
    ]
    out.print()
    out.print(make_table(("held-out tasks", *found.columns), rows))
    for sentence in filter(None, (part for pair in found.sentences for part in pair)):
        out.print()
        out.print(sentence, highlight=False)


def print_summary(folder: Path) -> None:
    """Print the summary at the end of a run."""
    out = get_console()
    record = RunFolder(folder).record
    lines = []
    if record.curve and record.final is not None:
        first, final = record.curve[0].overall["success"], record.final.overall["success"]
        best = "a test split chooses no best round"
        if record.best_round is not None:
            point = next(one for one in record.curve if one.round == record.best_round)
            best = f"best {format_fixed(point.overall['success']['mean'], 3)} in round {point.round}"
        lines += [
            f"success on held-out tasks: {format_fixed(first['mean'], 3)} before, {format_fixed(final['mean'], 3)} after "
            f"{count_things(record.rounds, 'round')}",
            f"  interval {format_range(final['low'], final['high'], 3)}; {best}",
        ]
    if record.ranked is not None and record.tasks is not None:
        lines.append(
            f"ranked: {format_fixed(record.ranked.overall['success']['mean'], 3)} on {count_things(record.tasks.tasks, 'task')}"
            f" of {record.tasks.split}, round {record.ranked.round}"
        )
    lines += [
        f"{format_fixed(record.spent.bytes / 1e6, 2)} MB exchanged, {record.spent.env_steps:,} environment steps,"
        f" {count_things(record.failures or 0, 'failure')}, {format_duration(record.made.seconds)}",
        f"record {folder / 'result.json'}",
    ]
    page = folder / "report.html"
    lines += [f"report {page}"] if page.exists() else []
    again = add_plugins(f"fedagentgym eval --run {quote_word(folder)}", RunFolder(folder).plugins)
    lines += [f"play it again: {again}"]
    out.print()
    for line in lines:
        out.print(line, highlight=False, soft_wrap=True)  # a command is one line, however long
