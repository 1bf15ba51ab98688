"""The text of a public value in an interactive session: one line or a few, however much the value holds."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import pytest

import fedagentgym
from fedagentgym.envs import open_env
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.rollouts import Rollouts, RolloutStats

PACKAGES = (
    "fedagentgym",
    *(
        f"fedagentgym.{name}"
        for name in ("agents", "algorithms", "envs", "federation", "learning", "partitions", "testing")
    ),
)
SCALARS = {"int", "float", "bool", "int | None", "float | None"}
MOST = 500
BOUNDED = {
    *(
        "ArrayForm",
        "Card",
        "Operation",
        "Procedures",
        "PublishedTemplate",
        "Scale",
        "Sent",
        "Template",
        "Verdict",
    ),  # a few words
    *("Client", "RunResult"),  # tried on real ones, below and where runs are
    *("Evaluation", "Rollouts"),  # below
}


def list_public_records() -> dict[str, type]:
    """The public dataclasses and named tuples."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) and (dataclasses.is_dataclass(value) or hasattr(value, "_fields")):
                found[name] = value
    return found


RECORDS = list_public_records()


def fill(cls: type) -> Any:
    """An instance that holds very much wherever its types allow it."""
    many = {f"key {number}": ("text " * 20,) * 50 for number in range(500)}

    def choose(annotation: object) -> Any:
        text = getattr(annotation, "__forward_arg__", str(annotation))
        return 1 if text in SCALARS else many if "Mapping" in text else "long " * 1000 if text == "str" else (many,) * 9

    if hasattr(cls, "_fields"):
        return cls._make(choose(cls.__annotations__.get(name, "int")) for name in cls._fields)
    made = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(made, field.name, choose(field.type))
    return made


def test_there_are_records_to_try() -> None:
    assert {"Episode", "Evaluation", "Message", "SplitRecord", "Task", "Trajectory"} <= set(RECORDS)


@pytest.mark.parametrize("name", sorted(RECORDS.keys() - BOUNDED))
def test_a_value_that_holds_much_has_a_short_text(name: str) -> None:
    assert len(repr(fill(RECORDS[name]))) < MOST


def test_an_evaluation_says_what_came_out() -> None:
    found = evaluate("random", "Guess")
    mean, low, high = found.overall["success"]
    assert repr(found) == f"Evaluation(60 tasks, success {mean:.3f} [{low:.3f}, {high:.3f}])"
    assert repr(Rollouts(found.groups, RolloutStats())) == "Rollouts(60 tasks, 60 episodes)"
    (trajectory,) = found.groups[0]
    turns = len(trajectory.turns)
    assert (
        repr(trajectory).startswith(f"Trajectory(guess/val/00000: {turns} turns, score 0")
        and len(repr(trajectory)) < 90
    )
    for many in (
        trajectory.turns[0],
        open_env("Guess").pool,
        open_env("Guess").task_set,
        fedagentgym.federate("Guess"),
    ):
        assert len(repr(many)) < MOST
    assert len(repr(fedagentgym.federate("Guess")[0])) < MOST
