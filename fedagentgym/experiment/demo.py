"""`make demo`: FedAgent on preference-skewed clients in generated houses, on two cores in minutes, with a page at the end.

It is `fedagentgym train demo` with the page put where it is easy to find.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.progress import get_console

PRESET = "demo"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="fedagentgym.experiment.demo", description=__doc__)
    parser.add_argument("--report", type=Path, default=Path("demo-report"), help="folder for the run and its page")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the preset"
    )
    given = parser.parse_args(arguments)
    try:
        page = run(given.report, given.seed, given.set)
    except FedAgentGymError as error:
        sys.stderr.write(f"fedagentgym: {error}\n")
        return 2
    get_console().print(f"open {page} in a browser", highlight=False)
    return 0


def run(folder: Path, seed: int, changes: Sequence[str] = ()) -> Path:
    """The demo's run and its page. A run that was interrupted goes on; one that is finished makes room for a new one."""
    from fedagentgym.experiment import run as running
    from fedagentgym.experiment.report.terminal import print_summary, watch_run

    place = folder / "run"
    if (place / "result.json").exists():
        shutil.rmtree(place)
    if (place / "config.yaml").exists():
        get_console().print(f"going on with the run in {place}", highlight=False)
        with watch_run() as watch:
            result = running.resume(place, observers=watch.observers, on_progress=watch.on_progress)
    else:
        get_console().print(
            "12 clients with different preferences, 4 of them in a round; first a tiny agent learns the world's words by"
            " imitation, then the clients teach it to solve their tasks.",
            highlight=False,
        )
        chosen = [f"seed={seed}", f"output.folder={place}", *changes]
        with watch_run() as watch:
            result = running.train(PRESET, chosen, observers=watch.observers, on_progress=watch.on_progress)
    print_summary(result.folder, result.record)
    page = folder / "index.html"
    write_atomic(page, (result.folder / "report.html").read_bytes())
    return page


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
