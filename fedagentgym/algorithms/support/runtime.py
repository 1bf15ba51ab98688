"""What every algorithm builds on, in the server's process and in every worker: one resident agent and the clients' worlds.

A `Workbench` follows from a `Bench` (the parts of a configuration that say what is learned, by whom, and from what), so a
worker rebuilds it from plain values. Models, pools and worlds are opened when first needed; the model is loaded once per
process and clients swap their weights on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.support.state_arrays import writable
from fedagentgym.base.errors import OptionError, listed
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.federation.message import ArrayForm
from fedagentgym.learning.local import LocalTraining, SiteState, trainable_policy
from fedagentgym.learning.settings import LearningSettings

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.pool import TaskPool
    from fedagentgym.partitions.client_split import ClientSplit

_WARM_SITES = 64


class EnvSettings(Settings):
    """The `env:` part: which world, which of its splits is divided among clients, and the world's own options."""

    id: str = Field(description="environment id, such as fedagentgym/ALFWorld-v0")
    split: str = Field(default="train", description="split whose tasks the clients share; never one for evaluation")
    options: dict[str, Any] = Field(default_factory=dict, description="keywords of the environment, such as size: tiny")


class PartitionSettings(Settings):
    """The `partition:` part: a split file, or a sampler with its parameters beside its name."""

    model_config = ConfigDict(extra="allow")

    file: str | None = Field(default=None, description="a split file made by `fedagentgym split make`")
    sampler: str = Field(
        default="uniform", description="uniform, preference, coverage, hardness, dirichlet, by_source, ..."
    )
    clients: int | None = Field(default=None, ge=1, description="number of clients")
    seed: int | None = Field(default=None, description="seed of the split; the run's seed by default")
    roles: dict[str, int] = Field(default_factory=dict, description="tasks set aside: public, auxiliary, server")
    variant: str | dict[str, Any] | None = Field(default=None, description="what differs between the clients' worlds")
    labels: str | None = Field(default=None, description="file of hardness labels")
    server_overlap: float = Field(
        default=1.0, ge=0.0, le=1.0, description="share of the server's tasks that clients hold too"
    )

    @model_validator(mode="after")
    def _one_way(self) -> PartitionSettings:
        if self.file is None and self.clients is None:
            raise ValueError("say how many clients there are, or name a split file")
        given = [*self.model_extra] if self.model_extra else []
        given += [
            n
            for n, f in type(self).model_fields.items()
            if n != "file" and getattr(self, n) != f.get_default(call_default_factory=True)
        ]
        if self.file is not None and given:
            raise ValueError(f"a split file decides everything: leave out {listed(given)}")
        return self


class Bench(Settings):
    """What an algorithm needs to know of a run; the whole of what a worker is told."""

    seed: int = Field(default=0, ge=0, description="seed of everything that is random in this run")
    rounds: int = Field(default=1, ge=0, description="rounds of the run, for schedules")
    env: EnvSettings
    partition: PartitionSettings
    agent: AgentSettings = Field(default=AgentSettings(), description="who learns")
    learning: LearningSettings = Field(default=LearningSettings(), description="the local policy step")
    algorithm: dict[str, Any] = Field(description="name of the method and its own settings")
    sampled_episodes: int = Field(default=2, ge=0, description="training episodes that each client shows per round")


@dataclass(frozen=True)
class Site:
    """What a client has at hand while it runs an operation."""

    client: int
    env: TextEnv
    agent: TokenAgent
    learning: LearningSettings

    @property
    def examples(self) -> int:
        """The number of its tasks."""
        return len(self.env.pool)


class Workbench:
    """The lazily opened things behind a `Bench`. One per process; see the module's docstring."""

    def __init__(self, bench: Bench, device: str | None = None) -> None:
        self.bench = bench
        self.seed, self.rounds, self.learning = bench.seed, bench.rounds, bench.learning
        self._device = device
        self._sites: OrderedDict[int, Site] = OrderedDict()

    @cached_property
    def client_split(self) -> ClientSplit:
        """The tasks' division among clients."""
        from fedagentgym.partitions.client_split import federate, load_client_split

        env, partition = self.bench.env, self.bench.partition
        if partition.file is not None:
            loaded = load_client_split(partition.file, env=env.options)
            if loaded.record.env_id != env.id:
                raise OptionError(f"partition.file divides {loaded.record.env_id}, env.id is {env.id}")
            return loaded
        return federate(
            env.id,
            partition=partition.sampler,
            clients=partition.clients or 1,
            seed=self.seed if partition.seed is None else partition.seed,
            split=env.split,
            env=env.options,
            variant=partition.variant,
            roles=partition.roles,
            server_overlap=partition.server_overlap,
            labels=partition.labels,
            **(partition.model_extra or {}),
        )

    @cached_property
    def env(self) -> TextEnv:
        """The unperturbed environment over the whole divided split."""
        return self.open_env(pool=self.client_split.pool)

    @property
    def agent(self) -> TokenAgent:
        """The resident agent: one model per process, with one compute thread so that every place gives the same bits."""
        return self._resident[0]

    @cached_property
    def _resident(self) -> tuple[TokenAgent, dict[str, NDArray[Any]]]:
        from fedagentgym.agents.make import make_agent
        from fedagentgym.base.extras import require

        require("torch", "train").set_num_threads(1)
        settings = self.bench.agent
        if self._device is not None:
            settings = settings.model_copy(update={"device": self._device})
        agent: Any = make_agent(settings, self.env, seed=derive(self.seed, "agent"))
        return agent, trainable_policy(agent).get_weights()

    @property
    def initial_weights(self) -> dict[str, NDArray[Any]]:
        """The trainable parameters as first loaded: all weights, or those of the adapter."""
        return self._resident[1]

    def load(self, weights: Mapping[str, NDArray[Any]]) -> TokenAgent:
        """The resident agent with these trainable parameters."""
        trainable_policy(self.agent).set_weights(writable(weights))
        return self.agent

    def site(self, client: int) -> Site:
        """A client's tasks and world, kept warm for a while."""
        if client not in self._sites:
            self._sites[client] = self.seat(client, self.client_split.client(client).open_env())
        self._sites.move_to_end(client)
        while len(self._sites) > _WARM_SITES:
            self._sites.popitem(last=False)
        return self._sites[client]

    def seat(self, client: int, env: TextEnv) -> Site:
        """The resident agent in front of some world."""
        return Site(client, env, self.agent, self.learning)

    def training(
        self,
        site: Site,
        start: SiteState,
        *,
        learning: LearningSettings | None = None,
        run_steps: int | None = None,
        proximal: float = 0.0,
    ) -> LocalTraining:
        """A site's training from this state on; the frozen reference of its KL term is the model as first loaded."""
        chosen = site.learning if learning is None else learning
        base = self.initial_weights if chosen.kl.reference == "base" else None
        local = LocalTraining(site.agent, site.env, chosen, run_steps=run_steps, proximal=proximal, base=base)
        local.start(start)
        return local

    def open_env(self, *, split: str | None = None, pool: TaskPool | None = None) -> TextEnv:
        """The unperturbed world over another split, or over a pool (a role's tasks)."""
        chosen = {"pool": pool} if pool is not None else {"split": split or self.bench.env.split}
        return open_env(self.bench.env.id, **{**self.client_split.options, **chosen})

    def role(self, name: str) -> TextEnv:
        """The unperturbed world over the tasks of a role; what the server holds comes without answers."""
        return self.open_env(pool=self.client_split.role(name))

    def evaluator(self, weights: Mapping[str, NDArray[Any]], temperature: float) -> TokenAgent:
        """The resident agent with these parameters, decoding at another temperature."""
        agent = self.load(weights)
        return replace(agent, decoding=agent.decoding.model_copy(update={"temperature": temperature}))

    def forms(self, prefix: str = "weights/", *, optional: bool = False) -> dict[str, ArrayForm]:
        """The declaration of a message that carries the trainable parameters."""
        return {
            prefix + name: ArrayForm(array.dtype.name, array.shape, optional=optional)
            for name, array in self.initial_weights.items()
        }


def make_algorithm(bench: Bench, workbench: Workbench) -> Any:
    """The algorithm that a bench names, with its own settings validated."""
    cls = algorithm_class(bench.algorithm)
    return cls(load_settings(cls, bench.algorithm), workbench)


def algorithm_class(section: Mapping[str, Any]) -> Any:
    if "name" not in section:
        raise OptionError("the key 'algorithm.name' is missing")
    return ALGORITHMS.get(str(section["name"]))


def load_settings(cls: Any, section: Mapping[str, Any]) -> Settings:
    """The algorithm's own settings from the `algorithm:` part of a configuration."""
    settings: Settings = cls.settings_class.load(dict(section), "algorithm")
    return settings


def build(bench: Mapping[str, Any], device: str | None = None) -> Any:
    """What a worker builds from a recipe: the algorithm, whose operations it then serves."""
    loaded = Bench.load(bench, "bench")
    return make_algorithm(loaded, Workbench(loaded, device))
