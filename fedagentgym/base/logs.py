"""One logger tree below `fedagentgym`. The library configures no handlers; a command does so once."""

from __future__ import annotations

import logging


def get_logger(name: str) -> logging.Logger:
    """The logger of a module: `get_logger(__name__)`."""
    return logging.getLogger(name if name.startswith("fedagentgym") else f"fedagentgym.{name}")


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Print this package's warnings on standard error, one line each; called when a command starts."""
    root = logging.getLogger("fedagentgym")
    root.setLevel(level)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
