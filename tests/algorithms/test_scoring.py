"""Experts at work on questions: by their gold, by their own answer, by likelihood; and what the votes of DPSDA-FL cost."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.algorithms.dpsda_fl import (
    add_noise,
    compute_epsilon,
    compute_noise_deviation,
    count_votes,
)
from fedagentgym.algorithms.experts import Scorer, make_task_records, pool_from_records
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env
from fedagentgym.envs.tasks import to_plain_payload
from fedagentgym.testing import check_algorithm

MATH: dict[str, Any] = {
    "env": {"id": "fedagentgym/Math-v0", "options": {"size": "tiny"}},
    "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 12, "constrained": False}},
    "learning": {"tasks_per_step": 2, "group_size": 3, "learning_rate": 1e-3},
    "partition": {"clients": 3, "tasks_per_client": 30, "roles": {"auxiliary": 6, "server": 12}},
}


def open_math(**options: Any) -> Any:
    return gymnasium.make("fedagentgym/Math-v0", size="tiny", **options).unwrapped


def answer(text: str) -> str:
    return f"<think> x </think> <answer> {text} </answer>"


@pytest.mark.parametrize("env_id", ["Math", "QA"])
def test_a_question_travels_and_is_played_by_who_receives_it(env_id: str) -> None:
    env: Any = gymnasium.make(f"fedagentgym/{env_id}-v0", size="tiny").unwrapped
    ids = list(env.pool.ids[:20])
    records = decode(encode(make_task_records(env, ids)))
    received = pool_from_records(records, env)
    for task in received:
        (episode,) = env.reset_many([task], [0])
        assert episode.view.observation == env.reset_many([task.id], [0])[0].view.observation
        assert env.step_many([episode], [env.expert().act(episode)])[0].view.success
    blind = decode(encode(make_task_records(open_env(type(env), size="tiny", pool=env.pool.without_answers(ids)), ids)))
    assert all(not record["payload"]["answers"] for record in blind)
    with pytest.raises(DataError, match="task records"):
        pool_from_records("nonsense", env)


def test_payloads_become_plain() -> None:
    assert to_plain_payload({"a": (1, [2])}) == {"a": [1, [2]]}


def test_agreement_is_with_the_answer_believed() -> None:
    env = open_math()
    task = env.pool[0]
    believed = env.with_belief(task, answer("17"))
    assert believed is not None
    for said, score in (("17", 1.0), ("34 / 2", 1.0), ("18", 0.0)):
        (episode,) = env.reset_many([believed], [0])
        assert env.step_many([episode], [answer(said)])[0].view.score == score
    assert env.with_belief(task, "no tags, no answer") is None


def test_an_expert_that_holds_the_question_checks_it_against_its_gold() -> None:
    bench = Runtime(ExperimentSpec.load({**MATH, "algorithm": {"name": "fedgrpo"}}))
    held = bench.client_split.client(0).tasks[0]
    right = bench.env.expert().act(bench.env.reset_many([held], [0])[0])
    question = {
        "task": {"id": held, "category": "x", "payload": to_plain_payload(bench.client_split.pool[held].payload)},
        "candidates": [{"actions": [right], "seed": 0}, {"actions": [answer("no")], "seed": 0}],
    }
    for answers, certain in (("own", True), ("holders_first", True), ("all", True), ("off", False)):
        scorer = Scorer(bench, bench.get_site(0), bench.initial_weights, answers=answers)  # type: ignore[arg-type]
        (row,) = scorer.score_questions([question], seed=0)
        assert scorer.may_check(question) == certain and (row == [1.0, 0.0] if certain else set(row) <= {0.0, 1.0})
    strangers = set(bench.client_split.client(1).tasks) - set(bench.client_split.client(0).tasks)
    for answers, certain in (("own", False), ("holders_first", False), ("all", True), ("off", False)):
        scorer = Scorer(bench, bench.get_site(0), bench.initial_weights, answers=answers)  # type: ignore[arg-type]
        assert scorer.may_check({"task": {"id": min(strangers)}}) == certain


@pytest.mark.parametrize("scorer", ["self_answer", "reward_model"])
def test_fedgrpo_on_questions(scorer: str) -> None:
    result = check_algorithm("fedgrpo", config=MATH, workers=0, scorer=scorer, neighbours=3, answers="off")
    assert result.record["rounds"] == 2 if "rounds" in result.record else result.record


@given(st.floats(0.1, 20), st.floats(1e-9, 0.1), st.integers(1, 50))
def test_the_noise_spends_exactly_the_budget(epsilon: float, delta: float, iterations: int) -> None:
    deviation = compute_noise_deviation(epsilon, delta, iterations)
    assert compute_epsilon(deviation, delta, iterations) == pytest.approx(epsilon, rel=1e-9)
    solved = scipy.optimize.brentq(
        lambda s: compute_epsilon(s, delta, iterations) - epsilon, deviation / 10, deviation * 10
    )
    assert solved == pytest.approx(deviation, rel=1e-6)


def test_the_accountant_is_not_more_optimistic_than_the_exact_gaussian() -> None:
    """One release: zCDP's epsilon is an upper bound of the analytic Gaussian mechanism's (Balle and Wang 2018)."""
    from scipy.stats import norm

    for deviation in (0.7, 1.0, 3.0, 10.0):
        epsilon = compute_epsilon(deviation, 1e-5, 1)
        a, b = 1 / (2 * deviation), epsilon * deviation
        delta = norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b)
        assert delta <= 1e-5


def test_every_example_votes_once_for_the_nearest() -> None:
    random = np.random.default_rng(0)
    private, candidates = random.normal(size=(40, 4)), random.normal(size=(7, 4))
    votes = count_votes(private, candidates)
    assert votes.sum() == 40
    expected = [max(range(7), key=lambda index: float(row @ candidates[index])) for row in private]
    assert votes.tolist() == [expected.count(index) for index in range(7)]
    assert count_votes(np.zeros((0, 4)), candidates).tolist() == [0] * 7
    shown = add_noise(np.zeros(20_000, dtype=np.int64), 3.0, stream(0, "noise"))
    assert abs(shown.std() - 3.0) < 0.1 and abs(shown.mean()) < 0.1


@pytest.mark.parametrize("budget", [(0.0, 1e-5, 1), (1.0, 0.0, 1), (1.0, 1e-5, 0)])
def test_impossible_budgets_are_refused(budget: tuple[float, float, int]) -> None:
    with pytest.raises(OptionError):
        compute_noise_deviation(*budget)
