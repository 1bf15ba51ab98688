"""Readers of data sets: a row becomes a problem, a question or a program, with its category and hardness."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import parse_json
from fedagentgym.envs.reasoning.generators.problems import Fact, MathProblem, Program, Question
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources.rows import Row, format_plain_number, is_missing
from fedagentgym.envs.verifiers.code import Checks, calls_of
from fedagentgym.envs.verifiers.formats import last_box
from fedagentgym.envs.verifiers.math_exact import normalize, unreadable

_STEP = re.compile(r"<<[^<>]*>>")
_PLAIN_BOX = re.compile(r"\\(?:boxed|framebox|fbox)\s+([^\s$,;]*[^\s$,;.])")
_CONTEST_ID = re.compile(r"(?P<year>[0-9]{4})-(?P<part>I{1,2})-(?P<number>[0-9]+)")
_YEAR_AND_PROBLEM = re.compile(r"/(?P<contest>[0-9]{4}_[A-Za-z0-9_]+?)_Problems/Problem_(?P<number>[0-9]+)")


def gsm8k(row: Row, split: str) -> LoadedTask:
    worked, marker, gold = row.get_text("answer").rpartition("####")
    if not marker or not gold.strip():
        raise row.make_error("answer", "has no final answer after '####'")
    steps = len(_STEP.findall(worked))
    category = "1-2 steps" if steps <= 2 else f"{steps} steps" if steps < 6 else "6 or more steps"
    return make_math_task(
        row, split, category, row.get_text("question"), [gold.strip()], min(steps, 8) / 8, _STEP.sub("", worked).strip()
    )


def math(row: Row, split: str) -> LoadedTask:
    solution = row.get("solution")
    gold = row.get("answer")
    if gold is None:
        gold = _read_boxed(row)
    level = re.search(r"[1-5]", str(row.get("level") or ""))
    return make_math_task(
        row,
        split,
        row.get_text("type", "subject"),
        row.get_text("problem"),
        [read_gold(row, "answer", gold)],
        int(level[0]) / 5 if level else None,
        str(solution or ""),
    )


def dapo(row: Row, split: str) -> LoadedTask:
    prompt = row.get_value("problem", "question", "prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        prompt = prompt[-1].get("content")
    if not isinstance(prompt, str) or not prompt.strip():
        raise row.make_error("prompt", "holds no text")
    parts = prompt.split("\n\n")
    if (
        len(parts) > 2
        and parts[0].startswith("Solve the following")
        and parts[-1].startswith("Remember to put your answer")
    ):
        prompt = "\n\n".join(parts[1:-1])
    given = row.get("reward_model")
    gold = given.get("ground_truth") if isinstance(given, dict) else row.get_value("answer", "solution", "reward_model")
    category = str(row.get("category", "topic", "data_source", "ability") or "dapo")
    return make_math_task(row, split, category, prompt, [read_gold(row, "ground_truth", gold)], None, "")


def openr1(row: Row, split: str) -> LoadedTask:
    category = str(row.get("problem_type", "type") or "other")
    return make_math_task(
        row,
        split,
        category,
        row.get_text("problem"),
        [read_gold(row, "answer", row.get_value("answer"))],
        None,
        str(row.get("solution") or ""),
    )


def deepmath(row: Row, split: str) -> LoadedTask:
    topics = [part.strip() for part in row.get_text("topic").split("->")]
    difficulty = row.get("difficulty")
    if difficulty is not None and (not isinstance(difficulty, int | float) or isinstance(difficulty, bool)):
        raise row.make_error("difficulty", f"is not a number, but {str(difficulty)[:40]!r}")
    return make_math_task(
        row,
        split,
        topics[1] if len(topics) > 1 else topics[0],
        row.get_text("question"),
        [read_gold(row, "final_answer", row.get_value("final_answer"))],
        None if difficulty is None else max(0.0, min(1.0, float(difficulty) / 10)),
        str(row.get("r1_solution_1") or ""),
    )


def contest(row: Row, split: str, name: str = "") -> LoadedTask:
    """AIME and AMC; the contest's name is the category, and the number of the problem determines its hardness."""
    # the address or the id (2024-II-4) may name the contest and the number of the problem
    category, number = "", None
    if named := _YEAR_AND_PROBLEM.search(str(row.get("url") or "")):
        category, number = named["contest"].replace("_", " "), int(named["number"])
    elif named := _CONTEST_ID.fullmatch(str(row.get("id") or "")):
        category, number = f"{named['year']} AIME {named['part']}", int(named["number"])
    category = category or name or str(row.get("year", "contest", "source") or "contest")
    hardness = None if number is None else min(1.0, number / (15 if "AIME" in category else 25))
    gold = row.get("answer")
    gold = _read_boxed(row) if gold is None else read_gold(row, "answer", gold)
    solution = str(row.get("solution") or "")
    return make_math_task(row, split, category, row.get_text("problem", "question"), [gold], hardness, solution)


def minerva(row: Row, split: str) -> LoadedTask:
    gold = row.get("answer")
    gold = _read_boxed(row) if gold is None else read_gold(row, "answer", gold)
    category = str(row.get("type", "subject", "course") or "minerva")
    solution = str(row.get("solution") or "")
    return make_math_task(row, split, category, row.get_text("problem", "question"), [gold], None, solution)


def olympiadbench(row: Row, split: str) -> LoadedTask:
    given = row.get_value("final_answer", "answer")
    golds = [read_gold(row, "final_answer", gold) for gold in (given if isinstance(given, list) else [given])]
    if len(golds) > 1 and row.get("is_multiple_answer"):
        golds = [", ".join(golds)]
    solutions = row.get("solution")
    solution = solutions[0] if isinstance(solutions, list) and solutions else solutions
    category = str(row.get("subfield", "subject") or "olympiad")
    return make_math_task(row, split, category, row.get_text("question", "problem"), golds, None, str(solution or ""))


def _read_boxed(row: Row) -> str:
    """The last boxed answer in a row's solution, with or without braces; for rows that have no answer field."""
    solution = row.get_text("solution")
    gold = last_box(solution)
    if gold is None and (plain := _PLAIN_BOX.findall(solution)):
        gold = plain[-1]
    if gold is None:
        raise row.make_error("solution", "has no \\boxed{} answer")
    return gold


def read_gold(row: Row, name: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_missing(value):
        return format_plain_number(value)
    if not isinstance(value, str) or not value.strip():
        raise row.make_error(name, f"is no answer: {str(value)[:60]!r}")
    boxed = last_box(value)
    return (boxed if boxed is not None else value).strip()


def make_math_task(
    row: Row, split: str, category: str, problem: str, golds: list[str], hardness: float | None, solution: str
) -> LoadedTask:
    for gold in golds:
        if not normalize(gold):
            raise row.make_error("answer", f"is empty once it is normalised: {gold[:60]!r}")
        if why := unreadable(gold):
            raise row.make_error("answer", f"cannot be verified ({why}): {gold[:60]!r}")
    return LoadedTask(split, category, MathProblem(problem, tuple(golds), solution), hardness)


LEVELS = {"easy": 1 / 3, "medium": 2 / 3, "hard": 1.0}
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def hotpotqa(row: Row, split: str) -> LoadedTask:
    """HotpotQA and 2WikiMultiHopQA, as published and as on the hub."""
    facts = read_context(row)
    support = row.get("supporting_facts")
    if isinstance(support, str):
        support = parse_json_field(row, "supporting_facts", support)
    if isinstance(support, dict):
        titles = [str(title) for title in support.get("title", [])]
    else:
        titles = [str(one[0]) for one in support or [] if isinstance(one, list | tuple) and one]
    known = {fact.title: fact.text for fact in facts}
    path = tuple(dict.fromkeys(title for title in titles if title in known))
    said = " ".join(known[title] for title in path)
    question = Question(row.get_text("question"), _read_answers(row), facts, path, said)
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
    options = read_options(row, row.get_value("options"))
    letter = row.get("answer_idx")
    if letter is None:
        same = [name for name, option in options if option.strip() == row.get_text("answer").strip()]
        letter = same[0] if len(same) == 1 else None
    return _make_choice_task(row, split, str(row.get("meta_info", "subject") or "medqa"), options, letter, "answer_idx")


def make_medmcqa_reader(rows: Sequence[Row]) -> Callable[[Row, str], LoadedTask | None]:
    """The reader for these rows, whose options are counted from 0 (on the hub) or from 1 (in the original files)."""
    cops = [row.get("cop") for row in rows]
    return partial(medmcqa, first=1 if 4 in cops and 0 not in cops else 0)


def medmcqa(row: Row, split: str, first: int = 0) -> LoadedTask | None:
    """MedMCQA; `first` is the number of the first option. Rows without gold are left out."""
    options = [(letter, row.get_text(name)) for letter, name in zip("ABCD", ("opa", "opb", "opc", "opd"), strict=True)]
    given = row.get_value("cop")
    if given is None or given == -1:
        return None
    if not isinstance(given, int) or not 0 <= given - first < 4:
        raise row.make_error("cop", f"is not a number from {first} to {first + 3}, but {str(given)[:20]!r}")
    return _make_choice_task(
        row, split, str(row.get("subject_name") or "medmcqa"), options, "ABCD"[given - first], "cop"
    )


def _make_choice_task(
    row: Row, split: str, category: str, options: list[tuple[str, str]], letter: Any, name: str
) -> LoadedTask:
    if letter not in dict(options):
        raise row.make_error(name, f"is not one of the options, but {str(letter)[:20]!r}")
    solution = str(row.get("exp") or "")
    return LoadedTask(
        split, category, Question(row.get_text("question"), (str(letter),), solution=solution, options=tuple(options))
    )


def read_options(row: Row, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, str):
        value = parse_json_field(row, "options", value)
    if isinstance(value, dict) and isinstance(value.get("text"), list) and isinstance(value.get("label"), list):
        return [(str(letter), str(option)) for letter, option in zip(value["label"], value["text"], strict=True)]
    if isinstance(value, dict):
        return [(str(letter), str(option)) for letter, option in sorted(value.items()) if option is not None]
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, dict) and {"key", "value"} <= one.keys() for one in value)
    ):
        return [(str(one["key"]), str(one["value"])) for one in value]
    if isinstance(value, list) and len(value) > len(LETTERS):
        raise row.make_error("options", f"must be at most {len(LETTERS)} options, not {len(value)}")
    if isinstance(value, list) and value:
        return [(letter, str(option)) for letter, option in zip(LETTERS, value, strict=False)]
    raise row.make_error("options", f"holds no options: {str(value)[:60]!r}")


def read_context(row: Row) -> tuple[Fact, ...]:
    value = row.get_value("context")
    if isinstance(value, str):
        value = parse_json_field(row, "context", value)
    if isinstance(value, dict):
        value = list(zip(value.get("title") or [], value.get("sentences") or value.get("content") or [], strict=False))
    facts = []
    try:
        for title, text in value:
            if not isinstance(text, str):
                text = "".join(one if one[:1].isspace() else f" {one}" for one in text).strip()
            facts.append(Fact(str(title), text))
    except (TypeError, ValueError):
        raise row.make_error("context", "is not a list of pairs of title and sentences") from None
    return tuple(facts)


def _read_answers(row: Row) -> tuple[str, ...]:
    """The gold answer and its aliases; aliases that cannot be verified are left out."""
    others = row.get("answer_aliases", "answer_alias")
    aliases = [str(alias) for alias in others] if isinstance(others, list) else []
    return (read_answer(row), *(alias for alias in aliases if alias.strip() and not unreadable(alias)))


def read_answer(row: Row) -> str:
    """The gold answer of a question."""
    gold = row.get_text("answer")
    if why := unreadable(gold):
        raise row.make_error("answer", f"cannot be verified ({why}): {gold[:60]!r}")
    return gold


def parse_json_field(row: Row, name: str, text: str) -> Any:
    try:
        return parse_json(text, name)
    except DataError:
        raise row.make_error(name, f"is not valid JSON: {text[:60]!r}") from None


def humaneval(row: Row, split: str) -> LoadedTask:
    prompt, entry, test = row.get_text("prompt"), row.get_text("entry_point"), row.get_text("test")
    check_syntax(row, "prompt", prompt)
    check_syntax(row, "test", test)
    preamble = prompt[: prompt.index(f"def {entry}")] if f"def {entry}" in prompt else ""
    tests = Checks(entry, code=test, setup=prompt, check="check", preamble=preamble)
    statement = f"Complete this function.\n```python\n{prompt.rstrip()}\n```"
    return LoadedTask(split, "humaneval", Program(statement, tests, prompt + str(row.get("canonical_solution") or "")))


def mbpp(row: Row, split: str) -> LoadedTask | None:
    """MBPP. If files name no split, a task's number determines it, as published. Tasks 1 to 10, for prompts, are left out."""
    number = row.get("task_id")
    if isinstance(number, int) and 1 <= number <= 10:
        return None
    asserts = row.get_value("test_list")
    if not isinstance(asserts, list) or not asserts or not all(isinstance(one, str) for one in asserts):
        raise row.make_error("test_list", "is not a list of asserts")
    imports = row.get("test_imports")
    setup = "\n".join(imports) if isinstance(imports, list) else str(row.get("test_setup_code") or "")
    for one in asserts:
        check_syntax(row, "test_list", one)
    check_syntax(row, "test_setup_code", setup)
    simple = None if setup.strip() else calls_of(asserts)
    if simple is not None:
        tests = Checks(simple[0], simple[1])
    else:
        tests = Checks(code="\n".join([setup, *asserts]))
    statement = f"{row.get_text('text', 'prompt')}\nYour program must pass tests like this one:\n{asserts[0]}"
    if row.split is None and isinstance(number, int):
        split = "test" if 11 <= number <= 510 else "val" if 511 <= number <= 600 else "train"
    return LoadedTask(split, "mbpp", Program(statement, tests, str(row.get("code") or "")))


def check_syntax(row: Row, name: str, source: str) -> None:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise row.make_error(name, f"is not Python: {error}") from None
