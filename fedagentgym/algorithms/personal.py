"""Personal parameters: a part of what a client trains stays with it, and only the rest is averaged.

    server   send the shared part s to every k in S
    client   train (s, p_k) for `local_steps` policy steps; keep p_k; return s_k
    server   s = mean of s_k over S

The part that stays is an output head (`personal-head`: FedPer, Arivazhagan et al. 2019), layers by name (`personal-layers`), a
second low-rank adapter (`personal-adapter`, in a file of its own), or everything (`local-all`: every client alone, and nothing is
sent). p_k is in the client's state and in no message. A client plays with (s, p_k); the policy that is evaluated in the unchanged
environment and exported has the personal parameters of the start.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.algorithms.base import CONTROL_BYTES
from fedagentgym.algorithms.baselines import OneOptimizer, OneOptimizerSettings
from fedagentgym.algorithms.card import Card, Scale
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.runtime import Site
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import Mean
from fedagentgym.federation.algorithm import OPTIMIZER, ServerState
from fedagentgym.federation.checks import UpdateChecks
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Array, ArrayForm, Form, Message, Parameters
from fedagentgym.learning.state import SiteState

PERSONAL = "personal"
"""The set of a client's state that holds its own parameters."""
HEAD = ("lm_head.*", "*.lm_head.*", "model.norm.*", "*.model.norm.*")
TIED_HEAD = ("*embed_tokens.*",)
P = TypeVar("P", bound=AveragingSettings)


class Personal(Averaging[P]):
    """Base class of methods in which a part of the parameters stays with the client.

    A method writes `split`, and `join` if it divides arrays.
    """

    @abstractmethod
    def split(self, weights: Parameters) -> tuple[dict[str, Array], dict[str, Array]]:
        """The shared and the personal part of the trained parameters."""

    def join(self, shared: Parameters, own: Parameters) -> dict[str, Array]:
        """The trained parameters, joined from the shared and the personal part; by default each parameter is in one of them."""
        return {name: own[name] if name in own else shared[name] for name in self.runtime.initial_weights}

    @property
    def _start(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The two parts of the initial parameters; it is an `OptionError` if the personal part is empty."""
        shared, own = self.split(self.runtime.initial_weights)
        if not own:
            raise OptionError(
                f"{self.settings.name}: no trained parameter would stay with the clients; the trained parameters are"
                f" {', '.join(list(self.runtime.initial_weights)[:3])} and others"
            )
        return shared, own

    def check_start(self, asked: int) -> None:
        """Refuse a choice of parameters of which none would stay with the clients.

        Args:
            asked: Number of clients that take part in a round.
        """
        super().check_start(asked)
        _ = self._start

    def initial_state(self) -> ServerState:
        return ServerState(self._start[0])

    def policy_parameters(self, state: ServerState) -> Parameters:
        """The shared parameters with the personal ones of the start."""
        return self.join(state.parameters, self._start[1])

    def client_parameters(self, state: ServerState, client: int, kept: Message) -> Parameters:
        """The shared parameters with the client's own."""
        return self.join(state.parameters, self._read_own(kept))

    def _read_own(self, state: Message) -> Parameters:
        return state.sets.get(PERSONAL) or self._start[1]

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """`local_steps` policy steps of both parts; the personal one is kept."""
        local = self.open_learner(client.resources, self.read_start(state, message, client))
        report = local.run(self.settings.local_steps, seed=client.derive("train"))
        after = local.get_state()
        shared, own = self.split(after.weights)
        kept = Message(sets={OPTIMIZER: after.optimizer, PERSONAL: own})
        return kept, self.make_reply(client, local, replace(after, weights=shared), report)

    def read_start(self, state: Message, message: Message, client: ClientContext[Site]) -> SiteState:
        joined = self.join(message.weights, self._read_own(state))
        return super().read_start(state, Message(weights=joined, control=message.control), client)

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        shared, own = ({name: ArrayForm(part.dtype.name, part.shape) for name, part in p.items()} for p in self._start)
        request = Form(shared, text=CONTROL_BYTES, report=0)
        reply = replace(request, report=self.report_bytes)
        kept = self.make_state_form()
        kept = replace(
            kept, sets={**kept.sets, PERSONAL: {name: replace(form, optional=True) for name, form in own.items()}}
        )
        return {"train": Operation(self.train_client, request, reply, kept)}


class PersonalLayersSettings(AveragingSettings):
    """`algorithm: {name: personal-layers, layers: ["model.layers.1.*"]}`."""

    name: Literal["personal-layers"] = "personal-layers"
    layers: tuple[str, ...] = Field(
        default=("*layers.0.*",),
        description="names of the parameters that stay with the client, with * for any text",
    )


class PersonalLayers(Personal[PersonalLayersSettings]):
    """Federated averaging without the named layers, which stay with every client."""

    settings_class: ClassVar[type[Settings]] = PersonalLayersSettings

    @property
    def layers(self) -> Sequence[str]:
        """Patterns of the parameters that stay."""
        return self.settings.layers

    def split(self, weights: Parameters) -> tuple[dict[str, Array], dict[str, Array]]:
        own = {name for name in weights if any(fnmatchcase(name, pattern) for pattern in self.layers)}
        shared = {name: array for name, array in weights.items() if name not in own}
        return shared, {name: array for name, array in weights.items() if name in own}


class PersonalHeadSettings(PersonalLayersSettings):
    """`algorithm: {name: personal-head}`."""

    name: Literal["personal-head"] = "personal-head"  # type: ignore[assignment]
    layers: tuple[str, ...] = Field(
        default=(), description="names of the parameters of the head; by default the output layer and the last norm"
    )


class PersonalHead(PersonalLayers):
    """Federated averaging without the output head. Where input and output share an embedding, both stay with the client."""

    settings_class: ClassVar[type[Settings]] = PersonalHeadSettings

    @property
    def layers(self) -> Sequence[str]:
        untied = any(fnmatchcase(name, pattern) for name in self.runtime.initial_weights for pattern in HEAD[:2])
        return self.settings.layers or (HEAD if untied else (*HEAD, *TIED_HEAD))


class LocalAllSettings(OneOptimizerSettings):
    """`algorithm: {name: local-all, local_steps: 3}`."""

    name: Literal["local-all"] = "local-all"

    @model_validator(mode="after")
    def _refuse_what_is_for_updates(self) -> Self:
        if self.privacy is not None or self.checks != UpdateChecks() or self.rule != Mean() or self.takes_server_step:
            raise ValueError(
                "with local-all nothing is sent: leave out privacy, checks, aggregation, server_step and server_momentum"
            )
        return self


class LocalAll(OneOptimizer[LocalAllSettings], Personal[LocalAllSettings]):
    """Every client trains alone, with its own tasks and environment, all in one run; `local` trains only one client."""

    settings_class: ClassVar[type[Settings]] = LocalAllSettings

    def split(self, weights: Parameters) -> tuple[dict[str, Array], dict[str, Array]]:
        return {}, dict(weights)

    def join(self, shared: Parameters, own: Parameters) -> dict[str, Array]:
        return dict(own)

    @classmethod
    def describe(cls, settings: LocalAllSettings, scale: Scale) -> Card:
        """Return the card: every participant trains, and nothing is sent."""
        work = scale.count_local_work(settings.local_steps) * scale.asked
        return replace(super().describe(settings, scale), round=work, metered=False)
