"""Readers for mathematics data sets: a row becomes a problem with its category and hardness."""

from __future__ import annotations

import re
from typing import Any

from fedagentgym.envs.reasoning.generators.problem import MathProblem
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources.rows import Row, format_plain_number
from fedagentgym.envs.verifiers.math_text import last_box, normal, unreadable

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
    return _make_task(
        row, split, category, row.get_text("question"), [gold.strip()], min(steps, 8) / 8, _STEP.sub("", worked).strip()
    )


def math(row: Row, split: str) -> LoadedTask:
    solution = row.get("solution")
    gold = row.get("answer")
    if gold is None:
        gold = _read_boxed(row)
    level = re.search(r"[1-5]", str(row.get("level") or ""))
    return _make_task(
        row,
        split,
        row.get_text("type", "subject"),
        row.get_text("problem"),
        [_read_gold(row, "answer", gold)],
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
    told = row.get("reward_model")
    gold = told.get("ground_truth") if isinstance(told, dict) else row.get_value("answer", "solution", "reward_model")
    category = str(row.get("category", "topic", "data_source", "ability") or "dapo")
    return _make_task(row, split, category, prompt, [_read_gold(row, "ground_truth", gold)], None, "")


def openr1(row: Row, split: str) -> LoadedTask:
    category = str(row.get("problem_type", "type") or "other")
    return _make_task(
        row,
        split,
        category,
        row.get_text("problem"),
        [_read_gold(row, "answer", row.get_value("answer"))],
        None,
        str(row.get("solution") or ""),
    )


def deepmath(row: Row, split: str) -> LoadedTask:
    topics = [part.strip() for part in row.get_text("topic").split("->")]
    difficulty = row.get("difficulty")
    if difficulty is not None and (not isinstance(difficulty, int | float) or isinstance(difficulty, bool)):
        raise row.make_error("difficulty", f"is not a number, but {str(difficulty)[:40]!r}")
    return _make_task(
        row,
        split,
        topics[1] if len(topics) > 1 else topics[0],
        row.get_text("question"),
        [_read_gold(row, "final_answer", row.get_value("final_answer"))],
        None if difficulty is None else max(0.0, min(1.0, float(difficulty) / 10)),
        str(row.get("r1_solution_1") or ""),
    )


def contest(row: Row, split: str, name: str = "") -> LoadedTask:
    """AIME and AMC; the contest's name is the category, the number of the problem its hardness."""
    category, number = _find_contest(row)
    category = category or name or str(row.get("year", "contest", "source") or "contest")
    hardness = None if number is None else min(1.0, number / (15 if "AIME" in category else 25))
    gold = row.get("answer")
    gold = _read_boxed(row) if gold is None else _read_gold(row, "answer", gold)
    solution = str(row.get("solution") or "")
    return _make_task(row, split, category, row.get_text("problem", "question"), [gold], hardness, solution)


def _find_contest(row: Row) -> tuple[str, int | None]:
    """The contest and the number of a problem, from its address or its id (2024-II-4), if they contain them."""
    if told := _YEAR_AND_PROBLEM.search(str(row.get("url") or "")):
        return told["contest"].replace("_", " "), int(told["number"])
    if told := _CONTEST_ID.fullmatch(str(row.get("id") or "")):
        return f"{told['year']} AIME {told['part']}", int(told["number"])
    return "", None


def minerva(row: Row, split: str) -> LoadedTask:
    gold = row.get("answer")
    gold = _read_boxed(row) if gold is None else _read_gold(row, "answer", gold)
    category = str(row.get("type", "subject", "course") or "minerva")
    solution = str(row.get("solution") or "")
    return _make_task(row, split, category, row.get_text("problem", "question"), [gold], None, solution)


def olympiadbench(row: Row, split: str) -> LoadedTask:
    told = row.get_value("final_answer", "answer")
    golds = [_read_gold(row, "final_answer", gold) for gold in (told if isinstance(told, list) else [told])]
    if len(golds) > 1 and row.get("is_multiple_answer"):
        golds = [", ".join(golds)]
    solutions = row.get("solution")
    solution = solutions[0] if isinstance(solutions, list) and solutions else solutions
    category = str(row.get("subfield", "subject") or "olympiad")
    return _make_task(row, split, category, row.get_text("question", "problem"), golds, None, str(solution or ""))


def _read_boxed(row: Row) -> str:
    """The boxed answer at the end of a solution, of a row that has no answer of its own; also one without braces."""
    solution = row.get_text("solution")
    gold = last_box(solution)
    if gold is None and (plain := _PLAIN_BOX.findall(solution)):
        gold = plain[-1]
    if gold is None:
        raise row.make_error("solution", "has no \\boxed{} answer")
    return gold


def _read_gold(row: Row, name: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format_plain_number(value)
    if not isinstance(value, str) or not value.strip():
        raise row.make_error(name, f"is no answer: {str(value)[:60]!r}")
    boxed = last_box(value)
    return (boxed if boxed is not None else value).strip()


def _make_task(
    row: Row, split: str, category: str, problem: str, golds: list[str], hardness: float | None, solution: str
) -> LoadedTask:
    for gold in golds:
        if not normal(gold):
            raise row.make_error("answer", f"is empty once it is normalised: {gold[:60]!r}")
        if why := unreadable(gold):
            raise row.make_error("answer", f"cannot be verified ({why}): {gold[:60]!r}")
    return LoadedTask(split, category, MathProblem(problem, tuple(golds), solution), hardness)
