"""Playing entries: all cells of a suite's entries, several at a time, resumable, with their progress.

ROOT/SUITE/ENTRY/run.json    what is played: what `pack`, `resume` and `status` are given
ROOT/SUITE/ENTRY/suite.yaml  the suite as it was
ROOT/cells/DIGEST/           the cells of all entries and suites under this root
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError, OptionError, unknown_name_error
from fedagentgym.base.files import format_path, read_json, read_text, write_atomic
from fedagentgym.base.plugins import load_plugins
from fedagentgym.base.process import count_usable_cores, end_with_parent, explain_interruption
from fedagentgym.base.progress import Progress, set_verbosity, show_progress
from fedagentgym.experiment.run import prepare_agents
from fedagentgym.leaderboard.cells import Cell, make_cell, make_cell_config, play_agent_cells, play_method_cell
from fedagentgym.leaderboard.entries import ENDPOINT, Entry, find_packaged, load_entry, load_settings
from fedagentgym.leaderboard.record import SUITE
from fedagentgym.leaderboard.scenarios import OpenedScenario, open_scenario
from fedagentgym.leaderboard.suite import Suite, parse_suite, to_yaml

RUN = "run.json"
ROOT = Path("runs") / "leaderboard"


@dataclass(frozen=True)
class SuiteRun:
    """An entry of a suite with its cells."""

    suite: Suite
    entry: Entry
    folder: Path
    cells: tuple[Cell, ...]
    opened: dict[str, OpenedScenario]

    @property
    def left_out(self) -> list[str]:
        """The scenarios of the suite that the entry does not play."""
        return [name for name in self.suite.scenarios if name not in self.opened]

    @property
    def missing(self) -> list[Cell]:
        return [cell for cell in self.cells if not cell.is_finished()]


def open_run(suite: Suite, entry: Entry, root: Path) -> SuiteRun:
    """An entry with its cells, existing or not; nothing is written or played yet."""
    load_plugins(entry.plugins)
    opened = choose_scenarios(suite, entry)
    cells = tuple(make_cell(opened[name], entry, seed, root) for name in opened for seed in suite.seeds)
    return SuiteRun(suite, entry, root / suite.name / entry.name, cells, opened)


def choose_scenarios(suite: Suite, entry: Entry) -> dict[str, OpenedScenario]:
    """The scenarios that an entry plays, in the suite's order: those that it names, or all of them. A tiny agent that the
    package has for some of them plays these."""
    for name in entry.scenarios:
        if name not in suite.scenarios:
            raise unknown_name_error(f"scenario of {suite.name}", name, suite.scenarios)
    if entry.scenarios and suite.track == "methods":
        raise OptionError(f"{suite.name} is on the methods track, which is played as a whole: leave out --scenario")
    opened = {
        name: open_scenario(suite, name) for name in suite.scenarios if name in (entry.scenarios or suite.scenarios)
    }
    if suite.track == "methods" or entry.scenarios:
        return opened
    settings = load_settings(entry, suite.ranking.temperature)
    able = {name: one for name, one in opened.items() if find_packaged(settings, one.env) is not None}
    return able or opened


def begin_run(run: SuiteRun) -> None:
    """Record what is played; another entry of the same name is not overwritten."""
    place = run.folder / RUN
    plain = {"entry": run.entry.model_dump(mode="json"), "suite": run.suite.digest}
    if place.is_file() and not _is_same(read_json(place), plain):
        raise OptionError(
            f"{run.folder} holds another entry of this name, or one of another version of the suite: choose another --name, or"
            " move it"
        )
    write_atomic(run.folder / SUITE, to_yaml(run.suite))
    write_atomic(place, _format(plain))


def _is_same(before: Any, now: Mapping[str, Any]) -> bool:
    """Whether two entries are played alike: a hosted model's requests and prices, and descriptions of an entry, may change."""
    if not isinstance(before, dict) or not isinstance(before.get("entry"), dict):
        return False
    entries = [load_entry(one) for one in (before["entry"], now["entry"])]
    return bool(before.get("suite") == now["suite"]) and entries[0].identity == entries[1].identity


def _format(plain: object) -> str:
    return json.dumps(plain, indent=1, sort_keys=True) + "\n"


def load_run(folder: Path) -> SuiteRun:
    """The recorded run in a folder."""
    place = folder / RUN
    if not place.is_file():
        raise DataError(
            f"{format_path(folder)} is not a run of a suite: {RUN} is missing (see `fedagentgym bench run`)"
        )
    suite = parse_suite(read_text(folder / SUITE), format_path(folder / SUITE))
    plain = read_json(place)
    if not isinstance(plain, dict) or plain.get("suite") != suite.digest or "entry" not in plain:
        raise DataError(f"{format_path(place)}: malformed, or the suite beside it was changed")
    return open_run(suite, load_entry(plain["entry"]), folder.resolve().parent.parent)


def find_runs(folder: Path) -> list[Path]:
    """The folder of a run itself, or those of all runs below it."""
    if (folder / RUN).is_file():
        return [folder]
    return sorted(place.parent for place in folder.glob(f"**/{RUN}"))


def play_runs(runs: Sequence[SuiteRun], workers: int = 0) -> None:
    """Play every missing cell, this many at a time (0: as many as there are cores); finished cells are kept."""
    for run in runs:
        begin_run(run)
    prepare(runs)
    units = list_units(runs)
    total, left = sum(len(run.cells) for run in runs), sum(len(unit) for unit in units)
    folders = ", ".join(str(run.folder) for run in runs[:3])
    with (
        explain_interruption(lambda: describe_interrupted(runs)),
        show_progress(folders if len(runs) <= 3 else f"{len(runs)} entries", total=total) as bar,
    ):
        bar.advance(total - left)
        started = time.monotonic()
        for number, cell in enumerate(_play_units(units, workers or count_usable_cores()), start=1):
            report(bar, cell, number, left, time.monotonic() - started)


def report(bar: Progress, cell: Cell, number: int, of: int, seconds: float) -> None:
    """Print which cell is finished, how many are left, and the estimated time."""
    minutes = seconds / number * (of - number) / 60
    bar.advance(cell=f"{cell.entry.name} {cell.key}", left=of - number)
    bar.write(f"{cell.entry.name} {cell.key}: finished; {of - number} cells left, about {minutes:.0f} minutes")


def describe_interrupted(runs: Sequence[SuiteRun]) -> str:
    """The message after an interruption."""
    finished = sum(len(run.cells) - len(run.missing) for run in runs)
    total = sum(len(run.cells) for run in runs)
    places = " ".join(shlex.quote(str(run.folder)) for run in runs[:5])
    saved = f"{finished} of {total} cells are finished, the progress of the others is saved"
    return f"{saved}; resume with: fedagentgym bench resume {places}"


def prepare(runs: Sequence[SuiteRun]) -> None:
    """Make the agents from which cells start, each once, before several processes need them."""
    configs = [
        make_cell_config(run.suite, cell.scenario, run.entry, cell.seed)
        for run in runs
        if run.suite.track == "methods"
        for cell in run.missing
    ]
    prepare_agents(configs)


def list_units(runs: Sequence[SuiteRun]) -> list[list[Cell]]:
    """The cells to be played, grouped if they must be played one after the other; shared cells only once."""
    units: list[list[Cell]] = []
    seen: set[Path] = set()
    for run in runs:
        missing = [cell for cell in run.missing if cell.folder not in seen]
        seen |= {cell.folder for cell in missing}
        is_hosted = (
            run.suite.track == "agents" and run.entry.agent is not None and run.entry.agent.get("name") == ENDPOINT
        )
        units += [missing] if is_hosted and missing else [[cell] for cell in missing]
    return units


def _play_units(units: Sequence[Sequence[Cell]], workers: int) -> Iterator[Cell]:
    """Play them, in this process or in others; yields each cell when it is finished."""
    if workers <= 1 or len(units) <= 1:
        for unit in units:
            yield from play_unit(unit)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(units)), context, _begin_worker, (os.getpid(),)) as pool:
        futures = [pool.submit(_play_apart, unit) for unit in units]
        try:
            for future in as_completed(futures):
                yield from future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin_worker(parent: int) -> None:
    end_with_parent(parent)
    set_verbosity("quiet")


def _play_apart(unit: Sequence[Cell]) -> list[Cell]:
    return list(play_unit(unit))


def play_unit(unit: Sequence[Cell]) -> Iterator[Cell]:
    """Play cells of one entry in this process."""
    first = unit[0]
    load_plugins(first.entry.plugins)
    opened = {name: open_scenario(first.suite, name) for name in dict.fromkeys(cell.scenario for cell in unit)}
    if first.suite.track == "agents":
        yield from play_agent_cells(unit, opened)
    else:
        yield from (play_method_cell(cell, opened[cell.scenario]) for cell in unit)
