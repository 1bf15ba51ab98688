"""The common part of all engines' sessions: they end once, and refuse a prompt without space for a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from fedagentgym.base.errors import DataError


class BaseSession:
    """Base of a ``policy.Session``. ``rows`` are the engine's; ``on_close`` returns what the policy lent."""

    def __init__(self, context_length: int, on_close: Callable[[], object] | None = None) -> None:
        self.context_length = context_length
        self._rows: dict[int, Any] = {}
        self._next = 0
        self._on_close = on_close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        self._rows.clear()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        for prompt in prompts:
            if not prompt:
                raise DataError("a prompt of no tokens cannot be continued")
            if len(prompt) >= self.context_length:
                raise DataError(
                    f"a prompt of {len(prompt)} tokens does not fit into the model's context of {self.context_length}: "
                    "shorten the prompt (template, history) or use a model with a longer context"
                )
