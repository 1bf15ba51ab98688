"""The tiny form: a query is chosen clause by clause, from the clauses of right and misled queries for tiny questions."""

from __future__ import annotations

import re
from functools import lru_cache

from fedagentgym.envs.records.domains import Schema
from fedagentgym.envs.records.plans import MISCONCEPTIONS, write_clauses
from fedagentgym.envs.records.questions import HOUSES, find_plan, list_forms, list_kinds

RUN, CLEAR, SUBMIT = "run", "clear", "submit"
_TABLE = re.compile(r"\b(\w+)\.\w+")
_FROM = re.compile(r"(?:FROM|JOIN) (\w+)")


class ClauseBook:
    """The clauses of a domain's tiny questions at a site, and the order in which they can be chosen."""

    def __init__(self, schema: Schema) -> None:
        clauses: dict[str, None] = {}
        domain = schema.domain.name
        for kind in list_kinds("tiny"):
            for form in list_forms(domain, kind, "tiny"):
                for number in range(form.size):
                    task = form.make_problem(number)
                    for plan in (find_plan(task, house) for house in range(HOUSES)) if task is not None else ():
                        others = (mislead(plan) for mislead in MISCONCEPTIONS.values())
                        for one in (plan, *others):
                            clauses.update(dict.fromkeys(write_clauses(one, schema) if one is not None else ()))
        known = sorted(clauses)
        self.selects = tuple(clause for clause in known if clause.startswith("SELECT "))
        self._joins = tuple(clause for clause in known if clause.startswith("JOIN "))
        self._wheres = tuple(clause for clause in known if clause.startswith("WHERE "))
        self._groups = tuple(clause for clause in known if clause.startswith("GROUP BY "))
        self.tables = {clause: _list_tables(clause) for clause in known}
        self.list_actions = lru_cache(maxsize=4096)(self._list_actions)

    def _list_actions(self, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """The actions after these clauses: every further clause that fits their tables, `run`, `clear` and `submit`."""
        if not chosen:
            return self.selects
        there = {table for clause in chosen for table in _FROM.findall(clause)}
        words = {clause.partition(" ")[0] for clause in chosen}
        following: list[str] = []
        if not words & {"WHERE", "GROUP"}:
            following += [clause for clause in self._joins if self._fits_join(clause, there)]
        if "GROUP" not in words:
            following += [
                one for one in (*self._wheres, *self._groups) if self.tables[one] <= there and one not in chosen
            ]
        return (*following, RUN, CLEAR, SUBMIT)

    def _fits_join(self, clause: str, there: set[str]) -> bool:
        """True if a join leads from tables of the query to a table that it does not have."""
        (added,) = _FROM.findall(clause)
        return added not in there and self.tables[clause] - {added} <= there


def _list_tables(clause: str) -> frozenset[str]:
    return frozenset(_TABLE.findall(clause))
