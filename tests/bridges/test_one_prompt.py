"""A model reads the same bytes however an episode is played. `tests/installs/test_same_scores.py` has the same for the libraries
that need an environment of their own: OpenEnv, verifiers and inspect_ai."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import pytest

from benchmarks.fixed_replies import list_audited, list_sizes
from fedagentgym.agents import Agent, Conversation
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.text.prompts import Template
from fedagentgym.bridges.trl import TOOL_FORM, make_environment_factory, make_tool_rows
from fedagentgym.envs import ShowPrompt, TextEnv, open_env
from fedagentgym.envs.view import ONE_ACTION
from fedagentgym.learning import collect
from tests.agents.gateway.clients import Client, make_agent, programs
from tests.agents.test_endpoint import Server, said

TURNS = 3
TEMPLATE = Template(think=False)


class Case(NamedTuple):
    """An environment, a task, the expert's first actions, and the messages that a model reads with them."""

    env: TextEnv
    task: str
    actions: list[str]
    messages: list[str]

    @property
    def replies(self) -> list[str]:
        return [TEMPLATE.render_reply(self.env, action) for action in self.actions]


CASES = [(env_id, place) for env_id in list_audited() for place in (0, -1)]
"""Two tasks of each: of a mixture they are of different members."""


@cache
def make_case(env_id: str, place: int) -> Case:
    size = {"size": list_sizes(env_id)[0]} if list_sizes(env_id)[0] else {}
    env = open_env(env_id, split="val", **size)
    task = env.pool.ids[place]
    expert, actions = env.expert(), list[str]()
    (episode,) = env.reset_many([task], [0])
    while not episode.over and len(actions) < TURNS:
        actions.append(expert.act(episode))
        (episode,) = env.step_many([episode], actions[-1:])
    return Case(env, task, actions, list(read_prompts(env, task, actions)))


def read_prompts(env: TextEnv, task: str, actions: list[str]) -> Iterator[str]:
    """The messages of gymnasium's loop."""
    _, info = env.reset(seed=0, options={"task": task})
    yield info["prompt"]
    for action in actions:
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return
        yield info["prompt"]


class Scripted(Agent):
    """Says what is written, and keeps what it reads."""

    def __init__(self, replies: list[str], read: list[list[str]]) -> None:
        self.replies, self.read = replies, read

    def reply(self, observation: str, info: dict[str, Any]) -> str:
        assert info["prompt"] == info["messages"][-1]["content"]
        self.read.append([one["content"] for one in info["messages"] if one["role"] == "user"])
        return self.replies[min(info["turn"], len(self.replies) - 1)]


def read_wrapped(case: Case) -> list[str]:
    env = ShowPrompt(gymnasium.make(case.env.id, split="val", **dict(case.env.options.portable)))
    found = [env.reset(seed=0, options={"task": case.task})[0]]
    for action in case.actions[: len(case.messages) - 1]:
        found.append(env.step(action)[0])
    return found


def read_own_agent(case: Case) -> list[str]:
    read = list[list[str]]()
    collect(Scripted(case.actions, read), case.env, [case.task])
    return read[len(case.messages) - 1]


def read_conversation(case: Case) -> list[str]:
    """The messages of inspect_ai and of verifiers."""
    chat = Conversation(case.env, case.task)
    for reply in case.replies[: len(case.messages) - 1]:
        chat.reply(reply)
    return [one["content"] for one in chat.messages if one["role"] == "user"]


def read_endpoint(case: Case) -> list[str]:
    server = Server()
    server.answer = lambda request, number: said(case.replies[min(number, len(case.replies)) - 1])
    try:
        collect(server.agent(think=False), case.env, [case.task])
    finally:
        server.close()
    asked = server.requests[len(case.messages) - 1]["messages"]
    return [one["content"] for one in asked if one["role"] == "user"]


def read_gateway(case: Case) -> list[str]:
    found = list[str]()

    def act(client: Client, task: dict[str, Any]) -> None:
        found.extend(one["content"] for one in task["messages"])
        for action in case.actions[: len(case.messages) - 1]:
            found.append(client.post("/v1/step", {"action": action}).plain["content"])
        client.post("/v1/finish", {"status": "done"})

    agent = replace(make_agent(), template=TEMPLATE)
    with programs(agent, act):
        collect(agent, case.env, [case.task])
    return found


WAYS: dict[str, Callable[[Case], list[str]]] = {
    "wrapper": read_wrapped,
    "own agent": read_own_agent,
    "conversation": read_conversation,
    "endpoint": read_endpoint,
    "gateway": read_gateway,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("env_id", "place"), CASES)
def test_the_same_bytes_reach_a_model(env_id: str, place: int, way: str) -> None:
    case = make_case(env_id, place)
    assert WAYS[way](case) == case.messages


@pytest.mark.parametrize(("env_id", "place"), CASES)
def test_a_model_of_tokens_reads_them_too(env_id: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it answers; TRL's `RolloutFunction` plays with such an agent."""
    case, read = make_case(env_id, place), list[str]()
    made = make_agent(chat=True)

    def encode(text: str, *more: object, **named: object) -> list[int]:
        read.append(text)
        return [5, 6, 7]

    monkeypatch.setattr(made.tokenizer, "encode_chat", encode)
    monkeypatch.setattr(made.tokenizer, "encode_next", encode)
    agent = replace(made, template=TEMPLATE, harness=None, decoding=Decoding(max_new_tokens=3))
    (trajectory,) = collect(agent, case.env, [case.task]).trajectories
    acts = [action for turn in trajectory.turns for action in turn.acts]
    assert read == list(read_prompts(case.env, case.task, acts))


@pytest.mark.parametrize(("env_id", "place"), CASES)
def test_a_tool_is_asked_for_in_place_of_tags_and_nothing_else_differs(env_id: str, place: int) -> None:
    case = make_case(env_id, place)
    (row,) = make_tool_rows(case.env, [case.task])
    episode = make_environment_factory(case.env)()
    first = row["prompt"][0]["content"] + episode.reset(**row)
    start = case.messages[0].removesuffix(ONE_ACTION)
    assert first == (start if start != case.messages[0] else f"{start}\n\n") + TOOL_FORM
    assert [episode.act(action) for action in case.actions[: len(case.messages) - 1]] == case.messages[1:]
