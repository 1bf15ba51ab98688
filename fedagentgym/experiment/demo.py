"""`fedagentgym demo`: one client alone, then six together, in generated houses; on two cores in minutes, with a page at the end.

It is `fedagentgym train demo:alone` and `fedagentgym train demo`, with the runs and the page in one folder. Without the extra
[train] nothing can be trained: `show_clients` shows the clients and their chores.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedagentgym.base.errors import OptionError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.progress import get_console, is_quiet, make_table, print_result
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.result import RunResult
from fedagentgym.experiment.run import finish_or_read
from fedagentgym.experiment.stored import read_stored_config
from fedagentgym.pages.render import format_percent

PRESETS = {"alone": "demo:alone", "together": "demo"}
"""The presets of the two runs in their order, by the name of the run's folder."""
SHOWN_TASKS = 60


def run(folder: Path, seed: int, changes: Sequence[str] = (), *, verbose: bool = True) -> Path:
    """Do the demo's runs, and return their page. Interrupted runs are resumed; if both are finished, new ones replace them."""
    from fedagentgym.experiment.report.page import read_comparison
    from fedagentgym.experiment.report.terminal import print_comparison, print_summary

    configs = {
        name: load_config(preset, [f"seed={seed}", f"output.folder={folder / name}", *changes])
        for name, preset in PRESETS.items()
    }
    if any(Path(config.output.folder) != folder / name for name, config in configs.items()):
        raise OptionError(
            "--set output.folder: the demo has two runs, each in a folder below that of --out: give --out instead"
        )
    _make_room(configs)
    alone, together = configs["alone"], configs["together"]
    clients = together.partition.clients
    if verbose:
        _print(
            f"Each of {clients} clients has one kind of household chore. The agent that they train starts with systematic errors:"
            " asked to heat an object, it usually cools it."
        )
        _print(f"1. Client {alone.algorithm.get('client', 0)} trains alone, on its own chores.")
    _finish(alone, verbose)
    if verbose:
        _print(f"\n2. All {clients} clients train, each on its own chores, and the server averages their models.")
    result = _finish(together, verbose)
    if verbose:
        if (found := read_comparison(result.folder)) is not None:
            print_comparison(found)
        print_summary(result.folder)
    page = folder / "index.html"
    write_atomic(page, (result.folder / "report.html").read_bytes())
    return page


def show_clients(seed: int) -> None:
    """Print the clients' chores, and the success of players that do not learn on held-out tasks: this needs no training."""
    from fedagentgym.envs import open_env
    from fedagentgym.learning.evaluation import evaluate
    from fedagentgym.partitions import federate

    config = load_config(PRESETS["together"])
    env, partition = config.env, config.partition
    assert config.evaluation is not None
    split = federate(env.id, partition=partition.sampler, clients=partition.clients, seed=seed, env=env.options)
    held_out = open_env(env.id, split=config.evaluation.split, **env.options)
    found = [evaluate(agent, held_out, tasks=SHOWN_TASKS, seed=seed) for agent in ("random", "expert")]
    rows = [
        [str(one.index), chore, str(count), *(format_percent(each.categories[chore]["success"].mean) for each in found)]
        for one in split
        for chore, count in sorted(one.pool.categories.items())
    ]
    _print(
        f"Each of {partition.clients} clients has one kind of household chore. Success on held-out tasks, played at random and by"
        " the expert:"
    )
    print_result(make_table(["client", "chore", "its tasks", "random", "expert"], rows, text=2))
    print_result(
        "Training was left out: it needs the extra [train], pip install 'fedagentgym[train]', or without an installation"
        " pipx run --spec 'fedagentgym[train]' fedagentgym demo"
    )


def _make_room(configs: Mapping[str, RunConfig]) -> None:
    """Remove runs with other settings, and both runs if both are finished; a run that is not of the demo is an error."""
    places = [Path(config.output.folder) for config in configs.values()]
    stored = [read_stored_config(place) if (place / "config.yaml").is_file() else None for place in places]
    for place, there, config in zip(places, stored, configs.values(), strict=True):
        if there is not None and (name := there.plain.get("name")) != config.name:
            raise OptionError(
                f"{place} is a run of something else, {name!r}: give the demo another folder, --out FOLDER"
            )
    finished = all((place / "result.json").is_file() for place in places)
    for place, there, config in zip(places, stored, configs.values(), strict=True):
        if there is not None and (finished or there.digest != config.digest):
            shutil.rmtree(place)


def _finish(config: RunConfig, verbose: bool) -> RunResult:
    """Do the run or its remaining rounds, and show it on the terminal."""
    from fedagentgym.experiment.report.terminal import watch_run

    place = Path(config.output.folder)
    if verbose and (place / "config.yaml").is_file():
        _print(f"resuming the run in {place}")
    with watch_run() as watch:
        return finish_or_read(config, watch.observers if verbose else (), watch.on_progress)


def _print(text: str) -> None:
    if not is_quiet():
        get_console().print(text, highlight=False)
