"""Replay of submitted episodes: observations, actions and rewards must agree exactly with the environment.

Episodes are refused that no player could have produced: with another seed, with a task twice, with an action that is not that of
the reply, or with an end that the environment does not give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedagentgym.agents.players.endpoint import ENDPOINT_THINKS
from fedagentgym.agents.presets import complete_settings
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.parsing import parse
from fedagentgym.base.streams import derive
from fedagentgym.learning.trajectory import Trajectory, Turn, to_json_line

if TYPE_CHECKING:
    from fedagentgym.envs.core import Episode, TextEnv

MOST_TOKENS = 1 << 20
"""Maximum length of a reply of an agent whose settings do not limit it."""


@dataclass(frozen=True)
class Speaker:
    """The way from replies to actions; `parser` is None for a program, whose reply is its action. `most_tokens` of a reply."""

    parser: Literal["strict", "published"] | None
    think: bool = False
    most_tokens: int = 0
    runs_out: bool = False
    """True if its episodes can end because its context is full."""


def describe_speaker(settings: AgentSettings, kind: str) -> Speaker:
    """The speaker that an agent's settings declare."""
    if kind == "program":
        return Speaker(None)
    if kind == "hosted":
        think = ENDPOINT_THINKS if settings.think is None else settings.think
        return Speaker(settings.parser or "strict", think)
    whole = complete_settings(settings)
    most = whole.decoding.max_new_tokens if whole.decoding is not None else MOST_TOKENS
    return Speaker(whole.parser or "strict", bool(whole.think), most, runs_out=True)


@dataclass(frozen=True)
class Expected:
    """The expected episodes: tasks in order, each with the repeats, under the seeds that follow from one."""

    ids: Sequence[str]
    repeats: int
    seed: int

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        for place, task in enumerate(self.ids):
            for sample in range(self.repeats):
                yield task, derive(self.seed, "episode", place), sample

    def __len__(self) -> int:
        return len(self.ids) * self.repeats


def find_gap(due: tuple[str, int, int], found: Trajectory) -> str | None:
    """Return how an episode is not the expected one: missing, repeated, of another task or seed."""
    if (found.task, found.seed, found.sample) == due:
        return None
    task, seed, sample = due
    there = f"{found.task} with seed {found.seed}, copy {found.sample}"
    return f"{task} with seed {seed}, copy {sample}, belongs here, found {there}"


def find_odd_line(
    line: Mapping[str, Any], trajectory: Trajectory, about: Mapping[str, Any], text: str, *, brief: bool = False
) -> str | None:
    """Return how a line differs from the canonical form of its episode."""
    if {name: line.get(name) for name in about} != dict(about):
        odd = next(name for name in about if line.get(name) != about[name])
        return f"{odd!r} is {str(line.get(odd))[:60]!r}, it should be {str(about[odd])[:60]!r}"
    if to_json_line(trajectory, about, brief=brief) != text:
        return "the line is not written as an episode is: a field is added, doubled or of another kind"
    return None


def find_difference(env: TextEnv, trajectory: Trajectory, speaker: Speaker, *, brief: bool = False) -> str | None:
    """Replay an episode; returns the first disagreement. A brief one has no observations to compare."""
    (episode,) = env.reset_many([trajectory.task], [trajectory.seed])
    if trajectory.category != episode.task.category:
        return f"its category is {episode.task.category!r}, not {trajectory.category!r}"
    if trajectory.labels:
        return "it has labels, which no ranked episode has"
    for number, turn in enumerate(trajectory.turns, start=1):
        if episode.over:
            return f"the episode is over before turn {number}"
        before = episode
        (episode,) = env.step_many([episode], [turn.action])
        fault = _find_odd_turn(env, turn, before, episode, brief) or _find_odd_reply(env, turn, speaker)
        if fault is not None:
            return f"turn {number}: {fault}"
    return _find_odd_end(trajectory, episode, speaker, brief)


def _find_odd_turn(env: TextEnv, turn: Turn, before: Episode, after: Episode, brief: bool) -> str | None:
    """The first disagreement between the recorded turn and the environment."""
    view, seen = after.view, before.view
    texts = {} if brief else {"observation": seen.observation, "admissible": tuple(seen.admissible or ())}
    expected = {
        **texts,
        "reward": float(after.reward),
        "rewards": {name: float(view.rewards.get(name, 0.0)) for name in env.reward_names},
        "score": float(view.score),
        "valid": bool(view.valid),
        "learn": True,
    }
    return _find_odd_value(turn, expected)


def _find_odd_value(written: Turn | Trajectory, expected: Mapping[str, Any]) -> str | None:
    for name, value in expected.items():
        if (found := getattr(written, name)) != value:
            return f"{name} is written as {str(found)[:80]!r}, the environment gives {str(value)[:80]!r}"
    return None


def _find_odd_reply(env: TextEnv, turn: Turn, speaker: Speaker) -> str | None:
    """Return whether the action is the one in the reply."""
    if speaker.parser is None or env.takes == "reply":
        action, form = turn.reply, True
    else:
        action, form = parse(turn.reply, speaker.parser, speaker.think, env.published_action_tail)
    if turn.action != action:
        return f"the action {turn.action[:60]!r} is not that of the reply, {action[:60]!r}"
    if turn.format != form:
        return f"the form of the reply is {'kept' if form else 'broken'}, not as it is written"
    if not 0 <= turn.tokens <= speaker.most_tokens:
        return f"{turn.tokens} tokens are written, at most {speaker.most_tokens} can be counted"
    return None


def _find_odd_end(trajectory: Trajectory, episode: Episode, speaker: Speaker, brief: bool) -> str | None:
    view = episode.view
    if not episode.over and not (speaker.runs_out and trajectory.truncated):
        return f"the episode continues after its last turn, {len(trajectory.turns)}"
    expected = {
        "score": float(view.score),
        "success": bool(view.success),
        "terminated": episode.terminated,
        "truncated": episode.truncated or not episode.over,
        "last": "" if brief else view.observation,
    }
    odd = _find_odd_value(trajectory, expected)
    return None if odd is None else f"at the end {odd}"


def is_cut_short(env: TextEnv, trajectory: Trajectory) -> bool:
    """Return whether an episode ended before the environment ended it: its context was full, which cannot be checked."""
    return not trajectory.terminated and len(trajectory.turns) < env.max_turns
