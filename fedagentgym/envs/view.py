"""The view that an environment shows, the episode at one moment, and the texts that are made of them.

`render()` shows an episode to people. A language model reads a plain prompt in the environment's own words, which is the same
in every interface: `first_message` makes the first message of an episode and `next_message` every later one. `info["prompt"]` of
gymnasium's interface is one of them. Lists of actions are kept short: a dialogue does not repeat the list that it has just
shown, and a long run of actions that differ only in a number that counts up is shown by its first two and its last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from fedagentgym.base.errors import OptionError, show_value
from fedagentgym.base.shorten import show_fields
from fedagentgym.envs.tasks import Task

EMPTY: Mapping[str, Any] = {}
SLOT = re.compile(r"<[a-z_]+>")
"""The part of an admissible action that free text replaces, as in `search[<query>]`."""


_TRUTH = (Real, np.bool_)
_KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "observation": ("a text", (str,)),
    "admissible": ("a tuple of texts or None", (tuple, list, type(None))),
    "reward": ("a finite float", (Real,)),
    "score": ("a finite float", (Real,)),
    "success": ("True or False", _TRUTH),
    "done": ("True or False", _TRUTH),
    "valid": ("True or False", _TRUTH),
    "rewards": ("a mapping", (Mapping,)),
    "extra": ("a mapping", (Mapping,)),
}
"""The form of each field of a view, with the types that have it."""


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

    def __repr__(self) -> str:
        return show_fields(self)


class Episode(NamedTuple):
    """One episode at one moment; it never changes.

    Attributes:
        task: The task that is played.
        seed: Seed of the environment's random choices.
        turn: Number of actions so far.
        state: The environment's own state; only `advance` reads it.
        view: What the environment shows now, and its grades so far: a `View`.
        reward: Reward of the last action.
        terminated: Whether the episode has ended by itself.
        truncated: Whether its turns are used up.
    """

    task: Task
    seed: int
    turn: int
    state: Any
    view: View
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def over(self) -> bool:
        """True if no further action can be taken."""
        return self.terminated or self.truncated


def explain_moment(method: str, found: object) -> str:
    """The error message for a result of `begin` or `advance` that is not a state and a view."""
    if isinstance(found, View):
        what = "a view alone"
    elif isinstance(found, tuple) and len(found) == 5:
        what = "five values, as gymnasium's step does"
    elif isinstance(found, tuple) and found and isinstance(found[0], View):
        what = "the view first"
    else:
        what = show_value(found)
    return f'{method} returned {what}: it returns the state and the view, `return state, View(observation="...", reward=0.0)`'


_checked: set[tuple[type, ...]] = set()
"""The combinations of field types that `check_view` has accepted; each is checked only once."""


def check_view(cls: type, method: str, view: View) -> None:
    """Raise `OptionError` unless each field of a view has its type; the view was returned by this method of this class."""
    kinds = tuple(map(type, view))
    if view.rewards and isinstance(view.rewards, Mapping):
        kinds += tuple(map(type, view.rewards.values()))
    if kinds in _checked:
        return
    fields = [(field, *kind, value) for (field, kind), value in zip(_KINDS.items(), view, strict=True)]
    if isinstance(view.rewards, Mapping):
        fields += [(f"rewards[{name!r}]", *_KINDS["reward"], value) for name, value in view.rewards.items()]
    for field, form, allowed, value in fields:
        if not isinstance(value, allowed):
            raise OptionError(f"{cls.__name__}.{method}: View.{field} must be {form}, got {show_value(value)}")
    _checked.add(kinds)


def hide_grade(view: View) -> View:
    """The view for a client without the answer: reward, score, success and accuracies are 0, other components are unchanged."""
    rewards = {name: 0.0 if name.startswith("accuracy") else value for name, value in view.rewards.items()}
    return view._replace(reward=0.0, score=0.0, success=False, rewards=rewards)


def make_info(env: Any, before: Episode | None) -> dict[str, Any]:
    """The `info` of gymnasium's interface for the current episode; `before` is the episode one step earlier, if there is one."""
    task, view = env.episode.task, env.episode.view
    member = env.find_member(task)
    return {
        **view.extra,
        "task": task.id,
        "category": task.category,
        "turn": env.episode.turn,
        "prompt": first_message(member, view) if before is None else next_message(member, view, before.view.admissible),
        "admissible": None if view.admissible is None else list(view.admissible),
        "valid": bool(view.valid),
        "score": float(view.score),
        "success": bool(view.success),
        "rewards": {name: float(view.rewards.get(name, 0.0)) for name in env.reward_names},
    }


MAX_CHOICES = 40


class Step(NamedTuple):
    """An action and its result; the start of an episode has no action."""

    action: str | None
    view: View
    over: bool = False


def render_episode(task: Task, goal: str, steps: Sequence[Step]) -> str:
    """Some steps as a transcript. The task stands above them if they include the start of the episode; below them stand the
    available actions, or how the episode ended."""
    lines = []
    if steps[0].action is None:
        lines.append(f"{task.id} ({task.category})" + (f"\nGoal: {goal}" if goal else ""))
    for step in steps:
        lines += [] if step.action is None else [f"> {step.action}"]
        lines += [f"  {line}".rstrip() for line in step.view.observation.splitlines()]
    view = steps[-1].view
    if steps[-1].over:
        lines.append(f"({'solved' if view.success else 'not solved'}, score {view.score:g})")
    elif not view.admissible:
        lines.append("Choices: any text.")
    else:
        more = len(view.admissible) - MAX_CHOICES
        shown = " | ".join(view.admissible[:MAX_CHOICES])
        lines.append(f"Choices: {shown}" + (f" | ... {more} more" if more > 0 else ""))
    return "\n".join(lines)


# ---- the prompt -------------------------------------------------------------------------------------------------------

MIN_RUN = 10
"""A run of at least this many actions that count up is shown by its first two and its last."""
ONE_ACTION = "Answer with exactly one action between <action> and </action>, and nothing else."
THINK_FIRST = "Think first, between <think> and </think>. Then give exactly one action between <action> and </action>."
_NUMBERED = re.compile(r"\A(.*?)(0|[1-9]\d{0,17})(\D*)", re.DOTALL)


class Words(Protocol):
    """The part of an environment that a prompt shows."""

    @property
    def role(self) -> str: ...
    @property
    def action_help(self) -> str: ...
    @property
    def takes(self) -> Literal["command", "reply"]: ...


def describe(env: Words) -> str:
    """Who the agent is, and which actions there are."""
    return f"{env.role}\n\n{env.action_help}"


def first_message(env: Words, view: View, form: str = ONE_ACTION) -> str:
    """The first message of an episode; `form` says how to write an action, and is used in environments that take commands."""
    return "\n\n".join([describe(env), f"What you see:\n{view.observation}", *request_action(env, view, form)])


def next_message(env: Words, view: View, listed: Sequence[str] | None = None) -> str:
    """A later message; `listed` are the actions that the message before it listed."""
    return "\n\n".join([f"What you see now:\n{view.observation}", *show_actions(env, view, listed)])


def request_action(env: Words, view: View, form: str) -> list[str]:
    """The last paragraphs of a prompt: the actions, and how to write one; empty where whole replies are graded."""
    return [] if env.takes == "reply" else [*show_actions(env, view), form]


def show_actions(env: Words, view: View, listed: Sequence[str] | None = None) -> list[str]:
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
    step = MIN_RUN - 1  # every run of MIN_RUN actions has a pair at one of these places
    if not any(_counts_up(actions[place], actions[place + 1]) for place in range(0, len(actions) - 1, step)):
        return actions
    lines: list[str] = []
    begin = 0
    for end in range(1, len(actions) + 1):
        if end < len(actions) and _counts_up(actions[end - 1], actions[end]):
            continue
        run = actions[begin:end]
        lines += [f"{run[0]}, {run[1]} and so on, up to {run[-1]}"] if len(run) >= MIN_RUN else run
        begin = end
    return lines


def _counts_up(before: str, after: str) -> bool:
    """Return whether two actions differ only in their last number, by one."""
    one, other = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(after)
    if one is None or other is None or one.group(1, 3) != other.group(1, 3):
        return False
    return int(one.group(2)) + 1 == int(other.group(2))
