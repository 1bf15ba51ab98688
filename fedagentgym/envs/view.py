"""The view that an environment shows after a reset or a step, and the text that `render()` makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedagentgym.envs.task import Task

EMPTY: Mapping[str, Any] = {}
SLOT = re.compile(r"<[a-z_]+>")
"""The part of an admissible action that free text replaces, as in `search[<query>]`."""


class View(NamedTuple):
    """The view of an environment after a reset or an action, with the grade of the episode so far.

    Attributes:
        observation: What the agent reads.
        admissible: The possible actions; None if they are not listed.
        reward: Reward of the action.
        score: Score of the episode so far, between 0 and 1.
        success: Whether the task is solved.
        done: Whether the episode has ended.
        valid: Whether the action was understood.
        rewards: Components of the reward; their names are the environment's `reward_names`.
        extra: Further entries of gymnasium's `info`.
    """

    observation: str
    admissible: tuple[str, ...] | None = None
    reward: float = 0.0
    score: float = 0.0
    success: bool = False
    done: bool = False
    valid: bool = True
    rewards: Mapping[str, float] = EMPTY
    extra: Mapping[str, Any] = EMPTY


MOST_CHOICES = 40


class Step(NamedTuple):
    """An action and its result; the start of an episode has no action."""

    action: str | None
    view: View
    over: bool = False


def render_heading(task: Task, goal: str) -> str:
    """The lines above an episode."""
    return f"{task.id} ({task.category})" + (f"\nGoal: {goal}" if goal else "")


def render_step(step: Step) -> str:
    """An action and the observation after it, indented like a transcript."""
    said = [f"  {line}".rstrip() for line in step.view.observation.splitlines()]
    return "\n".join([*([] if step.action is None else [f"> {step.action}"]), *said])


def render_choices(step: Step) -> str:
    """The available actions, or how the episode ended."""
    view = step.view
    if step.over:
        return f"({'solved' if view.success else 'not solved'}, score {view.score:g})"
    if not view.admissible:
        return "Choices: any text."
    shown = " | ".join(view.admissible[:MOST_CHOICES])
    more = len(view.admissible) - MOST_CHOICES
    return f"Choices: {shown}" + (f" | ... {more} more" if more > 0 else "")


def render_episode(task: Task, goal: str, steps: Sequence[Step]) -> str:
    """The whole text; `steps` begins where the rendered environment was reset or restored."""
    return "\n".join([render_heading(task, goal), *map(render_step, steps), render_choices(steps[-1])])
