"""FedDyn: a dynamic penalty whose optimum agrees with that of all clients together (Acar et al. 2021, Algorithm 1).

    server   send theta to every k in P
    client   theta_k ~ argmin  L_k(theta_k) - <g_k, theta_k> + alpha / 2 * |theta_k - theta|^2        (local_steps policy steps)
    client   g_k = g_k - alpha * (theta_k - theta);  return theta_k
    server   s = s + 1 / m * sum of (theta_k - theta), over P
    server   theta = (mean of theta_k, over P) + s

m is the number of all clients. g_k, which becomes the gradient of L_k at theta_k, stays in the client's state, s in the server's;
only parameters are sent. The penalty's gradient is added before the gradient is clipped and before AdamW's moments.

The paper writes h = -alpha * s, so that alpha cancels at the server: it adds all moves so far to the mean, undamped, even if the
penalty is small. With `correct_server: false` theta is the mean alone, which shows the effect of the penalty by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import LocalStepsSettings
from fedagentgym.algorithms.card import Card, Scale
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.runtime import Site
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import OPTIMIZER, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import Array, Message
from fedagentgym.learning.penalties import Penalty, add_gradient

if TYPE_CHECKING:
    from torch import Tensor

GRADIENT, MOVES = "gradient", "moves"


class FedDynSettings(LocalStepsSettings):
    """`algorithm: {name: feddyn, alpha: 0.01}`; the paper tries 0.001, 0.01 and 0.1."""

    name: Literal["feddyn"] = "feddyn"
    alpha: float = Field(default=0.01, ge=0.0, description="weight of the penalty")
    correct_server: bool = Field(
        default=True, description="add the moves of all rounds to the server's mean, as published"
    )

    @model_validator(mode="after")
    def _refuse_what_breaks_the_penalty(self) -> Self:
        if self.privacy is not None:
            raise ValueError(
                "feddyn's server adds up the clients' steps, noise included: privacy cannot be used with it"
            )
        if self.proximal > 0:
            raise ValueError("feddyn has a proximal term of its own, with the weight alpha: leave out proximal")
        return self


class FedDyn(Averaging[FedDynSettings]):
    """Federated averaging with a dynamic penalty; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = FedDynSettings

    kept_sets = (GRADIENT,)

    def initial_state(self) -> ServerState:
        state = super().initial_state()
        return replace(state, memory={MOVES: {name: np.zeros_like(value) for name, value in state.parameters.items()}})

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Average what the participants return, and add the moves of all rounds so far."""
        with self.train_participants(state, this_round) as replies:
            after = self.combine(state, replies.used, replies.read(), this_round)
        if not replies.used or not self.settings.correct_server:
            return self.report(after, replies, this_round)
        share = len(replies.used) / len(this_round.clients.ids)
        parameters, moves = {}, {}
        for name, theta in state.parameters.items():
            wide = after.parameters[name].astype(np.float64)
            total = state.memory[MOVES][name] + share * (wide - theta)
            parameters[name] = np.asarray(wide + total, dtype=theta.dtype)
            moves[name] = np.asarray(total, dtype=theta.dtype)
        memory = {**after.memory, MOVES: moves}
        return self.report(replace(after, parameters=parameters, memory=memory), replies, this_round)

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """`local_steps` policy steps on the penalised loss."""
        start = self.read_start(state, message, client)
        own = state.sets.get(GRADIENT) or {name: np.zeros_like(x) for name, x in start.weights.items()}
        penalty = DynamicPenalty(self.settings.alpha, own)
        local = self.open_learner(client.resources, start, [penalty])
        report = local.run(self.settings.local_steps, seed=client.derive("train"))
        after = local.get_state()
        renewed = {
            name: np.asarray(own[name] - self.settings.alpha * (after.weights[name] - begun), dtype=begun.dtype)
            for name, begun in start.weights.items()
        }
        kept = Message(sets={OPTIMIZER: after.optimizer, GRADIENT: renewed})
        return kept, self.make_reply(client, local, after, report)

    @classmethod
    def describe(cls, settings: FedDynSettings, scale: Scale) -> Card:
        """Return the card of averaging, with the copies that the penalty holds."""
        kept = ("start of the round", "gradient at the client's last parameters")
        return replace(super().describe(settings, scale), kept_copies=kept)


class DynamicPenalty(Penalty):
    """`-<g, theta> + alpha / 2 * |theta - start|^2`, reported without the constant `-<g, start>`."""

    uses_start = True
    of_parameters = True

    def __init__(self, alpha: float, gradient: Mapping[str, Array]) -> None:
        self.coefficient = alpha
        self._arrays = gradient
        self._gradient: dict[str, Tensor] = {}
        self._start: dict[str, Tensor] = {}

    def begin(self, parameters: dict[str, Tensor], start: dict[str, Tensor]) -> None:
        from fedagentgym.learning.weights import to_parameter_tensors

        self._gradient, self._start = to_parameter_tensors(self._arrays, parameters), start

    def add_gradients(self, parameters: dict[str, Tensor]) -> float:
        from fedagentgym.learning.passes import to_number

        value = 0.0
        for name, parameter in parameters.items():
            moved, gradient = parameter.detach() - self._start[name], self._gradient[name]
            value += self.coefficient / 2 * to_number(moved.double().square().sum())
            value -= to_number((gradient.double() * moved.double()).sum())
            add_gradient(parameter, self.coefficient * moved - gradient)
        return value
