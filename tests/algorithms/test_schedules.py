"""Schedules of the learning rate: they count the steps of the run, and those of a fine-tuning are a schedule of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.settings import ScheduleSettings

SPEC: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0", "options": {"max_turns": 3}},
    "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}},
    "rounds": 4,
    "learning": {"tasks_per_step": 2, "group_size": 2, "learning_rate": 1e-3, "schedule": {"name": "linear"}},
    "partition": {"clients": 3, "tasks_per_client": 8, "roles": {"public": 8}},
}


TINY_MATH = {"id": "fedagentgym/Math-v0", "options": {"size": "tiny"}}
EXPERTS = {"clients": 3, "tasks_per_client": 8, "roles": {"auxiliary": 6, "server": 6}}


def make(algorithm: dict[str, Any], **changes: Any) -> Any:
    spec = ExperimentSpec.load({**SPEC, "algorithm": algorithm, **changes})
    return make_algorithm(spec, Runtime(spec))


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rates of all steps, in their order, as shares of the configured one."""
    found: list[float] = []
    update = LocalTraining.update

    def watch(self: LocalTraining, *arguments: Any, **more: Any) -> Any:
        report = update(self, *arguments, **more)
        found.append(report.metrics["learning_rate"] / self.settings.learning_rate)
        return report

    monkeypatch.setattr(LocalTraining, "update", watch)
    return found


def play(folder: Path, algorithm: dict[str, Any], asked: int | None = None) -> None:
    built = make(algorithm)
    settings = FederationSettings(rounds=4, clients_per_round=asked)
    run_rounds(built, SequentialBackend(built, folder / "states"), ServerConfig(folder, 0, settings))


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedagent"},
        {"name": "pubswap", "swap_period": 2, "public_tasks": 2},
        {"name": "hacpo", "swap_period": 2, "public_tasks": 2},
        {"name": "swarm", "swap_period": 2, "public_tasks": 2, "local": 1, "external": 1},
    ],
    ids=lambda algorithm: algorithm["name"],
)
def test_a_client_that_missed_rounds_takes_the_steps_of_the_run(
    algorithm: dict[str, Any], rates: list[float], tmp_path: Path
) -> None:
    """One of three clients in each of four rounds of two steps: the rate falls to an eighth, whoever takes part."""
    play(tmp_path, {**algorithm, "local_steps": 2}, asked=1)
    assert rates == pytest.approx([1 - step / 8 for step in range(8)])


def test_fine_tuning_has_a_schedule_of_its_own(rates: list[float], tmp_path: Path) -> None:
    """Otherwise the one after the last round would have the rate 0."""
    play(tmp_path, {"name": "fedavg-finetune", "local_steps": 1, "finetune_steps": 4, "finetune_every": 4}, asked=1)
    trained, tuned = rates[:4], rates[4:]
    assert trained == pytest.approx([1, 0.75, 0.5, 0.25])
    assert tuned == pytest.approx([1, 0.75, 0.5, 0.25] * 3), "all three clients, whoever took part"


def test_experts_decay_over_their_own_training(rates: list[float], tmp_path: Path) -> None:
    expert = {"expert_steps": 4, "neighbours": 4, "experts": 1}
    built = make({"name": "fedgrpo", **expert}, partition=EXPERTS)
    settings = FederationSettings(rounds=0)
    run_rounds(built, SequentialBackend(built, tmp_path / "states"), ServerConfig(tmp_path, 0, settings))
    assert rates == pytest.approx([1, 0.75, 0.5, 0.25] * 3)


@pytest.mark.parametrize(("steps", "fits"), [(None, True), (4, True), (3, False), (1, False)])
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_decay_ends_after_the_warm_up(steps: int | None, fits: bool, name: str) -> None:
    plain = {"name": name, "warmup": 3, "steps": steps}
    if fits:
        ScheduleSettings.load(plain)
    else:
        with pytest.raises(OptionError, match=r"must be above warmup \(3\), got"):
            ScheduleSettings.load(plain)
    assert ScheduleSettings.load({**plain, "name": "constant"})


# ---- settings that cannot work are refused at the door --------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "changes", "told"),
    [
        ({"name": "fedgrpo", "experts": 4, "neighbours": 2}, {"partition": EXPERTS}, "4 experts, there are 3 clients"),
        (
            {"name": "fedgrpo", "neighbours": 7},
            {"partition": EXPERTS},
            r"7 examples, partition\.roles\.auxiliary holds 6",
        ),
        ({"name": "pubswap", "swap_period": 1, "public_tasks": 9}, {}, "9 tasks at a time, .* holds 8"),
        ({"name": "hacpo", "public_tasks": 9}, {}, "9 tasks at a time, .* holds 8"),
        ({"name": "swarm", "public_tasks": 9}, {}, "9 tasks at a time, .* holds 8"),
        (
            {"name": "dpsda-fl", "candidates": 5000, "synthetic_tasks": 4},
            {"env": TINY_MATH},
            "5000 candidates, the public",
        ),
        ({"name": "personal-layers", "layers": ["nope"]}, {}, "no trained parameter would stay"),
        ({"name": "personal-head", "layers": ["nope"]}, {}, "no trained parameter would stay"),
    ],
)
def test_what_does_not_fit_the_clients_or_the_model_is_refused_before_anything_is_written(
    algorithm: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        make(algorithm, **changes).check_start(3)


@pytest.mark.parametrize("clip", [[1.0, 0.2], [-0.1, 0.2], [0.1, -0.2]])
def test_a_clip_of_hacpo_that_encloses_no_ratio_is_one_sentence(clip: list[float]) -> None:
    with pytest.raises(OptionError, match="clip is"):
        make({"name": "hacpo", "public_tasks": 2, "clip": clip})


@pytest.mark.parametrize(("delta", "fits"), [(0.33, True), (1 / 3, False), (0.9, False)])
def test_a_delta_that_promises_nothing_is_refused(delta: float, fits: bool) -> None:
    method = make({"name": "fedagent", "privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": delta}})
    if fits:
        method.check_start(3)
    else:
        with pytest.raises(OptionError, match=r"delta must be below 1 / clients \(1 / 3\)"):
            method.check_start(3)


def weigh(first: float, second: float) -> dict[str, Any]:
    parts = [{"name": "accuracy/guess", "weight": first}, {"name": "length", "weight": second}]
    return {"learning": {**SPEC["learning"], "objectives": parts}}


@pytest.mark.parametrize(
    ("given", "start"),
    [((0.9, 0.1), (0.9, 0.1)), ((3.0, 1.0), (0.75, 0.25)), ((1.0, 1.0), (0.5, 0.5)), ((0, 2), (0, 1))],
)
def test_fedmoa_begins_with_the_weights_of_the_objectives(
    given: tuple[float, float], start: tuple[float, float]
) -> None:
    names = ("accuracy/guess", "length")
    method = make({"name": "fedmoa", "step_size": 0.1}, **weigh(*given))
    assert tuple(method.init_objective_weights(names, None, {}).values()) == pytest.approx(start)
    later = method.init_objective_weights(names, {"accuracy/guess": 0.2, "length": 0.8}, {})
    assert tuple(later.values()) == pytest.approx((0.2, 0.8))


@pytest.mark.parametrize(
    ("algorithm", "given", "told"),
    [
        ({"step_size": 0.0}, (0.9, -0.1), "at least 0"),
        ({}, (0.9, -0.1), "at least 0"),
        ({}, (0.0, 0.0), "not all 0"),
        ({"reset_weights": "uniform"}, (0.9, 0.1), "begins with equal weights"),
        ({"objectives": [["accuracy/guess", "length"]]}, (0.9, 0.1), "begins with equal weights"),
    ],
)
def test_weights_that_fedmoa_would_not_use_are_refused(
    algorithm: dict[str, Any], given: tuple[float, float], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        make({"name": "fedmoa", **algorithm}, **weigh(*given))
