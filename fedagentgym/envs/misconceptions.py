"""Environments whose experts can be misled: a misled expert follows another procedure than the one that solves the task.

Such an environment can teach an agent misconceptions (`learning/misconceptions.py`): in some categories, demonstrations follow
another category's procedure more often than the right one. Training on tasks of these categories can correct them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedagentgym.base.errors import OptionError
from fedagentgym.envs.core import OptionsType, TextEnv
from fedagentgym.envs.protocols import Expert
from fedagentgym.envs.tasks import Task


class Procedures(NamedTuple):
    """The procedures of a category.

    Attributes:
        own: The procedure that solves the tasks of the category.
        others: Procedures that could be mistaken for it.
    """

    own: str
    others: tuple[str, ...]


class MisleadableEnv(TextEnv[OptionsType]):
    """Base class of environments in which one procedure can be mistaken for another.

    Derived classes also define `list_procedures` and `misled_expert`. `fedagentgym.learning.make_misled_experts` uses both to
    demonstrate such mistakes, so that agents start with misconceptions.
    """

    @abstractmethod
    def list_procedures(self) -> Mapping[str, Procedures]:
        """Return the procedures of each category.

        Returns:
            Category -> the procedure that solves its tasks, and those that could be mistaken for it; may be empty.
        """

    @abstractmethod
    def misled_expert(self, procedure: str) -> Expert:
        """Return a scripted player that follows a procedure whatever the task.

        Args:
            procedure: Name of the procedure.

        Returns:
            The player for one episode; it acts correctly where the procedure cannot be followed.
        """

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        """Return whether actions follow a procedure; by default, whether its misled expert plays the same actions.

        Args:
            task: The task.
            actions: The actions of an episode.
            procedure: Name of the procedure.

        Returns:
            True if they follow it; False if there are no actions.
        """
        (episode,) = self.reset_many([task], [0])
        expert = self.misled_expert(procedure)
        for action in actions:
            if episode.over or expert.act(episode) != action:
                return False
            (episode,) = self.step_many([episode], [action])
        return bool(actions)


def check_misleadable(env: TextEnv) -> MisleadableEnv:
    """The environment, if at least two of its categories have procedures that could be mistaken for each other."""
    if isinstance(env, MisleadableEnv) and len(env.list_procedures()) > 1:
        return env
    raise OptionError(
        f"{env.id} has no categories whose procedures could be mistaken for each other: leave warm_start.misconceptions out"
    )
