"""Dialogues in text, for agents whose tokens are not ours: hosted models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedagentgym.agents.text.prompts import PastTurn, Template

if TYPE_CHECKING:
    from fedagentgym.envs.core import Episode, TextEnv

Message = dict[str, str]


@dataclass
class Dialogue:
    """One episode as messages: a growing list (``session``) or one message with the last turns in it (``window``)."""

    env: TextEnv
    template: Template
    context: Literal["session", "window"]
    history: int
    start: str
    past: list[PastTurn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    listed: tuple[str, ...] | None = None

    def build_messages(self, episode: Episode) -> list[Message]:
        """Return the messages that the model answers this turn."""
        goal = self.env.goal(episode.task)
        system = self.template.system
        opening = [] if system is None else [{"role": "system", "content": system}]
        if self.context == "window":
            shown: Sequence[PastTurn] = self.past[-self.history :] if self.history else ()
            text = self.template.render_window(self.env, self.start, shown, episode.turn, episode.view, goal)
            return [*opening, {"role": "user", "content": text}]
        if self.messages:
            text = self.template.render_next(self.env, episode.view, goal, self.listed)
        else:
            text = self.template.render_first(self.env, episode.view)
        return [*(self.messages or opening), {"role": "user", "content": text}]

    def record_turn(self, episode: Episode, asked: list[Message], reply: str, action: str) -> None:
        """Remember a turn."""
        self.past.append(PastTurn(episode.view.observation, action))
        self.listed = episode.view.admissible
        self.messages = [*asked, {"role": "assistant", "content": reply}]
