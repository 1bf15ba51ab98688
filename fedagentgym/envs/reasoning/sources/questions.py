"""Readers for question-answering data sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.parsing import parse_json
from fedagentgym.envs.reasoning.generators.question import Fact, Question
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources.rows import Row
from fedagentgym.envs.verifiers.math_text import unreadable

LEVELS = {"easy": 1 / 3, "medium": 2 / 3, "hard": 1.0}
LETTERS = "ABCDEFGH"


def hotpotqa(row: Row, split: str) -> LoadedTask:
    """HotpotQA and 2WikiMultiHopQA, as published and as on the hub."""
    facts = _read_context(row)
    path = tuple(
        dict.fromkeys(title for title in _read_supporting_titles(row) if any(fact.title == title for fact in facts))
    )
    known = {fact.title: fact.text for fact in facts}
    question = Question(
        row.get_text("question"),
        _read_answers(row),
        facts,
        path,
        " ".join(known[title] for title in path),
    )
    return LoadedTask(split, str(row.get("type") or "other"), question, LEVELS.get(str(row.get("level"))))


def musique(row: Row, split: str) -> LoadedTask | None:
    """MuSiQue; unanswerable questions are left out."""
    if row.get("answerable") is False:
        return None
    paragraphs = row.get_value("paragraphs")
    if not isinstance(paragraphs, list):
        raise row.make_error("paragraphs", f"is not a list, but {type(paragraphs).__name__}")
    try:
        facts = tuple(Fact(str(one["title"]), str(one["paragraph_text"])) for one in paragraphs)
        support = [
            Fact(str(one["title"]), str(one["paragraph_text"])) for one in paragraphs if one.get("is_supporting")
        ]
    except (KeyError, TypeError, AttributeError):
        raise row.make_error("paragraphs", "has an entry without 'title' or 'paragraph_text'") from None
    hops = re.match(r"([2-4])hop", str(row.get("id") or ""))
    path = tuple(dict.fromkeys(fact.title for fact in support))
    question = Question(
        row.get_text("question"), _read_answers(row), facts, path, " ".join(fact.text for fact in support)
    )
    return LoadedTask(split, f"{hops[1]} hops" if hops else "other", question, int(hops[1]) / 4 if hops else None)


def medqa(row: Row, split: str) -> LoadedTask:
    options = _read_options(row, row.get_value("options"))
    letter = row.get("answer_idx")
    if letter is None:
        same = [name for name, option in options if option.strip() == row.get_text("answer").strip()]
        letter = same[0] if len(same) == 1 else None
    return _make_choice_task(row, split, str(row.get("meta_info", "subject") or "medqa"), options, letter, "answer_idx")


def make_medmcqa_reader(rows: Sequence[Row]) -> Callable[[Row, str], LoadedTask | None]:
    """The reader for these rows, whose options are counted from 0 (on the hub) or from 1 (in the original files)."""
    first = detect_first_option(rows)
    return lambda row, split: medmcqa(row, split, first)


def medmcqa(row: Row, split: str, first: int = 0) -> LoadedTask | None:
    """MedMCQA; `first` numbers the first option. Rows without gold are left out."""
    options = [(letter, row.get_text(name)) for letter, name in zip("ABCD", ("opa", "opb", "opc", "opd"), strict=True)]
    told = row.get_value("cop")
    if told is None or told == -1:
        return None
    if not isinstance(told, int) or not 0 <= told - first < 4:
        raise row.make_error("cop", f"is not a number from {first} to {first + 3}, but {str(told)[:20]!r}")
    return _make_choice_task(
        row, split, str(row.get("subject_name") or "medmcqa"), options, "ABCD"[told - first], "cop"
    )


def detect_first_option(rows: Sequence[Row]) -> int:
    """Whether the options of MedMCQA are counted from 0 or from 1 in these rows."""
    return 1 if any(row.get("cop") == 4 for row in rows) and not any(row.get("cop") == 0 for row in rows) else 0


def _make_choice_task(
    row: Row, split: str, category: str, options: list[tuple[str, str]], letter: Any, name: str
) -> LoadedTask:
    if letter not in dict(options):
        raise row.make_error(name, f"is not one of the options, but {str(letter)[:20]!r}")
    solution = str(row.get("exp") or "")
    return LoadedTask(
        split, category, Question(row.get_text("question"), (str(letter),), solution=solution, options=tuple(options))
    )


def _read_options(row: Row, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, str):
        value = _parse_json(row, "options", value)
    if isinstance(value, dict):
        return [(str(letter), str(option)) for letter, option in sorted(value.items()) if option is not None]
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, dict) and {"key", "value"} <= one.keys() for one in value)
    ):
        return [(str(one["key"]), str(one["value"])) for one in value]
    if isinstance(value, list) and value:
        return [(LETTERS[number], str(option)) for number, option in enumerate(value[: len(LETTERS)])]
    raise row.make_error("options", f"holds no options: {str(value)[:60]!r}")


def _read_context(row: Row) -> tuple[Fact, ...]:
    value = row.get_value("context")
    if isinstance(value, str):
        value = _parse_json(row, "context", value)
    if isinstance(value, dict):
        value = list(zip(value.get("title") or [], value.get("sentences") or value.get("content") or [], strict=False))
    try:
        return tuple(
            Fact(
                str(title),
                text
                if isinstance(text, str)
                else "".join(_ensure_leading_space(sentence) for sentence in text).strip(),
            )
            for title, text in value
        )
    except (TypeError, ValueError):
        raise row.make_error("context", "is not a list of pairs of title and sentences") from None


def _ensure_leading_space(sentence: str) -> str:
    return sentence if sentence[:1].isspace() else f" {sentence}"


def _read_supporting_titles(row: Row) -> list[str]:
    value = row.get("supporting_facts")
    if isinstance(value, str):
        value = _parse_json(row, "supporting_facts", value)
    if isinstance(value, dict):
        return [str(title) for title in value.get("title", [])]
    return [str(one[0]) for one in value or [] if isinstance(one, list | tuple) and one]


def _read_answers(row: Row) -> tuple[str, ...]:
    """The gold answer and its other names; one that no reply could repeat is refused."""
    gold = row.get_text("answer")
    if why := unreadable(gold):
        raise row.make_error("answer", f"cannot be verified ({why}): {gold[:60]!r}")
    return (gold, *(alias for alias in _read_aliases(row) if not unreadable(alias)))


def _read_aliases(row: Row) -> list[str]:
    value = row.get("answer_aliases", "answer_alias")
    return [str(alias) for alias in value if str(alias).strip()] if isinstance(value, list) else []


def _parse_json(row: Row, name: str, text: str) -> Any:
    try:
        return parse_json(text, name)
    except DataError:
        raise row.make_error(name, f"is not valid JSON: {text[:60]!r}") from None
