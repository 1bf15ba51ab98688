"""Clustered federated learning: clients whose updates point in opposite directions get models of their own (Sattler et al. 2021).

    server   send the model of its cluster to every k in S
    client   train as in FedAgent
    server   for every cluster: its model = mean over its members in S
    server   if the members' updates cancel each other out - the norm of their mean is below `split_below` of the mean of their
             norms - divide the cluster in two, so that the greatest cosine between updates of the two parts is smallest; do so
             only if that cosine is below `largest_cosine`

A cluster is divided after round `split_after` at the earliest, and only in rounds in which all of its members have replied.
Clients work as in FedAgent; the server computes the angles from the parameters that they return.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import AcceptedReply, AveragingSettings
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import Mean
from fedagentgym.federation.algorithm import Failure, Round, RoundResult, ServerState
from fedagentgym.federation.message import Array, Message, Parameters

MEMBERS, MODELS = "members", "models"
Vector = NDArray[np.float64]


class ClusteredSettings(AveragingSettings):
    """`algorithm: {name: clustered, split_after: 1, split_below: 0.5}`."""

    name: Literal["clustered"] = "clustered"
    split_after: int = Field(default=1, ge=1, description="first round after which clusters are divided")
    split_below: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="members disagree if the norm of their mean update is below this share of the mean of their norms",
    )
    largest_cosine: float = Field(
        default=0.0,
        ge=-1,
        le=1,
        description="divide only if all cosines between updates of the two parts are below this",
    )

    @model_validator(mode="after")
    def _refuse_what_needs_one_model(self) -> Self:
        if self.privacy is not None or self.rule.name != Mean().name or self.takes_server_step:
            raise ValueError(
                "clustered averages within clusters: leave out privacy, aggregation, server_step and server_momentum"
            )
        return self


class Clustered(Averaging[ClusteredSettings]):
    """Federated averaging within clusters of clients that are found by the angles between their updates."""

    settings_class: ClassVar[type[Settings]] = ClusteredSettings

    def initial_state(self) -> ServerState:
        state = super().initial_state()
        members = [list(self.client_ids())]
        return replace(state, memory={MEMBERS: members, MODELS: [dict(state.parameters)]})

    def client_parameters(self, state: ServerState, client: int, kept: Message) -> Parameters:
        """The model of the client's cluster."""
        members: Sequence[Sequence[int]] = state.memory[MEMBERS]
        model: Parameters = state.memory[MODELS][next(n for n, part in enumerate(members) if client in part)]
        return model

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Send every participant the model of its cluster, average within clusters, and divide those that disagree."""
        control = {"step": (this_round.number - 1) * self.settings.local_steps}
        models = [Message(weights=model, control=control) for model in state.memory[MODELS]]
        cluster_of = {client: number for number, part in enumerate(state.memory[MEMBERS]) for client in part}
        asked = {client: models[cluster_of[client]] for client in this_round.participants}
        with self.collect(this_round.clients.iter_replies("train", asked), state, this_round) as replies:
            after = self.combine(state, replies.used, replies.read(), this_round)
        return self.report(after, replies, this_round)

    def accept(self, client: int, message: Message, state: ServerState) -> AcceptedReply | Failure:
        """The distance of a reply is measured from the model of the client's cluster."""
        own = self.client_parameters(state, client, Message())
        return super().accept(client, message, replace(state, parameters=own))

    def combine(
        self, state: ServerState, used: Sequence[AcceptedReply], updates: Iterator[Parameters], this_round: Round
    ) -> ServerState:
        """The mean of every cluster, and of all; clusters that disagree are divided."""
        replies = {reply.client: dict(update) for reply, update in zip(used, updates, strict=True)}
        if not replies:
            return state
        norms = {reply.client: reply.update_norm for reply in used}
        members: list[list[int]] = []
        models: list[Parameters] = []
        for part, model in zip(state.memory[MEMBERS], state.memory[MODELS], strict=True):
            there = [client for client in part if client in replies]
            clipped = {one: self.settings.checks.clip(model, replies[one], norms[one]) for one in there}
            whole = len(there) == len(part) and this_round.number >= self.settings.split_after
            for group in self._divide(model, clipped) if whole else [list(part)]:
                members.append(group)
                ends = [clipped[one] for one in group if one in clipped]
                models.append(_weigh(ends, [1] * len(ends)) if ends else model)  # as it was if no client replied
        sizes = [len(part) for part in members]
        return replace(state, parameters=_weigh(models, sizes), memory={MEMBERS: members, MODELS: models})

    def _divide(self, model: Parameters, replies: Mapping[int, Parameters]) -> list[list[int]]:
        """The members as one cluster, or as two that disagree."""
        clients = sorted(replies)
        moved = np.stack(
            [
                np.concatenate(
                    [(replies[client][name].astype(np.float64) - model[name]).reshape(-1) for name in sorted(model)]
                )
                for client in clients
            ]
        )
        norms = np.linalg.norm(moved, axis=1)
        if len(clients) < 2 or np.linalg.norm(moved.mean(axis=0)) >= self.settings.split_below * norms.mean():
            return [clients]
        scaled = moved / np.maximum(norms, np.finfo(np.float64).tiny)[:, None]
        first, second, cosine = bipartition(scaled @ scaled.T)
        if cosine >= self.settings.largest_cosine:
            return [clients]
        return [[clients[place] for place in part] for part in (first, second)]


def bipartition(similarity: Vector) -> tuple[list[int], list[int], float]:
    """Two parts such that the greatest similarity between them is as small as possible, and that similarity.

    Pairs are joined from the most similar on until two parts are left, as in single linkage, which gives the optimum.

    >>> bipartition(np.array([[1.0, 0.9, -0.5], [0.9, 1.0, -0.4], [-0.5, -0.4, 1.0]]))
    ([0, 1], [2], -0.4)
    """
    count = len(similarity)
    parts = [[place] for place in range(count)]
    pairs = [(float(similarity[i, j]), i, j) for i in range(count) for j in range(i + 1, count)]
    for value, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        first, second = (next(part for part in parts if place in part) for place in (i, j))
        if first is second:
            continue
        if len(parts) == 2:
            return sorted(parts[0]), sorted(parts[1]), value
        parts.remove(second)
        first.extend(second)
    raise ValueError("a partition needs at least two members")


def _weigh(models: Sequence[Parameters], weights: Sequence[int]) -> dict[str, Array]:
    total = sum(weights)
    return {
        name: np.asarray(
            sum(weight * model[name].astype(np.float64) for weight, model in zip(weights, models, strict=True)) / total,
            dtype=array.dtype,
        )
        for name, array in models[0].items()
    }
