"""What is verified: a packed result beside the definition that it is checked against, and the error of a false claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedagentgym.base.errors import DataError
from fedagentgym.leaderboard.aggregate import CellData
from fedagentgym.leaderboard.record import Manifest
from fedagentgym.leaderboard.scenarios import OpenedScenario
from fedagentgym.leaderboard.suite import Suite


class RefutedError(DataError):
    """A claim of a result is false: `claim` names it, the text gives the place."""

    def __init__(self, claim: str, where: str) -> None:
        super().__init__(f"{claim}: {where}")
        self.claim = claim


@dataclass(frozen=True)
class Examined:
    """A cell whose episodes were replayed; `cut_short` counts those that may have ended because the context was full."""

    data: CellData
    episodes: int
    cut_short: int


@dataclass(frozen=True)
class Folder:
    """A result with the suite against which it is checked."""

    place: Path
    manifest: Manifest
    suite: Suite
    opened: Mapping[str, OpenedScenario]
    plugins: tuple[str, ...] = ()
    """Plugins with the method's code that the verifier has loaded."""

    @property
    def is_method(self) -> bool:
        return self.suite.track == "methods"
