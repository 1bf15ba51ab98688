"""Averaging of LoRA adapters by the products of their factors, layer by layer.

A layer computes W + s B A, with A [rank, inputs], B [outputs, rank] and s = alpha / rank. Clients return (A_k, B_k). An
`AdapterRule` works on the products, layer by layer:

    d_k = B_k A_k - B A                 the clients' changes
    v   = momentum * v + combine(d)     by default their mean: sum of p_k d_k
    M   = B A + step * v                the target
    (A, B) = choose(M, ...)             the next factors
    D   = D + s (M - B A)               the remainder goes into the base, if the rule `changes_base`

D is a change of the frozen weights, zero at first: every site computes W + D + s B A. The server sends all of D in the set
`base`, so that a client needs no earlier D. A site adds D to the weights as loaded, so that rounding errors do not add up. D is
sent as factors while these have fewer numbers than the matrix (`factors.py`). A method that merges the whole product into the
base (`Merging`) sends no factors of the adapter: clients make them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.agents.model.names import BASE, HIGH, LOW, pair_factors
from fedagentgym.agents.presets import complete_settings
from fedagentgym.algorithms.averaging import AcceptedReply, LocalStepsSettings, Replies
from fedagentgym.algorithms.card import BaseRank, Card, Scale
from fedagentgym.algorithms.factors import (
    Matrix,
    Pair,
    add_change,
    is_factor,
    iter_change_forms,
    read_changes,
    read_pairs,
)
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.ranks import Ranks, check_ranks, find_highest, find_rank
from fedagentgym.algorithms.runtime import Runtime, Site
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import generator
from fedagentgym.federation.aggregation import AggregationRule, RunningMean, WeightedMean, step_server
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Array, AtMost, Message, Parameters
from fedagentgym.learning.state import LocalReport, SiteState

if TYPE_CHECKING:
    from fedagentgym.learning.learner import LocalTraining


class AdapterRule(AggregationRule):
    """Base class of rules that work on the products of adapters: write `choose`, and `combine` if the target is not the mean."""

    needs_all: ClassVar[bool] = True
    uses_weights: ClassVar[bool] = True
    changes_base: ClassVar[bool] = False
    """True if the difference between the target and the product of the chosen factors goes into the base."""
    by_tasks: bool = False
    step: float = 1.0
    momentum: float = 0.0

    def weigh(self, examples: Sequence[float]) -> list[float]:
        return WeightedMean().weigh(examples) if self.by_tasks else [1.0] * len(examples)

    def combine(self, changes: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
        """Combine the clients' changes of one layer's product: by default the weighted mean.

        Args:
            changes: For each client B_k A_k - B A.
            weights: The weight of each.
        """
        total = np.zeros_like(changes[0])
        for change, weight in zip(changes, weights, strict=True):  # in the order of the clients
            total += weight * change
        return total / sum(weights)

    @abstractmethod
    def choose(self, target: Matrix, mean: Pair, before: Pair) -> Pair:
        """Choose the next factors of a layer.

        Args:
            target: The product that the server aims at.
            mean: The means of the clients' factors.
            before: The factors from which the round began.
        """

    def choose_from_factors(self, clients: Sequence[Pair], weights: Sequence[float], before: Pair) -> Pair | None:
        """Choose the next factors of a layer without computing its product; None, the default, if the rule needs the product.

        A rule that changes the base must return None.

        Args:
            clients: The factors that each client returned.
            weights: The weight of each.
            before: The factors from which the round began.
        """
        return None

    def factorize(self, clients: Sequence[Pair], weights: Sequence[float], chosen: Pair) -> Pair | None:
        """Factorize the difference between a layer's target and the product of the chosen factors, to send it as factors.

        None, the default, if the rule cannot.

        Args:
            clients: The factors that each client returned.
            weights: The weight of each.
            chosen: The next factors of the layer.
        """
        return None

    def begin(self, state: ServerState) -> AdapterStep:
        return AdapterStep(self, state)


class AdapterStep:
    """One aggregation by an `AdapterRule`. All parameters that are not factors are averaged, and then take the server's step."""

    def __init__(self, rule: AdapterRule, state: ServerState) -> None:
        self._rule, self._state = rule, state
        self._updates: list[Parameters] = []
        self._weights: list[float] = []

    def add(self, update: Parameters, weight: float) -> None:
        self._updates.append(update)
        self._weights.append(weight)

    def finish(self) -> ServerState:
        rule, state, mean = self._rule, self._state, RunningMean(self._state.parameters)
        for update, weight in zip(self._updates, self._weights, strict=True):
            mean.add(update, weight)
        parameters, moments = mean.compute(), dict(state.optimizer)
        before_base, base = state.memory.get(BASE, {}), dict[str, Array]()
        before, means, names = read_pairs(state.parameters), read_pairs(parameters), pair_factors(parameters)
        clients = [read_pairs(update) for update in self._updates]
        if rule.step != 1 or rule.momentum > 0:
            wide = mean.compute(narrow=False)
            others = [name for name in parameters if not is_factor(name)]
            begun, ends = ({name: one[name] for name in others} for one in (state.parameters, wide))
            moved = step_server(replace(state, parameters=begun), ServerState(ends), rule.step, rule.momentum)
            parameters |= moved.parameters
            moments |= moved.optimizer
        for layer, pair in before.items():
            chosen = rule.choose_from_factors([client[layer] for client in clients], self._weights, pair)
            if chosen is None:
                start = pair.product
                move = rule.combine([client[layer].product - start for client in clients], self._weights)
                if rule.momentum > 0:
                    move = moments[f"velocity/{layer}"] = rule.momentum * moments.get(f"velocity/{layer}", 0.0) + move
                target = start + rule.step * move
                chosen = rule.choose(target, means[layer], pair)
            for name, factor in zip(names[layer], chosen, strict=True):
                parameters[name] = np.asarray(factor, dtype=state.parameters[name].dtype)
            if rule.changes_base:  # the remainder includes what rounding the factors lost
                chosen = read_pairs({name: parameters[name] for name in names[layer]})[layer]
                factors = rule.factorize([client[layer] for client in clients], self._weights, chosen)
                base |= add_change(
                    before_base, layer, target - chosen.product, factors, parameters[names[layer][0]].dtype
                )
        memory = {**state.memory, BASE: base} if rule.changes_base else state.memory
        return ServerState(parameters, moments, memory)


MERGED, DIGEST = "merged", "factors"
"""Keys of the last round that was merged into the base (server's memory, requests) and of the factors' digest (requests)."""
S = TypeVar("S", bound=LocalStepsSettings)
R = TypeVar("R", bound="RankSettings")
P = TypeVar("P", bound="ProductSettings")


class AdapterAveraging(Averaging[S]):
    """Base class of methods that average LoRA adapters: an agent without an adapter is refused.

    Attributes:
        trains: The factors that clients train, as in `agent.adapter.train`.
    """

    trains: ClassVar[Literal["both", "B"]] = "both"

    def __init__(self, settings: S, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        adapter, name = runtime.spec.agent.adapter, settings.name
        if adapter is None:
            raise OptionError(f"{name} averages LoRA adapters: set agent.adapter, for example to {{rank: 8}}")
        if adapter.train != self.trains:
            kept = "leaves A as it was drawn" if self.trains == "B" else "trains both factors of the adapter"
            raise OptionError(f"{name} {kept}: set agent.adapter.train to {self.trains}, it is {adapter.train}")


class RankSettings(LocalStepsSettings):
    """The settings of methods whose clients may have adapters of different ranks, and may draw the first A themselves."""

    ranks: Ranks = Field(
        default=None,
        description="ranks of the clients' adapters, at most agent.adapter.rank: a list, repeated if there are more clients,"
        " or a law by which every client's rank is drawn; null: agent.adapter.rank for all",
    )
    init: Literal["shared", "each"] = Field(
        default="shared", description="a client's first A; shared: the server's; each: a draw of its own"
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.privacy is not None and (self.ranks is not None or self.init == "each"):
            raise ValueError("privacy bounds updates from a start that all clients share: leave out ranks and init")
        if self.init == "each" and (self.checks.max_norm is not None or self.checks.clip_norm is not None):
            raise ValueError(
                "with init: each an update contains the client's own draw of A: leave out checks.max_norm and"
                " checks.clip_norm"
            )
        return self


class RankedAveraging(AdapterAveraging[R]):
    """Base class of methods whose clients may have different ranks: client k has the first r_k rows of A and columns of B.

    Only these rows and columns are sent. A client pads its adapter with zeros, which have no gradient and stay zero. The server
    pads the factors that clients return.
    """

    def __init__(self, settings: R, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        if settings.ranks is not None:
            check_ranks(settings.name, settings.ranks, self.rank)

    @property
    def rank(self) -> int:
        """The rank of the server's adapter."""
        assert self.runtime.spec.agent.adapter is not None
        return self.runtime.spec.agent.adapter.rank

    def find_rank(self, client: int) -> int:
        """Return the rank of a client's adapter.

        Args:
            client: Number of the client.
        """
        ranks = self.settings.ranks
        return self.rank if ranks is None else find_rank(ranks, self.runtime.seed, client)

    def draws_own(self, number: int) -> bool:
        """Return whether clients draw A themselves at the start of a round: with `init: each`, in round 1, where B is zero.

        Args:
            number: Number of the round.
        """
        return self.settings.init == "each" and number == 1

    def address(self, message: Message, client: int) -> Message:
        """The message with the factors cut to the client's rank."""
        if self.settings.ranks is None:
            return message
        return replace(message, weights=cut_rank(message.weights, self.find_rank(client)))

    def read_reply(self, answer: Message, state: ServerState) -> Message:
        """The client's reply with the factors padded to the server's rank."""
        if self.settings.ranks is None:
            return answer
        return replace(answer, weights=fill_rank(answer.weights, state.parameters))

    def start_parameters(self, parameters: Parameters, client: int) -> Parameters:
        """The parameters with zeros in the rows that the client lacks, so that lacking them counts as no update."""
        if self.settings.ranks is None:
            return parameters
        return fill_rank(cut_rank(parameters, self.find_rank(client)), parameters)

    def read_start(self, state: Message, message: Message, client: ClientContext[Site]) -> SiteState:
        rank, like = self.find_rank(client.id), self.runtime.initial_weights
        weights = fill_rank(message.weights, like)
        if self.draws_own(client.round):
            seed = client.derive("adapter")
            drawn = {name: draw_low(like[name].astype(np.float64), generator(seed, name)) for name in find_low(like)}
            own = {name: np.asarray(low, dtype=like[name].dtype) for name, low in drawn.items()}
            weights = {**weights, **fill_rank(cut_rank(own, rank), like)}
        return super().read_start(state, replace(message, weights=weights), client)

    def make_reply(
        self, client: ClientContext[Site], local: LocalTraining, after: SiteState, report: LocalReport, **given: Any
    ) -> Message:
        cut = replace(after, weights=cut_rank(after.weights, self.find_rank(client.id)))
        return super().make_reply(client, local, cut, report, **given)

    def report(self, after: ServerState, replies: Replies, this_round: Round) -> RoundResult:
        """Make the record of a round, with the rank of each client if they may differ."""
        result = super().report(after, replies, this_round)
        if self.settings.ranks is None:
            return result
        ranked = {client: {**numbers, "rank": self.find_rank(client)} for client, numbers in result.clients.items()}
        return replace(result, clients=ranked)

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        operations = dict(super().make_operations())
        if self.settings.ranks is not None:
            train, most = operations["train"], AtMost(find_highest(self.settings.ranks))
            forms = {
                name: replace(form, shape=(most, form.shape[1]) if LOW in name else (form.shape[0], most))
                if is_factor(name)
                else form
                for name, form in train.request.weights.items()
            }
            request, reply = replace(train.request, weights=forms), replace(train.reply, weights=forms)
            operations["train"] = replace(train, request=request, reply=reply)
        return operations

    @classmethod
    def describe(cls, settings: R, scale: Scale) -> Card:
        """Return the card: clients exchange adapters of their ranks."""
        return replace(super().describe(settings, scale), ranks=settings.ranks)


def cut_rank(weights: Parameters, rank: int) -> dict[str, Array]:
    """The first rows of every A and columns of every B."""
    return {
        name: np.ascontiguousarray(array[:rank] if LOW in name else array[:, :rank] if HIGH in name else array)
        for name, array in weights.items()
    }


def keep_low(mean: Pair, before: Pair) -> Pair:
    """The mean factors, but with the earlier row of A where the means of A and B are both zero (no client of the round has it).
    The product is the same, but a row could not learn with both factors at zero."""
    gone = ~np.any(mean.low, axis=1, keepdims=True) & ~np.any(mean.high, axis=0)[:, None]
    return mean._replace(low=np.where(gone, before.low, mean.low))


def fill_rank(weights: Parameters, like: Parameters) -> dict[str, Array]:
    """Factors padded with zeros to the ranks in `like`; larger factors and other parameters are left as they are."""
    filled = {}
    for name, array in weights.items():
        missing = [(0, max(0, most - size)) for size, most in zip(array.shape, like[name].shape, strict=True)]
        filled[name] = np.pad(array, missing) if is_factor(name) else array
    return filled


class ProductSettings(RankSettings):
    """The settings of methods whose server combines products; the server's step and momentum apply to these products."""

    weights: Literal["equal", "tasks"] = Field(
        default="equal", description="equal: clients count alike; tasks: by their numbers of tasks"
    )

    @property
    def takes_server_step(self) -> bool:
        return False  # the rule applies the step

    @property
    def rule_options(self) -> dict[str, Any]:
        """The options that every rule takes from the settings."""
        return {"by_tasks": self.weights == "tasks", "step": self.server_step, "momentum": self.server_momentum}


class ProductAveraging(RankedAveraging[P]):
    """Base class of methods whose server combines the products of adapters, by the rule of their settings."""

    def __init__(self, settings: P, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        if runtime.learning.keep_optimizer:
            raise OptionError(
                f"{settings.name} replaces the clients' factors in every round, so that their optimizer moments no longer fit:"
                " leave out learning.keep_optimizer"
            )


class BaseChanging(ProductAveraging[P]):
    """Base class of methods that combine products and also change the base, which is float32: bfloat16 loses small changes."""

    def __init__(self, settings: P, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        if complete_settings(runtime.spec.agent).dtype == "bfloat16":
            raise OptionError(
                f"{settings.name} changes the base, and bfloat16 would lose most of a small change: set agent.dtype=float32"
            )
        runtime.base_dtype = "float32"
        if runtime.learning.kl.coefficient > 0 and runtime.learning.kl.reference == "base":
            raise OptionError(f"{settings.name} changes the base: set learning.kl.reference to round")

    def check_start(self, asked: int) -> None:
        """Refuse a model whose frozen weights cannot be changed.

        Args:
            asked: Number of clients that take part in a round.

        Raises:
            OptionError: If the model plays on an engine that loads adapters only, or is divided among devices.
        """
        if not hasattr(self.runtime.agent.policy, "set_base"):
            raise OptionError(
                f"{self.settings.name} changes the base, but this model is divided among devices or plays on an engine that loads"
                " adapters only: use a whole model of this process"
            )
        super().check_start(asked)

    def policy_parameters(self, state: ServerState) -> dict[str, Any]:
        """The factors, and the changes of the base."""
        return {**state.parameters, **self._expand(self._read_base(state))}

    def _expand(self, base: Parameters) -> dict[str, NDArray[np.float32]]:
        """The changes of a message as a policy takes them."""
        adapter = self.runtime.spec.agent.adapter
        assert adapter is not None
        scale = adapter.alpha / adapter.rank
        return {f"{BASE}/{name}": np.asarray(scale * one, np.float32) for name, one in read_changes(base).items()}

    def _read_base(self, state: ServerState) -> dict[str, NDArray[np.float32]]:
        return {name: array.astype(np.float32) for name, array in state.memory.get(BASE, {}).items()}

    @contextmanager
    def train_participants(
        self,
        state: ServerState,
        this_round: Round,
        *,
        sets: Mapping[str, Parameters] = MappingProxyType({}),
        **given: Any,
    ) -> Iterator[Replies]:
        """Send the change of the base too; clients return only factors."""
        with super().train_participants(
            state, this_round, sets={**sets, BASE: self._read_base(state)}, **given
        ) as replies:
            yield replies

    def read_start(self, state: Message, message: Message, client: ClientContext[Site]) -> SiteState:
        start = super().read_start(state, message, client)
        return replace(start, weights={**start.weights, **self._expand(message.sets.get(BASE, {}))})

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        operations = dict(super().make_operations())
        forms = dict(iter_change_forms(self.runtime.initial_weights))
        train = operations["train"]
        operations["train"] = replace(train, request=replace(train.request, sets={BASE: forms}))
        return operations

    @classmethod
    def find_base_rank(cls, settings: P) -> BaseRank:
        """Return the rank that a round adds to the change of the base, as in `Card.base_rank`.

        Args:
            settings: The method's settings.
        """
        return "full"

    @classmethod
    def describe(cls, settings: P, scale: Scale) -> Card:
        """Return the card: the change of the base is sent down, too."""
        card = super().describe(settings, scale)
        assert card.round is not None
        return replace(
            card,
            round=replace(card.round, bases_down=scale.asked),
            base_rank=cls.find_base_rank(settings),
            held_refusal=f"{settings.name} changes the base, and evaluation where tasks are held loads adapters only",
        )


class Merging(BaseChanging[P]):
    """Base class of methods that merge the whole product into the base. B is then zero and clients can make A themselves.

    So the server sends neither: a request has the number of the last merged round, from which clients make the factors
    (`make_factors`), and the factors' digest.
    """

    def make_factors(self, merged: int, seed: int) -> dict[str, Array]:
        """Make the factors that a round begins with.

        Args:
            merged: The last round that was merged into the base; 0 before the first.
            seed: The run's seed.

        Returns:
            The factors as loaded; after a merge, B is zero.
        """
        return {
            name: np.zeros_like(array) if merged and HIGH in name else array
            for name, array in self.runtime.initial_weights.items()
            if is_factor(name)
        }

    def choose_sent(self, parameters: Parameters) -> Parameters:
        return {name: array for name, array in parameters.items() if not is_factor(name)}

    def address(self, message: Message, client: int) -> Message:
        return message  # without factors the message is the same for all ranks

    @contextmanager
    def train_participants(
        self, state: ServerState, this_round: Round, *, control: Mapping[str, Any] = MappingProxyType({}), **given: Any
    ) -> Iterator[Replies]:
        """Send the number of the last round that was merged, and the digest of the factors that follow from it."""
        known = Message(weights={name: array for name, array in state.parameters.items() if is_factor(name)}).digest
        told = {**control, MERGED: state.memory.get(MERGED, 0), DIGEST: known}
        with super().train_participants(state, this_round, control=told, **given) as replies:
            yield replies

    def combine(
        self, state: ServerState, used: Sequence[AcceptedReply], updates: Iterator[Parameters], this_round: Round
    ) -> ServerState:
        """Merge the clients' products, and make the factors of the next round."""
        after = super().combine(state, used, updates, this_round)
        if not used:
            return after
        factors = self.make_factors(this_round.number, this_round.seed)
        memory = {**after.memory, MERGED: this_round.number}
        return replace(after, parameters={**after.parameters, **factors}, memory=memory)

    def read_start(self, state: Message, message: Message, client: ClientContext[Site]) -> SiteState:
        factors = self.make_factors(int(message.control[MERGED]), client.seed)
        if Message(weights=factors).digest != message.control[DIGEST]:
            raise DataError(
                "this client makes another adapter than the server: their agents or their draws differ; install the same versions"
                " of torch, peft and numpy on both machines"
            )
        whole = cut_rank({**message.weights, **factors}, self.find_rank(client.id))
        return super().read_start(state, replace(message, weights=whole), client)

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        operations = dict(super().make_operations())
        train = operations["train"]
        forms = {name: form for name, form in train.request.weights.items() if not is_factor(name)}
        operations["train"] = replace(train, request=replace(train.request, weights=forms))
        return operations

    @classmethod
    def describe(cls, settings: P, scale: Scale) -> Card:
        """Return the card: no factors are sent down."""
        return replace(super().describe(settings, scale), sends_factors=False)


def draw_low(low: Matrix, seed: np.random.Generator) -> Matrix:
    """A new draw of A: uniform between -1 / sqrt(inputs) and 1 / sqrt(inputs), as at the start."""
    bound = 1.0 / np.sqrt(low.shape[1])
    return seed.uniform(-bound, bound, low.shape)


def find_low(parameters: Parameters) -> list[str]:
    """The names of all factors A."""
    return [name for name in parameters if LOW in name]
