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
from fedagentgym.envs.registry import find_env_id
from fedagentgym.envs.spaces import TextSpace
from fedagentgym.envs.task import Task, TaskSet, from_plain_payload
from fedagentgym.envs.variants import Variant, load_variant
from fedagentgym.envs.view import SLOT, Step, View, render_choices, render_episode, render_heading, render_step

SUCCESS_REWARD = 10.0
REWARD_MODES = ("score", "success10")
ORDERS = ("drawn", "once")
_new = tuple.__new__  # a named tuple's own constructor costs three times as much, and lockstep play makes one per step


class Episode(NamedTuple):
    """One episode at one moment: a value with everything that is needed to continue it, in any process.

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

    @property
    def over(self) -> bool:
        """True if no further action can be taken."""
        return self.terminated or self.truncated


class Expert(Protocol):
    """Plays one episode through public actions. A new one is made for each episode, so it may remember what it saw. It looks
    at the episode at every turn and must cope with actions other than its own having been executed."""

    def act(self, episode: Episode) -> str: ...


class Handicap(Settings):
    """A handicap that keeps an expert from solving everything, so that hardness labels are not one-sided."""

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
    """Base class of environments: derive a class, set the class attributes, and write `load_pool`, `begin` and `advance`.

    Write `expert` too if warm starts, hardness labels or the agent `expert` are to work, and `vocabulary` if small models
    are to be made for the environment. `fedagentgym.testing.check_env` checks the class.

    Args:
        split: The split whose tasks are played, by its canonical or its native name, or `all`.
        tasks: Ids of the tasks to play, or a `TaskSet`, which is compared with the environment's pool; by default all.
        pool: Tasks to play in place of those that `load_pool` gives.
        variant: A client's variant of the environment, as plain values.
        max_turns: Actions after which an episode is truncated; by default `default_max_turns`.
        reward: `score` pays what the environment says, `success10` pays 10 for a solved episode and nothing else.
        order: Which task a reset without a task plays: `drawn` draws one with replacement, `once` goes through the pool in its
            order, from the task that the seed numbers.
        render_mode: `ansi` (`render` returns a text), `human` (episodes are printed) or None.

    Attributes:
        id: Class attribute, the environment's id, such as `me/Maze-v0`.
        role: Class attribute, who the agent is and what it has to do: the beginning of every prompt.
        action_help: Which actions there are and how they are written.
        takes: Class attribute, `command` or, if the environment grades whole replies, `reply`.
        instructions: Who the agent is, which actions there are, and how a reply is written.
        pool: The tasks that are played.
        task_set: The value that names these tasks, for records and for other environments.

    Raises:
        UnknownNameError: If a split, reward mode, render mode or variant is unknown.
        OptionError: If another option is impossible.
        DataError: If there are no tasks to play, or they are not those that `tasks` names.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 4}  # noqa: RUF012 - gymnasium declares it as an instance variable

    id: ClassVar[str]
    takes: ClassVar[Literal["command", "reply"]] = "command"
    role: ClassVar[str]
    action_help: str
    splits: ClassVar[tuple[str, ...]] = ("train", "val", "test", "warmup")
    evaluation_splits: ClassVar[tuple[str, ...]] = ("val", "test")
    split_aliases: ClassVar[Mapping[str, str]] = {}
    default_max_turns: ClassVar[int] = 30
    runs_programs: bool = False
    """True if grading runs untrusted programs; records then say how they were confined."""
    reward_names: ClassVar[tuple[str, ...]] = ()
    """The components that `View.rewards` may contain, for methods with several objectives."""
    payload_type: ClassVar[Any] = Any
    """The type of the payloads, by which tasks are read from files; JSON values need none."""
    variants: ClassVar[tuple[type[Variant], ...]] = ()
    """The ways in which the environments of clients can differ; `federate(variant=...)` takes one of these."""
    play_options: ClassVar[tuple[str, ...]] = ("max_turns", "reward", "order", "render_mode")
    """Options of this class that change no task, such as how observations are shown; beside a client split only these can be
    given. A subclass lists its own; those of its base classes are added."""
    local_options: ClassVar[tuple[str, ...]] = ()
    """Options that are paths on this machine: never stored, since the pool's digest identifies the data."""
    owner_options: ClassVar[tuple[str, ...]] = ()
    """Options that only the user of a machine decides, such as which protections of the sandbox may be missing: never stored, and
    refused where others name them."""
    handicap: ClassVar[Handicap] = Handicap(error=0.4, turns=20)
    """With this handicap the expert solves a third to a half of the default pool; `fedagentgym label` uses it."""
    published_action_tail: ClassVar[int] = 30
    """The number of final characters of a reply without tags the published agent code takes as the action."""

    _spec: EnvSpec | None = None
    _steps: Sequence[Step] = ()
    """The history that `render` shows; kept only in a render mode."""
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    shares_pools: ClassVar[bool] = False
    """True if `load_pool` depends only on its split and the options of the environment: then all environments of a process
    that were made with the same options share one pool."""

    @classmethod
    def count_turns(cls, options: Mapping[str, Any]) -> int:
        """Return the maximum number of turns of an episode without opening the environment.

        Args:
            options: Options of the environment.

        Returns:
            `max_turns`, given or by default; override this if it depends on other options.
        """
        return int(options.get("max_turns") or cls.default_max_turns)

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        # lists and mappings are copied, since the caller may change the originals later
        kept = {name: copy(value) if isinstance(value, list | dict) else value for name, value in options.items()}
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
        order: str = "drawn",
        render_mode: str | None = None,
    ) -> None:
        for attribute in ("id", "role", "action_help"):
            if not isinstance(getattr(self, attribute, None), str):
                raise OptionError(f"{type(self).__name__} needs a class attribute {attribute!r}, a text")
        for name, value, known in (("reward", reward, REWARD_MODES), ("order", order, ORDERS)):
            if value not in known:
                raise unknown_name_error(name, value, known)
        if max_turns is not None and max_turns < 1:
            raise OptionError(f"max_turns is at least 1, got {max_turns}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise unknown_name_error("render_mode", render_mode, self.metadata["render_modes"])
        self.variant = load_variant(self.id, self.variants, variant) if variant is not None else None
        self.max_turns = max_turns if max_turns is not None else self.default_max_turns
        self._pays_score, self._in_order = reward == "score", order == "once"
        self.render_mode = render_mode
        self.observation_space = TextSpace()
        self.action_space = TextSpace()
        if pool is None:
            opened = self.canonical_split(split)
            pool = self.open_pool(opened)
            if not len(pool):
                sizes = f"sizes are {self.split_sizes()}{self.explain_empty(opened)}"
                raise DataError(f"{self.id}: the split {opened!r} is empty; {sizes}")
        self._whole_pool = pool
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

    # ---- what an environment defines ----------------------------------------------------------------------------

    def load_pool(self, split: str) -> TaskPool:
        """Load the tasks of a split; every environment writes this. It is called when the environment is made.

        Args:
            split: The canonical name of a split, or `all` for all tasks in native order.

        Returns:
            The pool under this environment's options.
        """
        raise self._missing("load_pool(split)")

    @classmethod
    def read_payload(cls, plain: Any) -> Any:
        """Return a payload from the plain values that a file of tasks holds.

        Args:
            plain: The values: mappings and lists in place of records and tuples.

        Returns:
            The payload, of the class's `payload_type`.

        Raises:
            DataError: If the values do not fit the type.
        """
        return from_plain_payload(plain, cls.payload_type)

    def begin(self, task: Task, seed: int) -> tuple[Any, View]:
        """Start an episode; every environment writes this.

        Args:
            task: The task; `task.payload` is what `load_pool` put there.
            seed: Seed of all random choices of the episode.

        Returns:
            The first state, any value that is never changed, and the first view.
        """
        raise self._missing("begin(task, seed)")

    def advance(self, state: Any, action: str) -> tuple[Any, View]:
        """Play one action; every environment writes this.

        Args:
            state: The state before the action; it must not be changed.
            action: Any text. One that is not understood gives a view with `valid=False`.

        Returns:
            The state and the view after the action.
        """
        raise self._missing("advance(state, action)")

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not define {method}, which every environment needs")

    def get_verifier_version(self) -> str | None:
        """Return name and version of the rules that grade replies; None if the episode itself decides the reward."""
        return None

    def vocabulary(self) -> Iterable[str]:
        """Return the words of this environment's observations and actions, for models with a small vocabulary.

        Returns:
            The words; by default none, and then they are collected by random play.
        """
        return ()

    def expert(self) -> Expert:
        """Return a scripted player for one episode; override this if the environment has one.

        Returns:
            An object with the method `act(episode)`, which returns an action. A new one is made for each episode.

        Raises:
            OptionError: If the environment has no expert, as by default.
        """
        raise OptionError(
            f"{self.id} has no expert, which the agent 'expert', warm starts and hardness labels need: "
            f"{type(self).__name__} does not define the method expert()"
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
            The line; empty, as by default, if the observations contain it.
        """
        return ""

    def present(self, view: View) -> tuple[str, tuple[str, ...]]:
        """Return what a person is shown; override this if observations are written for programs.

        Args:
            view: What the environment shows.

        Returns:
            The observation, and a line for each admissible action.
        """
        return view.observation, view.admissible or ()

    @cached_property
    def instructions(self) -> str:
        """The first message to a language model: its role, the actions that there are, and the form of a reply."""
        form = "" if self.takes == "reply" else "\n\nReply with one action and nothing else."
        return f"{self.role}\n\n{self.action_help}{form}"

    def get_instructions(self, task: Task) -> str:
        """Return the instructions for a task; override this if they differ from task to task.

        Args:
            task: The task.

        Returns:
            The text, by default `instructions`; `info["instructions"]` holds it.
        """
        return self.instructions

    def with_belief(self, task: Task, reply: str) -> Task | None:
        """Return the task with the answer of a reply as its gold, for methods that exchange answers.

        Args:
            task: The task.
            reply: An agent's reply.

        Returns:
            The task; None if the reply gives no answer, or if answers of this environment cannot be compared, as by default.
        """
        return None

    # ---- gymnasium ----------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode, as for every gymnasium environment.

        Args:
            seed: Seed of the episode. Without one it is drawn from the generator of the last reset that had one.
            options: `{"task": id}` plays this task. Otherwise one is drawn, with replacement. With `order="once"` it is the one
                after the last; a seed then begins at the task of that number.

        Returns:
            The observation, and `info`: `task`, `category`, `turn`, `instructions` (who the agent is, which actions there are
            and how a reply is written), `admissible` (the possible actions if they are listed; free text replaces a slot, as in
            `search[<query>]`), `valid` (whether the last action was understood), `score`, `success`, `rewards` by component.

        Raises:
            OptionError: If the seed or an option is impossible.
            UnknownNameError: If the pool has no such task.
        """
        _check_seed(seed)
        identifier = _read_task_option(options)
        super().reset(seed=None if seed is None else int(seed))
        episode_seed = int(seed) if seed is not None else int(self.np_random.integers(1 << 62))
        if identifier is not None:
            task = self.pool[identifier]
        elif self._in_order:
            task = self.pool[self._find_next(seed) % len(self.pool)]
        else:
            task = self.pool[stream(episode_seed, "task").integers(len(self.pool))]
        self._episode = self._begin(task, episode_seed)
        self._show_step(None)
        return self._episode.view.observation, self._make_info(self._episode)

    def _find_next(self, seed: int | None) -> int:
        """The place of the next task in the order of the pool."""
        if seed is not None:
            return int(seed)
        last = self._episode
        return 0 if last is None or last.task.id not in self.pool else self.pool.find_position(last.task.id) + 1

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action, as for every gymnasium environment.

        Args:
            action: Any text. One that is not understood takes a turn and is reported as `valid: False`.

        Returns:
            The observation, the reward, whether the episode has ended by itself (`terminated`), whether its turns are used up
            (`truncated`), and `info` as for `reset`.

        Raises:
            OptionError: If the action is no text, or `reset` was not called.
        """
        if not isinstance(action, str):
            raise OptionError(f"an action is a string, got {type(action).__name__}")
        self._episode = episode = self._advance(self.episode, action)
        self._show_step(action)
        return episode.view.observation, episode.reward, episode.terminated, episode.truncated, self._make_info(episode)

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
        """Continue from a snapshot.

        Args:
            snapshot: A value that `snapshot` returned, of an environment with the same options, in this or another process.

        Raises:
            OptionError: If it is no snapshot of this environment.
        """
        if not isinstance(snapshot, Episode) or snapshot.task.env != self.id:
            raise OptionError(f"{self.id}: not a snapshot of this environment")
        self._episode = snapshot
        self._show_step(None)

    def reset_many(self, tasks: Sequence[str | Task], seeds: Sequence[int]) -> list[Episode]:
        """Start many episodes, independent of each other and of `reset`; with `step_many` this plays without gymnasium's cost.

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
        begin = self._begin
        return [
            begin(task if isinstance(task, Task) else self.pool[task], seed)
            for task, seed in zip(tasks, seeds, strict=True)
        ]

    def step_many(self, episodes: Sequence[Episode], actions: Sequence[str]) -> list[Episode]:
        """Play one action in each of many episodes.

        Args:
            episodes: The episodes; they are values and do not change.
            actions: The action of each.

        Returns:
            The episodes after their actions.

        Raises:
            OptionError: If there are not as many actions as episodes.
        """
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
        task, seed, turn, state, shown, *_ = episode
        if "<" in action and action in (shown.admissible or ()) and SLOT.search(action):
            action = ""  # a slot that nothing fills is no action
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
    def given_pool(self) -> TaskPool | None:
        """The pool that it was made with; None if it loaded one."""
        pool: TaskPool | None = self._made_with[1].get("pool")
        return pool

    @property
    def world_options(self) -> dict[str, Any]:
        """The options that identify this environment, as given: without split, tasks and variant."""
        options = select_pool_options(self._made_with[1])
        options.pop("variant", None)
        return options

    # ---- shared by all environments -----------------------------------------------------------------------------

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
        if canonical not in cls.splits and canonical != "all":
            raise unknown_name_error(f"split of {cls.id}", name, [*cls.splits, "all", *cls.split_aliases])
        return canonical

    @classmethod
    def portable_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options without those that are paths on this machine or its user's own decision, for files.

        Args:
            options: Options of the environment.

        Returns:
            Those that have the same meaning everywhere.
        """
        kept_here = (*cls.local_options, *cls.owner_options)
        return {name: value for name, value in options.items() if name not in kept_here}

    @classmethod
    def list_parts(cls, options: Mapping[str, Any]) -> list[tuple[type[TextEnv], Mapping[str, Any]]]:
        """Return the environments whose options these options hold; override this if there are others beside this one.

        Args:
            options: Options of the environment.

        Returns:
            The class of each environment with its own options.
        """
        return [(cls, options)]

    @classmethod
    def names_local_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether options name data on this machine, which may change while a process runs.

        Args:
            options: Options of the environment.

        Returns:
            Whether one of `local_options` is given.
        """
        return any(options.get(name) is not None for name in cls.local_options)

    @cached_property
    def task_set(self) -> TaskSet:
        """The value that names this environment's tasks, for records and for other environments (`tasks=`)."""
        whole, options = self._whole_pool, keep_plain_options(resolve_task_options(type(self), self._made_with[1]))
        return TaskSet(self.id, options, whole.split, whole.digest, self.pool.ids)

    def explain_empty(self, split: str) -> str:
        """Return what the error about an empty split says besides the sizes of all; override this to name a remedy.

        Args:
            split: The split.

        Returns:
            A text that begins with a colon, or nothing, as by default.
        """
        return ""

    @classmethod
    def count_published(cls, options: Mapping[str, Any]) -> tuple[Mapping[str, int], ...]:
        """Return how many tasks each split has in published data, without opening them; override this where data are installed.

        Args:
            options: The environment's options.

        Returns:
            The counts of every form in which the data are published; none for generated tasks and data of one's own.
        """
        return ()

    def split_sizes(self) -> dict[str, int]:
        """The number of tasks of each split under this environment's options."""
        return {split: len(self.load_pool(split)) for split in self.splits}

    def open_pool(self, split: str) -> TaskPool:
        """Return the tasks of a split, possibly none.

        Args:
            split: The canonical name of a split, or `all`.

        Returns:
            The pool; environments with the same options share one if `shares_pools` is set.
        """
        arguments, options = self._made_with
        origin = PoolOrigin(type(self), select_pool_options(options), split)
        if self.shares_pools and not arguments and not self.names_local_data(options):
            pool = find_or_load_pool(origin, lambda: self.load_pool(split))
        else:
            pool = self.load_pool(split)
        if pool.origin is None and not arguments:
            pool.origin = origin
        return pool

    def _make_info(self, episode: Episode) -> dict[str, Any]:
        view = episode.view
        return {
            **view.extra,
            "task": episode.task.id,
            "category": episode.task.category,
            "turn": episode.turn,
            "instructions": self.get_instructions(episode.task),
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


class EnvOpener(Protocol):
    """A client of a split: what opens an environment."""

    def open_env(self) -> TextEnv: ...


EnvLike = str | gymnasium.Env[Any, Any] | EnvOpener
"""The forms in which functions take an environment: its id or short name, an environment, wrapped or not, or a client."""


def open_env(env: EnvLike, **options: Any) -> TextEnv:
    """Open an environment without gymnasium's wrappers, for code that plays thousands of episodes.

    Args:
        env: A registered id, such as `fedagentgym/Guess-v0`, or its short name, `Guess`. An environment, wrapped or not, is
            returned without its wrappers, and a client of a split opens its own.
        **options: The environment's options, and `client_split=` and `client=`, as for `gymnasium.make`.

    Returns:
        The environment itself, with its batch methods (`reset_many`, `step_many`).

    Raises:
        UnknownNameError: No environment has this id.
        OptionError: An option is unknown or has a value that cannot be used.

    Examples:
        >>> open_env("fedagentgym/Guess-v0", split="val").split_sizes()["val"]
        60
    """
    if isinstance(env, str):
        env_id = find_env_id(env)
        made = gymnasium.make(env_id, disable_env_checker=True, **options).unwrapped
        if not isinstance(made, TextEnv):
            raise OptionError(f"{env_id} is no text environment: {type(made).__name__} is not derived from TextEnv")
        return made
    if options:
        raise OptionError(f"options are for an environment given by its id: {sorted(options)[0]!r} is one")
    found = env.unwrapped if isinstance(env, gymnasium.Env) else None
    if not isinstance(env, type | gymnasium.Env) and callable(getattr(env, "open_env", None)):
        found = env.open_env()
    if not isinstance(found, TextEnv):
        raise OptionError(
            f"an environment is an id, a short name, an environment of this package or a client, not {show_value(env)}"
        )
    return found
