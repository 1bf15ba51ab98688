"""Benchmark suites, submitted results, their verification, and the tables made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import attach

if __name__ != "fedagentgym.leaderboard":
    raise ImportError("the folder `leaderboard` at the root holds results: import fedagentgym.leaderboard instead")

if TYPE_CHECKING:
    from fedagentgym.leaderboard.metrics import METRICS as METRICS
    from fedagentgym.leaderboard.suite import Suite as Suite
    from fedagentgym.leaderboard.suite import list_suites as list_suites
    from fedagentgym.leaderboard.suite import load_suite as load_suite

__getattr__, __dir__, __all__ = attach(
    __name__, {".metrics": ("METRICS",), ".suite": ("Suite", "list_suites", "load_suite")}
)
