"""Playing entries, and packing what they played: all cells of a suite's entries, several at a time, resumable.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedagentgym.agents import AGENTS
from fedagentgym.agents.foreign import check_foreign_agent
from fedagentgym.agents.models.store import locate_model
from fedagentgym.agents.players.endpoint import make_endpoint_agent
from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.base import count_labelled
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError, unknown_name_error
from fedagentgym.base.files import find_below, format_path, read_json, read_text, write_atomic
from fedagentgym.base.imports import load_plugins
from fedagentgym.base.process import count_usable_cores, end_with_parent, explain_interruption
from fedagentgym.base.progress import set_verbosity, show_progress
from fedagentgym.base.rounding import count_things, format_duration
from fedagentgym.experiment.export import export_policy
from fedagentgym.experiment.run import prepare_agents
from fedagentgym.experiment.stored import ASK, NO_TRUST, Trust, check_foreign_config, is_own_plugin, read_stored_config
from fedagentgym.leaderboard.aggregate import CellData, choose_round, describe_clients, make_point, sum_spent
from fedagentgym.leaderboard.cells import (
    Cell,
    describe_player,
    find_revision,
    make_cell,
    make_cell_config,
    play_agent_cells,
    play_method_cell,
    publish_config,
    read_played,
    read_records,
)
from fedagentgym.leaderboard.entries import (
    ENDPOINT,
    Entry,
    describe_agent,
    describe_entry,
    describe_learner,
    find_packaged,
    load_settings,
)
from fedagentgym.leaderboard.record import AgentRecord, EntryRecord, Manifest, Spent
from fedagentgym.leaderboard.results import (
    DEEPEST,
    SUITE,
    PackedCell,
    Result,
    group_by_task,
    parse_groups,
    parse_worlds,
    shorten_episodes,
    write_result,
)
from fedagentgym.leaderboard.store import find_place, read_packed_cell, restore_cells, store_cell
from fedagentgym.leaderboard.suite import OpenedScenario, Suite, open_scenario, parse_suite, to_yaml
from fedagentgym.learning.trajectory import parse_json_lines

RUN = "run.json"
ROOT = Path("runs") / "leaderboard"
EPSILON = "privacy/epsilon"


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
    """An entry with its cells, existing or not; its plugins are loaded. Nothing is written or played yet."""
    opened = choose_scenarios(suite, entry)
    cells = tuple(make_cell(opened[name].at(seed), entry, seed, root) for name in opened for seed in suite.seeds)
    return SuiteRun(suite, entry, root / suite.name / entry.name, cells, opened)


def choose_scenarios(suite: Suite, entry: Entry) -> dict[str, OpenedScenario]:
    """The scenarios that an entry plays, in the suite's order: those that it names, or all of them. A tiny agent that the
    package has for some of them plays these."""
    for name in entry.scenarios:
        if name not in suite.scenarios:
            raise unknown_name_error(f"scenario of {suite.name}", name, suite.scenarios)
    if entry.scenarios and suite.track == "methods":
        raise OptionError(f"{suite.name} is on the methods track, which is played as a whole: leave out --scenario")
    chosen = entry.scenarios or suite.scenarios
    opened = {name: open_scenario(suite, name) for name in suite.scenarios if name in chosen}
    if suite.track == "methods" or entry.scenarios:
        return opened
    settings = load_settings(entry, suite.ranking.temperature)
    able = {name: one for name, one in opened.items() if find_packaged(settings, one.env) is not None}
    return able or opened


def begin_run(run: SuiteRun) -> None:
    """Record what is played; another entry of the same name is not overwritten once one of its cells is finished."""
    place = run.folder / RUN
    plain = {
        "entry": run.entry.model_dump(mode="json"),
        "suite": run.suite.digest,
        "cells": {cell.key: cell.folder.name for cell in run.cells},
    }
    before = read_json(place) if place.is_file() else None
    if place.is_file() and not _is_same(before, plain) and _has_finished(run, before):
        raise OptionError(
            f"{run.folder} holds another entry of this name, or one of another version of the suite: choose another --name, or"
            " move it"
        )
    write_atomic(run.folder / SUITE, to_yaml(run.suite))
    write_atomic(place, json.dumps(plain, indent=1, sort_keys=True) + "\n")


def _is_same(before: Any, now: Mapping[str, Any]) -> bool:
    """Return whether two entries are played alike: a hosted model's requests and prices, and descriptions, may change."""
    if not isinstance(before, dict) or not isinstance(before.get("entry"), dict):
        return False
    entries = [Entry.load(one, "entry") for one in (before["entry"], now["entry"])]
    return bool(before.get("suite") == now["suite"]) and entries[0].identity == entries[1].identity


def _has_finished(run: SuiteRun, before: Any) -> bool:
    """Return whether the run recorded in this one's folder has a finished cell; one that cannot be read counts as such."""
    names = before.get("cells") if isinstance(before, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) and name.isalnum() for name in names.values()):
        return True
    for name in names.values():
        place = run.folder.parent.parent / "cells" / name
        known = read_json(place / "cell.json") if (place / "cell.json").is_file() else None
        if known is not None and (
            not isinstance(known, dict) or Cell(run.suite, run.entry, "", 0, place, known).is_finished()
        ):
            return True
        if (place / "packed").is_dir():
            return True
    return False


def check_players(run: SuiteRun) -> None:
    """Refuse an agent that is unknown, whose model is not here, or that cannot ask a server, before anything is written."""
    if run.suite.track != "agents":
        return
    settings = load_settings(run.entry, run.suite.ranking.temperature)
    AGENTS.get_target(settings.name)
    model = get_model(settings)
    if settings.name == ENDPOINT:
        make_endpoint_agent(settings).close()
    elif model is not None:
        locate_model(model)


def load_run(folder: Path, trust: Trust | None = None) -> SuiteRun:
    """The recorded run in a folder, which others may have written.

    Without `trust` it is only read: no code that it names is imported. What is to be played names no server and no key, and no
    code but what the user trusts.
    """
    place = folder / RUN
    if not place.is_file():
        problem = f"{RUN} is missing (see `fedagentgym bench run`)"
        raise DataError(f"{format_path(folder)} is not a run of a suite: {problem}")
    suite = parse_suite(read_text(folder / SUITE), format_path(folder / SUITE))
    plain = read_json(place)
    if not isinstance(plain, dict) or plain.get("suite") != suite.digest or "entry" not in plain:
        raise DataError(f"{format_path(place)}: malformed, or the suite beside it was changed")
    entry, root = Entry.load(plain["entry"], "entry"), folder.resolve().parent.parent
    if trust is not None:
        check_trust(suite, entry, format_path(place), trust)
        load_plugins(entry.plugins)
    elif entry.plugins and suite.track == "methods":
        opened = choose_scenarios(suite, entry)
        seeds = [(opened[name].at(seed), seed) for name in opened for seed in suite.seeds]
        cells = tuple(find_cell(world, entry, seed, root, plain) for world, seed in seeds)
        return SuiteRun(suite, entry, folder.resolve(), cells, opened)
    return open_run(suite, entry, root)


def check_trust(suite: Suite, entry: Entry, where: str, trust: Trust) -> None:
    """Refuse to play an entry of others that names code, servers, or what only the user of this machine decides."""
    if trust.folder:
        return
    for plugin in entry.plugins:
        if plugin not in trust.plugins and not is_own_plugin(plugin):
            problem = f"{where} names the plugin {plugin[:200]!r}, whose code would run here: name it yourself (--plugin), {ASK}"
            raise OptionError(problem)
    if suite.track == "agents":
        settings = AgentSettings.load(entry.agent or {}, "agent")
        if settings.name == ENDPOINT:
            problem = (
                f"{where} names a server and a key, which only you do: repeat the `fedagentgym bench run` that began it"
            )
            raise OptionError(problem)
        check_foreign_agent(settings, where)
        return
    load_plugins(entry.plugins)
    config = make_cell_config(suite, next(iter(suite.scenarios)), entry, suite.seeds[0])
    check_foreign_config(config, where)


def find_cell(opened: OpenedScenario, entry: Entry, seed: int, root: Path, plain: Mapping[str, Any]) -> Cell:
    """A cell of the methods track as a run recorded it: to identify it anew would take the method's code."""
    key, cells = f"{opened.name}-seed{seed}", plain.get("cells")
    name = cells.get(key) if isinstance(cells, dict) else None
    if not isinstance(name, str) or not name.isalnum():
        raise DataError(f"{root}: {RUN} does not name the cell {key}: run the entry again")
    place = root / "cells" / name
    identity = read_json(place / "cell.json") if (place / "cell.json").is_file() else {}
    if identity and (not isinstance(identity, dict) or not digest(identity).startswith(f"sha256:{name}")):
        raise DataError(f"{format_path(place / 'cell.json')} describes another cell than its folder's name")
    return Cell(opened.suite, entry, opened.name, seed, place, identity)


def find_runs(folder: Path) -> list[Path]:
    """The folder of a run itself, or those of the runs below it: in ROOT, ROOT/SUITE, or a folder of several roots."""
    return sorted(find_below(folder, RUN, DEEPEST, skipped="cells"))


def play_runs(runs: Sequence[SuiteRun], workers: int = 0, store: Path | None = None) -> None:
    """Play every missing cell, this many at a time (0: as many as there are cores); finished cells are kept, and with a `store`
    written there too, from which a suite continues on any machine."""
    for run in runs:
        check_players(run)
    for run in runs:
        begin_run(run)
    if store is not None:
        exchange_cells(runs, store)
    configs = [
        make_cell_config(run.suite, cell.scenario, run.entry, cell.seed)
        for run in runs
        if run.suite.track == "methods"
        for cell in run.missing
    ]
    prepare_agents(configs)  # each once, before several processes need them
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
            name, more = f"{cell.entry.name} {cell.key}", left - number
            rest = format_duration((time.monotonic() - started) / number * more)
            if store is not None:
                store_finished(runs, cell, store)
            bar.advance(cell=name, left=more)
            bar.write(f"{name}: finished; {count_things(more, 'cell')} left{f', about {rest}' if more else ''}")


def exchange_cells(runs: Sequence[SuiteRun], store: Path) -> None:
    """Take over the cells of a store, and write into it those that are finished here."""
    for run in runs:
        if run.suite.track != "methods":
            raise OptionError(f"{run.suite.name} is on the agents track, whose cells are not stored: leave out --cells")
        restore_cells(run.missing, store)
        for cell in run.cells:
            if cell.is_finished():
                store_finished([run], cell, store)


def store_finished(runs: Sequence[SuiteRun], cell: Cell, store: Path) -> None:
    """Write a finished cell into a store, for every run that it belongs to."""
    for run in runs:
        for own in run.cells:
            if own.folder == cell.folder and not find_place(own, store).is_dir():
                store_cell(own, collect_result(replace(run, cells=(own,))), store)


def describe_interrupted(runs: Sequence[SuiteRun]) -> str:
    """The message after an interruption."""
    finished = sum(len(run.cells) - len(run.missing) for run in runs)
    total = sum(len(run.cells) for run in runs)
    places = " ".join(shlex.quote(str(run.folder)) for run in runs[:5])
    saved = f"{finished} of {total} cells are finished, the progress of the others is saved"
    return f"{saved}; resume with: fedagentgym bench resume {places}"


def list_units(runs: Sequence[SuiteRun]) -> list[list[Cell]]:
    """The cells to be played, grouped if they must be played one after the other; shared cells only once."""
    units: list[list[Cell]] = []
    seen: set[Path] = set()
    for run in runs:
        missing = [cell for cell in run.missing if cell.folder not in seen]
        seen |= {cell.folder for cell in missing}
        is_hosted = run.suite.track == "agents" and (run.entry.agent or {}).get("name") == ENDPOINT
        units += [missing] if is_hosted and missing else [[cell] for cell in missing]
    return sorted(units, key=lambda unit: unit[0].seed)  # so that an interrupted suite has runs that can be compared


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
    opened = {
        name: open_scenario(first.suite, name, first.seed) for name in dict.fromkeys(cell.scenario for cell in unit)
    }
    if first.suite.track == "agents":
        yield from play_agent_cells(unit, opened)
    else:
        yield from (play_method_cell(cell, opened[cell.scenario].at(cell.seed)) for cell in unit)


# ---- packing --------------------------------------------------------------------------------------------------------


def check_packable(run: SuiteRun, to: Path, weights: Path | None) -> None:
    """Refuse to pack, before anything is written: an unfinished run, or into a place that is taken."""
    check_finished(run)
    below = Path(run.suite.name) / run.entry.name
    if (to / below).exists():
        raise DataError(f"cannot create the folder {format_path(to / below)}: it exists already")
    if weights is not None:
        check_weights(run, weights / below)


def check_finished(run: SuiteRun) -> None:
    """Refuse to pack a run with cells that are not finished."""
    if run.missing:
        raise DataError(
            f"{run.folder}: {len(run.missing)} of {len(run.cells)} cells are not finished, {run.missing[0].key} is the first:"
            f" resume with: fedagentgym bench resume {run.folder}"
        )


def pack_run(run: SuiteRun, folder: Path) -> Manifest:
    """Write the result of a run whose cells are all finished."""
    check_finished(run)
    return write_result(collect_result(run), folder)


def check_weights(run: SuiteRun, folder: Path) -> None:
    """Refuse, before anything is written, to write weights that there are not, or to a place that is taken."""
    if run.suite.track != "methods":
        problem = "on the agents track, where nothing is trained: there are no weights to write"
        raise OptionError(f"{run.suite.name} is {problem}")
    if folder.exists():
        raise OptionError(f"{format_path(folder)} exists: move it, or name another folder for the weights")


def write_weights(run: SuiteRun, folder: Path, trust: Trust = NO_TRUST) -> list[Path]:
    """The policies that were ranked, one folder for each cell of the methods track: what others verify the words by."""
    check_weights(run, folder)
    places = [folder / cell.key for cell in run.cells]
    for cell, place in zip(run.cells, places, strict=True):
        if not cell.run_folder.is_dir():
            raise DataError(f"{cell.folder} was played elsewhere: its weights are not here")
        adapter = read_stored_config(cell.run_folder).agent.adapter
        best = run.suite.ranked_round == "best"
        export_policy(cell.run_folder, place, best=best, adapter_only=adapter is not None, trust=trust)
    return places


def collect_result(run: SuiteRun) -> Result:
    """The cells of a run with their episodes."""
    methods = run.suite.track == "methods"
    packed = [pack_method_cell(cell, run) if methods else pack_agent_cell(cell, run.entry) for cell in run.cells]
    return Result(
        suite=run.suite,
        entry=describe_run_entry(run),
        scenarios=tuple(opened.describe_all() for opened in run.opened.values()),
        cells=tuple(cell for cell, _ in packed),
        seconds=sum(seconds for _, seconds in packed),
        revision=find_revision(),
    )


def describe_run_entry(run: SuiteRun) -> EntryRecord:
    """The agent, for the record."""
    first = run.cells[0]
    if run.suite.track == "agents":
        return describe_entry(run.entry, describe_entry_agent(run), None)
    if (first.run_folder / "config.yaml").is_file():
        stored = read_stored_config(first.run_folder)
        return describe_entry(run.entry, describe_learner(stored.agent), stored.algorithm["name"])
    config = make_cell_config(run.suite, first.scenario, run.entry, first.seed)
    return describe_entry(run.entry, describe_learner(config.agent), str(config.algorithm["name"]))


def describe_entry_agent(run: SuiteRun) -> AgentRecord:
    """The agent of an entry. A tiny one is another model in every environment: the weights are those of the cells."""
    found = [describe_player(opened, run.entry) for opened in run.opened.values()]
    settings = AgentSettings.load(run.entry.agent or {}, "agent")
    return describe_agent(settings) if starts_from_nothing(settings) else found[0]


def pack_agent_cell(cell: Cell, entry: Entry) -> tuple[PackedCell, float]:
    """A cell of the agents track, and how long it took."""
    played, text = read_played(cell), read_text(cell.episodes_file)
    groups = parse_groups(text, str(cell.episodes_file))
    spent = Spent(episodes=sum(len(group) for group in groups), env_steps=played.env_steps)
    own = starts_from_nothing(AgentSettings.load(entry.agent or {}, "agent"))
    policy = cell.identity["agent"]["weights"] if own else None
    data = CellData(cell.scenario, cell.seed, groups, spent, policy=policy, usage=played.usage)
    return PackedCell(data, text), played.seconds


def pack_method_cell(cell: Cell, run: SuiteRun) -> tuple[PackedCell, float]:
    """A cell of the methods track, and how long it took."""
    if cell.packed_folder.is_dir():
        return read_packed_cell(cell)
    records = read_records(cell)
    rounds = [record["round"] for record in records if "evaluation" in record]
    texts = {number: read_text(cell.run_folder / "evaluation" / f"{number:04d}.jsonl") for number in rounds}
    points = tuple(
        make_point(number, parse_groups(text, f"{cell.run_folder}, round {number}"), sum_spent(records, number))
        for number, text in texts.items()
    )
    ranked = read_text(cell.episodes_file)
    episodes = list(parse_json_lines(ranked.splitlines(), str(cell.episodes_file)))
    config = read_stored_config(cell.run_folder)
    client_split = run.opened[cell.scenario].at(cell.seed).client_split
    assert client_split is not None
    groups = group_by_task(trajectory for trajectory, _ in episodes)
    about = episodes[0][1]
    if about.get("round") != choose_round(run.suite, points):
        raise DataError(
            f"{cell.episodes_file} was played by another round than the one that {run.suite.name} ranks: delete it and resume"
        )
    try:
        labelled = count_labelled(config.algorithm, client_split)
    except UnknownNameError as error:
        if not cell.entry.plugins:
            raise
        raise OptionError(f"{error}; it comes with {', '.join(cell.entry.plugins)}: name it (--plugin)") from None
    worlds = shorten_episodes(read_text(cell.worlds_file), str(cell.worlds_file)) if run.suite.in_own_worlds else ""
    selection = "".join(shorten_episodes(text, f"{cell.run_folder}, round {number}") for number, text in texts.items())
    data = CellData(
        cell.scenario,
        cell.seed,
        groups,
        sum_spent(records, records[-1]["round"]).model_copy(update={"labelled": labelled}),
        points,
        describe_clients(client_split, groups),
        policy=about.get("policy"),
        config=config.digest,
        epsilon=find_epsilon(records),
        revision=_read_revision(cell),
        worlds=parse_worlds(worlds, str(cell.worlds_file)),
    )
    seconds = float(read_json(cell.run_folder / "result.json")["seconds"])
    return PackedCell(data, ranked, selection, publish_config(config.plain), worlds), seconds


def _read_revision(cell: Cell) -> str | None:
    return read_text(cell.revision_file) or None if cell.revision_file.is_file() else None


def find_epsilon(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The privacy budget that the whole run spent, if it was accounted."""
    spent = [record["metrics"][EPSILON] for record in records if EPSILON in record["metrics"]]
    return max(spent) if spent else None
