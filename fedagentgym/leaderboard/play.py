"""Playing the entries of a suite: `train`, or `eval` on the agents track, in a loop over the suite's configurations.

    ROOT/SUITE/ENTRY/suite.yaml, entry.json    the definitions of the suite and of the entry
    ROOT/SUITE/ENTRY/SCENARIO-seedN/           the runs, each as `train` or `eval` writes it
    STORE/SUITE/ENTRY/SCENARIO-seedN.zip       an archive of each finished run, from which other machines can continue
    STORE/SUITE/ENTRY.zip                      one archive of all runs, which replaces these when all are finished

Finished runs are not played again, and interrupted runs are resumed. ROOT/SUITE/ENTRY is a result (`results`).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.agents import AGENTS
from fedagentgym.agents.foreign import check_foreign_agent
from fedagentgym.agents.model.store import locate_model
from fedagentgym.agents.players.endpoint import make_endpoint_agent
from fedagentgym.agents.presets import get_model, make_agent, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import DataError, OptionError, unknown_name_error
from fedagentgym.base.escape import add_plugins, quote_word
from fedagentgym.base.files import find_below, format_path, write_atomic
from fedagentgym.base.imports import load_plugins
from fedagentgym.base.process import count_usable_cores, end_with_parent, explain_interruption
from fedagentgym.base.progress import set_verbosity, show_progress
from fedagentgym.base.rounding import count_things, format_duration
from fedagentgym.base.streams import derive
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.evaluation_run import (
    EvaluatedEnv,
    EvaluationConfig,
    read_progress,
    run_evaluation,
    sum_usage,
)
from fedagentgym.experiment.export import export_policy
from fedagentgym.experiment.opened import prepare_agents
from fedagentgym.experiment.run import finish_or_read
from fedagentgym.experiment.stored import ASK, NO_TRUST, Trust, check_foreign_config, is_own_plugin
from fedagentgym.federation.commits import CommitStore, lock_folder
from fedagentgym.federation.records import count_episodes, headline_bytes
from fedagentgym.leaderboard.entries import Entry, find_packaged, load_settings
from fedagentgym.leaderboard.results import ENTRY, MAX_SEARCH_DEPTH, SUITE, Result, RunKey, join, name_run, pack
from fedagentgym.leaderboard.suite import OpenedScenario, Suite, check_budget, make_config, open_scenario, to_yaml
from fedagentgym.learning.evaluation import OpenedSet
from fedagentgym.learning.recipe import complete_tiny, prepare_agent
from fedagentgym.runs.archive import Archive
from fedagentgym.runs.folder import RunFolder, format_document
from fedagentgym.runs.record import ENDPOINT, Usage, describe_agent, hide_secrets, publish_settings


@dataclass(frozen=True)
class PlannedRun:
    """A run of a suite: one scenario under one seed, played by an entry in the folder `run`."""

    suite: Suite
    entry: Entry
    scenario: str
    seed: int
    run: RunFolder

    @property
    def key(self) -> RunKey:
        return self.scenario, self.seed

    @property
    def name(self) -> str:
        return name_run(self.key)


@dataclass(frozen=True)
class SuiteRun:
    """An entry of a suite with its runs, in a folder that is a result."""

    suite: Suite
    entry: Entry
    folder: Path
    runs: tuple[PlannedRun, ...]
    opened: Mapping[str, OpenedScenario]

    @property
    def left_out(self) -> list[str]:
        """The scenarios of the suite that the entry does not play."""
        return [name for name in self.suite.scenarios if name not in self.opened]

    @property
    def missing(self) -> list[PlannedRun]:
        return [one for one in self.runs if not one.run.is_finished]

    def describe_state(self, one: PlannedRun) -> str:
        """The progress of a run, in a few words."""
        if one.run.is_finished:
            return "finished"
        if self.suite.track == "agents":
            done = read_progress(one.run).tasks
            return f"{done} of {len(self.opened[one.scenario].at(one.seed).ids)} tasks" if done else "waiting"
        rounds = CommitStore(one.run.path / "rounds").list_rounds()
        return f"round {rounds[-1]} of {one.run.config['federation']['rounds']}" if rounds else "waiting"

    def check_finished(self) -> None:
        """Raise if a run is not finished."""
        if self.missing:
            raise DataError(
                f"{self.folder}: {len(self.missing)} of {len(self.runs)} runs are not finished, {self.missing[0].name} is the"
                f" first: resume with: {describe_resumption([self])}"
            )


def describe_resumption(entries: Sequence[SuiteRun]) -> str:
    """The command that resumes these entries."""
    places = " ".join(quote_word(one.folder) for one in entries)
    return add_plugins(
        f"fedagentgym bench resume {places}", [path for one in entries for path in one.entry.plugin_paths]
    )


def open_entry(suite: Suite, entry: Entry, root: Path) -> SuiteRun:
    """An entry with its runs, finished or not; nothing is written or played. The scenarios are those that the entry names, or
    all. A tiny agent that names none plays only scenarios for which the package has one, if there are any."""
    for name in entry.scenarios:
        if name not in suite.scenarios:
            raise unknown_name_error(f"scenario of {suite.name}", name, suite.scenarios)
    if entry.scenarios and suite.track == "methods":
        raise OptionError(f"{suite.name} is on the methods track, which is played as a whole: leave out --scenario")
    chosen = entry.scenarios or suite.scenarios
    opened = {name: open_scenario(suite, name) for name in suite.scenarios if name in chosen}
    if suite.track == "agents" and not entry.scenarios:
        settings = load_settings(entry, suite.ranking.temperature)
        opened = {name: one for name, one in opened.items() if find_packaged(settings, one.env) is not None} or opened
    folder = root / suite.name / entry.name
    keys = [(scenario, seed) for scenario in opened for seed in suite.seeds]
    runs = tuple(PlannedRun(suite, entry, *key, RunFolder(folder / name_run(key))) for key in keys)
    return SuiteRun(suite, entry, folder, runs, opened)


def load_entry(folder: Path, trust: Trust | None = None) -> SuiteRun:
    """The entry that a folder records. The folder may come from someone else.

    Without `trust` the entry is only read, and no code that it names is imported. With `trust` its plugins are loaded to play it.
    Unless the user trusts the folder, an entry is refused that names a server, a key, or code that the user did not name.
    """
    if not (folder / ENTRY).is_file():
        raise DataError(
            f"{format_path(folder)} is not a run of a suite: {ENTRY} is missing (see `fedagentgym bench run`)"
        )
    suite, entry, where = Result(folder).suite, Result(folder).entry, format_path(folder / ENTRY)
    if trust is not None and not trust.folder:
        given = {Path(one).name for one in trust.plugins}
        for plugin in entry.plugins:
            if plugin.name not in given and not is_own_plugin(plugin.name):
                problem = f"names the plugin {plugin.name[:200]!r}, whose code would run here"
                raise OptionError(f"{where} {problem}: name it yourself (--plugin), {ASK}")
        if suite.track == "agents":
            settings = AgentSettings.load(entry.agent or {}, "agent")
            if settings.name == ENDPOINT:
                problem = "names a server and a key, which only you may: repeat the `fedagentgym bench run` of it"
                raise OptionError(f"{where} {problem}")
            check_foreign_agent(settings, where)
        else:
            load_plugins(entry.plugin_paths)
            first = next(iter(suite.scenarios)), suite.seeds[0]
            check_foreign_config(make_run_config(suite, entry, first), where)
    if trust is not None:
        load_plugins(entry.plugin_paths)
    return open_entry(suite, entry, folder.resolve().parent.parent)


def find_entries(folder: Path) -> list[Path]:
    """The folders of entries at or below a folder, such as ROOT, ROOT/SUITE, or a folder of several roots."""
    return sorted(find_below(folder, ENTRY, MAX_SEARCH_DEPTH))


# ---- configurations ---------------------------------------------------------------------------------------------------


def make_run_config(suite: Suite, entry: Entry, key: RunKey) -> RunConfig:
    """The configuration of a run of the methods track, within the suite's budget."""
    scenario, seed = key
    config = make_config(suite, scenario, entry.changes, seed=seed, plugins=entry.plugin_paths, stream=entry.stream)
    check_budget(suite, config)
    return config


def choose_settings(opened: OpenedScenario, entry: Entry) -> AgentSettings:
    """The agent of an entry in a scenario. A tiny agent that the package does not ship is made by the environment's recipe."""
    settings = load_settings(entry, opened.suite.ranking.temperature)
    if starts_from_nothing(settings) and find_packaged(settings, opened.env) is None:
        return complete_tiny(settings, opened.env.id, None)
    return settings


def make_evaluation_config(opened: OpenedScenario, entry: Entry, seed: int) -> EvaluationConfig:
    """The configuration of a run of the agents track."""
    settings = choose_settings(opened, entry)
    options = opened.env.options.portable
    return EvaluationConfig(
        name=f"{opened.suite.name}-{name_run((opened.name, seed))}",
        seed=derive(seed, "ranked"),
        agent=publish_settings(settings),
        env=EvaluatedEnv(id=opened.env.id, options=options),
        evaluation=opened.ranking.evaluation,
        plugins=tuple(one.name for one in entry.plugins),
    )


# ---- playing ----------------------------------------------------------------------------------------------------------


def begin(one: SuiteRun) -> None:
    """Write the definitions of the suite and the entry to its folder. If the folder holds another entry of this name with a
    finished run, refuse; unfinished runs of another entry are removed."""
    place, entry = one.folder, one.entry
    agent = None if entry.agent is None else hide_secrets(entry.agent)
    if (place / ENTRY).is_file() and (place / SUITE).is_file():
        before, runs = Result(place), [run for run in place.glob("*-seed*") if RunFolder(run).is_run]
        same = before.suite.digest == one.suite.digest and before.entry.identity == entry.identity
        if not same and any(RunFolder(run).is_finished for run in runs):
            raise OptionError(
                f"{place} holds another entry of this name, or one of another version of the suite: choose another --name, or"
                " move it"
            )
        for run in [] if same else runs:
            shutil.rmtree(run)
    write_atomic(place / SUITE, to_yaml(one.suite))
    write_atomic(place / ENTRY, format_document(entry.model_copy(update={"agent": agent})))


def play(entries: Sequence[SuiteRun], workers: int = 0, store: Path | None = None) -> None:
    """Play every missing run, `workers` at a time (0: as many as there are cores).

    With a `store`, finished runs are also written there, so that the suite can be continued on another machine. An unknown agent,
    a missing model, a server that cannot be asked, and evaluation tasks from which agents learn are refused before anything is
    written.
    """
    for one in entries:
        if one.suite.track == "agents":
            settings = load_settings(one.entry, one.suite.ranking.temperature)
            AGENTS.get_target(settings.name)
            if settings.name == ENDPOINT:
                make_endpoint_agent(settings).close()
            elif (model := get_model(settings)) is not None:
                locate_model(model)
    scenarios = {(one.suite.digest, name): opened for one in entries for name, opened in one.opened.items()}
    for opened in scenarios.values():
        opened.check_held_out()

    def describe_saved() -> str:
        """The message after an interruption, with the command that resumes the entries."""
        finished = sum(len(one.runs) - len(one.missing) for one in entries)
        saved = f"{finished} of {total} runs are finished, the progress of the others is saved"
        return f"{saved}; resume with: {describe_resumption(entries[:5])}"

    if store is not None and store.exists() and not store.is_dir():
        raise OptionError(f"--store must be a folder, {format_path(store)} is none")
    # before anything is written: a configuration that is refused must not cost runs that are not finished
    planned = [
        (run, make_run_config(run.suite, run.entry, run.key))
        for one in entries
        for run in one.missing
        if run.suite.track == "methods"
    ]
    with contextlib.ExitStack() as locks:
        for one in entries:
            locks.enter_context(lock_folder(one.folder))
            begin(one)
            if store is not None:
                exchange(one, store)
        missing = [run for one in entries for run in one.missing]
        prepare_agents(
            config for run, config in planned if not run.run.is_finished
        )  # once, before several processes need them
        total, left = sum(len(one.runs) for one in entries), len(missing)
        folders = ", ".join(str(one.folder) for one in entries[:3])
        with (
            explain_interruption(describe_saved),
            show_progress(folders if len(entries) <= 3 else f"{len(entries)} entries", total=total) as bar,
        ):
            bar.advance(total - left)
            started = time.monotonic()
            # a hosted model plays its runs one after the other, since they share one limit of cost
            units = list[list[PlannedRun]]()
            for one in entries:
                is_hosted = one.suite.track == "agents" and (one.entry.agent or {}).get("name") == ENDPOINT
                units += [list(one.runs)] if is_hosted and one.missing else [[run] for run in one.missing]
            units.sort(key=lambda unit: unit[0].seed)  # so that an interrupted suite has runs of the same seeds
            for number, run in enumerate(_play_units(units, workers or count_usable_cores()), start=1):
                name, more = f"{run.entry.name} {run.name}", left - number
                rest = format_duration((time.monotonic() - started) / number * more)
                if store is not None:
                    exchange(next(one for one in entries if run in one.runs), store)
                bar.advance(run=name, left=more)
                bar.write(f"{name}: finished; {count_things(more, 'run')} left{f', about {rest}' if more else ''}")


def _play_units(units: Sequence[Sequence[PlannedRun]], workers: int) -> Iterator[PlannedRun]:
    """Play units of runs, in this process or in several, and yield the finished runs."""
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


def _play_apart(unit: Sequence[PlannedRun]) -> list[PlannedRun]:
    return list(play_unit(unit))


def play_unit(unit: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
    """Play the missing runs of a unit, which are of one entry, in this process, one after the other."""
    load_plugins(unit[0].entry.plugin_paths)
    spent: list[Usage] = []
    for one in unit:
        if one.suite.track == "agents":
            opened = open_scenario(one.suite, one.scenario, unit[0].seed).at(one.seed)
            if not one.run.is_finished:
                env, settings = opened.env, choose_settings(opened, one.entry)
                if starts_from_nothing(settings):  # take the package's tiny agent, or else make one now
                    made = find_packaged(settings, env)
                    settings = made or prepare_agent(settings, env.id, env.options.own, None)[0]
                evaluation = make_evaluation_config(opened, one.entry, one.seed)
                described = describe_agent(settings).model_copy(update={"settings": evaluation.agent})
                sets = (OpenedSet("", env, opened.options, evaluation.evaluation),)
                with contextlib.closing(make_agent(settings, env)) as player:
                    run_evaluation(evaluation, one.run.path, player, sets, described, sum_usage(spent))
                yield one
            spent += [used for used in (read_progress(one.run).usage,) if used is not None]
            continue
        folder = f"output.folder={json.dumps(str(one.run.path))}"
        config = load_config(make_run_config(one.suite, one.entry, one.key), [folder])
        rounds = CommitStore(one.run.path / "rounds")
        before = [rounds.read_note(number).record for number in rounds.list_notes()]
        finish_or_read(config, [BudgetGuard(one.suite, before)], force=True)  # a row that cannot learn is a result
        yield one


class BudgetGuard:
    """Watches a training run and ends it when it exceeds the suite's budget. `records` are those of rounds played before."""

    def __init__(self, suite: Suite, records: Sequence[Mapping[str, Any]] = ()) -> None:
        self.suite = suite
        self.episodes = {int(record["round"]): count_episodes([record]) for record in records}

    def begin(self, rounds: int) -> None:
        """Do nothing; episodes of rounds played before are already counted."""

    def round_done(self, record: Mapping[str, Any]) -> None:
        name, budget = self.suite.name, self.suite.budget
        self.episodes[int(record["round"])] = count_episodes([record])  # a resumed run may report its last round again
        sent = headline_bytes(record["bytes_total"])
        if budget.episodes is not None and sum(self.episodes.values()) > budget.episodes:
            raise OptionError(f"{name}: at most {budget.episodes:,} episodes, this method played more")
        if budget.bytes is not None and sent > budget.bytes:
            raise OptionError(f"{name}: at most {budget.bytes:,} bytes, this method sent {sent:,}")


# ---- finished runs elsewhere ------------------------------------------------------------------------------------------


def exchange(one: SuiteRun, store: Path) -> None:
    """Copy finished runs from a store, write runs that are finished here to it, and join them to one archive if all runs are
    finished."""
    whole = store / one.suite.name / f"{one.entry.name}.zip"
    parts = {run.key: whole.with_suffix("") / f"{run.name}.zip" for run in one.runs}
    finished = {run.key for run in one.runs if run.run.is_finished}  # asked once: other processes are playing
    for run in one.runs:
        place = whole if whole.is_file() else parts[run.key]
        if run.key in finished:
            if not whole.is_file() and not parts[run.key].is_file():
                pack(Result(one.folder, only=run.key), parts[run.key])
        elif not run.run.is_run and place.is_file():
            stored = Result(place)
            same = stored.suite.digest == one.suite.digest and stored.entry.identity == one.entry.publish().identity
            if not same or run.key not in stored.keys:
                raise OptionError(
                    f"{format_path(place)} was played under another definition of {one.suite.name} or of the entry"
                    f" {one.entry.name!r}: move it, or name another folder for finished runs"
                )
            Archive(place).extract(run.name, run.run.path)
            finished.add(run.key)
    if len(finished) == len(one.runs) and not whole.is_file():
        join([Result(parts[run.key]) for run in one.runs], whole)
        for part in parts.values():
            part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder holds another file
            whole.with_suffix("").rmdir()


def write_weights(one: SuiteRun, folder: Path, trust: Trust = NO_TRUST) -> list[Path]:
    """Write the ranked policies, one folder for each run of the methods track, so that others can verify the replies."""
    check_weights(one, folder)
    if missing := [run.run.path for run in one.runs if not (run.run.path / "rounds").is_dir()]:
        raise DataError(f"{missing[0]} was played elsewhere: its weights are not here")
    best = one.suite.ranked_round == "best"
    for run in one.runs:
        adapter = run.run.config["agent"].get("adapter") is not None
        export_policy(run.run.path, folder / run.name, best=best, adapter_only=adapter, trust=trust)
    return [folder / run.name for run in one.runs]


def check_weights(one: SuiteRun, folder: Path) -> None:
    """Refuse, before anything is written, a suite of agents, whose entries have no trained weights, or a folder that exists."""
    if one.suite.track != "methods":
        raise OptionError(
            f"{one.suite.name} is on the agents track, where nothing is trained: there are no weights to write"
        )
    if folder.exists():
        raise OptionError(f"{format_path(folder)} exists: move it, or name another folder for the weights")
