"""Imports on first use: the names that packages export, libraries of optional extras, and plugins.

A plugin is a module outside the package whose import registers environments, agents, samplers, rules and the like. A user names
files and modules under `plugins:` or `--plugin`. An installed package names its modules in its own metadata, as entry points of
the group `fedagentgym.plugins`; they are imported when a name is looked up that nothing else has registered.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import DataError, FedAgentGymError, MissingExtraError, describe_error

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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


# ---- optional extras ------------------------------------------------------------------------------------------------

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch", "transformers", "peft", "safetensors", "tokenizers", "gguf", "huggingface_hub"),
    "alfworld": ("alfworld", "textworld"),
    "flower": ("flwr", "ray"),
    "vllm": ("vllm",),
    "endpoint": ("httpx",),
    "plots": ("matplotlib",),
    "privacy": ("dp_accounting",),
    "data": ("datasets", "pyarrow"),
    "trl": ("trl",),
    "openenv": ("openenv",),
    "reasoning-gym": ("reasoning_gym",),
    "flwr-datasets": ("flwr_datasets",),
}
"""What each extra brings, by the names under which it is imported."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or raise an error that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        if missing.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(_describe_missing(module, extra)) from None


def explain_missing(error: ImportError) -> str | None:
    """The message for a failed import of a module that an extra brings; None for any other module."""
    top = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules), None)
    return None if extra is None or not isinstance(error, ModuleNotFoundError) else _describe_missing(top, extra)


def _describe_missing(module: str, extra: str) -> str:
    return f"{module} is not installed: it comes with the extra [{extra}], pip install 'fedagentgym[{extra}]'"


# ---- plugins --------------------------------------------------------------------------------------------------------

GROUP = "fedagentgym.plugins"
MOST_BYTES = 10_000_000
"""Maximum size of a plugin file."""

log = logging.getLogger(__name__)


def load_plugins(plugins: Iterable[str]) -> None:
    """Import each plugin once per process; an entry that ends in `.py` is a file, any other is a module's name."""
    for plugin in plugins:
        try:
            _load_file(Path(plugin)) if plugin.endswith(".py") else importlib.import_module(plugin)
        except KeyboardInterrupt:
            raise
        except SystemExit:
            raise DataError(f"cannot load the plugin {plugin!r}: it calls sys.exit") from None
        except BaseException as error:
            reason = describe_error(error, named=not isinstance(error, FedAgentGymError | ImportError))
            raise DataError(f"cannot load the plugin {plugin!r}: {reason}") from error


def module_name(path: Path) -> str:
    """The name under which a plugin file is imported.

    It contains a digest of the contents: two files called `mine.py` do not replace each other, and copies of one file on several
    machines have the same name.
    """
    return f"fedagentgym_plugin_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise DataError("there is no such file")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"it has more than {MOST_BYTES:,} bytes")
    name = module_name(path)
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise DataError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


# ---- installed packages -----------------------------------------------------------------------------------------------


_LOADING = RLock()
_begun = False


@cache
def find_installed_plugins() -> tuple[EntryPoint, ...]:
    """The entry points of the group, read from the metadata of installed packages; nothing is imported."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def list_announced_ids() -> Iterator[str]:
    """The names of entry points that are environment ids, such as `me/Maze-v0`."""
    return (point.name for point in find_installed_plugins() if re.fullmatch(r"[\w-]+/[\w-]+-v\d+", point.name))


def load_installed_plugins() -> None:
    """Import the modules that installed packages name, once per process; a broken one is skipped with a warning."""
    global _begun
    with _LOADING:
        if _begun:
            return
        _begun = True  # now, since a module that is imported may look up names
        for point in find_installed_plugins():
            try:
                load_plugins([point.module])
            except DataError as error:
                package = point.dist.name if point.dist is not None else point.module
                log.warning("the installed package %s is left out: %s", package, error)
