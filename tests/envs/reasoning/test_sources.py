"""Readers of other people's data: what they make of each format, and what they say about faults."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import fedagentgym
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.code import CodeEnv
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.qa import QAEnv
from fedagentgym.envs.reasoning.sources import SOURCES
from fedagentgym.envs.reasoning.sources.installing import install_files
from fedagentgym.envs.reasoning.sources.rows import infer_split
from tests.envs.reasoning.published_rows import ROWS, world_of, write

assert fedagentgym


@pytest.mark.parametrize("name", SOURCES)
def test_a_row_of_every_source(name: str, tmp_path: Path) -> None:
    row, gold, category, hardness = ROWS[name]
    env = world_of(name, write(tmp_path, "data.jsonl", row), split="all")
    (task,) = env.pool
    assert task.category == category
    assert task.hardness == (None if hardness is None else pytest.approx(hardness))
    assert task.split == ("test" if SOURCES[name].test_only else "train")
    if SOURCES[name].task != "code":
        assert task.payload.answers[0] == gold
        reply = f"<think> a </think> <answer> {gold} </answer>"
    else:
        reply = env.expert().act(env.reset_many([task.id], [0])[0])
    (episode,) = env.step_many(env.reset_many([task.id], [0]), [reply])
    assert episode.view.success
    (episode,) = env.step_many(env.reset_many([task.id], [0]), ["<answer> A or nothing </answer>"])
    assert not episode.view.success


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name in SOURCES
        for field in ("question", "problem", "prompt", "answer", "answers", "final_answer", "test", "test_list")
        if field in ROWS[name][0]
    ],
)
def test_a_missing_or_wrong_field_is_named_with_file_and_line(name: str, field: str, tmp_path: Path) -> None:
    good = ROWS[name][0]
    without = {key: value for key, value in good.items() if key != field}
    for bad in (
        without,
        {**good, field: 7.5} if field in ("question", "problem", "test_list") else {**good, field: []},
    ):
        data = write(tmp_path, "data.jsonl", good, bad)
        try:
            world_of(name, data, split="all")
        except DataError as error:
            assert "data.jsonl, line 2" in str(error), error
        else:
            assert name in ("medqa", "olympiadbench", "math", "math500", "minerva", "gsm8k", "deepmath") or field in (
                "question",
                "problem",
            )


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ('{"B": "y", "A": "x", "C": null}', [("A", "x"), ("B", "y")]),
        ([{"key": "A", "value": "x"}, {"key": "B", "value": 2}], [("A", "x"), ("B", "2")]),
        (["x", "y", "z"], [("A", "x"), ("B", "y"), ("C", "z")]),
    ],
)
def test_options_are_read_in_every_form_in_which_they_are_published(
    options: object, read: list[tuple[str, str]], tmp_path: Path
) -> None:
    row = {**ROWS["medqa"][0], "options": options}
    (task,) = world_of("medqa", write(tmp_path, "data.jsonl", row), split="all").pool
    assert list(task.payload.options) == read


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("medqa", {"options": "{"}, "the field 'options' is not valid JSON"),
        ("medqa", {"options": []}, "the field 'options' holds no options"),
        ("medqa", {"answer_idx": "Z", "answer": "nowhere"}, "data.jsonl, line 1"),
        ("musique", {"paragraphs": "Oslo"}, "the field 'paragraphs' is not a list, but str"),
        ("musique", {"paragraphs": [{"title": "Oslo"}]}, "has an entry without 'title' or 'paragraph_text'"),
        ("hotpotqa", {"context": "{"}, "the field 'context' is not valid JSON"),
        ("medmcqa", {"cop": "second"}, "data.jsonl, line 1"),
    ],
)
def test_malformed_questions_are_named(name: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        world_of(name, write(tmp_path, "data.jsonl", {**ROWS[name][0], **changes}), split="all")


def test_unanswerable_questions_are_left_out(tmp_path: Path) -> None:
    answerable, row = ROWS["musique"][0], {**ROWS["musique"][0], "answerable": False}
    assert len(world_of("musique", write(tmp_path, "data.jsonl", answerable, row), split="all").pool) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no task"),
        ("{\n", "line 1: not valid JSON"),
        ('{"question": "x"}\n', "line 1: there is no field 'answer'"),
        ('{"question": "x", "answer": "5"}\n', "no final answer after '####'"),
        ('{"question": "", "answer": "#### 5"}\n', "the field 'question' is not a text"),
        ("[1]\n", "a record must be a JSON object"),
        ('{"question": "x", "answer": "#### \\u0000"}\n', "cannot be verified"),
        ('{"question": "x", "answer": "#### ."}\n', "is empty"),
        ("[" * 200 + "]" * 200 + "\n", "nested more than 100 levels deep"),
        ("[" * 100_000 + "\n", "nested more than 100 levels deep"),
        ("\x00\x01", "not valid JSON"),
    ],
)
def test_faults_of_files(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "gsm.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        open_env(MathEnv, source="gsm8k", data=path)


def test_faults_of_paths(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "none.jsonl", "no such file"),
        (tmp_path, "holds no file"),
        (write(tmp_path, "data.txt", {}), "data files end in"),
    ):
        with pytest.raises(DataError, match=said):
            open_env(MathEnv, source="gsm8k", data=path)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="cannot read"):
        open_env(MathEnv, source="gsm8k", data=tmp_path / "bad.parquet")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no")
    with pytest.raises(DataError, match="cannot read"):
        open_env(MathEnv, source="gsm8k", data=tmp_path / "bad.jsonl.gz")


def test_files_are_packed_or_not_lists_or_lines_or_tables(tmp_path: Path) -> None:
    row = ROWS["gsm8k"][0]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "train.json").write_text(json.dumps([row, row]))
    (tmp_path / "a" / "test.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    env = open_env(MathEnv, source="gsm8k", data=tmp_path / "a")
    assert env.split_sizes() == {"train": 2, "val": 0, "test": 1, "warmup": 0, "unseen": 0}
    assert env.pool.ids == ["math/train/00000", "math/train/00001"]
    assert set(env.pool.source["files"]) == {"train.json", "test.jsonl.gz"}
    with pytest.raises(DataError, match="'val' is empty"):
        open_env(MathEnv, source="gsm8k", data=tmp_path / "a", split="val")
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "b" / "validation.parquet")
    assert len(open_env(MathEnv, source="gsm8k", data=tmp_path / "b", split="val").pool) == 1


def test_a_folder_of_one_problem_per_file(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "algebra").mkdir(parents=True)
        (tmp_path / split / "algebra" / "1.json").write_text(json.dumps(ROWS["math"][0]))
    assert open_env(MathEnv, source="math", data=tmp_path).split_sizes() == {
        "train": 1,
        "val": 0,
        "test": 1,
        "warmup": 0,
        "unseen": 0,
    }
    assert infer_split(Path("gsm8k/dev-00000-of-1.parquet")) == "val"
    assert infer_split(Path("latest.jsonl")) is None


def test_training_tasks_can_be_held_out(tmp_path: Path) -> None:
    rows = [{**ROWS["gsm8k"][0], "question": f"{number} ?"} for number in range(20)]
    data = write(tmp_path, "train.jsonl", *rows)
    env = open_env(MathEnv, source="gsm8k", data=data, holdout=4)
    assert env.split_sizes() == {"train": 12, "val": 4, "test": 4, "warmup": 0, "unseen": 0}
    parts = [
        {task.payload.problem for task in open_env(MathEnv, source="gsm8k", data=data, holdout=4, split=split).pool}
        for split in ("train", "val", "test")
    ]
    assert len(set.union(*parts)) == 20
    assert env.pool.digest != open_env(MathEnv, source="gsm8k", data=data).pool.digest
    assert env.pool.digest != open_env(MathEnv, source="gsm8k", data=data, holdout=4, seed=1).pool.digest
    with pytest.raises(OptionError, match="holdout=10"):
        open_env(MathEnv, source="gsm8k", data=data, holdout=10)


def test_changed_files_are_read_anew(tmp_path: Path) -> None:
    data = write(tmp_path, "train.jsonl", ROWS["gsm8k"][0])
    before = open_env(MathEnv, source="gsm8k", data=data).pool
    write(tmp_path, "train.jsonl", ROWS["gsm8k"][0], ROWS["gsm8k"][0])
    after = open_env(MathEnv, source="gsm8k", data=data).pool
    assert (len(before), len(after)) == (1, 2) and before.digest != after.digest
    file = Path(data) / "train.jsonl" if Path(data).is_dir() else Path(data)
    times, text = file.stat(), file.read_text()
    file.write_text(text.swapcase())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    with pytest.raises(DataError):
        open_env(MathEnv, source="gsm8k", data=data)


def test_options_of_medical_questions_are_counted_from_zero_or_one(tmp_path: Path) -> None:
    row = ROWS["medmcqa"][0]
    from_one = write(tmp_path, "train.jsonl", row, {**row, "cop": 4})
    assert [task.payload.answers[0] for task in open_env(QAEnv, source="medmcqa", data=from_one).pool] == ["B", "D"]
    from_zero = write(tmp_path, "dev.jsonl", row, {**row, "cop": 0}, {**row, "cop": -1})
    assert [
        task.payload.answers[0] for task in open_env(QAEnv, source="medmcqa", data=from_zero, split="val").pool
    ] == ["C", "A"]


def test_programs_keep_the_imports_of_their_task(tmp_path: Path) -> None:
    env = open_env(
        CodeEnv, source="humaneval", data=write(tmp_path, "HumanEval.jsonl", ROWS["humaneval"][0]), split="test"
    )
    reply = "<answer>\n```python\ndef f(xs: List[int]) -> int:\n    return sum(xs)\n```\n</answer>"
    (episode,) = env.step_many(env.reset_many([env.pool.ids[0]], [0]), [reply])
    assert episode.view.success


def test_dapo_is_unwrapped_and_its_repeated_problems_are_one(tmp_path: Path) -> None:
    row = ROWS["dapo"][0]
    wrapped = "Solve the following math problem step by step. Now.\n\nWhat is 2?\n\nRemember to put your answer last."
    rows = [row, {**row, "prompt": [{"content": wrapped, "role": "user"}]}, row]
    problems = [
        task.payload.problem
        for task in open_env(MathEnv, source="dapo", data=write(tmp_path, "train.jsonl", *rows)).pool
    ]
    assert problems == ["p", "What is 2?"]


def test_without_files_the_installed_copy_is_read_and_nothing_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "kept"))
    with pytest.raises(DataError, match="the data set math500 is not installed: `fedagentgym data add math500`"):
        open_env(MathEnv, source="math500", split="test")
    install_files("math500", write(tmp_path, "rows.jsonl", ROWS["math500"][0]))
    default, named = (open_env(MathEnv, source="math500", split="test", **data) for data in ({}, {"data": "installed"}))
    assert default.pool.digest == named.pool.digest and len(default.pool) == 1


@pytest.mark.parametrize(
    ("name", "path", "count"),
    [
        ("gsm8k", "gsm8k/test.jsonl", 1319),
        ("aime", "aime24", 30),
        ("amc", "amc23/test.jsonl", 40),
        ("humaneval", "humaneval/HumanEval.jsonl.gz", 164),
    ],
)
def test_real_files(name: str, path: str, count: int, shared_data: Path) -> None:
    env = world_of(name, shared_data / path, split="test")
    assert len(env.pool) == count
    first = env.reset_many([env.pool.ids[0]], [0])[0]
    assert len(first.view.observation) > 40
