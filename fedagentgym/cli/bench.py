"""`fedagentgym bench`: measure, and print what was measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from inspect import signature
from typing import Annotated

import typer
from rich.table import Table

from fedagentgym.base.errors import OptionError
from fedagentgym.base.progress import get_console
from fedagentgym.benchmarks import BENCHMARKS
from fedagentgym.cli.plugins import Plugins


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which benchmarks; without names they are listed.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version that ends soon.")] = False,
    clients: Annotated[
        int | None, typer.Option(help="speed-federation alone: how rounds grow in a federation of so many clients.")
    ] = None,
    plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Run benchmarks by name and print their figures."""
    if not names:
        for name in BENCHMARKS.names():
            get_console().print(name)
        return
    runs = [(name, BENCHMARKS.get(name)) for name in names]
    varied = {} if clients is None else {"clients": clients}
    for name, benchmark in runs:
        if not set(varied) <= set(signature(benchmark).parameters):
            raise OptionError(f"the benchmark {name!r} takes no --clients: speed-federation does")
    for name, benchmark in runs:
        figures = benchmark(quick, **varied)
        if as_json:
            typer.echo(json.dumps({"benchmark": name, "measurements": [asdict(figure) for figure in figures]}))
            continue
        table = Table(title=name, title_justify="left", box=None, pad_edge=False)
        for column in ("what", "value", "unit", "bar"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for figure in figures:
            table.add_row(figure.name, f"{figure.value:,.4g}", figure.unit, figure.bar)
        get_console().print(table)
