"""FGRPO: a client counts by the gain of its reward over its own history (arXiv:2606.03094).

    server   send theta to every k in S
    client   train as in FedAgent; return theta_k and r_k, the mean reward of the episodes that it played
    server   gain_k = (r_k - h_k) / max(|h_k|, scale), clipped to -1..1; 0 for a client without a history
    server   w_k = exp(gain_k / temperature), made to add up to 1;  theta = sum of w_k theta_k
    server   h_k = history * h_k + (1 - history) * r_k; h_k begins as the first reward

Only the abstract is followed. It says that clients are weighted by their relative gain over their own historical baseline, but
not how. The formulas are the simplest with this property; `docs/reference/methods/fgrpo.md` lists the choices. The first round is
that of FedAgent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import AcceptedReply, AveragingSettings
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState

REWARD, HISTORY = "reward", "history"
MAX_REWARD = 1e6


class FGRPOSettings(AveragingSettings):
    """`algorithm: {name: fgrpo, temperature: 0.5}`."""

    name: Literal["fgrpo"] = "fgrpo"
    history: float = Field(
        default=0.5, ge=0, lt=1, description="weight of the old value when a reward is averaged into a client's history"
    )
    temperature: float = Field(
        default=0.5,
        gt=0,
        description="gain for which a client counts e times as much; the larger, the more equal the weights",
    )
    scale: float = Field(default=0.1, gt=0, description="smallest reward by which a gain is divided")

    @model_validator(mode="after")
    def _refuse_what_ignores_weights(self) -> Self:
        if self.privacy is not None:
            raise ValueError(
                "fgrpo's weights depend on the clients' rewards, which are not protected by noise on the mean of updates: privacy"
                " cannot be used with it"
            )
        if not self.rule.uses_weights:
            raise ValueError(
                f"{self.rule.name} ignores weights, by which alone fgrpo differs from plain averaging: choose a rule that uses"
                " them, such as weighted"
            )
        return self


class FGRPO(Averaging[FGRPOSettings]):
    """FedAgent with clients weighted by their gain over their own history; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = FGRPOSettings

    deciding_metrics = MappingProxyType({REWARD: (-MAX_REWARD, MAX_REWARD)})

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Average by gain, and update the histories of the clients whose replies are used."""
        history: Mapping[str, float] = state.memory.get(HISTORY, {})
        with self.train_participants(state, this_round) as replies:
            accepted = [self._add_gain(reply, history) for reply in replies.accepted]
            used = {reply.client for reply in replies.used}
            replies = replace(replies, accepted=accepted, used=[reply for reply in accepted if reply.client in used])
            after = self.combine(state, replies.used, replies.read(), this_round)
        renewed, keep = dict(history), self.settings.history
        for reply in replies.used:
            client, reward = str(reply.client), reply.metrics[REWARD]
            renewed[client] = keep * history[client] + (1 - keep) * reward if client in history else reward
        return self.report(replace(after, memory={**after.memory, HISTORY: renewed}), replies, this_round)

    def _add_gain(self, reply: AcceptedReply, history: Mapping[str, float]) -> AcceptedReply:
        before, gain = history.get(str(reply.client)), 0.0
        if before is not None:
            gain = (reply.metrics[REWARD] - before) / max(abs(before), self.settings.scale)
        return replace(reply, metrics={**reply.metrics, "gain": min(max(gain, -1.0), 1.0)})

    def client_weights(self, replies: Sequence[AcceptedReply], this_round: Round) -> list[float]:
        """The softmax of the gains, up to a common factor: equal gains are weights of exactly 1."""
        scaled = np.array([reply.metrics["gain"] for reply in replies]) / self.settings.temperature
        return [float(weight) for weight in np.exp(scaled - scaled.max())]
