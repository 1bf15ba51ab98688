"""Optional abilities of environments as small protocols, for experts, for the methods of single papers and for tools.

The functions here ask an environment for an ability, and return a default if the environment lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from fedagentgym.base.settings import Settings
from fedagentgym.envs.options import EnvOptions
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.view import View

Counts = Mapping[str, int]
"""The number of tasks of each split."""


class Expert(Protocol):
    """Plays one episode through public actions. A new one is made for each episode, so it may remember what it saw.
    It is given the episode at every turn, and other actions than its own may have been played since its last turn."""

    def act(self, episode: Any) -> str: ...


class Handicap(Settings):
    """A handicap that keeps an expert from solving everything, so that hardness labels are not one-sided. The class
    attribute `handicap` of an environment is chosen so that its expert solves a third to a half of the default pool."""

    error: float = Field(ge=0, le=1, description="probability of a random admissible action instead of the expert's")
    turns: int = Field(ge=1, description="turns after which an attempt has failed")


def get_handicap(env: object) -> Handicap:
    """The handicap with which `fedagentgym label` lets the expert of an environment play."""
    found: Handicap = getattr(env, "handicap", Handicap(error=0.4, turns=20))
    return found


def get_action_tail(env: object) -> int:
    """The number of final characters of a reply without tags that the published agent code takes as the action
    (`published_action_tail`)."""
    found: int = getattr(env, "published_action_tail", 30)
    return found


@runtime_checkable
class GradesByRules(Protocol):
    """Replies are graded by versioned rules, and not by the episode itself."""

    def get_verifier_version(self) -> str:
        """Return name and version of the rules."""
        ...


def find_verifier(env: object) -> str | None:
    """Name and version of the rules that grade replies; None if the episode itself decides the reward."""
    return env.get_verifier_version() if isinstance(env, GradesByRules) else None


@runtime_checkable
class ComparesAnswers(Protocol):
    """Answers can be compared, for methods that exchange them."""

    def with_belief(self, task: Task, reply: str) -> Task | None:
        """Return the task with the answer of a reply as its gold; None if the reply gives none, or it cannot be compared."""
        ...


def runs_programs(env: object) -> bool:
    """True if grading runs untrusted programs; records then say how they were confined."""
    return bool(getattr(env, "runs_programs", False))


@runtime_checkable
class ShownToPeople(Protocol):
    """Observations are written for programs, and people are shown something else."""

    def present(self, view: View) -> tuple[str, tuple[str, ...]]:
        """Return the observation as a person reads it, and a line for each admissible action."""
        ...


def present(env: object, view: View) -> tuple[str, tuple[str, ...]]:
    """The observation of a view as a person reads it, and a line for each admissible action."""
    return env.present(view) if isinstance(env, ShownToPeople) else (view.observation, view.admissible or ())


def find_listed(typed: str, actions: Sequence[str]) -> str | None:
    """The listed action whose number a person typed, counted from 1; None if the text is no number of an action.

    >>> find_listed(" 2 ", ["left", "right"]), find_listed("3", ["left", "right"]), find_listed("9" * 5000, ["left"])
    ('right', None, None)
    """
    number = typed.strip().lstrip("0")
    if not number.isascii() or not number.isdigit() or len(number) > len(str(len(actions))):
        return None
    return actions[int(number) - 1] if int(number) <= len(actions) else None


@runtime_checkable
class ExplainsEmptySplits(Protocol):
    """Names a remedy for a split without tasks."""

    def explain_empty(self, split: str) -> str:
        """Return the remedy that ends the error message: a text that begins with a colon, or an empty one."""
        ...


@runtime_checkable
class PlaysPublishedData(Protocol):
    """Plays data whose sizes are known before they are installed."""

    def count_published(self, options: Any) -> tuple[Counts, ...]:
        """Return the number of tasks of each split, for every form in which the data are published."""
        ...


def count_published(env: object, options: EnvOptions) -> tuple[Counts, ...]:
    """The number of tasks of published data; none for generated tasks and data of one's own."""
    return env.count_published(options) if isinstance(env, PlaysPublishedData) else ()
