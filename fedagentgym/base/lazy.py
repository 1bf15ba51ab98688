"""Packages that export names of their modules without importing the modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attach(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make a package export names that are imported on first use.

    A package's `__init__` repeats the imports under `if TYPE_CHECKING:`, as `from module import Name as Name`, so that type
    checkers and the reference see them.

    Args:
        package: `__name__` of the package.
        exports: The exported names by the module that defines them; a module may be given relative to the package.

    Returns:
        The package's `__getattr__`, `__dir__` and `__all__`.
    """
    modules = {name: module for module, names in exports.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, list_names, sorted(modules)
