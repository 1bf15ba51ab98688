"""Zero-shot: the agent as it is. No client is called and nothing is learned; what is evaluated is the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from fedagentgym.algorithms.fedagent import FedAgent
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult
from fedagentgym.federation.message import Message
from fedagentgym.federation.operation import Operation


class ZeroShotSettings(Settings):
    """`algorithm: zero-shot`, usually with `federation: {rounds: 0}`."""

    name: Literal["zero-shot"] = "zero-shot"


class ZeroShot(FedAgent):
    """A federation that leaves everything as it is."""

    settings_class: ClassVar[type[Settings]] = ZeroShotSettings

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {}

    def round(self, state: Message, round: Round) -> RoundResult:
        return RoundResult(state)
