"""Episodes as text that people can read and programs can replay.

    alfworld/train/00042, seed 7
      You are in the middle of a room. ...
    > go to fridge 1
      You arrive at fridge 1. The fridge 1 is closed.

Observations are indented, actions begin with `> `; an action of several lines is written as a JSON string. A replay can be
compared with the transcript, since task, seed and actions determine an episode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedagentgym.base.errors import DataError, require_type
from fedagentgym.base.rounding import count_things
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.envs.view import Episode

_HEADING = re.compile(r"\A(.+), seed (\d+)")


class Transcript(NamedTuple):
    """All that determines an episode: play it with `replay`."""

    task: str
    seed: int
    actions: tuple[str, ...]


def format_transcript(steps: Iterable[tuple[str, Episode]]) -> str:
    """Write an episode as text that people can read and `read_transcript` can parse.

    Args:
        steps: Pairs of an action and the episode after it; the first action is empty. `replay` returns them.

    Returns:
        The text: the task, the seed, observations (indented) and actions (after `> `), and how the episode ended.

    Raises:
        DataError: If there are no steps.
    """
    lines: list[str] = []
    episode: Episode | None = None
    for action, episode in steps:
        # an action that would not be read back unchanged is a JSON string
        plain = action.isprintable() and not action.startswith('"') and action == action.rstrip()
        acted = f"> {action if plain else json.dumps(action)}"
        lines.append(acted if lines else f"{episode.task.id}, seed {episode.seed}")
        lines += [f"  {line}".rstrip() for line in episode.view.observation.splitlines()]
    if episode is None:
        raise DataError("a transcript needs at least the start of an episode")
    verdict = "solved" if episode.view.success else "not solved"
    return (
        "\n".join([*lines, f"({verdict}, {count_things(episode.turn, 'turn')}, score {episode.view.score:g})"]) + "\n"
    )


def read_transcript(text: str) -> Transcript:
    """Read the text of `format_transcript`.

    Args:
        text: The text.

    Returns:
        `task`, `seed` and `actions`: what `replay` needs to play the episode again.

    Raises:
        DataError: If it is no such text.
    """
    require_type("a transcript is a text", text, str)
    lines = text.splitlines()
    heading = _HEADING.fullmatch(lines[0]) if lines else None
    if heading is None:
        raise DataError("not a transcript: the first line must be 'TASK, seed NUMBER'")
    actions = [line[2:] for line in lines[1:] if line.startswith("> ")]
    for number, action in enumerate(actions):
        if action.startswith('"'):
            try:
                actions[number] = str(json.loads(action))
            except json.JSONDecodeError:
                raise DataError(f"not a transcript: the action {action[:60]} is no JSON string") from None
    return Transcript(heading[1], int(heading[2]), tuple(actions))


def replay(env: EnvLike, task: str, seed: int, actions: Sequence[str]) -> list[tuple[str, Episode]]:
    """Play given actions from the start of a task.

    Args:
        env: The environment.
        task: Id of the task.
        seed: Seed of the episode.
        actions: The actions.

    Returns:
        Pairs of an action and the episode after it; the first action is empty.

    Raises:
        UnknownNameError: If the environment has no such task.

    Examples:
        >>> from fedagentgym.envs import open_env
        >>> env = open_env("fedagentgym/Guess-v0")
        >>> steps = replay(env, env.pool.ids[0], 0, ["guess 4"])
        >>> [episode.turn for _, episode in steps]
        [0, 1]
    """
    env = open_env(env)
    (episode,) = env.reset_many([task], [seed])
    steps = [("", episode)]
    for action in actions:
        (episode,) = env.step_many([episode], [action])
        steps.append((action, episode))
    return steps
