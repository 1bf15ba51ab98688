"""FedIT: the factors of a LoRA adapter are averaged, each by itself (Zhang et al. 2024, arXiv:2305.05644).

    server   send (A, B) to every k in S
    client   train (A_k, B_k), from (A, B) on, as in FedAgent; return them
    server   A = mean of A_k;  B = mean of B_k

It is FedAgent on an adapter, bit for bit, under the name by which other adapter methods compare with it. The product of the
means is not the mean of the products: with weights p_k of sum 1,

    sum of p_k B_k A_k  -  B A  =  sum of p_k (B_k - B) (A_k - A)

FFA-LoRA (Sun et al. 2024, arXiv:2403.12313) removes this error by leaving A at its first draw, the same at all clients: A is
neither trained nor sent (`agent: {adapter: {train: B}}`), and the mean of B is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.agents.model.names import LOW
from fedagentgym.algorithms.adapters import AdapterAveraging, RankedAveraging, RankSettings, find_low
from fedagentgym.algorithms.averaging import AcceptedReply, AveragingSettings
from fedagentgym.algorithms.factors import is_factor
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, ServerState
from fedagentgym.federation.message import Array, Parameters


class FedITSettings(RankSettings, AveragingSettings):
    """`algorithm: {name: fedit}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["fedit"] = "fedit"
    pad: Literal["zero", "holders"] = Field(
        default="zero",
        description="with ranks: a row that some clients lack is averaged as zero there (zero), or over those that hold it"
        " (holders)",
    )

    @model_validator(mode="after")
    def _check_pad(self) -> Self:
        if self.pad == "holders" and self.ranks is None:
            raise ValueError("pad: holders needs unlike ranks: set algorithm.ranks")
        if self.pad == "holders" and (self.rule.name not in ("mean", "weighted") or self.takes_server_step):
            raise ValueError("pad: holders needs the aggregation mean or weighted, and no step of the server")
        if self.ranks is not None and self.rule.name not in ("mean", "weighted", "fedadam"):
            raise ValueError(
                f"with ranks, {self.rule.name} would take the rows that clients lack for zeros that they learned: use the"
                " aggregation mean, weighted or fedadam"
            )
        return self


class FedIT(RankedAveraging[FedITSettings]):
    """FedAgent on the factors of an adapter."""

    settings_class: ClassVar[type[Settings]] = FedITSettings

    def combine(
        self, state: ServerState, used: Sequence[AcceptedReply], updates: Iterator[Parameters], this_round: Round
    ) -> ServerState:
        """Average the factors; with `pad: holders` every row of A and column of B over the clients that have it.

        A row of A that no client of the round has stays as it was, as do its moments; with `holders` its column of B stays too.
        """
        after = super().combine(state, used, updates, this_round)
        if not used or self.settings.ranks is None:
            return after
        if self.settings.pad == "zero":
            rows = max(self.find_rank(reply.client) for reply in used)  # rows of A that a client of the round has
            return replace(
                after,
                parameters=_keep_rows(after.parameters, state.parameters, rows),
                optimizer=_keep_rows(after.optimizer, state.optimizer, rows),
            )
        weights = np.array(self.client_weights(used, this_round))
        held = np.arange(self.rank) < np.array([[self.find_rank(reply.client)] for reply in used])
        shares = weights @ held / weights.sum()
        parameters = dict(after.parameters)
        for name, mean in after.parameters.items():
            if is_factor(name):
                along = (slice(None), None) if LOW in name else (None, slice(None))
                rescaled = mean.astype(np.float64) / np.where(shares > 0, shares, 1.0)[along]
                kept = np.where((shares > 0)[along], rescaled, state.parameters[name])  # no client holds it: as it was
                parameters[name] = np.asarray(kept, dtype=mean.dtype)
        return replace(after, parameters=parameters)


def _keep_rows(arrays: Parameters, before: Parameters, held: int) -> dict[str, Array]:
    """Arrays in which every A, and every moment of an A, keeps its rows from `held` on; in a new array these rows are zero."""
    kept = dict(arrays)
    for name in find_low(arrays):
        rest = before[name][held:] if name in before else np.zeros_like(arrays[name][held:])
        kept[name] = np.concatenate([arrays[name][:held], rest])
    return kept


class FFALoRASettings(AveragingSettings):
    """`algorithm: {name: ffa-lora}` with `agent: {adapter: {rank: 8, train: B}}`."""

    name: Literal["ffa-lora"] = "ffa-lora"


class FFALoRA(AdapterAveraging[FFALoRASettings]):
    """FedAgent on the factor B of an adapter, whose A is the same at all clients."""

    settings_class: ClassVar[type[Settings]] = FFALoRASettings

    trains = "B"
