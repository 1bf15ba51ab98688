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
from fedagentgym.envs.reasoning.sources.rows import SPLIT_WORDS, Row, format_plain_number, infer_split, is_missing
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
    parts: Mapping[Any, Any] = data if isinstance(data, Mapping) else {None: data}
    records: list[tuple[str, str | None, object]] = []
    for part, rows in parts.items():
        if not _holds_rows(rows):
            raise OptionError(
                "data= is a file (JSON lines, JSON, CSV, parquet), a folder of such files, a list of mappings or a data set"
                f" of the library datasets, got {_show_table(rows)}"
            )
        part = part if isinstance(data, Mapping) else getattr(rows, "split", None)
        split = None if part is None else infer_split(Path(str(part)))
        if isinstance(data, Mapping) and split is None:
            raise OptionError(f"data= has rows for {show_value(part)}: splits are {join_names(SPLIT_WORDS)}")
        place = "data" if part is None else f"data, {part}"
        for number, record in enumerate(rows, start=1):
            records.append((f"{place}, row {number}", split, to_plain_numbers(record)))
    digest = hashlib.sha256(repr(tuple(records)).encode("utf-8", "surrogatepass")).hexdigest()
    return GivenRows(digest, tuple(records))


def _holds_rows(rows: object) -> bool:
    """True for a list and a data set, whose items are rows. The items of pandas' and NumPy's tables are something else."""
    if isinstance(rows, str | bytes) or not hasattr(rows, "__len__") or not hasattr(rows, "__iter__"):
        return False
    if not hasattr(rows, "shape"):
        return True
    try:
        return isinstance(next(iter(rows), {}), Mapping)
    except TypeError:  # an array without dimensions
        return False


def _show_table(rows: object) -> str:
    if not hasattr(rows, "shape"):
        return show_value(rows)
    kind = type(rows)
    advice = ": give its rows, .to_dict('records')" if hasattr(rows, "columns") else ""
    return f"a {kind.__module__.partition('.')[0]} {kind.__name__}{advice}"


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
        short = all(is_missing(one) or (is_value(one) and len(str(one)) <= MAX_FIELD_LENGTH) for one in values)
        if short and name.lower() not in content and name != "category":
            kept.append(name)
    return partial(_read_row, task, found, sorted(kept))


def _is_empty(value: Any) -> bool:
    """True for a missing value and for an empty text: a cell of a table cannot tell them apart."""
    return is_missing(value) or (isinstance(value, str) and not value)


def _read_row(task: str, found: Mapping[str, str], kept: Sequence[str], given: Row, split: str) -> LoadedTask:
    fields: dict[str, Any] = {}
    for name, column in found.items():
        value = given.fields.get(column)
        if column not in given.fields:
            outer, _, inner = column.partition(".")
            value = given.fields.get(outer)
            value = value.get(inner) if isinstance(value, Mapping) else None
        if not _is_empty(value):
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
    beside = {name: given.fields[name] for name in kept if not _is_empty(given.fields.get(name))}
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
        choices = _read_choices(row, offered)
        options = tuple((letter, str(choice)) for letter, choice in choices)
        return Question(question, (_find_choice(row, value, choices),), options=options)
    if isinstance(value, Mapping):  # as in SQuAD
        value = value.get("text")
    if isinstance(value, str) and value.startswith('["'):
        value = readers.parse_json_field(row, "answer", value)
    golds = value if isinstance(value, list) and value else [value]
    answers = [readers.read_answer(row._replace(fields={"answer": gold})) for gold in golds]
    return Question(question, tuple(answers), _read_facts(row, _read_list(row, "context", row.get("context"))))


def _read_choices(row: Row, value: Any) -> list[tuple[str, Any]]:
    """The letters and the choices, which are texts or numbers."""
    if isinstance(value, Mapping) and isinstance(value.get("text"), list) and isinstance(value.get("label"), list):
        if len(value["text"]) != len(value["label"]):
            raise row.make_error("choices", "must have as many texts as labels")
        pairs = list(zip(value["label"], value["text"], strict=True))
    elif isinstance(value, Mapping):
        pairs = sorted((str(letter), choice) for letter, choice in value.items() if not is_missing(choice))
    elif not isinstance(value, list):
        raise row.make_error("choices", f"must be a list, or a mapping from letters to texts, not {show_value(value)}")
    elif len(value) > len(readers.LETTERS):
        raise row.make_error("choices", f"must be at most {len(readers.LETTERS)} choices, not {len(value)}")
    elif all(isinstance(one, Mapping) and {"key", "value"} <= one.keys() for one in value):
        pairs = [(one["key"], one["value"]) for one in value]
    elif all(isinstance(one, Mapping) and {"label", "text"} <= one.keys() for one in value):
        pairs = [(one["label"], one["text"]) for one in value]
    elif all(isinstance(one, list | tuple) and len(one) == 2 for one in value):
        pairs = [(letter, choice) for letter, choice in value]
    else:
        pairs = list(zip(readers.LETTERS, value, strict=False))
    for letter, choice in pairs:
        if is_missing(choice) or not isinstance(choice, str | int | float):
            said = "must be texts or numbers, {label, text} or pairs of letter and text"
            raise row.make_error("choices", f"{said}, not {show_value(choice)}")
        if is_missing(letter) or not isinstance(letter, str | int) or not str(letter).strip():
            raise row.make_error("choices", f"must have letters or numbers as labels, not {show_value(letter)}")
    if not pairs or len({str(letter) for letter, _ in pairs}) < len(pairs):
        raise row.make_error("choices", f"must be choices with different labels, not {show_value(value)}")
    return [(str(letter), choice) for letter, choice in pairs]


def _find_choice(row: Row, value: Any, choices: Sequence[tuple[str, Any]]) -> str:
    """The letter of the right choice, which is given as its letter, as the choice itself, or as its number from 0 on."""
    letters, number = [letter for letter, _ in choices], _is_number(value)
    given = format_plain_number(value) if number else str(value).strip()
    if given in letters:
        return given
    equal = [letter for letter, choice in choices if number and _is_number(choice) and choice == value]
    if len(equal) == 1:
        return equal[0]
    same = [letter for letter, choice in choices if str(choice).strip() == given]
    if given.isdecimal() and int(given) < len(letters) and (number or len(same) != 1):
        return letters[int(given)]
    if len(same) == 1:
        return same[0]
    raise row.make_error("answer", f"is none of the choices, but {show_value(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_facts(row: Row, value: Any) -> tuple[Fact, ...]:
    """The passages of a context: texts, mappings with title and text, pairs, or one mapping."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        texts = next((value[name] for name in ("sentences", "content", "text") if value.get(name) is not None), None)
        if isinstance(value.get("title"), list) and isinstance(texts, list) and len(texts) == len(value["title"]):
            value = list(zip(value["title"], texts, strict=True))
        elif {"title", "text"} == set(value):
            value = [value]
        else:  # from titles to texts
            value = [(title, text) for title, text in value.items() if not is_missing(text)]
            if not all(isinstance(text, str) for _, text in value):
                raise _context_error(row, dict(value))
    facts = []
    for one in value if isinstance(value, list) else [value]:
        title, text = "", one
        if isinstance(one, Mapping) and {"title", "text"} <= one.keys():
            title, text = one["title"], one["text"]
        elif isinstance(one, list | tuple) and len(one) == 2:
            title, text = one
        if isinstance(text, list) and text is not one and all(isinstance(part, str) for part in text):
            text = "".join(part if part[:1].isspace() else f" {part}" for part in text).strip()
        if not isinstance(text, str) or not (is_missing(title) or is_value(title)):
            raise _context_error(row, one)
        facts.append(Fact("" if is_missing(title) else str(title), text))
    return tuple(facts)


def _context_error(row: Row, value: Any) -> DataError:
    said = "must be a text, texts, {title, text}, pairs of title and text, or a mapping from titles to texts"
    return row.make_error("context", f"{said}, not {show_value(value)}")


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
