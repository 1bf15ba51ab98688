"""Every row of the papers' tables runs two rounds, by the method as it stands, on small data and small models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.algorithms.base import get_algorithm_class
from fedagentgym.base.files import parse_yaml
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.config import list_presets, load_config, read_preset
from fedagentgym.experiment.opened import open_data

from .conftest import Workshop
from .rows import SAMPLE, list_rows, name_published
from .sizes import PLACES, SHARE, SIZES, iter_leaves, shrink

ROWS = list_rows()
TRAINS_NOTHING = "zero-shot"
LATER_PARTS = ("algorithm.local_steps", "algorithm.swap_period", "algorithm.objectives")
"""Settings that one part of a row may change after another: tau, the swap period, and who has which objectives."""


def mark(name: str) -> Any:
    return name if name in SAMPLE[::2] else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [mark(name) for name in ROWS])
def test_a_row_runs_two_rounds(name: str, workshop: Workshop) -> None:
    result = workshop.run(ROWS[name])
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    trains = TRAINS_NOTHING not in name
    assert result.record["rounds"] == (2 if trains else 0) and result.record["failures"] == 0
    learned = any(has_signal(line["metrics"]) for line in lines[1:])
    assert learned or name not in SAMPLE or not trains, "a row of every test run has something to learn from"
    if learned:
        assert lines[-1]["digest"] != lines[0]["digest"], "the model is another one after training"
    assert result.record["final"]["episodes"] > 0
    if load_config(result.folder / "config.yaml").evaluation.at_clients:  # type: ignore[union-attr]
        assert all("local/success" in line["metrics"] for line in lines[1:])


def has_signal(metrics: dict[str, float]) -> bool:
    """Return whether a round had a signal to learn from: a group whose answers are all equally good has none. Without one a
    model may still change, by AdamW's decay."""
    return "groups" not in metrics or metrics["groups/constant"] < metrics["groups"]


@pytest.mark.slow
def test_the_sample_has_every_preset_and_every_method() -> None:
    chosen, every = ([load_config(name.removesuffix(" with clients")) for name in names] for names in (SAMPLE, ROWS))
    assert {config.name for config in chosen} == {one for one in list_presets() if one.startswith("paper-")}
    assert {config.algorithm["name"] for config in chosen} == {config.algorithm["name"] for config in every}


def test_every_published_number_has_a_row(shared_data: Path) -> None:
    tables = shared_data.parent / "spec" / "paper_tables.yaml"
    numbers = yaml.safe_load(tables.read_text("utf-8"))["results"]
    told = [
        number for number in numbers if not (number["paper"] == "FedGRPO" and number["table"].startswith("Figure 2"))
    ]
    assert {row for number in told for row in name_published(number)} <= set(ROWS)
    assert len(told) > 900


# ---- what is made small, and what is not ------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [SAMPLE, pytest.param(tuple(ROWS), marks=pytest.mark.slow)], ids=["sample", "all"])
def test_a_row_is_made_small_in_size_alone(names: tuple[str, ...]) -> None:
    for name in names:
        row = ROWS[name]
        config = load_config(row[0], row[1:])
        whole = dict(iter_leaves(config.plain()))
        small = dict(iter_leaves(shrink(row, str, Path("run"), Path("labels"))))
        assert set(small) - set(whole) <= {"agent.model", "agent.decoding.max_new_tokens"}, name
        for path, value in small.items():
            before = whole.get(path)
            if value != before and path not in PLACES:
                assert any(fnmatchcase(path, pattern) for pattern in SIZES), f"{name} changes {path}"
                assert before is None or 0 < value < before, f"{name}: {path} grows to {value}"
        small_config = load_config(shrink(row, str, Path("run"), Path("labels")))
        assert get_algorithm_class(small_config.algorithm) is get_algorithm_class(config.algorithm)


@pytest.mark.slow
def test_no_part_of_a_row_undoes_another() -> None:
    for preset in {row[0].partition(":")[0] for row in ROWS.values()}:
        plain = parse_yaml(read_preset(preset), preset)
        variants = plain.pop("variants")
        for row in {row[0] for row in ROWS.values() if row[0].partition(":")[0] == preset}:
            parts = [variants[name] for name in filter(None, row.partition(":")[2].split(","))]
            final = reduce(merge, parts, plain)
            for path, value in (one for part in parts for one in iter_values(part)):
                assert path in LATER_PARTS or look_up(final, path) in (value, None), f"{row} forgets {path}={value}"


def iter_values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from iter_values(below, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def look_up(plain: Any, path: str) -> Any:
    for key in path.split("."):
        plain = plain.get(key) if isinstance(plain, Mapping) else None
    return plain


# ---- what is done with a row besides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [[], ["--training"]])
def test_episodes_of_a_row_are_exported_as_chat_messages(kind: list[str], workshop: Workshop, tmp_path: Path) -> None:
    name = "paper-pubswap:qwen3-4b,deepmath,fedprox-0.01,tau-90"
    folder = workshop.run(ROWS[name]).folder
    assert main(["chats", str(folder), "--out", str(tmp_path / "chats.jsonl"), *kind]) == 0
    said = [json.loads(line)["messages"] for line in (tmp_path / "chats.jsonl").read_text().splitlines()]
    assert said and all([message["role"] for message in one][-2:] == ["user", "assistant"] for one in said)
    assert any("What is" in one[-2]["content"] for one in said)


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["math-verify", "math-verify-reply"])
def test_a_row_is_graded_by_a_published_grader(verifier: str, workshop: Workshop) -> None:
    name = "paper-pubswap:qwen2.5-math-1.5b,math,fedavg-grpo,tau-10"
    result = workshop.run((name, f"env.options.verifier={verifier}"))
    assert result.record["rounds"] == 2
    assert all(told["verifier"].startswith("math-verify") for told in result.record["evaluation_sets"].values())


def test_clients_of_every_kind_are_judged_on_their_own_mixture(workshop: Workshop) -> None:
    """FedMOA's table 1 in parentheses: clients that hold MBPP are evaluated on HumanEval."""
    result = workshop.run(ROWS["paper-fedmoa:heter-heter,fedmoa"])
    last = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert len(last["clients"]) == 15
    assert all({"local/own", "local/humaneval/success"} <= set(numbers) for numbers in last["clients"].values())
    assert result.record["final"]["at_clients"]["held_out"]["clients"] == 15
    assert result.record["final"]["at_clients"]["held_out"]["coverage"] == 1.0


def test_all_of_math_is_dealt_as_published(workshop: Workshop) -> None:
    """PubSwap: four clients with a fifth each, a tenth is public and a tenth is for evaluation; nothing is left over."""
    client_split, sets = open_data(load_config(workshop.shrink(("paper-pubswap:math",))))
    whole = 12_500 // SHARE
    assert [len(client.tasks) for client in client_split] == [whole // 5] * 4
    assert len(client_split.role("public")) == len(sets[0].env.pool) == whole // 10
    held = {task for client in client_split for task in client.tasks} | set(client_split.role("public").ids)
    assert len(held) == len(client_split.pool) == whole - whole // 10
