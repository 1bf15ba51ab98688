"""Imports on first use: names that packages export, libraries of optional extras, registries of `module:attribute`, plugins.

Listing the names of a registry imports nothing. A plugin is a module outside the package whose import registers environments,
agents, samplers, rules and the like. A user names files and modules under `plugins:` or `--plugin`. An installed package names
its modules in its own metadata, as entry points of the group `fedagentgym.plugins`; they are imported when a name is looked up
that nothing else has registered.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import (
    DataError,
    FedAgentGymError,
    MissingExtraError,
    OptionError,
    UnknownNameError,
    describe_error,
    find_closest_name,
    show_value,
    unknown_name_error,
)
from fedagentgym.base.hooks import warn_of_misspelt_hooks

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
        exports: A mapping from modules to the names that they define; a module may be given relative to the package.

    Returns:
        The package's `__getattr__`, `__dir__` and `__all__`.

    Raises:
        ImportError: If the package was imported by another name, through one of the links in the repository's root.
    """
    outermost = __name__.partition(".")[0]
    if package.partition(".")[0] != outermost:
        raise ImportError(
            f"the folder {package!r} at the root is a link for readers: import {outermost}.{package} instead, and run pytest "
            "rather than python -m pytest"
        )
    modules = {name: module for module, names in exports.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with missing_explained():
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
    "plots": ("matplotlib",),
    "privacy": ("dp_accounting",),
    "data": ("datasets", "pyarrow"),
    "trl": ("trl",),
    "openenv": ("openenv",),
    "gateway": ("starlette", "uvicorn"),
    "verifiers": ("verifiers",),
    "inspect": ("inspect_ai",),
    "reasoning-gym": ("reasoning_gym",),
    "flwr-datasets": ("flwr_datasets",),
    "tensorboard": ("tensorboard",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
"""The packages of each extra, by the names under which they are imported."""


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


@contextmanager
def missing_explained() -> Iterator[None]:
    """Make the error for a missing module of an extra name the extra and its install command; also usable as a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = explain_missing(error)
        if sentence is None:
            raise
        raise MissingExtraError(sentence) from error


def _describe_missing(module: str, extra: str) -> str:
    return f"{module} is not installed: it comes with the extra [{extra}], pip install 'fedagentgym[{extra}]'"


# ---- plugins --------------------------------------------------------------------------------------------------------

GROUP = "fedagentgym.plugins"
MAX_BYTES = 10_000_000
"""Maximum size of a plugin file."""

log = logging.getLogger(__name__)


def check_plugins(plugins: Sequence[str]) -> None:
    """Refuse anything but a list of texts, and folders, which are neither files nor names of modules."""
    if isinstance(plugins, str):
        raise OptionError(f"plugins must be a list of files or modules, such as [{plugins!r}], not a text")
    for plugin in plugins:
        if not isinstance(plugin, str):
            raise OptionError(
                f"a plugin must be given as a text, the name of a file or module, got {show_value(plugin)}"
            )
        if plugin and not plugin.isidentifier() and not plugin.endswith(".py") and os.path.isdir(plugin):  # noqa: PTH112 - False for a name too long
            raise OptionError(f"the plugin {plugin!r} is a folder: name a file (mine.py) or a module (mine.tools)")


def load_plugins(plugins: Sequence[str]) -> None:
    """Import each plugin once per process; an entry that ends in `.py` is a file, any other is a module's name."""
    check_plugins(plugins)
    for plugin in plugins:
        try:
            with missing_explained():
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

    It contains a digest of the file's contents, so that two files with the same name do not replace each other, and copies of
    a file on several machines are imported under the same name.
    """
    return f"fedagentgym_plugin_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"


class _SourceLoader(SourceFileLoader):
    """Reads the source, never bytecode: Python takes old bytecode for current if an edit within a second keeps the size."""

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError("no bytecode")


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise DataError("there is no such file")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"it has more than {MAX_BYTES:,} bytes")
    name = module_name(path)
    if name in sys.modules:
        return
    loader = _SourceLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_file_location(name, path.resolve(), loader=loader)
    if spec is None or path.suffix != ".py":
        raise DataError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
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


def is_env_id(name: object) -> bool:
    """Return whether a name has the form of an environment's id, `namespace/Name-v0`.

    >>> is_env_id("me/Maze-v0"), is_env_id("me/Maze-v"), is_env_id("me/-very"), is_env_id("me/x/Maze-v0")
    (True, False, False, False)
    """
    return isinstance(name, str) and re.fullmatch(r"\A[\w-]+/[\w-]+-v\d+", name) is not None


def list_announced_ids() -> Iterator[str]:
    """The names of entry points that are environment ids, such as `me/Maze-v0`."""
    return (point.name for point in find_installed_plugins() if is_env_id(point.name))


def load_installed_plugins() -> None:
    """Import the modules that installed packages name, once per process; a broken one is skipped with a warning."""
    global _begun
    with _LOADING:
        if _begun:
            return
        _begun = True  # before the imports, since an imported module may look up names
        for point in find_installed_plugins():
            try:
                load_plugins([point.module])
            except DataError as error:
                package = point.dist.name if point.dist is not None else point.module
                log.warning("the installed package %s is left out: %s", package, error)


# ---- registries -----------------------------------------------------------------------------------------------------


class Registry:
    """The registered names of one kind, such as environments, samplers, agents or trackers, with their targets.

    An unknown name is looked up in the plugins of installed packages before it is refused.

    >>> shapes = Registry("shape", {"ordered": "collections:OrderedDict"})
    >>> shapes.get("ordered").__name__
    'OrderedDict'
    """

    def __init__(
        self, kind: str, entries: Mapping[str, str] | None = None, shorten: Callable[[str], str] | None = None
    ) -> None:
        """`shorten` gives the short form of a name, under which `find` finds it too."""
        self.kind, self._shorten = kind, shorten
        self._entries: dict[str, Any] = dict(entries or {})
        self._own = tuple(self._entries)

    def register(self, name: str, target: Any, *, replace: bool = False) -> None:
        """Add a name; `target` is `"module:attribute"` or the object itself."""
        if not name or not isinstance(name, str):
            raise OptionError(f"{self.kind}: a name must be a non-empty string, got {name!r}")
        if name in self._entries and not replace:
            raise OptionError(f"{self.kind} {name!r} is registered already: choose another name or pass replace=True")
        if isinstance(target, str) and not _REFERENCE.fullmatch(target):
            raise OptionError(f"{self.kind} {name!r}: {target!r} is not of the form 'module:attribute'")
        if isinstance(target, type):
            warn_of_misspelt_hooks(target)
        self._entries[name] = target

    def get(self, name: str) -> Any:
        """The object registered under a name; a string target is imported now."""
        target = self.get_target(name)
        if not isinstance(target, str):
            return target
        found = resolve(target, f"{self.kind} {name!r}")
        if isinstance(found, type):
            warn_of_misspelt_hooks(found)
        return found

    def find(self, name: object) -> str:
        """The registered name for a name or a short form, whose case is ignored; a plugin never hides the package's short forms.

        >>> Registry("shape", {"me/Round-v0": "collections:deque"}, str.upper).find("me/round-V0")
        'me/Round-v0'
        """
        if isinstance(name, str) and name in self:
            return name
        if isinstance(name, str) and self._shorten is not None:
            for known in dict.fromkeys((*self._own, *self._entries)):
                if self._shorten(known).lower() == name.lower():
                    return known
            by_short = {self._shorten(known): known for known in reversed(dict.fromkeys((*self._own, *self._entries)))}
            guess = find_closest_name(self._shorten(name[:200]), by_short)
            if guess is not None and find_closest_name(name[:200], self._entries) is None:
                raise UnknownNameError(f"unknown {self.kind} {name[:200]!r}: did you mean {by_short[guess]!r}?")
        raise unknown_name_error(self.kind, name, self._entries, registered=True)

    def get_target(self, name: str) -> Any:
        """The registered target, not imported."""
        if name not in self:
            raise unknown_name_error(self.kind, name, self._entries, registered=True)
        return self._entries[name]

    def describe(self, name: str) -> str:
        """The first line of the docstring; a target given as a string is parsed rather than imported, since its dependencies
        may not be installed."""
        target = self.get_target(name)
        docstring = read_docstring(target) if isinstance(target, str) else target.__doc__
        return (docstring or "").strip().partition("\n")[0]

    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def is_added(self, name: str) -> bool:
        """Return whether a plugin registered the name."""
        return name in self and name not in self._own

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


_REFERENCE = re.compile(r"\A[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def read_docstring(reference: str) -> str | None:
    """The docstring of a function or class `module:name`, from the module's source.

    >>> read_docstring("fedagentgym.base.imports:resolve")
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


def _explain_import(what: str, module: str, error: Exception) -> Exception:
    """The error to raise if importing a module fails: a `DataError` of one sentence if the module is a user's."""
    ours = module.partition(".")[0] == __name__.partition(".")[0]
    if ours or isinstance(error, FedAgentGymError) or (isinstance(error, ImportError) and explain_missing(error)):
        return error
    return DataError(f"{what}: cannot import the module {module!r}: {describe_error(error)}")


def resolve(reference: str, what: str = "reference") -> Any:
    """Import `module:attribute`."""
    if not _REFERENCE.fullmatch(reference):
        raise OptionError(f"{what}: {reference!r} is not of the form 'module:attribute'")
    module, _, attribute = reference.partition(":")
    try:
        with missing_explained():
            found: Any = importlib.import_module(module)
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _explain_import(what, module, error) from error
        raise OptionError(f"{what}: Python finds no module {error.name!r}") from None
    except Exception as error:
        raise _explain_import(what, module, error) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{what}: module {module} has no attribute {attribute}")
        found = getattr(found, part)
    return found
