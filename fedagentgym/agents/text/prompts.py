"""What a language model is shown: one generic template per style, filled from what each environment says of itself.

``standard`` explains the role, the actions and the reply's form, and lists the admissible actions; ``compact`` shows bare
observations, for models that learnt an environment's habits and have neither room nor use for instructions. Both come in the
two contexts: ``first`` and ``following`` make one growing dialogue, ``window`` renders a turn anew with the last turns in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import View


class PastTurn(NamedTuple):
    observation: str
    action: str


@dataclass(frozen=True, slots=True)
class Template:
    """A style of prompt. ``think`` asks for reasoning before the action (environments that take commands)."""

    name: Literal["standard", "compact"] = "standard"
    think: bool = True

    def first(self, env: TextEnv, view: View) -> str:
        """Return the opening of a dialogue."""
        if self.name == "compact":
            return f"{view.observation}\n"
        parts = [_introduction(env), f"What you see:\n{view.observation}", *self._closing(env, view)]
        return "\n\n".join(parts)

    def following(self, env: TextEnv, view: View, goal: str = "") -> str:
        """Return what the world answers, as the next message of the dialogue; ``compact`` repeats the goal after it."""
        if self.name == "compact":
            return f"\n{_reminding(view, goal)}"
        return "\n\n".join([f"What you see now:\n{view.observation}", *self._choices(env, view)])

    def window(self, env: TextEnv, start: str, past: Sequence[PastTurn], turn: int, view: View, goal: str = "") -> str:
        """Return a whole prompt for turn ``turn`` that shows the start, the given past turns and the present."""
        if turn == 0:
            return self.first(env, view)
        begun = turn - len(past)
        if self.name == "compact":
            lines = [start, "..."] if begun else []
            lines += [line for old in past for line in (old.observation, self.reply(env, old.action))]
            return "\n".join([*lines, _reminding(view, goal)])
        parts = [_introduction(env)]
        if begun:
            parts.append(f"What you saw at the start:\n{start}")
        told = f"You have taken {turn} {'step' if turn == 1 else 'steps'} so far."
        parts.append(f"{told} The last of them:" if past else told)
        for index, old in enumerate(past, start=begun + 1):
            parts.append(f"Step {index}\nYou saw: {old.observation}\nYou did: {old.action}")
        return "\n\n".join([*parts, f"What you see now:\n{view.observation}", *self._closing(env, view)])

    def reply(self, env: TextEnv, action: str) -> str:
        """Return a well-formed reply that takes an action; what demonstrations say."""
        if env.takes == "reply":
            return action
        thought = f"<think>I will try this: {action}</think>" if self.think else ""
        return f"{thought}<action>{action}</action>"

    def _closing(self, env: TextEnv, view: View) -> list[str]:
        if env.takes == "reply":
            return []
        how = (
            "Think first, between <think> and </think>. Then give exactly one action between <action> and </action>."
            if self.think
            else "Answer with exactly one action between <action> and </action>, and nothing else."
        )
        return [*self._choices(env, view), how]

    def _choices(self, env: TextEnv, view: View) -> list[str]:
        if view.admissible is None or env.takes == "reply":
            return []
        return ["The actions you can take now:\n" + "\n".join(f"- {action}" for action in view.admissible)]


def _reminding(view: View, goal: str) -> str:
    """A small model binds words to what stands near: the goal comes right before the action that serves it."""
    return f"{view.observation}\n{goal}\n" if goal else f"{view.observation}\n"


def _introduction(env: TextEnv) -> str:
    return f"{env.role}\n\n{env.action_help}"
