"""The one prompt of a language model, in the words of an environment: every way to play renders it here.

`first_message` opens an episode, `next_message` goes on; `info["prompt"]` of gymnasium's interface is one or the other. Lists of
actions are kept short: a dialogue does not repeat the list that it has just shown, and many actions that differ only in a
counting number are shown by their ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import View

SHORTEST_RUN = 10
"""Actions that count up and are this many or more are shown by the first two and the last."""
ONE_ACTION = "Answer with exactly one action between <action> and </action>, and nothing else."
THINK_FIRST = "Think first, between <think> and </think>. Then give exactly one action between <action> and </action>."
_NUMBERED = re.compile(r"\A(.*?)(0|[1-9]\d{0,17})(\D*)", re.DOTALL)


def describe(env: TextEnv) -> str:
    """Who the agent is, and which actions there are."""
    return f"{env.role}\n\n{env.action_help}"


def first_message(env: TextEnv, view: View, form: str = ONE_ACTION) -> str:
    """The first message of an episode; `form` asks for the form of an action, in environments that take commands."""
    return "\n\n".join([describe(env), f"What you see:\n{view.observation}", *request_action(env, view, form)])


def next_message(env: TextEnv, view: View, listed: Sequence[str] | None = None) -> str:
    """A later message; `listed` are the actions that the message before it listed."""
    return "\n\n".join([f"What you see now:\n{view.observation}", *show_actions(env, view, listed)])


def request_action(env: TextEnv, view: View, form: str) -> list[str]:
    """The last paragraphs of a prompt: the actions, and the form of one. None where whole replies are graded."""
    return [] if env.takes == "reply" else [*show_actions(env, view), form]


def show_actions(env: TextEnv, view: View, listed: Sequence[str] | None = None) -> list[str]:
    """The paragraph with the actions, if they are listed."""
    if view.admissible is None or env.takes == "reply":
        return []
    if view.admissible and view.admissible == listed:
        return ["The actions you can take now are the same as before."]
    return [
        "The actions you can take now:\n" + "\n".join(f"- {line}" for line in _shorten_list(tuple(view.admissible)))
    ]


@lru_cache(maxsize=64)
def _shorten_list(actions: tuple[str, ...]) -> Sequence[str]:
    """
    >>> _shorten_list(("look", *(f"guess {number}" for number in range(1, 31))))
    ['look', 'guess 1, guess 2 and so on, up to guess 30']
    """
    step = SHORTEST_RUN - 1  # a run has a pair at one of these places
    if not any(_counts_up(actions[place], actions[place + 1]) for place in range(0, len(actions) - 1, step)):
        return actions
    lines: list[str] = []
    begin = 0
    for end in range(1, len(actions) + 1):
        if end < len(actions) and _counts_up(actions[end - 1], actions[end]):
            continue
        run = actions[begin:end]
        lines += [f"{run[0]}, {run[1]} and so on, up to {run[-1]}"] if len(run) >= SHORTEST_RUN else run
        begin = end
    return lines


def _counts_up(before: str, after: str) -> bool:
    """Return whether two actions differ only in their last number, by one."""
    one, other = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(after)
    if one is None or other is None or one.group(1, 3) != other.group(1, 3):
        return False
    return int(one.group(2)) + 1 == int(other.group(2))
