"""The base class of all settings: immutable, without extra keys, and with clear errors for wrong keys and values.

Settings whose class is chosen by name share a base class derived from `NamedSettings`. The value {name: fedadam, beta1: 0.8}
becomes an instance of the class that is registered as `fedadam`.

    class Rule(NamedSettings): ...

    RULES = Registry("rule", {"mean": "my_package:Mean"})
    AnyRule = Annotated[Rule, Choice(RULES)]

A field of type `AnyRule` takes a name, a mapping with a name, or an instance of `Rule`; it is dumped with the fields of the
instance's own class. `merge` lays one mapping of plain settings over another, and `assign` changes one value of a mapping.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from fedagentgym.base.encoding import to_plain_numbers
from fedagentgym.base.errors import (
    DataError,
    OptionError,
    UnknownNameError,
    find_closest_name,
    holds_halves,
    join_names,
    show_value,
)
from fedagentgym.base.files import parse_yaml
from fedagentgym.base.imports import Registry

MAX_BITS = 64
"""Maximum size of a whole number in settings, since numpy and torch compute with 64-bit numbers."""
MIN_SIZE, MAX_NUMBER = sys.float_info.min, 1e150
"""Bounds of the absolute value of a number other than 0: a smaller one loses digits, the square of a greater one overflows."""
MAX_KEYS = 30
"""Maximum number of keys in an assignment such as `federation.rounds=5`."""
_PARSED = object()
"""The context of a validation whose data were parsed from JSON."""


class Settings(BaseModel):
    """The base class of all settings: immutable, without unknown keys; the error for a wrong value is one sentence.

    Derive a class and write its fields as for pydantic. Where a setting with a field `name` is expected, a text is short for
    `{"name": text}`.

    Examples:
        >>> class Pace(Settings):
        ...     steps: int = 3
        >>> Pace.load({"steps": 5}).steps
        5
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, data: Any, info: ValidationInfo) -> Any:
        data = expand_name(data) if "name" in cls.model_fields else data
        if isinstance(data, Mapping):
            parsed = info.context is _PARSED
            data = data if parsed else to_plain_numbers(data)
            for key, value in data.items():
                _check_numbers(key, value, cls.model_fields.get(str(key)))
                if not parsed and holds_halves(value):
                    raise ValueError(f"{key} holds half of a character (a lone surrogate), which no file can hold")
        return data

    @classmethod
    def load(cls, data: Any, where: str = "", *, parsed: bool = False) -> Self:
        """Validate plain data.

        Args:
            data: A mapping from keys to plain values.
            where: Name of the setting for error messages.
            parsed: Whether the data come from the package's own JSON reader, so that they need not be searched for NumPy's
                numbers and for lone surrogates.

        Returns:
            The settings.

        Raises:
            OptionError: If a key is unknown or missing, or a value is invalid; the sentence names the key and what is allowed.
        """
        try:
            return cls.model_validate(data, context=_PARSED if parsed else None)
        except ValidationError as error:
            raise OptionError(_explain(cls, choose_fault(error.errors()), where, data)) from None


def choose_fault(faults: Sequence[ErrorDetails]) -> ErrorDetails:
    """The fault to report: the first one, but if that is a missing key, an unknown key beside it, which may misspell it."""
    first = faults[0]
    if first["type"] != "missing":
        return first
    beside = (one for one in faults if one["type"] == "extra_forbidden" and one["loc"][:-1] == first["loc"][:-1])
    return next(beside, first)


_WORDS = {
    "Input should be": "it must be",
    "String should have": "it must have",
    "Tuple should have": "it must have",
    "List should have": "it must have",
    "Dictionary should have": "it must have",
    " after validation": "",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
    "a valid dictionary": "a mapping",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "an instance of Sequence": "a list",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
"""Words of pydantic's messages, and those of ours."""
_CHARACTERS = {
    r"^[\w.-]+$": "letters, digits, dots, hyphens and underscores",
    r"^[\w.-]{1,60}$": "1 to 60 letters, digits, dots, hyphens and underscores",
    r"^sha256:[0-9a-f]{64}$": "sha256: and 64 hexadecimal digits",
    r"^(all|last-[1-9][0-9]*)$": "all, or last-N for the last N blocks",
}
"""The texts that a pattern allows."""


def describe_fault(fault: ErrorDetails) -> str:
    """The fault of a value, in words of this package."""
    if fault["type"] == "string_pattern_mismatch" and (found := _CHARACTERS.get(fault["ctx"]["pattern"])) is not None:
        return f"it must be {found}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] not in ("value_error", "assertion_error"):
        for said, plain in _WORDS.items():
            message = message.replace(said, plain)
        message = message.partition(", unable to ")[0]
    return f"{message[:1].lower()}{message[1:]}"


def _check_numbers(key: object, value: Any, field: FieldInfo | None) -> None:
    """Refuse numbers that are too large or too small to compute with, and a bool where a number is expected."""
    if isinstance(value, list | tuple):
        for item in value:
            _check_numbers(key, item, field)
    elif isinstance(value, bool):
        kinds = set() if field is None else _list_types(field.annotation)
        if kinds & {int, float} and not kinds & {bool, Any, object}:
            raise ValueError(f"{key} must be a number, not {value}")
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"{key} is a number of more than {MAX_BITS} bits")
    elif isinstance(value, float) and value and math.isfinite(value) and not MIN_SIZE <= abs(value) <= MAX_NUMBER:
        raise ValueError(f"{key} is 0 or between {MIN_SIZE:g} and {MAX_NUMBER:g} in size, not {value:g}")


def _list_types(annotation: Any) -> set[Any]:
    """All types within an annotation such as `tuple[Annotated[int, Field(ge=0)], ...] | None`."""
    parts = get_args(annotation)
    if not parts:
        return {annotation} if isinstance(annotation, type) or annotation is Any else set()
    return set[Any]().union(*map(_list_types, parts))


def _explain(settings: type[BaseModel], fault: ErrorDetails, where: str, data: Any) -> str:
    path = [str(part) for part in fault["loc"]]
    place = ".".join(([where] if where else []) + path) or "configuration"
    if fault["type"] == "missing":
        return f"the key {place!r} is missing"
    if fault["type"] != "extra_forbidden":
        message, given = describe_fault(fault), fault.get("input")
        if fault["type"] in ("model_type", "dict_type"):
            message = "settings must be a mapping, such as {name: value}"
        elif fault["type"] == "value_error" and isinstance(
            given, Mapping
        ):  # the sentence names what is wrong in the section
            return f"{place}: {message}"
        return f"{place}: {message} (got {show_value(given)})"
    # follow the path, by annotations or data, to the class that has no such key
    annotations: tuple[Any, ...] = (settings,)
    for part in fault["loc"][:-1]:
        node = _find_model(annotations, data)
        field = node.model_fields.get(str(part)) if node is not None else None
        annotations = (field.annotation, *field.metadata) if field is not None else annotations
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list | tuple) and isinstance(part, int):
            data = data[part]
    node = _find_model(annotations, data)
    known = list(node.model_fields) if node is not None else []
    sections = {} if node is None else node.model_fields
    below = {key: _find_model((field.annotation, *field.metadata), None) for key, field in sections.items()}
    # keys of this name one section below, such as `federation.rounds` if `rounds` was given
    deeper = [f"{key}.{path[-1]}" for key, one in below.items() if one is not None and path[-1] in one.model_fields]
    near = {name: f"{key}.{name}" for key, one in below.items() if one is not None for name in one.model_fields}
    if deeper:
        hint = f"did you mean {' or '.join(repr('.'.join([*path[:-1], one])) for one in deeper)}?"
    elif guess := find_closest_name(path[-1], known):
        hint = f"did you mean {guess!r}?"
    elif guess := find_closest_name(path[-1], [*near]):
        hint = f"did you mean {'.'.join([*path[:-1], near[guess]])!r}?"
    else:
        hint = f"known keys are {join_names(known, 30)}" if known else "no key is known here"
    return f"unknown key {place!r}: {hint}"


def _find_model(annotations: tuple[Any, ...], data: Any) -> type[BaseModel] | None:
    """The first model class among nested annotations; for a class chosen by name, the chosen one rather than its base."""
    choosers = (each.settings_class(data) for each in annotations if isinstance(each, Choice))
    if (chosen := next(choosers, None)) is not None:
        return chosen
    for each in annotations:
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
        if (found := _find_model(get_args(each), data)) is not None:
            return found
    return None


def expand_name(value: Any) -> Any:
    """A bare name expanded to the mapping `{"name": name}`; any other value unchanged."""
    return {"name": value} if isinstance(value, str) else value


CHOSEN_BY: Mapping[str, str] = {"env": "id", "options": "source", "partition": "sampler", "variant": "kind"}
"""Sections in which another key than `name` decides what the other keys mean."""
ALWAYS_REPLACED = frozenset({"sources"})
"""Mappings that are replaced rather than merged: `sources` gives the number of clients of each category."""


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `override` laid over it: mappings are merged key by key, any other value is replaced.

    A mapping replaces the one in `base` if their names differ, since settings of one method, sampler, environment or data set
    have no meaning for another.
    """
    result = dict(base)
    for key, value in override.items():
        below = expand_name(result.get(key))
        if isinstance(value, Mapping) and isinstance(below, Mapping) and key not in ALWAYS_REPLACED:
            name = CHOSEN_BY.get(key, "name")
            same = name not in below or name not in value or below[name] == value[name]
            result[key] = merge(below, value) if same else value
        else:
            result[key] = value
    return result


def list_replaced(base: Mapping[str, Any], override: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """The sections of `base` that `merge` drops, since `override` names another method, sampler or environment.

    >>> list(list_replaced({"algorithm": {"name": "pubswap", "swap": "none"}}, {"algorithm": "fedprox"}))
    ['algorithm']
    """
    for key, value in override.items():
        present = base.get(key)
        if key in ALWAYS_REPLACED or not isinstance(present, Mapping):
            continue
        name, above = CHOSEN_BY.get(key, "name"), expand_name(value)
        if not isinstance(above, Mapping):
            continue
        if name in present and name in above and present[name] != above[name]:
            yield f"{where}{key}"
        else:
            yield from list_replaced(present, above, f"{where}{key}.")


def assign(data: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """`data` updated with one `a.b=value`; the value is parsed as YAML, and a mapping is merged into the present one."""
    keys, value = _parse_assignment(assignment)
    return _set_at(data, keys, copy.deepcopy(value))


def list_keys(assignments: Iterable[str]) -> list[str]:
    """The keys that assignments set, one key for each value of a mapping; `section.name` counts as `section`.

    >>> list_keys(["seed=1", "algorithm=fedprox", "federation={rounds: 3, workers: 2}"])
    ['seed', 'algorithm', 'federation.rounds', 'federation.workers']
    """
    return [key.removesuffix(".name") for assignment in assignments for key in _list_assigned(assignment)]


def _list_assigned(assignment: str) -> list[str]:
    key, _, value = assignment.partition("=")
    if not value.lstrip().startswith("{"):
        return [key.strip()]
    try:
        return [key for key, _ in list_leaves(assign({}, assignment))]
    except OptionError:  # the error is reported where the assignment is applied
        return [key.strip()]


def list_leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Every value in nested mappings that is not itself a filled mapping, with its dotted key."""
    if not isinstance(value, Mapping) or not value:
        yield key, value
        return
    for name, below in value.items():
        yield from list_leaves(below, f"{key}.{name}" if key else str(name))


@lru_cache(maxsize=1024)
def _parse_assignment(assignment: str) -> tuple[Sequence[str], Any]:
    """The keys and the value of an assignment; cached, since a suite repeats its assignments for every seed."""
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise OptionError(f"cannot read {assignment[:80]!r}: write it as key.key=value")
    if len(keys) > MAX_KEYS:
        raise OptionError(f"cannot read {assignment[:80]!r}: {len(keys)} nested keys")
    try:
        return keys, parse_yaml(text, f"the value of {assignment[:80]!r}")
    except DataError as error:
        raise OptionError(str(error)) from None


def _set_at(data: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    key, *inner = keys
    if not inner:
        return merge(data, {key: value})
    below = expand_name(data.get(key))
    return {**data, key: _set_at(below if isinstance(below, Mapping) else {}, inner, value)}


class NamedSettings(Settings):
    """Settings whose class is registered under a name; a dump contains the name, so that it can be loaded again.

    A class that is also constructed directly declares its name with a default: `name: Literal["mean"] = "mean"`.
    """

    name: str = Field(description="name under which the class is registered")


@dataclass(frozen=True)
class Choice:
    """Annotation of a settings class: a value becomes an instance of the class registered under the value's `name`.

    A mapping without a name gets the name `default`; if that is None, the mapping is refused.
    """

    registry: Registry
    default: str | None = None

    def settings_class(self, data: object) -> type[Settings] | None:
        """The class that plain data selects; None if it names nothing registered."""
        name = self._name(data)
        found = self.registry.get(name) if isinstance(name, str) and name in self.registry else None
        return found if isinstance(found, type) and issubclass(found, Settings) else None

    def __get_pydantic_core_schema__(self, source: type[NamedSettings], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            partial(self._validate, source), serialization=core_schema.simple_ser_schema("any")
        )

    def _name(self, data: object) -> object:
        return data.get("name", self.default) if isinstance(data, Mapping) else data

    def _validate(self, base: type[NamedSettings], data: object) -> NamedSettings:
        if isinstance(data, base):
            return _with_name_set(data)
        kind, name = self.registry.kind, self._name(data)
        if name is None and isinstance(data, Mapping):
            raise ValidationError.from_exception_data(kind, [{"type": "missing", "loc": ("name",), "input": data}])
        if not isinstance(name, str):
            raise PydanticCustomError("choice", "give the name of the {kind}", {"kind": kind})
        try:
            found = self.registry.get(name)
        except UnknownNameError as error:
            raise PydanticCustomError("choice", "{error}", {"error": str(error)}) from None
        if not (isinstance(found, type) and issubclass(found, base)):
            sentence = "{kind} {name} is not a class derived from {base}"
            raise PydanticCustomError("choice", sentence, {"kind": kind, "name": repr(name), "base": base.__name__})
        if missing := sorted(found.__abstractmethods__):
            sentence = "{kind} {name} does not define {missing}"
            raise PydanticCustomError("choice", sentence, {"kind": kind, "name": repr(name), "missing": missing[0]})
        plain = dict(data) if isinstance(data, Mapping) else {}
        return _with_name_set(found.model_validate({**plain, "name": name}))


def _with_name_set(settings: NamedSettings) -> NamedSettings:
    """Mark a name that is the default of its class as set; otherwise a dump of the set fields would lose the name."""
    if "name" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"name": settings.name})
