"""A plan's episodes and tokens, evaluations included, against those that a small run of the same shape plays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from fedagentgym.agents.model.generate import TorchSession
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.experiment.run import train

from .conftest import Workshop

ROWS = (
    "paper-webshop:qwen2.5-1.5b",
    "paper-alfworld:qwen2.5-3b,centralized",
    "paper-fedgrpo:qwen2.5-math-1.5b,math,without-answers",
    "paper-pubswap:qwen3-1.7b,math,pubswap,tau-40",
    "paper-fedmoa:gsm8k,homo-homo,fedmoa",
)
IN_EVERY_RUN = ROWS[0]


@dataclass
class Meter:
    """The tokens that all sessions generated."""

    tokens: int = 0


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """Counts tokens of replies, none of which ends before it must: a plan takes them to be as long as they may be."""
    found, begin, generate = Meter(), TorchSession.__init__, TorchSession.generate

    def begin_without_end(
        self: TorchSession, forward: Any, context_length: int, stop_ids: Any, on_close: Any = None
    ) -> None:
        begin(self, forward, context_length, frozenset({-1}), on_close)

    def count(self: TorchSession, *args: Any, **kwargs: Any) -> Any:
        answers = generate(self, *args, **kwargs)
        found.tokens += sum(len(answer.token_ids) for answer in answers)
        return answers

    monkeypatch.setattr(TorchSession, "__init__", begin_without_end)
    monkeypatch.setattr(TorchSession, "generate", count)
    return found


@pytest.mark.parametrize(
    "name", [one if one == IN_EVERY_RUN else pytest.param(one, marks=pytest.mark.slow) for one in ROWS]
)
def test_a_plan_states_the_episodes_and_tokens_of_a_run(name: str, workshop: Workshop, meter: Meter) -> None:
    plain = workshop.shrink((name,))
    plain["output"]["folder"] += f"-bill-{ROWS.index(name)}"
    plan = plan_run(load_config(plain))
    folder = train(plain, force=True).folder
    lines = [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counted = {kind: sum(line.get(kind, 0) for line in lines) for kind in ("episodes", "scored")}
    assert counted["episodes"] == plan.total.episodes > 0
    assert counted["scored"] == pytest.approx(plan.total.scored, rel=0.02)
    assert plan.evaluated_tokens is not None and plan.evaluated_tokens > 0
    assert plan.generated_tokens + plan.evaluated_tokens == pytest.approx(meter.tokens, rel=0.02)
