"""Playing episodes, learning from them, evaluating the result, for one site at a time; independent of federations.

`collect` (play episodes) and `evaluate` (evaluate an agent) are imported from here on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedagentgym.learning.evaluation import evaluate
    from fedagentgym.learning.rollouts import collect

__all__ = ["collect", "evaluate"]

_LAZY = {"collect": "fedagentgym.learning.rollouts", "evaluate": "fedagentgym.learning.evaluation"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'fedagentgym.learning' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
