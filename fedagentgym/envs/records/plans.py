"""Queries as plain values: written for the names of any site, clause by clause, and changed into wrong ones.

A `Plan` names columns by their paths in the domain (`loans.branch`). `write_clauses` gives its clauses in order, with the
joins that the site's tables need; `write_query` gives the whole statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fedagentgym.envs.records.domains import Domain, Schema

Value = str | int


class Term(NamedTuple):
    """A value that is selected, ordered by, or compared after grouping: a column, or a function of one (`*` for all rows)."""

    column: str
    function: str = ""
    distinct: bool = False


class Condition(NamedTuple):
    """A comparison of a column with a value, with nothing (`is null`), or with the result of another plan."""

    column: str
    operator: str
    value: Value | None = None
    inner: Plan | None = None


class Join(NamedTuple):
    """A further table, joined where two columns are equal."""

    table: str
    left: str
    right: str


class Having(NamedTuple):
    """A comparison of a group's value."""

    term: Term
    operator: str
    value: Value


class Order(NamedTuple):
    """A term to order by."""

    term: Term
    descending: bool = False


class Plan(NamedTuple):
    """A query over the tables of a domain."""

    table: str
    select: tuple[Term, ...]
    joins: tuple[Join, ...] = ()
    where: tuple[Condition, ...] = ()
    group: tuple[str, ...] = ()
    having: tuple[Having, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int | None = None
    distinct: bool = False


# ---- writing ----------------------------------------------------------------------------------------------------------


def write_query(plan: Plan, schema: Schema) -> str:
    """The statement of a plan for a site.

    >>> from fedagentgym.envs.records.domains import DOMAINS, Naming
    >>> write_query(Plan("loans", (Term("*", "count"),), where=(Condition("loans.days", ">", 9),)),
    ...             Schema(DOMAINS["library"], Naming()))
    'SELECT count(*) FROM loans WHERE loans.days > 9'
    """
    return join_clauses(write_clauses(plan, schema))


def join_clauses(clauses: Sequence[str]) -> str:
    """One statement from clauses; after the first `WHERE` or `HAVING`, `AND` takes its place."""
    written: list[str] = []
    for clause in clauses:
        word, _, rest = clause.partition(" ")
        repeated = word in ("WHERE", "HAVING") and any(one.startswith(f"{word} ") for one in written)
        written.append(f"AND {rest}" if repeated else clause)
    return " ".join(written)


def write_clauses(plan: Plan, schema: Schema) -> tuple[str, ...]:
    """The clauses of a plan for a site, in order."""
    selected = ", ".join(_write_term(term, schema) for term in plan.select)
    clauses = [f"SELECT {'DISTINCT ' * plan.distinct}{selected} FROM {schema.name_table(plan.table)}"]
    apart = {path.partition(".")[0] for path in _list_columns(plan) if schema.is_apart(path)}
    for table in (plan.table, *(join.table for join in plan.joins)):
        for join in plan.joins:
            if join.table == table:
                left, right = schema.write(join.left), schema.write(join.right)
                clauses.append(f"JOIN {schema.name_table(table)} ON {left} = {right}")
        if table in apart:
            second = schema.name_second(table)
            link = f"{second}.{schema.name_link(table)}"
            clauses.append(f"JOIN {second} ON {link} = {schema.write(f'{table}.id')}")
    clauses += [f"WHERE {_write_condition(one, schema)}" for one in plan.where]
    if plan.group:
        clauses.append(f"GROUP BY {', '.join(map(schema.write, plan.group))}")
    for having in plan.having:
        clauses.append(f"HAVING {_write_term(having.term, schema)} {having.operator} {write_value(having.value)}")
    if plan.order:
        orders = [_write_term(order.term, schema) + " DESC" * order.descending for order in plan.order]
        clauses.append(f"ORDER BY {', '.join(orders)}")
    if plan.limit is not None:
        clauses.append(f"LIMIT {plan.limit}")
    return tuple(clauses)


def write_value(value: Value | None) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else str(value)


def _write_term(term: Term, schema: Schema) -> str:
    column = "*" if term.column == "*" else schema.write(term.column)
    return f"{term.function}({'DISTINCT ' * term.distinct}{column})" if term.function else column


def _write_condition(condition: Condition, schema: Schema) -> str:
    column = schema.write(condition.column)
    if condition.inner is not None:
        return f"{column} {condition.operator} ({write_query(condition.inner, schema)})"
    if condition.value is None:
        return f"{column} {condition.operator}"
    return f"{column} {condition.operator} {write_value(condition.value)}"


def _list_columns(plan: Plan) -> Iterator[str]:
    """The columns that a plan names outside of inner plans and joins."""
    terms = [*plan.select, *(one.term for one in plan.having), *(one.term for one in plan.order)]
    yield from (term.column for term in terms if term.column != "*")
    yield from (condition.column for condition in plan.where)
    yield from plan.group


def rate_plan(plan: Plan) -> int:
    """Hardness by structure: a point for each join, further condition, column of `group by` and `having`, one for any
    order, one for `distinct`, and for each inner plan two points and its own."""
    inner = sum(2 + rate_plan(one.inner) for one in plan.where if one.inner is not None)
    return (
        len(plan.joins)
        + max(0, len(plan.where) - 1)
        + len(plan.group)
        + len(plan.having)
        + bool(plan.order)
        + plan.distinct
        + inner
    )


# ---- wrong plans ------------------------------------------------------------------------------------------------------

COMPARISONS = (">", "<", ">=", "<=", "=", "<>")
OPPOSITES = {"IN": "NOT IN", "NOT IN": "IN", "IS NULL": "IS NOT NULL", "IS NOT NULL": "IS NULL"}
AGGREGATES = ("sum", "avg", "max", "min")


def mutate_plan(plan: Plan, domain: Domain) -> list[Plan]:
    """Plans with one change in a join, condition, aggregate, order, limit, distinct, column or group; each differs from
    the plan."""
    made: list[Plan] = []
    for at, join in enumerate(plan.joins):
        made.append(plan._replace(joins=_put(plan.joins, at, misjoin(join))))
    for at, condition in enumerate(plan.where):
        made.append(plan._replace(where=plan.where[:at] + plan.where[at + 1 :]))
        made += [plan._replace(where=_put(plan.where, at, other)) for other in _change_condition(condition, domain)]
    made += [plan._replace(where=(*plan.where, more)) for more in _list_further_conditions(plan, domain)]
    for at, term in enumerate(plan.select):
        made += [plan._replace(select=_put(plan.select, at, other)) for other in _change_term(term, plan.table, domain)]
    made.append(plan._replace(select=(*plan.select, Term(f"{plan.table}.id"))))
    if len(plan.select) > 1:
        made += [plan._replace(select=plan.select[:-1]), plan._replace(select=plan.select[1:])]
    for at, having in enumerate(plan.having):
        made.append(plan._replace(having=plan.having[:at] + plan.having[at + 1 :]))
        others = [having._replace(operator=operator) for operator in COMPARISONS]
        if isinstance(having.value, int):
            others += [having._replace(value=having.value + way) for way in (1, -1)]
        made += [plan._replace(having=_put(plan.having, at, other)) for other in others]
    for at, order in enumerate(plan.order):
        made.append(plan._replace(order=_put(plan.order, at, order._replace(descending=not order.descending))))
        made.append(plan._replace(order=plan.order[:at] + plan.order[at + 1 :]))
    if plan.limit is not None:
        made += [plan._replace(limit=limit) for limit in (plan.limit + 1, plan.limit - 1, None)]
    if plan.group:
        made.append(plan._replace(group=(), having=()))
        made += [plan._replace(group=(other,)) for other in _list_alike(plan.group[0], domain)]
    made.append(plan._replace(distinct=not plan.distinct))
    return [one for number, one in enumerate(made) if one != plan and one not in made[:number]]


def _change_condition(condition: Condition, domain: Domain) -> list[Condition]:
    """The condition with another operator, value, column, or inner plan."""
    column = domain.get_column(condition.column)
    if condition.operator in OPPOSITES:
        changed = [condition._replace(operator=OPPOSITES[condition.operator])]
    else:
        operators = ("=", "<>") if column.kind == "choice" else COMPARISONS
        changed = [condition._replace(operator=operator) for operator in operators]
    if column.kind == "choice":
        changed += [condition._replace(value=value) for value in column.values]
    if column.kind == "number" and isinstance(condition.value, int):
        changed += [condition._replace(value=condition.value + way * column.values[1]) for way in (1, -1, 2, -2)]
    if column.kind == "date" and isinstance(condition.value, str):
        year, rest = int(condition.value[:4]), condition.value[4:]
        changed += [condition._replace(value=f"{year + way}{rest}") for way in (1, -1)]
    changed += [condition._replace(column=other) for other in _list_alike(condition.column, domain)]
    if condition.inner is not None:  # an inner plan keeps one column, and `DISTINCT` would make no difference in it
        mutated = mutate_plan(condition.inner, domain)
        inner = (one for one in mutated if len(one.select) == 1 and not one.distinct)
        changed += [condition._replace(inner=one) for one in inner]
    return changed


def _list_further_conditions(plan: Plan, domain: Domain) -> list[Condition]:
    """Conditions on unused columns: a choice has its first value, and a nullable column is not empty."""
    used = {condition.column for condition in plan.where}
    found = []
    for name in (plan.table, *(join.table for join in plan.joins)):
        table = domain.tables[name]
        paths = {f"{name}.{column.name}": column for column in table.columns}
        unused = {path: column for path, column in paths.items() if path not in used}
        found += [Condition(path, "=", column.values[0]) for path, column in unused.items() if column.kind == "choice"]
        found += [Condition(path, "IS NOT NULL") for path, column in unused.items() if column.nullable]
    return found


def _list_alike(path: str, domain: Domain) -> list[str]:
    """The other columns of the same kind in a column's table."""
    table, _, name = path.partition(".")
    kind = domain.get_column(path).kind
    return [f"{table}.{one.name}" for one in domain.tables[table].columns if one.kind == kind and one.name != name]


def _change_term(term: Term, table: str, domain: Domain) -> list[Term]:
    """The term with another function or column."""
    if term.column == "*":
        columns = domain.tables[table].columns
        counted = [column for column in columns if column.kind == "reference"] or columns[2:3]
        summed = next(column for column in columns if column.kind == "number")
        distinct = [Term(f"{table}.{column.name}", term.function, True) for column in counted]
        return [*distinct, Term(f"{table}.{summed.name}", "sum"), Term(f"{table}.{summed.name}", "max")]
    if not term.function:
        where, _, column = term.column.partition(".")
        return [Term(f"{where}.{other.name}") for other in domain.tables[where].columns if other.name != column]
    changed = [term._replace(function=function) for function in (*AGGREGATES, "count")]
    changed += [term._replace(column=other) for other in _list_alike(term.column, domain)]
    return [*changed, term._replace(distinct=not term.distinct)] if term.function in ("sum", "avg") else changed


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def misjoin(join: Join) -> Join:
    """The join over the wrong key: the first table's own id in place of its reference."""
    table = join.left.partition(".")[0]
    return join._replace(left=f"{table}.id") if join.left != f"{table}.id" else join._replace(right=f"{join.table}.id")


# ---- misconceptions ---------------------------------------------------------------------------------------------------


def take_wrong_key(plan: Plan) -> Plan | None:
    """The plan with its first join over the wrong key; None without a join."""
    return plan._replace(joins=_put(plan.joins, 0, misjoin(plan.joins[0]))) if plan.joins else None


def forget_filter(plan: Plan) -> Plan | None:
    """The plan without its last condition; None if it has none."""
    return plan._replace(where=plan.where[:-1]) if plan.where else None


def take_wrong_aggregate(plan: Plan) -> Plan | None:
    """The plan with the sum for the average, the smallest for the largest, or the reverse; None without such a function."""
    other = {"sum": "avg", "avg": "sum", "max": "min", "min": "max"}
    for at, term in enumerate(plan.select):
        if term.function in other:
            return plan._replace(select=_put(plan.select, at, term._replace(function=other[term.function])))
    return None


MISCONCEPTIONS: dict[str, Callable[[Plan], Plan | None]] = {
    "wrong_key": take_wrong_key,
    "forgotten_filter": forget_filter,
    "wrong_aggregate": take_wrong_aggregate,
}
"""Name -> function that gives the plan as a misled player sees it; None if the misconception changes nothing."""
