"""Readers for mathematics data sets: a row becomes a problem with its category and hardness."""

from __future__ import annotations

import re
from typing import Any

from fedagentgym.envs.reasoning.generators.problem import MathProblem
from fedagentgym.envs.reasoning.pools import Loaded
from fedagentgym.envs.reasoning.sources.rows import Row, plain_number
from fedagentgym.envs.verifiers.math_text import last_box, normal, unreadable

_STEP = re.compile(r"<<[^<>]*>>")
_YEAR_AND_PROBLEM = re.compile(r"/(?P<contest>[0-9]{4}_[A-Za-z0-9_]+?)_Problems/Problem_(?P<number>[0-9]+)")


def gsm8k(row: Row, split: str) -> Loaded:
    worked, marker, gold = row.text("answer").rpartition("####")
    if not marker or not gold.strip():
        raise row.wrong("answer", "has no final answer after '####'")
    steps = len(_STEP.findall(worked))
    category = "1-2 steps" if steps <= 2 else f"{steps} steps" if steps < 6 else "6 or more steps"
    return _loaded(
        row, split, category, row.text("question"), [gold.strip()], min(steps, 8) / 8, _STEP.sub("", worked).strip()
    )


def math(row: Row, split: str) -> Loaded:
    solution = row.get("solution")
    gold = row.get("answer")
    if gold is None:
        gold = last_box(str(solution or row.text("solution")))
        if gold is None:
            raise row.wrong("solution", "has no \\boxed{} answer")
    level = re.search(r"[1-5]", str(row.get("level") or ""))
    return _loaded(
        row,
        split,
        row.text("type", "subject"),
        row.text("problem"),
        [_gold(row, "answer", gold)],
        int(level[0]) / 5 if level else None,
        str(solution or ""),
    )


def dapo(row: Row, split: str) -> Loaded:
    prompt = row.value("problem", "question", "prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        prompt = prompt[-1].get("content")
    if not isinstance(prompt, str) or not prompt.strip():
        raise row.wrong("prompt", "holds no text")
    parts = prompt.split("\n\n")
    if (
        len(parts) > 2
        and parts[0].startswith("Solve the following")
        and parts[-1].startswith("Remember to put your answer")
    ):
        prompt = "\n\n".join(parts[1:-1])
    told = row.get("reward_model")
    gold = told.get("ground_truth") if isinstance(told, dict) else row.value("answer", "solution", "reward_model")
    category = str(row.get("category", "topic", "data_source", "ability") or "dapo")
    return _loaded(row, split, category, prompt, [_gold(row, "ground_truth", gold)], None, "")


def openr1(row: Row, split: str) -> Loaded:
    category = str(row.get("problem_type", "type") or "other")
    return _loaded(
        row,
        split,
        category,
        row.text("problem"),
        [_gold(row, "answer", row.value("answer"))],
        None,
        str(row.get("solution") or ""),
    )


def deepmath(row: Row, split: str) -> Loaded:
    topics = [part.strip() for part in row.text("topic").split("->")]
    difficulty = row.get("difficulty")
    if difficulty is not None and (not isinstance(difficulty, int | float) or isinstance(difficulty, bool)):
        raise row.wrong("difficulty", f"is not a number, but {str(difficulty)[:40]!r}")
    return _loaded(
        row,
        split,
        topics[1] if len(topics) > 1 else topics[0],
        row.text("question"),
        [_gold(row, "final_answer", row.value("final_answer"))],
        None if difficulty is None else max(0.0, min(1.0, float(difficulty) / 10)),
        str(row.get("r1_solution_1") or ""),
    )


def contest(row: Row, split: str) -> Loaded:
    """AIME and AMC; the contest's name is the category, the number of the problem its hardness."""
    told = _YEAR_AND_PROBLEM.search(str(row.get("url") or ""))
    number = int(told["number"]) if told else None
    category = told["contest"].replace("_", " ") if told else str(row.get("year", "contest", "source") or "contest")
    most = 15 if "AIME" in category else 25
    hardness = None if number is None else min(1.0, number / most)
    gold = _gold(row, "answer", row.value("answer"))
    return _loaded(
        row, split, category, row.text("problem", "question"), [gold], hardness, str(row.get("solution") or "")
    )


def minerva(row: Row, split: str) -> Loaded:
    solution = str(row.get("solution") or "")
    gold = row.get("answer")
    if gold is None:
        gold = last_box(solution)
        if gold is None:
            raise row.wrong("solution", "has no \\boxed{} answer")
    category = str(row.get("type", "subject", "course") or "minerva")
    return _loaded(row, split, category, row.text("problem", "question"), [_gold(row, "answer", gold)], None, solution)


def olympiadbench(row: Row, split: str) -> Loaded:
    told = row.value("final_answer", "answer")
    golds = [_gold(row, "final_answer", gold) for gold in (told if isinstance(told, list) else [told])]
    if len(golds) > 1 and row.get("is_multiple_answer"):
        golds = [", ".join(golds)]
    solutions = row.get("solution")
    solution = solutions[0] if isinstance(solutions, list) and solutions else solutions
    category = str(row.get("subfield", "subject") or "olympiad")
    return _loaded(row, split, category, row.text("question", "problem"), golds, None, str(solution or ""))


def _gold(row: Row, name: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return plain_number(value)
    if not isinstance(value, str) or not value.strip():
        raise row.wrong(name, f"is no answer: {str(value)[:60]!r}")
    boxed = last_box(value)
    return (boxed if boxed is not None else value).strip()


def _loaded(
    row: Row, split: str, category: str, problem: str, golds: list[str], hardness: float | None, solution: str
) -> Loaded:
    for gold in golds:
        if not normal(gold):
            raise row.wrong("answer", f"is empty once it is normalised: {gold[:60]!r}")
        if why := unreadable(gold):
            raise row.wrong("answer", f"cannot be verified ({why}): {gold[:60]!r}")
    return Loaded(split, category, MathProblem(problem, tuple(golds), solution), hardness)
