"""Data of one's own: files, lists and data sets under any column names become the same tasks; bad rows are named."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.cli.main import main
from fedagentgym.envs import TaskPool, open_env
from fedagentgym.errors import DataError, FedAgentGymError, OptionError

MATH, QA, CODE = "fedagentgym/Math-v0", "fedagentgym/QA-v0", "fedagentgym/Code-v0"
ROWS = [{"Frage": f"What is {n} + 2?", "Antwort": n + 2, "office": "ABC"[n % 3]} for n in range(12)]
COLUMNS = {"question": "Frage", "answer": "Antwort", "category": "office"}
RUN = {"sandbox": {"accept": ["other user"]}}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        table.writeheader()
        table.writerows(rows)
    return path


def test_every_form_of_the_same_rows_is_the_same_pool(tmp_path: Path) -> None:
    forms: list[Any] = [
        ROWS,
        tuple(ROWS),
        {"train": ROWS},
        write_lines(tmp_path / "mine.jsonl", ROWS),
        write_csv(tmp_path / "mine.csv", ROWS),
        write_csv(tmp_path / "mine.tsv", ROWS),
    ]
    datasets, parquet = pytest.importorskip("datasets"), pytest.importorskip("pyarrow.parquet")
    table = datasets.Dataset.from_list(ROWS)
    parquet.write_table(table.data.table, tmp_path / "mine.parquet")
    forms += [table, datasets.DatasetDict({"train": table}), str(tmp_path / "mine.parquet")]
    pools = [gymnasium.make(MATH, data=form, columns=COLUMNS).unwrapped.pool for form in forms]  # type: ignore[attr-defined]
    assert len({pool.digest for pool in pools}) == 1 and pools[0].categories == {"A": 4, "B": 4, "C": 4}
    other = open_env(MATH, data=[{**ROWS[0], "Antwort": 9}, *ROWS[1:]], columns=COLUMNS)
    assert other.pool.digest != pools[0].digest
    again = pickle.loads(pickle.dumps(open_env(MATH, data=table, columns=COLUMNS)))
    assert again.pool.digest == pools[0].digest


TEXTS = st.sampled_from(["", "a", "Oslo"])


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_neither_order_of_columns_nor_empty_texts_change_a_digest(values: list[tuple[str, ...]], random: Any) -> None:
    names = ("solution", "category", "office", "Zone")
    rows = [{"question": f"{n}?", "answer": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(values)]
    mixed = []
    for row in rows:
        items = [(name, value or random.choice(["", None])) for name, value in row.items() if name != "answer"]
        random.shuffle(items)
        kept = [(name, value) for name, value in items if value is not None or random.random() < 0.5]
        mixed.append({**dict(kept), "answer": row["answer"]})
    pool, other = (open_env(MATH, data=form).pool for form in (rows, mixed))
    assert pool.digest == other.digest and pool.columns == other.columns
    if len(rows) > 1:
        assert open_env(MATH, data=rows[::-1]).pool.digest != pool.digest


@pytest.mark.parametrize(
    ("env", "row", "reply"),
    [
        (MATH, {"problem": "2 + 2?", "solution": "so \\boxed{4}"}, "4"),
        (MATH, {"question": "2 + 2?", "answer": "2 + 2 = 4\n#### 4"}, "4"),
        (MATH, {"input": "A root?", "target": ["2", "-2"]}, "-2"),
        (MATH, {"prompt": [{"role": "user", "content": "2?"}], "reward_model": {"ground_truth": "2"}}, "2"),
        (QA, {"question": "Capital?", "answers": {"text": ["Oslo", "Christiania"]}, "context": "Oslo is."}, "christiania"),
        (QA, {"question": "Capital?", "choices": ["Bergen", "Oslo"], "answer": 1}, "B"),
        (QA, {"question": "Largest?", "choices": ["1", "2", "0"], "answer": 1}, "B"),
        (QA, {"question": "Largest?", "choices": ["1", "0", "2"], "answer": "2"}, "C"),
        (QA, {"Question": "Capital?", "choices": {"text": ["a", "Oslo"], "label": ["1", "2"]}, "answerKey": "2"}, "Oslo"),
        (CODE, {"question": "Add 1.", "tests": ["assert f(1) == 2"]}, "def f(a): return a + 1"),
        (CODE, {"question": "Add 1.", "tests": "assert f(1) == math.ceil(1.5)", "setup": "import math"}, "f = lambda a: a + 1"),
        (CODE, {"prompt": "Add 1.", "test": "def check(f): assert f(1) == 2", "entry_point": "g"}, "def g(a): return a + 1"),
        (CODE, {"question": "Echo.", "input_output": '{"inputs": ["1"], "outputs": ["1"]}'}, "print(input())"),
        (CODE, {"question": "Echo.", "tests": [{"input": "1", "output": "1"}]}, "print(input())"),
        (CODE, {"question": "Add 1.", "tests": [[[1], 2]], "entry": "f"}, "def f(a): return a + 1"),
    ],
)  # fmt: skip
def test_usual_columns_are_found(env: str, row: dict[str, Any], reply: str) -> None:
    played = open_env(env, data=[row], **(RUN if env == CODE else {}))
    (start,) = played.reset_many([played.pool.ids[0]], [0])
    shown = f"```python\n{reply}\n```" if env == CODE else reply
    right, wrong = played.step_many([start, start], [f"<answer> {shown} </answer>", "<answer> nothing </answer>"])
    assert right.view.success and not wrong.view.success


def test_splits_hardness_and_fields_are_read(tmp_path: Path) -> None:
    rows = [
        {
            "question": f"{n}?",
            "answer": n,
            "split": split,
            "hardness": hardness,
            "note": "x" * (300 * n),
            "user": f"u{n % 2}",
        }
        for n, (split, hardness) in enumerate(
            [("train", 0.5), ("validation", "easy"), ("test", "0.25"), ("train", None)]
        )
    ]
    env = open_env(MATH, data=rows)
    assert env.split_sizes() == {"train": 2, "val": 1, "test": 1, "warmup": 0, "unseen": 0}
    assert [task.hardness for task in open_env(MATH, data=rows, split="all").pool] == [0.5, 1 / 3, 0.25, None]
    assert set(env.pool.columns) == {"user"} and env.pool.get_field("user") == ["u0", "u1"]
    assert open_env(MATH, data=rows, columns={"split": None}).split_sizes()["train"] == 4
    write_lines(tmp_path / "test.jsonl", [{"question": "1?", "answer": 1}])
    with pytest.raises(DataError, match=r"'train' is empty.*'test': 1.*or a column 'split' says otherwise; holdout="):
        open_env(MATH, data=tmp_path)
    assert open_env(MATH, data=ROWS, columns=COLUMNS, holdout=2).split_sizes()["val"] == 2


GOOD = [{"question": f"{n}?", "answer": str(n)} for n in range(8)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": ROWS}, "a usual name for the question of a task: give columns={'question': NAME}.*Frage, Antwort"),
        ({"data": ROWS, "columns": {"question": "frag"}}, "no column 'frag' for 'question'"),
        ({"data": ROWS, "columns": {"questoin": "Frage"}}, "did you mean 'question'"),
        ({"data": ROWS, "columns": {"question": 3}}, "(name of a column or null|must be a text)"),
        ({"data": 3}, "a list of mappings or a data set"),
        ({"data": "none.jsonl"}, "no such file"),
        ({"data": []}, "holds no task"),
        ({"data": [3]}, "data, row 1: a record must be"),
        ({"data": {"house": ROWS}}, "rows for 'house': splits are"),
        ({"data": "installed"}, "needs source="),
        ({"data": ROWS, "source": "mine"}, "data of your own has no source"),
        ({"data": ROWS, "source": "gsm8k", "columns": COLUMNS}, "those of gsm8k are known"),
        ({"data": ROWS, "columns": COLUMNS, "subset": "en"}, "subset= needs source="),
        ({"columns": COLUMNS}, "columns= is for loaded data: give data="),
        ({"data": [*GOOD, {"question": "9?"}, {"answer": "9"}]}, "row 9: .*'answer'.*2 of 10 rows.*question = question.*row 10"),
        ({"data": [{"question": "1?", "answer": True}]}, "row 1: the field 'answer' is no answer"),
        ({"data": [{"question": "1?", "answer": 1, "split": "x"}]}, "'split' must be one of train, test"),
        ({"data": [{"question": "1?", "answer": 1, "hardness": 7}]}, "'hardness' must be a number from 0 to 1"),
        ({"data": [{"question": "1?", "answer": 1, "hardness": 10**400}]}, "'hardness' must be a number from 0 to 1"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FedAgentGymError, match=said) as caught:
        open_env(MATH, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tests": [3]}, "no test code, no list of asserts"),
        ({"tests": "assert ("}, "is not Python"),
        ({"tests": "def check(f): assert f(1)"}, "no column entry names the function"),
        ({"tests": [[[1], 2]]}, "row 1: .*need 'entry'"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "as many outputs as inputs"),
        ({"tests": "[1"}, "is not valid JSON"),
    ],
)
def test_tests_that_cannot_be_read_are_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_env(CODE, data=[{"question": "Add 1.", **row}])


NAN, INF = float("nan"), float("inf")
PICKED = [
    ([1, 2, 3, 4], 2, "B"),
    ([1, 2, 3, 4], "2", "B"),
    ([1, 2, 3, 4], 0, "A"),  # no choice, but a number from 0 on
    ([0.5, 1.0, 2], 1, "B"),
    ([4, 2], 2.0, "B"),
    ([7, 7, 1], 7, None),
    ([10, 20], 1.0, "B"),
    (["1", "2", "3"], 1, "B"),
    ({"A": 3, "B": 1}, 1, "B"),
    ([f"c{n}" for n in range(26)], "Z", "Z"),
    ([f"c{n}" for n in range(26)], 25, "Z"),
    ([f"c{n}" for n in range(10)], "c9", "J"),
    ([{"label": "A", "text": "x"}, {"label": "B", "text": "y"}], "y", "B"),
    ([("A", "x"), ("B", "y")], "B", "B"),
    ([["A", "x"], ["B", "y"]], 0, "A"),
    ({"A": "x", "B": "y", "C": None}, "y", "B"),
    ({"label": ["A", "B"], "text": ["x", "y"]}, "B", "B"),
]


@pytest.mark.parametrize(("choices", "answer", "letter"), PICKED)
def test_choices_and_the_right_one_are_read(choices: Any, answer: Any, letter: str | None) -> None:
    row = {"question": "Which?", "choices": choices, "answer": answer}
    if letter is None:
        with pytest.raises(DataError, match="is none of the choices"):
            open_env(QA, data=[row])
        return
    env = open_env(QA, data=[row])
    question = env.pool[0].payload
    assert question.answers == (letter,) and not any(mark in str(question.options) for mark in "{[")
    (start,) = env.reset_many([env.pool.ids[0]], [0])
    texts = dict(question.options)
    for said in (letter, f"{letter}. {texts[letter]}"):
        assert env.step_many([start], [f"<answer> {said} </answer>"])[0].view.success
    other = next(one for one in texts if one != letter)
    assert not env.step_many([start], [f"<answer> {other} </answer>"])[0].view.success


@given(st.lists(st.integers(0, 12), min_size=2, max_size=26), st.integers(0, 12))
def test_a_number_means_the_choice_that_equals_it(choices: list[int], answer: int) -> None:
    try:
        (letter,) = open_env(QA, data=[{"question": "?", "choices": choices, "answer": answer}]).pool[0].payload.answers
    except DataError:
        assert choices.count(answer) != 1 and answer >= len(choices)
    else:
        place = choices.index(answer) if choices.count(answer) == 1 else answer
        assert letter == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[place]


@pytest.mark.parametrize(
    "choices",
    [
        [],
        {},
        [f"c{n}" for n in range(27)],
        ["x", None],
        ["x", NAN],
        ["x", {"text": "y"}],
        ["x", ["B", "y"]],
        ["x", {"label": "B", "text": "y"}],
        [{"label": None, "text": "x"}, {"label": "B", "text": "y"}],
        [{"label": "A", "text": None}],
        [("A", "x"), ("A", "y")],
        {"A": ["x"], "B": "y"},
        {"label": ["A"], "text": ["x", "y"]},
        "x, y",
    ],
)
def test_choices_of_other_shapes_are_refused(choices: Any) -> None:
    with pytest.raises(DataError, match="row 1: the field 'choices' must ") as caught:
        open_env(QA, data=[{"question": "Which?", "choices": choices, "answer": "A"}])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("context", "facts"),
    [
        ("It is.", [("", "It is.")]),
        (["It is.", "So."], [("", "It is."), ("", "So.")]),
        ([["Oslo", "It is."]], [("Oslo", "It is.")]),
        ([("Oslo", ["It is.", "So."])], [("Oslo", "It is. So.")]),
        ({"title": ["Oslo"], "sentences": [["It is.", " So."]]}, [("Oslo", "It is. So.")]),
        ([{"title": "Oslo", "text": "It is."}], [("Oslo", "It is.")]),
        ([{"title": "Oslo", "text": "It is.", "id": 3}], [("Oslo", "It is.")]),
        ({"title": "Oslo", "text": "It is."}, [("Oslo", "It is.")]),
        ({"Oslo": "It is.", "Lima": "No."}, [("Oslo", "It is."), ("Lima", "No.")]),
        ({"Oslo": "It is.", "Lima": None}, [("Oslo", "It is.")]),
        ('{"Oslo": "It is."}', [("Oslo", "It is.")]),
        (None, []),
        (NAN, []),
        ([], []),
    ],
)
def test_no_passage_of_a_context_is_lost(context: Any, facts: list[tuple[str, str]]) -> None:
    env = open_env(QA, data=[{"question": "Where?", "answer": "Oslo", "context": context}])
    assert [tuple(fact) for fact in env.pool[0].payload.facts] == facts


@pytest.mark.parametrize(
    "context",
    [3, ["x", None], [{"title": "Oslo"}], [{"name": "Oslo", "text": "x"}], [["a", "b", "c"]], [["Oslo", 3]],
     {"contexts": ["x"], "labels": ["y"]}, {"title": ["Oslo"], "sentences": []}, [[["x"], "y"]]],
)  # fmt: skip
def test_contexts_of_other_shapes_are_refused(context: Any) -> None:
    with pytest.raises(DataError, match="row 1: the field 'context' must be a text"):
        open_env(QA, data=[{"question": "Where?", "answer": "Oslo", "context": context}])


@pytest.mark.parametrize("gap", [NAN, INF, -INF, None])
@pytest.mark.parametrize("env", [MATH, QA])
def test_a_number_that_is_missing_is_no_answer(env: str, gap: Any) -> None:
    rows: list[dict[str, Any]] = [{"question": f"{n}?", "answer": float(n), "office": "A"} for n in range(4)]
    sparse = {"question": "9?", "answer": 9.0, "office": gap, "solution": gap, "category": gap, "hardness": gap}
    pool = open_env(env, data=[*rows, {"question": "8?", "answer": gap}, sparse], bad_rows=0.2).pool
    assert len(pool) == 5 and "nan" not in str(list(pool)).lower() and "inf" not in str([t.payload for t in pool])
    assert pool.columns["office"] == ("A",) * 4 + (None,)
    for answer in (gap, ["2", gap]):
        with pytest.raises(DataError, match="'answer'"):
            open_env(env, data=[{"question": "8?", "answer": answer}])


def test_tables_in_memory_are_one_sentence() -> None:
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    frame = pandas.DataFrame([{"question": "2?", "answer": 2, "split": "train"}])
    for data in (
        frame,
        frame["answer"],
        frame[:0],
        {"train": frame},
        numpy.array([1, 2]),
        numpy.zeros((2, 2)),
        numpy.array(1),
    ):
        with pytest.raises(OptionError, match="a list of mappings or a data set") as caught:
            open_env(MATH, data=data)
        assert "\n" not in str(caught.value)
    assert len(open_env(MATH, data=frame.to_dict("records")).pool) == 1
    with pytest.raises(DataError, match="holds no task"):
        open_env(MATH, data=pandas.DataFrame())


def test_a_few_bad_rows_are_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    env = open_env(MATH, data=[*GOOD, {"question": "9?"}, {"answer": "9"}], bad_rows=0.2)
    assert len(env.pool) == 8
    assert "2 of 10 rows of the data" in caplog.text and "also data, row 10" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question,answer\n1?,1,2\n", "line 2: the row is longer than the line of column names"),
        ("question,question\n1?,1\n", "must name every column, each differently"),
        ('question,answer\n"1?,1\n', "not valid CSV"),
        ("question,answer\n1?,\n", "line 2: there is no field 'answer'"),
    ],
)
def test_faults_of_tables(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        open_env(MATH, data=tmp_path / "mine.csv")


def test_a_split_of_own_data_is_shown_and_verified_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, split = write_lines(tmp_path / "mine.jsonl", ROWS), tmp_path / "split.json"
    made = fedagentgym.federate(MATH, partition="natural", by="office", env={"data": ROWS, "columns": COLUMNS})
    made.save(split)
    assert [len(client) for client in made] == [4, 4, 4] and str(tmp_path) not in split.read_text()
    given = ["--env-set", f"data={data}"]
    assert main(["split", "verify", str(split), *given]) == 0
    capsys.readouterr()
    assert main(["split", "show", str(split), *given]) == 0
    assert "A 0% to 100%" in capsys.readouterr().out
    assert main(["split", "show", str(split)]) == 0
    assert "3 with 12 tasks: 4 each" in (shown := capsys.readouterr().out) and "not here: columns=" in shown
    assert main(["split", "show", str(split), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["statistics"] is None
    client = gymnasium.make(MATH, client_split=split, client=1, data=ROWS)
    assert client.unwrapped.pool.categories == {"B": 4}  # type: ignore[attr-defined]
    words = [*given, *(f"--env-set=columns.{name}={column}" for name, column in COLUMNS.items())]
    assert (
        main(["split", "make", "natural", "--by", "office", "--env", "Math", *words, "--out", str(tmp_path / "b.json")])
        == 0
    )
    assert fedagentgym.load_client_split(tmp_path / "b.json", env={"data": ROWS}).digest == made.digest


def test_a_split_of_a_pool_is_shown_and_verified_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"category": "ab"[n % 2], "payload": {"problem": f"{n} + 2?", "answer": str(n + 2)}} for n in range(20)]
    pool, split = TaskPool.from_records(records, env=MATH), tmp_path / "split.json"
    fedagentgym.federate(MATH, clients=4, pool=pool).save(split)
    for opened in (split, fedagentgym.load_client_split(split, pool=pool)):
        env = gymnasium.make(MATH, pool=pool, client_split=opened, client=0)
        assert len(env.unwrapped.pool) == 5  # type: ignore[attr-defined]
    given = ["--pool", str(write_lines(tmp_path / "pool.jsonl", records))]
    assert main(["split", "verify", str(split), *given]) == 0 and main(["split", "show", str(split), *given]) == 0
    assert "a 50.0%" in capsys.readouterr().out
    assert main(["split", "verify", str(split), "--pool", str(split)]) == 2
    with pytest.raises(OptionError, match="pool must be a TaskPool"):
        fedagentgym.load_client_split(split, pool=records)  # type: ignore[arg-type]


def test_a_long_field_of_a_table_is_read(tmp_path: Path) -> None:
    row = {"question": "What is 1 + 1? " + "x" * 200_000, "answer": "2"}
    before = csv.field_size_limit()
    pool = open_env(MATH, data=str(write_csv(tmp_path / "mine.csv", [row]))).pool
    assert len(pool) == 1 and csv.field_size_limit() == before


def pack_blanks(megabytes: int, end: str) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    part = (" " * ((1 << 20) - len(end)) + end).encode()
    return b"".join([*(packer.compress(part) for _ in range(megabytes)), packer.flush()])


def test_blank_lines_take_no_memory(tmp_path: Path) -> None:
    packed = pack_blanks(60, "\n")
    row = gzip.compress(json.dumps({"question": "What is 1 + 1?", "answer": "2"}).encode())
    (tmp_path / "mine.jsonl.gz").write_bytes(packed + row)
    tracemalloc.start()
    try:
        assert len(open_env(MATH, data=str(tmp_path / "mine.jsonl.gz")).pool) == 1
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_half_of_a_character_in_a_data_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "What is \\ud83d?", "answer": "2"}\n')
    with pytest.raises(DataError, match=r"mine\.jsonl, line 1: not usable JSON: a text holds half of a character"):
        open_env(MATH, data=str(tmp_path / "mine.jsonl"))
