"""Folders of databases with questions: Spider's and BIRD's layouts, and one's own files."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.streams import stream
from fedagentgym.envs import open_env
from fedagentgym.envs.records.env import RecordsOptions
from fedagentgym.envs.records.guard import Database, quote
from fedagentgym.envs.records.loading import find_kind, is_ordered, rate_query, read_folder
from fedagentgym.testing import check_env

RECORDS = "fedagentgym/Records-v0"
ROWS = [(n, "ABC"[n % 3], n % 11, None if n % 4 else f"2024-01-{n % 28 + 1:02d}") for n in range(1, 121)]


def make_database(file: Path, rows: Any = ROWS) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(file)
    connection.execute('CREATE TABLE "the stays" (id INTEGER PRIMARY KEY, ward TEXT, days INTEGER, left_on TEXT)')
    connection.execute("CREATE TABLE wards (ward TEXT PRIMARY KEY, beds INTEGER) WITHOUT ROWID")
    connection.executemany('INSERT INTO "the stays" VALUES (?, ?, ?, ?)', rows)
    connection.executemany("INSERT INTO wards VALUES (?, ?)", [("A", 4), ("B", 9), ("C", 12)])
    connection.commit()
    connection.close()


def make_questions(*names: str) -> list[dict[str, Any]]:
    """Questions with the fields of both layouts, some of them ordered."""
    return [
        {
            "db_id": name,
            "question": f"Which stays in ward {ward} were longer than {days} days?",
            "sql": f"SELECT id FROM \"the stays\" WHERE ward = '{ward}' AND days > {days}"
            + " ORDER BY id DESC" * (days % 2),
        }
        for name in names
        for ward in "ABC"
        for days in range(8)
    ]


def rename(rows: list[dict[str, Any]], column: str, **more: Any) -> list[dict[str, Any]]:
    return [{"db_id": row["db_id"], "question": row["question"], column: row["sql"], **more} for row in rows]


@pytest.fixture
def spider(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        make_database(tmp_path / "database" / name / f"{name}.sqlite")
    make_database(
        tmp_path / "database" / "one" / "one_2.sqlite", [(n, "BCA"[n % 3], days, left) for n, _, days, left in ROWS]
    )
    (tmp_path / "train_spider.json").write_text(json.dumps(rename(make_questions("one"), "query")))
    (tmp_path / "train_others.json").write_text(json.dumps(rename(make_questions("two"), "query")))
    (tmp_path / "dev.json").write_text(json.dumps(rename(make_questions("two")[:5], "query")))
    return tmp_path


@pytest.fixture
def bird(tmp_path: Path) -> Path:
    make_database(tmp_path / "train_databases" / "one" / "one.sqlite")
    make_database(tmp_path / "dev_databases" / "two" / "two.sqlite")
    (tmp_path / "train.json").write_text(json.dumps(rename(make_questions("one"), "SQL", evidence="Days are nights.")))
    (tmp_path / "dev.json").write_text(
        json.dumps(rename(make_questions("two"), "SQL", evidence="", difficulty="simple"))
    )
    return tmp_path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    make_database(tmp_path / "ward.db")
    rows = [
        {
            "question": row["question"],
            "query": row["sql"],
            "station": f"s{number % 3}",
            "split": "test" if number < 4 else "train",
        }
        for number, row in enumerate(make_questions("ward"))
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_spider(spider: Path) -> None:
    env = open_env(RECORDS, data=str(spider), split="all")
    assert env.split_sizes() == {"train": 46, "val": 2, "test": 5, "warmup": 0, "unseen": 0}
    assert env.pool.categories == {"one": 24, "two": 29} and {task.payload.kind for task in env.pool} == {"filter"}
    assert sum(task.payload.ordered for task in env.pool) > 20


def test_bird(bird: Path) -> None:
    env = open_env(RECORDS, data=str(bird), split="train")
    observation, _ = env.reset(seed=0)
    assert "Days are nights." in observation and observation.endswith("Tables: the stays, wards")
    test: Any = open_env(RECORDS, data=str(bird), split="test")
    assert test.pool.get_field("difficulty") == ["simple"] * 24


@pytest.mark.parametrize("layout", ["spider", "bird", "own"])
def test_conformance_and_the_expert(layout: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(layout)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    env: Any = open_env(RECORDS, data=str(folder), split="all")
    for task in env.pool:
        (episode,) = env.reset_many([task], [0])
        expert = env.expert()
        while not episode.over:
            (episode,) = env.step_many([episode], [expert.act(episode)])
        assert episode.view.success
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    if layout != "spider":
        for split in [split for split, size in env.split_sizes().items() if size][:1]:
            check_env(RECORDS, data=str(folder), split=split)


@pytest.mark.parametrize("layout", ["spider", "own"])
def test_an_answer_is_checked_on_other_rows(layout: str, request: pytest.FixtureRequest) -> None:
    """What is right on the rows at hand by its constants is wrong on copies, and on a second file of the database."""
    env: Any = open_env(RECORDS, data=str(request.getfixturevalue(layout)), split="train")
    task = next(task for task in env.pool if task.payload.database != "two" and not task.payload.ordered)
    (episode,) = env.reset_many([task], [0])
    ids = ", ".join(str(row[0]) for row in env._open(task.payload.database).query(task.payload.query).rows)
    constants = (
        f'SELECT id FROM "the stays" WHERE id IN ({ids})',
        f"VALUES {ids.replace(', ', '), (')}".replace(" ", " (", 1) + ")",
    )
    for query in (task.payload.query, *constants):
        (after,) = env.step_many([episode], [f"answer[{query}]"])
        assert after.view.success is (query == task.payload.query), query
        assert after.view.rewards["executes"] == 1.0


def test_clients_by_a_field_of_ones_own(own: Path) -> None:
    split = fedagentgym.federate(RECORDS, partition="natural", by="station", env={"data": str(own)})
    assert len(split) == 3 and {len(client.pool) for client in split} <= {5, 6, 7}


def test_every_option_of_tasks_acts_beside_own_data_or_is_refused(own: Path) -> None:
    """Training tasks are drawn with the seed and stay in order, as those of other loaded data."""
    given: dict[str, dict[str, Any]] = {
        "size": {"size": "tiny"},
        "categories": {"categories": "kind"},
        "seed": {"train_tasks": 7, "seed": 1},
        "train_tasks": {"train_tasks": 7},
    }
    assert set(given) == {name for name, mark in RecordsOptions.get_marks().items() if mark == "task"}
    digests = {open_env(RECORDS, data=str(own)).pool.digest}
    for options in given.values():
        try:
            digests.add(open_env(RECORDS, data=str(own), **options).pool.digest)
        except OptionError as error:
            assert "leave it out, or data=" in str(error)
    assert len(digests) == len(given)
    every, some, other = (
        [task.payload.question for task in open_env(RECORDS, data=str(own), **options).pool]
        for options in ({}, given["train_tasks"], given["seed"])
    )
    assert len(some) == len(other) == 7 and some != other and some == [one for one in every if one in some]
    assert open_env(RECORDS, data=str(own), train_tasks=7).split_sizes() | {"train": 20} == {
        **open_env(RECORDS, data=str(own)).split_sizes()
    }
    with pytest.raises(OptionError, match="train_tasks must be at most 20, the training tasks of the data; got 21"):
        open_env(RECORDS, data=str(own), train_tasks=21)


def test_variants_and_the_tiny_form_are_for_generated_databases(own: Path) -> None:
    for options in ({"size": "tiny"}, {"variant": {"kind": "rules", "house": 1}}):
        with pytest.raises(FedAgentGymError, match="generated databases"):
            open_env(RECORDS, data=str(own), **options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "How many?"}', "line 1: 'query' must be a text"),
        ('{"question": "", "query": "SELECT 1"}', "line 1: 'question' must be a text"),
        ('["How many?"]', "line 1: a question must be a mapping"),
        ('{"question": "How many?", "query": "SELECT 1", "database": "wart"}', "did you mean 'ward'"),
        ('{"question": "How many?", "query": "SELECT 1", "database": ["ward"]}', "line 1: unknown database"),
        ('{"question": "How many?", "query": "SELECT 1", "database": 7}', "line 1: unknown database"),
        (
            '{"question": "How many?", "query": "SELECT 1", "split": "later"}',
            "'split' must be one of train, val, test, warmup, unseen",
        ),
        ('{"question": "How many?", "query": "SELECT 1", "ordered": "yes"}', "'ordered' true or false"),
        ('{"question": ', "questions.jsonl"),
    ],
)
def test_a_wrong_line_is_named(own: Path, line: str, message: str) -> None:
    (own / "questions.jsonl").write_text(line)
    with pytest.raises(FedAgentGymError, match=message) as refused:
        open_env(RECORDS, data=str(own))
    assert "\n" not in str(refused.value)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FedAgentGymError, match="there is no folder"):
        open_env(RECORDS, data=str(tmp_path / "nowhere"))
    with pytest.raises(FedAgentGymError, match="has no questions"):
        open_env(RECORDS, data=str(tmp_path))
    (tmp_path / "questions.jsonl").write_text('{"question": "How many?", "query": "SELECT 1"}')
    with pytest.raises(FedAgentGymError, match="has no databases"):
        open_env(RECORDS, data=str(tmp_path))
    (tmp_path / "own.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(FedAgentGymError, match="as a SQLite database"):
        open_env(RECORDS, data=str(tmp_path)).reset(seed=0)


def test_two_files_of_one_name_are_refused(own: Path) -> None:
    make_database(own / "ward.sqlite")
    with pytest.raises(DataError, match=r"has two databases of one name, ward\.db and ward\.sqlite: rename") as refused:
        open_env(RECORDS, data=str(own))
    assert "\n" not in str(refused.value)


NO_ANSWERS = [
    ("SELECT none FROM wards", "SQL error : no such column: none"),
    ("SELEC 1", "SQL error : near"),
    ("SELECT count(*) FROM patients", "no such table: patients"),
    ("DELETE FROM wards", "A query only reads"),
    ("PRAGMA table_info(wards)", "A query only reads"),
    ("SELECT 1; SELECT 2", "Only one statement"),
    ("EXPLAIN SELECT 1", "begins with SELECT"),
    ("-- all", "SQL error : incomplete input"),
    ("SELECT ward FROM wards ORDER BY random() LIMIT 1", "The function random is not available"),
    ("SELECT date('now')", "The present day and time"),
    ("SELECT count(*) FROM wards WHERE CURRENT_DATE > '2020-01-01'", "The present day and time"),
]


@pytest.mark.parametrize(("query", "fault"), NO_ANSWERS)
def test_a_gold_that_can_be_no_answer_is_named_with_its_line(own: Path, query: str, fault: str) -> None:
    lines = [{"question": "How many?", "query": one} for one in ("SELECT count(*) FROM wards", query)]
    (own / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(
        FedAgentGymError, match=f"line 2: 'query' cannot be the answer: .*{re.escape(fault)}"
    ) as refused:
        open_env(RECORDS, data=str(own))
    assert "\n" not in str(refused.value)


def test_published_questions_without_an_answer_are_left_out(bird: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = json.loads((bird / "dev.json").read_text())
    more = [{"db_id": "two", "question": "Which?", "SQL": query} for query, _ in NO_ANSWERS]
    (bird / "dev.json").write_text(json.dumps([*more[:5], *given, *more[5:]]))
    env: Any = open_env(RECORDS, data=str(bird), split="test")
    assert [task.payload.question for task in env.pool] == [row["question"] for row in given]
    assert f"{len(more)} of {len(given) * 2 + len(more)} questions are left out" in caplog.text


def test_a_gold_that_fails_on_some_rows_is_named(own: Path) -> None:
    (own / "questions.jsonl").write_text('{"question": "How many?", "query": "SELECT abs(-9223372036854775807 - 1)"}')
    env = open_env(RECORDS, data=str(own))
    env.reset(seed=0)
    with pytest.raises(FedAgentGymError, match="the gold of a task does not run: SQL error : integer overflow"):
        env.step("answer[SELECT 1]")


def test_fields_that_are_null_are_not_there(own: Path) -> None:
    row = dict.fromkeys(("database", "split", "category", "hint", "ordered", "station"))
    (own / "questions.jsonl").write_text(json.dumps({"question": "How many?", "query": "SELECT 1", **row}))
    env: Any = open_env(RECORDS, data=str(own))
    assert env.pool.categories == {"ward": 1} and env.pool[0].payload.hint == ""


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_in_use_is_refused(own: Path, mode: str) -> None:
    """What was written last is not in the file yet, so that answers would be about rows that are gone."""
    before = open_env(RECORDS, data=str(own)).pool.digest
    writer = sqlite3.connect(own / "ward.db", isolation_level=None)
    writer.execute(f"PRAGMA journal_mode = {mode}")
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.execute("CREATE TABLE more AS SELECT zeroblob(90000) AS a, * FROM wards")
    if mode == "wal":
        writer.execute("COMMIT")
    with pytest.raises(FedAgentGymError, match="is in use, or was not closed") as refused:
        open_env(RECORDS, data=str(own))
    assert "\n" not in str(refused.value)
    if mode == "delete":
        writer.execute("ROLLBACK")
    writer.close()
    assert (open_env(RECORDS, data=str(own)).pool.digest == before) is (mode == "delete")


def test_tables_as_they_are_at_hospitals(tmp_path: Path) -> None:
    """Odd names, views, long values, many columns, a text index, triggers, signs of another encoding: all can be asked about."""
    connection = sqlite3.connect(tmp_path / "own.db")
    connection.executescript(
        """CREATE TABLE "our patients" (id INTEGER PRIMARY KEY, name TEXT, "born in" INT, photo BLOB, twice AS ("born in" * 2));
        CREATE TABLE [select] (a); CREATE TABLE bare (a, b); CREATE VIEW old AS SELECT name FROM "our patients" WHERE id < 9;
        CREATE VIEW broken AS SELECT * FROM gone; CREATE UNIQUE INDEX one ON "our patients" (lower(name) || id);
        CREATE VIRTUAL TABLE notes USING fts5(body); CREATE TABLE notes_kept (a);
        CREATE TRIGGER no_change BEFORE UPDATE ON "our patients" BEGIN SELECT RAISE(ABORT, 'no'); END;
        CREATE TRIGGER no_loss BEFORE DELETE ON "our patients" BEGIN SELECT RAISE(ABORT, 'no'); END;"""
    )
    connection.execute(f"CREATE TABLE wide ({', '.join(f'c{n} INT' for n in range(300))})")
    photo = b"\xff" * 100_000
    connection.executemany(
        'INSERT INTO "our patients" (name, "born in", photo) VALUES (CAST(? AS TEXT), ?, ?)',
        [("Zo\xeb".encode("latin1"), 1950 + n, photo) for n in range(20)],
    )
    connection.executemany("INSERT INTO notes VALUES (?)", [(f"fever on day {n}",) for n in range(20)])
    connection.commit()
    connection.close()
    asked = {
        'SELECT count(*) FROM "our patients" WHERE "born in" > 1960': "SELECT count(id) FROM [our patients] WHERE twice > 3920",
        "SELECT count(*) FROM old": "SELECT count(*) FROM `our patients` WHERE id <= 8",
        "SELECT count(*) FROM notes WHERE notes MATCH 'fever'": "SELECT count(*) FROM notes WHERE body LIKE 'fever%'",
        "SELECT count(length(photo)) FROM 'our patients'": 'SELECT count(typeof(photo)) FROM "our patients"',
    }
    rows = [{"question": "How many?", "query": query} for query in asked]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env: Any = open_env(RECORDS, data=str(tmp_path), max_turns=20)
    assert env.reset(seed=0)[0].endswith("Tables: our patients, select, bare, old, broken, notes, notes_kept, wide")
    for name, says in {
        "our patients": "1 | Zo\ufffd | 1950 | ( 100000 bytes )",
        '"Our Patients"': "( 3 rows )",
        "select": "( no rows )",
        "broken": "no such table: main.gone",
        "notes": "fever on day 0",
        "wide": "c42 INT",
    }.items():
        assert says in env.step(f"describe[{name}]")[0]
    assert "too long" in env.step('query[SELECT photo FROM "our patients"]')[0]
    assert env.step("query[SELECT * FROM wide]")[0].endswith("( no rows )")
    for task, answer in zip(env.pool, asked.values(), strict=True):
        (episode,) = env.reset_many([task], [0])
        assert env.step_many([episode], [f"answer[{answer}]"])[0].view.success, answer


def test_a_gold_may_do_what_an_answer_may_not(own: Path) -> None:
    """Gold queries of published sets have many rows, and functions of which agents have no need."""
    many = 'SELECT a.id, b.id FROM "the stays" a, "the stays" b'
    rows = [
        {"question": "Which pairs?", "query": many},
        {"question": "Which form?", "query": "SELECT printf('%03d', 7)"},
    ]
    (own / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env: Any = open_env(RECORDS, data=str(own), split="train")
    for task, answers in zip(env.pool, ((many,), ("SELECT '007'",)), strict=True):
        for answer in answers:
            (episode,) = env.reset_many([task], [0])
            (after,) = env.step_many([episode], [f"answer[{answer}]"])
            assert after.view.success
    (episode,) = env.reset_many([env.pool[0]], [0])
    for query, said in (
        (many, "The query has more than 5000 rows ."),
        (rows[1]["query"], "The function printf is not available ."),
    ):
        (after,) = env.step_many([episode], [f"query[{query}]"])
        assert after.view.observation == said


def test_a_changed_file_is_read_anew(own: Path) -> None:
    before = open_env(RECORDS, data=str(own)).pool.digest
    (own / "ward.db").unlink()
    make_database(own / "ward.db", ROWS[:50])
    assert open_env(RECORDS, data=str(own)).pool.digest != before


@pytest.mark.parametrize(
    ("query", "kind", "ordered"),
    [
        ("select a from t", "filter", False),
        ("SELECT count(*) FROM t", "count", False),
        ("SELECT a FROM t JOIN u ON t.a = u.a ORDER BY a", "join", True),
        ("SELECT a FROM t GROUP BY a HAVING count(*) > 2", "having", False),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM u ORDER BY b LIMIT 3)", "nested", False),
        ("SELECT a FROM t WHERE b = 'order by' LIMIT 3", "top", False),
    ],
)
def test_what_a_query_is_like(query: str, kind: str, ordered: bool) -> None:
    assert find_kind(query) == kind and is_ordered(query) is ordered and 0 <= rate_query(query) <= 1


CLAUSES = ("order by", "group", "having", "join", "limit", "distinct", "select", "and", "or", "count(", "(", ")", "x")
QUOTES = ("'{}'", '"{}"', "`{}`", "[{}]", "/* {} */", "-- {}\n")


@given(st.lists(st.builds(str.format, st.sampled_from(QUOTES), st.sampled_from(CLAUSES)), min_size=3, max_size=3))
def test_names_texts_and_comments_say_nothing_about_a_query(names: list[str]) -> None:
    plain = "SELECT {}, count(*) FROM t JOIN {} ON a = b WHERE a > 3 AND {} LIKE c GROUP BY a"
    for form in (plain, f"{plain} ORDER BY a"):
        query, usual = form.format(*names), form.format("a", "b", "c")
        assert find_kind(query) == "group" and is_ordered(query) is (form != plain)
        assert rate_query(query) == rate_query(usual)


@pytest.mark.parametrize("name", ["order1", "order$", "\u20acorder", "order\u20ac", "\xa0order", "count", "`count`"])
def test_a_part_of_a_name_is_no_word(name: str) -> None:
    """SQLite takes each of these as one name."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t ({name} INT)")
    query = f"SELECT {name} FROM t"
    connection.execute(query)
    assert not is_ordered(query) and find_kind(query) == "filter" and rate_query(query) == 0


@pytest.mark.parametrize("name", ["`order`", "[Order ID]", '"order by"', "order_/* order by 1 */"])
def test_an_order_is_asked_for_by_a_clause_and_not_by_a_name(name: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.execute(f"CREATE TABLE {name} (amount INT)")
        connection.executemany(f"INSERT INTO {name} VALUES (?)", [(n * 7 % 50,) for n in range(60)])
        connection.commit()
    query = f"SELECT amount FROM {name} WHERE amount > 10"
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Which amounts?", "query": query}))
    env = open_env(RECORDS, data=str(tmp_path))
    env.reset(seed=0)
    assert env.step(f"answer[{query} ORDER BY amount]")[1] == 1.0


def test_a_date_beside_the_text_now_is_no_present_moment(own: Path) -> None:
    with closing(sqlite3.connect(own / "ward.db")) as connection:
        connection.execute("CREATE TABLE seen (date TEXT, urgency TEXT)")
    (own / "questions.jsonl").write_text(
        json.dumps({"question": "When?", "query": "SELECT date FROM seen WHERE urgency = 'now'"})
    )
    assert len(open_env(RECORDS, data=str(own)).pool) == 1


# ---- copies with other rows -------------------------------------------------------------------------------------------

VALUES = st.sampled_from([None, "x", "Zo\xe9", 1, 2.0, 2.5, b"\xff", "1"])
COLUMNS = ("rowid", "oid", "_rowid_", "a", "Order ID", "now")
KEYS = (
    "",
    ", key INTEGER PRIMARY KEY",
    ", key INTEGER PRIMARY KEY AUTOINCREMENT",
    ", key TEXT PRIMARY KEY",
    ", key TEXT, more INT, PRIMARY KEY (more, key)",
    ", key TEXT PRIMARY KEY) WITHOUT ROWID --",
    ", key TEXT, more INT, PRIMARY KEY (more DESC, key)) WITHOUT ROWID --",
)
CONSTRAINTS = (
    "CREATE INDEX one ON t(number)",
    "CREATE UNIQUE INDEX one ON t(number)",
    "CREATE UNIQUE INDEX one ON t(number % 8) WHERE number < 8",
    "CREATE UNIQUE INDEX one ON t(room) WHERE number < 8",
    "CREATE UNIQUE INDEX one ON t(room * 100 + number)",
    "CREATE TRIGGER one BEFORE DELETE ON t BEGIN SELECT RAISE(ABORT, 'no'); END",
    "ALTER TABLE t ADD COLUMN sum AS (room + 100 * number)",
)
"""Each forbids some rows, or makes changes harder."""


def read_bytes(connection: sqlite3.Connection, table: str) -> dict[str, Counter[Any]]:
    """The values of each column of a table, with their types."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    read = (connection.execute(f'SELECT typeof("{one}"), hex("{one}") FROM {table}').fetchall() for one in columns)
    return {column: Counter(rows) for column, rows in zip(columns, read, strict=True)}


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(COLUMNS), unique=True),
    st.sampled_from(KEYS),
    st.lists(st.sampled_from(CONSTRAINTS), max_size=2, unique=True),
    st.lists(VALUES, min_size=5, max_size=5),
    st.booleans(),
    st.sampled_from(["UTF-8", "UTF-16le", "UTF-16be"]),
)
def test_every_table_is_changed_in_copies_and_keeps_its_constraints(
    names: list[str], key: str, constraints: list[str], values: list[Any], raw: bool, encoding: str
) -> None:
    with TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/own.db")) as connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        columns = "".join(f', "{name}"' for name in names)
        connection.execute(f"CREATE TABLE t (number INT NOT NULL, room INT{columns}{key}\n)".replace("--\n)", ""))
        for number, constraint in enumerate(constraints):
            connection.execute(constraint.replace("one", f"one{number}"))
        for number in range(40):
            own = {"number": number, "room": number % 8} | dict.fromkeys(names, values[number % 5])
            own |= {"key": f"k{number}" if "TEXT" in key else number} if key else {}
            own |= {"more": number % 3} if "more" in key else {}
            connection.execute(
                f"INSERT INTO t ({', '.join(map(quote, own))}) VALUES ({', '.join('?' * len(own))})", list(own.values())
            )
        if raw and "a" in names:
            connection.execute("UPDATE t SET a = CAST(X'4dfc6c' AS TEXT) WHERE number % 2")
        connection.commit()
        before, digest = read_bytes(connection, "t"), Path(f"{folder}/own.db").read_bytes()
        copy = Database.copy(Path(f"{folder}/own.db"), 0.5, stream(0, "copy"), 1000)
        assert copy is not None and copy.unchanged == {}
        assert copy.query("SELECT number FROM t").rows != [(number,) for number in range(40)]
        if not constraints:  # the values of other columns are shuffled
            assert copy.query("SELECT count(*) FROM t WHERE room <> number % 8").rows > [(0,)]
        again = copy._connection
        again.set_authorizer(None)
        after = read_bytes(again, "t")
        said = {row[0] for row in again.execute("PRAGMA integrity_check")}
        assert said <= {"ok", "NULL value in t.number"}  # SQLite 3.40 says this of every table WITHOUT ROWID
        assert all(found <= before[column] for column, found in after.items())
        assert 5 < sum(after["number"].values()) < 35 and Path(f"{folder}/own.db").read_bytes() == digest
        copy.close()


@pytest.mark.parametrize(
    ("form", "right"),
    [
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, name, k INT) WITHOUT ROWID", "SELECT count(k) FROM t WHERE k=3"),
        ("CREATE TABLE t (rowid, name, k INT)", "SELECT count(k) FROM t WHERE k=3"),
        ("CREATE TABLE t (rowid, oid, _rowid_, name, k INT)", "SELECT count(k) FROM t WHERE k=3"),
        ("CREATE TABLE t (name, k INT); CREATE UNIQUE INDEX one ON t(name) WHERE k = 3", "SELECT sum(k = 3) FROM t"),
        ("CREATE VIRTUAL TABLE t USING fts5(name, k)", "SELECT count(*) FROM t WHERE k LIKE '3'"),
        ("CREATE VIRTUAL TABLE t USING fts4(name, k)", "SELECT count(*) FROM t WHERE k LIKE '3'"),
    ],
)
def test_a_constant_is_wrong_and_another_right_query_is_right(form: str, right: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.executescript(form)
        has_key = "PRIMARY KEY" in form
        connection.executemany(
            f"INSERT INTO t ({'id, ' * has_key}name, k) VALUES ({'?1, ' * has_key}CAST(?2 AS TEXT), ?3)",
            [(n, b"\xfc%d" % n, n % 13) for n in range(99)],
        )
        connection.commit()
    gold = "SELECT count(*) FROM t WHERE k = 3"
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "How many?", "query": gold}))
    env = open_env(RECORDS, data=str(tmp_path))
    for answer, paid in ((right, 1.0), ("SELECT 8", 0.0), ("SELECT 7", 0.0)):
        env.reset(seed=0)
        assert env.step(f"answer[{answer}]")[1] == paid, answer


def test_an_index_of_texts_that_are_in_another_table_fits_it_in_copies(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.executescript(
            "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT, day INT);"
            "CREATE VIRTUAL TABLE found USING fts5(body, content='notes', content_rowid='id')"
        )
        connection.executemany(
            "INSERT INTO notes VALUES (?, ?, ?)", [(n, ("fever", "cough")[n % 2], n) for n in range(60)]
        )
        connection.execute("INSERT INTO found (found) VALUES ('rebuild')")
        connection.commit()
    gold = "SELECT body FROM found WHERE found MATCH 'fever'"
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Which?", "query": gold}))
    env = open_env(RECORDS, data=str(tmp_path))
    env.reset(seed=0)
    assert env.step("answer[SELECT body FROM notes WHERE body = 'fever']")[1] == 1.0


def test_a_warning_names_what_no_copy_changes(
    own: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(own / "ward.db")) as connection:
        connection.create_collation("ours", lambda one, other: (one > other) - (one < other))
        connection.executescript(
            "CREATE TABLE odd (a TEXT COLLATE ours UNIQUE); INSERT INTO odd VALUES ('x');"
            "CREATE VIRTUAL TABLE places USING rtree(id, low, high)"
        )
        connection.commit()
    env = open_env(RECORDS, data=str(own))
    assert "2 of the tables cannot be changed in copies" in caplog.text
    assert "the first, odd of ward.db: no such collation sequence: ours" in caplog.text
    env.reset(options={"task": env.pool[0].id})
    assert env.step(f"answer[{env.pool[0].payload.query.replace('id', 'id ', 1)}]")[1] == 1.0
    read_folder.cache_clear()
    monkeypatch.setattr("fedagentgym.envs.records.loading.MAX_COPIED", 100)
    open_env(RECORDS, data=str(own))
    assert "1 of the databases are too large for copies" in caplog.text and "the first: ward.db" in caplog.text
    read_folder.cache_clear()


def test_names_of_another_encoding_are_no_error(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(own / "ward.db")) as connection:
        connection.execute("CREATE TABLE caf1 (id INTEGER)")
        connection.execute("CREATE TABLE bars (caf1 INTEGER)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET name = replace(name, '1', CAST(X'e9' AS TEXT)),"
            " tbl_name = replace(name, '1', CAST(X'e9' AS TEXT)), sql = replace(sql, '1', CAST(X'e9' AS TEXT))"
            " WHERE name IN ('caf1', 'bars')"
        )
        connection.commit()
    env = open_env(RECORDS, data=str(own))
    assert "2 of the tables cannot be changed in copies" in caplog.text and "no such" in caplog.text
    env.reset(options={"task": env.pool[0].id})
    assert env.step(f"answer[{env.pool[0].payload.query.replace('id', 'id ', 1)}]")[1] == 1.0


def test_a_damaged_file_is_an_error_when_the_folder_is_read(own: Path) -> None:
    raw = bytearray((own / "ward.db").read_bytes())
    raw[4096:8192] = b"\x7f" * 4096
    (own / "ward.db").write_bytes(raw)
    with pytest.raises(DataError, match="SQLite database") as refused:
        open_env(RECORDS, data=str(own))
    assert "\n" not in str(refused.value)


def test_a_gold_that_a_further_file_cannot_answer_is_left_out(spider: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(spider / "database" / "one" / "one_2.sqlite")) as connection:
        connection.execute('DROP TABLE "the stays"')
    env = open_env(RECORDS, data=str(spider), split="all")
    assert env.pool.categories == {"two": 29}
    assert "24 of 53 questions are left out" in caplog.text and "the stays (in one_2.sqlite)" in caplog.text
