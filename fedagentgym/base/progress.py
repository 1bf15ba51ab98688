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
from rich.table import Column, Table
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
    """The progress of a running task, as the code that does the work reports it; this base class shows nothing."""

    def advance(self, n: int = 1, **fields: object) -> None:
        """Add `n` finished parts; `fields` are values to show beside their number."""

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
            os.dup2(nowhere.fileno(), self.file.fileno())

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


def measure_path(cell: str) -> int:
    """The width at which no path in a cell is broken: that of the cell if it is an existing path, else that of its longest word
    with a slash."""
    if "/" in cell and os.path.exists(cell):  # noqa: PTH110 - False for a text that no file can be called, where Path raises
        return len(cell)
    return max((len(word) for word in cell.split() if "/" in word), default=0)


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> Table:
    """A table whose first `text` columns are text and the others numbers. If it is wider than the terminal, heads are wrapped
    at spaces and text anywhere, but numbers and paths are never broken."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(heads))
    columns = list(zip(heads, *rows, strict=True))
    whole = [max(map(len, cells)) for cells in columns]
    least = [max(min(whole[place], 8), *map(measure_path, columns[place])) for place in range(text)]
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
    """Show the progress of one task while the `with` block runs, also while no part of it gets done. `most_tokens` is the maximum
    number of tokens that a model generates in the block; the remaining time is estimated from it until a twentieth is done.
    `measure` counts the finished parts of a task that does not report them itself."""
    shown: _Task
    if _verbosity == "quiet":
        yield Progress()
    elif _status is not None:
        with _repeat(shown := _StatusPart(label, total, most_tokens, measure, status=_status)):
            yield shown
    elif sys.stderr.isatty():
        columns = (  # on a narrow terminal texts are wrapped, and no number is cut
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[status]}", markup=False, table_column=Column(overflow="fold")),
        )
        with RichProgress(*columns, console=get_error_console(), transient=True) as bar:
            bar.add_task(escape_terminal(label), total=total, status="")
            with _repeat(shown := _Bar(label, total, most_tokens, measure, bar=bar)):
                yield shown
    else:
        with _repeat(shown := _LogLines(label, total, most_tokens, measure)):
            yield shown
        shown.close()


@contextlib.contextmanager
def _repeat(shown: _Task) -> Iterator[None]:
    """Show the progress again from time to time, even if it has not changed, while `shown` is the innermost task."""
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


@dataclass(eq=False)
class _Task(Progress):
    """A task on display: the number of finished parts and, once a twentieth is done, the estimated remaining time."""

    label: str
    total: int | None
    most_tokens: int | None
    measure: Callable[[], int] | None
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

    def repeat(self) -> None:
        """Show the progress again; call `measure` first if the task has such a function."""
        self.refresh()
        self.advance(0)

    def refresh(self) -> None:
        if self.measure is not None:
            with contextlib.suppress(OSError):  # a measured file may be moved at this moment
                self.done = self.measure()

    def describe_tokens(self) -> str:
        """Return the number of generated tokens and the maximum remaining time at this speed, as text."""
        tokens, seconds = GENERATED.tokens - self.tokens, time.monotonic() - self.start
        if not tokens:
            return ""
        shown = count_things(tokens, "token")
        if self.most_tokens is None or tokens > self.most_tokens:
            return shown
        return f"{shown}, at most {format_duration(seconds / tokens * (self.most_tokens - tokens))} left"


@dataclass(eq=False, kw_only=True)
class _Bar(_Task):
    bar: RichProgress

    def repeat(self) -> None:
        self.refresh()
        if not self.done:
            self.bar.update(self.bar.task_ids[-1], status=self.describe_tokens())
        elif self.measure is not None:
            self.bar.update(self.bar.task_ids[-1], completed=self.done)

    def advance(self, n: int = 1, **fields: object) -> None:
        self.done += n
        if fields or self.done == n:
            self.bar.update(self.bar.task_ids[-1], status=escape_terminal(_format_status(fields)))
        self.bar.update(self.bar.task_ids[-1], advance=n)

    def write(self, text: str) -> None:
        self.bar.console.print(text, highlight=False)


@dataclass(eq=False, kw_only=True)
class _StatusPart(_Task):
    """A task within a computation that has a status line."""

    status: StatusLine

    def advance(self, n: int = 1, **fields: object) -> None:
        self.done += n
        self.status.show(f"{self.status.head}{self.label}, {self}  {_format_status(fields)}".rstrip())

    def write(self, text: str) -> None:
        self.status.clear()
        get_error_console().print(text, highlight=False)


@dataclass(eq=False, kw_only=True)
class _LogLines(_Task):
    last: float = 0.0
    """The time of the last line; 0 before the first one."""
    file: TextIO = field(default_factory=lambda: sys.stderr)
    """Standard error when the task begins, so that a later redirection, which silences a library, does not silence progress."""

    def repeat(self) -> None:
        self.refresh()
        self.advance(0, elapsed=format_duration(time.monotonic() - self.start))

    def advance(self, n: int = 1, **fields: object) -> None:
        self.done += n
        if time.monotonic() - (self.last or self.start) >= _LINE_EVERY_SECONDS:
            self.last = time.monotonic()
            self.write(f"{self.label}: {'  '.join(filter(None, (str(self), _format_status(fields))))}")

    def write(self, text: str) -> None:
        PlainConsole(self.file).print(text, highlight=False, markup=False)

    def close(self) -> None:
        seconds = time.monotonic() - self.start
        if seconds >= 1.0 and (self.done or self.last):
            self.refresh()
            done = self.done if self.total is None else f"{self.done} of {self.total}"
            self.write(f"{self.label}: {f'{done} in ' if self.done else ''}{format_duration(seconds)}")
