"""Rows of your own: the column of each field of a task, and the task that a row becomes.

The columns are named (`columns={"question": "frage"}`) or found by their usual names. A name with dots reaches into a
mapping (`reward_model.ground_truth`). Other columns with short texts or whole numbers are kept as fields of the tasks,
by which clients can be formed (`partition="natural", by="office"`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import to_plain_numbers
from fedagentgym.base.errors import DataError, OptionError, join_names, show_value, unknown_name_error
from fedagentgym.envs.reasoning.generators.problems import Fact, Program, Question
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources import readers
from fedagentgym.envs.reasoning.sources.rows import SPLIT_WORDS, Row, infer_split
from fedagentgym.envs.tasks import is_value
from fedagentgym.envs.verifiers.code import Call, Checks, calls_of, parse_checks
from fedagentgym.envs.verifiers.code_tests import UndecidedError, complete_tests, defines_check

OWN = "own"
"""The source name of your own data."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "math": ("question", "answer", "solution"),
    "qa": ("question", "answer", "choices", "context"),
    "code": ("question", "tests", "entry", "setup", "solution"),
}
ABOUT = ("category", "hardness", "split")
"""Fields about a task, for every kind; the fields in `FIELDS` are its content."""
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
MAX_FIELD_LENGTH = 200
"""Longest text of a column that is kept as a field of the tasks."""

Columns = tuple[tuple[str, str | None], ...]
"""Fields and their columns, in order; None for a field that is not read."""


# ---- rows in memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivenRows:
    """Rows that were passed in memory; equal if the digests of their content are."""

    digest: str
    records: tuple[tuple[str, str | None, object], ...] = field(compare=False, repr=False)


def read_given_rows(data: object) -> GivenRows:
    """The rows of a list of mappings, a data set of `datasets`, or a mapping from splits to such rows."""
    parts = data if isinstance(data, Mapping) else {getattr(data, "split", None): data}
    records: list[tuple[str, str | None, object]] = []
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
            records.append((f"{place}, row {number}", split, to_plain_numbers(record)))
    digest = hashlib.sha256(repr(tuple(records)).encode("utf-8", "surrogatepass")).hexdigest()
    return GivenRows(digest, tuple(records))


# ---- columns ----------------------------------------------------------------------------------------------------


def check_columns(task: str, columns: object) -> Columns:
    """Check the option `columns`, whose keys must be fields of these tasks."""
    if columns is None:
        return ()
    if not isinstance(columns, Mapping):
        raise OptionError(f"columns must be a mapping such as {{'question': 'frage'}}, got {show_value(columns)}")
    for name, column in columns.items():
        if name not in (*FIELDS[task], *ABOUT):
            raise unknown_name_error(f"field of {task} tasks in columns=", name, (*FIELDS[task], *ABOUT))
        if column is not None and (not isinstance(column, str) or not column):
            raise OptionError(
                f"columns: the value of {name!r} is the name of a column or null, got {show_value(column)}"
            )
    return tuple(columns.items())


def find_columns(task: str, columns: Columns, rows: Sequence[Row]) -> dict[str, str]:
    """The column of every field that the rows have."""
    there = _list_columns(rows)
    known = {*there, *map(str.lower, there)}
    for row in rows[:100]:
        inner = {name: value for name, value in row.fields.items() if isinstance(value, Mapping)}
        known.update(f"{name}.{key}" for name, value in inner.items() for key in value)
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
                f"no column of the data has a usual name for the {name} of a task: give columns={{{name!r}: NAME}} with one of "
                f"{join_names(there, 30)}"
            )
    return found


def _list_columns(rows: Sequence[Row]) -> list[str]:
    """The columns as the data names them, without the lower-case copies that `Row.make` adds."""
    names = dict.fromkeys(name for row in rows for name in row.fields if isinstance(name, str))
    doubles = {name.lower() for name in names if name != name.lower()}
    return [name for name in names if name not in doubles]


# ---- tasks ------------------------------------------------------------------------------------------------------


def make_reader(task: str, found: Mapping[str, str], rows: Sequence[Row]) -> Callable[[Row, str], LoadedTask]:
    """The reader of rows with these columns. Other columns with short texts or whole numbers are kept as fields of the tasks."""
    content = {column.partition(".")[0].lower() for name, column in found.items() if name != "category"}
    kept = []
    for name in _list_columns(rows):
        values = [row.fields.get(name) for row in rows]
        short = all(one is None or (is_value(one) and len(str(one)) <= MAX_FIELD_LENGTH) for one in values)
        if short and name.lower() not in content and name != "category":
            kept.append(name)
    return partial(_read_row, task, found, kept)


def _read_row(task: str, found: Mapping[str, str], kept: Sequence[str], given: Row, split: str) -> LoadedTask:
    fields: dict[str, Any] = {}
    for name, column in found.items():
        value = given.fields.get(column)
        if column not in given.fields:
            outer, _, inner = column.partition(".")
            value = given.fields.get(outer)
            value = value.get(inner) if isinstance(value, Mapping) else None
        if value is not None:
            fields[name] = value
    row = given._replace(fields=fields)

    question = row.get_value("question")
    if isinstance(question, list) and question and isinstance(question[-1], Mapping):  # the last chat message
        question = question[-1].get("content")
    if not isinstance(question, str) or not question.strip():
        raise row.make_error("question", f"is not a text, but {show_value(question)}")
    payload = _MAKERS[task](row._replace(fields={**fields, "question": question}))

    if (named := fields.get("split")) is not None:
        if str(named).lower() not in SPLIT_WORDS:
            raise row.make_error("split", f"must be one of {join_names(SPLIT_WORDS)}, not {show_value(named)}")
        split = SPLIT_WORDS[str(named).lower()]
    category = fields.get("category", OWN)
    if not is_value(category):
        raise row.make_error("category", f"is no text, but {show_value(category)}")
    hardness = fields.get("hardness")
    if str(hardness) in readers.LEVELS:
        hardness = readers.LEVELS[str(hardness)]
    elif hardness is not None:
        try:
            hardness = float(hardness)
        except (TypeError, ValueError, OverflowError):
            hardness = -1.0
        if not 0 <= hardness <= 1:
            said = f"must be a number from 0 to 1 or easy, medium, hard, not {show_value(fields['hardness'])}"
            raise row.make_error("hardness", said)
    beside = {name: given.fields[name] for name in kept if given.fields.get(name) is not None}
    return LoadedTask(split, str(category), payload, hardness, beside)


def _read_list(row: Row, name: str, value: Any) -> Any:
    """The value; a text that looks like a JSON list or mapping, such as a cell of a CSV file, is parsed."""
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
        # the right choice is given as its letter, as the choice itself, or as its number from 0 on
        letters, given = [letter for letter, _ in options], str(value).strip()
        same = [letter for letter, option in options if option.strip() == given]
        counted = letters[int(given)] if given.isdecimal() and int(given) < len(letters) else None
        if given in letters:
            letter = given
        elif counted is not None and (isinstance(value, int) or len(same) != 1):
            letter = counted
        elif len(same) == 1:
            letter = same[0]
        else:
            raise row.make_error("answer", f"is none of the choices, but {show_value(value)}")
        return Question(question, (letter,), options=tuple(options))
    if isinstance(value, Mapping):  # as in SQuAD
        value = value.get("text")
    if isinstance(value, str) and value.startswith('["'):
        value = readers.parse_json_field(row, "answer", value)
    golds = value if isinstance(value, list) and value else [value]
    answers = [readers.read_answer(row._replace(fields={"answer": gold})) for gold in golds]
    context = _read_list(row, "context", row.get("context"))
    texts = [context] if isinstance(context, str) else [] if context is None else context
    if isinstance(texts, list) and all(isinstance(one, str) for one in texts):
        return Question(question, tuple(answers), tuple(Fact("", one) for one in texts))
    return Question(question, tuple(answers), readers.read_context(row))


def _make_program(row: Row) -> Program:
    question, entry = row.get_text("question"), str(row.get("entry") or "")
    value = _read_list(row, "tests", row.get_value("tests"))
    if isinstance(value, str) and entry and "def check(" in value and f"def {entry}" in question:
        given = {"prompt": question, "entry_point": entry, "test": value, "canonical_solution": row.get("solution")}
        program: Program = readers.humaneval(row._replace(fields=given), "").payload
        code = _complete(row, [value], program.tests.setup, "check")
        return program._replace(tests=program.tests._replace(code=code))
    setup = row.get("setup")
    setup = "\n".join(map(str, setup)) if isinstance(setup, list) else str(setup or "")
    readers.check_syntax(row, "setup", setup)
    # a list of cases becomes a mapping; a case is a mapping of input and output, or a pair of arguments and result
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        if not all({"input", "output"} <= one.keys() for one in value):
            raise row.make_error("tests", f"must be cases with the keys 'input' and 'output', not {show_value(value)}")
        value = {"inputs": [one["input"] for one in value], "outputs": [one["output"] for one in value]}
    elif isinstance(value, list) and value and all(isinstance(one, list) for one in value):
        value = {"calls": value}
    tests = _read_cases(row, value, entry) if isinstance(value, Mapping) else _read_code(row, value, entry, setup)
    return Program(question, tests, str(row.get("solution") or ""))


def _read_code(row: Row, value: Any, entry: str, setup: str) -> Checks:
    """Tests as code: one text or a list of asserts."""
    asserts = value if isinstance(value, list) else [value]
    if not asserts or not all(isinstance(one, str) and one.strip() for one in asserts):
        raise row.make_error("tests", f"is no test code, no list of asserts and no list of cases: {show_value(value)}")
    for one in asserts:
        readers.check_syntax(row, "tests", one)
    simple = None if setup.strip() else calls_of(asserts)
    if simple is not None:
        return Checks(*simple)
    checked = defines_check(asserts)
    code = _complete(row, asserts, setup, "check" if checked else "")
    if not checked:
        return Checks(code=f"{setup}\n{code}")
    if not entry:
        raise row.make_error("tests", "calls check(candidate), and no column entry names the function")
    return Checks(entry, code=code, setup=setup, check="check")


def _complete(row: Row, parts: Sequence[str], setup: str, check: str) -> str:
    try:
        return complete_tests(tuple(parts), setup, check)
    except UndecidedError as error:
        raise row.make_error("tests", str(error)) from None


def _read_cases(row: Row, value: Mapping[str, Any], entry: str) -> Checks:
    """Tests as lists of inputs and outputs, or as a mapping with the field names of `Checks`."""
    if not {"inputs", "outputs"} <= value.keys():
        try:
            return parse_checks({"entry": entry, **value})
        except DataError as error:
            raise DataError(f"{row.where}: {error}") from None
    inputs, outputs, entry = value["inputs"], value["outputs"], str(value.get("fn_name") or entry)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise row.make_error("tests", "needs as many outputs as inputs, and at least one")
    pairs = list(zip(inputs, outputs, strict=True))
    if not entry:
        if any(expected is None for expected in outputs):
            raise row.make_error("tests", "has a case whose output is null: the output of a program must be a text")
        return Checks(outputs=tuple(("" if given is None else str(given), str(expected)) for given, expected in pairs))
    calls = [Call(tuple(given) if isinstance(given, list) else (given,), want) for given, want in pairs]
    return Checks(entry, tuple(calls))


_MAKERS: Mapping[str, Callable[[Row], Any]] = {"math": _make_math, "qa": _make_question, "code": _make_program}
