"""Questions by template: a sentence in the words of a domain, and the plan that answers it in a site's house.

A *house* is a site's convention, which no schema shows: what makes a person `active`, and which column is meant by the
amount of an event. Questions are the same in all houses; plans differ if a question is about active people or amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from fedagentgym.base.errors import DataError, show_value
from fedagentgym.envs.reasoning.generators.problems import Form, ProblemSequence, split_words
from fedagentgym.envs.reasoning.pools import Cell
from fedagentgym.envs.records.domains import DOMAINS, STYLES, Column, Domain, Naming, Schema, Table
from fedagentgym.envs.records.plans import Condition, Having, Join, Order, Plan, Term, Value, rate_plan

HOUSES = 3
Size = Literal["tiny", "default"]
THRESHOLDS = (3, 6, 9, 12, 15, 18)
"""Positions of the numbers in questions, among those that a column can have. A site's own database has them in both sizes."""
OPERATORS = {"above": ">", "below": "<", "at least": ">=", "at most": "<="}
YEARS = (2021, 2022, 2023, 2024)
HAS, MEANS = ("a", "no"), ("average", "total")
AGGREGATES = {"average": "avg", "total": "sum", "largest": "max", "smallest": "min"}
LATE = "2023-07-01"


class RecordsTask(NamedTuple):
    """A task's payload: the database (a domain, or the name of a file), the kind of query, the question, and the gold.

    The gold of a generated question is its `template` with the `values` in it. The gold of a loaded question is `query`; its
    rows are compared in their order if `ordered`.
    """

    database: str
    kind: str
    question: str
    template: str = ""
    values: tuple[Value, ...] = ()
    query: str = ""
    ordered: bool = False
    hint: str = ""


class Asked(NamedTuple):
    """The words and the plan of a question."""

    text: str
    plan: Plan


class Choice(NamedTuple):
    """A gap for a value of a choice column: the role of its table, and its number among the table's choice columns."""

    role: str
    number: int

    def list_values(self, domain: Domain) -> Sequence[Value]:
        return _find_choice(getattr(domain, self.role), self.number).values


COMPARISON = tuple(OPERATORS)
"""The values of a gap for a comparison; the tiny form uses the first two."""


class Template(NamedTuple):
    """One sentence with gaps. `gaps` has the values that fill each gap, or the column with these values; `ask` gives the
    question and its plan in a house."""

    kind: str
    gaps: tuple[Choice | Sequence[Value], ...]
    ask: Callable[..., Asked]

    def list_ranges(self, domain: Domain, size: Size) -> tuple[Sequence[Value], ...]:
        """The values of each gap in a domain."""
        filled = (gap.list_values(domain) if isinstance(gap, Choice) else gap for gap in self.gaps)
        return tuple(values[:2] if size == "tiny" and values is COMPARISON else values for values in filled)


# ---- parts of questions -----------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A condition in words and as conditions of a plan."""

    text: str
    conditions: tuple[Condition, ...]


def _choose(table: Table, column: str, value: Value) -> Part:
    return Part(f"with {table.get(column).phrase} {value}", (Condition(f"{table.name}.{column}", "=", value),))


def _compare(table: Table, column: str, comparison: Value, place: Value) -> Part:
    found = table.get(column)
    least, step = found.values
    value = least + step * int(place)
    condition = Condition(f"{table.name}.{column}", OPERATORS[str(comparison)], value)
    return Part(f"with {found.phrase} {comparison} {value}", (condition,))


def _in_year(table: Table, column: str, year: Value) -> Part:
    path, first = f"{table.name}.{column}", int(year)
    conditions = (Condition(path, ">=", f"{first}-01-01"), Condition(path, "<", f"{first + 1}-01-01"))
    return Part(f"with {table.get(column).phrase} in {year}", conditions)


def _since(table: Table, column: str, year: Value) -> Part:
    condition = Condition(f"{table.name}.{column}", ">=", f"{year}-01-01")
    return Part(f"with {table.get(column).phrase} since {year}", (condition,))


def _join_parts(*parts: Part) -> Part:
    return Part(" and ".join(part.text for part in parts), tuple(one for part in parts for one in part.conditions))


def _is_active(domain: Domain, house: int) -> Condition:
    people = domain.people.name
    return (
        Condition(f"{people}.status", "=", "active"),
        Condition(f"{people}.left_on", "IS NULL"),
        Condition(f"{people}.last_seen", ">=", LATE),
    )[house]


def _meet(domain: Domain, table: Table) -> Join:
    """The join of events with their people or things."""
    events = domain.events.name
    return Join(table.name, f"{events}.{table.noun}_id", f"{table.name}.id")


def _first(table: Table, kind: str) -> str:
    """The first column of a kind that is never empty."""
    return next(column.name for column in table.columns if column.kind == kind and not column.nullable)


def _find_choice(table: Table, number: int) -> Column:
    return table.list_kind("choice")[number]


COUNT = Term("*", "count")


# ---- templates --------------------------------------------------------------------------------------------------------


def _describe(table: Table, choice: int, value: Value, comparison: Value, place: Value) -> Part:
    """A condition on a choice column and one on a number column."""
    return _join_parts(
        _choose(table, _find_choice(table, choice).name, value),
        _compare(table, _first(table, "number"), comparison, place),
    )


def _list_names(table: Table, part: Part) -> Asked:
    name = table.get(_first(table, "name"))
    text = f"List the {name.phrase} of each {table.noun} {part.text} ."
    return Asked(text, Plan(table.name, (Term(f"{table.name}.{name.name}"),), where=part.conditions))


def _count_rows(table: Table, part: Part, which: str = "") -> Asked:
    return Asked(
        f"How many {which}{table.name} {part.text} are there ?", Plan(table.name, (COUNT,), where=part.conditions)
    )


def _ask_filter(role: str, choice: int, domain: Domain, house: int, *values: Value) -> Asked:
    table = getattr(domain, role)
    return _list_names(table, _describe(table, choice, *values))


def _ask_count(role: str, choice: int, domain: Domain, house: int, *values: Value) -> Asked:
    table = getattr(domain, role)
    return _count_rows(table, _describe(table, choice, *values))


def _ask_nulls(role: str, choice: int, domain: Domain, house: int, has: Value, *values: Value) -> Asked:
    table = getattr(domain, role)
    part, empty = _describe(table, choice, *values), table.list_kind("date", nullable=True)[0]
    condition = Condition(f"{table.name}.{empty.name}", "IS NULL" if has == "no" else "IS NOT NULL")
    text = f"How many {table.name} {part.text} have {has} {empty.phrase} ?"
    return Asked(text, Plan(table.name, (COUNT,), where=(*part.conditions, condition)))


def _ask_dates(role: str, choice: int, domain: Domain, house: int, year: Value, *values: Value) -> Asked:
    table = getattr(domain, role)
    return _count_rows(
        table, _join_parts(_describe(table, choice, *values), _in_year(table, _first(table, "date"), year))
    )


def _ask_distinct(domain: Domain, house: int, status: Value, *values: Value) -> Asked:
    people = domain.people
    part = _join_parts(_choose(people, "status", status), _describe(people, 1, *values))
    text = f"Which different towns do the {people.name} {part.text} have ?"
    return Asked(text, Plan(people.name, (Term(f"{people.name}.town"),), where=part.conditions, distinct=True))


def _ask_join(role: str, choice: int, domain: Domain, house: int, value: Value, *values: Value) -> Asked:
    table, events = getattr(domain, role), domain.events
    theirs = _choose(table, _find_choice(table, choice).name, value)
    own = _compare(events, _first(events, "number"), *values)
    text = f"How many {events.name} {own.text} belong to {table.name} {theirs.text} ?"
    where = (*own.conditions, *theirs.conditions)
    return Asked(text, Plan(events.name, (COUNT,), (_meet(domain, table),), where))


def _ask_group(domain: Domain, house: int, aggregate: Value, *values: Value) -> Asked:
    people, events = domain.people, domain.events
    channel, number = _find_choice(events, 0), events.get(_first(events, "number"))
    theirs = _describe(people, 0, *values)
    text = (
        f"For each {channel.phrase} of the {events.name} of {people.name} {theirs.text} , give the {channel.phrase} and the"
        f" {aggregate} {number.phrase} ."
    )
    path = f"{events.name}.{channel.name}"
    select = (Term(path), Term(f"{events.name}.{number.name}", AGGREGATES[str(aggregate)]))
    return Asked(text, Plan(events.name, select, (_meet(domain, people),), theirs.conditions, (path,)))


def _ask_having(
    role: str, grouped: int, chosen: int | None, domain: Domain, house: int, least: Value, value: Value
) -> Asked:
    """Group rows by one choice column: those with a value of another choice column, or, if `chosen` is None, those of a year."""
    table = getattr(domain, role)
    choice = _find_choice(table, grouped)
    if chosen is None:
        part = _in_year(table, _first(table, "date"), value)
    else:
        part = _choose(table, _find_choice(table, chosen).name, value)
    path = f"{table.name}.{choice.name}"
    text = f"Which {choice.phrase} is that of more than {least} {table.name} {part.text} ?"
    having = (Having(COUNT, ">", least),)
    return Asked(text, Plan(table.name, (Term(path),), where=part.conditions, group=(path,), having=having))


def _ask_top(
    role: str, choice: int, domain: Domain, house: int, count: Value, most: Value, value: Value, year: Value
) -> Asked:
    table = getattr(domain, role)
    name, number = table.get(_first(table, "name")), table.get(_first(table, "number"))
    date = _first(table, "date")
    part = _join_parts(_choose(table, _find_choice(table, choice).name, value), _since(table, date, year))
    text = (
        f"Of the {table.name} {part.text} , list the {name.phrase} of the {count} with the {most} {number.phrase} , the {most}"
        f" first and equal ones by {name.phrase} ."
    )
    order = (Order(Term(f"{table.name}.{number.name}"), most == "largest"), Order(Term(f"{table.name}.{name.name}")))
    select = (Term(f"{table.name}.{name.name}"),)
    return Asked(text, Plan(table.name, select, where=part.conditions, order=order, limit=int(count)))


def _ask_nested(domain: Domain, house: int, comparison: Value, value: Value, status: Value, inner: Value) -> Asked:
    people = domain.people
    number, others = people.get(_first(people, "number")), _choose(people, _find_choice(people, 1).name, inner)
    path = f"{people.name}.{number.name}"
    average = Plan(people.name, (Term(path, "avg"),), where=others.conditions)
    text = f"with {number.phrase} {comparison} the average {number.phrase} of all {people.name} {others.text}"
    nested = Part(text, (Condition(path, OPERATORS[str(comparison)], inner=average),))
    return _list_names(people, _join_parts(_choose(people, "town", value), _choose(people, "status", status), nested))


def _ask_missing(domain: Domain, house: int, has: Value, kind: Value, *values: Value) -> Asked:
    things, events = domain.things, domain.events
    part, own = _choose(things, _find_choice(things, 0).name, kind), _describe(events, 0, *values)
    inner = Plan(events.name, (Term(f"{events.name}.{things.noun}_id"),), where=own.conditions)
    condition = Condition(f"{things.name}.id", "NOT IN" if has == "no" else "IN", inner=inner)
    text = f"{part.text} that has {has} {events.noun} {own.text}"
    return _list_names(things, Part(text, (*part.conditions, condition)))


def _ask_active(choice: int, domain: Domain, house: int, *values: Value) -> Asked:
    part = _describe(domain.people, choice, *values)
    return _count_rows(
        domain.people, part._replace(conditions=(*part.conditions, _is_active(domain, house))), "active "
    )


def _ask_amount(domain: Domain, house: int, aggregate: Value, *values: Value) -> Asked:
    events = domain.events
    part = _describe(events, 0, *values)
    text = f"What is the {aggregate} {domain.amount} of the {events.name} {part.text} ?"
    term = Term(f"{events.name}.{domain.amounts[house]}", AGGREGATES[str(aggregate)])
    return Asked(text, Plan(events.name, (term,), where=part.conditions))


def _ask_active_amount(domain: Domain, house: int, aggregate: Value, channel: Value, town: Value) -> Asked:
    events, people = domain.events, domain.people
    own, theirs = _choose(events, _find_choice(events, 0).name, channel), _choose(people, "town", town)
    text = f"What is the {aggregate} {domain.amount} of the {events.name} {own.text} of active {people.name} {theirs.text} ?"
    term = Term(f"{events.name}.{domain.amounts[house]}", AGGREGATES[str(aggregate)])
    where = (*own.conditions, *theirs.conditions, _is_active(domain, house))
    return Asked(text, Plan(events.name, (term,), (_meet(domain, people),), where))


def _list_templates() -> Iterator[tuple[str, Template]]:
    numbers = COMPARISON, THRESHOLDS
    for role, choice in (("people", 0), ("people", 1), ("things", 0), ("events", 0)):
        chosen = Choice(role, choice)
        both = chosen, *numbers
        if role != "events":
            yield f"filter-{role}-{choice}", Template("filter", both, partial(_ask_filter, role, choice))
            ranked = (2, 3, 5), ("largest", "smallest"), chosen, YEARS
            yield f"top-{role}-{choice}", Template("top", ranked, partial(_ask_top, role, choice))
        yield f"count-{role}-{choice}", Template("count", both, partial(_ask_count, role, choice))
        if role != "things":
            yield f"nulls-{role}-{choice}", Template("nulls", (HAS, *both), partial(_ask_nulls, role, choice))
        yield f"dates-{role}-{choice}", Template("dates", (YEARS, *both), partial(_ask_dates, role, choice))
    town, grade, status = (Choice("people", number) for number in range(3))
    kind, channel = Choice("things", 0), Choice("events", 0)
    yield "distinct", Template("distinct", (status, grade, *numbers), _ask_distinct)
    for chosen in (town, grade, kind):
        name = f"join-{chosen.role}-{chosen.number}"
        yield name, Template("join", (chosen, *numbers), partial(_ask_join, *chosen))
    yield "group", Template("group", (tuple(AGGREGATES), town, *numbers), _ask_group)
    for by, number in ((0, 1), (1, 0), (0, 2), (1, 2)):
        counted = partial(_ask_having, "people", by, number)
        yield f"having-people-{by}-{number}", Template("having", (range(1, 11), Choice("people", number)), counted)
    yield "having-events", Template("having", (range(1, 11), YEARS), partial(_ask_having, "events", 0, None))
    yield "nested", Template("nested", (COMPARISON, town, status, grade), _ask_nested)
    yield "missing", Template("missing", (HAS, kind, channel, *numbers), _ask_missing)
    for chosen in (town, grade):
        yield f"active-{chosen.number}", Template("rule", (chosen, *numbers), partial(_ask_active, chosen.number))
    yield "amount", Template("rule", (MEANS, channel, *numbers), _ask_amount)
    yield "active-amount", Template("rule", (MEANS, channel, town), _ask_active_amount)


TEMPLATES: Mapping[str, Template] = dict(_list_templates())
UNSEEN_TEMPLATES = frozenset(
    split_words("filter-people-1 top-people-1 count-things-0 nulls-people-1 dates-things-0 join-things-0 active-1")
)
"""The templates whose questions are in the split `unseen` only."""
KINDS = tuple(dict.fromkeys(template.kind for template in TEMPLATES.values()))
DOMAINS_OF: Mapping[Size, tuple[str, ...]] = {"default": tuple(DOMAINS), "tiny": ("clinic", "library", "shop")}
TINY_KINDS = ("filter", "count", "nulls", "join", "group", "rule")


def list_kinds(size: Size) -> tuple[str, ...]:
    return TINY_KINDS if size == "tiny" else KINDS


# ---- from templates to tasks ------------------------------------------------------------------------------------------


def make_task(domain: str, name: str, *values: Value) -> RecordsTask:
    template = TEMPLATES[name]
    text = template.ask(DOMAINS[domain], 0, *values).text
    return RecordsTask(domain, template.kind, text, name, values)


def make_cells(size: Size, seed: int, categories: Literal["domain", "kind"], *, unseen: bool = False) -> list[Cell]:
    """A cell for each domain and kind of question, from the unseen templates or from all others."""
    cells = []
    for number, kind in enumerate(list_kinds(size)):
        for domain in DOMAINS_OF[size]:
            forms = list_forms(domain, kind, size, (unseen,))
            if not forms:
                continue
            deck = ProblemSequence(forms, seed, "records", size, domain, kind, *["unseen"] * unseen)
            cells.append(Cell(domain if categories == "domain" else kind, 1 + number, deck))
    return cells


def list_forms(domain: str, kind: str, size: Size, unseen: Sequence[bool] = (False, True)) -> list[Form[RecordsTask]]:
    """The forms of a kind in a domain; `unseen` has True for the unseen templates and False for the others."""
    return [
        Form(template.list_ranges(DOMAINS[domain], size), partial(make_task, domain, name))
        for name, template in TEMPLATES.items()
        if template.kind == kind and (name in UNSEEN_TEMPLATES) in unseen
    ]


@lru_cache(maxsize=20_000)
def find_plan(task: RecordsTask, house: int) -> Plan:
    """The plan of a generated question in a house."""
    return TEMPLATES[task.template].ask(DOMAINS[task.database], house, *task.values).plan


MAX_POINTS = 8


def rate_task(task: RecordsTask) -> float:
    """Hardness in 0..1 by the structure of the query."""
    return min(1.0, rate_plan(find_plan(task, 0)) / MAX_POINTS)


def parse_task(payload: Any) -> RecordsTask:
    """The record of a payload, which may be a plain mapping with `database`, `question` and `query`."""
    if isinstance(payload, RecordsTask):
        return payload
    if isinstance(payload, Mapping) and isinstance(payload.get("question"), str):
        known = {name: payload[name] for name in RecordsTask._fields if name in payload}
        task = RecordsTask(**{"database": "", "kind": "own", **known, "values": tuple(known.get("values", ()))})
        texts = (task.database, task.kind, task.question, task.template, task.query, task.hint)
        if all(isinstance(text, str) for text in texts) and isinstance(task.ordered, bool) and _can_ask(task):
            return task
    raise DataError(
        "a payload of fedagentgym/Records-v0 has texts 'database', 'question' and 'query', or a template with its values, got "
        f"{show_value(payload)}"
    )


def _can_ask(task: RecordsTask) -> bool:
    if not task.template:
        return not task.values
    if task.template not in TEMPLATES or task.database not in DOMAINS:
        return False
    try:
        find_plan(task, 0)
    except (KeyError, TypeError, ValueError, IndexError):
        return False
    return True


def strip_task(payload: Any) -> RecordsTask:
    """The task without its gold."""
    return parse_task(payload)._replace(template="", values=(), query="", ordered=False)


SQL_WORDS = """SELECT DISTINCT FROM JOIN ON WHERE AND GROUP BY HAVING ORDER DESC LIMIT IS NOT NULL IN count avg sum max
    min active"""


@lru_cache(maxsize=2)
def list_words(size: Size) -> tuple[str, ...]:
    """Texts with every word of the questions, and of the names and clauses at every site."""
    texts: dict[str, None] = dict.fromkeys(split_words(SQL_WORDS))
    texts |= dict.fromkeys((*AGGREGATES, *OPERATORS))
    for name in DOMAINS_OF[size]:
        domain = DOMAINS[name]
        texts |= dict.fromkeys((name, domain.amount))
        for table in domain.tables.values():
            texts |= dict.fromkeys((table.name, table.noun))
            for column in table.columns:
                texts |= dict.fromkeys((column.phrase, *(value for value in column.values if isinstance(value, str))))
        for style in STYLES:
            texts |= dict.fromkeys(Schema(domain, Naming(style, True)).make_statements())
        for kind in list_kinds(size):
            texts |= dict.fromkeys(_take_first(form).question for form in list_forms(name, kind, size))
    return tuple(texts)


def _take_first(form: Form[RecordsTask]) -> RecordsTask:
    task = form.make_problem(0)
    assert task is not None
    return task
