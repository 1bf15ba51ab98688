"""Environments whose experts can be misled: they follow another procedure than the one that solves the task.

Such an environment can teach an agent misconceptions (`learning/misconceptions.py`): demonstrations that, in some categories,
follow another category's procedure more often than the right one. Training on tasks of these categories can correct them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedagentgym.base.errors import OptionError
from fedagentgym.envs.core import Expert, TextEnv
from fedagentgym.envs.task import Task


class Procedures(NamedTuple):
    """The procedure that solves the tasks of a category, and those that could be mistaken for it."""

    own: str
    others: tuple[str, ...]


class MisleadableEnv(TextEnv):
    """A `TextEnv` in which one procedure can be mistaken for another: it defines `list_procedures` and `misled_expert` too."""

    @abstractmethod
    def list_procedures(self) -> Mapping[str, Procedures]:
        """Category -> the procedure that solves its tasks and the procedures that could be mistaken for it; may be empty."""

    @abstractmethod
    def misled_expert(self, procedure: str) -> Expert:
        """A scripted player for one episode that follows this procedure whatever the task; it acts correctly where the
        procedure cannot be followed."""

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        """Whether these actions follow a procedure; by default, whether they equal those of its expert."""
        (episode,) = self.reset_many([task], [0])
        expert = self.misled_expert(procedure)
        for action in actions:
            if episode.over or expert.act(episode) != action:
                return False
            (episode,) = self.step_many([episode], [action])
        return bool(actions)


def check_misleadable(env: TextEnv) -> MisleadableEnv:
    """The environment, if its tasks have at least two procedures that could be mistaken for each other."""
    if isinstance(env, MisleadableEnv) and len(env.list_procedures()) > 1:
        return env
    raise OptionError(
        f"{env.id} has no categories whose procedures could be mistaken for each other: leave warm_start.misconceptions out"
    )
