"""Zero-shot: the agent as it is. No client is called and nothing is learned; what is evaluated is the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

from fedagentgym.algorithms.workbench import Site, Workbench
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult
from fedagentgym.federation.message import Message
from fedagentgym.federation.operation import Operation


class ZeroShotSettings(Settings):
    """`algorithm: zero-shot`, usually with `federation: {rounds: 0}`."""

    name: Literal["zero-shot"] = "zero-shot"


class ZeroShot:
    """An algorithm that leaves everything as it is."""

    settings_class: ClassVar[type[Settings]] = ZeroShotSettings
    metered: ClassVar[bool] = True

    def __init__(self, settings: ZeroShotSettings, bench: Workbench) -> None:
        self.settings, self.bench = settings, bench
        self.operations: Mapping[str, Operation] = {}

    def client_ids(self) -> Sequence[int]:
        return range(len(self.bench.federation))

    def resources(self, client: int) -> Site:
        return self.bench.site(client)

    def initial(self) -> Message:
        return Message(weights=self.bench.initial_weights)

    def prepare(self, state: Message, round: Round) -> RoundResult:
        return RoundResult(state)

    def round(self, state: Message, round: Round) -> RoundResult:
        return RoundResult(state)

    def policy(self, state: Message) -> Mapping[str, NDArray[Any]]:
        return state.weights
