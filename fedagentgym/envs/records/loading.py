"""Your own databases and questions: the layouts of Spider and BIRD, and SQLite files beside a `questions.jsonl`.

    Spider   `train_spider.json`, `train_others.json`, `dev.json` with `db_id`, `question`, `query`, and databases
             `database/ID/*.sqlite`
    BIRD     `train.json`, `dev.json` or `mini_dev_sqlite.json` with `db_id`, `question`, `SQL`, `evidence`, and databases
             `..._databases/ID/*.sqlite`
    own      `questions.jsonl` with `question`, `query`, and optionally `database`, `split`, `category`, `hint`, `ordered` and
             fields by which clients can be formed, and files `*.sqlite` or `*.db`

Questions of a `dev` file are in the split `test`, and every twentieth question of a training file is in `val`. Your own
questions without a split are training questions, except every tenth, which is in `val`.

Every gold query is prepared when a folder is read. A query that is wrong, or would give other rows later, is an error in
your own questions; in published files its question is left out with a warning. A copy of every database with other rows is
made then too, so that a database which cannot be copied is an error at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError, OptionError, show_value, unknown_name_error
from fedagentgym.base.files import format_path, read_json, read_jsonl, stamp_file
from fedagentgym.base.process import get_logger
from fedagentgym.base.streams import stream
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.records.guard import Database, QueryError, list_words
from fedagentgym.envs.records.questions import RecordsTask, strip_task
from fedagentgym.envs.records.sites import remember
from fedagentgym.envs.tasks import is_value, make_task_id

log = get_logger(__name__)

QUESTIONS = "questions.jsonl"
SPLITS = ("train", "val", "test", "warmup", "unseen")
FILES: Mapping[str, str] = {
    "train_spider.json": "train",
    "train_others.json": "train",
    "train.json": "train",
    "dev.json": "test",
    "mini_dev_sqlite.json": "test",
}
"""Files of questions, and the split of their tasks."""
SUFFIXES = (".sqlite", ".sqlite3", ".db")
EVERY = {"files": 20, "own": 10}
"""One in 20, or 10, of the training questions is in `val`."""
COPIES = (0.7, 0.5, 0.3)
"""The shares of rows that are kept in the copies on which answers are checked; the values in these are shuffled."""
MAX_COPIED = 50_000
KNOWN = (
    "question",
    "query",
    "SQL",
    "sql",
    "database",
    "db_id",
    "split",
    "category",
    "hint",
    "evidence",
    "ordered",
    "id",
)


class Row(NamedTuple):
    """A question as it was read."""

    split: str
    category: str
    task: RecordsTask
    fields: Mapping[str, Any]
    place: str


def load_records(
    folder: Path,
    split: str,
    splits: Sequence[str],
    categories: str,
    env_id: str,
    train_tasks: int | None = None,
    seed: int = 0,
) -> TaskPool:
    """The pool of a split of your own folder, with all its training tasks, or as many as are drawn with the seed."""
    rows = read_folder(folder, *_stamp(folder))
    if train_tasks is not None:
        rows = _draw_training(rows, train_tasks, seed)
    wanted = list(splits) if split == "all" else [split]
    records: list[dict[str, Any]] = []
    for part in wanted:
        own = [row for row in rows if row.split == part]
        records += [
            {
                **row.fields,
                "id": make_task_id(env_id, part, number),
                "category": row.task.kind if categories == "kind" else row.category,
                "payload": row.task,
                "hardness": rate_query(row.task.query),
            }
            for number, row in enumerate(own)
        ]
    pool = TaskPool.from_records(records, env=env_id, split=split, strip=strip_task)
    if train_tasks is not None:
        pool.source |= {"train_tasks": train_tasks, "seed": seed}
    pool.source["databases"] = identify_databases(folder, sorted({record["payload"].database for record in records}))
    return pool


def _draw_training(rows: Sequence[Row], number: int, seed: int) -> tuple[Row, ...]:
    """The rows with that many of the training rows, which stay in the order of the files."""
    training = [place for place, row in enumerate(rows) if row.split == "train"]
    if number > len(training):
        raise OptionError(f"train_tasks must be at most {len(training)}, the training tasks of the data; got {number}")
    order = stream(seed, "train_tasks").permutation(len(training)).tolist()
    kept = {training[place] for place in order[:number]}
    return tuple(row for place, row in enumerate(rows) if row.split != "train" or place in kept)


def _stamp(folder: Path) -> tuple[tuple[str | Path, tuple[int, int, int]], ...]:
    """The files of questions and databases, each with its stamp, which differs if the file has changed."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {format_path(folder)}")
    found = [name for name in (QUESTIONS, *FILES) if (folder / name).is_file()]
    if not found:
        raise DataError(f"{format_path(folder)} has no questions: neither {QUESTIONS} nor one of {', '.join(FILES)}")
    chosen = [QUESTIONS] if QUESTIONS in found else found
    files = [file for files in find_databases(folder).values() for file in files]
    return *((name, stamp_file(folder / name)) for name in chosen), *((file, stamp_file(file)) for file in files)


@lru_cache(maxsize=8)
def read_folder(folder: Path, *stamps: tuple[str | Path, tuple[int, int, int]]) -> tuple[Row, ...]:
    """All questions of a folder that can be answered."""
    databases = find_databases(folder)
    rows: list[Row] = []
    counted = 0
    for name in (name for name, _ in stamps if isinstance(name, str)):
        own = name == QUESTIONS
        for place, given in _read_rows(folder / name):
            row = _read_row(given, place, FILES.get(name, "train"), databases)
            if row.split == "train" and not (own and given.get("split") is not None):
                counted += 1
                row = row._replace(split="val" if counted % EVERY["own" if own else "files"] == 0 else "train")
            rows.append(row)
    faults = find_faults(rows, databases)
    try_copies(dict.fromkeys(row.task.database for row in rows), databases)
    if faults:
        place, fault = next(iter(faults.items()))
        if place.startswith(format_path(folder / QUESTIONS)):
            raise DataError(f"{place}: 'query' cannot be the answer: {fault}")
        log.warning(
            "%s of %s questions are left out, because their queries cannot be answers; the first, %s: %s",
            len(faults),
            len(rows),
            place,
            fault,
        )
    return tuple(row for row in rows if row.place not in faults)


def find_faults(rows: Sequence[Row], databases: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """The places of gold queries that are wrong, or would give other rows later, each with the reason.

    Every file of a database is opened, and queries are also prepared on further files whose tables differ from the first's.
    """
    by_database: dict[str, list[Row]] = {}
    for row in rows:
        by_database.setdefault(row.task.database, []).append(row)
    faults: dict[str, str] = {}
    for name, own in by_database.items():
        usual: Mapping[str, str] | None = None
        for file in databases[name]:
            with closing(Database.open(file)) as database:
                if database.statements == usual:
                    continue
                for row in own:
                    try:
                        database.check_gold(row.task.query)
                    except QueryError as error:
                        faults.setdefault(row.place, f"{error}{'' if usual is None else f' (in {file.name})'}")
                usual = database.statements if usual is None else usual
    return faults


def try_copies(names: Iterable[str], databases: Mapping[str, Sequence[Path]]) -> None:
    """Make one copy of every database with a single file, as answers are checked on, and warn of what no copy changes."""
    large: list[str] = []
    unchanged: list[str] = []
    for name in names:
        file, *further = databases[name]
        if further:
            continue
        copy = Database.copy(file, COPIES[0], stream(0, "records", "copy", 0), MAX_COPIED)
        if copy is None:
            large.append(file.name)
            continue
        unchanged += [f"{table} of {file.name}: {reason}" for table, reason in copy.unchanged.items()]
        copy.close()
    if large:
        log.warning(
            "%s of the databases are too large for copies with other rows, so that a constant can be a right answer;"
            " the first: %s",
            len(large),
            large[0],
        )
    if unchanged:
        log.warning(
            "%s of the tables cannot be changed in copies, so that a constant can be a right answer; the first, %s",
            len(unchanged),
            unchanged[0],
        )


def _read_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    where = format_path(file)
    if file.suffix == ".jsonl":
        found: Any = ((f"{where}, line {number}", row) for number, row in read_jsonl(file))
    else:
        rows = read_json(file)
        if not isinstance(rows, list):
            raise DataError(f"{where} is no list of questions")
        found = ((f"{where}, entry {number}", row) for number, row in enumerate(rows, start=1))
    for place, row in found:
        if not isinstance(row, Mapping):
            raise DataError(f"{place}: a question must be a mapping, got {show_value(row)}")
        yield place, row


def _read_row(given: Mapping[str, Any], place: str, split: str, databases: Mapping[str, Sequence[Path]]) -> Row:
    given = {name: value for name, value in given.items() if value is not None}
    question, query = given.get("question"), given.get("query", given.get("SQL", given.get("sql")))
    for name, value in (("question", question), ("query", query)):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{place}: {name!r} must be a text, got {show_value(value)}")
    database = given.get("database", given.get("db_id", next(iter(databases)) if len(databases) == 1 else None))
    if not isinstance(database, str) or database not in databases:
        raise DataError(f"{place}: {unknown_name_error('database', database, databases)}")
    hint, ordered = given.get("hint", given.get("evidence", "")), given.get("ordered")
    if not isinstance(hint, str) or not isinstance(ordered, bool | None):
        raise DataError(f"{place}: 'hint' is a text and 'ordered' true or false")
    if given.get("split", split) not in SPLITS:
        raise DataError(f"{place}: 'split' must be one of {', '.join(SPLITS)}, got {show_value(given['split'])}")
    task = RecordsTask(
        database,
        find_kind(str(query)),
        str(question),
        query=str(query),
        ordered=is_ordered(str(query)) if ordered is None else ordered,
        hint=hint,
    )
    fields = {name: value for name, value in given.items() if name not in KNOWN and is_value(value)}
    return Row(str(given.get("split", split)), str(given.get("category", database)), task, fields, place)


# ---- what a query is like ---------------------------------------------------------------------------------------------


def find_kind(query: str) -> str:
    """The kind of a query by its words: the rarest clause in it."""
    words = list_words(query)
    if words.count("select") > 1:
        return "nested"
    for kind, word in (
        ("having", "having"),
        ("group", "group"),
        ("join", "join"),
        ("top", "limit"),
        ("distinct", "distinct"),
    ):
        if word in words:
            return kind
    return "count" if ("count", "(") in pairwise(words) else "filter"


def is_ordered(query: str) -> bool:
    """Return whether the outermost query orders its rows.

    >>> is_ordered("SELECT a FROM t ORDER BY a"), is_ordered("SELECT * FROM (SELECT a FROM t ORDER BY a)")
    (True, False)
    """
    depth = 0
    for word in list_words(query):
        depth += (word == "(") - (word == ")")
        if word == "order" and depth == 0:
            return True
    return False


def rate_query(query: str) -> float:
    """Hardness in 0..1 by the words of a query, as `rate_plan` counts them."""
    words = list_words(query)
    points = sum(words.count(word) for word in ("join", "and", "or", "group", "having", "order", "distinct"))
    return min(1.0, (points + 2 * (words.count("select") - 1)) / 8)


# ---- databases --------------------------------------------------------------------------------------------------------


def find_databases(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The databases of a folder by their names; several files in one sub-folder are one database with different rows."""
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() not in SUFFIXES or not file.is_file():
            continue
        if file.stem in found:
            both = f"{found[file.stem][0].name} and {file.name}"
            raise DataError(f"{format_path(folder)} has two databases of one name, {both}: rename or remove one")
        found[file.stem] = [file]
    places = [folder / "database", folder / "databases", *sorted(folder.glob("*_databases"))]
    for home in (home for place in places if place.is_dir() for home in sorted(place.iterdir()) if home.is_dir()):
        files = [file for file in sorted(home.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file()]
        if files:
            found.setdefault(home.name, []).extend(sorted(files, key=lambda file: file.stem != home.name))
    if not found:
        raise DataError(
            f"{format_path(folder)} has no databases: neither {'/'.join(SUFFIXES)} files nor database/NAME/ folders"
        )
    return {name: tuple(files) for name, files in found.items()}


def identify_databases(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """The digests of the files of databases, which distinguish the tasks of one folder from those of another."""
    found = find_databases(folder)
    return {name: [_digest(file, stamp_file(file)) for file in found[name]] for name in names}


@lru_cache(maxsize=1024)
def _digest(file: Path, stamp: tuple[int, int, int]) -> str:
    return file_digest(file)


def _find_files(folder: Path, name: str) -> tuple[Path, ...]:
    found = find_databases(folder)
    if name not in found:
        raise unknown_name_error(f"database of {format_path(folder)}", name, found)
    return found[name]


def open_file(folder: Path, name: str) -> Database:
    """The database of a name."""
    file = _find_files(folder, name)[0]
    return remember(("file", file, stamp_file(file)), lambda: (Database.open(file),))[0]


def open_copies(folder: Path, name: str) -> tuple[Database, ...]:
    """The other databases on which an answer is checked: further files of the name, or copies of its file with a part of
    the rows and shuffled values."""
    first, *further = _find_files(folder, name)

    def make() -> tuple[Database, ...]:
        if further:
            return tuple(Database.open(file) for file in further)
        drawn = [
            Database.copy(first, share, stream(0, "records", "copy", number), MAX_COPIED)
            for number, share in enumerate(COPIES)
        ]
        return tuple(copy for copy in drawn if copy is not None)

    return remember(("copies", first, *(stamp_file(file) for file in (first, *further))), make)
