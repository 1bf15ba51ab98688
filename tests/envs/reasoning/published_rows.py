"""A row of every data set, written by hand with the columns of the published one, and what it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.code import CodeEnv
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.qa import QAEnv
from fedagentgym.envs.reasoning.replies import ReplyEnv
from fedagentgym.envs.reasoning.sources import SOURCES

WORLDS: dict[str, type[ReplyEnv]] = {"math": MathEnv, "qa": QAEnv, "code": CodeEnv}
CONTEXT = [["Oslo", ["Oslo is the capital of Norway. ", "It lies on a fjord."]], ["Rome", ["Rome is in Italy."]]]
ROWS: dict[str, tuple[dict[str, Any], str, str, float | None]] = {
    "gsm8k": ({"question": "2 + 3?", "answer": "It is 2+3=<<2+3=5>>5\n#### 5"}, "5", "1-2 steps", 0.125),
    "math": (
        {"problem": "p", "level": "Level 4", "type": "Algebra", "solution": "so \\boxed{\\frac{1}{2}}."},
        "\\frac{1}{2}",
        "Algebra",
        0.8,
    ),
    "math-original": (
        {"problem": "p", "level": "Level 4", "type": "Algebra", "solution": "so \\boxed{\\frac{1}{2}}."},
        "\\frac{1}{2}",
        "Algebra",
        0.8,
    ),
    "math500": (
        {"problem": "p", "solution": "s", "answer": "(1, 2)", "subject": "Geometry", "level": 2},
        "(1, 2)",
        "Geometry",
        0.4,
    ),
    "dapo": (
        {
            "prompt": [{"content": "p", "role": "user"}],
            "reward_model": {"ground_truth": "34"},
            "data_source": "math_dapo",
        },
        "34",
        "math_dapo",
        None,
    ),
    "dapo-processed": (
        {
            "prompt": "p",
            "solution": "34",
            "data_source": "math_dapo",
            "source_prompt": [{"content": "Solve the following ...", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4"},
        },
        "34",
        "math_dapo",
        None,
    ),
    "openr1": (
        {"problem": "p", "answer": "x+1", "problem_type": "Number Theory", "solution": "s"},
        "x+1",
        "Number Theory",
        None,
    ),
    "deepmath": (
        {"question": "p", "final_answer": "\\infty", "difficulty": 6.5, "topic": "Mathematics -> Calculus -> Limits"},
        "\\infty",
        "Calculus",
        0.65,
    ),
    "aime": (
        {"problem": "p", "answer": "204", "url": "https://x/2024_AIME_I_Problems/Problem_3"},
        "204",
        "2024 AIME I",
        0.2,
    ),
    "aime24": (
        {
            "id": 60,
            "problem": "p",
            "solution": "s",
            "answer": "073",
            "url": "https://x/2024_AIME_II_Problems/Problem_15",
            "year": "2024",
        },
        "073",
        "2024 AIME II",
        1.0,
    ),
    "aime25": ({"problem": "p", "answer": "70", "id": "0"}, "70", "2025 AIME", None),
    "amc": (
        {"problem": "p", "answer": 27.0, "url": "https://x/2023_AMC_12A_Problems/Problem_5"},
        "27",
        "2023 AMC 12A",
        0.2,
    ),
    "minerva": ({"problem": "p", "solution": "thus \\boxed{3.5e4}", "type": "Astronomy"}, "3.5e4", "Astronomy", None),
    "olympiadbench": (
        {
            "question": "p",
            "final_answer": ["$1,2$"],
            "subfield": "Algebra",
            "is_multiple_answer": True,
            "solution": ["s"],
        },
        "$1,2$",
        "Algebra",
        None,
    ),
    "hotpotqa": (
        {
            "question": "q",
            "answer": "Norway",
            "type": "bridge",
            "level": "hard",
            "context": CONTEXT,
            "supporting_facts": [["Oslo", 0]],
        },
        "Norway",
        "bridge",
        1.0,
    ),
    "2wikimultihopqa": (
        {
            "question": "q",
            "answer": "Norway",
            "type": "compositional",
            "context": {"title": ["Oslo"], "sentences": [["Oslo is in Norway."]]},
            "supporting_facts": {"title": ["Oslo"], "sent_id": [0]},
        },
        "Norway",
        "compositional",
        None,
    ),
    "musique": (
        {
            "id": "3hop1__1_2_3",
            "question": "q",
            "answer": "Oslo",
            "answer_aliases": ["Christiania"],
            "answerable": True,
            "paragraphs": [{"title": "Oslo", "paragraph_text": "Oslo is big.", "is_supporting": True}],
        },
        "Oslo",
        "3 hops",
        0.75,
    ),
    "medqa": (
        {"question": "q", "options": {"A": "x", "B": "y"}, "answer": "y", "answer_idx": "B", "meta_info": "step1"},
        "B",
        "step1",
        None,
    ),
    "medmcqa": (
        {"question": "q", "opa": "w", "opb": "x", "opc": "y", "opd": "z", "cop": 2, "subject_name": "Anatomy"},
        "C",
        "Anatomy",
        None,
    ),
    "humaneval": (
        {
            "task_id": "HumanEval/0",
            "prompt": 'from typing import List\n\ndef f(xs: List[int]) -> int:\n    """Sum."""\n',
            "entry_point": "f",
            "canonical_solution": "    return sum(xs)\n",
            "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
        },
        "",
        "humaneval",
        None,
    ),
    "mbpp": (
        {
            "task_id": 601,
            "text": "Add.",
            "code": "def f(a):\n    return a + 1",
            "test_list": ["assert f(1) == 2"],
            "test_setup_code": "",
        },
        "",
        "mbpp",
        None,
    ),
}


def write(folder: Path, name: str, *rows: Any) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def world_of(name: str, data: Path, **options: Any) -> ReplyEnv:
    return open_env(WORLDS[SOURCES[name].task], source=name, data=data, **options)
