"""Names of code objects: `module:attribute`, imported on first use, so that listing names imports nothing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.imports import load_installed_plugins


class Registry:
    """A table of one kind of thing (environment, partition, agent, algorithm, tracker).

    A name that is missing is looked for in installed packages before it is called unknown (see `base.imports`).

    >>> shapes = Registry("shape", {"ordered": "collections:OrderedDict"})
    >>> shapes.get("ordered").__name__
    'OrderedDict'
    """

    def __init__(self, kind: str, entries: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = dict(entries or {})

    def register(self, name: str, target: Any, *, replace: bool = False) -> None:
        """Add a name; `target` is `"module:attribute"` or the object itself."""
        if not name or not isinstance(name, str):
            raise OptionError(f"the name of a {self.kind} is a non-empty string, got {name!r}")
        if name in self._entries and not replace:
            raise OptionError(f"{self.kind} {name!r} is registered already: choose another name or pass replace=True")
        if isinstance(target, str) and not _is_reference(target):
            raise OptionError(f"{self.kind} {name!r}: {target!r} is not of the form 'module:attribute'")
        self._entries[name] = target

    def get(self, name: str) -> Any:
        """The object; a string target is imported now."""
        target = self.get_target(name)
        return resolve(target, f"{self.kind} {name!r}") if isinstance(target, str) else target

    def get_target(self, name: str) -> Any:
        """The registered target, not imported."""
        if name not in self:
            raise unknown_name_error(self.kind, name, self._entries)
        return self._entries[name]

    def describe(self, name: str) -> str:
        """The first line of the docstring; a target given as a string is parsed rather than imported, since its dependencies
        may not be installed."""
        target = self.get_target(name)
        told = read_docstring(target) if isinstance(target, str) else target.__doc__
        return (told or "").strip().partition("\n")[0]

    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._entries:
            load_installed_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._entries)


def _is_reference(target: str) -> bool:
    module, colon, attribute = target.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def read_docstring(reference: str) -> str | None:
    """The docstring of a function or class `module:name`, from the module's source.

    >>> read_docstring("fedagentgym.base.registry:resolve")
    'Import `module:attribute`.'
    """
    module, _, attribute = reference.partition(":")
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return None
    for node in ast.parse(Path(found.origin).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == attribute:
            return ast.get_docstring(node)
    return None


def resolve(reference: str, what: str = "reference") -> Any:
    """Import `module:attribute`."""
    if not _is_reference(reference):
        raise OptionError(f"{what}: {reference!r} is not of the form 'module:attribute'")
    module, _, attribute = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{what}: module {module} has no attribute {attribute}")
        found = getattr(found, part)
    return found
