"""Rows of your own: which column holds which field of a task, and the task of a row.

The columns are named (`columns={"question": "frage"}`) or found by the names that are usual for them. A name with dots
reaches into a mapping (`reward_model.ground_truth`). Short columns that are no field stay fields of the tasks by which
clients can be formed (`partition="natural", by="office"`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import to_plain_numbers
from fedagentgym.base.errors import DataError, OptionError, join_names, show_value, unknown_name_error
from fedagentgym.envs.pool import represent
from fedagentgym.envs.reasoning.generators.problems import Fact, Program, Question
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources import readers
from fedagentgym.envs.reasoning.sources.rows import SPLIT_WORDS, Row, infer_split
from fedagentgym.envs.tasks import is_value
from fedagentgym.envs.verifiers.code import Call, Checks, calls_of, parse_checks

OWN = "own"
"""The name under which data of one's own appears among the sources."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "math": ("question", "answer", "solution"),
    "qa": ("question", "answer", "choices", "context"),
    "code": ("question", "tests", "entry", "setup", "solution"),
}
ABOUT = ("category", "hardness", "split")
"""Fields of every task; the others are what the task consists of."""
REQUIRED = ("question", "answer", "tests")
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "problem", "prompt", "instruction", "query", "input", "statement", "text"),
    "answer": (
        *("answer", "answers", "final_answer", "target", "gold", "ground_truth", "label", "expected", "output"),
        *("reward_model.ground_truth", "answer_idx", "answerkey", "solution"),
    ),
    "choices": ("choices", "options"),
    "context": ("context", "contexts", "passages", "paragraphs"),
    "tests": ("tests", "test", "test_list", "test_cases", "input_output"),
    "entry": ("entry", "entry_point", "fn_name", "function"),
    "setup": ("setup", "test_setup_code", "test_imports"),
    "solution": ("solution", "canonical_solution", "reference_solution", "code", "explanation"),
    "category": ("category", "subject", "topic", "domain", "type"),
    "hardness": ("hardness",),
    "split": ("split",),
}
MOST_OF_FIELD = 200
"""Longest text of a column that is kept as a field of the tasks."""

Columns = tuple[tuple[str, str | None], ...]
"""Fields and their columns, in order; None for a field that is not read."""


# ---- rows in memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivenRows:
    """Rows that were passed as values, known by their content."""

    digest: str
    records: tuple[tuple[str, str | None, object], ...] = field(compare=False, repr=False)


def read_given_rows(data: object) -> GivenRows:
    """The rows of a list of mappings, a data set of `datasets`, or a mapping from splits to such rows."""
    records = tuple(_list_records(data))
    return GivenRows(hashlib.sha256(repr(records).encode("utf-8", "surrogatepass")).hexdigest(), records)


def _list_records(data: object) -> Iterator[tuple[str, str | None, object]]:
    parts = data if isinstance(data, Mapping) else {getattr(data, "split", None): data}
    for part, rows in parts.items():
        split = None if part is None else infer_split(Path(str(part)))
        if isinstance(data, Mapping) and split is None:
            raise OptionError(f"data= has rows for {show_value(part)}: splits are {join_names(SPLIT_WORDS)}")
        if isinstance(rows, str | bytes) or not hasattr(rows, "__len__") or not hasattr(rows, "__iter__"):
            raise OptionError(
                "data= is a file (JSON lines, JSON, CSV, parquet), a folder of such files, a list of mappings or a data set"
                f" of the library datasets, got {show_value(rows)}"
            )
        place = "data" if part is None else f"data, {part}"
        for number, record in enumerate(rows, start=1):
            yield f"{place}, row {number}", split, to_plain_numbers(record)


# ---- columns ----------------------------------------------------------------------------------------------------


def check_columns(task: str, columns: object) -> Columns:
    """The option `columns`, whose keys must be fields of these tasks."""
    if columns is None:
        return ()
    if not isinstance(columns, Mapping):
        raise OptionError(f"columns is a mapping such as {{'question': 'frage'}}, got {show_value(columns)}")
    for name, column in columns.items():
        if name not in (*FIELDS[task], *ABOUT):
            raise unknown_name_error(f"field of {task} tasks in columns=", name, (*FIELDS[task], *ABOUT))
        if column is not None and (not isinstance(column, str) or not column):
            raise OptionError(f"columns: {name!r} is the name of a column or null, got {show_value(column)}")
    return tuple(columns.items())


def find_columns(task: str, columns: Columns, rows: Sequence[Row]) -> dict[str, str]:
    """The column of every field that the rows have."""
    there = _list_columns(rows)
    known = {
        *there,
        *map(str.lower, there),
        *(f"{name}.{key}" for row in rows[:100] for name, key in _list_inner_names(row)),
    }
    given = dict(columns)
    found: dict[str, str] = {}
    for name in (*FIELDS[task], *ABOUT):
        if name in given:
            column = given[name]
            if column is not None and column not in known:
                raise OptionError(f"columns: there is no column {column!r} for {name!r}, only {join_names(there, 30)}")
        else:
            column = next((one for one in USUAL_NAMES[name] if one in known), None)
        if column is not None:
            found[name] = column
        elif name in REQUIRED:
            raise OptionError(
                f"no column of the data is known to hold the {name} of a task: columns={{{name!r}: NAME}} says which of "
                f"{join_names(there, 30)} does"
            )
    return found


def _list_columns(rows: Sequence[Row]) -> list[str]:
    """The columns as the data names them; rows know those in capitals by their lower case too."""
    names = dict.fromkeys(name for row in rows for name in row.fields if isinstance(name, str))
    doubles = {name.lower() for name in names if name != name.lower()}
    return [name for name in names if name not in doubles]


def _list_inner_names(row: Row) -> Iterator[tuple[str, str]]:
    return ((str(name), str(key)) for name, value in row.fields.items() if isinstance(value, Mapping) for key in value)


def describe_columns(found: Mapping[str, str]) -> str:
    """The columns as they were found, for messages."""
    return ", ".join(f"{name} = {column}" for name, column in found.items())


def _read_column(row: Row, column: str) -> Any:
    if column in row.fields:
        return row.fields[column]
    outer, _, inner = column.partition(".")
    value = row.fields.get(outer)
    return value.get(inner) if isinstance(value, Mapping) else None


def find_fields(found: Mapping[str, str], rows: Sequence[Row]) -> list[str]:
    """The columns that stay fields of the tasks: those with short texts or whole numbers that are nothing else."""
    content = {column.partition(".")[0].lower() for name, column in found.items() if name != "category"}
    free = [name for name in _list_columns(rows) if name.lower() not in content and name != "category"]
    return [name for name in free if all(_is_short(row.fields.get(name)) for row in rows)]


def _is_short(value: object) -> bool:
    return value is None or (is_value(value) and len(str(value)) <= MOST_OF_FIELD)


# ---- tasks ------------------------------------------------------------------------------------------------------


def make_reader(task: str, found: Mapping[str, str], rows: Sequence[Row]) -> Callable[[Row, str], LoadedTask]:
    """The reader of rows with these columns."""
    make, kept = _MAKERS[task], find_fields(found, rows)

    def read(row: Row, split: str) -> LoadedTask:
        values = {name: _read_column(row, column) for name, column in found.items()}
        plain = Row(row.where, row.split, {name: value for name, value in values.items() if value is not None})
        payload = make(plain._replace(fields={**plain.fields, "question": _read_question(plain)}))
        beside = {name: row.fields[name] for name in kept if row.fields.get(name) is not None}
        return LoadedTask(_read_split(plain, split), _read_category(plain), payload, _read_hardness(plain), beside)

    return read


def compute_content_digest(tasks: Sequence[LoadedTask]) -> str:
    """The identity of what was read, which is the same for a file and for the same rows in another form."""
    return hashlib.sha256(represent([tuple(task) for task in tasks]).encode("utf-8", "surrogatepass")).hexdigest()


def _read_question(row: Row) -> str:
    """The question; of chat messages the last one."""
    value = row.get_value("question")
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        value = value[-1].get("content")
    if not isinstance(value, str) or not value.strip():
        raise row.make_error("question", f"is not a text, but {show_value(value)}")
    return value


def _read_category(row: Row) -> str:
    value = row.get("category")
    if value is not None and not is_value(value):
        raise row.make_error("category", f"is no text, but {show_value(value)}")
    return OWN if value is None else str(value)


def _read_split(row: Row, otherwise: str) -> str:
    value = row.get("split")
    if value is None:
        return otherwise
    if str(value).lower() not in SPLIT_WORDS:
        raise row.make_error("split", f"is one of {join_names(SPLIT_WORDS)}, not {show_value(value)}")
    return SPLIT_WORDS[str(value).lower()]


def _read_hardness(row: Row) -> float | None:
    value = row.get("hardness")
    if value is None or str(value) in readers.LEVELS:
        return None if value is None else readers.LEVELS[str(value)]
    try:
        hardness = float(value)
    except (TypeError, ValueError):
        hardness = -1.0
    if not 0 <= hardness <= 1:
        raise row.make_error("hardness", f"is a number from 0 to 1 or easy, medium, hard, not {show_value(value)}")
    return hardness


def _read_list(row: Row, name: str, value: Any) -> Any:
    """A value in which a text that looks like a JSON list or mapping is one, as in a cell of a CSV file."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        return readers.parse_json_field(row, name, value)
    return value


def _make_math(row: Row) -> Any:
    value = row.get_value("answer")
    golds = value if isinstance(value, list) and value else [value]
    worked = [gold.rpartition("####")[2].strip() if isinstance(gold, str) else gold for gold in golds]
    read = [readers.read_gold(row, "answer", gold) for gold in worked]
    solution = str(row.get("solution") or "")
    return readers.make_math_task(row, "", OWN, row.get_text("question"), read, None, solution).payload


def _make_question(row: Row) -> Question:
    value = row.get_value("answer")
    question = row.get_text("question")
    if (offered := _read_list(row, "choices", row.get("choices"))) is not None:
        options = readers.read_options(row, offered)
        return Question(question, (_find_choice(row, value, options),), options=tuple(options))
    if isinstance(value, Mapping):  # as in SQuAD
        value = value.get("text")
    if isinstance(value, str) and value.startswith('["'):
        value = readers.parse_json_field(row, "answer", value)
    golds = value if isinstance(value, list) and value else [value]
    answers = [readers.read_answer(row._replace(fields={"answer": gold})) for gold in golds]
    return Question(question, tuple(answers), _read_facts(row))


def _find_choice(row: Row, value: Any, options: Sequence[tuple[str, str]]) -> str:
    """The letter of the right choice, which is given as a letter, as the choice itself, or as its number from 0 on."""
    letters = [letter for letter, _ in options]
    given = str(value).strip()
    same = [letter for letter, option in options if option.strip() == given]
    counted = letters[int(given)] if given.isdecimal() and int(given) < len(letters) else None
    if given in letters:
        return given
    if isinstance(value, int) and counted is not None:
        return counted
    if len(same) == 1 or counted is not None:
        return same[0] if len(same) == 1 else str(counted)
    raise row.make_error("answer", f"is none of the choices, but {show_value(value)}")


def _read_facts(row: Row) -> tuple[Fact, ...]:
    value = _read_list(row, "context", row.get("context"))
    if value is None:
        return ()
    if isinstance(value, str):
        return (Fact("", value),)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(Fact("", one) for one in value)
    return readers.read_context(row)


def _make_program(row: Row) -> Program:
    question, entry = row.get_text("question"), str(row.get("entry") or "")
    value = _read_list(row, "tests", row.get_value("tests"))
    if isinstance(value, str) and entry and "def check(" in value and f"def {entry}" in question:
        given = {"prompt": question, "entry_point": entry, "test": value, "canonical_solution": row.get("solution")}
        return readers.humaneval(row._replace(fields=given), "").payload  # type: ignore[no-any-return]
    return Program(question, _read_tests(row, value, entry), str(row.get("solution") or ""))


def _read_tests(row: Row, value: Any, entry: str) -> Checks:
    setup = row.get("setup")
    setup = "\n".join(map(str, setup)) if isinstance(setup, list) else str(setup or "")
    readers.check_syntax(row, "setup", setup)
    if isinstance(value, Mapping):
        return _read_test_mapping(row, value, entry)
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        pairs = {"inputs": [one.get("input") for one in value], "outputs": [one.get("output") for one in value]}
        return _read_test_mapping(row, pairs, entry)
    if isinstance(value, list) and value and all(isinstance(one, list) for one in value):
        return _parse_checks(row, {"entry": entry, "calls": value})
    asserts = value if isinstance(value, list) else [value]
    if not asserts or not all(isinstance(one, str) and one.strip() for one in asserts):
        raise row.make_error("tests", f"is no test code, no list of asserts and no list of cases: {show_value(value)}")
    for one in asserts:
        readers.check_syntax(row, "tests", one)
    simple = None if setup.strip() else calls_of(asserts)
    if simple is not None:
        return Checks(*simple)
    code = "\n".join(asserts)
    if "def check(" in code and not entry:
        raise row.make_error("tests", "calls check(candidate), and no column entry names the function")
    return (
        Checks(entry, code=code, setup=setup, check="check")
        if "def check(" in code
        else Checks(code=f"{setup}\n{code}")
    )


def _read_test_mapping(row: Row, value: Mapping[str, Any], entry: str) -> Checks:
    """Tests as inputs beside outputs, or under the names of `Checks`."""
    if not {"inputs", "outputs"} <= value.keys():
        return _parse_checks(row, {"entry": entry, **value})
    inputs, outputs, entry = value["inputs"], value["outputs"], str(value.get("fn_name") or entry)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise row.make_error("tests", "has not as many outputs as inputs, or none")
    pairs = list(zip(inputs, outputs, strict=True))
    if not entry:
        return Checks(outputs=tuple((str(given), str(expected)) for given, expected in pairs))
    return Checks(
        entry, tuple(Call(tuple(given) if isinstance(given, list) else (given,), want) for given, want in pairs)
    )


def _parse_checks(row: Row, given: Mapping[str, Any]) -> Checks:
    try:
        return parse_checks(given)
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from None


_MAKERS: Mapping[str, Callable[[Row], Any]] = {"math": _make_math, "qa": _make_question, "code": _make_program}
