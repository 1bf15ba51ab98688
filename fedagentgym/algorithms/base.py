"""The base class of all algorithms: typed settings, the runtime, and defaults for most members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.support.runtime import Runtime, Site
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Array
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group

S = TypeVar("S", bound=Settings)
CONTROL_BYTES = 1024
"""Maximum size of the plain values in an ordinary message: step counts, numbers of examples."""
EPISODE_BYTES = 1 << 15
TOKEN_BYTES = 160
"""An episode in a message has at most EPISODE_BYTES of text, and TOKEN_BYTES for each token of the context."""


class BaseAlgorithm(Generic[S]):
    """Server side and client operations of a method; a subclass names its `settings_class` and writes `run_round`.

    An instance holds only what follows from settings and runtime. State that must survive a round is in the `ServerState`, or in
    the states that clients' operations return. Clients' operations are methods too, and run in worker processes.
    """

    settings_class: ClassVar[type[Settings]]
    metered: ClassVar[bool] = True
    trains_local_models: ClassVar[bool] = False
    """Whether clients end a round with models of their own, which can be evaluated (`evaluation.clients`)."""

    def __init__(self, settings: S, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime

    # ---- for a plan, before anything is opened ---------------------------------------------------------------------

    @classmethod
    def estimate_preparation(cls, settings: S, scale: Scale) -> Work | None:
        """The work of `prepare`; none by default."""
        return Work()

    @classmethod
    def list_roles(cls, settings: S) -> tuple[str, ...]:
        """The roles for which tasks must be set aside (`partition.roles`)."""
        return ()

    @classmethod
    def count_preparations(cls, settings: S, rounds: int) -> int:
        """How often a run of this many rounds prepares; once by default."""
        return 1

    @classmethod
    def estimate_round(cls, settings: S, scale: Scale) -> Work | None:
        """The work of one round; None if the method does not declare it."""
        return None

    @classmethod
    def list_kept_copies(cls, settings: S) -> tuple[str, ...]:
        """Names of the copies of the trained parameters that the penalties of the method hold while a client trains."""
        return ()

    @classmethod
    def list_second_models(cls, settings: S, learning: LearningSettings) -> tuple[SecondModel, ...]:
        """The models that clients hold beside the agent that learns."""
        return ()

    # ---- for the federation ---------------------------------------------------------------------------------------

    def client_ids(self) -> Sequence[int]:
        """All clients of the split."""
        return range(len(self.runtime.client_split))

    def resources(self, client: int) -> Site:
        """The client's tasks and environment, in front of the resident agent."""
        return self.runtime.get_site(client, learning=self.learning)

    @cached_property
    def operations(self) -> Mapping[str, Operation[Site]]:
        """The operations of clients; made on first use, since forms need the model's shapes."""
        return self.make_operations()

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        """The operations by name; none for a method without client calls."""
        return {}

    def initial_state(self) -> ServerState:
        """The parameters as first loaded."""
        return ServerState(self.runtime.initial_weights)

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """The server state before round 1; nothing happens by default."""
        return RoundResult(state)

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """One round: call clients, combine their replies."""
        raise NotImplementedError

    def policy_parameters(self, state: ServerState) -> Mapping[str, Array]:
        """The parameters that are evaluated and exported."""
        return state.parameters

    # ---- for clients' operations ------------------------------------------------------------------------------------

    @property
    def learning(self) -> LearningSettings:
        """The settings of the local step; a method may override some of them."""
        return self.runtime.learning

    @property
    def episode_bytes(self) -> int:
        """Maximum size of one episode in a message."""
        return EPISODE_BYTES + TOKEN_BYTES * self.runtime.agent.policy.context_length

    def sample_episodes(self, groups: Sequence[Group], client: ClientContext[Site]) -> list[dict[str, Any]]:
        """A few readable episodes for the run's `trajectories` folder."""
        from fedagentgym.learning.trajectory import to_plain

        episodes = [trajectory for group in groups for trajectory in group]
        count = min(self.runtime.spec.sampled_episodes, len(episodes))
        chosen = client.stream("samples").choice(len(episodes), count).tolist()
        return [to_plain(episodes[position], segments=False) for position in chosen]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one round, or of the preparation before the first, over all sites together."""

    episodes: int = 0
    """Episodes that are played to learn from."""
    judged: int = 0
    """Episodes that are played or read only to be scored: an expert's answers, candidates that a model scores."""
    optimizer_steps: int = 0
    models_down: int = 0
    """Sets of trainable parameters that the server sends."""
    models_up: int = 0
    answers_down: int = 0
    """Episodes within the server's messages."""
    answers_up: int = 0
    tasks_down: int = 0
    """Tasks without answers in the server's messages."""
    scores_up: int = 0
    """Single numbers within the clients' messages."""
    bits_up: int = 0
    """Yes-or-no answers in the clients' messages."""

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __mul__(self, times: int) -> Work:
        return Work(*(getattr(self, one.name) * times for one in fields(self)))


@dataclass(frozen=True, slots=True)
class Scale:
    """What the counts depend on besides the method's own settings."""

    learning: LearningSettings
    clients: int
    asked: int
    """Clients that take part in a round."""
    rows_per_episode: int
    """Rows of the loss per episode at most: one, or one for each turn."""
    roles: Mapping[str, int]
    """Tasks of the server, the public and the auxiliary set."""

    def count_updates(self, episodes: int) -> int:
        """Optimizer steps of one policy step on this many episodes."""
        rows, size = max(episodes * self.rows_per_episode, 1), self.learning.minibatch_rows
        steps = min(self.learning.minibatches, rows) if size is None else -(-rows // size)
        return self.learning.gradient_epochs * steps

    def count_local_work(self, steps: int) -> Work:
        """The work of this many policy steps of one site on its own tasks."""
        episodes = self.learning.episodes_per_step
        return Work(episodes=steps * episodes, optimizer_steps=steps * self.count_updates(episodes))


@dataclass(frozen=True, slots=True)
class SecondModel:
    """A model that clients hold beside the agent that learns."""

    name: str
    agent: AgentSettings
    learning: LearningSettings
    steps: int
    """Policy steps that it is trained for; 0 if it only plays and scores."""
