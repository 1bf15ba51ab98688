"""An agent made of one function, which gets a dialogue and returns the next reply.

    agent = FunctionAgent(lambda messages: client.ask(messages))
    fedagentgym.evaluate(agent, env, {"tasks": 50})

This works with any library that turns chat messages into text; there are no tokens, so nothing can be trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from fedagentgym.agents.protocols import Move
from fedagentgym.agents.text.parsing import ParsedReply, parse_strict
from fedagentgym.agents.text.prompts import Dialogue, Message, Template
from fedagentgym.base.errors import OptionError, show_value

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import Episode, TextEnv

Answer = Callable[[list[Message]], str]


class FunctionAgent:
    """``answer`` gets the messages of a dialogue (dictionaries with ``role`` and ``content``) and returns the reply.

    The action is what the reply has between ``<action>`` tags; a reply without them is the action. ``template`` and ``think``
    choose the prompts, ``context`` whether a dialogue grows or is one message with the last ``history`` turns in it.
    """

    def __init__(
        self,
        answer: Answer,
        name: str = "function",
        *,
        template: str = "standard",
        think: bool = False,
        context: Literal["session", "window"] = "session",
        history: int = 2,
    ) -> None:
        if not callable(answer):
            raise OptionError(f"FunctionAgent takes a function of messages, got {show_value(answer)}")
        self.name, self.answer = name, answer
        self.template = Template(template, think)
        self.context: Literal["session", "window"] = context
        self.history = history

    def play(self, env: TextEnv) -> FunctionPlayers:
        return FunctionPlayers(self, env)

    def close(self) -> None:
        """Nothing is held."""


class FunctionPlayers:
    """``Players`` of one function, which is called row after row."""

    def __init__(self, agent: FunctionAgent, env: TextEnv) -> None:
        self.agent, self.env = agent, env
        self._dialogues: dict[int, Dialogue] = {}
        self._next = 0

    def __enter__(self) -> FunctionPlayers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._dialogues.clear()

    def enter(self, episodes: Sequence[Episode], streams: Sequence[Stream]) -> list[int]:
        agent, first = self.agent, self._next
        self._next += len(episodes)
        for row, episode in enumerate(episodes, start=first):
            opening = episode.view.observation
            self._dialogues[row] = Dialogue(self.env, agent.template, agent.context, agent.history, opening)
        return list(range(first, self._next))

    def leave(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self._dialogues[row]

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        return [self._act(self._dialogues[row], episode) for row, episode in zip(rows, episodes, strict=True)]

    def _act(self, dialogue: Dialogue, episode: Episode) -> Move:
        asked = dialogue.build_messages(episode)
        reply = self.agent.answer([dict(message) for message in asked])
        if not isinstance(reply, str):
            raise OptionError(f"the function of agent {self.agent.name!r} returned {show_value(reply)}, not a text")
        found = self._parse(reply)
        dialogue.record_turn(episode, asked, reply, found.action)
        return Move(reply, found.action, found.format)

    def _parse(self, reply: str) -> ParsedReply:
        if self.env.takes == "reply":
            return ParsedReply(reply, True)
        if "<action>" in reply:
            return parse_strict(reply, self.agent.template.think)
        return ParsedReply(reply.strip(), True)
