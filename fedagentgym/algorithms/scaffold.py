"""SCAFFOLD: control variates that correct the drift of clients (Karimireddy et al. 2020, Algorithm 1, option II).

    server   send x and c to every k in S
    client   y = x;  K times: y = y - eta * (g(y) - c_k + c)
    client   c_k+ = mean of g(y) over the K steps             (= c_k - c + (x - y) / (K * eta) for plain gradient descent)
    client   return y and c_k+ - c_k;  c_k = c_k+
    server   x = x + eta_g * (mean of y - x);  c = c + sum of (c_k+ - c_k) / N, over S

x are the trained parameters, N is the number of all clients, g the gradient of the policy's loss (with its KL term). c_k stays in
the client's state, c in the server's. The correction is added to the gradient before it is clipped and before AdamW's moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import AcceptedReply, Averaging, LocalStepsSettings
from fedagentgym.algorithms.base import CONTROL_BYTES
from fedagentgym.algorithms.card import Card, Scale, Work
from fedagentgym.algorithms.runtime import Site
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import RunningMean
from fedagentgym.federation.algorithm import Round, ServerState, add_prefix, strip_prefix
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import REPORT_BYTES, Array, Form, Message, Parameters
from fedagentgym.learning.penalties import Penalty, add_gradient

if TYPE_CHECKING:
    from torch import Tensor

VARIATE = "variate/"


class ScaffoldSettings(LocalStepsSettings):
    """`algorithm: {name: scaffold, local_steps: 3}`."""

    name: Literal["scaffold"] = "scaffold"
    server_rate: float = Field(default=1.0, gt=0.0, description="eta_g: how far the server goes towards the mean")

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

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        both = self.runtime.make_weight_forms() | self.runtime.make_weight_forms(f"weights/{VARIATE}")
        sampled = REPORT_BYTES * (1 + self.runtime.spec.sampled_episodes)
        request, reply = (Form(both, CONTROL_BYTES, report) for report in (0, sampled))
        own = self.runtime.make_weight_forms(f"weights/{VARIATE}", optional=True)
        kept = self.make_state_form()
        return {"train": Operation(self.train_client, request, reply, replace(kept, arrays={**kept.arrays, **own}))}

    def initial_state(self) -> ServerState:
        state = super().initial_state()
        return replace(state, memory={"variate": _make_zeros(state.parameters)})

    # ---- server ---------------------------------------------------------------------------------------------------

    def make_broadcast(self, state: ServerState) -> Parameters:
        """The parameters and c."""
        return {**state.parameters, **add_prefix(VARIATE, state.memory["variate"])}

    def combine(
        self, state: ServerState, used: Sequence[AcceptedReply], updates: Iterator[Parameters], this_round: Round
    ) -> ServerState:
        """A step towards the mean, and the next c."""
        if not used:
            return state
        variate: Parameters = state.memory["variate"]
        change = RunningMean(variate)

        def read_changes() -> Iterator[Parameters]:
            for update in updates:
                change.add(strip_prefix(VARIATE, update))
                yield update

        after = super().combine(state, used, read_changes(), this_round)
        share = len(used) / len(this_round.clients.ids)
        moved = change.compute(narrow=False)
        return replace(
            after,
            parameters=_step(state.parameters, after.parameters, self.settings.server_rate),
            memory={"variate": {name: _cast(c + share * moved[name], c) for name, c in variate.items()}},
        )

    # ---- client ---------------------------------------------------------------------------------------------------

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """`local_steps` corrected policy steps."""
        common = strip_prefix(VARIATE, message.weights)
        own = strip_prefix(VARIATE, state.weights) or _make_zeros(common)
        correction = Correction({name: common[name] - own[name] for name in common})
        local = self.open_learner(client.resources, self.read_start(state, message), [correction])
        report = local.run(self.settings.local_steps, seed=client.derive("train"))
        after = local.get_state()
        renewed = correction.compute_mean_gradient()
        change = {name: renewed[name] - own[name] for name in own}
        kept = self.keep_moments(after) | add_prefix(VARIATE, renewed)
        reply = self.make_reply(client, local, after, report, arrays=add_prefix(VARIATE, change))
        return Message(weights=kept), reply

    @classmethod
    def describe(cls, settings: ScaffoldSettings, scale: Scale) -> Card:
        """Return the card: parameters and a control variate of the same size go both ways."""
        return replace(
            super().describe(settings, scale),
            round=(scale.count_local_work(settings.local_steps) + Work(models_down=2, models_up=2)) * scale.asked,
            kept_copies=("correction of the gradient", "sum of gradients"),
        )


class Correction(Penalty):
    """Adds `c - c_k` to every gradient, and averages the gradients as they were before.

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
        from fedagentgym.agents.engines.torch_policy import to_array

        return {name: to_array(total / max(self._count, 1)) for name, total in self._sums.items()}


def _step(old: Parameters, mean: Parameters, rate: float) -> Parameters:
    """`old + rate * (mean - old)`; the mean itself, bit for bit, at a rate of 1."""
    if rate == 1.0:
        return mean
    return {name: _cast(value + rate * (mean[name].astype(np.float64) - value), value) for name, value in old.items()}


def _make_zeros(like: Parameters) -> dict[str, Array]:
    return {name: np.zeros_like(value) for name, value in like.items()}


def _cast(value: Array, like: Array) -> Array:
    return np.asarray(value, dtype=like.dtype)
