"""The three worlds: conformance, experts, tools, attempts, wordings, ungraded tasks, and refusals."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.envs import open_env
from fedagentgym.envs.pool import TaskPool, represent
from fedagentgym.envs.reasoning.code import CodeEnv
from fedagentgym.envs.reasoning.library import search
from fedagentgym.envs.reasoning.math import MathEnv, calculate
from fedagentgym.envs.reasoning.qa import QAEnv
from fedagentgym.envs.reasoning.replies import OVER, ReplyEnv
from fedagentgym.envs.view import Episode
from fedagentgym.testing import check_env

assert fedagentgym
REPLY_ENVS: tuple[type[ReplyEnv], ...] = (MathEnv, QAEnv, CodeEnv)
IDS = ("fedagentgym/Math-v0", "fedagentgym/QA-v0", "fedagentgym/Code-v0")
TOOLS = {"fedagentgym/Math-v0": ["calc"], "fedagentgym/QA-v0": ["search"], "fedagentgym/Code-v0": ["run"]}


def solve(env: ReplyEnv, task: str, noise: Sequence[str] = ()) -> list[Episode]:
    """The expert's episode, with some foreign replies first."""
    (episode,) = env.reset_many([task], [0])
    expert, history = env.expert(), [episode]
    for reply in noise:
        expert.act(episode)
        (episode,) = env.step_many([episode], [reply])
        history.append(episode)
    while not episode.over:
        (episode,) = env.step_many([episode], [expert.act(episode)])
        history.append(episode)
    return history


@pytest.mark.by_day(2)
@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize(
    "options", [{"size": "tiny"}, {}, {"size": "tiny", "attempts": 3}], ids=["tiny", "default", "attempts"]
)
def test_conformance(env_id: str, options: dict[str, Any]) -> None:
    check_env(env_id, **options)


@pytest.mark.parametrize("env_id", IDS)
def test_conformance_with_tools(env_id: str) -> None:
    check_env(env_id, size="tiny", tools=TOOLS[env_id], attempts=2)


@pytest.mark.parametrize("size", ["tiny", "default"])
@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("env_id", IDS)
def test_the_expert_solves_every_task_in_the_right_layout(env_id: str, size: str, tools: bool) -> None:
    env: Any = open_env(env_id, size=size, split="test", tools=TOOLS[env_id] if tools else [])
    for identifier in env.pool.ids[:: 20 if env_id.endswith("Code-v0") else 4]:
        last = solve(env, identifier)[-1]
        assert last.terminated and last.view.success and last.reward == 1.0, last
        assert last.view.rewards[f"accuracy/{env.accuracy}"] == 1.0
        assert last.view.rewards["format"] == 1.0 and last.view.rewards["tags"] == 1.0
        if env_id.endswith("Code-v0"):
            assert last.view.rewards["code_format"] == 1.0


@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
def test_tiny_prompts_and_replies_are_short_and_in_the_vocabulary(cls: type[ReplyEnv]) -> None:
    env = open_env(cls, size="tiny", split="warmup")
    known = set(env.vocabulary())
    for identifier in env.pool.ids[::9]:
        (episode,) = env.reset_many([identifier], [0])
        reply = env.expert().act(episode)
        words = episode.view.observation.split() + reply.split()
        assert len(words) < 90
        unknown = {word for word in words if word not in known and not word.isdigit()}
        assert not unknown


def test_attempts_give_feedback_and_another_try() -> None:
    env = open_env(MathEnv, size="tiny", attempts=2)
    task = env.pool.ids[0]
    episodes = solve(env, task, noise=["<think> a </think> <answer> 987 </answer>"])
    assert "That is not right. Try again." in episodes[1].view.observation
    assert not episodes[1].over and episodes[1].reward == 0.0 and episodes[1].view.rewards["format"] == 1.0
    assert episodes[2].view.success and episodes[2].terminated
    (lost,) = env.step_many([episodes[1]], ["<answer> 988 </answer>"])
    assert lost.terminated and not lost.view.success and lost.view.score == 0.0
    (after,) = env.step_many([lost], ["<answer> 1 </answer>"])
    assert after.view.observation == OVER and after.reward == 0.0


def test_a_reply_without_an_answer_is_not_valid_and_costs_a_try() -> None:
    env = open_env(MathEnv, size="tiny")
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    (episode,) = env.step_many([episode], ["I would say seven"])
    assert episode.terminated and not episode.view.valid and episode.view.score == 0.0


def test_the_calculator_is_a_tool() -> None:
    env = open_env(MathEnv, tools=["calc"])
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    (episode,) = env.step_many([episode], ["<think> x </think> <tool> calc[3 * (4 + 5)] </tool>"])
    assert episode.view.observation == "27" and not episode.over and episode.view.rewards["format"] == 1.0
    (other,) = env.step_many([episode], ["<tool> browse[x] </tool>"])
    assert not other.view.valid and "calc" in other.view.observation
    assert env.max_turns == 9 and open_env(MathEnv).max_turns == 1 and open_env(MathEnv, attempts=3).max_turns == 3
    while not episode.over:
        (episode,) = env.step_many([episode], ["calc[1]"])
    assert episode.truncated and episode.turn == 9


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("2 ^ 10", "1024"),
        ("7 // 2 + 7 % 2", "4"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("sqrt(16) * sqrt(2)", "5.65685425"),
        ("comb(5, 2) + factorial(4)", "34"),
        ("-1.5 * 2", "-3"),
        ("1 / 0", "Error : division by zero ."),
        ("2 ** (1 / 2)", "Error : powers are whole numbers ."),
        ("9 ** 9 ** 9", "Error : the number is too large ."),
        ("2 ** 1900 / 10007", "Error : the number is too large ."),
        (
            "factorial(10 ** 9)",
            "Error : functions are abs min max gcd lcm sqrt factorial comb, of whole numbers where it matters .",
        ),
        (
            "__import__('os')",
            "Error : not an expression .",
        ),
        ("x", "Error : not an expression ."),
        ("(" * 200, "Error : not an expression ."),
        ("1" * 400, "Error : the expression is too long ."),
        ("\x00", "Error : not an expression ."),
    ],
)
def test_calculations(expression: str, shown: str) -> None:
    assert calculate(expression) == shown


@given(st.text(alphabet="0123456789+-*/()%. eE^,gcdsqrt", max_size=40))
def test_the_calculator_answers_anything(expression: str) -> None:
    assert calculate(expression)


def test_facts_are_searched_when_search_is_a_tool() -> None:
    env = open_env(QAEnv, split="test", tools=["search"])
    shown = open_env(QAEnv, split="test")
    task = env.pool.ids[3]
    (hidden,), (given_facts,) = env.reset_many([task], [0]), shown.reset_many([task], [0])
    fact = env.pool[task].payload.facts[0]
    assert fact.text in given_facts.view.observation and fact.text not in hidden.view.observation
    (found,) = env.step_many([hidden], [f"<tool> search[{fact.title.lower()}] </tool>"])
    assert found.view.observation == fact.text
    assert search(env.pool[task].payload.facts, "zzz") == "Nothing found ."
    assert search(env.pool[task].payload.facts, "") == "Nothing found ."
    noisy = solve(env, task, noise=["<tool> search[nobody] </tool>", "<tool> dig[x] </tool>"])
    assert noisy[-1].view.success


def test_a_program_can_be_run_before_it_is_handed_in() -> None:
    env = open_env(CodeEnv, size="tiny", tools=["run"])
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    (episode,) = env.step_many([episode], ["<think> x </think> <tool> run[```python\nprint(2 + 3)\n```] </tool>"])
    assert episode.view.observation == "5" and episode.view.rewards["code_format"] == 1.0
    (episode,) = env.step_many([episode], ["<tool> run[1 / 0] </tool>"])
    assert "ZeroDivisionError" in episode.view.observation
    slow = open_env(CodeEnv, size="tiny", tools=["run"], time_limit=0.3)
    (episode,) = slow.reset_many([slow.pool.ids[0]], [0])
    (episode,) = slow.step_many([episode], ["run[while True: pass]"])
    assert "timeout" in episode.view.observation


@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
def test_wordings_change_the_words_around_the_same_task(cls: type[ReplyEnv]) -> None:
    plain = open_env(cls, size="tiny")
    task = plain.pool.ids[0]
    said = set()
    for phrasing in range(len(cls.wordings)):
        env = open_env(cls, size="tiny", variant={"kind": "wording", "phrasing": phrasing})
        episodes = solve(env, task)
        assert plain.reset_many([task], [0])[0].view.observation in episodes[0].view.observation
        assert episodes[-1].view.success and env.pool.digest == plain.pool.digest
        said.add(episodes[0].view.observation)
    assert len(said) == len(cls.wordings) == 8
    for bad in (
        {"kind": "wording", "phrasing": 8},
        {"kind": "wording"},
        {"kind": "wordin", "phrasing": 0},
        {"kind": "wording", "phrasing": True},
    ):
        with pytest.raises(FedAgentGymError, match=r"wording|phrasing"):
            open_env(cls, size="tiny", variant=bad)


@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
def test_who_does_not_know_the_gold_is_not_graded(cls: type[ReplyEnv]) -> None:
    graded = open_env(cls, size="tiny")
    ids = graded.pool.ids[:3]
    env = open_env(cls, size="tiny", pool=graded.pool.without_answers(ids))
    reply = graded.expert().act(graded.reset_many([ids[0]], [0])[0])
    (start,) = env.reset_many([ids[0]], [0])
    assert reply.split("<answer>")[1].strip() not in represent(start.task.payload)
    (episode,) = env.step_many([start], [reply])
    assert episode.view.score == 0.0 and not episode.view.success and episode.reward == 0.0
    assert episode.view.rewards["format"] == 1.0 and episode.view.rewards[f"accuracy/{cls.accuracy}"] == 0.0
    assert all(value == 0.0 for name, value in episode.view.rewards.items() if name in ("f1",))
    assert env.expert().act(start)
    pickle.loads(pickle.dumps(episode))


def test_every_world_names_the_version_of_its_verifier() -> None:
    versions = [open_env(cls, size="tiny").get_verifier_version() for cls in REPLY_ENVS]
    assert [version.partition("/")[0] for version in versions] == ["exact", "qa", "code"]


def test_pools_are_made_of_plain_records() -> None:
    math_records = [{"category": "sums", "payload": {"problem": "2 + 2 ?", "answer": "4"}}]
    qa_records = [
        {"category": "x", "payload": {"question": "Which ?", "answers": ["B"], "options": {"A": "one", "B": "two"}}},
        {"category": "y", "payload": {"question": "Who ?", "answers": ["Ann"], "facts": [["Ann", "Ann did it ."]]}},
    ]
    code_records = [{"category": "z", "payload": {"statement": "f", "entry": "f", "calls": [[[1], 2]]}}]
    for cls, records, replies in (
        (MathEnv, math_records, ["<answer> 4 </answer>"]),
        (QAEnv, qa_records, ["<answer> two </answer>", "<answer> ann </answer>"]),
        (CodeEnv, code_records, ["<answer> def f(x): return x + 1 </answer>"]),
    ):
        pool = TaskPool.from_records(records, env=cls.id)
        env = open_env(cls, pool=pool)
        for task, reply in zip(pool, replies, strict=True):
            (episode,) = env.step_many(env.reset_many([task], [0]), [reply])
            assert episode.view.success, (task, episode.view)


@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
@pytest.mark.parametrize(
    "payload",
    [
        None,
        3,
        {},
        {"problem": "x"},
        {"question": "x", "answers": [""]},
        {"statement": 3},
        {"question": "x", "answers": [3]},
    ],
)
def test_malformed_payloads_are_refused(cls: type[ReplyEnv], payload: Any) -> None:
    pool = TaskPool.from_records([{"category": "x", "payload": payload}], env=cls.id)
    env = open_env(cls, pool=pool)
    with pytest.raises(DataError, match="payload of fedagentgym/"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    "options",
    [
        {"size": "huge"},
        {"tools": ["hammer"]},
        {"tools": "calc"},
        {"attempts": 0},
        {"train_tasks": 0},
        {"data": "x.jsonl"},
        {"holdout": 5},
        {"subset": "en"},
        {"merge_splits": True},
        {"source": "gsm8k", "bad_rows": 2.0},
        {"source": "gsm8k", "holdout": {"train": 5}},
        {"source": "gsm8k", "holdout": {"test": -5}},
        {"source": "gsm8k", "subset": "large"},
        {"source": "nothing"},
        {"train_tasks": 0, "source": "gsm8k"},
        {"data": "installed", "source": "gsm8k"},
        {"score": "best"},
        {"time_limit": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("env_id", IDS)
def test_bad_options_are_refused_in_one_sentence(env_id: str, options: dict[str, Any]) -> None:
    with pytest.raises(FedAgentGymError) as caught:
        gymnasium.make(env_id, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_the_overlap_of_words_can_be_the_score() -> None:
    env = open_env(QAEnv, split="test", score="f1")
    task = next(task for task in env.pool if len(task.payload.answers[0].split()) == 2)
    (episode,) = env.step_many(
        env.reset_many([task], [0]), [f"<answer> {task.payload.answers[0].split()[0]} </answer>"]
    )
    assert episode.reward == episode.view.score == pytest.approx(2 / 3) and not episode.view.success
    exact = open_env(QAEnv, split="test")
    (episode,) = exact.step_many(
        exact.reset_many([task], [0]), [f"<answer> {task.payload.answers[0].split()[0]} </answer>"]
    )
    assert episode.reward == 0.0 and episode.view.rewards["f1"] == pytest.approx(2 / 3)
    share = open_env(CodeEnv, size="tiny", score="share")
    call = share.pool[0].payload.tests.calls[0]
    reply = f"<answer> def f(x): return {call.expected!r} </answer>"
    (episode,) = share.step_many(share.reset_many([share.pool.ids[0]], [0]), [reply])
    assert 0.0 < episode.reward < 1.0 and episode.view.rewards["accuracy/code"] == 0.0


def test_an_evaluation_prints_the_numbers_of_two_verifiers() -> None:
    """The library on the whole reply finds no plain number between answer tags, exact arithmetic does; both read a box."""
    env = open_env("fedagentgym/Math-v0", size="tiny", verifier="exact", compare=["math-verify-reply"] * 2)
    plain = open_env("fedagentgym/Math-v0", size="tiny")
    assert env.reward_names == (*plain.reward_names, "accuracy/math-verify-reply") and env.task_set == plain.task_set
    task = env.pool[0]
    gold = env.parse_payload(task.payload).answers[0]
    for reply, by_rules, by_library in (
        (f"<answer> {gold} </answer>", 1.0, 0.0),  # the library finds no number between answer tags
        (f"\\boxed{{{gold}}}", 1.0, 1.0),
        ("<answer> 12345 </answer>", 0.0, 0.0),
    ):
        (episode,) = env.step_many(env.reset_many([task.id], [0]), [reply])
        rewards = episode.view.rewards
        assert (rewards["accuracy/math"], rewards["accuracy/math-verify-reply"]) == (by_rules, by_library)
        assert episode.reward == by_rules
    with pytest.raises(OptionError, match="compare"):
        open_env("fedagentgym/Math-v0", size="tiny", compare=["sympy"])
