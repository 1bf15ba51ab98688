"""Prompts of a language model, and parsers of its replies.

Templates are filled with each environment's own descriptions. `standard` explains the role, the actions and the reply's form,
and lists the admissible actions. `compact` shows bare observations, for models that were trained on an environment and need no
instructions. Both support the two contexts: `render_first` and `render_next` make one growing dialogue, and `render_window` makes
a separate prompt for each turn that shows the last turns. A custom `request` replaces the environment's own description, and a
`system` prompt comes before everything. The words of `standard` are those of `fedagentgym.envs.view`, which every way to play
shares.

A parser decides which action of a reply is executed, and whether the reply has the required format. The format affects only the
format penalty; the environment decides whether an action is valid.

* `strict`: the whole reply is `<think>...</think><action>...</action>` (the thought only if it is required), with each tag once
  and no other tags inside. Without a complete pair of action tags the action is empty.
* `published`: the convention of the published agent code. The reply is lower-cased, and the action is the text between the first
  opening and the first closing tag. If one of these tags is missing, the format is broken, and the action is the last characters
  of the reply (as many as the environment's `published_action_tail` says). The format is also broken if a required think tag is
  missing (in lower case) or a Chinese character occurs. Actions of broken replies are executed too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedagentgym.base.errors import require_type
from fedagentgym.base.imports import Registry
from fedagentgym.envs.view import ONE_ACTION, THINK_FIRST, describe, next_message, request_action

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode, View


OBSERVATION = "{observation}"
"""The part of a `request` that is replaced by the first observation."""


Message = dict[str, str]


class PastTurn(NamedTuple):
    observation: str
    action: str


TEMPLATES = Registry(
    "prompt template",
    {
        "standard": "fedagentgym.agents.text.prompts:Template",
        "compact": "fedagentgym.agents.text.prompts:CompactTemplate",
    },
)


@dataclass(frozen=True, slots=True)
class Template:
    """A style of prompt. `Template(name)` is an instance of the class that is registered under this name.

    To write your own, derive a class, override methods, and register the class with `fedagentgym.register_template`.

    Args:
        name: `standard`, `compact`, or a registered name.
        think: Whether the prompt asks for a thought before the action, in environments that take commands.
        system: A system prompt, which comes before everything.
        request: The first message in place of the environment's own description; `{observation}` is replaced by the observation.
    """

    name: str = "standard"
    think: bool = True
    system: str | None = None
    request: str | None = None

    def __new__(cls, name: str = "standard", *args: Any, **kwargs: Any) -> Template:
        made: Template = object.__new__(TEMPLATES.get(name) if cls is Template else cls)
        return made

    def render_first(self, env: TextEnv, view: View) -> str:
        """Render the first message of a dialogue.

        Args:
            env: The environment; `env.role` and `env.action_help` describe it.
            view: The present view: `view.observation`, and `view.admissible` actions if they are listed.

        Returns:
            The first message.
        """
        return "\n\n".join([self.render_opening(env, view.observation), *self._request_action(env, view)])

    def render_opening(self, env: TextEnv, start: str) -> str:
        """Render the first message without the list of actions, from `request` if it is set.

        Args:
            env: The environment.
            start: The first observation of the episode.

        Returns:
            The text.
        """
        if self.request is not None:
            return self.request.replace(OBSERVATION, start)
        return f"{describe(env)}\n\nWhat you see:\n{start}"

    def render_next(self, env: TextEnv, view: View, goal: str = "", listed: Sequence[str] | None = None) -> str:
        """Render the next observation as a message of the dialogue.

        Args:
            env: The environment.
            view: The present view.
            goal: A short form of the task, if the environment has one.
            listed: The actions that the dialogue listed last.

        Returns:
            The message.
        """
        return next_message(env, view, listed)

    def render_window(
        self, env: TextEnv, start: str, past: Sequence[PastTurn], turn: int, view: View, goal: str = ""
    ) -> str:
        """Render the whole prompt of one turn, for the context `window`.

        Args:
            env: The environment.
            start: The first observation of the episode.
            past: The past turns that the prompt shows, each with `observation` and `action`.
            turn: The number of the turn, counted from 0.
            view: The present view.
            goal: A short form of the task, if the environment has one.

        Returns:
            The prompt.
        """
        if turn == 0:
            return self.render_first(env, view)
        begun = turn - len(past)
        parts = [describe(env) if self.request is None else self.render_opening(env, start)]
        if begun and self.request is None:
            parts.append(f"What you saw at the start:\n{start}")
        taken = f"You have taken {turn} {'step' if turn == 1 else 'steps'} so far."
        parts.append(f"{taken} The last of them:" if past else taken)
        for index, old in enumerate(past, start=begun + 1):
            saw = "" if index == 1 and self.request is not None else f"You saw: {old.observation}\n"
            parts.append(f"Step {index}\n{saw}You did: {old.action}")
        return "\n\n".join([*parts, f"What you see now:\n{view.observation}", *self._request_action(env, view)])

    def render_bounded(
        self,
        env: TextEnv,
        start: str,
        past: Sequence[PastTurn],
        turn: int,
        view: View,
        goal: str = "",
        longest: int | None = None,
    ) -> str:
        """Render the prompt of `render_window`, without past turns if these would make it longer than `longest` characters."""
        text = self.render_window(env, start, past, turn, view, goal)
        if longest is not None and past and len(text) > longest:
            return self.render_window(env, start, (), turn, view, goal)
        return text

    def render_reply(self, env: TextEnv, action: str) -> str:
        """Render a well-formed reply with an action, for demonstrations.

        Args:
            env: The environment.
            action: The action.

        Returns:
            The reply.
        """
        if env.takes == "reply":
            return action
        thought = f"<think>I will try this: {action}</think>" if self.think else ""
        return f"{thought}<action>{action}</action>"

    def _request_action(self, env: TextEnv, view: View) -> list[str]:
        return request_action(env, view, THINK_FIRST if self.think else ONE_ACTION)


@dataclass(frozen=True, slots=True)
class CompactTemplate(Template):
    """Shows bare observations, followed by the goal from the second turn on."""

    def render_first(self, env: TextEnv, view: View) -> str:
        return f"{self.render_opening(env, view.observation)}\n"

    def render_opening(self, env: TextEnv, start: str) -> str:
        return start if self.request is None else self.request.replace(OBSERVATION, start)

    def render_next(self, env: TextEnv, view: View, goal: str = "", listed: Sequence[str] | None = None) -> str:
        return f"\n{_append_goal(view, goal)}"

    def render_window(
        self, env: TextEnv, start: str, past: Sequence[PastTurn], turn: int, view: View, goal: str = ""
    ) -> str:
        if turn == 0:
            return self.render_first(env, view)
        begun = turn - len(past)
        lines = [self.render_opening(env, start), "..."] if begun else []
        for index, old in enumerate(past, start=begun):
            saw = old.observation if index else self.render_opening(env, old.observation)
            lines += [saw, self.render_reply(env, old.action)]
        return "\n".join([*lines, _append_goal(view, goal)])


@dataclass
class Dialogue:
    """One episode as messages: a growing list (`session`), or one message that shows the last turns (`window`)."""

    env: TextEnv
    template: Template
    context: Literal["session", "window"]
    history: int
    start: str
    longest: int | None = None
    past: list[PastTurn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    listed: tuple[str, ...] | None = None

    def build_messages(self, episode: Episode) -> list[Message]:
        """Return the messages that the model answers this turn."""
        goal, env = self.env.goal(episode.task), self.env.find_member(episode.task)
        system = self.template.system
        opening = [] if system is None else [{"role": "system", "content": system}]
        if self.context == "window":
            shown: Sequence[PastTurn] = self.past[-self.history :] if self.history else ()
            text = self.template.render_bounded(env, self.start, shown, episode.turn, episode.view, goal, self.longest)
            return [*opening, {"role": "user", "content": self._check_text(text)}]
        if self.messages:
            text = self.template.render_next(env, episode.view, goal, self.listed)
        else:
            text = self.template.render_first(env, episode.view)
        return [*(self.messages or opening), {"role": "user", "content": self._check_text(text)}]

    def _check_text(self, text: object) -> str:
        require_type(f"the template {self.template.name!r} renders texts", text, str)
        return str(text)

    def record_turn(self, episode: Episode, asked: list[Message], reply: str, action: str) -> None:
        """Add a turn to the dialogue."""
        self.past.append(PastTurn(episode.view.observation, action))
        self.listed = episode.view.admissible
        self.messages = [*asked, {"role": "assistant", "content": reply}]


def _append_goal(view: View, goal: str) -> str:
    """Return the observation with the goal right before the action, since a small model relates nearby words."""
    return f"{view.observation}\n{goal}\n" if goal else f"{view.observation}\n"


# ---- from a reply to an action --------------------------------------------------------------------------------------------

_OPEN, _CLOSE = "<action>", "</action>"
_PLAIN = re.compile(r"\A\s*+<action>(.*?)</action>\s*+", re.DOTALL)
_THOUGHTFUL = re.compile(r"\A\s*+<think>(?>(.*?)</think>\s*<action>)(.*?)</action>\s*+", re.DOTALL)
_TAG = re.compile(r"</?(?:think|action)>")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


class ParsedReply(NamedTuple):
    action: str
    format: bool


def parse_strict(reply: str, think: bool) -> ParsedReply:
    """
    >>> parse_strict("<action> go to fridge 1 </action>", think=False)
    ParsedReply(action='go to fridge 1', format=True)
    >>> parse_strict("go to fridge 1", think=False)
    ParsedReply(action='', format=False)
    """
    whole = (_THOUGHTFUL if think else _PLAIN).fullmatch(reply)
    if whole is not None and not any(_TAG.search(part) for part in whole.groups()) and whole.groups()[-1].strip():
        return ParsedReply(whole.groups()[-1].strip(), True)
    _, _, behind = reply.partition(_OPEN)
    action, closed, _ = behind.partition(_CLOSE)
    return ParsedReply(action.strip() if closed else "", False)


def parse_published(reply: str, think: bool, tail: int = 30) -> ParsedReply:
    """
    >>> parse_published("<think>cold</think><action>Open Fridge 1</action>", think=True)
    ParsedReply(action='open fridge 1', format=True)
    >>> parse_published("I would open the fridge 1", think=True, tail=13)
    ParsedReply(action=' the fridge 1', format=False)
    """
    lowered = reply.lower()
    start, end = lowered.find(_OPEN), lowered.find(_CLOSE)
    if start < 0 or end < 0:
        return ParsedReply(lowered[-tail:], False)
    thought = not think or ("<think>" in reply and "</think>" in reply)
    return ParsedReply(lowered[start + len(_OPEN) : end].strip(), thought and not _CHINESE.search(reply))


def parse(reply: str, parser: Literal["strict", "published"], think: bool, tail: int = 30) -> ParsedReply:
    """Parse a reply with the named parser; `published` takes the last `tail` characters of a reply that lacks a tag."""
    if parser == "strict":
        return parse_strict(reply, think)
    return parse_published(reply, think, tail)
