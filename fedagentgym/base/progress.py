"""Progress display: a bar on a terminal, a line now and then in a log, nothing with --quiet."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from fedagentgym.base.escape import escape_terminal
from fedagentgym.base.process import GENERATED
from fedagentgym.base.rounding import count_things, format_duration

Verbosity = Literal["normal", "quiet"]
_verbosity: Verbosity = "normal"
_LINE_EVERY_SECONDS = 10.0
_STATUS_LINE_EVERY_SECONDS = 30.0
_FIRST_LINE_AFTER_SECONDS = 10.0
_REDRAW_EVERY_SECONDS = 0.1


class Progress:
    """A running task, as seen by the code that does the work; this one shows nothing."""

    def advance(self, n: int = 1, **fields: object) -> None:
        """Add finished parts, and values to show beside their number."""

    def write(self, text: str) -> None:
        """Print a text above the progress."""


def is_quiet() -> bool:
    """Return whether progress is silenced."""
    return _verbosity == "quiet"


def set_verbosity(verbosity: Verbosity) -> None:
    """With `quiet`, silence progress for the whole process; results are still printed."""
    global _verbosity
    _verbosity = verbosity


class PlainConsole(Console):
    """A console that prints text as it is. Names and observations come from files and users, so `[bold]` or `:smile:` in
    them is not markup, and control characters are escaped. Code that prints markup passes `markup=True` and escapes the
    rest."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file=file, soft_wrap=not file.isatty(), markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Drop output after the reader closed the pipe (`| head`); this is not an error."""
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stdout.fileno())

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_terminal(text), **options)


def get_console() -> PlainConsole:
    """The console for results: standard output at the time of the call."""
    return PlainConsole(sys.stdout)


def print_result(result: object, **style: Any) -> None:
    """Print a text or a table to standard output, without colours for numbers; a table that is too wide is not cut."""
    get_console().print(result, highlight=False, crop=False, **style)


def get_error_console() -> PlainConsole:
    """The console for progress and errors: standard error."""
    return PlainConsole(sys.stderr)


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> Table:
    """A table whose first columns are text and the others numbers. Where it is wider than the terminal, heads are broken at
    spaces and text anywhere; a number stays whole."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(heads))
    columns = list(zip(heads, *rows, strict=True))
    whole = [max(map(len, cells)) for cells in columns]
    least = [min(whole[place], 8) for place in range(text)]
    least += [max(map(len, [*head.split(), *cells])) for head, *cells in columns[text:]]
    width, gaps = get_console().width, 2 * len(columns) - 2
    is_wide = sum(whole) + gaps > width
    table.width = sum(least) + gaps if sum(least) + gaps > width else None
    for place, head in enumerate(heads):
        if place < text:
            table.add_column(head, overflow="fold", min_width=least[place])
        else:
            table.add_column(head, justify="right", no_wrap=not is_wide, width=least[place] if is_wide else None)
    for row in zip(*(cells[1:] for cells in columns), strict=True):
        table.add_row(*row)
    return table


@contextlib.contextmanager
def show_progress(
    label: str, total: int | None = None, most_tokens: int | None = None, measure: Callable[[], int] | None = None
) -> Iterator[Progress]:
    """Show progress of one task while the `with` block runs, also while no part of it gets done. A model generates at most
    `most_tokens` in it, from which the end is estimated until the first part is done; `measure` finds how much is done of a task
    that does not say so itself."""
    count = _Count(total, most_tokens, measure)
    if _verbosity == "quiet":
        yield Progress()
    elif _status is not None:
        part = _StatusPart(_status, label, count)
        with _repeat(part):
            yield part
    elif sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}", markup=False),
        )
        with RichProgress(*columns, console=get_error_console(), transient=True) as bar:
            shown = _Bar(bar, bar.add_task(escape_terminal(label), total=total, status=""), count)
            with _repeat(shown):
                yield shown
    else:
        lines = _LogLines(label, count)
        with _repeat(lines):
            yield lines
        lines.close()


@contextlib.contextmanager
def _repeat(shown: _Bar | _StatusPart | _LogLines) -> Iterator[None]:
    """Show the progress of the innermost task again from time to time, whether or not it changes."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_FIRST_LINE_AFTER_SECONDS):
            if _tasks[-1] is shown:
                shown.repeat()

    _tasks.append(shown)
    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _tasks.remove(shown)


_tasks: list[object] = []
"""The tasks that are under way, the innermost last."""


class StatusLine:
    """One status line of a long computation: redrawn in place on a terminal, written now and then to a log.

    Progress of tasks within the computation appears in the same line, after `head`.
    """

    def __init__(self) -> None:
        self.head = ""
        self._live = sys.stderr.isatty()
        self._drawn = False
        early = _STATUS_LINE_EVERY_SECONDS - _FIRST_LINE_AFTER_SECONDS
        self._last = time.monotonic() - early if not self._live else 0.0

    def show(self, text: str) -> None:
        """Update the status; most of several updates in quick succession are skipped."""
        wait = _REDRAW_EVERY_SECONDS if self._live else _STATUS_LINE_EVERY_SECONDS
        if time.monotonic() - self._last < wait:
            return
        self._last = time.monotonic()
        console = get_error_console()
        if not self._live:
            console.print(text, highlight=False)
            return
        line = escape_terminal(text)[: max(console.width - 1, 1)]
        sys.stderr.write(f"\r\x1b[2K{line}")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Clear the status line, so that permanent output can be printed."""
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._drawn = False


_status: StatusLine | None = None


@contextlib.contextmanager
def show_status() -> Iterator[StatusLine]:
    """Show one status line while the block runs; tasks within it draw no bars of their own."""
    global _status
    before, _status = _status, StatusLine()
    try:
        yield _status
    finally:
        _status.clear()
        _status = before


def _format_status(fields: dict[str, object]) -> str:
    return "  ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in fields.items()
    )


class _Bar(Progress):
    def __init__(self, bar: RichProgress, task: object, count: _Count) -> None:
        self._bar, self._count = bar, count
        self._task = bar.task_ids[-1]

    def repeat(self) -> None:
        self._count.refresh()
        if not self._count.done:
            self._bar.update(self._task, status=self._count.describe_tokens())
        elif self._count.measure is not None:
            self._bar.update(self._task, completed=self._count.done)

    def advance(self, n: int = 1, **fields: object) -> None:
        self._count.done += n
        if fields or self._count.done == n:
            self._bar.update(self._task, advance=n, status=escape_terminal(_format_status(fields)))
        else:
            self._bar.update(self._task, advance=n)

    def write(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)


@dataclass
class _Count:
    """The part of a task that is done, and, from a twentieth on, the time that the rest takes if it goes on like this."""

    total: int | None
    most_tokens: int | None = None
    measure: Callable[[], int] | None = None
    done: int = 0
    start: float = field(default_factory=time.monotonic)
    tokens: int = field(default_factory=lambda: GENERATED.tokens)

    def __str__(self) -> str:
        if self.total is None:
            return str(self.done) if self.done else ""
        seconds = time.monotonic() - self.start
        count = f"{self.done} of {self.total}"
        is_early = 20 * self.done < self.total
        if is_early and (shown := self.describe_tokens()):
            return f"{count}, {shown}"
        if seconds < 1 or is_early or self.done >= self.total:
            return count
        return f"{count}, {format_duration(seconds / self.done * (self.total - self.done))} left"

    def refresh(self) -> None:
        """Find how much is done, where the task does not say so."""
        if self.measure is not None:
            with contextlib.suppress(OSError):  # a file that is moved at this moment
                self.done = self.measure()

    def describe_tokens(self) -> str:
        """Return how many tokens were generated, and the longest time that the rest takes at this speed."""
        tokens, seconds = GENERATED.tokens - self.tokens, time.monotonic() - self.start
        if not tokens:
            return ""
        shown = count_things(tokens, "token")
        if self.most_tokens is None or tokens > self.most_tokens:
            return shown
        return f"{shown}, at most {format_duration(seconds / tokens * (self.most_tokens - tokens))} left"


class _StatusPart(Progress):
    """A task within a computation that has a status line."""

    def __init__(self, status: StatusLine, label: str, count: _Count) -> None:
        self._status, self._label, self._count = status, label, count

    def repeat(self) -> None:
        self._count.refresh()
        self.advance(0)

    def advance(self, n: int = 1, **fields: object) -> None:
        self._count.done += n
        self._status.show(f"{self._status.head}{self._label}, {self._count}  {_format_status(fields)}".rstrip())

    def write(self, text: str) -> None:
        self._status.clear()
        get_error_console().print(text, highlight=False)


class _LogLines(Progress):
    def __init__(self, label: str, count: _Count) -> None:
        self._label, self._count = label, count
        self._last = self._count.start
        self._file = sys.stderr  # libraries that are silenced by a redirection silence no progress

    def repeat(self) -> None:
        self._count.refresh()
        self.advance(0, elapsed=format_duration(time.monotonic() - self._count.start))

    def advance(self, n: int = 1, **fields: object) -> None:
        self._count.done += n
        if time.monotonic() - self._last >= _LINE_EVERY_SECONDS:
            self._last = time.monotonic()
            parts = (str(self._count), _format_status(fields))
            self.write(f"{self._label}: {'  '.join(filter(None, parts))}")

    def write(self, text: str) -> None:
        PlainConsole(self._file).print(text, highlight=False, markup=False)

    def close(self) -> None:
        seconds = time.monotonic() - self._count.start
        if seconds >= 1.0 and (self._count.done or self._last > self._count.start):
            if self._count.measure is not None:
                self._count.refresh()
            done = self._count.done if self._count.total is None else f"{self._count.done} of {self._count.total}"
            self.write(f"{self._label}: {f'{done} in ' if self._count.done else ''}{format_duration(seconds)}")
