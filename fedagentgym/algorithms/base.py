"""The base class of all algorithms: typed settings, the runtime, and defaults for most members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime, Site
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Array, Message
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group
from fedagentgym.partitions.client_split import ClientSplit

S = TypeVar("S", bound=Settings)
CONTROL_BYTES = 1024
"""Maximum size of the plain values in an ordinary message: step counts, numbers of examples."""
EPISODE_BYTES = 1 << 15
TOKEN_BYTES = 160
"""An episode in a message has at most EPISODE_BYTES of text, and TOKEN_BYTES for each token of the context."""


class BaseAlgorithm(Generic[S]):
    """Base class of federated methods: derive a class, name its `settings_class`, write `run_round`.

    Derive from `Averaging` if the server averages the clients' parameters. A method holds only what follows from its settings:
    what must survive a round is in the `ServerState`, or in the states that clients' operations return. Operations are methods
    of the class too, and run in worker processes. `fedagentgym.testing.check_algorithm` checks it.

    Args:
        settings: The method's settings.
        runtime: What the run provides: the client split, the agent, the sites of clients, the initial weights.

    Attributes:
        settings_class: The class of the settings, the section `algorithm` of a configuration.
        metered: False for methods that send nothing; their bytes are recorded as 0.
        trains_local_models: Whether clients end a round with models of their own, which can be evaluated.
        assumed: What the accountant of the privacy that the method spends assumes, if there is one.
        keeps_policies: Whether clients play with policies of their own (`client_parameters`), not all with the same.
        operations: What clients can be asked to do, by name.
    """

    settings_class: ClassVar[type[Settings]]
    metered: ClassVar[bool] = True
    trains_local_models: ClassVar[bool] = False
    """True if clients end a round with models of their own, which can be evaluated (`evaluation.at_clients`)."""
    assumed: ClassVar[Sequence[str]] = ()

    keeps_policies: ClassVar[bool] = False
    """True if clients play with policies of their own (`client_parameters`)."""

    def __init__(self, settings: S, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime

    # ---- for a plan, before anything is opened ---------------------------------------------------------------------

    @classmethod
    def estimate_preparation(cls, settings: S, scale: Scale) -> Work | None:
        """Estimate the work of `prepare`, for `fedagentgym plan`.

        Args:
            settings: The method's settings.
            scale: Numbers of clients, participants and tasks, and the settings of learning.

        Returns:
            The work; none by default. None if it is unknown.
        """
        return Work()

    @classmethod
    def list_roles(cls, settings: S) -> tuple[str, ...]:
        """Return the roles for which tasks must be set aside.

        Args:
            settings: The method's settings.

        Returns:
            Some of `public`, `auxiliary`, `server` and `warmup`; none by default.
        """
        return ()

    @classmethod
    def count_preparations(cls, settings: S, rounds: int) -> int:
        """Return how often a run prepares.

        Args:
            settings: The method's settings.
            rounds: Number of rounds.

        Returns:
            The number; 1 by default.
        """
        return 1

    @classmethod
    def estimate_round(cls, settings: S, scale: Scale) -> Work | None:
        """Estimate the work of one round.

        Args:
            settings: The method's settings.
            scale: Numbers of clients, participants and tasks, and the settings of learning.

        Returns:
            The work; None, as by default, if it is unknown.
        """
        return None

    @classmethod
    def list_labelled(cls, settings: S, client_split: ClientSplit) -> set[str]:
        """Return the tasks whose answers the method may use to score episodes or to imitate.

        Args:
            settings: The method's settings.
            client_split: The division of the tasks.

        Returns:
            Their ids; by default the tasks of all clients and of its roles, except for the server's, which have no answers.
        """
        roles = [client_split.record.roles.get(name, ()) for name in cls.list_roles(settings) if name != "server"]
        return {task for tasks in (*(client.tasks for client in client_split), *roles) for task in tasks}

    @classmethod
    def list_kept_copies(cls, settings: S) -> tuple[str, ...]:
        """Return which copies of the trained parameters the method's penalties hold while a client trains, to estimate memory.

        Args:
            settings: The method's settings.

        Returns:
            A name for each; none by default.
        """
        return ()

    @classmethod
    def list_second_models(cls, settings: S, learning: LearningSettings) -> tuple[SecondModel, ...]:
        """Return the models that clients hold beside the agent that learns, to estimate memory.

        Args:
            settings: The method's settings.
            learning: The settings of learning.

        Returns:
            The models; none by default.
        """
        return ()

    def check_start(self, asked: int) -> None:
        """Check that a run can begin; called on the server, once its tasks are divided and before anything is written.

        Args:
            asked: Number of clients that take part in a round.

        Raises:
            OptionError: If it cannot; by default it can.
        """

    # ---- for the federation ---------------------------------------------------------------------------------------

    def client_ids(self) -> Sequence[int]:
        """Return the numbers of all clients: by default those of the split."""
        return range(len(self.runtime.client_split))

    def resources(self, client: int) -> Site:
        """Return what a client's operations work with; called where the client runs.

        Args:
            client: Number of the client.

        Returns:
            By default its `Site`: the client's tasks and environment, with the agent of the process.
        """
        return self.runtime.get_site(client, learning=self.learning)

    @cached_property
    def operations(self) -> Mapping[str, Operation[Site]]:
        """The operations of clients; made on first use, since forms need the model's shapes."""
        return self.make_operations()

    @classmethod
    def list_sent(cls, settings: S) -> tuple[Sent, ...]:
        """Return what clients send to the server, for the owners of tasks to allow.

        Args:
            settings: The method's settings.

        Returns:
            An entry for each kind; none by default.
        """
        return ()

    @classmethod
    def explain_held(cls, settings: S) -> str:
        """Return why the method cannot work with tasks that stay on the clients' own machines.

        Args:
            settings: The method's settings.

        Returns:
            The reason; empty, as by default, if it can.
        """
        return ""

    def check_held(self, site: Site) -> None:
        """Check that the method can work with these held tasks; called on the machine that holds them.

        Args:
            site: The client's tasks.

        Raises:
            RefusedError: If it cannot.
        """

    @classmethod
    def needs_counts(cls, settings: S) -> bool:
        """Return whether clients are weighed by their number of tasks.

        Args:
            settings: The method's settings.

        Returns:
            False by default.
        """
        return False

    @classmethod
    def needs_metrics(cls, settings: S) -> bool:
        """Return whether a metric that clients report decides something, such as a client's weight.

        Args:
            settings: The method's settings.

        Returns:
            False by default: metrics are only shown.
        """
        return False

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        """Return the operations of clients by name; none by default."""
        return {}

    def initial_state(self) -> ServerState:
        """Return the global state at the start: by default the parameters as first loaded."""
        return ServerState(self.runtime.initial_weights)

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Work before the first round, which is committed and counted as round 0.

        Args:
            state: The initial state.
            this_round: Seed, participants, and `clients`, whose `call(operation, messages)` returns the replies.

        Returns:
            The state before round 1; by default nothing happens.
        """
        return RoundResult(state)

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Compute one round: call clients and combine their replies. Every method writes this.

        Args:
            state: The global state.
            this_round: `number`, `total`, `participants`, streams to draw from, and `clients`, whose
                `call(operation, messages)` returns the replies by client.

        Returns:
            The next state, and what is recorded about the round.
        """
        raise NotImplementedError

    def policy_parameters(self, state: ServerState) -> Mapping[str, Array]:
        """Return the parameters that are evaluated and exported.

        Args:
            state: The global state.

        Returns:
            By default all its parameters.
        """
        return state.parameters

    def client_parameters(self, state: ServerState, client: int, kept: Message) -> Mapping[str, Array]:
        """Return the parameters with which a client plays, for evaluation in its own world.

        Args:
            state: The global state.
            client: Number of the client.
            kept: What the client keeps, as its operations returned it; empty at the start.

        Returns:
            By default those of `policy_parameters`.
        """
        return self.policy_parameters(state)

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
        """Choose a few episodes for the run's `trajectories` folder.

        Args:
            groups: The client's episodes.
            client: The client, whose stream draws.

        Returns:
            The episodes as plain values, as many as `output.sampled_episodes` says.
        """
        from fedagentgym.learning.trajectory import to_plain

        episodes = [trajectory for group in groups for trajectory in group]
        count = min(self.runtime.spec.sampled_episodes, len(episodes))
        chosen = client.stream("samples").choice(len(episodes), count).tolist()
        return [to_plain(episodes[position], segments=False) for position in chosen]


@dataclass(frozen=True, slots=True)
class Sent:
    """A kind of what clients send: the kind, by which the owner of tasks allows it, what it is, and who reads it."""

    kind: str
    what: str
    readers: str = "the server"


METRICS = Sent("metrics", "means over the episodes of training: success, reward, turns, tokens, loss")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one round, or of the preparation before the first, over all sites together."""

    episodes: int = 0
    """Episodes that are played to learn from."""
    scored: int = 0
    """Episodes that are played only to be scored: an expert's answers."""
    read: int = 0
    """Episodes of others that a model reads to score them: candidates, swapped answers."""
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
    """The numbers on which the counts depend, besides the method's own settings."""

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


def make_algorithm(spec: ExperimentSpec, runtime: Runtime) -> BaseAlgorithm[Any]:
    """The algorithm that a spec names, with its own settings validated."""
    cls = get_algorithm_class(spec.algorithm)
    return cls(load_settings(cls, spec.algorithm), runtime)


def get_algorithm_class(section: Mapping[str, Any]) -> type[BaseAlgorithm[Any]]:
    """The class that is registered under the section's name."""
    if "name" not in section:
        raise OptionError("the key 'algorithm.name' is missing")
    name = str(section["name"])
    cls = ALGORITHMS.get(name)
    if not (isinstance(cls, type) and issubclass(cls, BaseAlgorithm)):
        raise OptionError(
            f"the algorithm {name!r} is not a class derived from fedagentgym.algorithms.base.BaseAlgorithm"
        )
    return cls


def load_settings(cls: type[BaseAlgorithm[Any]], section: Mapping[str, Any]) -> Settings:
    """The algorithm's own settings from the `algorithm:` part of a configuration."""
    return cls.settings_class.load(dict(section), "algorithm")


def count_labelled(section: Mapping[str, Any], client_split: ClientSplit) -> int:
    """The number of tasks whose answers a method may use."""
    cls = get_algorithm_class(section)
    return len(cls.list_labelled(load_settings(cls, section), client_split))
