"""`fedagentgym train`: run a configuration, watch its rounds, go on with one that was stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedagentgym.base.errors import OptionError
from fedagentgym.base.progress import console

Change = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, for example federation.workers=2.", metavar="KEY=VALUE"),
]


def train(
    config: Annotated[
        str | None, typer.Argument(help="A YAML file or a preset (see --list), with :VARIANT,... after it.")
    ] = None,
    changes: Change = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.", metavar="RUN")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the preset's YAML and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's record instead of the table.")] = False,
) -> None:
    """Train agents, federated or not, as a configuration says; ends with a summary and report.html."""
    from fedagentgym.config import preset_names, preset_text, variant_names

    if listing:
        for name in preset_names():
            console().print(f"{name:16s} {_first_line(preset_text(name))}", highlight=False, markup=False)
            if variants := variant_names(name):
                console().print(f"{'':16s}   {name}:{', '.join(variants)}", highlight=False, markup=False)
        return
    if (config is None) == (resume is None):
        raise OptionError("name a configuration to train, or a run to go on with: train FILE, or train --resume RUN")
    if show and config is not None:
        typer.echo(preset_text(config.partition(":")[0]))
        return
    from fedagentgym import running

    watching = [] if as_json else [Table()]
    if resume is not None:
        result = running.resume(resume, changes or (), observers=watching)
    else:
        result = running.train(config or "", changes or (), observers=watching)
    if as_json:
        from fedagentgym.base.encoding import canonical_json

        typer.echo(canonical_json(result.record))
    else:
        summary(result.folder, result.record)


def _first_line(text: str) -> str:
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")


class Table:
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
        self._line(self._row(record))

    def _row(self, record: Mapping[str, Any]) -> tuple[str, ...]:
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
            self._to_go(record["round"]),
        )

    def _to_go(self, number: int) -> str:
        done = number - self._first
        if done < 1 or not self._rounds:
            return ""
        seconds = (time.monotonic() - self._started) / (done + 1) * (self._rounds - number)
        return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"

    def _line(self, cells: tuple[str, ...]) -> None:
        text = "  ".join(cell.rjust(width) for cell, width in zip(cells, self.WIDTHS, strict=True))
        console().print(text, highlight=False, markup=False)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _held_out(evaluation: Mapping[str, Any] | None) -> str:
    if evaluation is None:
        return ""
    mean, low, high = (evaluation["overall"]["success"][name] for name in ("mean", "low", "high"))
    return f"{mean:.3f} [{low:.2f},{high:.2f}]"


def summary(folder: Path, record: Mapping[str, Any]) -> None:
    """What is said at the end of a run."""
    out = console()
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
