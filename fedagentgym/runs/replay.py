"""The replay of recorded episodes: observations, actions and rewards must agree exactly with the environment.

An episode that no player could have produced is refused: an action is not that of its reply, or the episode ends where the
environment does not end it. Wrong seeds and missing or repeated tasks are found by `claims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedagentgym.agents.players.endpoint import ENDPOINT_THINKS
from fedagentgym.agents.presets import complete_settings
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.prompts import parse
from fedagentgym.envs.protocols import get_action_tail
from fedagentgym.learning.rollouts import play_acts
from fedagentgym.learning.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.tasks import Task
    from fedagentgym.runs.record import AgentRecord

MAX_TOKENS = 1 << 20
"""Maximum length of a reply of an agent whose settings do not limit it."""


@dataclass(frozen=True)
class ReplyReader:
    """The way from replies to actions; without a `parser` the reply is the action. A reply has at most `most_tokens`."""

    parser: Literal["strict", "published"] | None
    think: bool = False
    most_tokens: int = 0
    runs_out: bool = False
    """True if its episodes can end because its context is full."""
    window: bool = False
    """True if every turn is a segment of its own, else all turns of an episode are one."""

    def read(self, env: TextEnv, reply: str) -> tuple[str, bool]:
        """The action in a reply, and whether the reply has its form."""
        if self.parser is None or env.takes == "reply":
            return reply, True
        return parse(reply, self.parser, self.think, get_action_tail(env))


def find_reply_reader(settings: AgentSettings, kind: str, own: AgentRecord | None = None) -> ReplyReader | None:
    """The way from replies to actions that an agent's settings declare, or for a program its record `own`. None if a
    program outside this package turned replies into actions, which cannot be checked."""
    if settings.harness is not None and settings.harness.evaluate:
        return None
    if kind == "program":
        return ReplyReader(None) if own is None else ReplyReader(own.parser, own.think)
    if kind == "hosted":
        think = ENDPOINT_THINKS if settings.think is None else settings.think
        return ReplyReader(settings.parser or "strict", think)
    whole = complete_settings(settings)
    most = whole.decoding.max_new_tokens if whole.decoding is not None else MAX_TOKENS
    window = whole.context == "window"
    return ReplyReader(whole.parser or "strict", bool(whole.think), most, runs_out=True, window=window)


def replay(
    env: TextEnv,
    former: Trajectory,
    *,
    task: Task | None = None,
    brief: bool = False,
    reader: ReplyReader | None = None,
) -> tuple[Trajectory, bool]:
    """Replay an episode; return it with the environment's values, and whether it is over after its last turn.

    The recorded actions are played, or those that a `reader` reads from the replies. Turns after the end of the episode are left
    out, as are the fields that a brief episode lacks. If the `task` is given, it is not made again.
    """
    (episode,) = env.reset_many([task or former.task], [former.seed])
    turns = []
    for turn in former.turns:
        if episode.over:
            break
        if reader is not None:
            action, form = reader.read(env, turn.reply)
            turn = turn._replace(acts=(action,), format=form)
        before = episode
        episode, grades = play_acts(env, episode, turn.acts)
        if not brief:
            seen = before.view
            grades |= {"observation": seen.observation, "admissible": tuple(seen.admissible or ())}
        turns.append(turn._replace(acts=turn.acts[: episode.turn - before.turn], learn=True, **grades))
    again = replace(
        former,
        turns=tuple(turns),
        category=episode.task.category,
        score=float(episode.view.score),
        success=bool(episode.view.success),
        terminated=episode.terminated,
        truncated=episode.truncated or not episode.over,
        last="" if brief else episode.view.observation,
    )
    return again, episode.over


def find_difference(
    env: TextEnv, trajectory: Trajectory, reader: ReplyReader | None, *, task: Task | None = None, brief: bool = False
) -> str | None:
    """Replay an episode, and return the first difference, or None. If the reader is None, it is not checked that replies lead to
    the actions; a brief episode has no observations to compare."""
    again, over = replay(env, trajectory, task=task, brief=brief)
    if trajectory.category != again.category:
        return f"its category is {again.category!r}, not {trajectory.category!r}"
    if trajectory.labels:
        return "it has labels, which no evaluated episode has"
    turns = trajectory.turns
    for number, turn in enumerate(turns):
        if number == len(again.turns):
            return f"the episode is over before turn {number + 1}"
        due = again.turns[number]
        fault = None if turn == due else _find_value_fault(turn, due, _GIVEN)
        if fault is None and len(due.acts) < len(turn.acts):
            fault = f"the episode is over before its action {len(due.acts) + 1}"
        if fault is None and reader is not None:
            fault = _find_reply_fault(env, turn, reader)
        first, last = 0, len(turns) - 1 if number else 0
        if reader is not None:
            first = last = number if reader.window else 0
        if fault is None and not first <= turn.segment <= last:
            fault = f"its segment is written as {turn.segment}, it is {first if first == last else f'at most {last}'}"
        if fault is not None:
            return f"turn {number + 1}: {fault}"
    runs_out = reader is None or reader.runs_out
    if not over and not (runs_out and trajectory.truncated):
        return f"the episode continues after its last turn, {len(turns)}"
    difference = _find_value_fault(trajectory, again, ("score", "success", "terminated", "truncated", "last"))
    return None if difference is None else f"at the end {difference}"


_GIVEN = ("observation", "admissible", "reward", "rewards", "score", "valid", "learn")
"""The fields of a turn that the environment gives."""


def _find_value_fault(written: Turn | Trajectory, due: Turn | Trajectory, names: Sequence[str]) -> str | None:
    for name in names:
        if (found := getattr(written, name)) != (value := getattr(due, name)):
            return f"{name} is written as {str(found)[:80]!r}, the environment gives {str(value)[:80]!r}"
    return None


def _find_reply_fault(env: TextEnv, turn: Turn, reader: ReplyReader) -> str | None:
    """The fault if the action or the form is not that of the reply, or its number of tokens is impossible."""
    action, form = reader.read(env, turn.reply)
    if turn.acts != (action,):
        return f"the action {turn.action[:60]!r} is not that of the reply, {action[:60]!r}"
    if turn.format != form:
        return f"the form of the reply is {'kept' if form else 'broken'}, not as it is written"
    if not 0 <= turn.tokens <= reader.most_tokens:
        return f"{turn.tokens} tokens are written, at most {reader.most_tokens} can be counted"
    return None
