"""The header of a split file, checked field by field before anything is computed from it.

A file may come from anybody, so a matching digest proves little: anyone who changes a field can recompute the digest. Every
field therefore has a type and a range, and other values are refused. Saving checks the same, so that no split is
written that could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import check_format
from fedagentgym.partitions.files.labels import Labels
from fedagentgym.partitions.files.split import ROLES, SCHEMA

MAX_CLIENTS = 10_000_000
MAX_ASSIGNMENTS = 1_000_000_000
MAX_SEED = 1 << 128
_MAX_NAME = 200
_MAX_VALUES = 1 << 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_RESERVED_OPTIONS = ("split", "tasks", "pool", "variant", "client_split", "client", "render_mode")
_FIELDS: dict[str, tuple[type, ...]] = {
    "env": (dict,),
    "pool_digest": (str,),
    "sampler": (dict,),
    "seed": (int,),
    "variant": (dict, type(None)),
    "server_overlap": (int, float),
    "evaluation": (list,),
    "labels": (dict, type(None)),
    "roles": (dict,),
}
_NESTED_FIELDS: tuple[tuple[str, str, type], ...] = (
    ("env", "id", str),
    ("env", "split", str),
    ("env", "options", dict),
    ("sampler", "name", str),
    ("sampler", "parameters", dict),
)
_BESIDE = ("schema", "digest", "provenance", "variants", "clients", "assignments")
"""The fields of a split file that its digest does not cover."""


@dataclass(frozen=True)
class SplitHeader:
    """A checked header: `fields` are what the digest covers, `digest` is what the file claims it to be."""

    fields: Mapping[str, Any]
    labels: Labels | None
    digest: str
    provenance: Mapping[str, Any]


def check_header(data: Any, where: str) -> SplitHeader:
    """The header of a file's JSON object, or a `DataError` that names the first invalid field."""
    data = data if isinstance(data, dict) else {}
    check_format(data.get("schema"), SCHEMA, where, "a split file")
    _check_types(data, where)
    for name, check in _RANGES.items():
        if (fault := check(data[name])) is not None:
            raise DataError(f"{where}: the field {name!r} {fault}")
    if unknown := sorted(set(data) - {*_FIELDS, *_BESIDE}):
        raise DataError(f"{where}: the field {unknown[0][:80]!r} is not part of a split file")
    provenance = data.get("provenance", {})
    if not isinstance(provenance, dict) or _find_odd_value(provenance) is not None:
        raise DataError(f"{where}: the field 'provenance' must hold names and plain values")
    labels = None if data["labels"] is None else Labels.from_record(data["labels"])
    fields = {"schema": SCHEMA, **{name: data[name] for name in _FIELDS}}
    canonical_json(fields)
    return SplitHeader(fields, labels, str(data.get("digest")), provenance)


def _check_types(data: Mapping[str, Any], where: str) -> None:
    for name, kinds in _FIELDS.items():
        if name not in data:
            raise DataError(f"{where}: the field {name!r} is missing")
        if not isinstance(data[name], kinds) or isinstance(data[name], bool):
            raise DataError(f"{where}: the field {name!r} has the wrong type ({type(data[name]).__name__})")
    for place, name, kind in _NESTED_FIELDS:
        if not isinstance(data[place].get(name), kind):
            raise DataError(f"{where}: the field '{place}.{name}' is missing or has the wrong type")


# ---- valid values of each field -----------------------------------------------------------------------------------


def is_id_list(row: Any) -> bool:
    """Whether a value is a list of task ids."""
    return isinstance(row, list) and all(isinstance(name, str) for name in row)


def _check_env(env: dict[str, Any]) -> str | None:
    if set(env) != {"id", "split", "options"}:
        return "must hold id, split and options alone"
    if reserved := next((name for name in _RESERVED_OPTIONS if name in env["options"]), None):
        return f"has an option {reserved!r}, which the split itself determines"
    return _find_odd_value(env)


def _check_sampler(sampler: dict[str, Any]) -> str | None:
    if set(sampler) != {"name", "parameters"}:
        return "must hold name and parameters alone"
    return "must have a name" if not sampler["name"] else _find_odd_value(sampler)


def _check_roles(roles: dict[str, Any]) -> str | None:
    for name, ids in roles.items():
        if name not in ROLES:
            return f"names a role {name[:80]!r}: the roles are {', '.join(ROLES)}"
        if not is_id_list(ids):
            return "is malformed: every role must hold a list of task ids"
        if len(set(ids)) < len(ids):
            return f"names a task twice in the role {name!r}"
    return None


def _check_evaluation(names: list[Any]) -> str | None:
    if not is_id_list(names) or len(set(names)) < len(names) or len(names) > 100:
        return "must be a list of different names of splits"
    return _find_odd_value(names)


def _check_overlap(overlap: float) -> str | None:
    return None if 0.0 <= overlap <= 1.0 else f"must lie between 0 and 1, it is {str(overlap)[:40]}"


def _check_seed(seed: int) -> str | None:
    return None if abs(seed) < MAX_SEED else "must be a whole number of at most 128 bits"


def _check_digest(text: str) -> str | None:
    return None if _DIGEST.fullmatch(text) else f"must be sha256: and 64 hexadecimal digits, it is {text[:80]!r}"


_RANGES: dict[str, Callable[[Any], str | None]] = {
    "env": _check_env,
    "pool_digest": _check_digest,
    "sampler": _check_sampler,
    "seed": _check_seed,
    "variant": lambda variant: None if variant is None else _find_odd_value(variant),
    "server_overlap": _check_overlap,
    "evaluation": _check_evaluation,
    "labels": lambda labels: None if labels is None else _find_odd_value(labels.get("source")),
    "roles": _check_roles,
}


def _find_odd_value(value: Any) -> str | None:
    """What is wrong with a small plain value: too large, or a text with characters that cannot be printed."""
    waiting = [value]
    seen = 0
    while waiting:
        item = waiting.pop()
        seen += 1
        if seen > _MAX_VALUES:
            return f"holds more than {_MAX_VALUES:,} values"
        if isinstance(item, dict):
            if any(len(name) > _MAX_NAME for name in item):
                return f"holds a name of more than {_MAX_NAME} characters"
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and not item.replace("\n", "").replace("\t", "").isprintable():
            return f"holds a character that cannot be printed: {item[:80]!r}"
    return None
