"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME...` runs them and prints their figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from inspect import signature
from typing import Any

from rich.table import Table

from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import Registry
from fedagentgym.base.progress import get_console
from fedagentgym.cli.guard import run_guarded

BENCHMARKS = Registry(
    "benchmark",
    {
        "adapter-steps": "benchmarks.adapter_steps:run",
        "alfworld": "benchmarks.alfworld:run",
        "alfworld-houses": "benchmarks.alfworld:run_houses",
        "audit": "benchmarks.audit:run",
        "audit-faults": "benchmarks.audit:run_faults",
        "audit-kills": "benchmarks.audit:run_kills",
        "audit-losses": "benchmarks.audit:run_losses",
        "audit-mathematics": "benchmarks.audit:run_mathematics",
        "audit-mutants": "benchmarks.audit:run_mutants",
        "audit-probes": "benchmarks.audit:run_probes",
        "audit-replays": "benchmarks.audit:run_replays",
        "audit-results": "benchmarks.audit:run_results",
        "audit-splits": "benchmarks.audit:run_splits",
        "cells-again": "benchmarks.cells_again:run",
        "claims": "benchmarks.claims:write_claims",
        "communication": "benchmarks.communication:run",
        "extras": "benchmarks.extras:run",
        "federation-map": "benchmarks.federation_map:run",
        "fixed-replies": "benchmarks.audit:run_fixed_replies",
        "generalisation": "benchmarks.generalisation:run",
        "evolution-strategies": "benchmarks.evolution:run",
        "learning-ppo": "benchmarks.learning:run_ppo",
        "gateway-learning": "benchmarks.gateway:run_learning",
        "gateway-programs": "benchmarks.gateway:run_programs",
        "gateway-small": "benchmarks.gateway:run_small",
        "learning-tiny": "benchmarks.learning:run",
        "learning-tiny-alfworld": "benchmarks.learning:run_alfworld",
        "learning-tiny-math": "benchmarks.learning:run_math",
        "learning-tiny-records": "benchmarks.learning:run_records",
        "learning-tiny-skills": "benchmarks.learning:run_skills",
        "learning-tiny-webshop": "benchmarks.learning:run_webshop",
        "merge-table": "benchmarks.merge_table:run",
        "misconceptions-houses": "benchmarks.misconceptions:run_houses",
        "misconceptions-math": "benchmarks.misconceptions:run_math",
        "misconceptions-shop": "benchmarks.misconceptions:run_shop",
        "newcomers": "benchmarks.newcomers:run",
        "null-comparisons": "benchmarks.null_comparisons:run",
        "pictures": "benchmarks.pictures:draw_all",
        "plan-minutes": "benchmarks.plan:run",
        "privacy-probes": "benchmarks.privacy_probes:run",
        "records-rules": "benchmarks.records_rules:run",
        "report": "benchmarks.report:write_report",
        "small-math": "benchmarks.small_model:run_math",
        "small-skills-factors": "benchmarks.small_model:run_factors",
        "speed-adapters": "benchmarks.adapters:run",
        "speed-agents": "benchmarks.agents:run",
        "speed-core": "benchmarks.environments:run_core",
        "speed-records": "benchmarks.environments:run_records",
        "speed-federation": "benchmarks.federation:run",
        "speed-gateway": "benchmarks.gateway:run_speed",
        "speed-partitions": "benchmarks.partitions:run",
        "speed-verifiers": "benchmarks.environments:run_verifiers",
        "table1-tiny": "benchmarks.paper_tables:run_table1_tiny",
        "record-demo": "benchmarks.pictures.recording:record_demo",
        "screenshots": "benchmarks.pictures.screens:take_all",
        "skills-pages": "benchmarks.skills_pages:write_pages",
        "smaller-grids": "benchmarks.smaller_grids:run",
        "webshop": "benchmarks.webshop:run",
        "webshop-figures": "benchmarks.webshop:run_figures",
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; every error is one sentence and exit code 2."""
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measure this repository.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure; without one they are listed")
    parser.add_argument("--quick", action="store_true", help="a smaller, faster version")
    parser.add_argument("--clients", type=int, help="speed-federation only: the cost of rounds with this many clients")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    given = parser.parse_args(arguments)
    if not given.names:
        return run_guarded(list_benchmarks)
    return run_guarded(lambda: measure(given.names, given.quick, given.json, clients=given.clients))


def list_benchmarks() -> None:
    """Print every name with its description."""
    for name in BENCHMARKS.names():
        get_console().print(f"  {name:24s} {BENCHMARKS.describe(name)}", highlight=False, markup=False)


def measure(names: Sequence[str], quick: bool, as_json: bool, **options: Any) -> None:
    """Run benchmarks by name and print their figures."""
    runs = [(name, BENCHMARKS.get(name)) for name in names]
    varied = {option: value for option, value in options.items() if value is not None}
    for name, benchmark in runs:
        if unknown := set(varied) - set(signature(benchmark).parameters):
            raise OptionError(f"the benchmark {name!r} takes no --{min(unknown)}: --help names the benchmarks that do")
    for name, benchmark in runs:
        figures = benchmark(quick, **varied)
        if as_json:
            plain = {"benchmark": name, "measurements": [asdict(figure) for figure in figures]}
            sys.stdout.write(json.dumps(plain) + "\n")
            continue
        table = Table(title=name, title_justify="left", box=None, pad_edge=False)
        for column in ("what", "value", "unit", "bar"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for figure in figures:
            table.add_row(figure.name, f"{figure.value:,.4g}", figure.unit, figure.bar)
        get_console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
