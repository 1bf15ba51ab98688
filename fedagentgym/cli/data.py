"""`fedagentgym data`: original data sets, installed once and then used by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.errors import DataError
from fedagentgym.base.progress import get_console
from fedagentgym.envs.data_sets import DataSet, Findings, find_data_set, list_data_sets

app = typer.Typer(help="List, install and check original data sets.", no_args_is_help=True)

SHOWN = 5
Name = Annotated[str, typer.Argument(help="Name of a data set, for example gsm8k or webshop; see data list.")]
From = Annotated[
    Path | None, typer.Option("--from", help="The file or folder with the data.", metavar="FILE_OR_FOLDER")
]
Subset = Annotated[
    str | None, typer.Option("--subset", help="One of its configurations, for example en of dapo-processed.")
]


@app.command()
def add(name: Name, source: From = None, subset: Subset = None) -> None:
    """Check a copy of a data set and install it; without --from it is downloaded from where it is published."""
    chosen = find_data_set(name)
    if source is not None and not source.exists():
        raise DataError(f"cannot install {chosen.name} from {source}: there is no such file or folder")
    place = chosen.add(source, subset)
    get_console().print(f"{chosen.name} is installed: {place}", highlight=False, soft_wrap=True)


@app.command()
def fetch(name: Name, subset: Subset = None) -> None:
    """Download a data set from where it is published: data add without --from."""
    add(name, None, subset)


@app.command()
def check(name: Name, source: From = None, subset: Subset = None) -> None:
    """Read a whole data set, installed or not: its columns, tasks by split, digest and licence, and unused rows."""
    chosen = find_data_set(name)
    _show_findings(chosen, chosen.check(source, subset))


@app.command("list")
def list_data() -> None:
    """Every data set: whether it is installed, its published number of tasks, its licence, and a description."""
    lines = [
        f"{data.name:16s} {'installed' if data.folder.exists() else 'not here':10s} {_format_published(data)};"
        f" {data.licence}; {data.about}"
        for data in list_data_sets().values()
    ]
    get_console().print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _show_findings(data: DataSet, found: Findings) -> None:
    same = any(dict(found.tasks) == dict(counts) for counts in data.published)
    told = "as published" if same else f"published: {_format_published(data)}"
    lines = {
        "data set": f"{data.name}: {data.about}",
        "place": str(found.place),
        "played by": data.use,
        "licence": f"{data.licence} (as its publisher states it)",
        "splits": data.splits,
        "columns": ", ".join(found.columns),
        "rows": f"{found.rows:,}",
        "tasks": f"{_format_counts(found.tasks)} ({told})",
        "digest": found.digest,
    }
    if found.left_out:
        lines["left out"] = "; ".join(f"{count:,} {reason}" for reason, count in found.left_out.items())
    lines["skipped"] = f"{len(found.skipped):,} unusable rows"
    for name, text in lines.items():
        _print_line(name, text)
    for text in _cut(found.skipped):
        _print_line("", text)
    for text in found.notes:
        _print_line("note", text)


def _print_line(name: str, text: str) -> None:
    get_console().print(f"{name:10s}{text}", highlight=False, markup=False, soft_wrap=True)


def _cut(texts: Iterable[str]) -> list[str]:
    every = list(texts)
    return [*every[:SHOWN], *([f"... and {len(every) - SHOWN:,} more"] if len(every) > SHOWN else [])]


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {counts[split]:,}" for split in ("train", "val", "test", "warmup") if counts.get(split))


def _format_published(data: DataSet) -> str:
    return " or ".join(_format_counts(counts) for counts in data.published) or "not stated"
