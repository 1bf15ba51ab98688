"""Queries of strangers: what is refused or stopped, in one sentence, within time and memory, with the database as it was."""

from __future__ import annotations

import gc
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.envs.records.domains import DOMAINS, Naming, Schema, Volume, draw_rows
from fedagentgym.envs.records.guard import (
    MAX_QUERY_PARTS,
    MAX_ROWS,
    Budget,
    Database,
    QueryError,
    connect_memory,
    count_expanded,
)
from tests.envs.records.hostile import CHAIN, ENDLESS, FOURFOLD, HOSTILE

MEMORY_KIB = 200 * 1024
SECONDS = 0.2


def fill(connection: sqlite3.Connection) -> sqlite3.Connection:
    schema = Schema(DOMAINS["library"], Naming())
    for statement in schema.make_statements():
        connection.execute(statement)
    for statement, rows in schema.make_inserts(draw_rows(schema.domain, Volume(800, 240, 4000), 0, "guard")):
        connection.executemany(statement, rows)
    connection.commit()
    return connection


@pytest.fixture(scope="module")
def database() -> Database:
    return Database(fill(connect_memory()), "generated")


def count_rows(database: Database) -> list[object]:
    tables = ("members", "books", "loans")
    sums = [database.query(f"SELECT count(*), sum(id), max(id) FROM {table}").rows for table in tables]
    return [*sums, database.query("SELECT name, sql FROM sqlite_master").rows]


@contextmanager
def within_limits() -> Iterator[None]:
    """What happens inside takes little processor time and memory; the search for cycles in the whole process waits."""
    gc.disable()
    try:
        most, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
        yield
        assert time.thread_time() - began < SECONDS
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < MEMORY_KIB
    finally:
        gc.enable()


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:60]))
def test_a_hostile_query_gets_one_sentence_and_little_time(text: str, database: Database) -> None:
    before = count_rows(database)
    with within_limits(), pytest.raises(QueryError) as refused:
        database.query(text)
    sentence = str(refused.value)
    assert sentence and "\n" not in sentence and sentence.isprintable() and len(sentence) < 250
    assert count_rows(database) == before


def test_there_are_more_than_sixty_of_them() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) > 60


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guard") / "own.db"
    fill(sqlite3.connect(path)).close()
    return path


@pytest.mark.parametrize(
    "text", [*HOSTILE, *(one.replace("900", "14000") for one in ENDLESS)], ids=lambda text: repr(text[:60])
)
def test_a_file_is_not_changed_by_them(text: str, file: Path) -> None:
    """In files longer texts are allowed, so that some of these queries are run."""
    before, database = file.read_bytes(), Database.open(file)
    with within_limits(), suppress(QueryError):
        database.query(text)
    assert file.read_bytes() == before and [one.name for one in file.parent.iterdir()] == ["own.db"]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT count(*) FROM loans;", [(4000,)]),
        (
            "WITH many AS (SELECT member_id m, count(*) n FROM loans GROUP BY m) SELECT count(*) FROM many WHERE n >= 0",
            None,
        ),
        ("SELECT branch, count(*) FROM loans GROUP BY 1 HAVING count(*) > 10 ORDER BY 2 DESC LIMIT 2", None),
        ("SELECT count(*) FROM (SELECT DISTINCT town FROM members)", [(6,)]),
        ("SELECT [name] FROM members AS m WHERE EXISTS (SELECT 1 FROM loans WHERE member_id = m.id) LIMIT 1", None),
        ("SELECT strftime('%Y', day), round(avg(days), 2) FROM loans GROUP BY 1", None),
        ("SELECT rank() OVER (PARTITION BY branch ORDER BY days) FROM loans LIMIT 5", None),
        ("SELECT coalesce(returned_on, 'open'), upper(branch) || ' x' FROM loans LIMIT 3", None),
        ("SELECT 'a;b', 'it''s', \"name\" FROM members -- the end\n LIMIT 1", None),
        ("VALUES (1), (2)", [(1,), (2,)]),
        ("SELECT 1e999, NULL, x'00ff'", [(float("inf"), None, b"\x00\xff")]),
    ],
)
def test_what_questions_need_is_run(query: str, rows: list[object] | None, database: Database) -> None:
    found = database.query(query).rows
    assert found and (rows is None or found == rows)


def test_rows_beyond_the_limit_are_refused(database: Database) -> None:
    assert len(database.query("SELECT a.id FROM books a, books b LIMIT 5000").rows) == MAX_ROWS
    with pytest.raises(QueryError, match="more than 5000 rows"):
        database.query("SELECT a.id FROM books a, books b LIMIT 5001")


def test_a_budget_is_for_all_queries_of_an_action(database: Database) -> None:
    budget = Budget(100_000)
    with pytest.raises(QueryError, match="too long"):
        for _ in range(20):
            database.query("SELECT sum(days) FROM loans", budget)
    database.query("SELECT sum(days) FROM loans", Budget(100_000))


@pytest.mark.parametrize("collects", [False, True])
def test_processor_time_of_a_query_leaves_out_collections_of_garbage(collects: bool) -> None:
    budget = Budget(3_000)  # a ten-thousandth of a second
    budget.begin(1)
    assert not budget.spend()
    begun = time.thread_time()
    while time.thread_time() < begun + 0.001:
        pass
    if collects:
        gc.collect()
    assert budget.spend() is not collects


def test_expressions_that_expand_are_counted_without_preparing_them() -> None:
    assert count_expanded(CHAIN + " SELECT 1") > MAX_QUERY_PARTS < count_expanded(FOURFOLD + " SELECT 1")
    assert 20 < count_expanded("WITH a AS (SELECT 1), b AS (SELECT * FROM a, a) SELECT * FROM b, b, b") < 50
    assert count_expanded('WITH "a b" AS (SELECT 1) SELECT * FROM [a b], `A B`') == count_expanded(
        "WITH a AS (SELECT 1) SELECT * FROM a, a"
    )
    assert count_expanded("SELECT 'WITH a AS (SELECT 1)' -- FROM join\n FROM t") == 2


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abAB_ ()[]\"'`,;*=1\n-/", max_size=60).map(lambda text: f"WITH {text}") | st.text(max_size=40))
def test_any_text_is_rows_or_one_sentence(text: str) -> None:
    try:
        result = make_small().query(text)
    except QueryError as error:
        assert "\n" not in str(error) and str(error).isprintable()
    else:
        assert all(len(row) == len(result.columns) for row in result.rows)


@cache
def make_small() -> Database:
    return Database.build(["CREATE TABLE a (b INTEGER)"], [("INSERT INTO a VALUES (?)", [(1,), (None,)])])


MOMENTS = st.sampled_from(
    ["2024-02-29", "2023-12-31 23:59:58", "12:30", "2460000.5", "no day", "'", "", 0, 2460000.5, None]
)
CHANGES = st.sampled_from(["+1 day", "start of month", "-1 year", "weekday 1", "unixepoch", "later"])


@given(MOMENTS, st.lists(CHANGES, max_size=2), st.sampled_from(["%Y", "%d/%m %H:%M", "%J", ""]))
def test_functions_of_dates_are_those_of_sqlite(moment: Any, changes: list[str], form: str) -> None:
    plain = sqlite3.connect(":memory:")
    given = ", ".join(plain.execute("SELECT quote(?)", (one,)).fetchone()[0] for one in (moment, *changes))
    query = f"SELECT date({given}), time({given}), datetime({given}), julianday({given}), strftime('{form}', {given})"
    assert make_small().query(query).rows == plain.execute(query).fetchall()


def test_the_word_now_is_a_text_like_others(database: Database) -> None:
    assert database.query("SELECT count(*) FROM loans WHERE branch <> 'now'").rows == [(4000,)]
