"""The base class of all settings: immutable, without extra keys, and with clear errors for wrong keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, get_args, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedagentgym.base.errors import DataError, OptionError, find_closest_name, join_names, show_value

MOST_BITS = 64
"""Maximum size of a whole number in settings: they are counted and drawn with 64-bit numbers."""
MOST_KEYS = 30
"""Maximum number of keys in an assignment such as `federation.rounds=5`."""


class Settings(BaseModel):
    """A node of the configuration tree. A string where a node with a field `name` is expected is short for {name: ...}."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, data: Any) -> Any:
        data = expand_name(data) if "name" in cls.model_fields else data
        if isinstance(data, Mapping):
            data = to_plain_numbers(data)
            for key, value in data.items():
                if isinstance(value, int) and value.bit_length() > MOST_BITS:
                    raise ValueError(f"{key} is a number of more than {MOST_BITS} bits")
        return data

    @classmethod
    def load(cls, data: Any, where: str = "") -> Self:
        """Validate plain data; the first error becomes one sentence that names the key and what is allowed."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise OptionError(_explain(cls, error.errors()[0], where, data)) from None


@runtime_checkable
class Chooser(Protocol):
    """Annotation of a field whose class depends on its value; see `base/choices.py`."""

    def settings_class(self, data: object) -> type[Settings] | None: ...


def _explain(settings: type[BaseModel], fault: ErrorDetails, where: str, data: Any) -> str:
    path = [str(part) for part in fault["loc"]]
    place = ".".join(([where] if where else []) + path) or "configuration"
    if fault["type"] == "extra_forbidden":
        node = _find_node(settings, fault["loc"][:-1], data)
        known = list(node.model_fields) if node is not None else []
        guess = find_closest_name(path[-1], known)
        hint = f"did you mean {guess!r}?" if guess else f"known keys are {join_names(known, 30)}"
        return f"unknown key {place!r}: {hint}"
    if fault["type"] == "missing":
        return f"the key {place!r} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {message[:1].lower()}{message[1:]} (got {show_value(fault.get('input'))})"


def _find_node(settings: type[BaseModel], path: tuple[int | str, ...], data: Any) -> type[BaseModel] | None:
    """The model class at a path of keys, according to the annotations or the data."""
    annotations: tuple[Any, ...] = (settings,)
    for part in path:
        node = _find_model(annotations, data)
        field = node.model_fields.get(str(part)) if node is not None else None
        annotations = (field.annotation, *field.metadata) if field is not None else annotations
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list | tuple) and isinstance(part, int):
            data = data[part]
    return _find_model(annotations, data)


def _find_model(annotations: tuple[Any, ...], data: Any) -> type[BaseModel] | None:
    """The first model class among nested annotations; for a class chosen by name, the chosen one rather than its base."""
    choosers = (each.settings_class(data) for each in annotations if isinstance(each, Chooser))
    if (chosen := next(choosers, None)) is not None:
        return chosen
    for each in annotations:
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
        if (found := _find_model(get_args(each), data)) is not None:
            return found
    return None


def to_plain_numbers(value: Any) -> Any:
    """The value with Python's numbers in place of NumPy's, also inside plain lists, tuples and mappings.

    >>> import numpy as np
    >>> to_plain_numbers({"seed": np.int64(7), "sizes": [np.int32(1), 2]})
    {'seed': 7, 'sizes': [1, 2]}
    """
    if type(value) is dict:
        return {key: to_plain_numbers(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_plain_numbers(item) for item in value)
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


def expand_name(value: Any) -> Any:
    """A bare name expanded to the node that it abbreviates; any other value unchanged."""
    return {"name": value} if isinstance(value, str) else value


CHOSEN_BY: Mapping[str, str] = {"env": "id", "options": "source", "partition": "sampler", "variant": "kind"}
"""Sections in which another key than `name` decides what the other keys mean."""
ALWAYS_REPLACED = frozenset({"sources"})
"""Mappings that are one value: how many clients each category has."""


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `override` laid over it: mappings are merged key by key, any other value is replaced.

    A mapping with another name than the one below replaces it, since settings of one method, sampler, environment or data set
    have no meaning for another.
    """
    result = dict(base)
    for key, value in override.items():
        below = expand_name(result.get(key))
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merge(below, value) if both and not _is_replaced(key, below, value) else value
    return result


def _is_replaced(section: str, below: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    key = CHOSEN_BY.get(section, "name")
    return section in ALWAYS_REPLACED or (key in below and key in value and below[key] != value[key])


def assign(data: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """`data` updated with one `a.b=value`; the value is parsed as YAML, and a mapping is laid over the one that is there."""
    from fedagentgym.base.yaml_text import parse_yaml

    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise OptionError(f"cannot read {assignment[:80]!r}: write it as key.key=value")
    if len(keys) > MOST_KEYS:
        raise OptionError(f"cannot read {assignment[:80]!r}: {len(keys)} nested keys")
    try:
        value = parse_yaml(text, f"the value of {assignment[:80]!r}")
    except DataError as error:
        raise OptionError(str(error)) from None
    return _set_at(data, keys, value)


def _set_at(data: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    key, *inner = keys
    if not inner:
        return merge(data, {key: value})
    below = expand_name(data.get(key))
    return {**data, key: _set_at(below if isinstance(below, Mapping) else {}, inner, value)}
