"""The basis of every algorithm, in the server's process and in every worker: a resident agent and the clients' environments.

A `Runtime` follows from an `ExperimentSpec` (the parts of a configuration that define what is learned, by whom, and from what),
so a worker rebuilds it from plain values. Models, pools and environments are opened on first use. A model is loaded once per
process; any number of learners share it, each with weights of its own. A method whose clients have a model of another kind
opens a second one.

The clients' tasks are parts of one pool that every process opens (`DividedSites`), or on the clients' own machines (`HeldSites`,
`OwnSites`). The configuration decides which; these objects answer whatever depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import not_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field, model_validator

from fedagentgym.agents.model.names import VALUE_HEAD
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.devices import here
from fedagentgym.base.errors import FedAgentGymError, OptionError, join_names
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.make import read_options
from fedagentgym.envs.registry import find_env_id
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.message import ArrayForm
from fedagentgym.learning.evaluation import OpenedSet, open_sets
from fedagentgym.learning.settings import NO_ENDS, EvaluationSettings, LearningSettings
from fedagentgym.learning.state import SiteState, get_trainable_policy

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.pool import TaskPool
    from fedagentgym.learning.learner import LocalTraining
    from fedagentgym.learning.penalties import Penalty
    from fedagentgym.partitions.client_split import ClientSplit
    from fedagentgym.partitions.held import HeldTasks


HELD = "held"
"""The sampler of runs whose tasks lie on the clients' own machines."""
Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ResidentModel:
    """An agent whose model is loaded in this process, and the trainable parameters that it was loaded with."""

    agent: TokenAgent
    initial_weights: Weights

    def load(self, weights: Weights) -> TokenAgent:
        """The agent with these trainable parameters, until others are loaded."""
        get_trainable_policy(self.agent).set_weights(weights)
        return self.agent

    def make_weight_forms(self, *, optional: bool = False) -> dict[str, ArrayForm]:
        """The forms of the trainable parameters, as the weights or a set of a message."""
        return {
            name: ArrayForm(array.dtype.name, array.shape, optional=optional)
            for name, array in self.initial_weights.items()
        }


@dataclass(frozen=True)
class Site:
    """The tasks, model and settings of one client's operation."""

    client: int
    env: TextEnv
    model: ResidentModel
    learning: LearningSettings
    reports_count: bool = True
    """True if the server may know how many tasks there are."""
    seed: int = 0
    """The run's seed."""

    @property
    def order_seed(self) -> int:
        """The seed of the client's passes over its tasks (`task_order: epochs`), the same in every round."""
        return derive(self.seed, "task order", self.client)

    @property
    def agent(self) -> TokenAgent:
        """The agent with the weights that its model holds now. To play or evaluate, use the agent of a learner or of `load`. If a
        program plays with the agent, the program is this client's."""
        agent = self.model.agent
        return agent if agent.harness is None else replace(agent, harness=agent.harness.for_client(self.client))

    @property
    def reported_counts(self) -> dict[str, int]:
        """The number of its tasks, as a reply reports it; empty if the server may not know it."""
        return {"examples": len(self.env.pool)} if self.reports_count else {}

    def open_learner(
        self,
        start: SiteState,
        *,
        run_steps: int | None = None,
        first_step: int = 0,
        penalties: Sequence[Penalty] = (),
    ) -> LocalTraining:
        """A learner of the site's tasks.

        Args:
            start: The state from which it begins.
            run_steps: The length of the whole run, for schedules.
            first_step: The step with which schedules begin.
            penalties: Terms of the loss besides the configured ones.
        """
        from fedagentgym.learning.learner import LocalTraining

        base = self.model.initial_weights
        return LocalTraining(
            self.agent,
            self.env,
            self.learning,
            start=start,
            run_steps=run_steps,
            first_step=first_step,
            penalties=penalties,
            base=base,
            order_seed=self.order_seed,
        )


class Runtime:
    """The lazily opened objects of an `ExperimentSpec`. One per process; see the module's docstring."""

    def __init__(
        self,
        spec: ExperimentSpec,
        device: str | None = None,
        *,
        client_split: ClientSplit | None = None,
        own: OwnSites | None = None,
    ) -> None:
        """`client_split` is the client split of the spec, if it was made before; `own` has the tasks that this machine holds."""
        if spec.learning.mask_truncated and spec.agent.harness is not None:
            raise OptionError(NO_ENDS)
        self.spec = spec
        self.sites: Sites = own or (HeldSites() if spec.partition.is_held else DividedSites(lambda: self.client_split))
        if client_split is not None:
            self.client_split = client_split
        self.seed, self.rounds, self.learning = spec.seed, spec.rounds, spec.learning
        self._device = device
        self.base_dtype: str | None = None
        """The dtype of the frozen weights under an adapter if `agent.dtype` is not set; a method that changes them sets it. None
        for the agent's default."""

    @cached_property
    def client_split(self) -> ClientSplit:
        """The division of the tasks among clients."""
        from fedagentgym.partitions.client_split import federate, open_client_split

        env, partition = self.spec.env, self.spec.partition
        if partition.file is not None:
            loaded = open_client_split(partition.file, env=env.options)
            if loaded.record.env_id != env.id:
                raise OptionError(f"partition.file divides {loaded.record.env_id}, env.id is {env.id}")
            return loaded
        return federate(
            env.id,
            partition=partition.sampler,
            clients=partition.clients,
            seed=self.seed if partition.seed is None else partition.seed,
            split=env.split,
            env=env.options,
            variant=partition.variant,
            roles=partition.roles,
            server_overlap=0.0 if partition.is_held else partition.server_overlap,
            labels=partition.labels,
            **(partition.model_extra or {}),
        )

    @cached_property
    def env(self) -> TextEnv:
        """The unchanged environment over the whole divided split."""
        return self.sites.open_whole(lambda: self.open_env(pool=self.client_split.pool))

    @property
    def agent(self) -> TokenAgent:
        """The resident agent: one model per process, by default with one compute thread, so that all workers give equal bits."""
        return self.resident.agent

    @cached_property
    def resident(self) -> ResidentModel:
        """The agent that learns, with its parameters as first loaded; with a value head among them, if clients share one."""
        opened = self.open_model(self.spec.agent, "agent")
        if not self.learning.sends_head:
            return opened
        policy = get_trainable_policy(opened.agent)
        policy.add_value_head()
        return ResidentModel(opened.agent, policy.get_weights())

    @cached_property
    def own_head(self) -> Weights:
        """The initial value head of every client, if each client has its own; otherwise empty."""
        if not self.learning.keeps_head:
            return {}
        policy = get_trainable_policy(self.agent)
        policy.add_value_head()
        return {name: array for name, array in policy.get_weights().items() if name.startswith(VALUE_HEAD)}

    def open_model(self, settings: AgentSettings, purpose: str) -> ResidentModel:
        """Load a model; `purpose` names the stream from which a new adapter is drawn."""
        from fedagentgym.agents.model.loading import set_threads
        from fedagentgym.agents.presets import make_agent

        set_threads(settings.threads)
        device = here().device or self._device
        if device is not None:
            settings = settings.model_copy(update={"device": str(device)})
        if self.base_dtype is not None and settings.adapter is not None and settings.dtype is None:
            settings = settings.model_copy(update={"dtype": self.base_dtype})
        if self.spec.together is not None and settings.rollouts != "torch":
            options = {"adapters": self.spec.together, **settings.options}
            settings = settings.model_copy(update={"options": options})
        agent: Any = here().make_first(lambda: make_agent(settings, self.env, seed=derive(self.seed, purpose)))
        if here().shards and self.learning.sharding is not None:
            from fedagentgym.learning.sharding import shard_agent

            agent = shard_agent(agent, self.learning.sharding)
        return ResidentModel(agent, get_trainable_policy(agent).get_weights())

    def close(self) -> None:
        """End the programs that play with the agent; they start again when they are needed."""
        resident = vars(self).get("resident")
        if resident is not None and resident.agent.harness is not None:
            resident.agent.harness.close()

    @property
    def initial_weights(self) -> Weights:
        """The trainable parameters as first loaded: all weights, or those of the adapter."""
        return self.resident.initial_weights

    def load_weights(self, weights: Weights) -> TokenAgent:
        """The resident agent with these trainable parameters, until others are loaded."""
        return self.resident.load(copy_arrays(weights))

    def get_site(
        self,
        client: int,
        model: ResidentModel | None = None,
        learning: LearningSettings | None = None,
        *,
        env: TextEnv | None = None,
    ) -> Site:
        """A client's site. By default it has the client's own environment, which is cached, the resident model, and the run's
        settings of the local step."""
        reports_count = True
        if env is None:
            env, reports_count = self.sites.open(client)
        return Site(client, env, model or self.resident, learning or self.learning, reports_count, self.seed)

    def open_env(self, *, split: str | None = None, pool: TaskPool | None = None) -> TextEnv:
        """The unchanged environment over another split, or over a pool (a role's tasks)."""
        chosen = {"pool": pool} if pool is not None else {"split": split or self.spec.env.split}
        return open_env(self.spec.env.id, **{**self.client_split.options, **chosen})

    @cached_property
    def evaluation_sets(self) -> tuple[OpenedSet, ...]:
        """The environments in which clients evaluate their models; none if they do not."""
        settings = self.spec.evaluation
        return () if settings is None else open_sets(settings, self.spec.env.id, self.client_split.options)

    def open_role_env(self, name: str) -> TextEnv:
        """The unchanged environment over the tasks of a role; the server's tasks have no answers."""
        return self.open_env(pool=self.client_split.role(name))

    def make_weight_forms(self, *, optional: bool = False) -> dict[str, ArrayForm]:
        """The forms of the trainable parameters of the agent that learns, as the weights or a set of a message."""
        return self.resident.make_weight_forms(optional=optional)


def make_moment_forms(weights: Weights) -> dict[str, ArrayForm]:
    """The forms of AdamW's moments of these parameters; they are optional, since there are none before the first step."""
    moments = {
        f"{moment}/{name}": ArrayForm("float32", array.shape, optional=True)
        for moment in ("exp_avg", "exp_avg_sq")
        for name, array in weights.items()
    }
    return {**moments, "counts": ArrayForm("float64", (len(weights),), optional=True)}


def copy_arrays(values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Writable copies of a message's arrays, which are read-only views of its bytes."""
    return {name: np.array(array) for name, array in values.items() if isinstance(array, np.ndarray)}


def make_site_state(state: ServerState) -> SiteState:
    """The state of a policy that the server trains itself, after its last round."""
    return SiteState(copy_arrays(state.parameters), copy_arrays(state.optimizer), step=int(state.memory.get("step", 0)))


class EnvSettings(Settings):
    """The `env:` part: which environment, which of its splits is divided among clients, and its options."""

    id: Annotated[str, AfterValidator(find_env_id)] = Field(
        description="environment id such as fedagentgym/ALFWorld-v0, or its short name, ALFWorld"
    )
    split: str = Field(
        default="train", description="split whose tasks are divided among the clients; never one for evaluation"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of the environment, such as size: tiny")


FIXED = ("env", "env_id", "partition", "pool", "split")
"""Arguments of `federate` that are not settings of `partition`."""


class PartitionSettings(Settings):
    """The `partition:` part: a split file, or a sampler with its parameters next to its name."""

    model_config = ConfigDict(extra="allow")

    file: str | None = Field(default=None, description="a split file made by `fedagentgym split make`")
    sampler: str = Field(
        default="uniform", description="sampler: uniform, preference, coverage, hardness, dirichlet, by_source, ..."
    )
    clients: int | None = Field(
        default=None,
        ge=1,
        description="number of clients; null (only for natural, by_source or a file): as many as the tasks or the file define",
    )
    seed: int | None = Field(default=None, description="seed of the split; the run's seed by default")
    roles: dict[str, int] = Field(
        default_factory=dict, description="tasks set aside, by role: public, auxiliary, server, warmup"
    )
    variant: str | dict[str, Any] | None = Field(default=None, description="how the clients' environments differ")
    labels: str | None = Field(
        default=None,
        description="file of hardness labels; pool: the easier half by the tasks' structure counts as solved; by default the"
        " package's",
    )
    server_overlap: float = Field(
        default=1.0, ge=0.0, le=1.0, description="share of the server's tasks that clients hold too"
    )

    @property
    def is_held(self) -> bool:
        """True if the clients' own machines hold the tasks."""
        return self.sampler == HELD and self.file is None

    @model_validator(mode="after")
    def _check_consistency(self) -> PartitionSettings:
        from fedagentgym.partitions.division import finds_clients

        if decided := [name for name in self.model_extra or () if name in FIXED]:
            raise ValueError(
                f"partition has no setting {decided[0]!r}: the section env names the environment and its split"
            )
        decided = [name for name in ("variant", "labels") if getattr(self, name) is not None]
        if self.is_held and (decided or self.model_extra):
            decisions = join_names([*decided, *(self.model_extra or ())])
            raise ValueError(f"with sampler held the owners of the tasks decide {decisions}: leave it out")
        if self.file is None and self.clients is None and not finds_clients(self.sampler):
            raise ValueError("say how many clients there are, or name a split file")
        given = [*self.model_extra] if self.model_extra else []
        given += [
            n
            for n, f in type(self).model_fields.items()
            if n != "file" and getattr(self, n) != f.get_default(call_default_factory=True)
        ]
        if self.file is not None and given:
            raise ValueError(f"a split file determines everything: leave out {join_names(given)}")
        return self


class ExperimentSpec(Settings):
    """The parts of a run's configuration that an algorithm and its workers need."""

    seed: int = Field(default=0, ge=0, description="seed of everything that is random in this run")
    rounds: int = Field(default=1, ge=0, description="rounds of the run, for schedules")
    env: EnvSettings
    partition: PartitionSettings
    agent: AgentSettings = Field(default=AgentSettings(), description="the agent that learns")
    learning: LearningSettings = Field(default=LearningSettings(), description="the local policy step")
    algorithm: dict[str, Any] = Field(description="name of the method and its own settings")
    sampled_episodes: int = Field(default=2, ge=0, description="training episodes that each client returns per round")
    together: int | None = Field(
        default=None, exclude_if=not_, ge=2, description="clients that roll out in one batch; null: one after the other"
    )
    evaluation: EvaluationSettings | None = Field(
        default=None, description="how clients evaluate their trained models; null: they do not"
    )

    def without_local_data(self) -> ExperimentSpec:
        """The spec without options that name files: a server may not name files of a client's machine."""
        options = read_options(self.env.id, self.env.options).portable if self.env.id in ENVIRONMENTS else {}
        return self.model_copy(update={"env": self.env.model_copy(update={"options": options})})

    def to_plain(self) -> dict[str, Any]:
        """The spec as plain values, defaults included. Of the agent only the set fields are included, since its preset determines
        the rest."""
        return {**self.model_dump(mode="json"), "agent": self.agent.model_dump(mode="json", exclude_unset=True)}


# ---- where the clients' tasks are ----------------------------------------------------------------------------------------

_WARM_ENVS = 64


class ClientEnv(NamedTuple):
    """A client's environment over its tasks; `reports_count` is True if the server may know how many there are."""

    env: TextEnv
    reports_count: bool = True


class DividedSites:
    """The clients' tasks are parts of one pool, which every process opens."""

    common_ids: ClassVar[bool] = True
    """True if an id names the same task to the server and to every client."""
    plays_sets: ClassVar[bool] = True
    """True if clients can play the run's own evaluation sets."""

    def __init__(self, get_split: Callable[[], ClientSplit]) -> None:
        self._open = lru_cache(maxsize=_WARM_ENVS)(lambda client: get_split().client(client).open_env())

    def open(self, client: int) -> ClientEnv:
        """A client's environment."""
        return ClientEnv(self._open(client))

    def open_whole(self, make: Callable[[], TextEnv]) -> TextEnv:
        """The unchanged environment of the run, which `make` opens, or a substitute if it cannot be opened here."""
        return make()

    def list_openable(self, clients: Sequence[int]) -> Sequence[int]:
        """The clients whose tasks the server can open."""
        return clients


class HeldSites:
    """The clients' tasks are on their own machines; this class is for the server, which cannot open them."""

    common_ids: ClassVar[bool] = False
    plays_sets: ClassVar[bool] = False

    def open(self, client: int) -> ClientEnv:
        raise RuntimeError("the server has no tasks of its clients")

    def open_whole(self, make: Callable[[], TextEnv]) -> TextEnv:
        return make()

    def list_openable(self, clients: Sequence[int]) -> Sequence[int]:
        return ()


class OwnSites(HeldSites):
    """The tasks that this machine holds: the owner's file of every client here, and the folder that keeps their results."""

    def __init__(self, files: Mapping[int, str], folder: Path) -> None:
        self._files, self.folder = files, folder
        self._held: dict[int, HeldTasks] = {}

    def open_held(self, client: int) -> HeldTasks:
        """A client's tasks with their owner's permissions; they are opened again if their files were written."""
        from fedagentgym.partitions.held import open_held

        if client not in self._held or not self._held[client].is_unchanged:
            self._held[client] = open_held(self._files[client])
        return self._held[client]

    def open(self, client: int) -> ClientEnv:
        held = self.open_held(client)
        return ClientEnv(held.env, reports_count="count" in held.settings.share)

    def open_whole(self, make: Callable[[], TextEnv]) -> TextEnv:
        """The run's environment, or that of the owner's tasks if this machine lacks what the run's needs."""
        try:
            return make()
        except FedAgentGymError:
            return self.open_held(min(self._files)).env


Sites = DividedSites | HeldSites
