"""The options of an environment class: their types and defaults, and which of them decide its tasks.

An option decides the tasks of an environment unless its class lists it among its `play_options`: how observations are shown,
how long an episode is, how a reply is graded. Beside a client split only such options can be given.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from fedagentgym.base.encoding import canonical_json, to_plain_numbers
from fedagentgym.base.errors import DataError, OptionError, find_closest_name, join_names, show_value

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SELECTING = ("split", "tasks", "pool", "variant")
"""Options of every environment that choose among its tasks, or change how a client sees them."""


class Option(NamedTuple):
    """The annotation of a keyword option, and its default (`inspect.Parameter.empty` if there is none)."""

    annotation: Any
    default: Any


def list_options(cls: type) -> Mapping[str, Option]:
    """The keyword options of a class, and of the base classes to which it passes its `**options`."""
    return _collect_options(cls)


@cache
def _collect_options(cls: type) -> Mapping[str, Option]:
    found: dict[str, Option] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        init = vars(base)["__init__"]
        parameters = inspect.signature(init).parameters.values()
        hints = get_type_hints(init)
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY or (
                parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name != "self"
            ):
                found.setdefault(parameter.name, Option(hints.get(parameter.name, Any), parameter.default))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def list_play_options(cls: type) -> frozenset[str]:
    """The options that a class and its base classes declare not to change any task."""
    return frozenset(name for base in cls.__mro__ for name in getattr(base, "play_options", ()))


def check_options(cls: type, env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with NumPy's numbers as Python's; an unknown keyword or a value of the wrong type is refused in one
    sentence, before anything is built."""
    accepted = list_options(cls)
    checked = {name: to_plain_numbers(value) for name, value in options.items()}
    for name, value in checked.items():
        if name not in accepted:
            guess = find_closest_name(name, accepted)
            hint = f"did you mean {guess!r}?" if guess else f"it takes {join_names(accepted, 30)}"
            raise OptionError(f"{env_id} has no option {name!r}: {hint}")
        _check_type(cls, env_id, name, value)
    return checked


def _check_type(cls: type, env_id: str, name: str, value: Any) -> None:
    from pydantic import ValidationError

    adapter = _make_adapter(cls, name)
    if adapter is None:
        return
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise OptionError(
            f"{env_id}, option {name!r}: {message[:1].lower()}{message[1:]} (got {show_value(value)})"
        ) from None


@cache
def _make_adapter(cls: type, name: str) -> TypeAdapter[Any] | None:
    """Return what checks the values of an option; None if its annotation cannot be checked."""
    from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter
    from pydantic.errors import PydanticUserError

    annotation = list_options(cls)[name].annotation
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True, strict=True))
    except PydanticUserError:
        return TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        return None


# ---- the options that decide tasks ------------------------------------------------------------------------------


def resolve_task_options(cls: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Every option that decides tasks with its value, given or by default; the places of data on this machine are left out."""
    known, play = list_options(cls), list_play_options(cls)
    defaults = {name: one.default for name, one in known.items() if one.default is not inspect.Parameter.empty}
    chosen = {
        name: value for name, value in {**defaults, **options}.items() if name not in SELECTING and name not in play
    }
    portable: dict[str, Any] = cls.portable_options(chosen)
    return portable


def refuse_foreign_options(cls: type[Any], options: Mapping[str, Any], where: str, *, paths: bool = False) -> None:
    """Raise if options that others chose hold what only the user of this machine decides; paths of data on it only if `paths`
    are allowed."""
    for part, own in cls.list_parts(options):
        kept = part.portable_options(own)
        for name in own:
            if name in part.owner_options or (name in part.local_options and name not in kept and not paths):
                what = "a path on this machine" if name in part.local_options else "a protection of this machine"
                raise DataError(f"{where}: {name!r} concerns {what}, which only its user decides: give it yourself")


def keep_plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that can be written as JSON; of others, such as functions, the digest of the pool must suffice."""
    return {name: value for name, value in options.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    try:
        canonical_json(value)
    except DataError:
        return False
    return True


def add_options(cls: type[Any], fixed: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a client split, updated with options that leave its tasks as they are.

    Options that decide no task and the places of data can be added; others can be repeated. Whether data is the same
    is for the digest of the pool to say.
    """
    wanted = to_plain_numbers(dict(given))
    before, after = resolve_task_options(cls, fixed), resolve_task_options(cls, {**fixed, **wanted})
    for name, value in wanted.items():
        if name in SELECTING:
            raise OptionError(f"{name}= is decided by the split: leave it out")
        if name in after and name in list_options(cls) and not _are_equal(before.get(name), after[name]):
            raise OptionError(
                f"{name}={_show(value)} would change the tasks of the split, which was made with "
                f"{name}={_show(before.get(name))}: leave it out, or make a split with it "
                f"(federate({cls.id!r}, env={{{name!r}: ...}}))"
            )
    return {**fixed, **wanted}


def _are_equal(first: Any, second: Any) -> bool:
    try:
        return canonical_json(first) == canonical_json(second)
    except DataError:
        return bool(first is second or first == second)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
