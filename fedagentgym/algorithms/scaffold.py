"""SCAFFOLD: control variates that correct the drift of clients (Karimireddy et al. 2020, Algorithm 1, option II).

    server   send x and c to every k in S
    client   y = x;  K times: y = y - eta * (g(y) - c_k + c)
    client   c_k+ = mean of g(y) over the K steps             (= c_k - c + (x - y) / (K * eta) for plain gradient descent)
    client   return y and c_k+ - c_k;  c_k = c_k+
    server   x = x + server_step * (mean of y - x);  c = c + sum of (c_k+ - c_k) / N, over S

x are the trained parameters, N is the number of all clients, g the gradient of the policy's loss (with its KL term). c_k stays in
the client's state, c in the server's. The correction is added to the gradient before it is clipped and before AdamW's moments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from fedagentgym.algorithms.averaging import LocalStepsSettings
from fedagentgym.algorithms.card import Card, Scale, Work
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.runtime import Site
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import RunningMean
from fedagentgym.federation.algorithm import OPTIMIZER, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import Array, Message, Parameters
from fedagentgym.learning.penalties import Penalty, add_gradient

if TYPE_CHECKING:
    from torch import Tensor

VARIATE = "variate"


class ScaffoldSettings(LocalStepsSettings):
    """`algorithm: {name: scaffold, local_steps: 3}`."""

    name: Literal["scaffold"] = "scaffold"

    @model_validator(mode="after")
    def _refuse_what_breaks_the_variates(self) -> Self:
        if self.privacy is not None:
            raise ValueError("clients send control variates without noise: privacy cannot be used with scaffold")
        if self.proximal > 0:
            raise ValueError("scaffold corrects drift by control variates: leave out proximal")
        return self


class Scaffold(Averaging[ScaffoldSettings]):
    """Federated averaging with control variates; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = ScaffoldSettings
    sent_sets = kept_sets = (VARIATE,)

    def initial_state(self) -> ServerState:
        state = super().initial_state()
        return replace(
            state, memory={VARIATE: {name: np.zeros_like(value) for name, value in state.parameters.items()}}
        )

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Send x and c; go a step towards the mean of the clients' y, and move c."""
        c = state.memory[VARIATE]
        change = RunningMean(c)
        with self.train_participants(state, this_round, sets={VARIATE: c}) as replies:
            after = self.combine(state, replies.used, replies.read(), this_round)
            for client_change in replies.read(VARIATE):
                change.add(client_change)
        if not replies.used:
            return self.report(state, replies, this_round)
        share = len(replies.used) / len(this_round.clients.ids)
        moved = change.compute(narrow=False)
        renewed = {name: np.asarray(value + share * moved[name], dtype=value.dtype) for name, value in c.items()}
        return self.report(replace(after, memory={**after.memory, VARIATE: renewed}), replies, this_round)

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """`local_steps` policy steps with corrected gradients; the mean of the gradients is the client's next variate."""
        common = message.sets[VARIATE]
        own = state.sets.get(VARIATE) or {name: np.zeros_like(value) for name, value in common.items()}
        correction = Correction({name: common[name] - own[name] for name in common})
        local = self.open_learner(client.resources, self.read_start(state, message, client), [correction])
        report = local.run(self.settings.local_steps, seed=client.derive("train"))
        after = local.get_state()
        renewed = correction.compute_mean_gradient()
        change = {name: renewed[name] - own[name] for name in own}
        kept = Message(sets={OPTIMIZER: after.optimizer, VARIATE: renewed})
        return kept, self.make_reply(client, local, after, report, sets={VARIATE: change})

    @classmethod
    def describe(cls, settings: ScaffoldSettings, scale: Scale) -> Card:
        """Return the card: parameters and a control variate of the same size go both ways."""
        return replace(
            super().describe(settings, scale),
            round=(scale.count_local_work(settings.local_steps) + Work(models_down=2, models_up=2)) * scale.asked,
            kept_copies=("correction of the gradient", "sum of gradients"),
        )


class Correction(Penalty):
    """Adds `c - c_k` to every gradient, and averages the uncorrected gradients.

    A gradient that is not finite is left out of the average, as its step is skipped.
    """

    of_parameters = True

    def __init__(self, correction: Parameters) -> None:
        self._arrays = correction
        self._correction: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def begin(self, parameters: dict[str, Tensor], start: dict[str, Tensor]) -> None:
        from fedagentgym.learning.weights import to_parameter_tensors

        self._correction = to_parameter_tensors(self._arrays, parameters)
        self._sums = {name: value.detach() * 0 for name, value in parameters.items()}

    def add_gradients(self, parameters: dict[str, Tensor]) -> float:
        gradients = {name: value.grad for name, value in parameters.items() if value.grad is not None}
        if all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
            self._count += 1
            for name, gradient in gradients.items():
                self._sums[name] += gradient
        for name, parameter in parameters.items():
            add_gradient(parameter, self._correction[name])
        return 0.0

    def compute_mean_gradient(self) -> dict[str, Array]:
        """The mean of the gradients so far: the client's next control variate."""
        from fedagentgym.agents.model.policy import to_array

        return {name: to_array(total / max(self._count, 1)) for name, total in self._sums.items()}
