"""The one way to make an environment: from an id and options, or from a client of a split, with checked tasks.

All arguments of a caller are checked here, once: the class, the options (by their class), the split, the pool, and the tasks
(by their digest). The functions that are called from here check none of them again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import gymnasium

from fedagentgym.base.encoding import canonical_json, shorten_digest
from fedagentgym.base.errors import DataError, OptionError, show_value
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.options import EnvOptions
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import ExplainsEmptySplits
from fedagentgym.envs.registry import ENVIRONMENTS, find_env_id
from fedagentgym.envs.tasks import TaskSet
from fedagentgym.envs.variants import Variant, load_variant
from fedagentgym.envs.wrappers import ShowPrompt

MAX_POOLS = 16
"""Maximum number of pools that the environments of a process share."""
_pools: OrderedDict[tuple[type, str, str], TaskPool] = OrderedDict()
_lock = threading.RLock()


class EnvOpener(Protocol):
    """An object that opens an environment, such as a client of a split."""

    def open_env(self) -> TextEnv: ...


HARMLESS = (gymnasium.wrappers.OrderEnforcing, gymnasium.wrappers.PassiveEnvChecker, ShowPrompt)
"""The wrappers that may be left out: those of `gymnasium.make`, and this package's own, whose prompt every agent here reads."""
EnvLike = str | type[TextEnv] | gymnasium.Env[Any, Any] | EnvOpener
"""The ways to name an environment: an id or short name, a class, an environment (wrapped or not), or a client."""


E = TypeVar("E", bound=TextEnv)


@overload
def open_env(env: type[E], /, **options: Any) -> E: ...


@overload
def open_env(env: EnvLike, /, **options: Any) -> TextEnv: ...


def open_env(env: EnvLike, /, **options: Any) -> TextEnv:
    """Open an environment without gymnasium's wrappers, for code that plays thousands of episodes.

    Args:
        env: A registered id, such as `fedagentgym/Guess-v0`, its short name, `Guess`, or its class. An environment is returned
            without the wrappers of `gymnasium.make`; other wrappers are refused. A client of a split opens its own environment.
        **options: With an id or a class, the options of the environment, `split=` and `tasks=`. With an id, also `client_split=`
            together with `client=`, as for `gymnasium.make`.

    Returns:
        The environment itself, with its batch methods (`reset_many`, `step_many`).

    Raises:
        UnknownNameError: If no environment has this id.
        OptionError: If an option is unknown or has a value that cannot be used.
        DataError: If there are no tasks to play, or they are not those that `tasks` names.

    Examples:
        >>> open_env("fedagentgym/Guess-v0", split="val").split_sizes()["val"]
        60
    """
    if isinstance(env, str) and "client" not in options and "client_split" not in options:
        return make(env_class(find_env_id(env)), **options)
    if isinstance(env, str):
        return open_env(gymnasium.make(find_env_id(env), disable_env_checker=True, **options))
    if isinstance(env, type) and issubclass(env, TextEnv):
        return make(env, **options)
    if options:
        raise OptionError(
            f"the option {sorted(options)[0]!r} can be given only with the id or the class of an environment"
        )
    found = _unwrap(env) if isinstance(env, gymnasium.Env) else None
    if not isinstance(env, type | gymnasium.Env) and callable(getattr(env, "open_env", None)):
        found = env.open_env()
    if not isinstance(found, TextEnv):
        raise OptionError(
            f"an environment must be an id, a short name, an environment of this package or a client, not {show_value(env)}"
        )
    return found


def _unwrap(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment inside harmless wrappers. Others are refused, since episodes would silently be played without them."""
    lost = list[str]()
    while isinstance(env, gymnasium.Wrapper):
        if not isinstance(env, HARMLESS) and not _is_idle_limit(env):
            lost.append(type(env).__name__)
        env = env.env
    if lost:
        raise OptionError(
            f"wrappers are not played here: {', '.join(lost)}; give the environment without them (env.unwrapped), and limit"
            " the turns with its option max_turns in place of max_episode_steps"
        )
    return env


def _is_idle_limit(env: gymnasium.Wrapper[Any, Any, Any, Any]) -> bool:
    """True for a limit of steps that the environment's own turns never exceed, such as that of `gymnasium.make(env.spec)`."""
    inner, limit = env.unwrapped, getattr(env, "_max_episode_steps", 0)
    return isinstance(env, gymnasium.wrappers.TimeLimit) and isinstance(inner, TextEnv) and limit >= inner.max_turns


def env_class(env_id: str) -> type[TextEnv]:
    """The class of a registered environment."""
    return check_env_class(env_id, ENVIRONMENTS.get(env_id))


def check_env_class(env_id: str, found: object) -> type[TextEnv]:
    """The registered object, if it is an environment's class with this id."""
    if not (isinstance(found, type) and issubclass(found, TextEnv)):
        raise OptionError(f"{env_id} is no text environment: {show_value(found)} is no class derived from TextEnv")
    own = getattr(found, "id", env_id)  # `make` refuses a class without an id
    if isinstance(own, str) and own != env_id:
        raise OptionError(
            f"{found.__name__} is registered as {env_id!r}, but its class attribute id is {own!r}: both must be the same"
        )
    return found


def read_options(env_id: str, given: Mapping[str, Any]) -> EnvOptions:
    """The checked options of a registered environment."""
    return env_class(env_id).Options.read(env_id, given)


def count_turns(env_id: str, given: Mapping[str, Any]) -> int:
    """The maximum number of turns of an episode under these options; no environment is made."""
    cls = env_class(env_id)
    return cls.Options.read(env_id, given).count_turns(cls.default_max_turns)


def make(
    cls: type[E],
    /,
    *,
    split: str = "train",
    tasks: Sequence[str] | TaskSet | None = None,
    pool: TaskPool | None = None,
    variant: Mapping[str, Any] | None = None,
    **options: Any,
) -> E:
    """Make an environment of a class.

    Args:
        cls: The class.
        split: The split whose tasks are played, by its canonical or its native name, or `all`.
        tasks: Ids of the tasks to play, or a `TaskSet`, which is compared with the environment's pool; by default all.
        pool: Tasks to play in place of those that `load_pool` gives.
        variant: A client's variant of the environment, as plain values.
        **options: Options of the environment.

    Returns:
        The environment.

    Raises:
        UnknownNameError: If a split, a variant or a task is unknown, or an option's value is no word that it allows.
        OptionError: If another argument cannot be used.
        DataError: If there are no tasks to play, or they are not those that `tasks` names.
    """
    for attribute in ("id", "role", "action_help"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise OptionError(f"{cls.__name__} needs a class attribute {attribute!r}, a text")
    if cls.__init__ is not TextEnv.__init__:
        raise OptionError(
            f"{cls.__name__} defines __init__: options are a class, `class {cls.__name__}(TextEnv[MyOptions])`, with the values"
            " in self.options; make tables and processes in set_up(self)"
        )
    if (
        isinstance(cls.default_max_turns, bool)
        or not isinstance(cls.default_max_turns, int)
        or cls.default_max_turns < 1
    ):
        raise OptionError(
            f"{cls.__name__}.default_max_turns must be a whole number from 1 on, got {show_value(cls.default_max_turns)}"
        )
    for attribute, fits, kind in (
        ("splits", _are_texts, 'a tuple of names, ("train", "val")'),
        ("evaluation_splits", _are_texts, 'a tuple of names, ("val",)'),
        ("split_aliases", _is_mapping_of_texts, 'a mapping from other names to names of splits, {"dev": "val"}'),
        ("variants", _is_tuple_of_variants, "a tuple of classes derived from Variant, (Spelling,)"),
    ):
        if not fits(value := getattr(cls, attribute)):
            raise OptionError(f"{cls.__name__}.{attribute} must be {kind}, got {show_value(value)}")
    if hasattr(cls, "max_turns"):
        raise OptionError(f"{cls.__name__}.max_turns has no effect: the class attribute is default_max_turns")
    if not isinstance(split, str):
        raise OptionError(f"split must be the name of a split, got {show_value(split)}")
    if isinstance(tasks, str):
        raise OptionError(f"tasks must be a list of task ids, for example [{tasks!r}]")
    canonical = cls.canonical_split(split)
    if pool is not None:
        check_pool(cls, canonical, pool)
    return build(
        cls,
        cls.Options.read(cls.id, options),
        split=canonical,
        tasks=tasks,
        pool=pool,
        variant=variant,
    )


def check_pool(cls: type[TextEnv], split: str, given: object) -> TaskPool:
    """Return a pool that a caller gave, if it holds tasks of this split of this environment."""
    if not isinstance(given, TaskPool):
        raise OptionError(f"pool must be a TaskPool, got {show_value(given)}")
    if given.env != cls.id:
        raise OptionError(f"pool must hold tasks of {cls.id}, and this pool holds tasks of {given.env}")
    if cls.split_aliases.get(given.split, given.split) != split:
        raise OptionError(
            f"pool must hold tasks of the split {split!r}, and this pool holds tasks of the split {given.split!r}"
        )
    return given


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(one, str) for one in value)


def _is_mapping_of_texts(value: object) -> bool:
    return isinstance(value, Mapping) and _are_texts((*value, *value.values()))


def _is_tuple_of_variants(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, type) and issubclass(one, Variant) for one in value)


def build(
    cls: type[E],
    options: EnvOptions,
    *,
    split: str,
    tasks: Sequence[str] | TaskSet | None = None,
    pool: TaskPool | None = None,
    variant: Mapping[str, Any] | None = None,
) -> E:
    """Make an environment of a checked class, with checked options and the canonical name of a split."""
    drawn = None if variant is None else load_variant(cls.id, cls.variants, variant)
    env = cls(options, variant=drawn, pool=pool)
    env.remake = partial(build, cls, options, split=split, tasks=tasks, pool=pool, variant=variant)
    env.whole_pool = whole = open_pool(env, split) if pool is None else pool
    if not len(whole):
        remedy = env.explain_empty(split) if isinstance(env, ExplainsEmptySplits) else ""
        raise DataError(f"{cls.id}: the split {split!r} is empty; sizes are {env.split_sizes()}{remedy}")
    if isinstance(tasks, TaskSet) and tasks.env != env.id:
        raise OptionError(f"{env.id}: tasks= names tasks of another environment, {tasks.env}")
    if isinstance(tasks, TaskSet) and tasks.pool != whole.digest:
        places = "".join(f" or {name}=" for name, mark in options.get_marks().items() if mark == "local")
        raise DataError(
            f"{env.id}: the tasks were named for the pool {shorten_digest(tasks.pool)} (split {tasks.split!r}, options "
            f"{dict(tasks.options)}), this environment has {shorten_digest(whole.digest)}: give the "
            f"options, pool={places} that the tasks were chosen with"
        )
    env.pool = whole if tasks is None else whole.subset(tasks.ids if isinstance(tasks, TaskSet) else tasks)
    if not len(env.pool):
        raise DataError(f"{cls.id}: there are no tasks to play (split {split!r})")
    return env


# ---- pools that environments share --------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """The environment class, the options and the split that a pool was loaded with; `options` may contain a variant."""

    environment: type[TextEnv]
    options: Mapping[str, Any]
    split: str

    def load(self) -> TaskPool:
        """Return the pool: the shared one if it is in memory, otherwise loaded from its data."""
        return make(self.environment, **{**self.options, "split": self.split}).pool

    def open_env(self, pool: TaskPool) -> TextEnv:
        """The environment with these options, playing this pool or a part of it."""
        return make(self.environment, **{**self.options, "split": self.split, "pool": pool})


def open_pool(env: TextEnv, split: str) -> TaskPool:
    """The tasks of a split under an environment's options, possibly none. Environments with the same options share one pool if
    their class has `shares_pools` set."""
    given = env.remake.keywords.get("variant")
    origin = Origin(type(env), {**env.options.own, **({} if given is None else {"variant": dict(given)})}, split)
    key = None
    if env.shares_pools and not env.options.names_local_data:
        try:
            key = (origin.environment, split, canonical_json(origin.options))
        except DataError:  # an option that is not a plain value, such as a function, cannot be compared
            key = None
    if key is None:
        return _load_pool(env, split, origin)
    with _lock:
        if key not in _pools:
            _pools[key] = _load_pool(env, split, origin)
            if len(_pools) > MAX_POOLS:
                _pools.popitem(last=False)
        _pools.move_to_end(key)
        return _pools[key]


def _load_pool(env: TextEnv, split: str, origin: Origin) -> TaskPool:
    pool = env.load_pool(split)
    if not isinstance(pool, TaskPool):
        raise OptionError(
            f"{type(env).__name__}.load_pool returned {show_value(pool)}: it returns a TaskPool, for example"
            f' TaskPool.from_records([{{"category": "easy", "payload": 3}}], env=self.id, split=split)'
        )
    if pool.origin is None:
        pool.origin = origin
    return pool
