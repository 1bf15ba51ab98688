"""The base class of every environment.

A `TextEnv` has two interfaces. For gymnasium it is an ordinary environment with text observations and actions. For code that
plays thousands of episodes, episodes are values: `reset_many` and `step_many` take and return `Episode`s, each with its own
task, seed and state, without gymnasium's cost per step. Both call the two methods that the author of an environment writes,
`begin` and `advance`. `advance` never changes the state it is given, so a snapshot, undo or replay only needs to keep a
value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from pydantic import Field

from fedagentgym.base.encoding import shorten_digest
from fedagentgym.base.errors import DataError, OptionError, join_names, show_value, unknown_name_error
from fedagentgym.base.progress import get_console
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import stream
from fedagentgym.envs.options import keep_plain_options, resolve_task_options
from fedagentgym.envs.pool import PoolOrigin, TaskPool, find_or_load_pool, select_pool_options
from fedagentgym.envs.registry import ENVIRONMENTS
from fedagentgym.envs.spaces import TextSpace
from fedagentgym.envs.task import Task, TaskSet
from fedagentgym.envs.variants import Variant, load_variant
from fedagentgym.envs.view import Step, View, render_choices, render_episode, render_heading, render_step

SUCCESS_REWARD = 10.0
REWARD_MODES = ("score", "success10")
_new = tuple.__new__  # a named tuple's own constructor costs three times as much, and lockstep play makes one per step


class Episode(NamedTuple):
    """One episode at one moment, with everything needed to continue it, in any process."""

    task: Task
    seed: int
    turn: int
    state: Any
    view: View
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


class Expert(Protocol):
    """Plays one episode through public actions. A new one is made for each episode, so it may remember what it saw. It looks
    at the episode at every turn and must cope with actions other than its own having been executed."""

    def act(self, episode: Episode) -> str: ...


class Handicap(Settings):
    """What keeps an expert from solving everything, so that hardness labels are not one-sided."""

    error: float = Field(ge=0, le=1, description="probability of a random admissible action instead of the expert's")
    turns: int = Field(ge=1, description="turns after which an attempt has failed")


class _Moment(NamedTuple):
    """The attributes of an environment that change after it was made."""

    episode: Episode | None
    random: np.random.Generator | None
    seed: int | None
    spec: EnvSpec | None
    steps: Sequence[Step]


class TextEnv(gymnasium.Env[str, str]):
    """Base class. An environment sets the class attributes and writes `load_pool`, `begin` and `advance`.

    `expert` and `vocabulary` may be written too: warm starts, hardness labels and the agent `expert` need the first; the second
    saves a small agent from spelling words that random play does not meet.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 4}  # noqa: RUF012 - gymnasium declares it as an instance variable

    id: ClassVar[str]
    takes: ClassVar[Literal["command", "reply"]] = "command"
    role: ClassVar[str]
    action_help: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = ("train", "val", "test", "warmup")
    evaluation_splits: ClassVar[tuple[str, ...]] = ("val", "test")
    split_aliases: ClassVar[Mapping[str, str]] = {}
    default_max_turns: ClassVar[int] = 30
    reward_names: ClassVar[tuple[str, ...]] = ()
    """The components that `View.rewards` may contain, for methods with several objectives."""
    variants: ClassVar[tuple[type[Variant], ...]] = ()
    """How the environments of clients can differ; `federate(variant=...)` takes one of these."""
    play_options: ClassVar[tuple[str, ...]] = ("max_turns", "reward", "render_mode")
    """Options of this class that change no task, such as how observations are shown; beside a client split only these can be
    given. A subclass lists its own; those of its base classes are added."""
    local_options: ClassVar[tuple[str, ...]] = ()
    """Options that are paths on this machine: never stored, since the pool's digest identifies the data."""
    handicap: ClassVar[Handicap] = Handicap(error=0.4, turns=20)
    """With this handicap the expert solves a third to a half of the default pool; `fedagentgym label` uses it."""
    published_action_tail: ClassVar[int] = 30
    """How many final characters of a reply without tags the published agent code takes as the action."""

    _spec: EnvSpec | None = None
    _steps: Sequence[Step] = ()
    """The history that `render` shows; kept only in a render mode."""
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    shares_pools: ClassVar[bool] = False
    """Whether `load_pool` depends only on its split and the options of the environment: then all environments of a process
    that were made with the same options share one pool."""

    @classmethod
    def count_turns(cls, options: Mapping[str, Any]) -> int:
        """The maximum length of an episode of an environment with these options, without opening it."""
        return int(options.get("max_turns") or cls.default_max_turns)

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        kept = {name: _copy_container(value) for name, value in options.items()}
        made._made_with = (arguments, kept)
        return made

    def __init__(
        self,
        *,
        split: str = "train",
        tasks: Sequence[str] | TaskSet | None = None,
        pool: TaskPool | None = None,
        variant: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        reward: str = "score",
        render_mode: str | None = None,
    ) -> None:
        self._check_class_attributes()
        if reward not in REWARD_MODES:
            raise unknown_name_error("reward", reward, REWARD_MODES)
        if max_turns is not None and max_turns < 1:
            raise OptionError(f"max_turns is at least 1, got {max_turns}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise unknown_name_error("render_mode", render_mode, self.metadata["render_modes"])
        self.variant = load_variant(self.id, self.variants, variant) if variant is not None else None
        self.max_turns = max_turns if max_turns is not None else self.default_max_turns
        self._pays_score = reward == "score"
        self.render_mode = render_mode
        self.observation_space = TextSpace()
        self.action_space = TextSpace()
        self._whole_pool = pool if pool is not None else self._load(self.canonical_split(split))
        ids = self._check_pool(tasks).ids if isinstance(tasks, TaskSet) else tasks
        self.pool = self._whole_pool if ids is None else self._whole_pool.subset(ids)
        if not len(self.pool):
            raise DataError(f"{self.id}: there are no tasks to play (split {split!r})")
        self._episode: Episode | None = None

    def _check_pool(self, tasks: TaskSet) -> TaskSet:
        """Raise unless this environment's pool is the one that the set names its tasks from."""
        if tasks.env != self.id:
            raise OptionError(f"{self.id}: the tasks are those of {tasks.env}")
        if tasks.pool != self._whole_pool.digest:
            local = "".join(f" or {name}=" for name in self.local_options)
            raise DataError(
                f"{self.id}: the tasks were named for the pool {shorten_digest(tasks.pool)} (split {tasks.split!r}, options "
                f"{dict(tasks.options)}), this environment has {shorten_digest(self._whole_pool.digest)}: give no other "
                f"options, pool={local} than those that the tasks were chosen with"
            )
        return tasks

    def _check_class_attributes(self) -> None:
        for name in ("id", "role", "action_help"):
            if not isinstance(getattr(self, name, None), str):
                raise OptionError(f"{type(self).__name__} needs a class attribute {name!r}, a text")

    # ---- what an environment defines ----------------------------------------------------------------------------

    def load_pool(self, split: str) -> TaskPool:
        """The tasks of a canonical split, or of `all` in native order, under this environment's options."""
        raise self._missing("load_pool(split)")

    def begin(self, task: Task, seed: int) -> tuple[Any, View]:
        """State and view at the start of an episode."""
        raise self._missing("begin(task, seed)")

    def advance(self, state: Any, action: str) -> tuple[Any, View]:
        """State and view after an action. Any string is accepted, and the given state is not changed."""
        raise self._missing("advance(state, action)")

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not define {method}, which every environment needs")

    def get_verifier_version(self) -> str | None:
        """Name and version of the rules by which replies are graded; None if the episode itself decides the reward."""
        return None

    def vocabulary(self) -> Iterable[str]:
        """The words in this environment's observations and actions, for agents with a small vocabulary. If it returns none,
        `fedagentgym.envs.scripted.list_words` finds them by playing at random."""
        return ()

    def expert(self) -> Expert:
        """A scripted player for one episode."""
        raise OptionError(
            f"{self.id} has no expert, which the agent 'expert', warm starts and hardness labels need: "
            f"{type(self).__name__} does not define the method expert()"
        )

    @property
    def has_expert(self) -> bool:
        """Whether `expert` returns a player."""
        return type(self).expert is not TextEnv.expert

    def goal(self, task: Task) -> str:
        """The task in one line, for agents that repeat it in every prompt; empty if the observations contain it."""
        return ""

    def present(self, view: View) -> tuple[str, tuple[str, ...]]:
        """What a person is shown: the observation, and a line for each admissible action. Override it if observations are
        formatted for programs."""
        return view.observation, view.admissible or ()

    def with_belief(self, task: Task, reply: str) -> Task | None:
        """The task whose gold is the answer of this reply; None if the reply gives no answer, or if answers of this
        environment cannot be compared with each other."""
        return None

    # ---- gymnasium ----------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode: of the task named in `options={"task": id}`, else of one drawn with the seed."""
        _check_seed(seed)
        identifier = _read_task_option(options)
        super().reset(seed=None if seed is None else int(seed))
        episode_seed = int(seed) if seed is not None else int(self.np_random.integers(1 << 62))
        if identifier is None:
            task = self.pool[stream(episode_seed, "task").integers(len(self.pool))]
        else:
            task = self.pool[identifier]
        self._episode = self._begin(task, episode_seed)
        self._show_step(None)
        return self._episode.view.observation, self._make_info(self._episode)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action. Any text is accepted; an action that is not recognised is reported as `valid: False`."""
        if not isinstance(action, str):
            raise OptionError(f"an action is a string, got {type(action).__name__}")
        self._episode = episode = self._advance(self.episode, action)
        self._show_step(action)
        return episode.view.observation, episode.reward, episode.terminated, episode.truncated, self._make_info(episode)

    def render(self) -> str | None:
        """With `ansi`, the goal, the history since the reset, and the choices, as one text. With `human`, this is printed
        during the episode, and `render` does nothing."""
        if self.render_mode != "ansi":
            return None
        task = self.episode.task
        return render_episode(task, self.goal(task), self._steps)

    def _show_step(self, action: str | None) -> None:
        """Remember a step for `render`, or print it; without a render mode nothing is kept."""
        if self.render_mode is None:
            return
        episode = self.episode
        step = Step(action, episode.view, episode.over)
        self._steps = [step] if action is None else [*self._steps, step]
        if self.render_mode == "human":
            heading = [render_heading(episode.task, self.goal(episode.task))] if action is None else []
            get_console().print("\n".join([*heading, render_step(step), render_choices(step)]))

    @property
    def spec(self) -> EnvSpec | None:
        """The gymnasium spec that this environment was made from, with the actual number of turns of an episode."""
        return self._spec

    @spec.setter
    def spec(self, made_from: EnvSpec | None) -> None:
        self._spec = None if made_from is None else replace(made_from, max_episode_steps=self.max_turns)

    # ---- episodes as values -------------------------------------------------------------------------------------

    @property
    def episode(self) -> Episode:
        """The current episode."""
        if self._episode is None:
            raise OptionError(f"{self.id}: call reset() before the first step")
        return self._episode

    def snapshot(self) -> Episode:
        """The current episode: a value that can be kept, pickled, and restored in another process."""
        return self.episode

    def restore(self, snapshot: Episode) -> None:
        """Continue from a snapshot of an environment with the same options."""
        if not isinstance(snapshot, Episode) or snapshot.task.env != self.id:
            raise OptionError(f"{self.id}: not a snapshot of this environment")
        self._episode = snapshot
        self._show_step(None)

    def reset_many(self, tasks: Sequence[str | Task], seeds: Sequence[int]) -> list[Episode]:
        """Start one episode per task and seed, independent of each other and of `reset`."""
        if len(tasks) != len(seeds):
            raise OptionError(f"reset_many was given {len(tasks)} tasks and {len(seeds)} seeds")
        begin = self._begin
        return [
            begin(task if isinstance(task, Task) else self.pool[task], seed)
            for task, seed in zip(tasks, seeds, strict=True)
        ]

    def step_many(self, episodes: Sequence[Episode], actions: Sequence[str]) -> list[Episode]:
        """Play one action in each episode; the given episodes are not changed."""
        if len(episodes) != len(actions):
            raise OptionError(f"step_many was given {len(episodes)} episodes and {len(actions)} actions")
        advance = self._advance
        return [advance(episode, action) for episode, action in zip(episodes, actions, strict=True)]

    def _begin(self, task: Task, seed: int) -> Episode:
        state, view = self.begin(task, seed)
        if self.variant is not None:
            view = self.variant.change_view(view)
        return Episode(task, seed, 0, state, view if task.graded else _hide_grade(view))

    def _advance(self, episode: Episode, action: str) -> Episode:
        task, seed, turn, state, *_ = episode
        if self.variant is None:
            state, view = self.advance(state, action)
        else:
            state, view = self.advance(state, self.variant.change_action(action))
            view = self.variant.change_view(view)
        if not task.graded:
            view = _hide_grade(view)
        done = view.done
        turn += 1
        reward = view.reward if self._pays_score else SUCCESS_REWARD * (done and view.success)
        return _new(Episode, (task, seed, turn, state, view, reward, done, turn >= self.max_turns and not done))

    # ---- pickles and copies -------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """An environment is pickled and copied as its options and its current episode; its pool, tables and processes are
        found or made again. An environment that keeps more than episodes overrides this."""
        moment = _Moment(self._episode, deepcopy(self._np_random), self._np_random_seed, self.spec, self._steps)
        return _make_again, (type(self), *self._made_with, moment)

    @property
    def world_options(self) -> dict[str, Any]:
        """The options that identify this environment, as given: without split, tasks and variant."""
        options = select_pool_options(self._made_with[1])
        options.pop("variant", None)
        return options

    # ---- shared by all environments -----------------------------------------------------------------------------

    @classmethod
    def canonical_split(cls, name: str) -> str:
        """The canonical name of a split; native names are accepted too."""
        canonical = cls.split_aliases.get(name, name)
        if canonical not in cls.splits and canonical != "all":
            raise unknown_name_error(f"split of {cls.id}", name, [*cls.splits, "all", *cls.split_aliases])
        return canonical

    @classmethod
    def portable_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that have the same meaning on every machine, for files."""
        return {name: value for name, value in options.items() if name not in cls.local_options}

    @classmethod
    def names_local_data(cls, options: Mapping[str, Any]) -> bool:
        """Whether these options are paths to data on this machine, which may change while a process runs."""
        return any(options.get(name) is not None for name in cls.local_options)

    @cached_property
    def task_set(self) -> TaskSet:
        """The value that names this environment's tasks, for records and for other environments (`tasks=`)."""
        whole, options = self._whole_pool, keep_plain_options(resolve_task_options(type(self), self._made_with[1]))
        return TaskSet(self.id, options, whole.split, whole.digest, self.pool.ids)

    def explain_empty(self, split: str) -> str:
        """What an error message adds about an empty split; begins with a colon."""
        return ""

    def split_sizes(self) -> dict[str, int]:
        """The number of tasks of each split under this environment's options."""
        return {split: len(self.load_pool(split)) for split in self.splits}

    def open_pool(self, split: str) -> TaskPool:
        """The tasks of a canonical split, possibly none; if the data cannot change, one pool for all environments alike."""
        arguments, options = self._made_with
        origin = PoolOrigin(type(self), select_pool_options(options), split)
        if self.shares_pools and not arguments and not self.names_local_data(options):
            pool = find_or_load_pool(origin, lambda: self.load_pool(split))
        else:
            pool = self.load_pool(split)
        if pool.origin is None and not arguments:
            pool.origin = origin
        return pool

    def _load(self, split: str) -> TaskPool:
        pool = self.open_pool(split)
        if len(pool):
            return pool
        raise DataError(
            f"{self.id}: the split {split!r} is empty; sizes are {self.split_sizes()}{self.explain_empty(split)}"
        )

    def _make_info(self, episode: Episode) -> dict[str, Any]:
        view = episode.view
        return {
            **view.extra,
            "task": episode.task.id,
            "category": episode.task.category,
            "turn": episode.turn,
            "admissible": None if view.admissible is None else list(view.admissible),
            "valid": bool(view.valid),
            "score": float(view.score),
            "success": bool(view.success),
            "rewards": {name: float(view.rewards.get(name, 0.0)) for name in self.reward_names},
        }


def _make_again(cls: type[TextEnv], arguments: tuple[Any, ...], options: dict[str, Any], moment: _Moment) -> TextEnv:
    made = cls(*arguments, **options)
    made._episode, made._np_random, made._np_random_seed, made.spec, made._steps = moment
    return made


def _copy_container(value: Any) -> Any:
    """A copy of a list or mapping of options, since the caller may change the original later."""
    return copy(value) if isinstance(value, list | dict) else value


def _check_seed(seed: Any) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
        raise OptionError(f"the seed of an episode is a whole number from 0 on, got {show_value(seed)}")


def _read_task_option(options: Any) -> str | None:
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise OptionError(f"reset options are a mapping such as {{'task': id}}, got {show_value(options)}")
    if not options:
        return None
    if surplus := [name for name in options if name != "task"]:
        raise OptionError(f"unknown reset option {show_value(surplus[0])}: the one known is 'task'")
    if not isinstance(options["task"], str):
        raise OptionError(f"the reset option 'task' is a task id, got {show_value(options['task'])}")
    return str(options["task"])


def _hide_grade(view: View) -> View:
    """The view for a player that does not know the gold: accuracies and score are 0, other rewards are unchanged."""
    rewards = {name: 0.0 if name.startswith("accuracy") else value for name, value in view.rewards.items()}
    return view._replace(reward=0.0, score=0.0, success=False, rewards=rewards)


def check_choice(kind: str, value: str, allowed: Sequence[str]) -> str:
    """`value` if it is one of the allowed ones; for options that take a word."""
    if value not in allowed:
        raise OptionError(f"{kind} is one of {join_names(allowed)}, got {value!r}")
    return value


def open_env(env_id: str, **options: Any) -> TextEnv:
    """Open an environment without gymnasium's wrappers, for code that plays thousands of episodes.

    Args:
        env_id: A registered id, such as `fedagentgym/Guess-v0`.
        **options: The environment's options, and `client_split=` and `client=`, as for `gymnasium.make`.

    Returns:
        The environment itself, with its batch methods (`reset_many`, `step_many`).

    Raises:
        UnknownNameError: No environment has this id.
        OptionError: An option is unknown or has a value that cannot be used.

    Example:
        >>> open_env("fedagentgym/Guess-v0", split="val").split_sizes()["val"]
        60
    """
    ENVIRONMENTS.get_target(env_id)  # an unknown id raises an error that lists the known ones
    made = gymnasium.make(env_id, disable_env_checker=True, **options).unwrapped
    if not isinstance(made, TextEnv):
        raise OptionError(f"{env_id} is no text environment: {type(made).__name__} is not derived from TextEnv")
    return made
