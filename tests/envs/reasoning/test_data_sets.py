"""Published data sets as they really come: several configurations, odd names, unusable rows, hidden answers, installed or not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, UnknownNameError
from fedagentgym.cli.main import main
from fedagentgym.envs.data_sets import find_data_set
from fedagentgym.envs.make import open_env, read_options
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.qa import QAEnv
from fedagentgym.envs.reasoning.replies import ReplyEnv
from fedagentgym.envs.reasoning.sources import SOURCES, find_source
from fedagentgym.envs.reasoning.sources.loading import Request, read_tasks
from tests.envs.reasoning.published_rows import ROWS, WORLDS, world_of, write

CONTESTS = ("aime", "aime24", "aime25", "amc", "minerva", "olympiadbench", "math500", "humaneval")
GSM: dict[str, Any] = ROWS["gsm8k"][0]
MATH: dict[str, Any] = ROWS["math"][0]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "installed-data"))


def count(env: ReplyEnv) -> dict[str, int]:
    return {split: number for split, number in env.split_sizes().items() if number}


# ---- names, columns, files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("AIME24", "aime24"),
        ("aime-2024", "aime24"),
        ("AIME 2025", "aime25"),
        ("MATH-500", "math500"),
        ("openai/GSM8K", "gsm8k"),
        ("open-r1/DAPO-Math-17k-Processed", "dapo-processed"),
        ("DAPO_processed", "dapo-processed"),
        ("2Wiki", "2wikimultihopqa"),
        ("Olympiad-Bench", "olympiadbench"),
        ("AMC23", "amc"),
    ],
)
def test_a_set_is_found_by_the_names_that_people_write(said: str, meant: str) -> None:
    assert find_source(said) == find_data_set(said).name == meant


def test_no_two_sets_have_a_name_in_common_and_an_unknown_one_is_refused() -> None:
    for name, source in SOURCES.items():
        assert [find_source(one) for one in (name, source.hub, *source.other_names)] == [name] * (
            2 + len(source.other_names)
        )
    with pytest.raises(UnknownNameError, match="did you mean 'gsm8k'"):
        find_source("gsm8", "math")
    with pytest.raises(UnknownNameError):
        open_env(MathEnv, source="hotpotqa")


@pytest.mark.parametrize("name", ["Test.JSONL", "TEST.json", "test.jsonl.GZ", "test.ndjson", "Test.Parquet"])
def test_files_and_columns_in_capitals(name: str, tmp_path: Path) -> None:
    row = {"ID": "2024-II-4", "Problem": "p", "Solution": "s", "Answer": 33}
    path, text = tmp_path / name, json.dumps(row)
    if name.lower().endswith("parquet"):
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("GZ") else text.encode())
    (task,) = open_env(MathEnv, source="AIME24", data=path, split="test").pool
    assert task.payload.answers == ("33",) and task.category == "2024 AIME II"
    assert task.hardness == pytest.approx(4 / 15)


def test_environments_over_the_same_data_share_its_pool(tmp_path: Path) -> None:
    data = write(tmp_path, "train.jsonl", GSM, {**GSM, "question": "else ?"})
    one, other = (open_env(MathEnv, source="gsm8k", data=data, attempts=n) for n in (1, 2))
    assert (
        one.pool is other.pool
        and one.pool is not open_env(MathEnv, source="gsm8k", data=data, bad_rows=0.5, holdout=0).pool
    )
    write(tmp_path, "train.jsonl", GSM)
    assert len(open_env(MathEnv, source="gsm8k", data=data).pool) == 1 and len(one.pool) == 2


def test_descriptions_beside_the_rows_are_not_rows(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", GSM)
    (tmp_path / "dataset_infos.json").write_text('{"main": {}}')
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "test.json").write_text("{}")
    assert count(open_env(MathEnv, source="gsm8k", data=tmp_path)) == {"train": 1}


@pytest.mark.parametrize("name", CONTESTS)
@pytest.mark.parametrize("file", ["train.jsonl", "validation.jsonl", "data.jsonl"])
def test_a_contest_is_a_test_set_whatever_its_file_is_called(name: str, file: str, tmp_path: Path) -> None:
    data = write(tmp_path, file, ROWS[name][0])
    assert count(world_of(name, data, split="test")) == {"test": 1}
    with pytest.raises(DataError, match=f"'train' is empty.*{name} is a test set"):
        world_of(name, data)
    with pytest.raises(OptionError, match="test set"):
        world_of(name, data, split="all", merge_splits=True)


def test_a_contest_is_a_test_set_whatever_the_hub_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[tuple[Any, ...]] = []

    def load(*given: Any) -> dict[str, list[Any]]:
        asked.append(given)
        return {"train": [ROWS["aime24"][0]]}

    monkeypatch.setattr(datasets, "load_dataset", load)
    find_data_set("aime24").add(None)
    assert count(open_env(MathEnv, source="aime24", split="test")) == {"test": 1}
    assert asked == [("HuggingFaceH4/aime_2024", None)]


# ---- configurations -----------------------------------------------------------------------------------------------


def test_one_configuration_is_read_of_several(tmp_path: Path) -> None:
    row = ROWS["dapo-processed"][0]
    for folder, problems in (("all", "abc"), ("en", "ab"), ("cn", "c")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "train-00000-of-00001.jsonl", *({**row, "prompt": problem} for problem in problems))
    sizes = {
        subset: len(open_env(MathEnv, source="dapo-processed", data=tmp_path, subset=subset).pool)
        for subset in (None, "all", "en", "EN", "cn")
    }
    assert sizes == {None: 3, "all": 3, "en": 2, "EN": 2, "cn": 1}
    digests = {
        open_env(MathEnv, source="dapo-processed", data=tmp_path, subset=one).pool.digest for one in ("all", "en", "cn")
    }
    assert len(digests) == 3
    with pytest.raises(OptionError, match="its configurations are all, en, cn"):
        open_env(MathEnv, source="dapo-processed", data=tmp_path, subset="de")
    only = tmp_path / "only"
    (only / "en").mkdir(parents=True)
    write(only / "en", "train.jsonl", row)
    with pytest.raises(DataError, match="holds the configurations en, and not 'all'"):
        open_env(MathEnv, source="dapo-processed", data=only)
    assert len(open_env(MathEnv, source="dapo-processed", data=only / "en").pool) == 1


# ---- rows that cannot be used -------------------------------------------------------------------------------------

UNUSABLE: dict[str, Any] = {
    "null answer": {"answer": None},
    "empty answer": {"answer": "  "},
    "overlong answer": {"answer": "1" * 5000},
    "answer of another type": {"answer": {"x": 1}},
    "no text": {"problem": None, "question": None},
    "a control character": {"answer": "\x00"},
}


@pytest.mark.parametrize("what", UNUSABLE)
@pytest.mark.parametrize("name", ["openr1", "2wikimultihopqa"])
def test_an_unusable_row_is_skipped_and_counted(
    name: str, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = ROWS[name][0]
    rows = [good] * 99
    rows.insert(41, {**good, **UNUSABLE[what]})
    data = write(tmp_path, "train.jsonl", *rows)
    assert len(world_of(name, data).pool) == 99
    assert "1 of 100 rows" in caplog.text and "train.jsonl, line 42" in caplog.text
    write(tmp_path, "train.jsonl", *rows[1:])
    with pytest.raises(DataError, match=r"train.jsonl, line 41.*1 of 99 rows of .* at most 0.01"):
        world_of(name, data)
    assert len(world_of(name, data, bad_rows=0.02).pool) == 98


def test_rows_that_are_no_objects_are_skipped_and_counted(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(["null", *[json.dumps(GSM)] * 150, ""]))
    assert len(open_env(MathEnv, source="gsm8k", data=data).pool) == 150
    with pytest.raises(DataError, match="line 1: a record must be a JSON object, not NoneType"):
        open_env(MathEnv, source="gsm8k", data=data, bad_rows=0.0)


def test_null_rows_of_a_table_are_skipped_and_counted(tmp_path: Path) -> None:
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = [GSM] * 150 + [{"question": None, "answer": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train-00000-of-00001.parquet")
    assert len(open_env(MathEnv, source="gsm8k", data=tmp_path).pool) == 150


ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.lists(st.text(max_size=2), max_size=2))


@given(st.data())
def test_whatever_stands_in_a_row_is_a_task_or_a_counted_row(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SOURCES)))
    row = dict(ROWS[name][0])
    for column in data.draw(st.lists(st.sampled_from(sorted(row)), max_size=3)):
        row[column] = data.draw(st.one_of(ODD, st.dictionaries(st.text(max_size=2), ODD, max_size=2)))
    records = [("train.jsonl, line 1", None, ROWS[name][0]), ("train.jsonl, line 2", None, row)]
    found = read_tasks(Request(name, bad_rows=1.0), records, {})
    assert len(found.tasks) + len(found.bad) + sum(found.left_out.values()) == found.rows == 2
    assert all("train.jsonl, line 2" in text and "\n" not in text for text in found.bad)
    for task in found.tasks:
        world = WORLDS[SOURCES[name].task]
        assert world.strip(task.payload) is not None


# ---- splits -------------------------------------------------------------------------------------------------------


def test_the_hidden_test_of_2wiki_is_left_out_and_named(tmp_path: Path) -> None:
    good = ROWS["2wikimultihopqa"][0]
    hidden = [{**good, "answer": ""}, {**good, "answer": None}, {k: v for k, v in good.items() if k != "answer"}]
    for file, rows in (("train.json", [good] * 3), ("dev.json", [good] * 2), ("test.json", hidden)):
        (tmp_path / file).write_text(json.dumps(rows))
    assert count(open_env(QAEnv, source="2wiki", data=tmp_path)) == {"train": 3, "val": 2}
    with pytest.raises(DataError, match="comes without its answers; evaluate on its val split"):
        open_env(QAEnv, source="2wiki", data=tmp_path, split="test")
    found = find_data_set("2wiki").check(tmp_path, None)
    assert found.left_out == {"answers not published": 3} and not found.skipped


def test_train_and_test_of_math_can_be_merged_and_divided_anew(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", *({**MATH, "problem": f"a{n}"} for n in range(75)))
    write(tmp_path, "test.jsonl", *({**MATH, "problem": f"b{n}"} for n in range(50)))
    whole = open_env(MathEnv, source="math", data=tmp_path, merge_splits=True)
    assert count(whole) == {"train": 125}
    made: dict[str, Any] = {"source": "math", "data": tmp_path, "merge_splits": True, "holdout": {"test": 13}}
    assert count(open_env(MathEnv, **made)) == {"train": 112, "test": 13}
    train, test = (
        {task.payload.problem for task in open_env(MathEnv, **made, split=one).pool} for one in ("train", "test")
    )
    assert not train & test and len(train | test) == 125
    with pytest.raises(OptionError, match="has a test split of its own"):
        open_env(MathEnv, source="math", data=tmp_path, holdout={"test": 13})
    digests = {
        open_env(MathEnv, source="math", data=tmp_path, **options).pool.digest
        for options in (
            {},
            {"merge_splits": True},
            {"merge_splits": True, "holdout": {"test": 13}},
            {"train_tasks": 75},
        )
    }
    assert len(digests) == 4


@given(data=st.data())
def test_every_way_of_dividing_keeps_each_task_once_and_in_order(tmp_path_factory: Any, data: st.DataObject) -> None:
    sizes = {split: data.draw(st.integers(0, 12)) for split in ("train", "val", "test")}
    sizes["train"] += 1
    folder = tmp_path_factory.mktemp("data")
    for split, size in sizes.items():
        write(folder, f"{split}.jsonl", *({**MATH, "problem": f"{split} {n}"} for n in range(size)))
    options: dict[str, Any] = {"merge_splits": data.draw(st.booleans()), "seed": data.draw(st.integers(0, 3))}
    if data.draw(st.booleans()):
        wanted = st.dictionaries(st.sampled_from(["val", "test"]), st.integers(0, 4), max_size=2)
        options["holdout"] = data.draw(st.one_of(st.integers(0, 4), wanted))
    if data.draw(st.booleans()):
        options["train_tasks"] = data.draw(st.integers(1, 10))
    written = [f"{split} {n}" for split in ("test", "train", "val") for n in range(sizes[split])]
    try:
        found = open_env(MathEnv, source="math", data=folder, split="all", **options).pool
    except OptionError as error:
        assert "holdout=" in str(error) or "train_tasks=" in str(error)
        return
    by_split: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for task in found:
        by_split[task.split].append(task.payload.problem)
    every = [problem for problems in by_split.values() for problem in problems]
    assert len(set(every)) == len(every) and set(every) <= set(written)
    for problems in by_split.values():
        assert problems == sorted(problems, key=written.index)
    if "train_tasks" in options:
        assert len(by_split["train"]) == options["train_tasks"]
    else:
        assert len(every) == len(written)
    if not options["merge_splits"]:
        own = {name: {problem for problem in by_split[name] if problem.startswith(name)} for name in ("val", "test")}
        assert all(len(own[name]) == sizes[name] for name in own), "a published split stays whole"
    again = open_env(MathEnv, source="math", data=folder, split="all", **options).pool
    assert [task.payload for task in again] == [task.payload for task in found]


def test_what_is_there_twice_is_not_held_out(tmp_path: Path) -> None:
    rows = [{**MATH, "problem": f"a{n // 2 if n < 20 else n}"} for n in range(40)]
    made: dict[str, Any] = {"source": "math", "data": write(tmp_path, "train.jsonl", *rows), "holdout": {"test": 19}}
    train, test = (
        {task.payload.problem for task in open_env(MathEnv, **made, split=one).pool} for one in ("train", "test")
    )
    assert not train & test and len(test) == 19
    with pytest.raises(OptionError, match="only 20 training tasks occur just once"):
        open_env(MathEnv, **{**made, "holdout": {"test": 20}})


def test_training_tasks_can_be_drawn(tmp_path: Path) -> None:
    data = write(tmp_path, "train.jsonl", *({**MATH, "problem": f"a{n}"} for n in range(40)))
    some = [task.payload.problem for task in open_env(MathEnv, source="math", data=data, train_tasks=10).pool]
    other = [task.payload.problem for task in open_env(MathEnv, source="math", data=data, train_tasks=10, seed=1).pool]
    assert len(set(some)) == 10 and some != other and some == sorted(some, key=lambda name: int(name[1:]))
    held = open_env(MathEnv, source="math", data=data, train_tasks=20, holdout={"test": 5})
    assert count(held) == {"train": 20, "test": 5}
    with pytest.raises(OptionError, match="train_tasks=41: the data has 40"):
        open_env(MathEnv, source="math", data=data, train_tasks=41)


def test_the_prompts_of_mbpp_are_no_tasks(tmp_path: Path) -> None:
    row = ROWS["mbpp"][0]
    numbers = (1, 10, 11, 510, 511, 600, 601, 974)
    data = write(tmp_path, "mbpp.jsonl", *({**row, "task_id": number} for number in numbers))
    assert count(world_of("mbpp", data)) == {"train": 2, "val": 2, "test": 2}


def test_boxes_without_braces_and_answers_in_boxes(tmp_path: Path) -> None:
    rows = [{**MATH, "solution": text} for text in ("so $\\boxed 2$.", "is \\fbox{3}", "\\boxed{4} or \\boxed{5}")]
    env = open_env(MathEnv, source="math", data=write(tmp_path, "train.jsonl", *rows))
    assert [task.payload.answers[0] for task in env.pool] == ["2", "3", "5"]
    row = {"id": 0, "problem": "p", "solution": "\\boxed{204}", "url": "https://x/2024_AIME_I_Problems/Problem_1"}
    (task,) = open_env(MathEnv, source="aime24", data=write(tmp_path, "aime.jsonl", row), split="test").pool
    assert task.payload.answers == ("204",)


# ---- installed data -----------------------------------------------------------------------------------------------


def test_an_installed_set_is_the_files_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    write(folder, "train.jsonl", GSM, {**GSM, "question": "else ?"})
    write(folder, "test.jsonl", GSM)
    with pytest.raises(DataError, match="gsm8k is not installed: `fedagentgym data add gsm8k` downloads it"):
        open_env(MathEnv, source="gsm8k", data="installed")
    assert main(["data", "add", "GSM8K", "--from", str(folder)]) == 0
    installed, given = (
        open_env(MathEnv, source="gsm8k", data="installed"),
        open_env(MathEnv, source="gsm8k", data=folder),
    )
    assert installed.pool.digest == given.pool.digest and count(installed) == {"train": 2, "test": 1}
    assert main(["data", "check", "gsm8k"]) == 0
    told = capsys.readouterr().out
    for part in ("train 2, test 1", "MIT", "question, answer", "sha256:", "1 tasks repeat", "1 training tasks are in"):
        assert part in told
    assert main(["data", "list"]) == 0
    assert "gsm8k            installed" in capsys.readouterr().out
    assert main(["data", "add", "gsm8k", "--from", str(folder)]) == 2
    assert "installed already" in capsys.readouterr().err
    assert read_options(MathEnv.id, {"source": "gsm8k", "data": "installed"}).portable["data"] == "installed"
    assert "data" not in read_options(MathEnv.id, {"source": "gsm8k", "data": str(folder)}).portable


def test_an_installed_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    place = find_data_set("gsm8k").add(write(tmp_path, "train.jsonl", GSM))
    file = place / "files" / "train.jsonl"
    for change in (lambda: file.write_text(file.read_text().replace("5", "6")), file.unlink):
        assert callable(change)
        change()
        with pytest.raises(DataError, match="not the file that was installed"):
            open_env(MathEnv, source="gsm8k", data="installed")


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_set_can_be_installed_checked_and_played(name: str, tmp_path: Path) -> None:
    find_data_set(name).add(write(tmp_path, "data.jsonl", ROWS[name][0]))
    found = find_data_set(name).check(None, None)
    assert sum(found.tasks.values()) == found.rows == 1 and not found.skipped
    env = open_env(WORLDS[SOURCES[name].task], source=name, data="installed", split=next(iter(found.tasks)))
    assert len(env.pool) == 1


def test_nothing_is_installed_of_files_that_cannot_be_read(tmp_path: Path) -> None:
    bad = write(tmp_path, "train.jsonl", {"question": "x"})
    with pytest.raises(FedAgentGymError, match=r"train.jsonl, line 1"):
        find_data_set("gsm8k").add(bad)
    assert not (tmp_path / "installed-data" / "gsm8k").exists()
    with pytest.raises(FedAgentGymError, match="remove that folder"):
        (tmp_path / "installed-data" / "gsm8k").mkdir(parents=True)
        find_data_set("gsm8k").add(bad)


def test_a_set_without_a_copy_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    row = {**ROWS["dapo-processed"][0], "picture": object()}
    monkeypatch.setattr(datasets, "load_dataset", lambda hub, subset: {"train": [row]})
    place = find_data_set("dapo-processed").add(None, "en")
    assert (place / "files" / "en" / "train.jsonl").is_file()
    assert len(open_env(MathEnv, source="dapo-processed", data="installed", subset="en").pool) == 1
    with pytest.raises(DataError, match="holds the configurations en, and not 'all'"):
        open_env(MathEnv, source="dapo-processed", data="installed")

    def fail(hub: str, subset: str) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match="no network"):
        find_data_set("gsm8k").add(None)
    assert not (tmp_path / "installed-data" / "gsm8k").exists()


READERS: dict[str, Callable[[Path], ReplyEnv]] = {
    "gsm8k/test.jsonl": lambda path: open_env(MathEnv, source="gsm8k", data=path, split="test"),
    "aime24/test.jsonl": lambda path: open_env(MathEnv, source="aime24", data=path, split="test"),
}


@pytest.mark.parametrize("path", READERS)
def test_the_published_number_of_tasks_is_found(path: str, shared_data: Path) -> None:
    env = READERS[path](shared_data / path)
    assert count(env)["test"] in [published["test"] for published in SOURCES[str(env.options.source)].published]
