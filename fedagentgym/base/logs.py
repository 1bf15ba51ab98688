"""One logger tree below `fedagentgym`; a library never configures handlers, a command does once."""

from __future__ import annotations

import logging


def get_logger(name: str) -> logging.Logger:
    """The logger of a module: `get_logger(__name__)`."""
    return logging.getLogger(name if name.startswith("fedagentgym") else f"fedagentgym.{name}")


def log_to_stderr(level: int = logging.WARNING) -> None:
    """What the command line does at start: warnings of ours, one line each, on standard error."""
    root = logging.getLogger("fedagentgym")
    root.setLevel(level)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
