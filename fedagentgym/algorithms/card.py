"""The card of a method: one value with all that other code needs to know of the method before it runs.

`BaseAlgorithm.describe(settings, scale)` returns it. `plan`, the permissions of clients that hold their tasks, the number
of labelled tasks, the checks of a configuration, the verification of results and the table of methods read the card, and
`fedagentgym.testing.check_algorithm` compares it with a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.ranks import RankLaw
from fedagentgym.base.errors import OptionError
from fedagentgym.learning.settings import LearningSettings

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import ClientSplit

BaseRank = Literal["clients", "clients but one", "full"]
CLIENTS, SPLIT = "clients", "split"
"""In `Card.labelled`: the tasks of all clients, and all tasks of the divided split."""
SERVER = "server"
"""The role whose tasks have no answers."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one round, or of the preparation before the first, over all clients and the server together.

    Attributes:
        episodes: Episodes that are played to learn from.
        scored: Episodes that are played only to be scored: an expert's answers.
        read: Episodes of others that a model reads to score them: candidates, swapped answers.
        imitated: Demonstrations in supervised steps; one that is in several steps counts each time.
        optimizer_steps: Steps of an optimizer.
        models_down: Sets of trainable parameters that the server sends.
        models_up: Sets that clients send.
        bases_down: Changes of all adapted layers' frozen weights that the server sends, in any round after the first.
        answers_down: Episodes within the server's messages.
        answers_up: Episodes within the clients' messages.
        tasks_down: Tasks without answers in the server's messages.
        scores_down: Single numbers within the server's messages.
        scores_up: Single numbers within the clients' messages.
        bits_up: Yes-or-no answers in the clients' messages.
    """

    episodes: int = 0
    scored: int = 0
    read: int = 0
    imitated: int = 0
    optimizer_steps: int = 0
    models_down: int = 0
    models_up: int = 0
    bases_down: int = 0
    answers_down: int = 0
    answers_up: int = 0
    tasks_down: int = 0
    scores_down: int = 0
    scores_up: int = 0
    bits_up: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __mul__(self, times: int) -> Work:
        return Work(*(getattr(self, one.name) * times for one in fields(self)))

    def share(self, rounds: int) -> Work:
        """Return the share of one round in the work of this many rounds, rounded down."""
        return Work(*(getattr(self, one.name) // rounds for one in fields(self)))


@dataclass(frozen=True, slots=True)
class Scale:
    """The numbers on which the work depends, besides the method's own settings. The defaults are for one client.

    Attributes:
        learning: The settings of the local step.
        clients: Number of all clients.
        asked: Clients that take part in a round.
        rows_per_episode: Maximum number of rows of the loss per episode: one, or one for each turn.
        roles: Tasks that are set aside, by role.
        held: The number of tasks of each client; empty if they are not known.
        generated: Whether the tasks are known to come from a generator.
    """

    learning: LearningSettings = field(default_factory=LearningSettings)
    clients: int = 1
    asked: int = 1
    rows_per_episode: int = 1
    roles: Mapping[str, int] = field(default_factory=dict)
    held: tuple[int, ...] = ()
    generated: bool = False

    def count_updates(self, episodes: int) -> int:
        """Optimizer steps of one policy step on this many episodes."""
        rows, size = max(episodes * self.rows_per_episode, 1), self.learning.minibatch_rows
        steps = min(self.learning.minibatches, rows) if size is None else -(-rows // size)
        return self.learning.gradient_epochs * steps

    def count_local_work(self, steps: int) -> Work:
        """The work of this many policy steps of one client on its own tasks."""
        episodes = self.learning.episodes_per_step
        return Work(episodes=steps * episodes, optimizer_steps=steps * self.count_updates(episodes))


def count_imitation(steps: int, batch_size: int) -> Work:
    """The work of this many supervised steps on demonstrations: no episode is played with the model."""
    return Work(imitated=steps * batch_size, optimizer_steps=steps)


@dataclass(frozen=True, slots=True)
class Sent:
    """One kind of data that clients send.

    Attributes:
        kind: The word by which the owner of tasks allows it, in `allow` or `share`.
        what: Its description.
        readers: Who reads it.
        keys: The plain values in a reply's `control` that hold it. An owner's machine sends no other values.
    """

    kind: str
    what: str
    readers: str = "the server"
    keys: tuple[str, ...] = ()


METRICS = Sent("metrics", "means over the episodes of training: success, reward, turns, tokens, loss")
COUNT = Sent(
    "count",
    "its number of tasks, and with evaluation the interval that follows from it",
    keys=("examples", "tasks", "low", "high"),
)
EVALUATION = Sent("evaluation", "success on its held-out tasks, in rounds that are evaluated", keys=("success",))
CATEGORIES = Sent("categories", "success by category on its held-out tasks", keys=("categories",))
SECTIONS: Mapping[str, frozenset[str]] = {
    "weights": frozenset({"parameters"}),
    "scores": frozenset({"scores", "votes"}),
    "text": frozenset({"answers"}),
    "report": frozenset({"metrics"}),
}
"""The kinds of data that the sections of a reply may hold. For the section `control`, `Sent.keys` names the values."""


@dataclass(frozen=True, slots=True)
class SecondModel:
    """A model that clients hold beside the agent that learns."""

    name: str
    agent: AgentSettings
    learning: LearningSettings
    steps: int
    """Policy steps that it is trained for; 0 if it only plays and scores."""


@dataclass(frozen=True, slots=True)
class Card:
    """The declarations of a method under given settings.

    Attributes:
        round: The work of one round; None if it is unknown.
        preparation: The work of `prepare`; None if it is unknown.
        renewal: Rounds between two preparations; 0 if the only one is before round 1.
        roles: The roles for which tasks must be set aside: some of `public`, `auxiliary`, `server` and `warmup`.
        optional_roles: The roles whose tasks it opens if they were set aside.
        labelled: The tasks whose answers the method may use to score episodes or to imitate: `clients` for those of all clients,
            the number of a client, a role, or `split` for the whole pool. None for all clients and the method's roles, except
            `server`, whose tasks have no answers.
        sent: All that clients send to the server, for the owners of tasks to allow.
        metered: False if nothing is sent; the bytes are then recorded as 0.
        second_models: The models that clients hold beside the agent that learns.
        kept_copies: Names of the further copies of the trained parameters that a client holds while it works.
        held_refusal: The reason why it cannot work with tasks that stay on the clients' own machines; empty if it can.
        value_refusal: The reason why the learner can have no value head (`learning.advantage: gae`); empty if it can.
        needs_counts: True if clients are weighed by their numbers of tasks.
        needs_metrics: True if a metric that clients report decides something, such as a client's weight.
        gives_weights: True if the method computes the clients' weights itself; a rule without weights would ignore them.
        trains_local_models: True if clients end a round with models of their own, which can be evaluated.
        keeps_policies: True if clients play with policies of their own (`client_parameters`), not all with the same.
        base_rank: The highest rank that a round adds to a change of the base: the sum of its clients' ranks, the sum without
            one client, or full rank.
        factors: The factors of an adapter that are sent, of those that are trained.
        sends_factors: False if the server sends no factors, since clients can make them.
        ranks: The ranks of the clients' adapters, as a list or a law; None if all have the agent's.
        assumed: The assumptions under which the method's privacy budget is computed; empty without one.
    """

    round: Work | None = None
    preparation: Work | None = Work()
    renewal: int = 0
    roles: tuple[str, ...] = ()
    optional_roles: tuple[str, ...] = ()
    labelled: tuple[str | int, ...] | None = None
    sent: tuple[Sent, ...] = ()
    metered: bool = True
    second_models: tuple[SecondModel, ...] = ()
    kept_copies: tuple[str, ...] = ()
    held_refusal: str = ""
    value_refusal: str = ""
    needs_counts: bool = False
    needs_metrics: bool = False
    gives_weights: bool = False
    trains_local_models: bool = False
    keeps_policies: bool = False
    base_rank: BaseRank = "full"
    factors: Literal["both", "A", "B"] = "both"
    sends_factors: bool = True
    ranks: tuple[int, ...] | RankLaw | None = None
    assumed: Sequence[str] = ()

    def check_values(self, name: str, learning: LearningSettings) -> None:
        """Raise `OptionError` if `learning` asks for a value head and the method, named `name`, can have none."""
        if learning.advantage.uses_values and self.value_refusal:
            raise OptionError(f"{name} cannot learn by a value head (learning.advantage: gae): {self.value_refusal}")

    def list_sent(self, *, evaluated: bool) -> tuple[Sent, ...]:
        """Return all that leaves the machine of a client that holds its tasks; `evaluated` if it plays its held-out tasks."""
        return (*self.sent, COUNT, *((EVALUATION, CATEGORIES) if evaluated else ()))

    def count_preparations(self, rounds: int) -> int:
        """Return how often a run of this many rounds prepares: before round 1, and at every renewal."""
        return 1 + (max(rounds - 1, 0) // self.renewal if self.renewal else 0)

    @property
    def label_sources(self) -> tuple[str | int, ...]:
        """The sources of the answers that it may use, in the words of `labelled`."""
        if self.labelled is not None:
            return self.labelled
        return (CLIENTS, *(name for name in self.roles if name != SERVER)) if self.roles else (CLIENTS,)

    def list_labelled(self, client_split: ClientSplit) -> set[str]:
        """Return the ids of the tasks whose answers it may use."""
        found = set[str]()
        for source in self.label_sources:
            if source == CLIENTS:
                for client in client_split:
                    found.update(client.tasks)
            elif isinstance(source, int):
                found.update(client_split.client(source).tasks)
            else:
                found.update(client_split.pool.ids if source == SPLIT else client_split.record.roles.get(source, ()))
        return found
