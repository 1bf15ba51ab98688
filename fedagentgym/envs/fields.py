"""Fields of tasks by name: columns of their pool, and fields of their payload. Clients can be formed by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fedagentgym.base.settings import to_plain_numbers

Value = str | int


def is_value(value: object) -> bool:
    """Whether tasks can be grouped by it: a text or a whole number."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def collect_columns(rows: Sequence[Mapping[str, Any]], known: Sequence[str]) -> dict[str, tuple[Value | None, ...]]:
    """The fields of records other than the known ones, if every record has a value or nothing there."""
    names = sorted({name for row in rows for name in row if name not in known})
    columns = {name: tuple(to_plain_numbers(row.get(name)) for row in rows) for name in names}
    return {
        name: values
        for name, values in columns.items()
        if all(value is None or is_value(value) for value in values) and set(values) != {None}
    }


def list_payload_fields(payload: object) -> list[str]:
    """The names under which a payload has values."""
    return [name for name in _get_names(payload) if is_value(get_payload_field(payload, name))]


def get_payload_field(payload: object, name: str) -> Any:
    """What a payload has under a name: an entry of a mapping or a field of a record; None where it has no such thing."""
    if name not in _get_names(payload):
        return None
    return payload[name] if isinstance(payload, Mapping) else getattr(payload, name)


def _get_names(payload: object) -> Sequence[str]:
    if isinstance(payload, Mapping):
        return [name for name in payload if isinstance(name, str)]
    if isinstance(payload, tuple):
        return getattr(payload, "_fields", ())
    if is_dataclass(payload):
        return [field.name for field in fields(payload)]
    return ()
