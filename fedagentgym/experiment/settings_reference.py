"""Every key of a configuration with its type, default and meaning, read from the types that validate it.

Keys that depend on a name (`algorithm`, `partition.sampler`, an advantage estimator, a backend's options) are listed for each
class that is registered under one, those of plugins too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.imports import Registry
from fedagentgym.base.kinds import (
    REQUIRED,
    describe_default,
    describe_field,
    describe_type,
    describe_value,
    write_table,
)
from fedagentgym.base.settings import Choice
from fedagentgym.experiment.config import RunConfig


def _load_methods() -> Registry:
    from fedagentgym.algorithms import ALGORITHMS

    return ALGORITHMS


def _load_samplers() -> Registry:
    from fedagentgym.partitions.samplers import SAMPLERS

    return SAMPLERS


ALL_NAMES: Mapping[str, Callable[[], Registry]] = {"algorithm": _load_methods, "partition": _load_samplers}
"""Sections whose keys mostly belong to some of the registered names."""


@dataclass(frozen=True)
class SettingEntry:
    """A key. `names` are the choices to which it belongs, empty if it always exists; `fedagent: krum` is a choice of a choice."""

    key: str
    kind: str
    default: str
    meaning: str
    names: tuple[str, ...] = ()


def list_settings() -> list[SettingEntry]:
    """All keys, in the order of a configuration; a key that several choices share is one entry."""
    merged: dict[tuple[str, str, str, str], SettingEntry] = {}
    for entry in _iter_all():
        same = (entry.key, entry.kind, entry.default, entry.meaning)
        known = merged.get(same)
        merged[same] = entry if known is None else replace(known, names=(*known.names, *entry.names))
    return list(merged.values())


def find_settings(key: str) -> list[SettingEntry]:
    """The entries of a key and of all keys below it; the last part of a key finds every key that ends in it."""
    entries = list_settings()
    found = [entry for entry in entries if entry.key == key or entry.key.startswith(f"{key}.")]
    found = found or [entry for entry in entries if entry.key.endswith(f".{key}")]
    if not found:
        ends = [entry.key.rpartition(".")[2] for entry in entries]
        raise unknown_name_error("setting", key, dict.fromkeys([*(entry.key for entry in entries), *ends]))
    return found


def describe_names(entry: SettingEntry, entries: Sequence[SettingEntry]) -> str:
    """The choices to which a key belongs, in short: without those of the key above it, and with `all but ...` for long lists.

    Args:
        entry: A key.
        entries: All keys.

    Returns:
        The text; empty for a key that the key above always has.
    """
    parent = entry.key.rpartition(".")[0].removesuffix("[]")
    above = {name.partition(": ")[0] for other in entries if other.key == parent for name in other.names}
    outer = dict.fromkeys(name.partition(": ")[0] for name in entry.names)
    inner = dict.fromkeys(name.partition(": ")[2] for name in entry.names if ": " in name)
    if above == set(outer):
        outer = {}
    registry = ALL_NAMES.get(entry.key.partition(".")[0])
    others = [name for name in registry().names() if name not in outer] if registry and outer else []
    shown = f"all but {', '.join(others)}" if 0 < len(others) < len(outer) else ", ".join(outer)
    return "; ".join(filter(None, [", ".join(inner), shown]))


def _iter_all() -> Iterator[SettingEntry]:
    from fedagentgym.agents.players.endpoint import EndpointOptions
    from fedagentgym.agents.players.scripted import ExpertOptions
    from fedagentgym.agents.settings import VllmOptions, VllmServerOptions
    from fedagentgym.algorithms import ALGORITHMS
    from fedagentgym.algorithms.base import get_algorithm_class
    from fedagentgym.federation.backends import BACKENDS, describe_options
    from fedagentgym.partitions.samplers import SAMPLERS

    for section, field in RunConfig.model_fields.items():
        yield from _iter_field(section, field)
        if section == "partition":
            for name in SAMPLERS.names():
                sampler = SAMPLERS.get(name)
                if isinstance(sampler, type):  # a sampler that is a function has no descriptions of its parameters
                    yield from _iter_model("partition", sampler, (name,), skipped=("name",))
        elif section == "agent":
            options = (
                ("endpoint", EndpointOptions),
                ("expert", ExpertOptions),
                ("vllm", VllmOptions),
                ("vllm-server", VllmServerOptions),
            )
            for name, model in options:
                yield from _iter_model("agent.options", model, (name,))
        elif section == "algorithm":
            for name in ALGORITHMS.names():
                settings = get_algorithm_class({"name": name}).settings_class
                yield from _iter_model("algorithm", settings, (name,), skipped=("name",))
        elif section == "federation":
            for name in BACKENDS.names():
                for option, annotation, default in describe_options(name) or ():
                    shown = REQUIRED if default is PydanticUndefined else describe_value(default)
                    about = next(
                        (one.description for one in _iter_metadata(annotation) if isinstance(one, FieldInfo)), None
                    )
                    key = f"federation.options.{option}"
                    yield SettingEntry(key, describe_type(annotation), shown, about or "", (name,))


def _iter_field(key: str, field: FieldInfo, names: tuple[str, ...] = ()) -> Iterator[SettingEntry]:
    """An entry, and those below it."""
    yield SettingEntry(key, describe_field(field), describe_default(field), field.description or "", names)
    marks = [*field.metadata, *_iter_metadata(field.annotation)]
    choice = next((mark for mark in marks if isinstance(mark, Choice)), None)
    if choice is not None:
        for name in choice.registry.names():
            chosen = choice.registry.get(name)
            if isinstance(chosen, type) and issubclass(chosen, BaseModel):
                inner = tuple(f"{outer}: {name}" for outer in names) or (name,)
                yield from _iter_model(key, chosen, inner, skipped=("name",))
        return
    model, listed = _find_model(field.annotation)
    if model is not None:
        yield from _iter_model(f"{key}[]" if listed else key, model, names)


def _iter_model(
    key: str, model: type[BaseModel], names: tuple[str, ...] = (), skipped: tuple[str, ...] = ()
) -> Iterator[SettingEntry]:
    for name, field in model.model_fields.items():
        if name not in skipped:
            yield from _iter_field(f"{key}.{name}", field, names)


# ---- models inside a field --------------------------------------------------------------------------------------------


def _iter_metadata(annotation: Any) -> Iterator[Any]:
    """Every annotation inside a type."""
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    for part in get_args(annotation):
        if get_origin(part) is not None:
            yield from _iter_metadata(part)


def _find_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The settings class inside a type, and whether it is in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    listed = get_origin(annotation) in (tuple, list)
    for part in get_args(annotation):
        model, below = _find_model(part)
        if model is not None:
            return model, listed or below
    return None, False


def to_markdown(entries: list[SettingEntry]) -> str:
    """The reference as a page of the documentation: a table for each section."""
    lines = [
        "# Settings",
        "",
        "Every key of a configuration, made from the types that validate it (`fedagentgym settings --markdown`). `fedagentgym",
        "settings KEY` prints a part of it, `fedagentgym presets CONFIG` the resolved configuration. Where a key",
        "belongs to some choices only (an algorithm, a sampler), they are listed after its meaning.",
    ]
    for section, found in groupby(entries, key=lambda entry: entry.key.partition(".")[0]):
        rows = []
        for entry in found:
            belongs = describe_names(entry, entries)
            names = f" *({belongs})*" if belongs else ""
            description = "; ".join(part for part in (entry.meaning, entry.kind) if part)
            default = f"`{entry.default}`" if entry.default not in ("", REQUIRED) else entry.default
            rows.append((f"`{entry.key}`", default, f"{description}{names}"))
        lines += ["", f"## {section}", "", *write_table(("key", "default", "meaning"), rows)]
    return "\n".join(lines) + "\n"
