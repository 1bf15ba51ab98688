"""Optional libraries, imported when first needed and named by their extra when absent."""

from __future__ import annotations

import importlib
from types import ModuleType

from fedagentgym.base.errors import MissingExtraError


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra of this package brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        if missing.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(
            f"{module} is not installed: it comes with the extra [{extra}], pip install 'fedagentgym[{extra}]'"
        ) from None
