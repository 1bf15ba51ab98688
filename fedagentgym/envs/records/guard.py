"""Untrusted queries on a SQLite database: read-only, with limits on work, time, memory and rows. One sentence explains each
fault.

1. The text is checked first: its length, its function calls, and the expansion of its common table expressions. Nothing
   can interrupt SQLite while it prepares a statement.
2. SQLite's authorizer lets a statement read the tables of this database and call the listed functions, and nothing else.
3. A budget of virtual machine steps, the same on every machine, ends a query that runs too long. A limit of processor time
   ends statements whose steps are slow. Time in which Python collected garbage does not count, because a collection in a
   large process takes longer than a query may.
4. Texts, rows and results have a limited length, and data that do not fit into a small cache go to temporary files, so
   memory is limited too.
5. Date functions refuse the present moment, however a query spells it.
"""

from __future__ import annotations

import gc
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedagentgym.base.errors import DataError, is_clean_text
from fedagentgym.base.files import format_path
from fedagentgym.base.streams import Stream
from fedagentgym.envs.reasoning.generators.problems import split_words

MAX_STEPS, STEPS_PER_SECOND = 3_000_000, 30_000_000
MAX_GOLD_STEPS, MAX_GOLD_ROWS, MAX_GOLDS = 300_000_000, 100_000, 512
MAX_ROWS, MAX_TEXT = 5_000, 4_000
MAX_BYTES, CELLS_AT_ONCE = 20_000_000, 500
"""Maximum number of bytes of a result, and the number of values after which they are counted."""
MAX_CELL_LENGTH = {"generated": 2_000, "own": 30_000}
"""Maximum number of bytes of a value or row, in generated databases and in your own files."""
MAX_TRUSTED_LENGTH = 10_000_000
"""Maximum number of bytes of a value that a gold query, or the description of a table, reads."""
MAX_QUERY_PARTS = 60
"""Maximum number of parts of a query with its common table expressions written out."""
MAX_COPIED_BYTES = 100_000_000
CALL_EVERY = {"generated": 2_000, "own": 100}
"""Steps after which the clock is read; fewer for your own files, because a step may search a text, which can be longer there."""
MAX_CALLS, MAX_FORM_LENGTH, MAX_REMEMBERED = 40, 1_000, 50
"""Maximum number of function calls in a query, between which no clock is read; maximum length of a date format; maximum
length of the arguments of date functions whose results are remembered."""
ALLOWED: int = sqlite3.SQLITE_OK
REFUSED: int = sqlite3.SQLITE_DENY
CACHE_KIB = 4_000
LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * MAX_TEXT,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 60,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 12,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 50,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
FUNCTIONS = frozenset(
    split_words(
        """
    abs avg ceil ceiling char coalesce count cume_dist date datetime dense_rank first_value floor glob
    group_concat hex ifnull instr julianday lag last_value lead length like lower ltrim max min mod
    nth_value ntile nullif percent_rank pow power rank replace round row_number rtrim sign sqrt strftime
    string_agg substr substring sum time total trim typeof unicode upper
    """
    )
) | {"iif"}
_NAMES = {
    sqlite3.SQLITE_ATTACH: "attach a database",
    sqlite3.SQLITE_DETACH: "detach a database",
    sqlite3.SQLITE_PRAGMA: "read or set a pragma",
    sqlite3.SQLITE_INSERT: "insert rows",
    sqlite3.SQLITE_UPDATE: "change rows",
    sqlite3.SQLITE_DELETE: "delete rows",
    sqlite3.SQLITE_TRANSACTION: "begin or end a transaction",
    sqlite3.SQLITE_SAVEPOINT: "set a savepoint",
}
_NO_FUNCTIONS = frozenset(
    split_words(
        """
    all and as between by case cast distinct else except exists filter from group having in intersect is join limit
    materialized not null offset on or order over partition recursive select then union using values when where with
    """
    )
)
_PARTS = split_words(
    "data idx content docsize config segments segdir stat node rowid parent"  # of fts5, fts3 and fts4, and rtree
)
_MASTER = frozenset(("sqlite_master", "sqlite_schema"))
_TOKEN = re.compile(
    r"""'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)|`(?:[^`]|``)*(?:`|\Z)|\[[^\]]*(?:\]|\Z)"""
    r"""|--[^\n]*|/\*.*?(?:\*/|\Z)|[a-zA-Z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*|\S""",
    re.DOTALL,
)
"""A name or text in quotes, a comment, a word as SQLite delimits it, or another sign."""
_QUOTES = ("'", '"', "`", "[")
_DATES = ("date", "time", "datetime", "julianday", "strftime")
_PRESENT = frozenset(("now", "subsec", "subsecond"))
"""Arguments by which date functions mean the present moment; so does a missing argument."""
_NO_PRESENT = "The present day and time are not available ."
_UNSTEADY = frozenset(("random", "randomblob", "changes", "total_changes", "last_insert_rowid"))
_SIDE_FILES = {"-wal": b"", "-journal": b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"}
"""Suffixes of files beside a database, and the first bytes of such a file if it holds changes."""
_STRIPS = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}
"""Python's functions in place of SQLite's, which take long: they search the list of characters for each character of a text."""
_local = threading.local()


class QueryError(Exception):
    """A query that was refused, stopped, or is wrong; its text is the sentence for the agent."""


class _MoreRows(QueryError):
    """A query with more rows than are read."""


class Result(NamedTuple):
    """The names of the columns, and the rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class Budget:
    """The steps and the processor time that a query may use on all databases that it reads."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps, self._seconds, self._portion = steps, steps / STEPS_PER_SECOND, 0
        self._begun: float | None = None
        self._collections = 0

    def begin(self, portion: int) -> None:
        """Begin a query; its clock starts after its first portion of steps: reading it takes longer than most queries."""
        self._begun, self._portion = None, portion

    def spend(self) -> bool:
        """Take a portion of steps; True if nothing is left."""
        self._steps -= self._portion
        now, collections = time.thread_time(), gc.get_stats()[-1]["collections"]
        if self._begun is not None and collections == self._collections:
            self._seconds -= now - self._begun
        self._begun, self._collections = now, collections
        return self._steps < 0 or self._seconds < 0


class Database:
    """A database that runs untrusted queries."""

    def __init__(self, connection: sqlite3.Connection, kind: Literal["generated", "own"]) -> None:
        self._connection, self._lock = connection, threading.Lock()
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA temp.cache_size = -{CACHE_KIB}")
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid")
        made = {name: sql or "" for name, sql in rows if not name.startswith("sqlite_")}
        self._readable = frozenset(name.lower() for name in made) | _MASTER
        inner = _list_inner(made)
        self.statements = {name: sql for name, sql in made.items() if name not in inner}
        for limit, value in {**LIMITS, sqlite3.SQLITE_LIMIT_LENGTH: MAX_CELL_LENGTH[kind]}.items():
            connection.setlimit(limit, value)
        widest = max((_count_columns(connection, name) for name in self.statements), default=0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, max(LIMITS[sqlite3.SQLITE_LIMIT_COLUMN], widest))
        self._longest, self._portion = MAX_CELL_LENGTH[kind], CALL_EVERY[kind]
        for name in _DATES:
            connection.create_function(name, -1, partial(self._call_date, name), deterministic=True)
        for name, strip in _STRIPS.items():
            connection.create_function(name, 2, partial(_strip, name, strip), deterministic=True)
        self._refused, self._trusted = "", False
        self._golds: dict[str, Result] = {}
        self.unchanged: Mapping[str, str] = {}
        connection.set_authorizer(self._authorize)

    @classmethod
    def build(cls, statements: Iterable[str], inserts: Iterable[tuple[str, Sequence[Any]]]) -> Database:
        """A database in memory."""
        connection = connect_memory()
        for statement in statements:
            connection.execute(statement)
        for statement, rows in inserts:
            connection.executemany(statement, rows)
        return cls(connection, "generated")

    @classmethod
    def open(cls, path: Path) -> Database:
        """A database in a file; neither the file nor anything beside it is changed."""
        try:
            return cls(connect_file(path), "own")
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"cannot read {format_path(path)} as a SQLite database: {error}") from error

    @classmethod
    def copy(cls, path: Path, share: float, draw: Stream, most: int) -> Database | None:
        """A copy of a file in memory with other rows; None if the file has more than `most` rows, or is too large.

        Each row is kept with the probability `share`, and the values of every column that is no key and not unique are
        shuffled, unless that would break a constraint. Triggers would react to this and are dropped. Tables that cannot be
        changed are in `unchanged`, each with the reason.
        """
        try:
            if path.stat().st_size > MAX_COPIED_BYTES:
                return None
            file, connection = connect_file(path), connect_memory(cached_statements=0)
            connection.text_factory = _decode
            with closing(file):
                tables, unchanged = _list_tables(file), {}
                if sum(_count_rows(file, table) for table in tables) > most:
                    return None
                file.backup(connection)
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {quote(trigger)}")
            for table in tables:
                try:
                    _change_rows(connection, table, share, draw)
                except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                    unchanged[table] = " ".join(str(error).split())
            for table in _list_virtual(connection):
                try:
                    _change_virtual(connection, table, share, draw)
                except sqlite3.Error as error:
                    unchanged[table] = " ".join(str(error).split())
            copy = cls(connection, "own")
            copy.unchanged = unchanged
            return copy
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"cannot copy the SQLite database {format_path(path)}: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def query(self, text: str, budget: Budget | None = None, most: int = MAX_ROWS) -> Result:
        """The rows of a query; `QueryError` if it is refused, is wrong, exceeds a limit, or has more than `most` rows."""
        return self._run(check_text(text), Budget() if budget is None else budget, most, trusted=False)

    def show(self, table: str, most: int, budget: Budget) -> Result:
        """The first rows of a table, whose values may be longer than those that queries read."""
        return self._run(f"SELECT * FROM {quote(table)} LIMIT {most}", budget, most, trusted=True)

    def _run(self, sql: str, spent: Budget, most: int, *, trusted: bool) -> Result:
        with self._lock:
            self._refused, self._trusted = "", trusted
            if trusted:
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TRUSTED_LENGTH)
            self._connection.set_progress_handler(spent.spend, self._portion)
            cursor = self._connection.cursor()
            try:
                spent.begin(self._portion)
                cursor.execute(sql)
                rows = cursor.fetchmany(most + 1) if trusted else _fetch(cursor, most + 1)
                if cursor.description is None:
                    raise QueryError("There is no SELECT statement .")
                columns = tuple(str(column[0]) for column in cursor.description)
            except MemoryError:
                raise QueryError("The query takes too much memory .") from None
            except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, ValueError) as error:
                raise QueryError(self._explain(error)) from None
            finally:
                with suppress(sqlite3.Error):
                    cursor.close()
                if trusted:
                    self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._longest)
        if len(rows) > most:
            raise _MoreRows(f"The query has more than {most} rows .")
        return Result(columns, rows)

    def query_trusted(self, text: str) -> Result:
        """The rows of a gold query, which may take long, have many rows and call almost any function; cached."""
        if text not in self._golds:
            if len(self._golds) >= MAX_GOLDS:
                self._golds.pop(next(iter(self._golds)))
            sql = text.strip().rstrip(";")
            self._golds[text] = self._run(sql, Budget(MAX_GOLD_STEPS), MAX_GOLD_ROWS, trusted=True)
        return self._golds[text]

    def check_gold(self, text: str) -> None:
        """Prepare a gold query without running it; `QueryError` if it is wrong, writes, or would give other rows later."""
        tokens = _list_tokens(text) if "explain" in text.lower() or "now" in text.lower() else []
        if tokens[:1] == ["explain"]:
            raise QueryError("A query begins with SELECT or WITH .")
        called = any(token in _DATES and after == "(" for token, after in pairwise(tokens))
        if called and any(token[0] == "'" and token[1:-1].strip().lower() == "now" for token in tokens):
            raise QueryError(_NO_PRESENT)
        with suppress(_MoreRows):
            self._run(f"EXPLAIN {text.strip().rstrip(';')}", Budget(), 0, trusted=True)

    def _call_date(self, name: str, *given: Any) -> Any:
        """The result of a date function; `ValueError` for the present moment."""
        moment = given[1:2] if name == "strftime" else given[:1]
        said = (
            bytes(moment[0]).decode("latin1")
            if moment and isinstance(moment[0], bytes)
            else moment[0]
            if moment
            else "now"
        )
        if isinstance(said, str) and said.strip().lower() in _PRESENT:
            self._refused = _NO_PRESENT
            raise ValueError(_NO_PRESENT)
        if any(isinstance(one, str | bytes) and len(one) > MAX_REMEMBERED for one in given):
            if len(str(given[0])) > MAX_FORM_LENGTH:
                self._refused = "A form of dates is too long ."
                raise ValueError(self._refused)
            return _call_function.__wrapped__(name, *given)
        return _call_function(name, *given)

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, by: str | None
    ) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return ALLOWED
        if action == sqlite3.SQLITE_PRAGMA and (first, second) == ("data_version", None):  # full-text indexes read it
            return ALLOWED
        if action == sqlite3.SQLITE_READ and (first or "").lower() in self._readable:
            return ALLOWED
        # a common table expression or subquery of which no column is read
        if action == sqlite3.SQLITE_READ and not second:
            return ALLOWED
        if action == sqlite3.SQLITE_FUNCTION:
            name = (second or "").lower()
            if name.startswith("current_"):
                self._refused = _NO_PRESENT
                return REFUSED
            if name in FUNCTIONS or (self._trusted and name not in ("load_extension", *_UNSTEADY)):
                return ALLOWED
            self._refused = f"The function {shorten(second or '', 40)} is not available ."
        elif action == sqlite3.SQLITE_READ:
            self._refused = f"The table {shorten(first or '', 40)} cannot be read ."
        else:
            does = "change the database" if first in _MASTER else _NAMES.get(action, "change the database")
            self._refused = f"A query only reads : this one would {does} ."
        return REFUSED

    def _explain(self, error: Exception) -> str:
        said = " ".join(str(error).split())
        if self._refused:
            return self._refused
        if "interrupted" in said:
            return "The query takes too long ."
        if "user-defined function" in said:
            return "A function got signs that are no text ."
        if "one statement" in said:
            return "Only one statement at a time is run ."
        if "too big" in said:
            return "A text or value of the query is too long ."
        return f"SQL error : {shorten(said, 160)}"


def connect_memory(cached_statements: int = 128) -> sqlite3.Connection:
    return sqlite3.connect(
        ":memory:", check_same_thread=False, isolation_level=None, cached_statements=cached_statements
    )


def connect_file(path: Path) -> sqlite3.Connection:
    """A connection that reads a file, and changes neither it nor the files beside it.

    It caches no statements, because the authorizer would not check one again that was prepared for a gold query. A file is
    refused if SQLite still keeps changes beside it, which would not be read.
    """
    for suffix, begins in _SIDE_FILES.items():
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and _begins_with(beside, begins):
            raise DataError(
                f"{format_path(path)} is in use, or was not closed: {beside.name} beside it has changes that are not in the file;"
                f" close what writes it, or read a copy that sqlite3 makes with .backup"
            )
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None, cached_statements=0)
    connection.text_factory = _decode
    return connection


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _begins_with(file: Path, begins: bytes) -> bool:
    with file.open("rb") as opened:
        head = opened.read(max(1, len(begins)))
    return bool(head) and head.startswith(begins)


def _count_columns(connection: sqlite3.Connection, table: str) -> int:
    try:
        return len(connection.execute(f"PRAGMA table_info({quote(table)})").fetchall())
    except sqlite3.Error:  # a view of a table that does not exist
        return 0


def _fetch(cursor: sqlite3.Cursor, most: int) -> list[tuple[Any, ...]]:
    """At most `most` rows; `QueryError` for more bytes than a result may have."""
    rows: list[tuple[Any, ...]] = []
    left, at_once = MAX_BYTES, max(1, CELLS_AT_ONCE // max(1, len(cursor.description or ())))
    while len(rows) < most and (found := cursor.fetchmany(min(at_once, most - len(rows)))):
        rows += found
        left -= sum(len(value) for row in found for value in row if value.__class__ is str or value.__class__ is bytes)
        if left < 0:
            raise QueryError("The rows of the query are too long .")
    return rows


def _strip(name: str, strip: Callable[[str, str], str], text: Any, signs: Any) -> Any:
    if isinstance(text, str) and isinstance(signs, str):
        return strip(text, signs) if signs else text
    return _call_function.__wrapped__(name, text, signs)


@lru_cache(maxsize=16_384, typed=True)
def _call_function(name: str, *given: Any) -> Any:
    """Call SQLite's own function."""
    if not hasattr(_local, "connection"):
        _local.connection = connect_memory()
    return _local.connection.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]


def quote(name: str) -> str:
    """The name of a table or column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _list_tables(connection: sqlite3.Connection) -> list[str]:
    """The tables, without virtual tables and the inner tables of their indexes."""
    made = _read_statements(connection)
    inner = _list_inner(made)
    return [name for name, sql in made.items() if not _is_virtual(sql) and name not in inner]


def _list_virtual(connection: sqlite3.Connection) -> list[str]:
    return [name for name, sql in _read_statements(connection).items() if _is_virtual(sql)]


def _read_statements(connection: sqlite3.Connection) -> dict[str, str]:
    """The tables, each with the statement that makes it."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    return {name: sql or "" for name, sql in found if not name.startswith("sqlite_")}


def _count_rows(connection: sqlite3.Connection, table: str) -> int:
    try:
        return int(connection.execute(f"SELECT count(*) FROM {quote(table)}").fetchone()[0])
    except sqlite3.OperationalError:  # a table that SQLite cannot use
        return 0


def _is_virtual(statement: str) -> bool:
    return statement[:14].upper() == "CREATE VIRTUAL"


def _list_inner(statements: Mapping[str, str]) -> set[str]:
    """The tables in which full-text and spatial indexes keep their parts."""
    virtual = [name for name, statement in statements.items() if _is_virtual(statement)]
    return {f"{name}_{part}" for name in virtual for part in _PARTS}


def _change_virtual(connection: sqlite3.Connection, table: str, share: float, draw: Stream) -> None:
    """Change the rows of a full-text index, or fit one that has its texts in another table to that table's new rows."""
    tokens = _list_tokens(_read_statements(connection)[table])
    if not {"fts3", "fts4", "fts5"} & set(tokens):
        raise sqlite3.NotSupportedError("it is a virtual table that is no full-text index")
    if ("content", "=") in pairwise(tokens):
        connection.execute(f"INSERT INTO {quote(table)} ({quote(table)}) VALUES ('rebuild')")
    else:
        _change_rows(connection, table, share, draw)


def _change_rows(connection: sqlite3.Connection, table: str, share: float, draw: Stream) -> None:
    """Drop rows of a table, and shuffle the values of its columns among the other rows, if no constraint forbids it.

    The rows are put aside into a database of their own, from which the table is filled again. So values keep their bytes,
    and no row needs a name. A table that cannot be filled stays as it is, which is an error.
    """
    connection.execute("ATTACH ':memory:' AS aside")
    try:
        connection.execute(f"SELECT NULL FROM main.{quote(table)} LIMIT 0")  # an error if no text can name the table
        columns = [column for _, column, *_ in connection.execute(f"PRAGMA main.table_info({quote(table)})")]
        stored = [*_find_row_id(connection, table), *map(quote, columns)]
        number = _put_aside(connection, table, stored)
        gone = (draw.uniform(number) >= share).tolist() if number else []
        kept = [row for row, out in enumerate(gone, start=1) if not out]
        fixed = _list_fixed(connection, table)
        dealt = {
            quote(column): [kept[place] for place in draw.permutation(len(kept)).tolist()]
            for column in columns
            if column not in fixed and kept
        }

        def fill(shuffled: Sequence[str]) -> None:
            _fill(connection, table, stored, kept, {column: dealt[column] for column in shuffled})

        def shuffle(before: list[str], more: list[str]) -> list[str]:
            """The columns that are shuffled after all attempts to add more."""
            try:
                fill([*before, *more])
            except sqlite3.Error:
                half = len(more) // 2
                return shuffle(shuffle(before, more[:half]), more[half:]) if half else before
            return [*before, *more]

        if not (dealt and shuffle([], list(dealt))):
            fill(())
    finally:
        connection.execute("DETACH aside")


def _find_row_id(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """A name of a table's row id that none of its columns has; none if there is no such name, or no row id."""
    columns = {column.lower() for _, column, *_ in connection.execute(f"PRAGMA main.table_xinfo({quote(table)})")}
    free = [name for name in ("rowid", "oid", "_rowid_") if name not in columns][:1]
    try:
        connection.execute(f"SELECT {', '.join(free) or 'NULL'} FROM main.{quote(table)} LIMIT 0")
    except sqlite3.OperationalError:  # a table WITHOUT ROWID
        return ()
    return tuple(free)


def _list_fixed(connection: sqlite3.Connection, table: str) -> set[str]:
    """The columns of the keys and the unique indexes of a table."""
    found = {column for _, column, *_, key in connection.execute(f"PRAGMA main.table_info({quote(table)})") if key}
    for _, index, is_unique, *_ in connection.execute(f"PRAGMA main.index_list({quote(table)})").fetchall():
        if is_unique:
            found |= {column for _, _, column in connection.execute(f"PRAGMA main.index_info({quote(index)})")}
    return found


def _put_aside(connection: sqlite3.Connection, table: str, stored: Sequence[str]) -> int:
    """Number the rows of a table in their own order, and return how many there are."""
    names = ", ".join(f"c{place}" for place in range(len(stored)))
    order = "NOT INDEXED" if stored[0].startswith('"') else f"ORDER BY own.{stored[0]}"
    connection.execute(f"CREATE TABLE aside.was (n INTEGER PRIMARY KEY, {names})")
    connection.execute(
        f"INSERT INTO aside.was ({names}) SELECT {', '.join(f'own.{name}' for name in stored)}"
        f" FROM main.{quote(table)} AS own {order}"
    )
    return int(connection.execute("SELECT count(*) FROM aside.was").fetchone()[0])


def _fill(
    connection: sqlite3.Connection,
    table: str,
    stored: Sequence[str],
    kept: Sequence[int],
    shuffled: Mapping[str, Sequence[int]],
) -> None:
    """Fill a table with the rows that are kept, with values of other rows in the shuffled columns; all or nothing."""
    places = {column: f"p{place}" for place, column in enumerate(shuffled)}
    names = "".join(f", {place}" for place in places.values())
    connection.execute("DROP TABLE IF EXISTS aside.dealt")
    connection.execute(f"CREATE TABLE aside.dealt (n INTEGER PRIMARY KEY{names})")
    connection.execute("BEGIN")
    try:
        connection.executemany(
            f"INSERT INTO aside.dealt VALUES (?{', ?' * len(places)})", zip(kept, *shuffled.values(), strict=True)
        )
        values = (
            f"(SELECT c{number} FROM aside.was WHERE n = dealt.{places[column]})"
            if column in places
            else f"was.c{number}"
            for number, column in enumerate(stored)
        )
        connection.execute(f"DELETE FROM main.{quote(table)}")
        connection.execute(
            f"INSERT OR ABORT INTO main.{quote(table)} ({', '.join(stored)}) SELECT {', '.join(values)}"
            f" FROM aside.dealt AS dealt JOIN aside.was AS was ON was.n = dealt.n ORDER BY dealt.n"
        )
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def shorten(text: str, most: int) -> str:
    """A text on one line, cut after `most` characters, with question marks for unprintable ones."""
    shown = "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))
    return shown if len(shown) <= most else shown[:most] + "..."


@lru_cache(maxsize=4096)
def check_text(text: str) -> str:
    """The text of a query without a semicolon at its end; `QueryError` if it must not be given to SQLite."""
    if len(text) > MAX_TEXT:
        raise QueryError(f"The query is longer than {MAX_TEXT} signs .")
    sql = text.strip().rstrip(";").rstrip()
    if not is_clean_text(sql):
        raise QueryError("The query has signs that are no text .")
    if not sql:
        raise QueryError("There is no SELECT statement .")
    if _list_tokens(sql)[:1] == ["explain"]:
        raise QueryError("A query begins with SELECT or WITH .")
    if count_expanded(sql) > MAX_QUERY_PARTS:
        raise QueryError("The query refers to too many tables .")
    if count_calls(sql) > MAX_CALLS:
        raise QueryError(f"The query has more than {MAX_CALLS} calls of functions .")
    return sql


def count_expanded(sql: str) -> int:
    """An upper limit of the number of `select`, `from` and `join` in a query with every common table expression written out,
    found without preparing the statement.

    >>> count_expanded("SELECT * FROM a JOIN b"), count_expanded("WITH c AS (SELECT 1 FROM a, b) SELECT * FROM c, c")
    (3, 13)
    """
    tokens = [unquote(token) if token[0] == "'" else token for token in _list_tokens(sql)]  # 'a' can be a name too
    bodies = _find_bodies(tokens)
    if len(bodies) > MAX_QUERY_PARTS:
        return len(bodies)
    weights = dict.fromkeys((name for name, _, _ in bodies), 1)
    for _ in bodies:  # an expression can refer to each of the others, in any order
        found = dict.fromkeys(weights, 1)
        for name, start, end in bodies:
            found[name] = max(found[name], 1 + _weigh(tokens[start:end], weights, name))
        weights, before = found, weights
        if weights == before or max(weights.values()) > MAX_QUERY_PARTS:
            break
    return max(_weigh(tokens, weights, ""), *weights.values(), 0)


def count_calls(sql: str) -> int:
    """The number of function calls and of patterns (`like`, `glob`) in a query.

    >>> count_calls("SELECT max(abs(a)) FROM t WHERE b IN (1, 2) AND (c = 3 OR c LIKE 'x%') GROUP BY c HAVING count(*) > 1")
    4
    """
    tokens = _list_tokens(sql)
    called = sum(
        after == "(" and token not in _NO_FUNCTIONS and (token[0].isalpha() or token[0] == "_")
        for token, after in pairwise(tokens)
    )
    return called + sum(token in ("like", "glob") and after != "(" for token, after in pairwise(tokens))


def _list_tokens(sql: str) -> list[str]:
    """The tokens of a query without its comments, names without quotes and in lower case."""
    return [token if token[0] == "'" else unquote(token) or token for token in _split(sql)]


def list_words(sql: str) -> list[str]:
    """The words and signs of a query in lower case, without names in quotes, texts and comments.

    >>> list_words("SELECT [group by], 'or' FROM `order` -- having")
    ['select', ',', 'from']
    """
    return [token.lower() for token in _split(sql) if not token.startswith(_QUOTES)]


def _split(sql: str) -> list[str]:
    """The tokens of a query as they are written, without its comments."""
    return [token for token in _TOKEN.findall(sql) if not token.startswith(("--", "/*"))]


def _weigh(tokens: Sequence[str], weights: dict[str, int], own: str) -> int:
    """The weight of a part: one for every `select`, `from` and `join`, plus the weight of every expression that it names."""
    return sum(
        weights.get(token, 0) if token in weights and token != own else token in ("from", "join", "select")
        for token in tokens
    )


def _find_bodies(tokens: Sequence[str]) -> list[tuple[str, int, int]]:
    """The common table expressions, each with its name and the start and end of the tokens in its brackets."""
    found: list[tuple[str, int, int]] = []
    opened: list[int] = []
    names: dict[int, str] = {}
    for place, token in enumerate(tokens):
        if token == "(":
            before = place - 1
            while before > 0 and tokens[before] in ("not", "materialized"):
                before -= 1
            if before > 0 and tokens[before] == "as":
                name = before - 1
                if tokens[name] == ")":
                    while name > 0 and tokens[name] != "(":
                        name -= 1
                    name -= 1
                names[place] = tokens[max(name, 0)]
            opened.append(place)
        elif token == ")" and opened:
            start = opened.pop()
            if start in names:
                found.append((names[start], start + 1, place))
    return found + [(names[start], start + 1, len(tokens)) for start in opened if start in names]


def unquote(token: str) -> str:
    """A name without its quotes, in lower case."""
    if token.startswith(_QUOTES):
        return token[1:-1].replace(token[0] * 2, token[0]).lower()
    return token.lower()
