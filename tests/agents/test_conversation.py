"""A loop of one's own: one episode as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from fedagentgym.agents import Agent, Conversation, Template
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.envs import open_env
from fedagentgym.learning import collect


@pytest.mark.parametrize(
    ("name", "replies"), [("Guess", ["<action>guess 9</action>", "<action> guess 4 </action>", "?"]), ("Math", ["3"])]
)
def test_it_plays_as_an_agent_that_reads_the_messages(name: str, replies: list[str]) -> None:
    env = open_env(f"fedagentgym/{name}-v0", **({"max_turns": 3} if name == "Guess" else {}))
    seen: list[Any] = []

    class Chatting(Agent):
        parser = "strict"

        def reply(self, observation: str, info: dict[str, Any]) -> str:
            seen.append(info["messages"])
            return replies[len(info["messages"]) // 2]

    (trajectory,) = collect(Chatting(), env, env.pool.ids[:1]).trajectories
    chat = Conversation(env, env.pool.ids[0])
    asked = []
    for reply in replies:
        asked.append(chat.messages)
        if chat.reply(reply):
            break
    assert asked == seen and chat.episode.over and float(chat.episode.view.score) == trajectory.score
    with pytest.raises(OptionError, match="is over"):
        chat.reply("again")


def test_mistakes_are_one_sentence() -> None:
    env = open_env("fedagentgym/Guess-v0")
    chat = Conversation(env, env.pool.ids[0], template=Template(think=True))
    with pytest.raises(OptionError, match="a reply must be a text"):
        chat.reply(None)  # type: ignore[arg-type]
    assert "<think>" in chat.messages[-1]["content"]
    with pytest.raises(UnknownNameError):
        Conversation(env, "nothing")
