"""What an environment shows after a reset or a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

EMPTY: Mapping[str, Any] = {}


class View(NamedTuple):
    """An observation, with everything that is reported together with it."""

    observation: str
    admissible: tuple[str, ...] | None = None
    reward: float = 0.0
    score: float = 0.0
    success: bool = False
    done: bool = False
    valid: bool = True
    rewards: Mapping[str, float] = EMPTY
    extra: Mapping[str, Any] = EMPTY
