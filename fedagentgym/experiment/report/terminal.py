"""A run on the terminal: a line per round while it goes on, and a summary at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedagentgym.base.progress import get_console


class RoundTable:
    """One line per round, under a heading: what happened, how well it goes, what it costs, how long it will take."""

    COLUMNS = ("round", "clients", "failed", "success", "reward", "kl", "held-out", "MB", "seconds", "to go")
    WIDTHS = (7, 14, 6, 7, 7, 8, 18, 8, 8, 8)

    def __init__(self) -> None:
        self._begun = False
        self._started = time.monotonic()
        self._rounds = 0

    def begin(self, rounds: int) -> None:
        self._rounds = rounds

    def round_done(self, record: Mapping[str, Any]) -> None:
        if not self._begun:
            self._begun = True
            self._first = record["round"]
            self._line(self.COLUMNS)
        self._line(self._format_row(record))

    def _format_row(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        from fedagentgym.federation.meter import headline_bytes

        metrics = record["metrics"]
        members = ",".join(map(str, record["participants"]))
        return (
            f"{record['round']}/{self._rounds}" if self._rounds else str(record["round"]),
            members if len(members) <= 14 else f"{len(record['participants'])} clients",
            str(len(record["failures"])) if record["failures"] else "",
            _number(metrics.get("success"), ".3f"),
            _number(metrics.get("reward"), ".3f"),
            _number(metrics.get("kl"), ".2g"),
            _held_out(record.get("evaluation")),
            f"{headline_bytes(record['bytes_total']) / 1e6:.2f}",
            f"{record['seconds'] + record.get('evaluation', {}).get('seconds', 0.0):.1f}",
            self._estimate_remaining(record["round"]),
        )

    def _estimate_remaining(self, number: int) -> str:
        done = number - self._first
        if done < 1 or not self._rounds:
            return ""
        seconds = (time.monotonic() - self._started) / (done + 1) * (self._rounds - number)
        return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"

    def _line(self, cells: tuple[str, ...]) -> None:
        text = "  ".join(cell.rjust(width) for cell, width in zip(cells, self.WIDTHS, strict=True))
        get_console().print(text, highlight=False, markup=False)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _held_out(evaluation: Mapping[str, Any] | None) -> str:
    if evaluation is None:
        return ""
    mean, low, high = (evaluation["overall"]["success"][name] for name in ("mean", "low", "high"))
    return f"{mean:.3f} [{low:.2f},{high:.2f}]"


def print_summary(folder: Path, record: Mapping[str, Any]) -> None:
    """What is said at the end of a run."""
    out = get_console()
    first, best, final = record["first"], record["best"], record["final"]
    out.print()
    if first is not None:
        begin, end = first["overall"]["success"], final["overall"]["success"]
        out.print(
            f"success on held-out tasks: {begin['mean']:.3f} before, {end['mean']:.3f} after {record['rounds']} rounds"
            f" (interval {end['low']:.3f} to {end['high']:.3f}; best {best['overall']['success']['mean']:.3f} in round"
            f" {best['round']})",
            highlight=False,
        )
    out.print(
        f"{record['headline_bytes'] / 1e6:.2f} MB exchanged, {record['env_steps']:,.0f} environment steps,"
        f" {record['failures']} failures, {record['seconds'] / 60:.1f} minutes",
        highlight=False,
    )
    page = folder / "report.html"
    out.print(f"record {folder / 'result.json'}" + (f", report {page}" if page.exists() else ""), highlight=False)
