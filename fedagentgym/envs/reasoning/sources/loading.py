"""Tasks from rows: the rows that are read, those that can be used, and the split of each task.

A row that cannot be used (no answer, an answer that is empty or too long to be verified, a field that is missing) is
skipped and counted. If more than the allowed share of the rows cannot be used, loading stops and names the first of them.

Rows come from files, from an installed copy (published files that `fedagentgym data add` stored), or from memory. Loading
never uses the network; only `download_parts`, for an installation, does.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError, OptionError, describe_error
from fedagentgym.base.files import Stamps, data_folder, read_json, stamp_file
from fedagentgym.base.hub import TRANSFER_SECONDS, call_within, limit_answers
from fedagentgym.base.imports import require
from fedagentgym.base.process import get_logger
from fedagentgym.base.streams import stream
from fedagentgym.envs.options import INSTALLED
from fedagentgym.envs.pool import TaskPool, represent
from fedagentgym.envs.reasoning.pools import LoadedTask, Strip
from fedagentgym.envs.reasoning.sources.catalogue import SOURCES, Source
from fedagentgym.envs.reasoning.sources.own import OWN, Columns, GivenRows, find_columns, make_reader
from fedagentgym.envs.reasoning.sources.rows import Row, choose_subset, digest_files, list_data_files, read_records
from fedagentgym.envs.tasks import TaskIds, collect_columns, is_value


def download_parts(hub: str, subset: str | None) -> dict[str, Any]:
    """Download the tables of a data set, by the names of their splits on the hub."""
    datasets = require("datasets", "data")
    try:
        with limit_answers():
            return call_within(TRANSFER_SECONDS, lambda: dict(datasets.load_dataset(hub, subset)))
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot load {hub} from the Hugging Face hub ({first[:160]}): give a local file with data=FILE, or install one"
            " with `fedagentgym data add NAME --from FILE`"
        ) from None


RECORD = "installed.json"
FILES = "files"
"""The record of a set and the folder with its files, inside the set's own folder."""


def find_installed(name: str) -> Path:
    """The folder with the files of an installed set; `DataError` if they have changed since."""
    home = data_folder(name)
    record = home / RECORD
    if not record.is_file():
        raise DataError(
            f"the data set {name} is not installed: `fedagentgym data add {name}` downloads it,"
            f" `fedagentgym data add {name} --from FILE_OR_FOLDER` installs a copy"
        )
    folder = home / FILES
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    stamps = tuple((file.relative_to(folder).as_posix(), stamp_file(file)) for file in files)
    _check_files(home, stamp_file(record), stamps)
    return folder


@lru_cache(maxsize=32)
def _check_files(home: Path, written: tuple[int, int, int], stamps: Stamps) -> None:
    """Raise unless the files have the digests in the record; done again when the stamp of a file changes."""
    record = read_json(home / RECORD)
    expected = record.get("files") if isinstance(record, dict) else None
    if not isinstance(expected, dict) or not all(isinstance(value, str) for value in expected.values()):
        raise DataError(
            f"{home / RECORD} is not the record of an installed data set: remove {home} and install it again"
        )
    found = {name: file_digest(home / FILES / name) for name, _ in stamps}
    changed = sorted(name for name in {**expected, **found} if expected.get(name) != found.get(name))
    if changed:
        raise DataError(
            f"{home / FILES / changed[0]} is not the file that was installed: remove {home} and install the set again"
        )


TOLERATED = 0.01
"""Maximum share of unusable rows, unless the option `bad_rows` sets another."""
REPEATED, HIDDEN, EXCLUDED = "repeated problems", "answers not published", "excluded by the set's own rules"


class Request(NamedTuple):
    """A request to a data set: the options of an environment that determine its tasks. Your own data has the name `own`;
    `task` is the kind of its tasks, and `columns` are the columns that were named."""

    name: str
    data: str | GivenRows = INSTALLED
    subset: str | None = None
    bad_rows: float = TOLERATED
    merge_splits: bool = False
    holdout: tuple[tuple[str, int], ...] = ()
    train_tasks: int | None = None
    seed: int = 0
    task: str = ""
    columns: Columns = ()

    @property
    def source(self) -> Source:
        """The description of the data set."""
        if self.name != OWN:
            return SOURCES[self.name]
        return Source(self.task, _refuse_row, "", "", "", ())


@dataclass(frozen=True, eq=False)
class Loaded:
    """The tasks of a data set, their origin (for the pool's digest), and the rows that made no task. Instances are compared
    by identity, so they can be cache keys."""

    tasks: tuple[LoadedTask, ...]
    source: Mapping[str, Any]
    rows: int
    columns: tuple[str, ...]
    bad: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def count_tasks(self) -> dict[str, int]:
        """The number of tasks of each split."""
        return dict(Counter(task.split for task in self.tasks))


def load(request: Request) -> Loaded:
    """The requested tasks; they are cached until a file changes."""
    if isinstance(request.data, GivenRows):
        return _load(request, (), ())
    subset = None if request.name == OWN else check_subset(request.name, request.subset)
    root = find_installed(request.name) if request.data == INSTALLED else Path(request.data).expanduser()
    files = list_data_files(root)
    if subset is not None:
        files = choose_subset(root, files, request.source.subsets, subset)
    found = digest_files(root, files)
    return _load(request._replace(subset=subset, data=str(root)), tuple(map(str, files)), tuple(found.items()))


@lru_cache(maxsize=16)
def make_loaded_pool(env: str, loaded: Loaded, split: str, strip: Strip) -> TaskPool:
    """The pool of a split, in the order of the files; environments over the same data share it."""
    kept: list[tuple[str, LoadedTask]] = []
    counts: dict[str, int] = {}
    for task in loaded.tasks:
        number = counts[task.split] = counts.get(task.split, -1) + 1
        if split in ("all", task.split):
            kept.append((f"{TaskIds(env, task.split, 1)[0][:-5]}{number:05d}", task))
    return TaskPool(
        env=env,
        split=split,
        ids=[identifier for identifier, _ in kept],
        categories=[task.category for _, task in kept],
        payload=lambda index: kept[index][1].payload,
        source=loaded.source,
        hardness=lambda index: kept[index][1].hardness,
        split_of=lambda index: kept[index][1].split,
        strip=strip,
        columns=collect_columns([task.fields for _, task in kept], ()),
    )


def check_subset(name: str, subset: str | None) -> str | None:
    """The name of the chosen configuration as the table spells it; without one, the default."""
    source = SOURCES[name]
    if subset is None:
        return source.subset
    known = {one.lower(): one for one in source.subsets}
    if not isinstance(subset, str) or subset.lower() not in known:
        there = f"its configurations are {', '.join(source.subsets)}" if known else "the set has one configuration only"
        raise OptionError(f"subset={subset!r} of {name}: {there}")
    return known[subset.lower()]


@lru_cache(maxsize=16)
def _load(request: Request, paths: tuple[str, ...], digests: tuple[tuple[str, str], ...]) -> Loaded:
    """Load the tasks; the result is cached under the request and the digests of its files."""
    if isinstance(request.data, GivenRows):
        return _divide(read_tasks(request, request.data.records, {}), request)
    records = read_records(Path(request.data), list(map(Path, paths)))
    return _divide(read_tasks(request, records, {"source": request.name, "files": dict(digests)}), request)


def read_tasks(
    request: Request, records: Iterable[tuple[str, str | None, object]], made_of: Mapping[str, Any]
) -> Loaded:
    """A task for every row that can be used."""
    source, name = request.source, request.name
    rows, bad = [], []
    for where, split, record in records:
        try:
            rows.append(Row.make(where, split, record))
        except DataError as error:
            bad.append(str(error))
    total, how = len(rows) + len(bad), "the data" if name == OWN else name
    if bad and not rows:
        _check_bad_rows(how, bad, total, request.bad_rows)
    read = source.read if source.adapt is None else source.adapt(rows)
    if name == OWN and rows:
        found = find_columns(request.task, request.columns, rows)
        said = ", ".join(f"{field} = {column}" for field, column in found.items())
        read, how = make_reader(request.task, found, rows), f"the data, where {said},"
    tasks: list[LoadedTask] = []
    left_out: Counter[str] = Counter()
    problems: set[object] = set()
    for row in rows:
        if source.hides_answers and row.split == "test":
            answer = row.get("answer", "cop")
            if answer is None or answer == -1 or (isinstance(answer, str) and not answer.strip()):
                left_out[HIDDEN] += 1
                continue
        try:
            task = read(row, "test" if source.test_only else row.split or "train")
        except DataError as error:
            bad.append(str(error))
            continue
        except (TypeError, ValueError, OverflowError, LookupError, AttributeError, RecursionError) as error:
            bad.append(f"{row.where}: the row cannot be read ({describe_error(error)})")
            continue
        if task is None:
            left_out[EXCLUDED] += 1
        elif source.repeats and task.payload.problem in problems:
            left_out[REPEATED] += 1
        else:
            problems.add(task.payload.problem if source.repeats else None)
            user = row.get("user")
            tasks.append(task._replace(fields={**task.fields, "user": user}) if is_value(user) else task)
    _check_bad_rows(how, bad, total, request.bad_rows)
    if not tasks:
        raise DataError("the data holds no task" if name == OWN else f"the data for source {name!r} holds no task")
    if name == OWN:
        # the digest is the same for a file and for the same rows in another form
        content = represent([tuple(task) for task in tasks]).encode("utf-8", "surrogatepass")
        made_of = {"source": OWN, "tasks": hashlib.sha256(content).hexdigest()}
    columns = tuple(dict.fromkeys(str(column) for row in rows[:100] for column in row.fields))
    return Loaded(tuple(tasks), made_of, len(rows), columns, tuple(bad), left_out)


def _check_bad_rows(name: str, bad: Sequence[str], rows: int, tolerated: float) -> None:
    if not bad:
        return
    places = [one.partition(": ")[0] for one in bad[1:]]
    others = f"; also {'; '.join(places[:5])}" if places else ""
    others += f"; and {len(places) - 5:,} more" if len(places) > 5 else ""
    if not rows or len(bad) / rows > tolerated:
        raise DataError(
            f"{bad[0]} ({len(bad):,} of {rows:,} rows of {name} cannot be used{others}, at most {tolerated:.3g} of"
            " them may be: fix the file, or set bad_rows)"
        )
    warning = "%d of %d rows of %s are skipped; the first: %s%s"
    get_logger(__name__).warning(warning, len(bad), rows, name, bad[0], others)


def _refuse_row(row: Row, split: str) -> LoadedTask:
    """The reader of your own data before its columns are known."""
    raise row.make_error("question", "is not known yet")


# ---- splits -----------------------------------------------------------------------------------------------------


def _divide(found: Loaded, request: Request) -> Loaded:
    """The tasks with their splits changed as the options say."""
    tasks, made_of, source = found.tasks, dict(found.source), request.source
    if request.subset is not None and request.subset != source.subset:
        made_of["subset"] = request.subset
    if request.merge_splits:
        if source.test_only:
            raise OptionError(
                f"merge_splits makes every task a training task, and {request.name} is a test set: leave merge_splits out"
            )
        tasks = tuple(task._replace(split="train") for task in tasks)
        made_of["merge_splits"] = True
    if request.holdout:
        tasks = _hold_out(tasks, request)
        counts = dict(request.holdout)
        made_of |= {"holdout": counts.get("both", counts), "seed": request.seed}
    if request.train_tasks is not None:  # the drawn tasks stay in the order of the files
        training = [number for number, task in enumerate(tasks) if task.split == "train"]
        if request.train_tasks > len(training):
            raise OptionError(f"train_tasks={request.train_tasks}: the data has {len(training)} training tasks")
        order = stream(request.seed, "train_tasks").permutation(len(training)).tolist()
        kept = {training[place] for place in order[: request.train_tasks]}
        tasks = tuple(task for number, task in enumerate(tasks) if task.split != "train" or number in kept)
        made_of |= {"train_tasks": request.train_tasks, "seed": request.seed}
    return Loaded(tasks, made_of, found.rows, found.columns, found.bad, found.left_out)


def _hold_out(tasks: Sequence[LoadedTask], request: Request) -> tuple[LoadedTask, ...]:
    """Move training tasks to val and test, drawn with the seed: the number given for each split, or the same number to each
    of the two splits that the data lack. A task that occurs twice stays in training, because its copy would leak it."""
    there = {task.split for task in tasks}
    counts = dict(request.holdout)
    if "both" in counts:
        wanted = {split: counts["both"] for split in ("val", "test") if split not in there}
    else:
        wanted = counts
        if double := [split for split in wanted if split in there]:
            raise OptionError(
                f"holdout={wanted}: {request.name} has a {double[0]} split of its own; merge_splits=true makes it training"
                " tasks first"
            )
    copies = Counter(task.question for task in tasks)
    training = [n for n, task in enumerate(tasks) if task.split == "train" and copies[task.question] == 1]
    if len(training) <= sum(wanted.values()):
        asked = counts.get("both", wanted)
        raise OptionError(
            f"holdout={asked}: only {len(training)} training tasks occur just once, too few to hold out"
            f" {sum(wanted.values())} of them"
        )
    order = iter(training[place] for place in stream(request.seed, "holdout").permutation(len(training)).tolist())
    moved = {next(order): split for split, count in wanted.items() for _ in range(count)}
    return tuple(task._replace(split=moved.get(number, task.split)) for number, task in enumerate(tasks))
