"""The generated domains: their tables and columns, the names that a site gives them, and their rows.

All domains have one shape: `people`, `things`, and `events`, each of which belongs to a person and a thing. So every
template of a question exists in every domain, and only names and values differ. A site may store the same data in
another form: its `Naming` renames tables and columns, and may move some columns of a table to a second table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.reasoning.generators.problems import split_words

Kind = Literal["key", "name", "choice", "number", "date", "reference"]
Row = tuple[Any, ...]
TYPES: Mapping[Kind, str] = {
    "key": "INTEGER PRIMARY KEY",
    "name": "TEXT NOT NULL UNIQUE",
    "choice": "TEXT",
    "number": "INTEGER",
    "date": "TEXT",
    "reference": "INTEGER NOT NULL",
}


class Column(NamedTuple):
    """A column. Questions call it by its `phrase`. `values` are its choices, or its smallest number and the step between
    two numbers. A `nullable` column is empty in a part of the rows, and a reference leads to the table `to`."""

    name: str
    kind: Kind
    phrase: str = ""
    values: tuple[Any, ...] = ()
    nullable: bool = False
    to: str = ""


class Table(NamedTuple):
    """A table. `noun` is the word for one of its rows; the columns from number `apart` on can be kept in a second table."""

    name: str
    noun: str
    columns: tuple[Column, ...]
    apart: int

    def get(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def list_kind(self, kind: Kind, *, nullable: bool = False) -> list[Column]:
        return [column for column in self.columns if column.kind == kind and column.nullable is nullable]


@dataclass(frozen=True)
class Domain:
    """A domain; `amounts` are the columns of events that its houses may mean by the `amount` of an event."""

    name: str
    people: Table
    things: Table
    events: Table
    amount: str
    amounts: tuple[str, str, str]

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        return {table.name: table for table in (self.people, self.things, self.events)}

    def get_column(self, path: str) -> Column:
        """The column of a path such as `loans.branch`."""
        table, _, column = path.partition(".")
        return self.tables[table].get(column)


LEVELS = 24
"""Maximum number of different numbers in a column."""
TOWNS = split_words("Arle Bost Cray Dorn Elde Fenn")
STATUSES = ("active", "paused", "closed")
FIRST_YEAR, LAST_YEAR = 2020, 2026


def _make_people(name: str, noun: str, grade: tuple[str, str, str], number: tuple[str, str, int, int]) -> Table:
    column, phrase, values = grade
    counted, counted_phrase, least, step = number
    return Table(
        name,
        noun,
        (
            Column("id", "key"),
            Column("name", "name", "name"),
            Column("town", "choice", "town", TOWNS),
            Column(column, "choice", phrase, split_words(values)),
            Column(counted, "number", counted_phrase, (least, step)),
            Column("status", "choice", "status", STATUSES),
            Column("joined_on", "date", "joining date"),
            Column("last_seen", "date", "last contact"),
            Column("left_on", "date", "leaving date", (), True),
        ),
        5,
    )


def _make_things(name: str, noun: str, kind: tuple[str, str, str], number: tuple[str, str, int, int]) -> Table:
    column, phrase, values = kind
    counted, counted_phrase, least, step = number
    return Table(
        name,
        noun,
        (
            Column("id", "key"),
            Column("title", "name", "title"),
            Column(column, "choice", phrase, split_words(values)),
            Column(counted, "number", counted_phrase, (least, step)),
            Column("added_on", "date", "date of entry"),
        ),
        3,
    )


def _make_domain(
    name: str,
    people: Table,
    things: Table,
    event: tuple[str, str],
    channel: tuple[str, str, str],
    number: tuple[str, str, int, int],
    ended: tuple[str, str],
    amount: str,
    amounts: str,
) -> Domain:
    first, second, third = split_words(amounts)
    events = Table(
        event[0],
        event[1],
        (
            Column("id", "key"),
            Column(f"{people.noun}_id", "reference", to=people.name),
            Column(f"{things.noun}_id", "reference", to=things.name),
            Column(channel[0], "choice", channel[1], split_words(channel[2])),
            Column(number[0], "number", number[1], number[2:]),
            Column("day", "date", "day"),
            Column(ended[0], "date", ended[1], (), True),
            *(Column(one, "number", one.replace("_", " "), (10, 5)) for one in (first, second, third)),
        ),
        7,
    )
    return Domain(name, people, things, events, amount, (first, second, third))


DOMAINS: Mapping[str, Domain] = {
    domain.name: domain
    for domain in (
        _make_domain(
            "clinic",
            _make_people(
                "patients", "patient", ("insurance", "insurance", "none basic full state"), ("age", "age", 2, 4)
            ),
            _make_things(
                "doctors", "doctor", ("field", "field", "heart skin bones eyes ears"), ("years", "years of work", 1, 2)
            ),
            ("visits", "visit"),
            ("reason", "reason", "check pain fever injury advice"),
            ("minutes", "minutes", 5, 5),
            ("next_on", "next appointment"),
            "cost",
            "fee billed settled",
        ),
        _make_domain(
            "library",
            _make_people("members", "member", ("card", "card", "child adult student senior"), ("age", "age", 6, 3)),
            _make_things(
                "books",
                "book",
                ("genre", "genre", "crime poetry travel history science"),
                ("pages", "number of pages", 60, 20),
            ),
            ("loans", "loan"),
            ("branch", "branch", "north south east west centre"),
            ("days", "number of days", 1, 2),
            ("returned_on", "return date"),
            "charge",
            "price fine received",
        ),
        _make_domain(
            "shop",
            _make_people(
                "customers", "customer", ("level", "level", "bronze silver gold trade"), ("points", "points", 0, 50)
            ),
            _make_things(
                "products", "product", ("type", "type", "tools garden kitchen toys paint"), ("weight", "weight", 1, 3)
            ),
            ("orders", "order"),
            ("channel", "channel", "web phone store post fair"),
            ("quantity", "quantity", 1, 1),
            ("shipped_on", "shipping date"),
            "price",
            "list_price net_price paid_price",
        ),
        _make_domain(
            "school",
            _make_people("students", "student", ("house", "house", "oak elm ash birch"), ("credits", "credits", 0, 10)),
            _make_things(
                "courses",
                "course",
                ("subject", "subject", "music algebra biology drama latin"),
                ("seats", "seats", 4, 2),
            ),
            ("enrolments", "enrolment"),
            ("term", "term", "autumn winter spring summer holiday"),
            ("absences", "absences", 0, 1),
            ("finished_on", "final day"),
            "mark",
            "first_mark second_mark final_mark",
        ),
        _make_domain(
            "bank",
            _make_people(
                "clients",
                "client",
                ("segment", "segment", "private business public young"),
                ("score", "score", 100, 25),
            ),
            _make_things(
                "branches", "branch", ("region", "region", "coast hills plain valley islands"), ("staff", "staff", 2, 2)
            ),
            ("payments", "payment"),
            ("method", "method", "cash card transfer cheque debit"),
            ("items", "items", 1, 1),
            ("booked_on", "booking date"),
            "amount",
            "gross net cleared",
        ),
    )
}

# ---- names under which a site keeps its data --------------------------------------------------------------------------


Style = Literal["plain", "short", "long"]
STYLES: tuple[Style, ...] = ("plain", "short", "long")


class Naming(NamedTuple):
    """The style of a site's names of tables and columns, and whether it keeps a part of each table in a second table."""

    style: Style = "plain"
    split: bool = False


@dataclass(frozen=True)
class Schema:
    """A domain as a site keeps it: the place of every column."""

    domain: Domain
    naming: Naming

    def name_table(self, table: str) -> str:
        return _rename(table, self.naming.style, f"{self.domain.name}_")

    def name_second(self, table: str) -> str:
        return self.name_table(f"{table}_details")

    def name_column(self, table: str, column: str) -> str:
        return _rename(column, self.naming.style, f"{self.domain.tables[table].noun}_")

    def name_link(self, table: str) -> str:
        """The column of a second table that leads to the first."""
        return self.name_column(table, f"{self.domain.tables[table].noun}_ref")

    def is_apart(self, path: str) -> bool:
        """True if a column, such as `loans.price`, is kept in the second table."""
        table = self.domain.tables[path.partition(".")[0]]
        return self.naming.split and table.columns.index(self.domain.get_column(path)) >= table.apart

    def write(self, path: str) -> str:
        """A column with its table, as queries name it.

        >>> Schema(DOMAINS["clinic"], Naming("short", True)).write("patients.status")
        'ptnts_dtls.stts'
        """
        table, _, column = path.partition(".")
        where = self.name_second(table) if self.is_apart(path) else self.name_table(table)
        return f"{where}.{self.name_column(table, column)}"

    def make_statements(self) -> list[str]:
        """The statements that make the empty tables."""
        made = []
        for table in self.domain.tables.values():
            halves = [(self.name_table(table.name), table.columns)]
            if self.naming.split:
                link = Column("", "reference", to=table.name)
                halves = [
                    (self.name_table(table.name), table.columns[: table.apart]),
                    (self.name_second(table.name), (link, *table.columns[table.apart :])),
                ]
            for name, columns in halves:
                lines, keys = [], []
                for column in columns:
                    written = self.name_column(table.name, column.name) if column.name else self.name_link(table.name)
                    lines.append(f"{written} {TYPES[column.kind]}")
                    if column.to:
                        there = f"{self.name_table(column.to)} ({self.name_column(column.to, 'id')})"
                        lines[-1] += f" REFERENCES {there}"
                        keys.append(written)
                made.append(f"CREATE TABLE {name} ({', '.join(lines)})")
                made += [f"CREATE INDEX {name}_by_{key} ON {name} ({key})" for key in keys]
        return made

    def make_inserts(self, rows: Mapping[str, Sequence[Row]]) -> list[tuple[str, list[Row]]]:
        """Statements with their rows, given the rows of the domain's own tables."""
        made = []
        for table in self.domain.tables.values():
            first = len(table.columns) if not self.naming.split else table.apart
            own = rows[table.name]
            made.append((_insert(self.name_table(table.name), first), [row[:first] for row in own]))
            if self.naming.split:
                second = [(row[0], *row[first:]) for row in own]
                made.append((_insert(self.name_second(table.name), 1 + len(table.columns) - first), second))
        return made


@lru_cache(maxsize=1024)
def _rename(name: str, style: str, prefix: str) -> str:
    if style == "long":
        return prefix + name
    if style == "short":
        return "_".join(part[0] + "".join(sign for sign in part[1:] if sign not in "aeiou") for part in name.split("_"))
    return name


def _insert(table: str, columns: int) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"


# ---- rows -------------------------------------------------------------------------------------------------------------


class Volume(NamedTuple):
    """The size and distribution of a database: the rows of each table, the number of different numbers in a column (`levels`),
    the share of `empty` values in nullable columns, the `skew` of the frequencies of choices, and the `days` of a year."""

    people: int
    things: int
    events: int
    levels: int = LEVELS
    empty: float = 0.3
    skew: float = 0.0
    days: tuple[str, ...] = ("01-01", "02-17", "03-09", "05-28", "07-01", "08-20", "10-11", "12-31")


NAME_STARTS = split_words("Ab Bel Cor Da El Fa Go Hal Il Jo Ka Lu Mi Na Or Pe Ra Su Ti Ve")
NAME_MIDDLES = split_words("ba de fi go la me ni ra so ta")
NAME_ENDS = split_words("n na r ra s th da lin mo vi")


def draw_rows(domain: Domain, volume: Volume, seed: int, *path: int | str) -> dict[str, list[Row]]:
    """The rows of every table of a domain.

    With a skew, some choices, and some of the people and things, are much more frequent than others.
    """
    counts = {domain.people.name: volume.people, domain.things.name: volume.things, domain.events.name: volume.events}
    rows = {}
    for table in domain.tables.values():
        count = counts[table.name]
        columns = [
            _draw_column(column, count, counts.get(column.to, 0), volume, stream(seed, *path, table.name, column.name))
            for column in table.columns
        ]
        rows[table.name] = list(zip(*columns, strict=True))
    return rows


def _draw_column(column: Column, count: int, referred: int, volume: Volume, draw: Stream) -> list[Any]:
    if column.kind == "key":
        return list(range(1, count + 1))
    if column.kind == "name":
        parts = len(NAME_STARTS), len(NAME_MIDDLES), len(NAME_ENDS)
        return [
            _write_name(number, *parts) for number in draw.permutation(parts[0] * parts[1] * parts[2])[:count].tolist()
        ]
    if column.kind == "choice":
        drawn: list[Any] = [column.values[place] for place in _draw_places(len(column.values), count, volume, draw)]
    elif column.kind == "reference":
        drawn = [1 + place for place in _draw_places(referred, count, volume, draw)]
    elif column.kind == "number":
        least, step = column.values
        stride = LEVELS // volume.levels
        drawn = [least + step * stride * place for place in draw.integers(volume.levels, count).tolist()]
    else:
        years, days = (
            draw.integers(LAST_YEAR - FIRST_YEAR, count).tolist(),
            draw.integers(len(volume.days), count).tolist(),
        )
        drawn = [f"{FIRST_YEAR + year}-{volume.days[day]}" for year, day in zip(years, days, strict=True)]
    if column.nullable:
        missing = draw.uniform(count) < volume.empty
        drawn = [None if none else value for value, none in zip(drawn, missing.tolist(), strict=True)]
    return drawn


def _draw_places(choices: int, count: int, volume: Volume, draw: Stream) -> list[int]:
    """Random numbers below `choices`; with a skew, those that come first in a random order are more frequent."""
    if not volume.skew:
        return list(draw.integers(choices, count).tolist())
    order = draw.permutation(choices)
    places = (choices * draw.uniform(count) ** (1.0 + volume.skew)).astype(int)
    return list(order[places].tolist())


def _write_name(number: int, starts: int, middles: int, ends: int) -> str:
    start, rest = divmod(number, middles * ends)
    return NAME_STARTS[start % starts] + NAME_MIDDLES[rest // ends] + NAME_ENDS[rest % ends]
