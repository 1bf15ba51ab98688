"""The base class of every environment: gymnasium's interface, and batch methods whose episodes are immutable values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, get_args

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from typing_extensions import TypeVar

from fedagentgym.base.errors import OptionError, UnknownNameError, join_names, show_value, unknown_name_error
from fedagentgym.base.progress import get_console
from fedagentgym.base.streams import stream
from fedagentgym.envs.options import EnvOptions
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Expert
from fedagentgym.envs.spaces import TextSpace, check_seed, read_task_option
from fedagentgym.envs.tasks import UNSEEN, Task, TaskSet
from fedagentgym.envs.variants import ClientVariant, Variant
from fedagentgym.envs.view import (
    SLOT,
    Episode,
    Step,
    View,
    check_view,
    explain_moment,
    hide_grade,
    make_info,
    render_episode,
)

SUCCESS_REWARD = 10.0
_GRADES = ("reward", "score", "success", "done", "rewards")
"""The fields of a view that no client's variant may change."""
_new = tuple.__new__  # the constructor of a named tuple takes three times as long, and every step makes an Episode


OptionsType = TypeVar("OptionsType", bound=EnvOptions, default=Any)


class TextEnv(gymnasium.Env[str, str], Generic[OptionsType]):
    """Base class of environments: derive a class, set the class attributes, and define `load_pool`, `begin` and `advance`.

    Declare options in a class and name it in brackets, `TextEnv[MyOptions]`; `self.options` holds the checked values. Five more
    methods are optional: `expert` for warm starts and hardness labels, `vocabulary` for small models, `goal` if agents repeat the
    task in every prompt, `find_member` if the tasks belong to several environments, and `set_up` for tables and processes that
    are made once. Make the environment with `gymnasium.make`, `open_env` or a client of a split, and check it with
    `fedagentgym.testing.check_env`.

    Attributes:
        id: Class attribute, the environment's id, such as `me/Maze-v0`.
        role: Class attribute, the beginning of every prompt, which says who the agent is and what it has to do.
        action_help: Which actions there are and how they are written.
        takes: Class attribute, `command` or, if the environment grades whole replies, `reply`.
        pool: The tasks that are played.
        task_set: The value that identifies these tasks in records and in other environments.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 4}  # noqa: RUF012 - gymnasium declares it as an instance variable
    Options: ClassVar[type[EnvOptions]] = EnvOptions
    id: ClassVar[str]
    takes: ClassVar[Literal["command", "reply"]] = "command"
    role: ClassVar[str]
    action_help: str
    splits: ClassVar[tuple[str, ...]] = ("train", "val", "test", "warmup")
    evaluation_splits: ClassVar[tuple[str, ...]] = ("val", "test")
    split_aliases: ClassVar[Mapping[str, str]] = {}
    default_max_turns: ClassVar[int] = 30
    reward_names: ClassVar[tuple[str, ...]] = ()
    """The components that `View.rewards` may contain."""
    payload_type: ClassVar[Any] = Any
    """The type of the payloads, needed to read tasks from files; payloads that are JSON values need none."""
    variants: ClassVar[tuple[type[Variant], ...]] = ()
    """The ways in which the environments of clients can differ; `federate(variant=...)` names one of them."""
    shares_pools: ClassVar[bool] = False
    """True if all environments of a process that were made with the same options may share one pool."""

    pool: TaskPool
    whole_pool: TaskPool  # all tasks of the split; `pool` is this pool or a part of it
    remake: partial[TextEnv[Any]]  # the call that made this environment
    _spec: EnvSpec | None = None
    _steps: Sequence[Step] = ()  # the steps that `render` shows; kept only in a render mode

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        named = [one for base in vars(cls).get("__orig_bases__", ()) for one in get_args(base)]  # TextEnv[MyOptions]
        cls.Options = next((one for one in named if isinstance(one, type) and issubclass(one, EnvOptions)), cls.Options)

    def __init__(
        self,
        options: OptionsType | None = None,
        *,
        variant: ClientVariant | None = None,
        pool: TaskPool | None = None,
        **given: Any,
    ) -> None:
        """Called only by `build`, with checked options; a given `pool` replaces the environment's own."""
        if options is None or given:
            raise OptionError(
                f"an environment is made by open_env({type(self).__name__}, ...) or gymnasium.make, not called"
            )
        self.options, self.variant, self.given_pool = options, variant, pool
        self.max_turns = options.count_turns(self.default_max_turns)
        self.render_mode = options.render_mode
        self._pays_score, self._in_order = options.reward == "score", options.order == "once"
        self.observation_space, self.action_space = TextSpace(), TextSpace()
        self._episode: Episode | None = None
        self.set_up()

    def set_up(self) -> None:
        """Override this to make tables, indexes or processes before tasks are loaded; by default, nothing is made."""

    def load_pool(self, split: str) -> TaskPool:
        """Load the tasks of a split, when the environment is made. Every environment must define this method.

        Args:
            split: The canonical name of a split, or `all` for the tasks of every split in the order of the data; `all` may leave
                out the tasks of `unseen`.

        Returns:
            The pool for this environment's options.
        """
        raise OptionError(f"{type(self).__name__} does not define load_pool(split), which every environment needs")

    def begin(self, task: Task, seed: int) -> tuple[Any, View]:
        """Start an episode. Every environment must define this method.

        Args:
            task: The task; `task.payload` is the payload from `load_pool`.
            seed: Seed of all random choices of the episode.

        Returns:
            The first state, which can be any value that is never changed, and the first view.
        """
        raise OptionError(f"{type(self).__name__} does not define begin(task, seed), which every environment needs")

    def advance(self, state: Any, action: str) -> tuple[Any, View]:
        """Play one action. Every environment must define this method.

        Args:
            state: The state before the action; it must not be changed.
            action: Any text. If it is not understood, return a view with `valid=False`.

        Returns:
            The state and the view after the action.
        """
        raise OptionError(
            f"{type(self).__name__} does not define advance(state, action), which every environment needs"
        )

    def vocabulary(self) -> Iterable[str]:
        """Return the words of observations and actions, for models with a small vocabulary.

        Returns:
            The words; empty by default, and the words are then collected by random play.
        """
        return ()

    def expert(self) -> Expert:
        """Return a scripted player for one episode; override this if the environment has one.

        Returns:
            An object with the method `act(episode)`, which returns an action. A new one is made for each episode.

        Raises:
            OptionError: If the environment has no expert, as by default.
        """
        needed = "which the agent 'expert', warm starts and hardness labels need"
        raise OptionError(
            f"{self.id} has no expert, {needed}: {type(self).__name__} does not define the method expert()"
        )

    @property
    def has_expert(self) -> bool:
        """True if `expert` returns a player."""
        return type(self).expert is not TextEnv.expert

    def goal(self, task: Task) -> str:
        """Return the task in one line, for agents that repeat it in every prompt.

        Args:
            task: The task.

        Returns:
            The line, or an empty text, the default, if observations contain the task.
        """
        return ""

    def find_member(self, task: Task) -> TextEnv:
        """Return the environment whose prompts are used for a task; override this in a mixture of environments.

        Args:
            task: The task.

        Returns:
            The environment with the `role` and the `action_help` of the task's prompt, by default this one.
        """
        return self

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of the episode. By default it is drawn from gymnasium's generator, which the last given seed initialised.
            options: `{"task": id}` plays this task. Otherwise a task is drawn; with `order="once"` it is the task after the last
                one, or with a seed the task at that index of the pool.

        Returns:
            The observation, and `info`: `task`, `category`, `turn`, `prompt` (the next message to a chat model: at the start the
            whole prompt, later the observation and the actions), `admissible` (the possible actions if they are listed; free text
            replaces a slot, as in `search[<query>]`), `valid` (whether the last action was understood), `score`, `success`, and
            `rewards` by component.

        Raises:
            OptionError: If the seed or an option is impossible.
            UnknownNameError: If the pool has no such task.
        """
        seed, identifier = check_seed(seed), read_task_option(options)
        super().reset(seed=seed)
        episode_seed = seed if seed is not None else int(self.np_random.integers(1 << 62))
        if identifier is not None:
            task = self.pool[identifier]
        elif self._in_order:
            last = None if self._episode is None else self._episode.task.id
            after = 0 if last is None or last not in self.pool else self.pool.find_position(last) + 1
            task = self.pool[(after if seed is None else seed) % len(self.pool)]
        else:
            task = self.pool[stream(episode_seed, "task").integers(len(self.pool))]
        (self._episode,) = self.reset_many([task], [episode_seed])
        self._show_step(None)
        return self._episode.view.observation, make_info(self, None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action.

        Args:
            action: Any text. One that is not understood takes a turn and is reported as `valid: False`.

        Returns:
            The observation, the reward, whether the episode has ended by itself (`terminated`), whether its turns are used up
            (`truncated`), and `info` as for `reset`.

        Raises:
            OptionError: If the action is not a text, or the episode is over, or `reset` was not called before.
        """
        if not isinstance(action, str):
            raise OptionError(f"an action must be a string, got {type(action).__name__}")
        before = self.episode
        if before.over:
            raise OptionError(f"{self.id}: the episode is over: call reset() before the next step")
        (episode,) = self.step_many([before], [action])
        self._episode = episode
        self._show_step(action)
        return episode.view.observation, episode.reward, episode.terminated, episode.truncated, make_info(self, before)

    def render(self) -> str | None:
        """Return the episode as text.

        Returns:
            In the render mode `ansi` the goal, all steps since the reset, and the choices; otherwise None. In the mode `human`
            the episode is printed as it is played.
        """
        if self.render_mode != "ansi":
            return None
        task = self.episode.task
        return render_episode(task, self.goal(task), self._steps)

    def _show_step(self, action: str | None) -> None:
        if self.render_mode is not None:
            episode = self.episode
            step = Step(action, episode.view, episode.over)
            self._steps = [step] if action is None else [*self._steps, step]
            if self.render_mode == "human":
                get_console().print(render_episode(episode.task, self.goal(episode.task), [step]))

    @property
    def spec(self) -> EnvSpec | None:
        """The gymnasium spec that this environment was made from; its `max_episode_steps` is the limit of turns here."""
        return self._spec

    @spec.setter
    def spec(self, made_from: EnvSpec | None) -> None:
        if made_from is None:
            self._spec = None
            return
        kwargs = {name: _to_plain(value) for name, value in made_from.kwargs.items()}
        self._spec = replace(made_from, max_episode_steps=self.max_turns, kwargs=kwargs)

    @property
    def episode(self) -> Episode:
        """The current episode: a value that can be kept, pickled, and restored in another process."""
        if self._episode is None:
            raise OptionError(f"{self.id}: call reset() before the first step")
        return self._episode

    def snapshot(self) -> Episode:
        """Return the current episode, which `restore` takes."""
        return self.episode

    def restore(self, snapshot: Episode) -> None:
        """Continue from a snapshot.

        Args:
            snapshot: The result of `snapshot`, in this or another process, of an environment with the same options.

        Raises:
            OptionError: If it is not an episode of this environment.
        """
        if not isinstance(snapshot, Episode) or snapshot.task.env != self.id:
            raise OptionError(f"{self.id}: not a snapshot of this environment")
        self._episode = snapshot
        self._show_step(None)

    def reset_many(self, tasks: Sequence[str | Task], seeds: Sequence[int]) -> list[Episode]:
        """Start many episodes, independent of each other and of `reset`.

        Args:
            tasks: The task of each episode, or its id.
            seeds: The seed of each episode.

        Returns:
            The episodes at their start.

        Raises:
            OptionError: If there are not as many seeds as tasks.
            UnknownNameError: If the pool has no such task.
        """
        if len(tasks) != len(seeds):
            raise OptionError(f"reset_many was given {len(tasks)} tasks and {len(seeds)} seeds")
        episodes = []
        for named, seed in zip(tasks, seeds, strict=True):
            task = named if isinstance(named, Task) else self.pool[named]
            state, view = self._see(task, "begin", self.begin(task, seed))
            episodes.append(Episode(task, seed, 0, state, view))
        return episodes

    def step_many(self, episodes: Sequence[Episode], actions: Sequence[str]) -> list[Episode]:
        """Play one action in each of many episodes.

        Args:
            episodes: The episodes; they are values and do not change.
            actions: The action in each episode.

        Returns:
            The episodes after their actions.

        Raises:
            OptionError: If there are not as many actions as episodes.
        """
        if len(episodes) != len(actions):
            raise OptionError(f"step_many was given {len(episodes)} episodes and {len(actions)} actions")
        after = []
        for (task, seed, turn, state, shown, *_), action in zip(episodes, actions, strict=True):
            if "<" in action and action in (shown.admissible or ()) and SLOT.search(action):
                action = ""  # an action whose slot was not filled is not understood
            action = action if self.variant is None else self._change_action(action)
            state, view = self._see(task, "advance", self.advance(state, action))
            done, turn = view.done, turn + 1
            cut = turn >= self.max_turns and not done
            reward = view.reward if self._pays_score else SUCCESS_REWARD * ((done or cut) and view.success)
            after.append(_new(Episode, (task, seed, turn, state, view, reward, done, cut)))
        return after

    def _see(self, task: Task, method: str, found: tuple[Any, View]) -> tuple[Any, View]:
        """The checked state and view; the view as this client sees it, without grades if the task is not graded."""
        if type(found) is not tuple or len(found) != 2 or not isinstance(found[1], View):
            raise OptionError(explain_moment(f"{type(self).__name__}.{method}", found))
        state, view = found
        check_view(type(self), method, view)
        if self.variant is not None:
            graded, view = view, self.variant.change_view(view)
            if not isinstance(view, View):
                raise OptionError(
                    f"{type(self.variant).__name__}.change_view returned {show_value(view)}: it returns a View,"
                    " view._replace(observation=...)"
                )
            for name in _GRADES:
                if (was := getattr(graded, name)) != (now := getattr(view, name)):
                    raise OptionError(
                        f"{type(self.variant).__name__}.change_view changes the {name} of a view from {was} to {now}: it may"
                        " change what the client sees, but no grade"
                    )
        return state, view if task.graded else hide_grade(view)

    def _change_action(self, action: str) -> str:
        """The action for the unchanged environment."""
        changed = action if self.variant is None else self.variant.change_action(action)
        if not isinstance(changed, str):
            raise OptionError(
                f"{type(self.variant).__name__}.change_action returned {show_value(changed)}: it returns a text"
            )
        return changed

    def __reduce__(self) -> tuple[Any, ...]:
        """An environment is pickled and copied as its options and its current episode; everything else is made again."""
        kept = ("_episode", "_np_random", "_np_random_seed", "_spec", "_steps")
        return self.remake, (), {name: deepcopy(getattr(self, name)) for name in kept}

    @classmethod
    def canonical_split(cls, name: str) -> str:
        """Return the canonical name of a split.

        Args:
            name: A canonical name, such as `val`, or a native one, such as `valid_seen`.

        Returns:
            The canonical name.

        Raises:
            UnknownNameError: If there is no such split.
        """
        canonical = cls.split_aliases.get(name, name)
        if canonical == UNSEEN and UNSEEN not in cls.splits:
            known = join_names([*cls.splits, "all", *cls.split_aliases])
            raise UnknownNameError(
                f"{cls.id} has no split {UNSEEN!r}, for tasks of templates that no other split has; there are {known}"
            )
        if canonical not in cls.splits and canonical != "all":
            raise unknown_name_error(f"split of {cls.id}", name, [*cls.splits, "all", *cls.split_aliases])
        return canonical

    @cached_property
    def task_set(self) -> TaskSet:
        """The value that identifies this environment's tasks in records and in other environments (`tasks=`)."""
        return TaskSet(self.id, self.options.deciding, self.whole_pool.split, self.whole_pool.digest, self.pool.ids)

    def split_sizes(self) -> dict[str, int]:
        """The number of tasks of each split under this environment's options."""
        return {split: len(self.load_pool(split)) for split in self.splits}


def _to_plain(value: Any) -> Any:
    """An argument of `gymnasium.make` as `EnvSpec.to_json` can write it, if there is such a form."""
    if isinstance(value, Path):
        return str(value)
    return int(value) if isinstance(value, np.integer) else value
