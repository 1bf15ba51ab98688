"""HACPO and swarm sampling: the papers' formulas recomputed by hand, and answers that change their tokens on the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.players.scripted import Demonstrator
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.experts import reread
from fedagentgym.algorithms.hacpo import HACPOLoss, compute_advantages, set_behaviour
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.algorithms.sharing import Answer, grade, pack_answer, read_answer
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import stream
from fedagentgym.learning.losses import GSPO, Clip, Tokens
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.trajectory import FOREIGN, Segment, Trajectory, Turn, build_trajectory_rows

SPEC: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0"},
    "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}},
    "learning": {"tasks_per_step": 2, "group_size": 3},
    "partition": {"clients": 3, "tasks_per_client": 8, "roles": {"public": 8}},
    "algorithm": {"name": "hacpo", "public_tasks": 2},
}


def make(*changes: dict[str, Any]) -> Any:
    plain = SPEC
    for change in changes:
        plain = merge(plain, change)
    spec = ExperimentSpec.load(plain)
    return make_algorithm(spec, Runtime(spec))


RATIOS = st.floats(0.1, 10.0)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0]), RATIOS), min_size=2, max_size=12))
def test_advantages_are_those_of_the_paper(answers: list[tuple[float, float]]) -> None:
    rewards, ratios = [one for one, _ in answers], [two for _, two in answers]
    found = compute_advantages(rewards, ratios)
    if len(set(rewards)) == 1:
        assert not found.any()
        return
    mean = sum(rewards) / len(rewards)
    spread = (sum((one - mean) ** 2 for one in rewards) / (len(rewards) - 1)) ** 0.5
    baseline = sum(reward / ratio for reward, ratio in answers) / len(answers)
    expected = [ratio * (reward - baseline) / (spread + 1e-6) for reward, ratio in answers]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("rewards", [[], [1.0], [0.5, 0.5], [1.0, float("nan")], [1.0, float("inf")]])
def test_rewards_that_say_nothing_give_no_advantage(rewards: list[float]) -> None:
    assert compute_advantages(rewards, [2.0] * len(rewards)).tolist() == [0.0] * len(rewards)


def test_advantages_of_equal_agents_are_those_of_grpo() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0]
    expected = (np.array(rewards) - 0.6) / (np.std(rewards, ddof=1) + 1e-6)
    assert compute_advantages(rewards, [1.0] * 5) == pytest.approx(expected)


def draw_tokens(seed: int, foreign: list[bool], update: int) -> tuple[Tokens, np.ndarray]:
    random = np.random.default_rng(seed)
    lengths = tuple(int(one) for one in random.integers(1, 5, len(foreign)))
    total = sum(lengths)
    logprobs = torch.tensor(-random.random(total), dtype=torch.float64, requires_grad=True)
    behaviour = logprobs.detach() + torch.tensor(random.normal(0, 0.3, total))
    each = np.repeat(foreign, lengths)
    advantages = torch.tensor(np.repeat(random.normal(size=len(foreign)), lengths))
    return Tokens(logprobs, behaviour, advantages, lengths, foreign=torch.tensor(each), update=update), each


@pytest.mark.parametrize("seed", range(20))
def test_the_loss_and_its_gradient_are_those_of_the_paper(seed: int) -> None:
    """By rows: GSPO for own ones; for others a ratio within [1 - delta + m step, 1], times its power without a gradient."""
    settings = HACPOLoss(alpha=1.5, delta=0.3, delta_step=0.05, clip=(0.1, 0.2))
    tokens, _ = draw_tokens(seed, foreign := [False, True, True, False, True], update := seed % 4)
    terms = settings.compute(tokens, Clip())
    terms.loss.sum().backward()
    gradient = tokens.logprobs.grad
    assert gradient is not None
    low, start = min(1.0, 1 - 0.3 + update * 0.05), 0
    for number, length in enumerate(tokens.lengths):
        place = slice(start, start := start + length)
        ratio = float((tokens.logprobs - tokens.behaviour).detach()[place].mean().exp())
        advantage = float(tokens.advantages[place][0])
        if foreign[number]:
            bounded = min(max(ratio, low), 1.0)
            value, slope = bounded * bounded**1.5 * advantage, bounded**1.5 * advantage * (low < ratio < 1.0)
        else:
            clipped = min(max(ratio, 0.9), 1.2)
            value = min(ratio * advantage, clipped * advantage)
            slope = advantage if ratio * advantage <= clipped * advantage else 0.0
        assert terms.loss[place].detach().numpy() == pytest.approx(-value, abs=1e-12)
        # every token of a row moves the row's mean by 1 / length, and the loss is counted once for each of its tokens
        assert gradient[place].numpy() == pytest.approx(-slope * ratio, abs=1e-12)


def test_without_other_agents_the_loss_is_gspo() -> None:
    tokens, _ = draw_tokens(0, [False, False, False], 0)
    alone = Tokens(tokens.logprobs, tokens.behaviour, tokens.advantages, tokens.lengths)
    for one in (tokens, alone):
        found = HACPOLoss(clip=(0.1, 0.2)).compute(one, Clip()).loss
        assert torch.equal(found, GSPO(clip=(0.1, 0.2)).compute(alone, Clip()).loss)


def test_capabilities_are_means_over_a_window_and_ratios_are_bounded() -> None:
    algorithm = make({"algorithm": {"window": 2, "ratio_bounds": [0.5, 4.0]}})
    memory: dict[str, Any] = {}

    def step(right: dict[int, list[bool]]) -> dict[int, Any]:
        answers = {
            client: [[Answer({}, (), Trajectory("t", 0, (), success=one)) for one in flags]]
            for client, flags in right.items()
        }
        chosen, told = algorithm.choose(answers, memory, stream(0))
        for client in right:
            authors = [one.author for one in chosen[client]]
            assert sorted(set(authors)) == [other for other in right if other != client] and len(authors) == 2 * (
                len(right) - 1
            )
        return {client: told[client]["ratios"] for client in right}

    assert step({0: [True, True], 1: [True, False]})[1] == {"0": 2.0, "1": 1.0}
    assert step({0: [True, True], 1: [False, False]})[1]["0"] == 4.0  # 1 / 0.25
    assert step({0: [True, True], 1: [False, False]})[1]["0"] == 4.0  # 1 / 1e-8, bounded
    assert memory["capability"] == {"0": [1.0, 1.0], "1": [0.0, 0.0]}
    assert step({0: [False, False], 2: [True, True]})[0] == {"0": 1.0, "2": 2.0}


def test_swarm_draws_questions_of_others_whose_answers_differ() -> None:
    algorithm = make({"algorithm": {"name": "swarm", "public_tasks": 2, "local": 1, "external": 3}})

    def answer(reward: float) -> Answer:
        return Answer({}, (), Trajectory("t", 0, (Turn("", "", (), reward, True, True),)))

    mixed, same = [answer(0.0), answer(1.0)], [answer(1.0), answer(1.0)]
    answers = {0: [mixed, same], 1: [same, same], 2: [mixed, mixed]}
    for seed in range(10):
        chosen, told = algorithm.choose(answers, {}, stream(seed))
        assert [len(chosen[client]) for client in answers] == [4, 6, 2]  # two, three and one questions of two answers
        assert all(one.author != client for client, each in chosen.items() for one in each)
        assert all(len(told[client]["local"]) == 1 for client in answers)
    drawn = algorithm.draw_tasks([0, 1], stream(0))
    assert all(len(set(tasks)) == 2 for tasks in drawn.values())


@pytest.fixture(scope="module")
def method() -> Any:
    return make()


def test_an_answer_travels_as_text_and_is_graded_by_whom_it_reaches(method: Any) -> None:
    env, agent = method.public_env, method.runtime.agent
    ids = list(env.pool.ids[:2])
    for group in collect(agent, env, ids, group_size=2, seed=3).groups:
        for said in group:
            sent = pack_answer(said, agent.tokenizer.stop_ids)
            assert "segments" not in sent and "trajectory" not in sent
            answer = grade(env, said.task, sent)
            assert (answer.graded.success, answer.graded.score) == (said.success, said.score)
            read = read_answer(agent, env, {**answer.candidate, "logprobs": list(answer.logprobs)})
            assert read is not None and (read.success, read.reward) == (said.success, said.reward)
            assert [turn.reply for turn in read.turns] == [turn.reply for turn in said.turns]
            foreign = set_behaviour(read, answer.logprobs)
            for row in build_trajectory_rows(foreign, np.zeros(len(foreign.turns))):
                assert row.foreign and set(row.behaviour.tolist()) <= set(np.float32(answer.logprobs).tolist())


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("Guess", {}),
        ("Skills", {}),
        ("Math", {"size": "tiny"}),
        ("WebShop", {"size": "tiny"}),
        ("ALFWorld", {"size": "tiny"}),
    ],
)
def test_an_answer_that_the_same_agent_reads_has_the_tokens_with_which_it_was_written(
    env: str, options: dict[str, Any]
) -> None:
    """The end token of a reply may be a part of its text, as a closing tag is."""
    agent = {"name": "untrained-tiny", "decoding": {"max_new_tokens": 64}}
    runtime = make({"env": {"id": f"fedagentgym/{env}-v0", "options": options}, "agent": agent}).runtime
    ids = list(runtime.env.pool.ids[:4])
    ends = set()
    for (said,) in collect(Demonstrator(runtime.agent), runtime.env, ids, seed=3).groups:
        read = reread(
            runtime.agent, runtime.env, runtime.env.pool[said.task], pack_answer(said, runtime.agent.tokenizer.stop_ids)
        )
        assert read is not None and len(read.segments) == len(said.segments) > 0
        for one, other in zip(read.segments, said.segments, strict=True):
            assert one.prompt_ids.tolist() == other.prompt_ids.tolist()
            assert one.token_ids.tolist() == other.token_ids.tolist() and one.mask.tolist() == other.mask.tolist()
            ends.add(int(one.token_ids[one.mask][-1]))
    assert ends <= runtime.agent.tokenizer.stop_ids


def test_the_mean_log_prob_is_that_of_each_turn() -> None:
    mask, said = np.array([True, True, False, True]), np.array([-1.0, -3.0, 0.0, -0.5], dtype=np.float32)
    ids = np.zeros(4, dtype=np.int32)
    turns = tuple(Turn("", "x", ("x",), 0.0, True, True, tokens=count) for count in (2, 1))
    episode = Trajectory("t", 0, turns, (Segment(ids, ids, mask, said),))
    assert pack_answer(episode, frozenset())["logprobs"] == [-2.0, -0.5]
    assert FOREIGN not in episode.labels


@pytest.mark.parametrize(
    "change",
    [
        {"replies": ["a", "b"]},
        {"seed": "0"},
        {"seed": True},
        {"actions": [3]},
        {"logprobs": [1.0]},
        {"logprobs": [float("nan")]},
        {"logprobs": [-1e300]},
        {"logprobs": ["x"]},
        {"ended": [1]},
        {"actions": None},
    ],
)
def test_malformed_answers_are_one_sentence(change: dict[str, Any], method: Any) -> None:
    plain = {"actions": ["3"], "replies": ["3"], "ended": [True], "logprobs": [-1.0], "seed": 0}
    task = method.public_env.pool.ids[0]
    assert grade(method.public_env, task, plain).candidate["task"] == task
    for bad in ({**plain, **change}, "text", None):
        with pytest.raises(DataError, match="an answer to"):
            grade(method.public_env, task, bad)


@pytest.mark.parametrize(
    "groups", [None, "text", {}, [], [None, None], [3, 4], ["abc", "abc"], [{}, {}], [[], []], [[1] * 3]]
)
def test_groups_of_answers_of_another_form_are_one_sentence(groups: Any, method: Any) -> None:
    with pytest.raises(DataError, match="expected 3 answers to each of 2 tasks"):
        method._read_answers(groups, method.public_env.pool.ids[:2])


def test_what_cannot_work_is_refused() -> None:
    for name, ignored in {"loss": "gspo", "clip": [0.1, 0.3], "dual_clip": 3.0}.items():
        with pytest.raises(OptionError, match=f"hacpo has its own policy loss.* leave out learning.{name}"):
            make({"learning": {name: ignored}})
    with pytest.raises(OptionError, match="ratio_bounds lie around 1"):
        make({"algorithm": {"ratio_bounds": [2.0, 4.0]}})
    with pytest.raises(OptionError, match=r"asks for 9 tasks at a time, partition\.roles\.public holds 8"):
        make({"algorithm": {"public_tasks": 9}}).check_start(3)


def test_clients_have_the_agents_of_their_turn() -> None:
    agents = [{"name": "untrained-tiny"}, {"name": "untrained-tiny", "decoding": {"max_new_tokens": 6}}]
    algorithm = make({"algorithm": {"agents": agents}})
    longest = [algorithm.resources(client).agent.decoding.max_new_tokens for client in range(3)]
    assert longest[0] == longest[2] != longest[1] == 6
    kept = SimpleNamespace(sets={})
    player = algorithm.load_client(algorithm.initial_state(), 1, kept)
    assert player is algorithm.resources(1).agent
    assert ExperimentSpec.load(algorithm.runtime.spec.to_plain()).algorithm["agents"] == agents


def test_messages_have_room_for_the_answers_of_the_longest_agent() -> None:
    short, long = ({"name": "untrained-tiny", "context_length": size} for size in (64, 256))
    mixed = make({"agent": short, "algorithm": {"agents": [short, long]}}).operations
    alike = make({"agent": long}).operations
    assert mixed["generate"].reply.text == alike["generate"].reply.text
    assert mixed["generate"].state.text == alike["generate"].state.text
    assert mixed["learn"].request.text == alike["learn"].request.text
