"""Gymnasium: an environment of Gymnasium, with text or converted to text, as an environment with tasks for clients.

    class LakeEnv(GymnasiumTextEnv):
        id = "me/Lake-v0"
        gymnasium_id = "FrozenLake-v1"
        categories = {"small": {"map_name": "4x4"}, "large": {"map_name": "8x8"}}
        ...

A Gymnasium environment hides its state, while states in this package are values. So the state of an episode is its history of
actions, and live environments are kept by their histories. Continuing an episode costs one step; going back (snapshots, undo,
other processes) replays the actions. The environment must be deterministic given the seed of its reset.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import gymnasium

from fedagentgym.base.errors import DataError, OptionError, show_value
from fedagentgym.base.streams import derive
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.options import EnvOptions, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task, lay_out_tasks
from fedagentgym.envs.view import View

__all__ = ["GymnasiumTextEnv"]

MAX_LIVE = 512
_OVER = "This episode is over."
_NO_ACTION = "That is not an action here."


class GymnasiumTextState(NamedTuple):
    """An episode's history: its category and seed, the actions played, the sum of rewards, the present view, and the number of
    turns, in which actions that were not understood count too."""

    category: str
    seed: int
    actions: tuple[str, ...] = ()
    total: float = 0.0
    over: bool = False
    observation: str = ""
    admissible: tuple[str, ...] | None = None
    turns: int = 0


class GymnasiumTextOptions(EnvOptions):
    """Options of environments made from a Gymnasium environment."""

    seed: int = task(0, description="seed of the tasks")


class GymnasiumTextEnv(TextEnv[GymnasiumTextOptions]):
    """Base class of environments made from a Gymnasium environment. Derive a class, set the class attributes, and register it.

    If the environment does not use text, write `render_observation` and `parse_action` too. A task is a category, which selects
    the keyword arguments of `gymnasium.make`, and a seed for `reset`. The environment must be deterministic given that seed.

    Attributes:
        gymnasium_id: Class attribute, id of the Gymnasium environment.
        categories: Class attribute, category of tasks -> keyword arguments of `gymnasium.make`.
        sizes: Class attribute, number of tasks of each split.
        success_return: Class attribute, the sum of rewards that solves a task, checked at the end of the episode. The score is
            the share of this sum that was reached.
    """

    gymnasium_id: ClassVar[str]
    categories: ClassVar[Mapping[str, Mapping[str, Any]]] = {"all": {}}
    """Category of tasks -> keyword arguments of `gymnasium.make`."""
    sizes: ClassVar[Mapping[str, int]] = {"train": 1_000, "val": 100, "test": 100, "warmup": 100}
    success_return: ClassVar[float] = 1.0
    """The sum of rewards that solves a task, checked at the end of the episode. The score is the share of it that was reached."""
    reward_names = ("accuracy/return",)
    default_max_turns = 100

    def set_up(self) -> None:
        self._live: OrderedDict[GymnasiumTextState, gymnasium.Env[Any, Any]] = OrderedDict()
        self._idle: dict[str, list[gymnasium.Env[Any, Any]]] = {}

    # ---- methods that a derived class may override ----------------------------------------------------------------

    def render_observation(self, observation: Any, env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> str:
        """Return the text that the agent reads.

        Args:
            observation: The environment's observation.
            env: The environment.
            info: Its `info`.

        Returns:
            The text; by default the observation itself.

        Raises:
            OptionError: If the observation is not a text and this method is not overridden.
        """
        if not isinstance(observation, str):
            raise OptionError(
                f"the observation {show_value(observation)} of {self.gymnasium_id} is not a text: write render_observation"
            )
        return observation

    def parse_action(self, text: str, env: gymnasium.Env[Any, Any]) -> Any:
        """Return the environment's action for a text.

        Args:
            text: The action of the agent.
            env: The environment.

        Returns:
            The action; None if the text is not an action. By default the text itself, if the action space contains it.
        """
        return text if env.action_space.contains(text) else None

    def list_actions(self, env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return the texts of all admissible actions.

        Args:
            env: The environment.
            info: Its `info`.

        Returns:
            The texts; None (the default) if they cannot be listed.
        """
        return None

    # ---- tasks --------------------------------------------------------------------------------------------------

    def load_pool(self, split: str) -> TaskPool:
        ids, places = lay_out_tasks(self.id, split, {name: self.sizes[name] for name in self.splits})
        names = list(self.categories)
        return TaskPool(
            env=self.id,
            split=split,
            ids=ids,
            categories=[names[place.number % len(names)] for place in places],
            split_of=lambda position: places[position].split,
            payload=lambda position: derive(self.options.seed, "gymnasium", *places[position]) % (1 << 31),
            source={
                "generator": self.gymnasium_id,
                "version": gymnasium.__version__,
                "seed": self.options.seed,
                "categories": {name: repr(sorted(options.items())) for name, options in self.categories.items()},
            },
        )

    def vocabulary(self) -> Iterable[str]:
        opened = [self.begin(task, 0)[1] for task in self.pool.subset(self.pool.ids[:20])]
        said = [self.role, self.action_help, _OVER, _NO_ACTION, *(view.observation for view in opened)]
        said += [action for view in opened for action in view.admissible or ()]
        return " ".join(said).split()

    # ---- the course of an episode -------------------------------------------------------------------------------

    def begin(self, task: Task, seed: int) -> tuple[GymnasiumTextState, View]:
        if task.category not in self.categories:
            raise DataError(f"{self.id} has no category {task.category!r}")
        env, started = self._start(task.category, int(task.payload))
        self._keep(started, env)
        return started, View(started.observation, started.admissible)

    def advance(self, state: GymnasiumTextState, action: str) -> tuple[GymnasiumTextState, View]:
        if state.over:
            return state, View(_OVER, done=True, valid=False, score=self._score(state), success=self._solved(state))
        env = self._live.pop(state, None)
        if env is None:  # the history is replayed
            env, _ = self._start(state.category, state.seed)
            for played in state.actions:
                env.step(self.parse_action(played, env))
        parsed = self.parse_action(action, env)
        if parsed is None:
            after = state._replace(turns=state.turns + 1)
            self._keep(after, env)
            score, solved = self._score(after), self._solved(after)
            rewards = {"accuracy/return": score}
            return after, View(_NO_ACTION, after.admissible, 0.0, score, solved, valid=False, rewards=rewards)
        observation, reward, terminated, truncated, info = env.step(parsed)
        after = GymnasiumTextState(
            state.category,
            state.seed,
            (*state.actions, action),
            state.total + float(reward),
            bool(terminated or truncated),
            self.render_observation(observation, env, info),
            None if terminated or truncated else self.list_actions(env, info),
            state.turns + 1,
        )
        if after.over:
            self._idle.setdefault(state.category, []).append(env)
        else:
            self._keep(after, env)
        score, solved = self._score(after), self._solved(after)
        rewards = {"accuracy/return": score}
        view = View(after.observation, after.admissible, float(reward), score, solved, after.over, True, rewards)
        return after, view

    def _score(self, state: GymnasiumTextState) -> float:
        return min(max(state.total / self.success_return, 0.0), 1.0)

    def _solved(self, state: GymnasiumTextState) -> bool:
        """True if the episode is at its end, which may be the turn limit, and its rewards are enough."""
        return (state.over or state.turns >= self.max_turns) and state.total >= self.success_return

    def _start(self, category: str, seed: int) -> tuple[gymnasium.Env[Any, Any], GymnasiumTextState]:
        idle = self._idle.get(category)
        env = idle.pop() if idle else gymnasium.make(self.gymnasium_id, **self.categories[category])
        observation, info = env.reset(seed=seed)
        shown = self.render_observation(observation, env, info)
        return env, GymnasiumTextState(category, seed, observation=shown, admissible=self.list_actions(env, info))

    def _keep(self, state: GymnasiumTextState, env: gymnasium.Env[Any, Any]) -> None:
        if (other := self._live.pop(state, None)) is not None:  # it belongs to another episode with the same history
            self._idle.setdefault(state.category, []).append(other)
        self._live[state] = env
        if len(self._live) > MAX_LIVE:
            self._live.popitem(last=False)[1].close()

    def close(self) -> None:
        for env in [*self._live.values(), *(each for idle in self._idle.values() for each in idle)]:
            env.close()
        self._live.clear()
        self._idle.clear()
