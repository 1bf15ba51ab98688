"""The order of tasks over the rounds of a run: every client passes over its own tasks, whatever else a method does between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.algorithms.base import OnPublicTasks
from fedagentgym.base.settings import merge
from fedagentgym.experiment.run import resume, train
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.rollouts import collect
from fedagentgym.testing.runs import SMALL_CONFIG

TASKS, STEP = 6, 4
ROLES = {"public": 4, "auxiliary": 4, "server": 6}
Drawn = dict[int, list[str]]


class Killed(Exception):
    """The run ends here."""


class Killer:
    """Ends a run after a round."""

    def __init__(self, number: int) -> None:
        self._number = number

    def begin(self, rounds: int) -> None: ...

    def round_done(self, record: Mapping[str, Any]) -> None:
        if record["round"] == self._number:
            raise Killed


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawn]:
    """The tasks that were drawn from each pool, in order, by the seed of its passes."""
    found: Drawn = {}
    draw = LocalTraining.draw_tasks

    def watch(self: LocalTraining, seed: int) -> tuple[str, ...]:
        tasks = draw(self, seed)
        found.setdefault(self._order_seed, []).extend(tasks)
        return tasks

    monkeypatch.setattr(LocalTraining, "draw_tasks", watch)
    yield found


def configure(folder: Path, algorithm: dict[str, Any], rounds: int = 3, **learning: Any) -> dict[str, Any]:
    changes = {
        "partition": {"sampler": "uniform", "clients": 2, "tasks_per_client": TASKS, "disjoint": True, "roles": ROLES},
        "learning": {"tasks_per_step": STEP, "group_size": 2, "task_order": "epochs", **learning},
        "algorithm": algorithm,
        "federation": {"rounds": rounds},
        "output": {"folder": str(folder)},
    }
    return merge(SMALL_CONFIG, changes)


def check_passes(found: Drawn, pools: int) -> None:
    assert len(found) == pools
    for tasks in found.values():
        for first in range(0, len(tasks), TASKS):
            part = tasks[first : first + TASKS]
            assert len(set(part)) == len(part), "a task twice in a pass"
        met = Counter(tasks)
        assert len(met) == TASKS and max(met.values()) - min(met.values()) <= 1


METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "fedagent": ({"name": "fedagent", "local_steps": 2}, 2),
    "fedmoa, passes": (
        {"name": "fedmoa", "local_steps": 5, "local_passes": 1, "objectives": [["accuracy", "length"]]},
        2,
    ),
    "pubswap": ({"name": "pubswap", "local_steps": 5, "swap_period": 2, "public_tasks": 2}, 2),
    "hacpo": ({"name": "hacpo", "local_steps": 4, "swap_period": 3, "public_tasks": 2}, 2),
    "fedgrpo": (
        {"name": "fedgrpo", "scorer": "reward_model", "neighbours": 2, "expert_steps": 1, "expert_refresh": 1},
        3,
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_passes_go_on_from_round_to_round(name: str, tmp_path: Path, drawn: Drawn) -> None:
    algorithm, pools = METHODS[name]
    train(configure(tmp_path / "run", algorithm))
    check_passes(drawn, pools)


def test_a_run_that_is_killed_goes_on_in_the_middle_of_its_pass(tmp_path: Path, drawn: Drawn) -> None:
    plain = configure(tmp_path / "straight", {"name": "fedagent", "local_steps": 1}, rounds=4)
    straight = train(plain)
    whole = {seed: list(tasks) for seed, tasks in drawn.items()}
    drawn.clear()
    plain["output"]["folder"] = str(tmp_path / "killed")
    with pytest.raises(Killed):
        train(plain, observers=[Killer(2)])
    assert all(len(tasks) == 2 * STEP for tasks in drawn.values())
    assert resume(tmp_path / "killed").digest == straight.digest
    assert drawn == whole


@pytest.mark.parametrize("order", ["distinct", "epochs"])
def test_a_policy_that_is_scored_and_one_for_all_worlds_take_their_tasks_in_the_same_order(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods that draw tasks themselves."""
    played: list[str] = []

    def watch(agent: Any, env: Any, tasks: Any, **options: Any) -> Any:
        played.extend(tasks)
        return collect(agent, env, tasks, **options)

    monkeypatch.setattr("fedagentgym.learning.learner.collect", watch)
    one_world = {"name": "centralized", "worlds": "clients", "local_steps": 3}
    train(configure(tmp_path / "centralized", one_world, rounds=1, tasks_per_step=2 * TASKS, task_order=order))
    for first in range(0, len(played), 2 * TASKS):
        assert len(set(played[first : first + 2 * TASKS])) == 2 * TASKS
    played.clear()
    monkeypatch.setattr("fedagentgym.learning.rollouts.collect", watch)
    es = {"name": "es", "population": 2, "antithetic": True}
    train(configure(tmp_path / "es", es, rounds=2, tasks_per_step=TASKS, task_order=order))
    for first in range(0, len(played), TASKS):
        assert len(set(played[first : first + TASKS])) == TASKS


def test_public_tasks_are_each_at_most_once_in_a_step_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    draw = OnPublicTasks.draw_public_tasks
    monkeypatch.setattr(
        OnPublicTasks, "draw_public_tasks", lambda self, stream: asked.append(draw(self, stream)) or asked[-1]
    )
    train(configure(tmp_path / "run", {"name": "pubswap", "local_steps": 2, "public_tasks": 4}, rounds=1))
    assert asked and all(len(set(tasks)) == 4 for tasks in asked)
