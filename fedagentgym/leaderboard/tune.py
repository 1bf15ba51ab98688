"""`bench tune`: try every row of a suite on the same grid, in worlds that are not reported, and keep the best setting.

    STORE/SUITE-tuning/ROW.SETTING.zip     a trial: the result of a setting, with its episodes (`results`)
    STORE/SUITE-tuning/ROW.zip             all trials of a row, when all are finished, as documents of one archive
    SUITE.tuned.json                       the chosen settings (`grid`)

A setting is an entry of the suite of trials (`suite.make_tuning`), and is played, resumed, stored and verified like every entry.
The choice is computed only from verified archives, so an interruption of the search does not change it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.files import format_path
from fedagentgym.base.progress import show_progress
from fedagentgym.leaderboard.entries import Entry, list_baselines, make_method_entry, slugify
from fedagentgym.leaderboard.grid import PUBLIC, RATE, ROUNDS, STEPS, TASKS, Choice, Point, Trial, Tried, choose_trial
from fedagentgym.leaderboard.play import open_entry, play
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.suite import Suite, check_budget, compute_definition, make_config, make_tuning
from fedagentgym.leaderboard.verify import verify
from fedagentgym.runs.archive import Archive, write_archive


class Setting(NamedTuple):
    """A setting of a row: the row's name, the changes to the row's configuration, and the entry that plays the setting."""

    row: str
    changes: tuple[str, ...]
    entry: Entry


def list_settings(suite: Suite) -> list[Setting]:
    """Every setting of every row that trains, in the order of the grid. If a setting cannot be played, or costs more than the
    suite allows, an error is raised, so that no setting of a grid is left out."""
    tuning, trials = suite.tuning, make_tuning(suite)
    assert tuning is not None
    bare, scenario = suite.model_copy(update={"chosen": {}}), next(iter(trials.scenarios))
    found = []
    for row in list_baselines(bare):
        base = make_config(trials, scenario, row.changes)
        if row.stream or not base.federation.rounds:
            continue
        # steps on public tasks are scaled like the clients' steps
        tasks = {TASKS: base.learning.tasks_per_step}
        if PUBLIC in base.algorithm:
            tasks[f"algorithm.{PUBLIC}"] = int(base.algorithm[PUBLIC])
        is_local = STEPS in base.algorithm
        steps = int(base.algorithm[STEPS]) if is_local else base.federation.rounds
        for point in tuning.list_points(row.name):
            changes = [f"{RATE}={point.learning_rate}"]
            if point.step_size != 1:
                larger = {key: size * point.step_size for key, size in tasks.items()}
                fewer = steps / point.step_size
                if not all(number.is_integer() for number in (*larger.values(), fewer)):
                    raise OptionError(
                        f"{suite.name}, row {row.name!r}: {steps} steps of {tasks[TASKS]} tasks cannot be made"
                        f" {point.step_size:g} times as large with the same number of episodes: give the row other step sizes"
                        f" (tuning.rows.{row.name}.step_size)"
                    )
                changes += [f"{key}={round(size)}" for key, size in larger.items()]
                changes.append(f"{f'algorithm.{STEPS}' if is_local else ROUNDS}={round(fewer)}")
            if point.knob is not None:
                changes.append(f"{point.knob}={json.dumps(point.value)}")
            name = _name_point(row.name, point)
            entry = make_method_entry([*row.changes, *changes], name, title=f"{row.title}: {', '.join(changes)}")
            try:
                for each in trials.scenarios:
                    check_budget(trials, make_config(trials, each, entry.changes))
            except OptionError as error:
                raise OptionError(f"{entry.title}: {error}") from None
            found.append(Setting(row.name, tuple(changes), entry))
    return found


def _name_point(row: str, point: Point) -> str:
    """The name of a setting's entry: the row with the values, or with a digest if the name would exceed 80 characters."""
    name = f"{row}.rate-{point.learning_rate:g}.step-{point.step_size:g}"
    if point.knob is not None:
        name += f".{point.knob.rpartition('.')[2]}-{slugify(json.dumps(point.value))}"
    return name if len(name) <= 80 else f"{row[:60]}.{digest(point._asdict())[7:23]}"


def tune(suite: Suite, out: Path, store: Path, workers: int = 0, rows: Sequence[str] = ()) -> Choice | None:
    """Play every setting of these rows (by default of all rows) that is not in the store, verify all trials, and choose. If
    trials of other rows are missing, nothing is chosen and None is returned."""
    settings = list_settings(suite)
    known = list(dict.fromkeys(one.row for one in settings))
    if unknown := [row for row in rows if row not in known]:
        raise unknown_name_error(f"row of {suite.name} that is tuned", unknown[0], known)
    trials, tried = make_tuning(suite), {row: [one for one in settings if one.row == row] for row in known}
    wholes = {row: store / trials.name / f"{row}.zip" for row in known}
    missing = [row for row in known if row in (rows or known) and not wholes[row].is_file()]
    play([open_entry(trials, one.entry, out) for row in missing for one in tried[row]], workers, store)
    for row in rows or known:
        _join_trials(wholes[row], [wholes[row].with_name(f"{one.entry.name}.zip") for one in tried[row]])
    if not all(whole.is_file() for whole in wholes.values()):
        return None
    found: dict[str, list[Trial]] = {row: [] for row in known}
    with (
        show_progress(f"verifying {trials.name}", total=len(settings)) as bar,
        tempfile.TemporaryDirectory(prefix="fedagentgym-trials-") as folder,
    ):
        for one in settings:
            archive = Path(folder) / f"{one.entry.name}.zip"
            archive.write_bytes(Archive(wholes[one.row]).read(archive.name))
            verified, result = verify(archive, suite=suite), Result(archive)
            if result.entry.identity != one.entry.publish().identity:
                raise OptionError(
                    f"{format_path(wholes[one.row])}: {archive.name} is another setting than {one.entry.title}: move it, or"
                    " name another --store"
                )
            reached = result.numbers.overall[suite.rank_by]
            ends = {"low": reached.low, "high": reached.high}
            runs = tuple(result.numbers.list_runs(suite.rank_by))
            trial = Trial(changes=one.changes, mean=reached.mean, **ends, runs=runs, result=verified.result)
            found[one.row].append(trial)
            archive.unlink()
            bar.advance(entry=one.entry.name)
    rows_tried = {
        row: Tried(trials=tuple(all_tried), chosen=choose_trial(all_tried, suite.rank_by))
        for row, all_tried in found.items()
    }
    definition = compute_definition(suite)
    return Choice(suite=suite.name, definition=definition, measure=suite.rank_by, rows=rows_tried)


def _join_trials(whole: Path, archives: Sequence[Path]) -> None:
    """Write the finished trials of a row as the documents of one archive, unless it exists, and remove their own archives."""
    if not whole.is_file():
        write_archive(whole, {archive.name: archive.read_bytes() for archive in archives}, [])
    for archive in archives:
        archive.unlink(missing_ok=True)


def list_edges(suite: Suite, choice: Choice) -> dict[str, list[str]]:
    """For each row, the axes of the grid whose chosen value is the smallest or the largest one, so that a better value may lie
    outside the grid. Axes with fewer than three values, and knobs whose values are not all numbers, are left out."""
    assert suite.tuning is not None
    found = {}
    for row, tried in choice.rows.items():
        points = suite.tuning.list_points(row)
        best = points[tried.chosen]
        axes = {"learning_rate": [one.learning_rate for one in points], "step_size": [one.step_size for one in points]}
        chosen = {"learning_rate": best.learning_rate, "step_size": best.step_size}
        if best.knob is not None and all(type(one.value) in (int, float) for one in points):
            name = best.knob.rpartition(".")[2]
            name = best.knob if name in axes else name  # such as algorithm.aggregation.learning_rate
            axes[name], chosen[name] = [one.value for one in points], best.value
        found[row] = [
            f"{'smallest' if chosen[name] == min(values) else 'largest'} {name}"
            for name, values in axes.items()
            if len(set(values)) > 2 and chosen[name] in (min(values), max(values))
        ]
    return found
