"""One run from configuration to result: `fedagentgym.train`. What it writes is described in `runs.folder`."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, overload

from fedagentgym.algorithms.recipe import make_recipe
from fedagentgym.base import devices
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, OptionError, require_type, show_value
from fedagentgym.base.escape import add_plugins, quote_word
from fedagentgym.base.files import format_yaml, write_atomic
from fedagentgym.base.imports import missing_explained
from fedagentgym.base.process import explain_interruption
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import derive
from fedagentgym.experiment.config import (
    OFFLOAD_ON_CPU,
    RESUMABLE,
    ROUNDS,
    RunConfig,
    digest_plain,
    find_decay,
    load_config,
)
from fedagentgym.experiment.first_batch import check_first_batch
from fedagentgym.experiment.opened import Run
from fedagentgym.experiment.record import build_record, evaluate_round
from fedagentgym.experiment.result import RunResult
from fedagentgym.experiment.stored import Trust, needs_trust, read_stored_config
from fedagentgym.experiment.trackers import TrackedRun
from fedagentgym.federation.backends import BACKENDS, Backend
from fedagentgym.federation.checks import PrivacySettings
from fedagentgym.federation.commits import CommitStore, read_chain
from fedagentgym.federation.exchange import ApplicationSpec
from fedagentgym.federation.progress import ProgressCallback
from fedagentgym.federation.round import Observer, ServerConfig, run_rounds
from fedagentgym.runs.folder import CONFIG, RECORD, RunFolder

MAX_SWEPT, MAX_FOLDER_LENGTH = 1_000, 100
"""Maximum number of runs of a sweep, and of characters in the name of a run's folder."""


@overload
def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    changes: Sequence[str] = (),
    *,
    seeds: None = None,
    plugins: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
    force: bool = False,
) -> RunResult: ...
@overload
def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    changes: Sequence[str] = (),
    *,
    seeds: Sequence[int],
    plugins: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
    force: bool = False,
) -> list[RunResult]: ...
@missing_explained()
def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    changes: Sequence[str] = (),
    *,
    seeds: Sequence[int] | None = None,
    plugins: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
    force: bool = False,
) -> RunResult | list[RunResult]:
    """Run a configuration from the beginning.

    Args:
        config: A `RunConfig`, a mapping, the path of a YAML file, or the name of a preset; `NAME:VARIANT,VARIANT` applies
            variants of the file.
        changes: Assignments such as `"federation.rounds=5"`, applied in order.
        seeds: If given, one run for each seed, in its own folder below the run's; finished ones are not repeated.
        plugins: Modules or files of your own to import, besides those of the configuration.
        observers: Objects with `begin(rounds)` and `round_done(record)`, called when the run begins and after each round.
        on_progress: Called with a `TrainingProgress` many times a round.
        force: Whether a run begins although its first batch has nothing to learn from: no reply that can be read, or no group in
            which two episodes earned different rewards.

    Returns:
        A `RunResult`: the run's folder, its record (`result.json`), and the digest of the final global state. With `seeds`, a
        list of them.

    Raises:
        OptionError: If the configuration is invalid, its first batch has nothing to learn from, or its folder holds a run
            already: resume that one, or name another folder.
        DataError: If data that the configuration names is missing or does not fit.
        MissingExtraError: If torch is not installed, or another library that the configuration needs.
        FedAgentGymError: If too few clients replied; the rounds until then are committed, and the run can be resumed.
    """
    chosen = load_config(config, changes, plugins)
    if seeds is not None:
        if chosen.learning.sharding is not None and chosen.learning.sharding.is_needed:
            raise OptionError(
                "learning.sharding is for one run at a time: leave seeds out, and start a run for each of them"
            )
        if not seeds or len(set(seeds)) != len(seeds):
            raise OptionError(f"seeds are different numbers, at least one, got {list(seeds)}")
        configs = {f"seed{seed}": load_config(chosen, [f"seed={seed}"]) for seed in seeds}
        return _train_several(configs, observers, on_progress, force)
    return _train_once(chosen, observers, on_progress, force)


@missing_explained()
def sweep(
    config: RunConfig | Mapping[str, Any] | str | Path,
    values: Mapping[str, Sequence[Any]],
    changes: Sequence[str] = (),
    *,
    plugins: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
    force: bool = False,
) -> dict[tuple[str, ...], RunResult]:
    """Run a configuration under every combination of some values.

    Args:
        config: As for `train`.
        values: The values of each key, such as `{"learning.learning_rate": [0.001, 0.003]}`.
        changes: Assignments that hold for every run.
        plugins: Modules or files of your own to import.
        observers: As for `train`; they see the rounds of one run after another.
        on_progress: As for `train`.
        force: As for `train`.

    Returns:
        The results by their assignments. Each run is in a folder below the configuration's, named after its assignments;
        finished runs are not repeated.

    Raises:
        OptionError: If a key is unknown, has no value or the same value twice, or a combination is no valid configuration. No
            run has begun then.
    """
    chosen = load_config(config, changes, plugins)
    if not values:
        raise OptionError("a sweep names at least one key with its values")
    written: dict[str, list[str]] = {}
    fixed = {change.partition("=")[0].strip() for change in changes}
    for key, tried in values.items():
        if key in fixed:
            raise OptionError(f"{key} is set for all runs, and has several values: leave one out")
        if isinstance(tried, str) or not isinstance(tried, Sequence):
            raise OptionError(f"the values of {key} must be a list, got {show_value(tried)}")
        try:
            written[key] = [value if isinstance(value, str) else json.dumps(value) for value in tried]
        except (TypeError, ValueError):
            raise OptionError(
                f"the values of {key} are plain ones, as a YAML file has them, got {show_value(tried)}"
            ) from None
        if not tried or len(set(written[key])) < len(tried):
            raise OptionError(f"the values of {key} are different ones, at least one, got {list(tried)}")
    if (count := math.prod(map(len, written.values()))) > MAX_SWEPT:
        raise OptionError(f"a sweep has at most {MAX_SWEPT:,} runs, these are {count:,}")
    named: dict[str, tuple[str, ...]] = {}
    for combination in product(*written.values()):
        given = tuple(f"{key}={text}" for key, text in zip(written, combination, strict=True))
        name = re.sub(r"[^\w.]+", "-", "-".join(given)).strip("-")
        # the folder of a combination does not depend on the others, so a sweep with more values goes on from this one
        named[name if len(name) <= MAX_FOLDER_LENGTH else f"{name[:MAX_FOLDER_LENGTH]}-{digest(given)[7:19]}"] = given
    if len(named) < count:
        raise OptionError("two of these combinations have the same name of a folder: sweep over fewer values at once")
    configs = {name: load_config(chosen, given) for name, given in named.items()}
    found: dict[str, tuple[str, ...]] = {}
    for name, config in configs.items():
        if (other := found.setdefault(digest(config.plain()), named[name])) != named[name]:
            raise OptionError(f"{' '.join(other)} and {' '.join(named[name])} are the same run")
    return dict(zip(named.values(), _train_several(configs, observers, on_progress, force), strict=True))


def _train_several(
    configs: Mapping[str, RunConfig], observers: Sequence[Observer], on_progress: ProgressCallback | None, force: bool
) -> list[RunResult]:
    """Do runs in folders of these names below their own. A folder that holds another run is refused before any of them begins."""
    runs = []
    for name, config in configs.items():
        place = json.dumps(str(Path(config.output.folder) / name))
        runs.append(load_config(config, [f"output.folder={place}"]))
        if RunFolder(Path(runs[-1].output.folder)).is_run:
            check_same(runs[-1])
    return [finish_or_read(run, observers, on_progress, force) for run in runs]


def finish_or_read(
    chosen: RunConfig,
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
    force: bool = False,
) -> RunResult:
    """Return the result of a configuration's run: read it if the run is finished, else resume or begin the run."""
    folder = RunFolder(Path(chosen.output.folder))
    if folder.is_finished:
        check_same(chosen)
        return RunResult.load(folder.path)
    if folder.is_run:
        return resume_own(chosen, observers=observers, on_progress=on_progress)
    return _train_once(chosen, observers, on_progress, force)


def check_same(config: RunConfig) -> None:
    """Refuse a configuration whose folder holds the run of another one."""
    folder = Path(config.output.folder)
    if config.digest not in read_stored_config(folder).list_digests():
        raise OptionError(f"{folder} holds a run with another configuration: choose another folder (--out)")


def _train_once(
    chosen: RunConfig, observers: Sequence[Observer], on_progress: ProgressCallback | None, force: bool
) -> RunResult:
    folder = Path(chosen.output.folder)
    with join_ranks(chosen):
        if devices.here().share((folder / CONFIG).exists):
            raise OptionError(
                f"there is a run in {folder} already: resume it"
                f" ({add_plugins(f'fedagentgym resume {quote_word(folder)}', RunFolder(folder).plugins)}; in Python"
                " fedagentgym.resume), or begin another one elsewhere (--out FOLDER)"
            )
        with devices.here().own_folder(folder, filled=False) as place:
            opened = Run.open(chosen, place)
            with contextlib.closing(opened.runtime):
                if not force:
                    check_first_batch(opened)
                write_atomic(place / CONFIG, format_yaml(chosen.plain()))
                with explain_interruption(lambda: describe_saved_rounds(place)):
                    return replace(finish(opened, observers, on_progress), folder=folder)


def resume_own(
    config: RunConfig,
    changes: Sequence[str] = (),
    *,
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
) -> RunResult:
    """Resume the run of a configuration that the user has given again. Its folder is trusted: its configuration is equal."""
    stored, rounds = read_stored_config(Path(config.output.folder)), config.federation.rounds
    if digest_plain(config.plain(), stored.rounds) != stored.digest:
        raise OptionError(f"{stored.place} holds a run with another configuration: choose another folder (--out)")
    given = [f"output.trackers={json.dumps(config.output.trackers)}"]
    given += [] if rounds == stored.rounds else [f"{ROUNDS}={rounds}"]
    return resume(
        stored.place,
        [*given, *changes],
        plugins=config.plugins,
        trust_plugins=True,
        observers=observers,
        on_progress=on_progress,
    )


@missing_explained()
def resume(
    folder: str | Path,
    changes: Sequence[str] = (),
    *,
    plugins: Sequence[str] = (),
    trust_plugins: bool = False,
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
) -> RunResult:
    """Resume an interrupted run, or make a finished one longer; the result is the same as without the interruption.

    Args:
        folder: The run's folder.
        changes: Assignments of settings that do not change what is learned, such as `"federation.workers=2"`;
            `federation.rounds` may be raised.
        plugins: The plugins of the run's configuration, which must be named again, since their code runs.
        trust_plugins: Whether everything that the folder's configuration names may run, because you trust whoever made it.
        observers: As for `train`.
        on_progress: As for `train`.

    Returns:
        The `RunResult` of the finished run.

    Raises:
        OptionError: If a setting cannot be changed when a run is resumed, or a plugin of the run was not named.
        DataError: If there is no run in the folder, another process is working on it, or its files were changed.
        MissingExtraError: If torch is not installed, or another library that the configuration needs.
        FedAgentGymError: If too few clients replied.
    """
    require_type("resume takes the folder of a run", folder, str, Path)
    path = Path(folder)
    if not (path / CONFIG).is_file():
        raise DataError(f"there is no run in {path}: config.yaml is missing")
    for change in changes:
        if (key := change.partition("=")[0].strip()) not in (*RESUMABLE, ROUNDS):
            raise OptionError(
                f"{key} cannot be changed when a run is resumed: only {', '.join(RESUMABLE)} can, and {ROUNDS}"
            )
    stored = read_stored_config(path)
    config, loaded = stored.load(Trust(tuple(plugins), trust_plugins), changes)
    before, after = stored.rounds, config.federation.rounds
    if after < before:
        raise OptionError(f"{ROUNDS} can be raised when a run is resumed, not lowered: it is {before}")
    if after > before:  # a run may be extended if nothing that was computed depended on its length
        plain = config.plain()
        if (schedule := find_decay({key: plain[key] for key in ("learning", "algorithm")})) is not None:
            raise OptionError(
                f"{ROUNDS} cannot be raised: {schedule} lets the learning rate decay over all {before} rounds, and some of"
                f" them were computed so; a run that sets {schedule}.steps can be made longer"
            )
        longer = {"raised_from": (*config.federation.raised_from, before)}
        config = config.model_copy(update={"federation": config.federation.model_copy(update=longer)})
    with join_ranks(config), devices.here().own_folder(path, filled=True) as place:
        opened = Run.open(config, place, loaded)
        if after > before:  # if the rounds belong to the longer configuration, write it; the record is then out of date
            read_chain(place, opened.inputs)
            write_atomic(place / CONFIG, format_yaml(config.plain()))
            (place / RECORD).unlink(missing_ok=True)
        with contextlib.closing(opened.runtime), explain_interruption(lambda: describe_saved_rounds(place)):
            return replace(finish(opened, observers, on_progress), folder=path)


def describe_saved_rounds(folder: Path) -> str:
    """The message after an interruption: what is saved, and how to resume."""
    rounds = CommitStore(folder / "rounds").list_rounds()
    saved = f"{folder} is saved up to round {rounds[-1]}" if rounds else f"no round of {folder} is finished"
    flag = " --trust-plugins" if needs_trust(folder) else ""
    return f"{saved}; resume with: {devices.here().program} resume {quote_word(folder)}{flag}"


@contextlib.contextmanager
def join_ranks(config: RunConfig) -> Iterator[None]:
    """Join the processes that torchrun started for a sharded run; any other run must be in a single process."""
    place, sharding = devices.find_place(), config.learning.sharding
    size = 1 if place is None else place.size
    if sharding is None or not sharding.is_needed:
        if size > 1:
            raise OptionError(
                f"torchrun started {size} processes, and nothing says that they share a run: set"
                f" learning.sharding={{devices: {size}}}, or start one process"
            )
        yield
        return
    start = f"start torchrun --nproc-per-node {sharding.devices} -m fedagentgym train ..."
    if place is None:
        raise OptionError(f"learning.sharding needs a process for each of its devices: {start}")
    if size != sharding.devices or size != place.machine_size:
        raise OptionError(
            f"learning.sharding.devices is {sharding.devices}, but torchrun started {size} processes,"
            f" {place.machine_size} of them on this machine: {start}"
        )
    import torch

    from fedagentgym.agents.model.loading import choose_device

    kind = choose_device(config.agent.device).type
    if sharding.offload and kind == "cpu":
        raise OptionError(OFFLOAD_ON_CPU)
    if kind == "cuda" and (there := torch.cuda.device_count()) < size:
        raise OptionError(f"learning.sharding.devices is {size}, but there are {there} GPUs here")
    with devices.join(place, kind):
        yield


def finish(run: Run, observers: Sequence[Observer] = (), on_progress: ProgressCallback | None = None) -> RunResult:
    """Run the remaining rounds, then write the record and the report."""
    first = devices.here().rank == 0
    here = merge(run.config.plain(), {"output": {"folder": str(run.folder)}})
    tracked = [TrackedRun(run.config.output.trackers, here)] if first and run.config.output.trackers else []
    report = run.config.output.report == "html"
    if report:
        from fedagentgym.experiment.report.background import write_background

        seed = derive(run.config.seed, "evaluation")
        devices.here().share(lambda: write_background(run.folder, run.runtime.client_split, run.sets, seed))
    federation = run.config.federation
    run.deployment.check_backend(federation.backend)
    spec = make_recipe(run.spec) if federation.backend == "flower" else run.spec
    backend: Backend = BACKENDS.get(federation.backend)(
        ApplicationSpec(run.deployment.application, {"spec": spec}, run.plugins),
        folder=run.folder / "states",
        workers=federation.workers,
        application=run.algorithm,
        device_per_worker=federation.device_per_worker,
        **({} if federation.together is None else {"together": federation.together}),
        **run.config.backend_options,
    )
    try:
        evaluation, privacy = run.config.evaluation, getattr(run.config.method, "privacy", None)
        plan = ServerConfig(
            run.folder,
            run.config.seed,
            federation,
            keep_rounds=run.config.output.keep_rounds,
            evaluate=partial(evaluate_round, run, backend) if evaluation is not None else None,
            evaluate_every=evaluation.every if evaluation is not None else 1,
            observers=[*observers, *tracked] if first else (),
            inputs=run.inputs,
            on_progress=on_progress if first else None,
            began=run.began,
            hide_failures=privacy is not None,
            private=privacy is not None and PrivacySettings.load(privacy, "algorithm.privacy").secret,
        )
        run.deployment.ask_all(backend, federation.deadline)
        commit, records = run_rounds(run.algorithm, backend, plan)
    finally:
        backend.close()

    def write_result() -> dict[str, Any]:
        """Play the tasks that rank the run, and write the record and the report."""
        record = build_record(run, commit, records)
        plain = record.model_dump(mode="json")
        RunFolder(run.folder).write_record(record)
        if report:
            from fedagentgym.experiment.report.page import write_report

            write_report(run.folder, records)
        for observer in tracked:
            observer.finish(plain)
        return plain

    return RunResult(run.folder, devices.here().share(write_result))
