"""One site's loop end to end: a tiny language model that plays and learns a guessing game."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.penalties import Proximal
from fedagentgym.learning.pretrain import pretrain_tiny
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings, WarmStartSettings
from fedagentgym.learning.state import SiteState, StepReport, get_trainable_policy, mean_metrics
from fedagentgym.learning.supervised import collect_demonstrations, draw_demonstration_tasks, warm_start
from fedagentgym.learning.trajectory import from_plain, to_plain

from .test_rollouts import Guesser

SMALL: dict[str, Any] = {
    "tasks_per_step": 2,
    "group_size": 4,
    "learning_rate": 1e-3,
    "minibatches": 2,
    "parallel_episodes": 8,
}
SMALL_TASKS = [task.id for task in open_env(GuessEnv).pool if task.category == "small"][:64]


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def env() -> GuessEnv:
    return open_env(GuessEnv)


def make_agent(**options: Any) -> TokenAgent:
    adapter, dtype = options.pop("adapter", None), options.pop("dtype", torch.float32)
    decoding = options.pop("decoding", Decoding(max_new_tokens=8))
    model, tokenizer = make_tiny_model(open_env(GuessEnv).vocabulary(), "0.1m", context_length=256)
    policy = TorchPolicy(model.to(dtype), tokenizer, adapter=adapter)
    return TokenAgent("tiny", policy, Template("compact", False), decoding, **options)


def make_local(**options: Any) -> LocalTraining:
    more = {name: options.pop(name) for name in ("run_steps",) if name in options}
    if "proximal" in options:
        more["penalties"] = [Proximal(options.pop("proximal"))]
    agent = make_agent(decoding=Decoding(max_new_tokens=8, constrained=True))
    return LocalTraining(
        agent, open_env(GuessEnv, tasks=SMALL_TASKS), LearningSettings.load({**SMALL, **options}), **more
    )


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context": "window"},
        {"decoding": Decoding(max_new_tokens=8, temperature=0.7)},
        {"decoding": Decoding(max_new_tokens=8, constrained=True)},
        {"adapter": AdapterSettings(rank=2)},
    ],
    ids=["session", "window", "tempered", "constrained", "lora"],
)
def test_recorded_log_probs_are_those_of_the_training_pass(env: GuessEnv, options: dict[str, Any]) -> None:
    """The rollout engine records the distribution that the update computes."""
    agent = make_agent(**options)
    policy = get_trainable_policy(agent)
    random = np.random.default_rng(0)
    policy.set_weights(
        {n: w + 0.1 * random.standard_normal(w.shape).astype(np.float32) for n, w in policy.get_weights().items()}
    )
    local = LocalTraining(agent, env, LearningSettings.load(SMALL))
    groups = local.collect_groups(seed=1)
    for group, again in zip(groups, local.recompute_logprobs(groups), strict=True):
        for trajectory, fresh in zip(group, again, strict=True):
            for segment, rescored in zip(trajectory.segments, fresh.segments, strict=True):
                np.testing.assert_allclose(segment.logprobs, rescored.logprobs, atol=2e-5)
    given = [[1.0, -1.0, 0.5, -0.5] for _ in groups]
    report = LocalTraining(agent, env, LearningSettings.load({**SMALL, "minibatches": 1})).update(
        groups, advantages=given
    )
    assert report.metrics["ratio"] == pytest.approx(1.0, abs=1e-4)


def test_the_same_state_and_seed_give_the_same_bits() -> None:
    first, second = make_local(), make_local()
    reports = [local.run(2, seed=3) for local in (first, second)]
    assert same(first.get_state().weights, second.get_state().weights)
    timeless = [{k: v for k, v in r.metrics.items() if not k.startswith("seconds")} for r in reports]
    assert timeless[0] == timeless[1]
    other = make_local()
    other.run(2, seed=4)
    assert not same(first.get_state().weights, other.get_state().weights)


def test_a_site_can_stop_anywhere_and_go_on_elsewhere() -> None:
    """State through the wire, mid-round, with optimizer and anchor: the same bits as without a break."""
    options = {"kl": 0.05, "proximal": 0.01, "schedule": {"name": "linear"}, "run_steps": 6}
    straight = make_local(**options)
    straight.run(3, seed=3)
    first, second = make_local(**options), make_local(**options)
    first.run(1, seed=3)
    second.run(1, seed=99)
    carried = SiteState.from_plain(decode(encode(first.get_state(optimizer=True, anchor=True).to_plain())))
    second.load_state(carried)
    second.run(2, seed=3)
    assert second.step == straight.step == 3
    assert same(second.get_state().weights, straight.get_state().weights)
    assert same(second.get_state(anchor=True).anchor, straight.get_state(anchor=True).anchor)


def test_the_optimizer_travels_only_when_it_is_kept() -> None:
    forgetful, keeping = make_local(), make_local(keep_optimizer=True)
    for local in (forgetful, keeping):
        local.run(1, seed=0)
    assert forgetful.get_state().optimizer == {} and keeping.get_state().optimizer
    assert forgetful.get_state(anchor=True).anchor == {}


def test_a_broken_state_is_one_error() -> None:
    for broken in ({}, {"weights": 3, "optimizer": {}, "anchor": {}, "step": 0}, {"weights": {}, "step": "x"}):
        with pytest.raises(DataError, match="not the state of a site"):
            SiteState.from_plain(broken)
    with pytest.raises(DataError, match="fit"):
        make_local().load_state(SiteState(weights={"x": np.zeros(1)}))


def test_tasks_are_drawn_from_the_site_s_pool_anew_at_every_step() -> None:
    local = LocalTraining(
        make_agent(),
        open_env(GuessEnv, tasks=open_env(GuessEnv).pool.ids[5:9]),
        LearningSettings.load({**SMALL, "tasks_per_step": 12}),
    )
    first = local.draw_tasks(7)
    assert set(first) <= set(open_env(GuessEnv).pool.ids[5:9]) and len(first) == 12 == len(local.draw_tasks(7))
    local.step = 1
    assert local.draw_tasks(7) != first
    named = local.collect_groups(7, tasks=[first[0]], group_size=3)
    assert [[t.task for t in group] for group in named] == [[first[0]] * 3]


def test_given_advantages_replace_those_of_the_rewards() -> None:
    local = make_local()
    before = local.get_state().weights
    groups = local.collect_groups(seed=0)
    zero = local.update(groups, advantages=[[0.0] * len(group) for group in groups])
    assert zero.metrics["update/empty"] == 2 and same(before, local.get_state().weights)
    local.update(groups, advantages=[[1.0, -1.0, 0.5, -0.5] for _ in groups])
    assert not same(before, local.get_state().weights)
    with pytest.raises(OptionError, match="advantages= gives 1 advantages to a group of 4 episodes"):
        local.update(groups, advantages=[[1.0]] * len(groups))
    with pytest.raises(OptionError, match="not a finite number"):
        local.update(groups, advantages=[[float("nan")] * len(group) for group in groups])


def test_a_broken_format_costs_the_broken_turn_alone_where_that_is_asked_for() -> None:
    alone = {**SMALL, "advantage": {"name": "grpo", "baseline": "turns"}, "format_penalty_on": "turn"}
    local = LocalTraining(make_agent(), open_env(GuessEnv), LearningSettings.load(alone))
    (group,) = local.collect_groups(0, tasks=SMALL_TASKS[:1])
    marked = tuple(
        replace(episode, turns=tuple(turn._replace(reward=0.0, format=not first) for turn in episode.turns))
        for first, episode in ((number == 0, episode) for number, episode in enumerate(group))
    )
    broken, *others = local.compute_advantages(marked)
    assert (broken < 0).all() and all((other > 0).all() for other in others)
    constant = tuple(
        replace(episode, turns=tuple(turn._replace(reward=0.0, format=True) for turn in episode.turns))
        for episode in group
    )
    assert local.update([marked, constant]).metrics["groups/constant"] == 1


def test_a_step_reports_each_reward_that_it_learns_from(env: GuessEnv) -> None:
    local = LocalTraining(make_agent(), env, LearningSettings(**SMALL))
    groups = local.collect_groups(3, tasks=SMALL_TASKS[:2])
    report = local.update(groups, weights={"accuracy/guess": 0.5, "length": 0.5})
    earned = [sum(turn.rewards["accuracy/guess"] for turn in t.turns) for group in groups for t in group]
    assert report.metrics["reward/accuracy/guess"] == pytest.approx(np.mean(earned))
    assert "reward/length" in report.metrics and "reward/reward" not in report.metrics


@pytest.mark.parametrize(
    "options",
    [
        {"decoding": Decoding(max_new_tokens=8, top_p=0.5)},
        {"dtype": torch.bfloat16, "adapter": AdapterSettings(rank=2)},
    ],
    ids=["nucleus sampling", "bfloat16"],
)
def test_where_play_records_other_log_probs_the_learner_scores_again(env: GuessEnv, options: dict[str, Any]) -> None:
    """Then the ratio starts at 1, and the difference is told; recorded ones are taken as they are if the settings say so."""
    found, tokens = {}, {}
    for behaviour in ("auto", "recomputed", "recorded"):
        settings = LearningSettings.load({**SMALL, "minibatches": 1, "behaviour": behaviour, "learning_rate": 1e-3})
        local = LocalTraining(make_agent(**options), env, settings)
        played = local.collect_rollouts(seed=1)
        given = [[1.0, -1.0, 0.5, -0.5] for _ in played.groups]
        found[behaviour] = local.update(played.groups, advantages=given).metrics["ratio/start"]
        assert (played.mismatch is None) == (behaviour == "recorded")
        tokens[behaviour] = [one.logprobs[one.mask] for each in played.trajectories for one in each.segments]
        if played.mismatch is not None:
            told = played.compute_metrics()
            assert played.mismatch == (told["mismatch"], told["mismatch/most"])
            mismatch = played.mismatch
        else:
            assert not any("mismatch" in name for name in played.compute_metrics())
    assert found["auto"] == found["recomputed"] < 1e-5 < 1e-4 < found["recorded"]
    gaps = np.sort(np.abs(np.concatenate(tokens["recorded"]) - np.concatenate(tokens["auto"])))
    assert mismatch.mean == pytest.approx(gaps.mean(), rel=1e-5) and mismatch.mean > 1e-4
    assert mismatch.most == pytest.approx(gaps[math.ceil(0.999 * (len(gaps) - 1))])


def test_a_float32_model_that_plays_here_is_not_scored_again(env: GuessEnv) -> None:
    local = LocalTraining(make_agent(), env, LearningSettings.load(SMALL))
    assert local.collect_rollouts(seed=1).mismatch is None


def test_somebody_else_s_episodes_can_be_learnt_from() -> None:
    """Through the wire, rescored or with the donor's own log-probs."""
    donor, receiver = make_local(), make_local()
    donor.run(2, seed=5)
    sent = [[to_plain(t) for t in group] for group in donor.collect_groups(seed=6)]
    received = [tuple(from_plain(decode(encode(plain))) for plain in group) for group in sent]
    given = [[1.0, -1.0, 1.0, -1.0]] * len(received)
    theirs = receiver.update(received, advantages=given).metrics["ratio"]
    local = make_local()
    own = local.update(local.recompute_logprobs(received), advantages=given).metrics["ratio"]
    assert abs(theirs - 1.0) > 1e-4 and own == pytest.approx(1.0, abs=0.02)


def test_objective_gradients_and_weights_follow_the_steps() -> None:
    """Needed by FedMOA: a gradient per objective, and weights that a callback changes between steps."""
    local = make_local(objectives=[{"name": "accuracy/guess"}, {"name": "length", "weight": 0.5}])
    names = ("accuracy/guess", "length")
    seen: list[StepReport] = []

    def after_step(report: StepReport) -> dict[str, float]:
        seen.append(report)
        return {"accuracy/guess": 0.0, "length": 1.0}

    local.run(2, seed=0, gradients_of=names, after_step=after_step)
    assert len(seen) == 2 and set(seen[0].gradients) == set(names)
    assert seen[0].gradients["length"].shape == (64,) and np.any(seen[0].gradients["length"])
    group = seen[0].groups[0]
    weighted = [float(r.sum()) for r in local.compute_rewards(group, {"length": 1.0})]
    penalties = [0.1 * sum(not turn.format for turn in t.turns) for t in group]
    best = min(range(len(group)), key=lambda i: group[i].tokens)
    assert weighted[best] + penalties[best] == pytest.approx(0.5 * group[best].success)


def test_metrics_of_several_steps_are_means_and_counts_are_sums() -> None:
    merged = mean_metrics([{"success": 1.0, "episodes": 8.0}, {"success": 0.0, "episodes": 8.0, "kl": 2.0}])
    assert merged == {"success": 0.5, "episodes": 16.0, "kl": 2.0}
    assert mean_metrics([]) == {}
    assert make_local().run(0, seed=0).metrics == {}


def test_only_a_model_in_this_process_can_be_trained(env: GuessEnv) -> None:
    with pytest.raises(OptionError, match="cannot be trained"):
        LocalTraining(Guesser(), env, LearningSettings())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="proximal"):
        make_local(proximal=-1.0)


def test_demonstrations_solve_the_tasks_in_the_agent_s_own_tokens() -> None:
    agent, warm = make_agent(), open_env(GuessEnv, split="warmup")
    shown = collect_demonstrations(agent, warm, 150, noise=0.2, seed=1)
    assert len(shown) == 150 and {t.task for t in shown[:120]} == set(warm.pool.ids)
    noisy = [turn for t in shown for turn in t.turns if not turn.learn]
    assert 0.1 < len(noisy) / sum(len(t.turns) for t in shown) < 0.3
    clean = collect_demonstrations(agent, warm, 20, seed=1)
    assert all(t.success and all(turn.learn and turn.format for turn in t.turns) for t in clean)
    assert draw_demonstration_tasks(warm, 20, 1) == [t.task for t in shown[:20]]


def test_a_tiny_agent_is_made_once_and_found_again(tmp_path: Path) -> None:
    settings = WarmStartSettings(steps=40, episodes=120, context_length=256)
    judged = EvaluationSettings(tasks=10)
    made = pretrain_tiny("fedagentgym/Guess-v0", {}, settings, evaluation=judged, folder=tmp_path / "guess")
    assert not made.reused and made.note["format_broken"] < 0.5
    found = pretrain_tiny("fedagentgym/Guess-v0", {}, settings, evaluation=judged, folder=tmp_path / "guess")
    assert found.reused and found.note == made.note
    again = pretrain_tiny("fedagentgym/Guess-v0", {}, settings, evaluation=judged, folder=tmp_path / "again")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (made.folder, again.folder)]
    assert weights[0] == weights[1]
    changed = settings.model_copy(update={"steps": 1})
    other = pretrain_tiny("fedagentgym/Guess-v0", {}, changed, evaluation=judged, folder=tmp_path / "guess")
    assert not other.reused and (other.folder / "model.safetensors").read_bytes() != weights[0]
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="was not made by"):
        pretrain_tiny("fedagentgym/Guess-v0", {}, changed, evaluation=judged, folder=tmp_path / "mine")


def test_the_loop_learns() -> None:
    """Warm-started on little, the agent wins more often after some steps of learning on its own games."""
    agent = make_agent(decoding=Decoding(max_new_tokens=8, constrained=True))
    warm_start(agent, open_env(GuessEnv, split="warmup"), WarmStartSettings(steps=60, episodes=200), seed=0)
    chosen = {**SMALL, "tasks_per_step": 8, "group_size": 8, "parallel_episodes": 64, "learning_rate": 2e-3}
    local = LocalTraining(agent, open_env(GuessEnv, tasks=SMALL_TASKS), LearningSettings.load(chosen))
    steps = local.run(30, seed=0).steps
    success = [step["success"] for step in steps]
    assert np.mean(success[-6:]) > np.mean(success[:6]) + 0.1


@pytest.mark.parametrize("correction", ["token_truncate", "sequence_mask"])
def test_the_difference_between_engine_and_trainer_is_weighted(env: GuessEnv, correction: str) -> None:
    """Nucleus sampling records other log-probs than the pass that learns computes, as an engine does."""
    losses = {}
    for chosen in (None, correction):
        settings = LearningSettings.load({**SMALL, "minibatches": 1} | ({"correction": chosen} if chosen else {}))
        local = LocalTraining(make_agent(decoding=Decoding(max_new_tokens=8, top_p=0.95)), env, settings)
        groups = local.collect_groups(3)
        segments = [segment for group in groups for episode in group for segment in episode.segments]
        assert all(len(segment.played) == (len(segment.logprobs) if chosen else 0) for segment in segments)
        metrics = local.update(groups, advantages=[[1.0, -1.0, 0.5, -0.5] for _ in groups]).metrics
        losses[chosen] = metrics["loss"]
        assert ("correction" in metrics) == (chosen is not None)
        if chosen is None:
            continue
        gaps = [(segment.logprobs - segment.played)[segment.mask].astype(float) for segment in segments]
        sums = [gap if chosen == "token_truncate" else np.full(len(gap), gap.sum()) for gap in gaps]
        weights = np.exp(np.concatenate(sums))
        weights = np.minimum(weights, 3.0) if chosen == "token_truncate" else weights * (weights <= 3.0)
        assert weights.mean() < 0.99 and metrics["correction"] == pytest.approx(weights.mean(), rel=1e-5)
        (again,) = local.recompute_logprobs(groups[:1])
        assert all(not len(segment.played) for episode in again for segment in episode.segments)
    assert losses[None] != losses[correction]
