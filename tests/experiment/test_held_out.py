"""No run evaluates on tasks from which it learns: neither by its settings, nor through an environment or data of one's own."""

from __future__ import annotations

import csv
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import pytest

from fedagentgym import register_env
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.base.tables import write_rows
from fedagentgym.cli.main import main
from fedagentgym.envs import TaskPool, TextEnv, View
from fedagentgym.envs.make import env_class, read_options
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.opened import open_data
from fedagentgym.learning.pretrain import pretrain_tiny
from fedagentgym.partitions import federate
from fedagentgym.partitions.verification import read_words
from fedagentgym.testing import check_env
from fedagentgym.testing.runs import SMALL_CONFIG


def open_run(changes: Mapping[str, Any]) -> None:
    open_data(load_config(merge(SMALL_CONFIG, changes)))


@pytest.mark.parametrize("split", ["train", "all", "warmup"])
@pytest.mark.parametrize("where", ["evaluation", "ranking", "set"])
def test_splits_from_which_a_run_learns_are_refused(where: str, split: str) -> None:
    changes = (
        {"evaluation": {"sets": [{"name": "other", "split": split}]}} if where == "set" else {where: {"split": split}}
    )
    with pytest.raises(
        OptionError, match=f"a run may learn from the split '{split}': evaluate [^ ]+ on one of val, test"
    ):
        open_run(changes)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_tasks_that_begin_alike_are_no_leak(turns: int) -> None:
    """Skills of several turns: a first question stands in several splits, a whole task in one."""
    skills = {"id": "fedagentgym/Skills-v0", "options": {"turns": turns, "seed": 100}}
    changes = {"env": skills, "partition": {"sampler": "by_source", "clients": 8, "tasks_per_client": None}}
    open_run(merge(changes, {"evaluation": {"split": "test", "tasks": None}}))


class State(NamedTuple):
    word: str


class Echo(TextEnv):
    """Say the word."""

    id = "test/Echo-v0"
    role = "You repeat a word."
    action_help = "Say the word."

    def load_pool(self, split: str) -> TaskPool:
        named = split if self.id.endswith("Named-v0") else "all"
        tasks = [
            {"id": f"echo/{named}/{number:05d}", "category": "words", "payload": f"word {number}"}
            for number in range(40)
        ]
        return TaskPool.from_records(tasks, env=self.id, split=split)

    def begin(self, task: Any, seed: int) -> tuple[State, View]:
        return State(task.payload), View(observation=f"Say {task.payload}.")

    def advance(self, state: State, action: str) -> tuple[State, View]:
        right = action == state.word
        return state, View(observation="", reward=float(right), score=float(right), success=right, done=True)


class Named(Echo):
    """Say the word; the ids name the split, the words are the same."""

    id = "test/Named-v0"


@pytest.mark.parametrize("cls", [Echo, Named])
def test_an_environment_that_leaves_the_split_out_of_account_is_refused(cls: type[TextEnv]) -> None:
    register_env(cls.id, cls, replace=True)
    with pytest.raises(
        DataError, match=r"clients train on \d+ of the 4 evaluated tasks of the split 'val', such as echo/"
    ):
        open_run({"env": {"id": cls.id}})
    (found,) = [one for one in federate(cls.id, clients=3, tasks_per_client=8).verify() if one.name == "evaluation"]
    assert found.ok is False and "are held by clients" in found.detail


class Sliced(Echo):
    """Say the word; some of the evaluated words are among the training words, under other ids."""

    id = "test/Sliced-v0"

    def load_pool(self, split: str) -> TaskPool:
        first, last = {"train": (0, 300), "val": (280, 340), "test": (400, 460), "warmup": (500, 520)}[split]
        words = [
            {"id": f"echo/{split}/{number:05d}", "category": "words", "payload": f"word {first + number}"}
            for number in range(last - first)
        ]
        return TaskPool.from_records(words, env=self.id, split=split)


class FewStates(Echo):
    """Say the word, one of seven: words of one split stand in the others by chance."""

    id = "test/FewStates-v0"

    def load_pool(self, split: str) -> TaskPool:
        start = self.splits.index(split)
        words = [
            {
                "id": f"echo/{split}/{number:05d}",
                "category": "words",
                "payload": f"word {(start + number * number) % 7}",
            }
            for number in range(40)
        ]
        return TaskPool.from_records(words, env=self.id, split=split)


class Doubled(Sliced):
    """Say the word; besides, a few training words stand there twice."""

    id = "test/Doubled-v0"

    def load_pool(self, split: str) -> TaskPool:
        numbers = {
            "train": [*range(300), 1, 2],
            "val": range(280, 340),
            "test": range(400, 460),
            "warmup": range(280, 290),
        }
        words = [
            {"id": f"echo/{split}/{place:05d}", "category": "words", "payload": f"word {number}"}
            for place, number in enumerate(numbers[split])
        ]
        return TaskPool.from_records(words, env=self.id, split=split)


class Shown(Echo):
    """Say the word; some evaluated words are those that the expert shows."""

    id = "test/Shown-v0"

    def load_pool(self, split: str) -> TaskPool:
        first = {"train": 0, "val": 400, "test": 500, "warmup": 430}[split]
        words = [
            {"id": f"echo/{split}/{place:05d}", "category": "words", "payload": f"word {first + place}"}
            for place in range(40)
        ]
        return TaskPool.from_records(words, env=self.id, split=split)


def test_a_few_doubles_hide_no_leak() -> None:
    register_env(Doubled.id, Doubled, replace=True)
    whole = {"partition": {"clients": 1, "tasks_per_client": 290}, "federation": {"clients_per_round": 1}}
    run = {"env": {"id": Doubled.id}, **whole}
    for changes in ({"evaluation": {"tasks": None}}, {"evaluation": {"split": "test"}, "ranking": {"split": "val"}}):
        with pytest.raises(DataError, match=r"clients train on \d+ of the 60 evaluated tasks of the split 'val'"):
            open_run({**run, **changes})
    open_run({**run, "evaluation": {"split": "test", "tasks": None}})


def test_tasks_that_the_expert_shows_first_are_not_evaluated() -> None:
    for cls in (Shown, Sliced):
        register_env(cls.id, cls, replace=True)
    started = {"agent": "tiny", "warm_start": {"steps": 1}, "partition": {"clients": 2, "tasks_per_client": 4}}
    said = (
        "the expert shows 10 of the 40 evaluated tasks of the split 'val' in the split 'warmup', such as echo/val/00030"
    )
    with pytest.raises(DataError, match=said):
        open_run({"env": {"id": Shown.id}, **started, "evaluation": {"tasks": None}})
    open_run({"env": {"id": Shown.id}, **started, "evaluation": {"tasks": 30}})
    open_run({"env": {"id": Shown.id}, **started, "evaluation": {"split": "test", "tasks": None}})
    open_run({"env": {"id": Sliced.id}, **started})
    with pytest.raises(DataError, match=said):
        pretrain_tiny(Shown.id, {})


def test_an_owner_holds_no_evaluated_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("val", "test"):
        line = f"client init {tmp_path}/client.yaml --client 0 --env Guess --split {split}"
        assert main(line.split()) == 2
        assert "never divided among clients" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_single_tasks_of_an_own_environment_that_clients_train_on_are_refused() -> None:
    for cls in (Sliced, FewStates):
        register_env(cls.id, cls, replace=True)
    whole = {"env": {"id": Sliced.id}, "partition": {"clients": 1, "tasks_per_client": 292}}  # eight more are public
    whole |= {"federation": {"clients_per_round": 1}}
    with pytest.raises(DataError, match="clients train on 20 of the 60 evaluated tasks of the split 'val'"):
        open_run({**whole, "evaluation": {"tasks": None}})
    open_run({**whole, "evaluation": {"split": "test", "tasks": None}})
    open_run({"env": {"id": FewStates.id}, "evaluation": {"tasks": None}})
    with pytest.raises(AssertionError, match=r"same tasks for 'train' and 'val' \(20, such as echo/val/00000\)"):
        check_env(Sliced.id)


@pytest.mark.parametrize("name", ["env", "env_id", "partition", "pool", "split"])
def test_what_is_divided_is_no_setting_of_the_division(name: str) -> None:
    with pytest.raises(OptionError, match=f"partition has no setting '{name}': the section env names the environment"):
        open_run({"partition": {name: "test"}})


@pytest.fixture
def sums(tmp_path: Path) -> str:
    """Sums, of which the first of the evaluated ones is a training task under another id."""
    rows = [{"question": f"What is {number} + {number}?", "answer": 2 * number} for number in range(60)]
    parts = {"train": rows[:40], "val": [rows[3], *rows[40:50]], "test": rows[50:]}
    for name, part in parts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return str(tmp_path)


def test_a_question_that_stands_in_both_files_is_found_by_its_text(
    sums: str, capsys: pytest.CaptureFixture[str]
) -> None:
    math: dict[str, Any] = {"id": "fedagentgym/Math-v0", "options": {"data": sums}}
    mixture = {
        "id": "fedagentgym/Mixture-v0",
        "options": {"members": [{"name": "sums", "env": "Math", "options": {"data": sums}}]},
    }
    whole = {"clients": 1, "tasks_per_client": 32}  # eight more are public
    for env in (math, mixture):
        with pytest.raises(DataError, match="clients train on 1 of the 4 evaluated tasks of the split 'val'"):
            open_run({"env": env, "partition": whole, "federation": {"clients_per_round": 1}})
        open_run(
            {"env": env, "partition": whole, "federation": {"clients_per_round": 1}, "evaluation": {"split": "test"}}
        )
    sets = {"sets": [{"name": "sums", "env": "Math", "options": {"data": sums}, "split": "val"}]}
    with pytest.raises(DataError, match="clients train on 1 of the"):
        open_run({"env": mixture, "partition": whole, "federation": {"clients_per_round": 1}, "evaluation": sets})
    checks = federate("fedagentgym/Math-v0", clients=1, tasks_per_client=40, env={"data": sums}).verify()
    assert [one.detail for one in checks if one.ok is False] == ["1 tasks of 'val' are held by clients: math/val/00000"]


CHANGES: Mapping[str, Callable[[str], str]] = {
    "blank after": "{} ".format,
    "line after": "{}\r\n".format,
    "blank before": " {}".format,
    "tabs": lambda text: text.replace(" ", "\t"),
    "fixed blanks": lambda text: text.replace(" + ", "\u00a0+  "),
    "no blanks at marks": lambda text: text.replace(" + ", "+"),
    "capitals": str.upper,
    "composed": partial(normalize, "NFC"),
    "decomposed": partial(normalize, "NFD"),
    "compatible": partial(normalize, "NFKC"),
    "mark of byte order": "\ufeff{}".format,
    "invisible": lambda text: text.replace("W", "W\u200b\u00ad"),
}
"""Each makes a copy of a question that a reader takes for the same."""


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_copy_that_reads_alike_is_no_other_task(kind: str, tmp_path: Path) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    rows = [
        {"question": f"What is {number} + {number} caf\u00e9s \ufb01led?", "answer": 2 * number} for number in range(40)
    ]
    whole = {"partition": {"clients": 1, "tasks_per_client": 32}, "federation": {"clients_per_round": 1}}
    for name, change in CHANGES.items():
        folder = tmp_path / name
        again = [{**row, "question": change(str(row["question"]))} for row in rows[:6]]
        for split, part in (
            ("train", rows),
            ("val", again),
            ("test", [{**row, "question": "One?"} for row in rows[:1]]),
        ):
            write_table(folder / f"{split}.{kind}", part)
        env = {"id": "fedagentgym/Math-v0", "options": {"data": str(folder)}}
        with pytest.raises(DataError, match=r"clients train on \d of the 4 evaluated tasks"):
            open_run({"env": env, **whole})
        open_run({"env": env, **whole, "evaluation": {"split": "test"}})


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        write_rows(rows, path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2 + 2", "22"),
        ("1 1", "11"),
        ("a - b", "a + b"),
        ("x", "y"),
        ("caf\u00e9", "cafe"),
        ("3.5", "35"),
        ("\u03b1", "a"),
    ],
)
def test_other_words_or_marks_are_another_question(first: str, second: str) -> None:
    assert read_words(f"What is {first}?") != read_words(f"What is {second}?")
    assert read_words(read_words(first)) == read_words(first)


def test_states_that_are_alike_by_chance_are_no_leak() -> None:
    """Guess hides one of few numbers: nearly every number of `val` is hidden in `train` too."""
    open_run({"evaluation": {"tasks": None}, "ranking": {}})


SUITE = {
    "name": "mine",
    "version": 1,
    "title": "Mine",
    "scenarios": {"one": {}},
    "seeds": [0],
    "ranking": {"split": "test", "tasks": None},
    "baselines": {"own": {}},
}


def run_suite(folder: Path, changes: Mapping[str, Any], *words: str) -> int:
    """`bench run` of a suite of one's own, in its folder."""
    (folder / "mine.yaml").write_text(json.dumps(merge(SUITE, changes)))
    return main(["bench", "run", str(folder / "mine.yaml"), "--out", str(folder / "runs"), "--workers", "1", *words])


@pytest.mark.parametrize("kind", ["pool", "plugin", "file", "mixture", "chosen"])
def test_a_suite_of_ones_own_is_refused_before_anything_is_written(
    kind: str, sums: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, env = [], dict[str, Any]({"id": Named.id})
    if kind in ("file", "mixture", "chosen"):
        if kind != "chosen":  # there the tasks that draw the curve alone are held
            (tmp_path / "test.jsonl").write_text((tmp_path / "val.jsonl").read_text())
        env = {"id": "fedagentgym/Math-v0", "options": {"data": sums}}
    if kind == "mixture":
        members = [{"name": "sums", "env": "Math", "options": {"data": sums}}]
        env = {"id": "fedagentgym/Mixture-v0", "options": {"members": members}}
    elif kind == "plugin":
        source = inspect.getsource(Echo).replace("test/Echo-v0", "test/Plugged-v0")
        head = "from typing import NamedTuple\nfrom fedagentgym import register_env\n"
        head += "from fedagentgym.envs import TaskPool, TextEnv, View\nclass State(NamedTuple):\n    word: str\n"
        (tmp_path / "mine.py").write_text(f"{head}Any = object\n{source}\nregister_env(Echo.id, Echo)\n")
        words, env = ["--plugin", str(tmp_path / "mine.py")], {"id": "test/Plugged-v0"}
    elif kind == "pool":
        register_env(Named.id, Named, replace=True)
    whole = {"partition": {"clients": 1, "tasks_per_client": 32}, "federation": {"clients_per_round": 1}}
    config = {key: value for key, value in merge(SMALL_CONFIG, {"env": env, **whole}).items() if key != "evaluation"}
    changes = {"track": "methods", "config": config, "pairs": [], "selection": {"split": "val", "tasks": None}}
    assert run_suite(tmp_path, changes, *words) == 2
    said = capsys.readouterr().err
    assert re.search(r"clients train on \d+ of the \d+ evaluated tasks", said) and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_suite_of_agents_is_played_on_splits_for_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenarios = {"one": {"env": "fedagentgym/Guess-v0"}}
    played = {"track": "agents", "scenarios": scenarios, "baselines": {"own": {"agent": "random"}}}
    assert run_suite(tmp_path, {**played, "ranking": {"split": "train", "tasks": 4}}) == 2
    assert "a run may learn from the split 'train'" in capsys.readouterr().err and not (tmp_path / "runs").exists()
    assert run_suite(tmp_path, {**played, "ranking": {"split": "test", "tasks": 4}}) == 0


@pytest.mark.parametrize(
    ("data", "is_own"), [(None, False), ("installed", False), ("games", True), ("./installed", True)]
)
@pytest.mark.parametrize(("env", "option"), [("ALFWorld", "games"), ("WebShop", "data"), ("Math", "data")])
def test_only_data_of_ones_own_are_compared_by_payload(env: str, option: str, data: str | None, is_own: bool) -> None:
    """Ids of published data that are installed name their split, and reading thousands of games takes seconds."""
    options = read_options(f"fedagentgym/{env}-v0", {} if data is None else {option: data})
    assert options.names_own_data == is_own and options.names_local_data == (data is not None)


@pytest.mark.parametrize("split", ["val", "test"])
def test_more_ranked_tasks_than_the_split_has_are_refused_at_the_door(split: str) -> None:
    other = "test" if split == "val" else "val"
    open_run({"evaluation": {"split": other}, "ranking": {"split": split, "tasks": 1}})
    with pytest.raises(DataError, match=rf"ranking\.tasks: the split '{split}' has \d+ tasks, not 1000000"):
        open_run({"evaluation": {"split": other}, "ranking": {"split": split, "tasks": 1_000_000}})


def list_names(env: str) -> list[tuple[str, str]]:
    """Pairs of different names of one evaluation split."""
    cls = env_class(env)
    names = [*cls.evaluation_splits, *cls.split_aliases]
    return [
        (one, other)
        for one in names
        for other in names
        if one != other and cls.canonical_split(one) == cls.canonical_split(other)
    ]


@pytest.mark.parametrize(
    ("preset", "ranked", "chosen"),
    [
        (preset, *pair)
        for preset, env in (("tiny-alfworld", "fedagentgym/ALFWorld-v0"), ("tiny-webshop", "fedagentgym/WebShop-v0"))
        for pair in list_names(env)
    ],
)
@pytest.mark.parametrize("as_set", [False, True])
def test_the_split_that_chooses_does_not_rank_under_another_name(
    preset: str, ranked: str, chosen: str, as_set: bool
) -> None:
    evaluation = f"evaluation.sets=[{{name: a, split: {chosen}}}]" if as_set else f"evaluation.split={chosen}"
    with pytest.raises(OptionError, match="the split that ranks cannot be the one on which the round is chosen"):
        load_config(preset, [evaluation, f"ranking={{split: {ranked}, round: best}}"])
