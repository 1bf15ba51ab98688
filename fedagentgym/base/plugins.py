"""A user's own modules: files or importable names whose import registers environments, agents, samplers, rules and the like."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from fedagentgym.base.errors import DataError, FedAgentGymError, describe_error

MOST_BYTES = 10_000_000
"""Maximum size of a plugin file."""


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
    """The name under which a plugin file is imported."""
    return f"fedagentgym_plugin_{path.stem}"


def _load_file(path: Path) -> None:
    name = module_name(path)
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
        return
    if not path.is_file():
        raise DataError("there is no such file")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"it has more than {MOST_BYTES:,} bytes")
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
