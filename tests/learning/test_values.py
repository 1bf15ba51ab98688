"""Advantages by a value head: against loops written another way, and a learner that has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.learning.advantages import GAE
from fedagentgym.learning.forward import check_hidden_states
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.losses import clip_value_loss
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import SiteState
from fedagentgym.learning.trajectory import Segment, Trajectory, Turn, build_rows
from fedagentgym.learning.values import add_advantages, compute_gae, explain

HEAD = {"value_head.weight", "value_head.bias"}
SMALL: dict[str, Any] = {"tasks_per_step": 4, "group_size": 1, "learning_rate": 1e-3, "minibatches": 2}


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- advantages of episodes of any shape -------------------------------------------------------------------------------


@st.composite
def episodes(draw: st.DrawFn) -> Trajectory:
    """An episode of a session, of a window, or of a program whose conversations alternate; some replies are empty, some tokens
    were the only one allowed."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    kind = draw(st.sampled_from(["session", "window", "alternating"]))
    homes = [{"session": 0, "window": turn, "alternating": turn % 2}[kind] for turn in range(len(sizes))]
    turns, segments = [], []
    for turn, (size, home) in enumerate(zip(sizes, homes, strict=True)):
        reward = draw(st.floats(-2, 2, width=32))
        turns.append(Turn(f"sight {turn}", "a", ("a",), reward, True, draw(st.booleans()), tokens=size, segment=home))
    for home in range(max(homes) + 1):
        mask: list[bool] = []
        for size, own in zip(sizes, homes, strict=True):
            mask += ([False] * draw(st.integers(1, 3)) + [True] * size) if own == home else []
        counts = np.array([draw(st.sampled_from([0, 1, 2])) for _ in range(sum(mask))], dtype=np.int32)
        ids = np.arange(len(mask), dtype=np.int32)
        allowed = np.zeros(int(counts.sum()), dtype=np.int32)
        segments.append(
            Segment(np.ones(2, np.int32), ids, np.array(mask), np.zeros(len(mask), np.float32), allowed, counts)
        )
    return Trajectory("check/train/00000", 0, tuple(turns), tuple(segments))


def walk_backwards(
    trajectory: Trajectory, values: list[np.ndarray[Any, Any]], paid: np.ndarray[Any, Any], of: GAE
) -> Any:
    """The same by one walk over all tokens of the episode from its end, as trainers of padded batches do: where no choice was
    made, the value and the advantage that come next are carried on."""
    found = [np.zeros(len(part)) for part in values]
    places = [int(segment.mask.sum()) for segment in trajectory.segments]  # one past the next token of each segment
    following, carried, owed = 0.0, 0.0, 0.0
    for turn in reversed(range(len(trajectory.turns))):
        one = trajectory.turns[turn]
        if of.span == "turn":
            following, carried, owed = 0.0, 0.0, 0.0
        owed += float(paid[turn])
        for _ in range(one.tokens):
            places[one.segment] -= 1
            place = places[one.segment]
            if trajectory.segments[one.segment].allowed_counts[place] == 1:
                continue
            value = values[one.segment][place]
            carried = owed + of.gamma * following - value + of.gamma * of.lam * carried
            found[one.segment][place] = carried
            following, owed = value, 0.0
    return found


@given(st.lists(st.lists(episodes(), min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_advantages_equal_a_walk_over_all_tokens(drawn: list[list[Trajectory]], data: st.DataObject) -> None:
    groups = [tuple(group) for group in drawn]
    estimator = GAE(
        gamma=data.draw(st.sampled_from([1.0, 0.9, 0.0])),
        lam=data.draw(st.sampled_from([1.0, 0.95, 0.0])),
        span=data.draw(st.sampled_from(["episode", "turn"])),
        whiten=data.draw(st.booleans()),
    )
    rows = build_rows(groups, [tuple(np.zeros(len(one.turns)) for one in group) for group in groups])
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = [random.normal(size=len(row.own)) for row in rows]
    rewards = [tuple(np.array([turn.reward for turn in one.turns]) for one in group) for group in groups]
    penalties = [tuple(np.array([0.1 * (not turn.format) for turn in one.turns]) for one in group) for group in groups]
    returns: list[Any] = [
        (earned, charged if estimator.span == "turn" else None)
        for earned, charged in zip(rewards, penalties, strict=True)
    ]
    found = add_advantages(rows, groups, values, returns, estimator)
    expected, chosen, first = [], [], 0
    for group, earned, charged in zip(groups, rewards, penalties, strict=True):
        for one, part, charge in zip(group, earned, charged, strict=True):
            paid = part.sum() - charge if estimator.span == "turn" else part
            count = len(one.segments)
            expected += walk_backwards(one, values[first : first + count], paid, estimator)
            chosen += [segment.allowed_counts != 1 for segment in one.segments]
            first += count
    for row, advantages, value, places in zip(found, expected, values, chosen, strict=True):
        np.testing.assert_allclose(row.returns[places], (advantages + value)[places], atol=1e-12)
        assert not row.returns[~places].any() and not row.advantages[~places].any()
    every = np.concatenate([one[places] for one, places in zip(expected, chosen, strict=True)])
    if estimator.whiten and len(every) > 1:
        every = (every - every.mean()) / np.sqrt(every.var(ddof=1) + 1e-8)
    elif estimator.whiten:
        every = every * 0
    ours = np.concatenate([row.advantages[places] for row, places in zip(found, chosen, strict=True)])
    np.testing.assert_allclose(ours, every, atol=1e-7 if estimator.whiten else 1e-12)


@given(
    st.lists(episodes(), min_size=1, max_size=4),
    st.sampled_from([np.nan, np.inf]),
    st.sampled_from(["episode", "turn"]),
)
def test_an_episode_without_finite_rewards_teaches_nothing(drawn: list[Trajectory], bad: float, span: Any) -> None:
    """The others learn as if it had not been played."""

    def fill(group: tuple[Trajectory, ...]) -> list[Any]:
        rows = build_rows([group], [tuple(np.zeros(len(one.turns)) for one in group)])
        rewards = tuple(np.array([turn.reward for turn in one.turns]) for one in group)
        return add_advantages(rows, [group], [np.ones(len(row.own)) for row in rows], [(rewards, None)], GAE(span=span))

    spoiled = replace(drawn[0], turns=(drawn[0].turns[0]._replace(reward=bad), *drawn[0].turns[1:]))
    found, alone = fill((spoiled, *drawn[1:])), fill(tuple(drawn[1:]))
    count = len(spoiled.segments)
    for row in found[:count]:
        assert not row.advantages.any() and np.array_equal(row.returns, row.values)
    for row, other in zip(found[count:], alone, strict=True):
        assert np.array_equal(row.advantages, other.advantages) and np.array_equal(row.returns, other.returns)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), max_size=12), st.floats(0, 1), st.floats(0, 1))
def test_a_chain_solves_its_equations(pairs: list[tuple[float, float]], gamma: float, lam: float) -> None:
    """(I - gamma lam N) A = r + (gamma N - I) V, where N moves everything on by one."""
    rewards, values = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    ahead, same = np.eye(len(pairs), k=1), np.eye(len(pairs))
    expected = np.linalg.solve(same - gamma * lam * ahead, rewards + (gamma * ahead - same) @ values)
    np.testing.assert_allclose(compute_gae(rewards, values, gamma, lam), expected, atol=1e-9)


@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=1, max_size=8), st.none() | st.floats(0.01, 1))
def test_the_clipped_loss_of_values_by_hand(triples: list[tuple[float, float, float]], clip: float | None) -> None:
    values, old, target = (torch.tensor([one[side] for one in triples], dtype=torch.float64) for side in range(3))
    values.requires_grad_()
    losses, clipped = clip_value_loss(values, old, target, clip)
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    for place, (value, before, wanted) in enumerate(triples):
        near = value if clip is None else min(max(value, before - clip), before + clip)
        loss = max((value - wanted) ** 2, (near - wanted) ** 2) / 2
        assert float(losses[place].detach()) == pytest.approx(loss)
        if (near - wanted) ** 2 > (value - wanted) ** 2:
            assert bool(clipped[place]) and gradient[place] == 0
        elif near == value or (near - wanted) ** 2 < (value - wanted) ** 2:
            assert not clipped[place] and float(gradient[place]) == pytest.approx(value - wanted)


# ---- a learner with a value head -----------------------------------------------------------------------------------------


def make_local(adapter: AdapterSettings | None = None, **options: Any) -> LocalTraining:
    advantage = {"name": "gae", **options.pop("gae", {})}
    model, tokenizer = make_tiny_model(open_env(GuessEnv).vocabulary(), "0.1m", context_length=256)
    policy = TorchPolicy(model, tokenizer, adapter=adapter)
    agent = TokenAgent("tiny", policy, Template("compact", False), Decoding(max_new_tokens=8, constrained=True))
    settings = LearningSettings.load({**SMALL, "advantage": advantage, **options})
    return LocalTraining(agent, open_env(GuessEnv), settings)


def same(first: Any, second: Any) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("head", ["shared", "own"])
@pytest.mark.parametrize("adapter", [None, AdapterSettings(rank=2)], ids=["all weights", "adapter"])
def test_a_state_goes_on_to_the_same_bits(adapter: AdapterSettings | None, head: str) -> None:
    first, second = (make_local(adapter, gae={"head": head}) for _ in range(2))
    first.run(1, seed=3)
    plain = decode(encode(first.get_state(optimizer=True).to_plain()))
    report = first.run(2, seed=3)
    second.load_state(SiteState.from_plain(plain))
    second.run(2, seed=3)
    ours, theirs = first.get_state(optimizer=True), second.get_state(optimizer=True)
    assert same(ours.weights, theirs.weights) and same(ours.optimizer, theirs.optimizer)
    assert ours.weights.keys() >= HEAD if head == "shared" else not HEAD & ours.weights.keys()
    assert (ours.weights if head == "shared" else ours.optimizer)["value_head.weight"].any()
    assert {"value/loss", "value/clipped"} <= report.metrics.keys() and report.metrics["groups/constant"] == 0
    dropped = first.get_state(optimizer=False)
    assert dropped.optimizer.keys() >= HEAD if head == "own" else not dropped.optimizer


def test_learners_that_share_a_model_have_heads_of_their_own() -> None:
    local = make_local()
    other = LocalTraining(local.agent, local.env, local.settings, start=local.get_state())
    for seed in (1, 2):
        local.run(1, seed=seed)
        other.run(1, seed=seed + 2)
    alone = make_local()
    for seed in (1, 2):
        alone.run(1, seed=seed)
    assert same(local.get_state().weights, alone.get_state().weights)
    assert not same(local.get_state().weights, other.get_state().weights)


@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_the_loss_of_values_reaches_the_model_as_far_as_its_coefficient_says(coefficient: float) -> None:
    """Rows without advantages: only values learn."""
    local = make_local(
        gae={"vf_coef": coefficient}, optimizer="sgd", minibatches=1, weight_decay=0.0, gradient_clip=None
    )
    groups = local.collect_groups(seed=1)
    plain = build_rows(groups, [tuple(np.zeros(len(one.turns)) for one in group) for group in groups])
    rows = [replace(row, values=np.zeros(len(row.own)), returns=np.full(len(row.own), 3.0)) for row in plain]
    before = local.get_state().weights
    metrics = local._updater.train_step(rows)
    assert metrics["value/loss"] == pytest.approx(4.5) and metrics["loss"] == 0.0
    after = local.get_state().weights
    assert after["value_head.bias"] == pytest.approx(3.0 * 1e-3)  # gradient descent from 0 towards the return
    assert after["value_head.weight"].any()
    # a head of zeros passes nothing on, whatever its coefficient
    assert not [name for name in before if name not in HEAD and not np.array_equal(before[name], after[name])]
    local._updater.train_step(rows)
    last = local.get_state().weights
    moved = [name for name in before if name not in HEAD and not np.array_equal(after[name], last[name])]
    assert bool(moved) is bool(coefficient)


@pytest.mark.parametrize("head", ["shared", "own"])
def test_a_reference_needs_no_value_head(head: str) -> None:
    """That of `kl: base` is by default the agent as it is given, before it has a head; one with a head is the same reference."""
    options: dict[str, Any] = {"gae": {"head": head}, "kl": {"coefficient": 0.5, "reference": "base"}}
    first = make_local(**options)
    base = first.agent.policy.get_weights()
    second = LocalTraining(make_local().agent, first.env, first.settings, base=base)
    found = [local.run(2, seed=1).metrics for local in (first, second)]
    assert base.keys() >= HEAD and found[0]["kl"] == found[1]["kl"] > 0
    assert same(first.get_state().weights, second.get_state().weights)


def _pay(trajectory: Trajectory, last: float) -> Trajectory:
    """The episode with one reward, at its end."""
    turns = [turn._replace(reward=0.0) for turn in trajectory.turns]
    turns[-1] = turns[-1]._replace(reward=last)
    return replace(trajectory, turns=tuple(turns))


@pytest.mark.parametrize("micro_tokens", [16, 64])
def test_passes_of_any_size_learn_the_same_values(micro_tokens: int) -> None:
    whole, parts = make_local(optimizer="sgd"), make_local(optimizer="sgd", micro_tokens=micro_tokens)
    groups = whole.collect_groups(seed=1)
    for local in (whole, parts):
        for _ in range(2):
            local.update(groups)
    ours, theirs = whole.get_state().weights, parts.get_state().weights
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-6)


def test_a_head_learns_what_an_episode_earns() -> None:
    gae = {"learning_rate": 0.03, "clip": None, "lam": 1.0, "vf_coef": 0}
    local = make_local(gae=gae, learning_rate=0.0, minibatches=1, format_penalty=0.0)
    groups = tuple(tuple(_pay(one, last=2.0) for one in group) for group in local.collect_groups(seed=1))
    losses = [local.update(groups).metrics["value/loss"] for _ in range(60)]
    assert losses[0] == pytest.approx(2.0) and losses[-1] < 0.02


def test_the_share_that_values_explain() -> None:
    local = make_local()
    (row,) = build_rows([local.collect_groups(seed=1)[0]], [(np.zeros(9),)])[:1]
    at = np.arange(len(row.own), dtype=np.float64)
    assert explain([replace(row, values=at, returns=at)]) == 1.0
    assert explain([replace(row, values=0 * at, returns=at)]) == pytest.approx(0.0)
    assert explain([replace(row, values=at, returns=0 * at)]) is None


def test_what_makes_no_sense_is_one_sentence() -> None:
    with pytest.raises(OptionError, match="leave out sharding"):
        LearningSettings.load({"advantage": "gae", "sharding": {"devices": 2}}, "learning")
    with pytest.raises(OptionError, match="format_penalty_on: turn needs an advantage"):
        LearningSettings.load({"advantage": "gae", "format_penalty_on": "turn"}, "learning")
    assert LearningSettings.load({"advantage": {"name": "gae", "span": "turn"}, "format_penalty_on": "turn"})
    local = make_local()
    groups = local.collect_groups(seed=1)
    with pytest.raises(OptionError, match="within a step: call update"):
        local.compute_advantages(groups[0])
    with pytest.raises(OptionError, match="gradients of single objectives"):
        local.update(groups, gradients_of=("reward",))
    with pytest.raises(OptionError, match="which a Linear does not give"):
        check_hidden_states(torch.nn.Linear(1, 1))
