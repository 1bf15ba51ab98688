"""`make demo`: one client alone, then six together, in generated houses; on two cores in minutes, with a page at the end.

It is `fedagentgym train demo:alone` and `fedagentgym train demo` with the runs and the page put where they are easy to find.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.progress import get_console
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.result import RunResult
from fedagentgym.experiment.run import finish_or_read
from fedagentgym.experiment.stored import read_stored_config

PRESETS = {"alone": "demo:alone", "together": "demo"}
"""The two runs in their order, by the folder that each has."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="fedagentgym.experiment.demo", description=__doc__)
    parser.add_argument("--report", type=Path, default=Path("demo-report"), help="folder for the runs and their page")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of both runs")
    given = parser.parse_args(arguments)
    try:
        page = run(given.report, given.seed, given.set)
    except FedAgentGymError as error:
        sys.stderr.write(f"fedagentgym: {error}\n")
        return 2
    get_console().print(f"open {page} in a browser", highlight=False)
    return 0


def run(folder: Path, seed: int, changes: Sequence[str] = ()) -> Path:
    """The demo's runs and their page. A run that was interrupted goes on; runs that are finished make room for new ones."""
    from fedagentgym.experiment.report.page import read_comparison
    from fedagentgym.experiment.report.terminal import print_comparison, print_summary

    configs = {
        name: load_config(preset, [f"seed={seed}", f"output.folder={folder / name}", *changes])
        for name, preset in PRESETS.items()
    }
    _make_room(configs)
    alone, together = configs["alone"], configs["together"]
    _say(
        f"Each of {together.partition.clients} clients has one kind of chore, and their agent takes some chores for others."
    )
    _say(f"1. Client {alone.algorithm.get('client', 0)} learns from its own chores, alone.")
    _finish(alone)
    _say(
        f"\n2. All {together.partition.clients} clients learn, each from its own chores, and average what they have learnt."
    )
    result = _finish(together)
    found = read_comparison(result.folder)
    if found is not None:
        print_comparison(found)
    print_summary(result.folder)
    page = folder / "index.html"
    write_atomic(page, (result.folder / "report.html").read_bytes())
    return page


def _make_room(configs: Mapping[str, RunConfig]) -> None:
    """Remove runs of other settings, and all of them once the last is finished."""
    places = [Path(config.output.folder) for config in configs.values()]
    finished = all((place / "result.json").is_file() for place in places)
    for place, config in zip(places, configs.values(), strict=True):
        there = place / "config.yaml"
        if there.is_file() and (finished or read_stored_config(place).digest != config.digest):
            shutil.rmtree(place)


def _finish(config: RunConfig) -> RunResult:
    """The run, watched while it goes on; what is there of it is not done again."""
    from fedagentgym.experiment.report.terminal import watch_run

    place = Path(config.output.folder)
    if (place / "config.yaml").is_file():
        _say(f"resuming the run in {place}")
    with watch_run() as watch:
        return finish_or_read(config, watch.observers, watch.on_progress)


def _say(text: str) -> None:
    get_console().print(text, highlight=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
