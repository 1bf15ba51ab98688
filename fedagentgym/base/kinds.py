"""Descriptions of the types of settings and options in words, for documentation pages that are generated from classes."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

REQUIRED = "(must be given)"
_WORDS: Mapping[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    str: ("text", "texts"),
    Path: ("path", "paths"),
    dict: ("mapping", "mappings"),
    Mapping: ("mapping", "mappings"),
    Callable: ("function", "functions"),
}
_SOME = "some of "
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def describe_field(field: FieldInfo) -> str:
    """The values that a field takes.

    >>> from pydantic import Field
    >>> describe_field(FieldInfo.from_annotated_attribute(int | None, Field(None, ge=1)))
    'whole number, at least 1 or null'
    """
    return describe_type(field.annotation, field.metadata)


def describe_type(annotation: Any, metadata: Any = (), *, several: bool = False) -> str:
    """A type with its bounds (`metadata`) in words; in the plural if `several`, as for the items of a list.

    >>> describe_type(Literal["a", "b"] | None), describe_type(tuple[int, ...])
    ('a, b or null', 'list of whole numbers')
    >>> describe_type(Sequence[Literal["a", "b"]]), describe_type(list[list[str]] | None)
    ('some of a, b', 'list of lists of texts or null')
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_type(parts[0], parts[1:], several=several)
    if origin in (Union, types.UnionType):
        kinds = dict.fromkeys(
            describe_type(part, metadata, several=several) for part in parts if part is not type(None)
        )
        return " or ".join([*kinds, *(["null"] if type(None) in parts else [])])
    if origin is Literal:
        return (_SOME if several else "") + ", ".join(map(str, parts))
    if origin in (tuple, list, Sequence):
        inner = describe_type(parts[0], several=True) if parts else "values"
        if inner.startswith(_SOME):
            return inner
        fixed = origin is tuple and len(parts) > 1 and parts[1] is not Ellipsis
        return f"{len(parts)} {inner}" if fixed else f"list{'s' * several} of {inner}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "sections" if several else "section"
    bounds = [
        f"{words} {value:g}"
        for part in metadata
        for name, words in _BOUNDS.items()
        if isinstance(value := getattr(part, name, None), int | float)
    ]
    kind = _WORDS.get(origin or annotation, ("value", "values"))[several]
    return f"{kind}, {' and '.join(bounds)}" if bounds else kind


def describe_default(field: FieldInfo) -> str:
    """A field's default as written in a configuration."""
    if field.is_required():
        return REQUIRED
    return describe_value(field.get_default(call_default_factory=True))


def describe_value(value: Any) -> str:
    """A default as written in a configuration; for a section, its `name` if it has one, as its own defaults are listed below."""
    if isinstance(value, BaseModel):
        name = getattr(value, "name", None)
        return str(name) if isinstance(name, str) else ""
    if isinstance(value, str):
        return value
    return json.dumps(
        value, default=lambda one: one.model_dump() if isinstance(one, BaseModel) else str(one), ensure_ascii=False
    )


def write_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown.

    >>> write_table(["a", "b"], [["1", "x|y"]])
    ['| a | b |', '|---|---|', '| 1 | x\\\\|y |']
    """
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
