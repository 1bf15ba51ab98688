"""Data sets in the formats and folders in which they are published, a fiftieth of their size, written by hand and by rule."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedagentgym.envs.alfworld.gamefiles import write_game_files
from fedagentgym.envs.alfworld.houses import make_house_pool

from .sizes import SHARE

Record = dict[str, Any]
TYPES = ("Algebra", "Geometry", "Number Theory", "Prealgebra", "Precalculus")
TOPICS = ("Algebra", "Calculus", "Geometry", "Number Theory")
SUBJECTS = ("Anatomy", "Surgery", "Medicine", "Pharmacology")
CITIES = ("Oslo", "Rome")
COLOURS, SIZES = ("red", "blue", "green", "white"), ("small", "large")
KINDS = ("beauty", "electronics", "fashion", "garden", "grocery")


def share(published: int) -> range:
    return range(published // SHARE)


def gold(number: int) -> int:
    """The sum that every problem of mathematics asks for: 3, 4 or 5."""
    return 3 + number % 3


def ask(number: int, source: str = "") -> str:
    """A problem; no two sources have one in common."""
    return f"Problem {number}{source and ' of '}{source}. What is {gold(number) - 1} + 1?"


def write_lines(path: Path, rows: Iterable[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


# ---- mathematics ----------------------------------------------------------------------------------------------------


def write_gsm8k(folder: Path) -> None:
    for split, count in (("train", 7473), ("test", 1319)):
        steps = ("<<1+1=2>>2 " * (number % 4) for number in share(count))
        rows = (
            {"question": ask(number, split), "answer": f"{worked}so\n#### {gold(number)}"}
            for number, worked in enumerate(steps)
        )
        write_lines(folder / f"{split}.jsonl", rows)


def write_math(folder: Path) -> None:
    """One file for each problem, as in the original archive."""
    for split, count in (("train", 7500), ("test", 5000)):
        for number in share(count):
            kind = TYPES[number % len(TYPES)]
            row = {
                "problem": ask(number, f"mathematics, {split}"),
                "level": f"Level {1 + number % 5}",
                "type": kind,
                "solution": f"It is $\\boxed{{{gold(number)}}}$.",
            }
            write_json(folder / split / kind.lower().replace(" ", "_") / f"{number}.json", row)


def write_math500(folder: Path) -> None:
    rows = (
        {
            "problem": ask(n, "MATH-500"),
            "solution": "s",
            "answer": str(gold(n)),
            "subject": TYPES[n % 5],
            "level": 1 + n % 5,
        }
        for n in share(500)
    )
    write_lines(folder / "test.jsonl", rows)


def write_contest(name: str, count: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        rows = ({"id": str(n), "problem": ask(n, name), "answer": f"{gold(n):03d}"} for n in range(count))
        write_lines(folder / f"{name}.jsonl", rows)

    return write


def write_minerva(folder: Path) -> None:
    rows = (
        {"problem": ask(n, "Minerva"), "solution": f"so \\boxed{{{gold(n)}}}", "type": "Astronomy"} for n in share(272)
    )
    write_lines(folder / "minervamath.jsonl", rows)


def write_olympiadbench(folder: Path) -> None:
    rows = (
        {
            "question": ask(n, "OlympiadBench"),
            "final_answer": [f"${gold(n)}$"],
            "solution": ["s"],
            "subfield": TOPICS[n % 4],
            "is_multiple_answer": False,
        }
        for n in share(674)
    )
    write_json(folder / "OE_TO_maths_en_COMP" / "OE_TO_maths_en_COMP.json", list(rows))


def write_openr1(folder: Path) -> None:
    rows = (
        {"problem": ask(n), "answer": str(gold(n)), "problem_type": TOPICS[n % 4], "solution": f"It is {gold(n)}."}
        for n in range(100)
    )
    write_lines(folder / "data" / "train-00000-of-00010.jsonl", rows)


def write_deepmath(folder: Path) -> None:
    rows = (
        {
            "question": ask(n),
            "final_answer": str(gold(n)),
            "difficulty": 1.0 + n % 9,
            "topic": f"Mathematics -> {TOPICS[n % 4]} -> Sums",
            "r1_solution_1": f"It is {gold(n)}.",
        }
        for n in share(20_500)
    )
    write_lines(folder / "train.jsonl", rows)


def write_dapo(folder: Path) -> None:
    """The English half; the other one has a folder of its own."""
    rows = (
        {
            "prompt": ask(n),
            "solution": str(gold(n)),
            "data_source": "math_dapo",
            "source_prompt": [{"content": f"Solve the following ... {ask(n)}", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(gold(n)), "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"{n:08x}"},
        }
        for n in share(14_116)
    )
    write_lines(folder / "en" / "train-00000-of-00001.jsonl", rows)


# ---- questions ------------------------------------------------------------------------------------------------------


def make_article(number: int) -> Record:
    city = CITIES[number % 2]
    country = ("Norway", "Italy")[number % 2]
    return {
        "_id": f"{number:08x}",
        "question": f"Question {number}. Which city is the capital of {country}?",
        "answer": city,
        "type": ("comparison", "bridge", "inference")[number % 3],
        "level": "hard",
        "context": [[city, [f"{city} is a city.", f"It is the capital of {country}."]], [country, ["A country."]]],
        "supporting_facts": [[city, 1]],
    }


def write_articles(*files: tuple[str, int]) -> Callable[[Path], None]:
    """HotpotQA and 2WikiMultihopQA: one list in each file."""

    def write(folder: Path) -> None:
        for name, count in files:
            write_json(folder / name, [make_article(number) for number in share(count)])

    return write


def write_musique(folder: Path) -> None:
    for name, count in (("musique_ans_v1.0_train", 2000), ("musique_ans_v1.0_dev", 2417)):
        rows = (
            {
                "id": f"{2 + n % 3}hop__{n}",
                "question": f"Question {n}. Which city lies on a fjord?",
                "answer": "Oslo",
                "answer_aliases": ["Christiania"],
                "answerable": True,
                "paragraphs": [{"title": "Oslo", "paragraph_text": "It lies on a fjord.", "is_supporting": True}],
            }
            for n in share(count)
        )
        write_lines(folder / f"{name}.jsonl", rows)


def write_medqa(folder: Path) -> None:
    for split, count in (("train", 10_178), ("test", 1_273)):
        rows = (
            {
                "question": f"Case {n} of {split}. Which is right?",
                "options": {"A": "this", "B": "that", "C": "none", "D": "all"},
                "answer": "this" if n % 2 else "that",
                "answer_idx": "A" if n % 2 else "B",
                "meta_info": f"step{1 + n % 2}",
            }
            for n in share(count)
        )
        write_lines(folder / f"phrases_no_exclude_{split}.jsonl", rows)


def write_medmcqa(folder: Path) -> None:
    for split, count in (("train", 11_000), ("dev", 500)):
        rows = (
            {
                "question": f"Item {n} of {split}. Which is right?",
                **{f"op{letter}": f"option {letter}" for letter in "abcd"},
                "cop": 1 + n % 4,
                "subject_name": SUBJECTS[n % 4],
                "exp": "as taught",
            }
            for n in share(count)
        )
        write_lines(folder / f"{split}.json", rows)


# ---- programs -------------------------------------------------------------------------------------------------------


def write_humaneval(folder: Path) -> None:
    rows = (
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f'def f(a: int) -> int:\n    """Add one. ({n})"""\n',
            "entry_point": "f",
            "canonical_solution": "    return a + 1\n",
            "test": "def check(candidate):\n    assert candidate(1) == 2\n",
        }
        for n in share(164)
    )
    write_lines(folder / "HumanEval.jsonl.gz", rows)


def write_mbpp(folder: Path) -> None:
    """One file, whose numbers tell the splits."""
    numbers = (*range(1, 11), *range(11, 21), *range(511, 516), *range(601, 625))
    rows = (
        {
            "task_id": n,
            "text": f"Write a function that adds one. ({n})",
            "code": "def f(a):\n    return a + 1",
            "test_list": ["assert f(1) == 2", "assert f(2) == 3"],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for n in numbers
    )
    write_lines(folder / "mbpp.jsonl", rows)


# ---- worlds ---------------------------------------------------------------------------------------------------------


def write_webshop(folder: Path) -> None:
    """WebShop's files of the size of 1,000: lamps in four colours and two sizes, so that goals are many and products few.

    The first 500 goals are for evaluation, whatever there is: only the rest of them is a fiftieth of what is published.
    """
    goals = 500 + 5_410 // SHARE
    products, notes, human = [], {}, {}
    for number in range(-(-goals // (len(COLOURS) * len(SIZES)))):
        asin = f"B{number + 1:09d}"
        kind = KINDS[number % len(KINDS)]
        products.append(
            {
                "asin": asin,
                "name": f"Lamp {number} for the {kind} room",
                "full_description": f"A lamp with number {number}.",
                "small_description": ["Bright light", "Easy to use"],
                "pricing": f"${5 + number % 20}.99",
                "images": [f"https://example.org/{number}.jpg"],
                "product_category": f"Home › Lamps › {kind}",
                "category": kind,
                "query": f"{kind} lamps",
                "customization_options": {
                    "Color": [{"value": colour, "image": None, "asin": None} for colour in COLOURS],
                    "Size": [{"value": size} for size in SIZES],
                },
            }
        )
        attributes = ["easy use", "bright light"]
        notes[asin] = {
            "attributes": attributes,
            "instruction": f"Find me lamps that are easy to use, number {number}",
            "instruction_attributes": attributes[:1],
        }
        written = {"instruction": "i need a red lamp", "instruction_attributes": ["easy use"]}
        human[asin] = [{**written, "instruction_options": ["red"]}]
    write_json(folder / "items_shuffle_1000.json", products)
    write_json(folder / "items_ins_v2_1000.json", notes)
    write_json(folder / "items_human_ins.json", human)


def write_alfworld(folder: Path) -> None:
    """Games in the folders of json_2.1.1, two of every kind of task for evaluation."""
    env = "fedagentgym/ALFWorld-v0"
    for split, count in (("train", 3553 // SHARE), ("val", 6), ("test", 6)):
        pool = make_house_pool(split, env=env, size="tiny")
        write_game_files([pool[index] for index in range(count)], folder)


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "gsm8k": write_gsm8k,
    "math": write_math,
    "math-original": write_math,
    "math500": write_math500,
    "aime24": write_contest("aime24", 3),
    "aime25": write_contest("aime25", 3),
    "amc": write_contest("amc23", 4),
    "minerva": write_minerva,
    "olympiadbench": write_olympiadbench,
    "openr1": write_openr1,
    "deepmath": write_deepmath,
    "dapo-processed": write_dapo,
    "2wikimultihopqa": write_articles(("train.json", 5_000), ("dev.json", 500)),
    "hotpotqa": write_articles(("hotpot_train_v1.1.json", 500), ("hotpot_dev_distractor_v1.json", 500)),
    "musique": write_musique,
    "medqa": write_medqa,
    "medmcqa": write_medmcqa,
    "humaneval": write_humaneval,
    "mbpp": write_mbpp,
    "webshop": write_webshop,
    "alfworld": write_alfworld,
}
"""Every data set of the papers' rows, by the name under which it is installed."""
SUBSETS = {"dapo-processed": "en"}
