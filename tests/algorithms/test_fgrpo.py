"""FGRPO: gains, weights and histories as a plain loop computes them, over rounds with partial participation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.algorithms.averaging import AcceptedReply
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.fgrpo import FGRPO, FGRPOSettings
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.exchange import Reply
from fedagentgym.federation.message import Message
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.settings import LearningSettings
from tests.algorithms.test_inherited_options import SPEC

REWARDS = st.floats(-5, 5, allow_nan=False)


def reply(client: int, reward: float, **metrics: float) -> AcceptedReply:
    return AcceptedReply(client, 1, 1.0, {}, {"reward": reward, **metrics}, ())


def weigh(chosen: FGRPOSettings, rewards: list[float], histories: list[float | None]) -> list[float]:
    method = FGRPO(chosen, SimpleNamespace(learning=LearningSettings()))  # type: ignore[arg-type]
    known = {str(client): value for client, value in enumerate(histories) if value is not None}
    replies = [method._add_gain(reply(client, reward), known) for client, reward in enumerate(rewards)]
    weights = method.client_weights(replies, None)  # type: ignore[arg-type]
    return [weight / sum(weights) for weight in weights]


@settings(deadline=None)
@given(
    st.lists(st.tuples(REWARDS, st.none() | REWARDS), min_size=1, max_size=6),
    st.floats(0.05, 10),
    st.floats(0.01, 2),
)
def test_weights_are_the_softmax_of_relative_gains(
    clients: list[tuple[float, float | None]], temperature: float, scale: float
) -> None:
    rewards, histories = [one for one, _ in clients], [two for _, two in clients]
    found = weigh(FGRPOSettings(temperature=temperature, scale=scale), rewards, histories)
    raised = []
    for reward, before in clients:
        gain = 0.0 if before is None else (reward - before) / (scale if abs(before) < scale else abs(before))
        raised.append(np.exp((1 if gain > 1 else -1 if gain < -1 else gain) / temperature))
    assert found == pytest.approx([one / sum(raised) for one in raised], rel=1e-9)
    assert sum(found) == pytest.approx(1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 5), st.floats(0.5, 5)), min_size=2, max_size=5), st.floats(1, 100))
def test_the_scale_of_a_client_s_reward_does_not_count(clients: list[tuple[float, float]], times: float) -> None:
    chosen = FGRPOSettings()
    rewards, histories = [one for one, _ in clients], [two for _, two in clients]
    found = weigh(chosen, rewards, list(histories))
    louder = weigh(chosen, [times * rewards[0], *rewards[1:]], [times * histories[0], *histories[1:]])
    assert found == pytest.approx(louder, rel=1e-9)


def run(
    folder: Path,
    algorithm: dict[str, Any],
    rounds: int,
    asked: int = 2,
    backend: type[SequentialBackend] = SequentialBackend,
) -> Commit:
    spec = ExperimentSpec.load(merge(SPEC, {"rounds": rounds, "algorithm": {"local_steps": 1, **algorithm}}))
    built = make_algorithm(spec, Runtime(spec))
    plan = ServerConfig(folder, 0, FederationSettings(rounds=rounds, clients_per_round=asked))
    return run_rounds(built, backend(built, folder / "states"), plan).commit


def test_histories_follow_the_rounds_in_which_a_client_takes_part_also_after_a_resume(tmp_path: Path) -> None:
    chosen = {"name": "fgrpo", "history": 0.75}
    wanted: dict[str, float] = {}
    for number in range(1, 6):  # each call goes on where the folder ends
        commit = run(tmp_path / "run", chosen, number)
        for client, metrics in commit.record["clients"].items():
            before = wanted.get(str(client))
            reward = metrics["reward"]
            gain = 0.0 if before is None else (reward - before) / max(abs(before), 0.1)
            assert metrics["gain"] == pytest.approx(max(-1.0, min(1.0, gain)))
            wanted[str(client)] = reward if before is None else 0.75 * before + 0.25 * reward
        assert dict(commit.state.memory["history"]) == pytest.approx(wanted)
    assert len(wanted) == 3
    whole = run(tmp_path / "whole", chosen, 5)
    assert whole.state.memory == commit.state.memory
    assert all(np.array_equal(value, commit.state.parameters[name]) for name, value in whole.state.parameters.items())


class Spoiled(SequentialBackend):
    """In round 2 the first client reports `value` as its reward; with None it reports none, as without an episode."""

    value: float | None = None

    def run(self, requests: Any, deadline: float | None) -> Iterator[Reply]:
        for place, reply in enumerate(super().run(requests, deadline)):
            message = Message.decode(reply.message)
            metrics = {**message.report["metrics"], "reward": self.value}
            metrics = {name: number for name, number in metrics.items() if number is not None}
            told = replace(message, report={**message.report, "metrics": metrics})
            yield replace(reply, message=told.encoded) if place == 0 and requests[0].name.round == 2 else reply


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_client_without_a_reward_has_no_weight_and_keeps_its_history(
    value: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spoiled, "value", value)
    first = run(tmp_path, {"name": "fgrpo"}, 1, asked=3)
    commit = run(tmp_path, {"name": "fgrpo"}, 2, asked=3, backend=Spoiled)
    (failure,) = commit.record["failures"]
    assert failure["reason"] == "refused" and "'reward'" in failure["message"]
    lost, before, after = str(failure["client"]), first.state.memory["history"], commit.state.memory["history"]
    assert after[lost] == before[lost] and lost not in commit.record["clients"]


def test_a_reply_without_a_reward_that_is_a_number_is_refused(tmp_path: Path) -> None:
    assert dict(FGRPO.deciding_metrics) == {"reward": (-1e6, 1e6)}
    with pytest.raises(OptionError, match="privacy cannot be used with it"):
        FGRPOSettings.load({"privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}})
