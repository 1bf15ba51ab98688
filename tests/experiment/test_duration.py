"""The time of a run: parts follow from tokens and from the measured passes, and a plan on a processor prints them."""

from __future__ import annotations

import pytest

from fedagentgym.cli.main import main
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.duration import (
    EpisodeLengths,
    PassTimes,
    estimate_durations,
    measure_lengths,
)
from fedagentgym.experiment.estimate.plan import plan_run

PASSES = PassTimes((0.1, 0.1, 0.5, 4.0), (0.0, 0.0, 0.0, 0.0))


def test_passes_are_linear_between_the_measured_ones() -> None:
    assert [PASSES.run(tokens, 0) for tokens in (0, 1, 8, 36, 64, 512, 1024)] == pytest.approx(
        [0, 0.1, 0.1, 0.3, 0.5, 4.0, 8.0]
    )


def test_twice_the_rounds_take_twice_the_time_and_workers_share_it() -> None:
    lengths = EpisodeLengths(20.0, 0.0, 3.0, 1.0)

    def estimate(*changes: str) -> float:
        plan = plan_run(load_config("small-skills", ["federation.workers=0", *changes]))
        found = estimate_durations(plan, lengths, PASSES)
        assert found.imitating > 0 and found.evaluating > 0
        return found.playing + found.updating

    assert estimate("federation.rounds=30") == pytest.approx(2 * estimate())
    assert estimate("agent.adapter=null") == pytest.approx(estimate() * 1.35, rel=0.15)


def test_steps_of_imitation_take_time() -> None:
    lengths = EpisodeLengths(20.0, 0.0, 3.0, 1.0)

    def estimate(*changes: str) -> float:
        plan = plan_run(load_config("tiny-math:fedpetuning-sft", ["federation.workers=0", *changes]))
        return estimate_durations(plan, lengths, PASSES).updating

    assert estimate("algorithm.local_steps=6") == pytest.approx(2 * estimate())
    assert estimate("algorithm.supervised.batch_size=320") > 5 * estimate()


def test_lengths_are_those_of_the_experts_episodes() -> None:
    one = measure_lengths(load_config("tiny-skills"))
    assert (one.later, one.turns) == (0.0, 1.0) and 5 < one.prompt < 20 < one.replies < 30
    house = measure_lengths(load_config("tiny-alfworld"))
    assert house.turns > 2 and house.later > 0


def test_a_plan_on_a_processor_says_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["plan", "tiny-skills"]) == 0
    told = capsys.readouterr().out
    assert "on this processor, measured now" in told and "total" in told and "device-hours" not in told
    assert main(["plan", "paper-webshop"]) == 0
    told = capsys.readouterr().out
    assert "device-hours" in told and "nothing was measured on a GPU" in told and "this processor" not in told
