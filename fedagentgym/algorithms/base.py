"""The base class of all algorithms: typed settings, the runtime, and defaults for most members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, final, get_args, get_origin

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.card import Card, Scale
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime, Site
from fedagentgym.base.errors import FedAgentGymError, OptionError, RefusedError, join_names
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import REPORT_BYTES, Array, Message
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv

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
    of the class too, and run in worker processes. `fedagentgym.testing.check_algorithm` checks a method.

    Args:
        settings: The method's settings.
        runtime: What the run provides: the client split, the agent, the sites of clients, the initial weights.

    Attributes:
        settings_class: The class of the settings, the section `algorithm` of a configuration.
        operations: The operations that the server can request of clients, by name.
    """

    settings_class: ClassVar[type[Settings]]

    def __init__(self, settings: S, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        if runtime.learning.advantage.uses_values:
            self.card.check_values(str(runtime.spec.algorithm["name"]), runtime.learning)

    # ---- for the federation ---------------------------------------------------------------------------------------

    def client_ids(self) -> Sequence[int]:
        """Return the numbers of all clients: by default those of the split."""
        return range(len(self.runtime.client_split))

    def resources(self, client: int) -> Site:
        """Return the resources of a client's operations; called in the process where the client runs.

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

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        """Return the operations of clients by name; none by default."""
        return {}

    def initial_state(self) -> ServerState:
        """Return the global state at the start: by default the parameters as first loaded."""
        return ServerState(self.runtime.initial_weights)

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Do the work before the first round; it is committed and counted as round 0.

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
        """Return the parameters with which a client plays, for evaluation in its own variant of the environment.

        Args:
            state: The global state.
            client: Number of the client.
            kept: The client's state, as its operations last returned it; empty at the start.

        Returns:
            By default those of `policy_parameters`.
        """
        return self.policy_parameters(state)

    def load_client(self, state: ServerState, client: int, kept: Message) -> TokenAgent:
        """Load the policy with which a client plays, for evaluation in its own variant of the environment.

        Args:
            state: The global state.
            client: Number of the client.
            kept: The client's state; empty at the start.

        Returns:
            By default the run's agent with `client_parameters`.
        """
        return self.runtime.load_weights(self.client_parameters(state, client, kept))

    # ---- for clients' operations ------------------------------------------------------------------------------------

    @property
    def learning(self) -> LearningSettings:
        """The settings of the local step; a method may override some of them."""
        return self.runtime.learning

    @property
    def episode_bytes(self) -> int:
        """Maximum size of one episode in a message."""
        return EPISODE_BYTES + TOKEN_BYTES * self.runtime.agent.policy.context_length

    @property
    def report_bytes(self) -> int:
        """Maximum size of a client's report with its sampled episodes."""
        return REPORT_BYTES * (1 + self.runtime.spec.sampled_episodes)

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

    # ---- what the method declares, and what it checks ---------------------------------------------------------------

    @classmethod
    def describe(cls, settings: S, scale: Scale) -> Card:
        """Return the method's card: its work, roles, messages, and all else that is read of a method before it runs.

        A method replaces fields of the card of its base class: `replace(super().describe(settings, scale), roles=("public",))`.
        Only the work and the learning of second models may depend on the scale.

        Args:
            settings: The method's settings.
            scale: Numbers of clients, participants and tasks, and the settings of learning.

        Returns:
            By default a card without roles and without anything sent, whose work in a round is unknown.
        """
        return Card(keeps_policies=cls.client_parameters is not BaseAlgorithm.client_parameters)

    @cached_property
    def card(self) -> Card:
        """The card for a single client with this run's settings of learning."""
        return self.describe(self.settings, Scale(self.runtime.learning))

    @property
    @final
    def metered(self) -> bool:
        """False if the card says that nothing is sent, so that bytes are recorded as 0."""
        return self.card.metered

    def check_start(self, asked: int) -> None:
        """Check that a run can begin; called on the server, after tasks are divided among clients and before anything is written.

        Args:
            asked: Number of clients that take part in a round.

        Raises:
            OptionError: If it cannot; by default it can.
        """

    def check_held(self, site: Site) -> None:
        """Check that the method can work with these held tasks; called on the machine that holds them.

        Args:
            site: The client's tasks.

        Raises:
            RefusedError: If it cannot; the server receives the message.
        """


class OnPublicTasks(BaseAlgorithm[S]):
    """Base class of methods in which clients learn on public tasks too, as many at a time as the setting `public_tasks` says."""

    @cached_property
    def public_env(self) -> TextEnv:
        """The unchanged environment over the public tasks."""
        return self.runtime.open_role_env("public")

    def check_start(self, asked: int) -> None:
        """Refuse to draw more public tasks at a time than there are.

        Args:
            asked: Number of clients that take part in a round.
        """
        super().check_start(asked)
        settings: Any = self.settings
        if "public" in self.card.roles and settings.public_tasks > (held := len(self.public_env.pool)):
            raise OptionError(
                f"algorithm.public_tasks asks for {settings.public_tasks} tasks at a time, partition.roles.public holds {held}"
            )

    def draw_public_tasks(self, draw: Stream) -> list[str]:
        """Draw as many tasks of the role `public` as the settings say, each at most once."""
        settings: Any = self.settings
        pool, wanted = self.public_env.pool, settings.public_tasks
        return [pool.ids[int(position)] for position in draw.choice(len(pool), wanted)]

    def count_public_steps(self, step: int) -> int:
        """The number of public steps among the first `step` steps of a client that takes part in every round."""
        settings: Any = self.settings
        steps, period = int(settings.local_steps), int(settings.swap_period)
        rounds, left = divmod(step, steps)
        return rounds * (steps // period) + left // period

    def check_held(self, site: Site) -> None:
        """Refuse a run whose public tasks cannot be opened on this machine."""
        if not self.card.roles:
            return
        try:
            assert self.public_env.pool
        except FedAgentGymError:
            raise RefusedError("it cannot open the public tasks of the run on its machine") from None


def make_algorithm(spec: ExperimentSpec, runtime: Runtime) -> BaseAlgorithm[Any]:
    """The algorithm that a spec names, with its own settings validated."""
    cls = get_algorithm_class(spec.algorithm)
    return cls(cls.settings_class.load(dict(spec.algorithm), "algorithm"), runtime)


def get_algorithm_class(section: Mapping[str, Any]) -> type[BaseAlgorithm[Any]]:
    """The class that is registered under the section's name."""
    if "name" not in section:
        raise OptionError("the key 'algorithm.name' is missing")
    name = str(section["name"])
    cls = ALGORITHMS.get(name)
    if not (isinstance(cls, type) and issubclass(cls, BaseAlgorithm)):
        raise OptionError(f"the algorithm {name!r} is not a class derived from fedagentgym.algorithms.BaseAlgorithm")
    settings: Any = getattr(cls, "settings_class", None)
    if not (isinstance(settings, type) and issubclass(settings, Settings)):
        hint = "name one as settings_class, such as a class derived from fedagentgym.algorithms.AveragingSettings"
        raise OptionError(f"the algorithm {name!r}: {cls.__name__} has no class of settings; {hint}")
    field = settings.model_fields.get("name")
    named = () if field is None else get_args(field.annotation) if get_origin(field.annotation) is Literal else (name,)
    if name not in named:
        has = f"the names {join_names(map(repr, named))}" if named else "no name"
        hint = f"write name: Literal[{name!r}] = {name!r}"
        raise OptionError(f"the algorithm {name!r}: its settings, {settings.__name__}, have {has}; {hint}")
    return cls


def describe_method(section: Mapping[str, Any], scale: Scale) -> Card:
    """The card of the method and the settings in the `algorithm:` part of a configuration."""
    cls = get_algorithm_class(section)
    return cls.describe(cls.settings_class.load(dict(section), "algorithm"), scale)
