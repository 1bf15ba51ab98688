"""Findings of `verify`: changes behind a new digest, leaked evaluation tasks, a library that cannot re-sample, moved axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedagentgym.partitions import verification
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.client_split import ClientSplit, federate
from fedagentgym.partitions.verification import CheckResult, can_resample

GUESS = "fedagentgym/Guess-v0"


def made(**parameters: Any) -> ClientSplit:
    given = {
        "partition": "preference",
        "omega": 0.9,
        "clients": 12,
        "tasks_per_client": 30,
        "labels": "pool",
        **parameters,
    }
    return federate(GUESS, **given)


def failed(client_split: ClientSplit) -> dict[str, CheckResult]:
    return {check.name: check for check in client_split.verify() if check.ok is False}


def tampered(client_split: ClientSplit, **changes: Any) -> ClientSplit:
    """The same client_split with a changed split, whose digest is made anew as a forger would."""
    return ClientSplit(replace(client_split.record, **changes), client_split.pool, client_split.options)


def test_this_machine_can_resample() -> None:
    assert can_resample(published=False) and can_resample(published=True)


@pytest.mark.parametrize(
    "parameters",
    [
        {"partition": "uniform", "omega": None},
        {"anchor": "logit"},
        {"partition": "preference_dirichlet", "omega": 0.5},
        {"partition": "coverage", "omega": None, "xi": 1.0},
        {"partition": "preference_coverage", "xi": 1.0},
        {"partition": "hardness", "omega": None, "xi": 1.0},
        {"partition": "dirichlet", "omega": None, "tasks_per_client": None, "beta": 0.3},
        {"partition": "by_source", "omega": None},
        {"roles": {"public": 50, "auxiliary": 20, "server": 30}},
        {"compat": "fedagent"},
    ],
)
def test_honest_splits_verify(parameters: dict[str, Any]) -> None:
    client_split = made(**parameters)
    assert not failed(client_split)
    assert any(check.name == "re-sampling" and check.ok for check in client_split.verify())


def test_an_exchanged_task_is_found() -> None:
    client_split = made()
    items = client_split.record.clients.items.copy()
    free = np.setdiff1d(np.arange(600), client_split.record.clients[0])
    items[0] = free[0]
    items[:30] = np.sort(items[:30])
    changed = tampered(client_split, clients=Assignment(client_split.record.clients.offsets, items))
    check = failed(changed)["re-sampling"]
    assert "1 of 12 clients do not follow from the seed: the content and its digest were changed" in check.detail


def test_another_seed_and_another_world_are_found() -> None:
    client_split = made()
    assert "12 of 12 clients" in failed(tampered(client_split, seed=1))["re-sampling"].detail
    roles = made(roles={"public": 10})
    moved = {"public": tuple(sorted(set(roles.pool.ids) - {n for c in roles for n in c.tasks}))[:10]}
    assert "roles do not follow" in failed(tampered(roles, roles=moved))["re-sampling"].detail


def test_a_library_that_draws_differently_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    client_split = tampered(made(), seed=1)
    monkeypatch.setattr(verification, "_FINGERPRINTS", {False: "other", True: "other"})
    (check,) = (check for check in client_split.verify() if check.name == "re-sampling")
    detail = check.detail
    assert check.ok is None and "cannot be verified" in detail
    assert "cannot re-sample" in detail and "content itself matches its digest" in detail


def test_a_task_in_two_roles_is_found() -> None:
    client_split = made(roles={"public": 10})
    held = client_split.client(0).tasks[0]
    changed = tampered(client_split, roles={"public": (*client_split.record.roles["public"], held)})
    assert "belongs to a client too" in failed(changed)["roles"].detail


def test_a_leaked_evaluation_task_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedagentgym.partitions import verification as module

    client_split = made()
    opened = module.open_env
    held = client_split.client(0).tasks[:2]

    def leaking(env_id: str, split: str, **options: Any) -> Any:
        env = opened(env_id, split=split, **options)
        if split == "val":
            env.pool = client_split.pool.subset(held)
        return env

    monkeypatch.setattr(module, "open_env", leaking)
    assert "2 tasks of 'val' are held by clients" in failed(client_split)["evaluation"].detail
    assert "divides 'val'" in failed(tampered(client_split, env_split="val"))["evaluation"].detail


def test_an_axis_that_moved_without_being_asked_for_is_found() -> None:
    """A split that says uniform and is by category."""
    skewed = made(partition="by_source", omega=None)
    claimed = tampered(skewed, sampler="uniform", parameters={"tasks_per_client": 30, "disjoint": False})
    assert "mixture untouched" in failed(claimed)


def test_an_edited_value_in_memory_is_found() -> None:
    client_split = made()
    digest = client_split.digest
    assert digest.startswith("sha256:")
    object.__setattr__(client_split.record, "seed", 77)
    assert "content" in failed(client_split)
