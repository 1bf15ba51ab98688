"""Label files: made, resumed, packed, refused; and those that come with the package fit their pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Handicap, get_handicap
from fedagentgym.partitions import labels as label_files
from fedagentgym.partitions.client_split import federate
from fedagentgym.partitions.labels import LabelPlan, Labels, handicap_expert, label_pool, pack_labels, read_labels

GUESS = "fedagentgym/Guess-v0"
HANDICAP = Handicap(error=0.6, turns=6)
POLICY = {"name": "handicapped", **HANDICAP.model_dump()}


@pytest.fixture(scope="module")
def env() -> TextEnv:
    return open_env(GUESS)


@pytest.fixture(scope="module")
def file(env: TextEnv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "labels.jsonl"
    list(label_pool(env, "train", LabelPlan(POLICY, {}), handicap_expert(env, HANDICAP, 0, 4), path))
    return path


def test_a_handicap_is_not_one_sided(env: TextEnv, file: Path) -> None:
    found = read_labels(file)
    assert set(found.successes) == set(env.pool.ids)
    solved = np.mean([count >= found.threshold for count in found.successes.values()])
    assert 0.3 < solved < 0.9
    assert handicap_expert(env, Handicap(error=0.0, turns=8), 0, 3)(env.pool.ids[:20]) == [3] * 20


def test_an_interrupted_labelling_goes_on_and_ends_the_same(env: TextEnv, file: Path, tmp_path: Path) -> None:
    whole = file.read_text()
    path = tmp_path / "part.jsonl"
    path.write_text(whole[: len(whole) // 2])
    counts = list(label_pool(env, "train", LabelPlan(POLICY, {}), handicap_expert(env, HANDICAP, 0, 4), path))
    assert counts[0] > 200 and counts[-1] == 600
    assert path.read_text() == whole


def test_a_file_of_another_plan_is_not_continued(env: TextEnv, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(file.read_text())
    with pytest.raises(DataError, match="holds other labels"):
        list(label_pool(env, "train", LabelPlan(POLICY, {}, seed=1), handicap_expert(env, HANDICAP, 1, 4), path))
    with pytest.raises(OptionError, match="threshold must be between 1 and the 4 attempts, got 5"):
        list(
            label_pool(
                env, "train", LabelPlan(POLICY, {}, threshold=5), handicap_expert(env, HANDICAP, 0, 4), tmp_path / "n"
            )
        )


def test_worlds_without_a_list_of_actions_say_so() -> None:
    env = open_env("fedagentgym/Math-v0", size="tiny")
    with pytest.raises(OptionError, match="no admissible actions"):
        handicap_expert(env, get_handicap(env), 0, 8)(env.pool.ids[:4])


def test_a_split_by_hardness_carries_its_labels(file: Path, tmp_path: Path) -> None:
    made = federate(GUESS, partition="hardness", clients=10, tasks_per_client=30, xi=1.0, labels=file)
    assert made.record.labels is not None and made.record.labels.source["policy"]["name"] == "handicapped"
    path = made.save(tmp_path / "split.json")
    from fedagentgym.partitions.client_split import load_client_split

    again = load_client_split(path)
    assert all(check.ok for check in again.verify())
    statistics = again.statistics()
    assert statistics.solved is not None and int(statistics.solved.sum()) == 150


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:1] + lines[2:], r"miss 1 of 600 tasks, the first is guess/train/00000: run the same"),
        (lambda lines: ["{}", *lines[1:]], "is not a label file"),
        (lambda lines: [lines[0].replace("labels/1", "labels/2"), *lines[1:]], "is a label file of format 2"),
        (lambda lines: [], "is not a label file"),
        (
            lambda lines: [*lines, '{"task": "x", "successes": 9}'],
            "line 602: a label has a task id and between 0 and 4",
        ),
        (lambda lines: [*lines, "nonsense"], "line 602: not valid JSON"),
        (lambda lines: [lines[0].replace("sha256:", "sha256:0"), *lines[1:]], "made for another pool"),
        (lambda lines: [lines[0].replace('"seed":0', '"seed":"x"'), *lines[1:]], "line 1: the header is malformed"),
    ],
)
def test_bad_label_files(file: Path, tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    with pytest.raises(DataError, match=message):
        federate(GUESS, partition="hardness", clients=5, tasks_per_client=10, xi=1.0, labels=path)


def test_labels_in_other_forms() -> None:
    made = federate(GUESS, clients=2, tasks_per_client=3, labels="pool")
    assert made.record.labels is not None and 0.3 < made.record.labels.solved.mean() < 0.8
    ids = made.pool.ids
    given = federate(
        GUESS,
        partition="hardness",
        clients=2,
        tasks_per_client=4,
        xi=1.0,
        labels={name: n % 2 for n, name in enumerate(ids)},
    )
    assert given.record.labels is not None and given.record.labels.solved.mean() == 0.5
    with pytest.raises(DataError, match="miss 599 of 600"):
        federate(GUESS, partition="hardness", clients=2, tasks_per_client=4, xi=1.0, labels={ids[0]: True})
    for wrong in ("yes", None, 2, -1, 1.5, -0.01, float("nan"), float("inf"), np.float32(1.1), 1j):
        with pytest.raises(DataError, match="must be a success share from 0 to 1, or true or false, got '"):
            federate(
                GUESS, partition="hardness", clients=2, tasks_per_client=4, xi=1.0, labels=dict.fromkeys(ids, wrong)
            )
    shares = {name: np.float32(0.5) if n % 2 else np.bool_(False) for n, name in enumerate(ids)}
    halved = federate(GUESS, clients=2, tasks_per_client=4, labels=shares).record.labels
    assert halved is not None and halved.solved.mean() == 0.5
    with pytest.raises(OptionError, match=r"labels must be a path, .pool. or a mapping"):
        federate(GUESS, clients=2, tasks_per_client=4, labels=7)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no labels come with this pool"):
        federate(GUESS, partition="hardness", clients=2, tasks_per_client=4, xi=1.0)
    with pytest.raises(DataError, match=r"(?i)no such file"):
        federate(GUESS, partition="hardness", clients=2, tasks_per_client=4, xi=1.0, labels="nowhere.jsonl")


def test_records_survive(file: Path, env: TextEnv) -> None:
    labels = read_labels(file).resolve_labels(env.pool, sorted(env.pool.ids))
    again = Labels.from_record(json.loads(json.dumps(labels.to_record())))
    assert np.array_equal(again.solved, labels.solved) and again.source == labels.source


def test_packed_labels_are_found_by_the_digest_of_their_pool(
    file: Path, env: TextEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "labels_guess.json").write_text(pack_labels(read_labels(file), env.pool.ids))
    monkeypatch.setattr(label_files.resources, "files", lambda _: tmp_path)
    made = federate(GUESS, partition="hardness", clients=4, tasks_per_client=10, xi=1.0)
    direct = federate(GUESS, partition="hardness", clients=4, tasks_per_client=10, xi=1.0, labels=file)
    assert made.digest == direct.digest
    assert federate(GUESS, clients=4, tasks_per_client=10, env={"seed": 1}).table.solved is None


SHIPPED = label_files.read_shipped()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_labels_fit_the_pool_that_the_environment_makes_today(name: str) -> None:
    """If this fails, a generator has changed: give it a new version and make the labels anew with the commands in
    docs/reference/labels.md."""
    record = SHIPPED[name]
    made = record["env"]
    env = open_env(made["id"], split=made["split"], **made["options"])
    assert env.pool.digest == record["pool_digest"]
    found = label_files.find_shipped(env.pool)
    assert found is not None and len(found.successes) == len(env.pool)
    solved = np.mean([count >= found.threshold for count in found.successes.values()])
    assert 0.3 <= solved <= 0.6, f"{solved:.1%} of {name} count as solved"


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_labels_are_what_their_policy_does_today(name: str) -> None:
    """The first few tasks are played again."""
    record = SHIPPED[name]
    made = record["env"]
    env = open_env(made["id"], split=made["split"], **made["options"])
    policy = Handicap(error=record["policy"]["error"], turns=record["policy"]["turns"])
    played = handicap_expert(env, policy, record["seed"], record["attempts"])(env.pool.ids[:10])
    assert "".join(map(str, played)) == record["successes"][:10]


def test_labels_ship_for_the_default_pools_of_both_worlds() -> None:
    assert {record["env"]["id"] for record in SHIPPED.values()} >= {"fedagentgym/WebShop-v0", "fedagentgym/ALFWorld-v0"}


@pytest.mark.parametrize("value", [None, True, -1, 10**20, 0.5, "x", [], {}, "\x00"])
@pytest.mark.parametrize(
    "place",
    ["schema", "env", "pool_digest", "policy", "seed", "attempts", "threshold", "env.id", "env.split", "env.options"],
)
def test_a_header_with_any_value_is_read_or_refused(file: Path, tmp_path: Path, place: str, value: object) -> None:
    header, *rest = file.read_text().splitlines(keepends=True)
    changed = json.loads(header)
    *above, last = place.split(".")
    node = changed
    for name in above:
        node = node[name]
    good = type(node[last])
    node[last] = value
    (tmp_path / "labels.jsonl").write_text(json.dumps(changed) + "\n" + "".join(rest))
    try:
        found = read_labels(tmp_path / "labels.jsonl")
        found.resolve_labels(TaskPool.from_records([{"payload": 1, "category": "x"}], env=GUESS), ["x"])
    except DataError as error:
        assert "\n" not in str(error)
        return
    assert isinstance(value, good)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"task": "guess/train/00000", "successes": true, "attempts": 4}', "between 0 and 4 successes"),
        ('{"task": "guess/train/00000", "successes": 1e3}', "between 0 and 4 successes"),
        ('{"task": "guess/train/00000", "successes": 1, "attempts": 9}', "says 4 attempts, this line another"),
        ('{"task": 5, "successes": 1}', "has a task id"),
        ("[" * 100_000, "nested"),
        ("9" * 5000, "not usable JSON"),
    ],
)
def test_a_line_that_is_no_label_is_refused(file: Path, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "labels.jsonl").write_text(file.read_text() + line + "\n")
    with pytest.raises(DataError, match=rf"line 602.*{message}"):
        read_labels(tmp_path / "labels.jsonl")


def test_a_task_with_two_labels_is_refused(file: Path, tmp_path: Path) -> None:
    header, first, *rest = file.read_text().splitlines(keepends=True)
    row = json.loads(first)
    row["successes"] = (row["successes"] + 1) % 5
    (tmp_path / "labels.jsonl").write_text("".join([header, first, *rest, json.dumps(row) + "\n"]))
    with pytest.raises(DataError, match="was labelled before, with another number"):
        read_labels(tmp_path / "labels.jsonl")
