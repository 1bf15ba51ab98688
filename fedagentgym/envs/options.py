"""The options of an environment: one class, whose fields say what each option is and what it decides.

    class ShopOptions(EnvOptions):
        size: Literal["tiny", "small"] = task("small", description="number of products")
        show_images: bool = play(False, description="whether pages have pictures")
        data: str | None = local(None, description="folder of your own products")

A `task` option, or a field without a mark, decides which tasks there are; beside a client split it must have the split's value.
A `play` option decides how tasks are played. A `local` option is a path on this machine, and an `owner` option a decision of the
machine's owner; the values of these two are never stored, sent or accepted from others, except the word `installed`. Everything
else is derived from this class: the keywords of `gymnasium.make`, the content of splits, records, digests and messages, the
reference page, and the nearest name of a misspelt option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import (
    DataError,
    OptionError,
    find_closest_name,
    join_names,
    show_value,
    unknown_name_error,
)
from fedagentgym.base.settings import Settings, choose_fault, describe_fault

Mark = Literal["task", "play", "local", "owner"]
INSTALLED = "installed"
"""The value of a `local` option for the data set that `fedagentgym data` installs, which is the same on every machine."""


def task(default: Any, *, description: str, **limits: Any) -> Any:
    """Declare an option that decides which tasks there are.

    Args:
        default: Its value if it is not given.
        description: What it is, for the reference.
        **limits: Limits of the value, as pydantic's `Field` takes them, such as `ge=1`.

    Returns:
        The field, for the body of a class derived from `EnvOptions`.
    """
    return Field(default, description=description, json_schema_extra={"mark": "task"}, **limits)


def play(default: Any, *, description: str, **limits: Any) -> Any:
    """Declare an option that decides how tasks are played or shown, and changes none of them.

    Args:
        default: Its value if it is not given.
        description: What it is, for the reference.
        **limits: Limits of the value, as pydantic's `Field` takes them, such as `ge=1`.

    Returns:
        The field, for the body of a class derived from `EnvOptions`.
    """
    return Field(default, description=description, json_schema_extra={"mark": "play"}, **limits)


def local(default: Any, *, description: str, **limits: Any) -> Any:
    """Declare an option that is a path on this machine; the digest of a pool identifies the data at this path.

    Args:
        default: Its value if it is not given.
        description: What it is, for the reference.
        **limits: Limits of the value, as pydantic's `Field` takes them, such as `ge=1`.

    Returns:
        The field, for the body of a class derived from `EnvOptions`.
    """
    return Field(default, description=description, json_schema_extra={"mark": "local"}, **limits)


def owner(default: Any, *, description: str, **limits: Any) -> Any:
    """Declare an option that only the owner of a machine decides, such as which protections may be missing; it changes no task.

    Args:
        default: Its value if it is not given.
        description: What it is, for the reference.
        **limits: Limits of the value, as pydantic's `Field` takes them, such as `ge=1`.

    Returns:
        The field, for the body of a class derived from `EnvOptions`.
    """
    return Field(default, description=description, json_schema_extra={"mark": "owner"}, **limits)


RESERVED = frozenset(
    {"split", "tasks", "pool", "variant", "client", "client_split", "env", "env_id", "cls", "id"}
    | {"max_episode_steps", "disable_env_checker", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers"}
)
"""Names of arguments of `gymnasium.make`, `gymnasium.make_vec` and `open_env`; an option with such a name would never reach the
environment."""


class EnvOptions(Settings):
    """Base class of the options of environments, and the options that all of them have.

    Derive a class with a field for each option, and name it in brackets, `class MazeEnv(TextEnv[MazeOptions])`. `self.options`
    holds the checked values.

    Examples:
        >>> from fedagentgym.envs import EnvOptions, play, task
        >>> class MazeOptions(EnvOptions):
        ...     rooms: int = task(4, ge=2, description="number of rooms")
        ...     shows_map: bool = play(False, description="whether observations show a map")
        >>> MazeOptions(rooms=9, shows_map=True).deciding
        {'rooms': 9}
    """

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    max_turns: int | None = play(
        None, ge=1, description="actions after which an episode is truncated; null: the environment's default"
    )
    reward: Literal["score", "success10"] = play(
        "score",
        description="reward: score, the environment's own; success10, 10 for a solved episode and otherwise 0",
    )
    order: Literal["drawn", "once"] = play(
        "drawn",
        description="the task of a reset that names none: drawn, at random with replacement; once, in the order of the pool,"
        " starting at the task whose index is the seed",
    )
    render_mode: Literal["human", "ansi"] | None = play(
        None,
        description="ansi: `render()` returns the goal, the turns since the reset and the choices; human: every"
        " turn is printed when it is played",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if taken := sorted(RESERVED & set(cls.model_fields)):
            raise OptionError(
                f"{cls.__name__} has an option {taken[0]!r}, which is an argument of gymnasium.make or open_env: choose"
                " another name"
            )

    @classmethod
    def read(cls, env_id: str, given: Mapping[str, Any]) -> Self:
        """Make the options of an environment from given values.

        Args:
            env_id: Id of the environment, for error messages.
            given: The values by name.

        Returns:
            The checked options.

        Raises:
            UnknownNameError: If a value is not one of the words that its option allows.
            OptionError: If there is no such option, or another value cannot be used.
        """
        try:
            found = cls.model_validate(dict(given))
            for name, mark in cls.get_marks().items():
                value: object = getattr(found, name)
                if mark == "local" and isinstance(value, str) and not value:  # would name the current folder
                    raise OptionError(f"{env_id}, option {name!r}: a path must not be empty")
            return found
        except ValidationError as error:
            fault = choose_fault(error.errors(include_url=False))
        path = [str(part) for part in fault["loc"]]
        name, value = path[0] if path else "", fault["input"]
        if fault["type"] == "extra_forbidden":
            known = list(cls.model_fields)
            guess = find_closest_name(name, known)
            hint = f"did you mean {guess!r}?" if guess else f"it takes {join_names(known, 30)}"
            raise OptionError(f"{env_id} has no option {name!r}: {hint}")
        if isinstance(given.get(name), str) and (words := _list_words(cls.model_fields[name].annotation)):
            raise unknown_name_error(name, given[name], words)
        message = describe_fault(fault)
        if not name:
            raise OptionError(f"{env_id}: {message}")
        raise OptionError(f"{env_id}, option {name!r}: {message} (got {show_value(value)})")

    @classmethod
    @cache
    def get_marks(cls) -> Mapping[str, Mark]:
        """The mark of every option."""
        marks = {}
        for name, field in cls.model_fields.items():
            extra = field.json_schema_extra
            marks[name] = extra["mark"] if isinstance(extra, dict) and "mark" in extra else "task"
        return marks  # type: ignore[return-value]

    def count_turns(self, usual: int) -> int:
        """Return the maximum number of turns of an episode.

        Args:
            usual: The environment's `default_max_turns`.

        Returns:
            The given `max_turns`, or else `usual`. Override this method if the number depends on other options.
        """
        return self.max_turns or usual

    def list_parts(self) -> Sequence[EnvOptions]:
        """These options and any options of other environments that they contain; override this if they contain some."""
        return (self,)

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, with their values."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    @property
    def own(self) -> dict[str, Any]:
        """The given options of this environment, without those that all environments have."""
        return {name: value for name, value in self.given.items() if name not in EnvOptions.model_fields}

    @property
    def portable(self) -> dict[str, Any]:
        """The given options that mean the same on every machine, as plain values; files and messages hold these."""
        return self._keep(self.model_fields_set, ("task", "play"))

    @property
    def deciding(self) -> dict[str, Any]:
        """Every option that decides which tasks there are, with its value, given or by default."""
        return self._keep(self.get_marks(), ("task",))

    @property
    def names_local_data(self) -> bool:
        """True if an option names data on this machine, which may change while a process runs."""
        return any(
            mark == "local" and getattr(part, name) is not None
            for part in self.list_parts()
            for name, mark in part.get_marks().items()
        )

    @property
    def names_own_data(self) -> bool:
        """True if an option names data by a path on this machine; `installed` is no path, but stands for published data."""
        return any(
            mark == "local" and (value := getattr(part, name)) is not None and not _is_installed(value)
            for part in self.list_parts()
            for name, mark in part.get_marks().items()
        )

    def refuse_foreign(self, where: str, *, paths: bool = False) -> None:
        """Raise `DataError` if options from elsewhere (`where`: a file, a server) contain one that only the user of this machine
        may set: a protection of the sandbox, or a path unless `paths` is true."""
        for part in self.list_parts():
            for name in type(part).model_fields:
                mark, value = part.get_marks()[name], getattr(part, name)
                is_path = mark == "local" and not _is_installed(value)
                if name in part.model_fields_set and (mark == "owner" or (is_path and not paths)):
                    what = "a path on this machine" if is_path else "a protection of this machine"
                    raise DataError(f"{where}: {name!r} concerns {what}, which only its user decides; set it yourself")

    def _keep(self, names: Any, marks: Sequence[Mark]) -> dict[str, Any]:
        """The plain values of options with these marks. Values without a plain form, such as functions, are left out: the digest
        of the pool covers what they change."""
        kept = {}
        for name, mark in self.get_marks().items():
            value = getattr(self, name)
            installed = mark == "local" and _is_installed(value)
            if name in names and (mark in marks or installed):
                try:
                    plain = to_jsonable_python(value)
                    canonical_json(plain)
                except (PydanticSerializationError, DataError):
                    continue
                kept[name] = plain
        return kept


def _list_words(annotation: Any) -> tuple[str, ...]:
    """The words that a field allows, if it allows nothing but words."""
    kinds = [one for one in (get_args(annotation) or ()) if one is not type(None)]
    if get_origin(annotation) is Literal and all(isinstance(one, str) for one in kinds):
        return tuple(kinds)
    return _list_words(kinds[0]) if len(kinds) == 1 and get_origin(annotation) in (Union, UnionType, Annotated) else ()


def _is_installed(value: object) -> bool:
    return isinstance(value, str) and value == INSTALLED
