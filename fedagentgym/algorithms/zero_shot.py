"""Zero-shot: the initial agent. No client is called and nothing is learned; evaluation gives the baseline."""

from __future__ import annotations

from typing import ClassVar, Literal

from fedagentgym.algorithms.base import BaseAlgorithm, Scale, Work
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState


class ZeroShotSettings(Settings):
    """`algorithm: zero-shot`, usually with `federation: {rounds: 0}`."""

    name: Literal["zero-shot"] = "zero-shot"


class ZeroShot(BaseAlgorithm[ZeroShotSettings]):
    """A federation without training: the parameters stay as loaded."""

    settings_class: ClassVar[type[Settings]] = ZeroShotSettings

    @classmethod
    def estimate_round(cls, settings: ZeroShotSettings, scale: Scale) -> Work | None:
        """Nothing."""
        return Work()

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        return RoundResult(state)
