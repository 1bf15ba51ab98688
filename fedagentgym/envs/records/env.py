"""`fedagentgym/Records-v0`: questions over a client's SQLite database, in several turns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.misconceptions import MisleadableEnv, Procedures
from fedagentgym.envs.options import EnvOptions, local, play, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Expert, Handicap
from fedagentgym.envs.reasoning.pools import PoolGenerator
from fedagentgym.envs.records.clauses import CLEAR, RUN, SUBMIT, ClauseBook
from fedagentgym.envs.records.domains import STYLES, Naming, Schema, Style
from fedagentgym.envs.records.grading import RECORDS_VERIFIER_VERSION, ColumnOrders, keep_orders
from fedagentgym.envs.records.guard import MAX_ROWS, MAX_STEPS, Budget, Database, QueryError, Result, shorten, unquote
from fedagentgym.envs.records.loading import load_records, open_copies, open_file
from fedagentgym.envs.records.plans import MISCONCEPTIONS, Plan, join_clauses, write_clauses, write_query
from fedagentgym.envs.records.questions import (
    DOMAINS_OF,
    HOUSES,
    RecordsTask,
    find_plan,
    list_words,
    make_cells,
    parse_task,
    rate_task,
    strip_task,
)
from fedagentgym.envs.records.sites import Site, open_checks, open_site
from fedagentgym.envs.tasks import UNSEEN, Task
from fedagentgym.envs.variants import ChosenVariant, ClientVariant, Variant
from fedagentgym.envs.view import Episode, View

GENERATOR_VERSION = 1
SIZES: Mapping[str, Mapping[str, int]] = {
    "default": {"train": 8_000, "val": 500, "test": 1_000, "warmup": 2_000, "unseen": 1_000},
    "tiny": {"train": 1_000, "val": 180, "test": 300, "warmup": 600, "unseen": 300},
}
MAX_CELL, MAX_SHOWN, MAX_VERDICTS = 60, 4_000, 20_000
DESCRIBE, QUERY, ANSWER = "describe", "query", "answer"
CALLS = (f"{DESCRIBE}[<table>]", f"{QUERY}[<sql>]", f"{ANSWER}[<sql>]")
RIGHT, WRONG, OVER = "Right .", "The answer is not right .", "This task is over ."
UNKNOWN, NOTHING = "That is not understood .", "Nothing is chosen ."
NOT_EXECUTED, EXECUTED = {"executes": 0.0}, {"executes": 1.0}
RIGHT_WAY, WRONG_RULE = "right", "wrong_rule"
WRONG_WAYS = (*MISCONCEPTIONS, WRONG_RULE)
"""The misconceptions: those of plans, and the convention of another house."""


# ---- how clients differ -----------------------------------------------------------------------------------------------


class OwnSchema(ClientVariant):
    """The style of the names of the site's tables and columns, and whether a part of each table is in a second table."""

    style: Style
    split: bool


def _check_generated(options: EnvOptions) -> None:
    """Raise if the databases are not generated, so that no variant can change them."""
    if getattr(options, "data", None) is not None:
        raise OptionError("the variants schema, rows and rules are for generated databases: leave them out, or data=")


class SchemaVariant(ChosenVariant):
    """Clients name tables and columns in different styles, and some keep a part of each table in a second table."""

    kind = "schema"
    client_variant = OwnSchema
    possibilities = tuple(OwnSchema(style=style, split=split) for split in (False, True) for style in STYLES)

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        _check_generated(options)


class OwnRows(ClientVariant):
    """A population: other people, things and events, with other frequencies."""

    population: int = Field(ge=1, strict=True)


class RowsVariant(Variant):
    """Every client has another population; the right queries are the same."""

    kind = "rows"
    client_variant = OwnRows

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        _check_generated(options)

    def draw(self, seed: int, client: int) -> OwnRows:
        return OwnRows(population=1 + derive(seed, "world", self.kind, client) % 1_000_000_000)


class OwnRules(ClientVariant):
    """A house: its convention about active people and about amounts."""

    house: int = Field(ge=0, lt=HOUSES, strict=True)


class RulesVariant(ChosenVariant):
    """Clients differ in who is active and which column holds the amount; only the grading of answers shows it.

    Clients 0 to 2 are of three different houses, as are clients 3 to 5, and so on. So even a few clients have different rules.
    """

    kind = "rules"
    client_variant = OwnRules
    possibilities = tuple(OwnRules(house=house) for house in range(HOUSES))

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        _check_generated(options)

    def draw(self, seed: int, client: int) -> ClientVariant:
        choices = self.list_choices()
        row, place = divmod(client, len(choices))
        return stream(seed, "world", self.kind, "row", row).shuffled(choices)[place]


# ---- the environment --------------------------------------------------------------------------------------------------


class RecordsState(NamedTuple):
    """A running episode: the task, the chosen clauses, the number of actions, and whether it is over."""

    task: RecordsTask
    clauses: tuple[str, ...] = ()
    turn: int = 0
    over: bool = False


class RecordsOptions(EnvOptions):
    """The databases and questions, and how queries are run."""

    size: Literal["default", "tiny"] = task(
        "default",
        description="default: five domains, thousands of rows, free SQL; tiny: three domains, queries chosen clause by clause",
    )
    categories: Literal["domain", "kind"] = task(
        "domain", description="category of a task: domain, its domain or database; kind, its kind of query"
    )
    seed: int = task(
        0,
        description="seed of generated rows and of the order of their questions, and of `train_tasks` in your own data",
    )
    train_tasks: int | None = task(
        None,
        ge=1,
        description="number of training tasks, drawn with the seed from your own data; null: all of your own, or the usual"
        " number of generated ones",
    )
    data: str | None = local(
        None,
        description="folder of your own databases: Spider's or BIRD's layout, or SQLite files with a questions.jsonl; null:"
        " generated databases",
    )
    work: int = play(
        MAX_STEPS // 1_000_000,
        ge=1,
        le=10_000,
        description="limit of a query: this many million steps of SQLite's virtual machine, and a 30th of a second per million",
    )
    rows_shown: int = play(10, ge=1, le=100, description="rows of a result that are shown")


class RecordsEnv(MisleadableEnv[RecordsOptions]):
    """Answer questions over a client's own SQLite database.

    **Tasks.** Generated: five domains (the categories; clinic, library, shop, school, bank), each with three tables and
    thousands of rows, and twelve kinds of questions by template; `size="tiny"` has three domains and six kinds. The split
    `unseen` has the templates that no other split has. Loaded: `data=` a folder of databases with questions.
    **Actions.** `describe[table]`, `query[SELECT ...]` and, at last, `answer[SELECT ...]`: the answer is a query. With
    `size="tiny"` a query is chosen clause by clause, and `run`, `clear` and `submit` try, drop and answer it.
    **Observations.** The question and the names of the tables; a table's definition and first rows; the rows of a
    query, or one sentence that explains its fault.
    **Reward.** 1 if the answer's rows are those of the right query on the client's database and on many others with
    the same tables and other rows, else 0. Components: `accuracy/records`, `executes` (the query ran) and `brevity` (the
    share of turns that are left after the answer).
    **Queries** are read-only: only `SELECT`, only listed functions, and limits on length, steps, memory and rows.
    **Variants.** `schema`: other names, and tables in two parts; `rows`: another population; `rules`: another
    convention about who is active and which column holds the amount.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Records-v0"
    payload_type = RecordsTask
    role = "You answer questions about the records of a site with SQL queries on its SQLite database."
    action_help = (
        "describe[table]: show the definition and the first rows of a table.\n"
        "query[SELECT ...]: run a query and show its rows.\n"
        "answer[SELECT ...]: give the query whose rows answer the question. This ends the task."
    )
    splits = ("train", "val", "test", "warmup", UNSEEN)
    evaluation_splits = ("val", "test", UNSEEN)
    default_max_turns = 12
    shares_pools = True
    variants = (SchemaVariant, RowsVariant, RulesVariant)
    reward_names = ("accuracy/records", "executes", "brevity")

    def set_up(self) -> None:
        chosen, own = self.options, self.variant
        self._loaded = chosen.data is not None
        if self._loaded and chosen.size == "tiny":
            raise OptionError("size=tiny is for generated databases: leave it out, or data=")
        if isinstance(own, OwnSchema | OwnRows | OwnRules):
            _check_generated(chosen)
        self._tiny = chosen.size == "tiny"
        self.handicap = Handicap(error=0.32 if self._tiny else 0.5, turns=12)
        self._naming = Naming(own.style, own.split) if isinstance(own, OwnSchema) else Naming()
        self._population = own.population if isinstance(own, OwnRows) else 0
        self._house = own.house if isinstance(own, OwnRules) else 0
        self._recall = lru_cache(maxsize=MAX_VERDICTS)(self._compare)
        if self._tiny:
            self.action_help = (
                "Choose the clauses of a query one after the other, as they are listed.\n"
                f"{RUN}: show the rows of the query.\n{CLEAR}: drop all clauses.\n{SUBMIT}: answer with the query."
            )

    def load_pool(self, split: str) -> TaskPool:
        chosen = self.options
        if chosen.data is not None:
            return load_records(
                Path(chosen.data), split, self.splits, chosen.categories, self.id, chosen.train_tasks, chosen.seed
            )
        sizes = dict(SIZES[chosen.size])
        if chosen.train_tasks is not None:
            sizes["train"] = chosen.train_tasks
        source = {"generator": "records", "version": GENERATOR_VERSION, "size": chosen.size, "seed": chosen.seed}
        if chosen.categories != "domain":
            source["categories"] = chosen.categories
        make = partial(make_cells, chosen.size, chosen.seed, chosen.categories)
        seen = PoolGenerator(self.id, make(), sizes, source, strip_task, rate_task)
        unseen = PoolGenerator(self.id, make(unseen=True), sizes, source, strip_task, rate_task, (UNSEEN,))
        if split == "all":
            return join_pools(seen.make_pool("all"), unseen.make_pool(UNSEEN))
        return (unseen if split == UNSEEN else seen).make_pool(split)

    def get_verifier_version(self) -> str:
        return RECORDS_VERIFIER_VERSION

    def goal(self, task: Task) -> str:
        return parse_task(task.payload).question

    # ---- the course of an episode -------------------------------------------------------------------------------

    def begin(self, task: Task, seed: int) -> tuple[RecordsState, View]:
        record = parse_task(task.payload) if task.graded else strip_task(task.payload)
        state = RecordsState(record)
        said = " ".join(filter(None, (record.question, record.hint)))
        if self._tiny:
            return state, View(said, self._book(record).list_actions(()))
        tables = ", ".join(self._open(record.database).statements)
        return state, View(f"{said}\nTables: {tables}", CALLS)

    def advance(self, state: RecordsState, action: str) -> tuple[RecordsState, View]:
        if state.over:
            return state, View(OVER, CALLS, done=True, valid=False)
        state = state._replace(turn=state.turn + 1)
        if self._tiny:
            return self._choose(state, action.strip())
        name, bracket, rest = action.strip().partition("[")
        if name not in (DESCRIBE, QUERY, ANSWER) or not bracket or not rest.endswith("]"):
            return state, View(UNKNOWN, CALLS, valid=False)
        argument = rest[:-1]
        if name == ANSWER:
            return self._answer(state, argument)
        if name == QUERY:
            said, rewards = self._show_query(state.task, argument)
            return state, View(said, CALLS, rewards=rewards)
        said, known = self._describe(state.task, argument.strip())
        return state, View(said, CALLS, valid=known)

    def _choose(self, state: RecordsState, action: str) -> tuple[RecordsState, View]:
        """One action of the tiny form: a clause, `run`, `clear` or `submit`."""
        book = self._book(state.task)
        allowed = book.list_actions(state.clauses)
        if action not in allowed:
            return state, View(UNKNOWN, allowed, valid=False)
        if action == SUBMIT:
            return self._answer(state, join_clauses(state.clauses))
        if action == RUN:
            said, rewards = self._show_query(state.task, join_clauses(state.clauses))
            return state, View(said, allowed, rewards=rewards)
        clauses = () if action == CLEAR else (*state.clauses, action)
        said = join_clauses(clauses) or NOTHING
        return state._replace(clauses=clauses), View(said, book.list_actions(clauses))

    def _describe(self, task: RecordsTask, name: str) -> tuple[str, bool]:
        database = self._open(task.database)
        wanted = {name.lower(), unquote(name)}
        table = next((one for one in database.statements if one.lower() in wanted), None)
        if table is None:
            return f"There is no table {shorten(name, 40)} . Tables: {', '.join(database.statements)}", False
        try:
            rows = write_result(database.show(table, 3, self._make_budget()), self.options.rows_shown)
        except QueryError as error:
            rows = str(error)
        return f"{database.statements[table]}\n{rows}"[:MAX_SHOWN], True

    def _show_query(self, task: RecordsTask, sql: str) -> tuple[str, Mapping[str, float]]:
        try:
            result = self._open(task.database).query(sql, self._make_budget())
        except QueryError as error:
            return str(error), NOT_EXECUTED
        return write_result(result, self.options.rows_shown), EXECUTED

    def _answer(self, state: RecordsState, sql: str) -> tuple[RecordsState, View]:
        actions = CALLS if not self._tiny else self._book(state.task).list_actions(state.clauses)
        try:
            right = self._grade(state.task, sql)
            said, rewards = RIGHT if right else WRONG, EXECUTED
        except QueryError as error:
            right, said, rewards = False, f"{WRONG} {error}", NOT_EXECUTED
        paid = float(right)
        brevity = max(0.0, 1.0 - state.turn / self.max_turns)
        view = View(
            said,
            actions,
            reward=paid,
            score=paid,
            success=right,
            done=True,
            rewards={**rewards, "accuracy/records": paid, "brevity": brevity},
        )
        return state._replace(over=True), view

    def _grade(self, task: RecordsTask, sql: str) -> bool:
        """True if a query has the gold's rows on the site's own database and on all others; `QueryError` if it does not run
        on the site's own."""
        gold = self._find_gold(task)
        if gold is None:
            self._open(task.database).query(sql, self._make_budget())
            return False
        ordered = task.ordered if self._loaded else bool(find_plan(task, self._house).order)
        compare = self._compare if self._loaded else self._recall
        return compare(task.database, gold, sql, ordered)

    def _compare(self, name: str, gold: str, sql: str, ordered: bool) -> bool:
        own = self._open(name)
        right = run_gold(own, gold)
        most = max(MAX_ROWS, len(right.rows))
        orders: ColumnOrders = keep_orders(None, right, own.query(sql, self._make_budget(), most), ordered=ordered)
        if sql.strip() == gold:
            return True
        others = self._open_others(name) if orders else ()
        budget = self._make_budget()
        for database in others:
            right = run_gold(database, gold)
            try:
                given = database.query(sql, budget, max(MAX_ROWS, len(right.rows)))
            except QueryError:
                return False
            orders = keep_orders(orders, right, given, ordered=ordered)
            if not orders:
                return False
        return bool(orders)

    def _make_budget(self) -> Budget:
        return Budget(self.options.work * 1_000_000)

    def _find_gold(self, task: RecordsTask) -> str | None:
        """The right query at this site; None for a task without its answer."""
        if task.template and not self._loaded:
            return write_query(find_plan(task, self._house), self._find_site(task.database).schema)
        return task.query or None

    # ---- databases ----------------------------------------------------------------------------------------------

    def _find_site(self, domain: str) -> Site:
        if domain not in DOMAINS_OF[self.options.size]:
            raise DataError(
                f"there is no domain {shorten(domain, 40)} here: known are {', '.join(DOMAINS_OF[self.options.size])}"
            )
        return Site(domain, self.options.size, self.options.seed, self._population, self._naming)

    def _open(self, name: str) -> Database:
        if self.options.data is not None:
            return open_file(Path(self.options.data), name)
        return open_site(self._find_site(name))

    def _open_others(self, name: str) -> Sequence[Database]:
        if self.options.data is not None:
            return open_copies(Path(self.options.data), name)
        return open_checks(self._find_site(name))

    def _book(self, task: RecordsTask) -> ClauseBook:
        return open_book(self._find_site(task.database).schema)

    # ---- experts ------------------------------------------------------------------------------------------------

    def vocabulary(self) -> Iterable[str]:
        said = f"{RIGHT} {WRONG} {OVER} {UNKNOWN} {NOTHING} {RUN} {CLEAR} {SUBMIT} rows no NULL Tables"
        return [*said.split(), DESCRIBE, QUERY, ANSWER, *list_words(self.options.size)]

    def expert(self) -> Expert:
        return RecordsExpert(self)

    def list_procedures(self) -> Mapping[str, Procedures]:
        """Every category with the misconceptions that change the query of one of the first questions of each kind.

        A kind that `wrong_rule` changes has no other misconception.
        """
        if self._loaded:
            return {}
        found: dict[str, Procedures] = {}
        for cell in make_cells(self.options.size, self.options.seed, self.options.categories):
            tasks = [cell.deck[number] for number in range(3)]
            others = [name for name in WRONG_WAYS if any(self._mislead(task, name) is not None for task in tasks)]
            if WRONG_RULE in others:  # so that an agent has seen what other houses do
                others = [WRONG_RULE]
            known = found[cell.category].others if cell.category in found else ()
            found[cell.category] = Procedures(RIGHT_WAY, tuple(dict.fromkeys((*known, *others))))
        return {category: procedures for category, procedures in found.items() if procedures.others}

    def misled_expert(self, procedure: str) -> Expert:
        if procedure not in (RIGHT_WAY, *WRONG_WAYS):
            raise OptionError(f"a procedure here is {RIGHT_WAY} or one of {', '.join(WRONG_WAYS)}, got {procedure!r}")
        return RecordsExpert(self, procedure)

    def _mislead(self, task: RecordsTask, procedure: str) -> Plan | None:
        """The plan of a generated question under a misconception; None if it changes nothing."""
        plan = find_plan(task, self._house)
        if procedure != WRONG_RULE:
            return MISCONCEPTIONS[procedure](plan)
        further = 1 + derive(0, "records", "house", task.question) % (HOUSES - 1)
        other = find_plan(task, (self._house + further) % HOUSES)
        return other if other != plan else None

    def list_clauses(self, task: Task, procedure: str = RIGHT_WAY) -> tuple[str, ...]:
        """Return the clauses of a query for a task, as written at this site.

        Args:
            task: The task.
            procedure: `right`, or a misconception.

        Returns:
            The clauses in order; none for a task without its answer.
        """
        record = parse_task(task.payload)
        if not task.graded or not (record.template or record.query):
            return ()
        if not record.template:
            return (record.query,)
        misled = None if procedure == RIGHT_WAY else self._mislead(record, procedure)
        plan = misled or find_plan(record, self._house)
        return write_clauses(plan, self._find_site(record.database).schema)


def join_pools(first: TaskPool, second: TaskPool) -> TaskPool:
    """One pool of all splits, from two pools of one environment."""

    def find(index: int) -> Task:
        return first[index] if index < len(first) else second[index - len(first)]

    return TaskPool(
        env=first.env,
        split="all",
        ids=[*first.ids, *second.ids],
        categories=[str(name) for pool in (first, second) for name in pool.get_field("category")],
        payload=lambda index: find(index).payload,
        source={"joined": [first.source, second.source]},
        hardness=lambda index: find(index).hardness,
        strip=strip_task,
        split_of=lambda index: find(index).split,
    )


@lru_cache(maxsize=64)
def open_book(schema: Schema) -> ClauseBook:
    """The clauses of a domain's tiny questions at a site."""
    return ClauseBook(schema)


class RecordsExpert:
    """Looks at a table, tries its query, and answers; in the tiny form it chooses the query's clauses and submits them."""

    def __init__(self, env: RecordsEnv, procedure: str = RIGHT_WAY) -> None:
        self._env, self._procedure, self._played = env, procedure, 0

    def act(self, episode: Episode) -> str:
        clauses = self._env.list_clauses(episode.task, self._procedure)
        if self._env.options.size == "tiny":
            return self._choose_clause(episode, clauses)
        if not clauses:
            return f"{ANSWER}[SELECT 0]"
        sql = join_clauses(clauses)
        self._played += 1
        if self._played == 1 and (table := re.search(r"\bFROM (\w+)", sql)) is not None:
            return f"{DESCRIBE}[{table[1]}]"
        return f"{QUERY}[{sql}]" if self._played < 3 else f"{ANSWER}[{sql}]"

    @staticmethod
    def _choose_clause(episode: Episode, clauses: tuple[str, ...]) -> str:
        chosen: tuple[str, ...] = episode.state.clauses
        if not clauses:
            return SUBMIT if chosen else next(iter(episode.view.admissible or ()))
        if chosen == clauses:
            return SUBMIT
        return clauses[len(chosen)] if chosen == clauses[: len(chosen)] else CLEAR


def run_gold(database: Database, gold: str) -> Result:
    """The rows of a gold query; `DataError` if it does not run."""
    try:
        return database.query_trusted(gold)
    except QueryError as error:
        raise DataError(f"the gold of a task does not run: {error} ({shorten(gold, 120)})") from error


# ---- results as text --------------------------------------------------------------------------------------------------


def write_result(result: Result, most: int) -> str:
    """A result as text: the columns, the first rows, and the number of all rows.

    >>> print(write_result(Result(("name", "age"), [("Abba", 30), (None, 2.5)]), 1))
    name | age
    Abba | 30
    ( 2 rows )
    """
    lines = [" | ".join(shorten(column, MAX_CELL) for column in result.columns)]
    lines += [" | ".join(map(_write_cell, row)) for row in result.rows[:most]]
    text = "\n".join(lines)
    return f"{text[:MAX_SHOWN]}\n( {len(result.rows) or 'no'} rows )"


def _write_cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, bytes):
        return f"( {len(value)} bytes )"
    return shorten(str(value), MAX_CELL)
