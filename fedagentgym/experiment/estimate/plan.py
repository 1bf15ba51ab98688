"""The plan of a run: counts of a round and of the whole run, memory of each device, time at a given speed.

Numbers are upper bounds if the length of an episode matters: every episode takes all its turns and fills its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedagentgym.agents.settings import AgentSettings, VllmOptions
from fedagentgym.algorithms.base import EPISODE_BYTES, TOKEN_BYTES, Scale, Work
from fedagentgym.algorithms.make import get_algorithm_class, load_settings
from fedagentgym.algorithms.support.transfer import TASK_BYTES
from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.estimate.memory import Part, VllmShare, compute_peak, list_memory_parts, list_second_parts
from fedagentgym.experiment.estimate.player import DEVICE_BYTES, PlannedAgent, plan_agent
from fedagentgym.experiment.settings import RunConfig

PARAMETER_BYTES = 4
"""Parameters are sent in float32."""
SCORE_BYTES = 4


@dataclass(frozen=True)
class RunPlan:
    """The cost of a configuration."""

    config: RunConfig
    agent: PlannedAgent
    clients: int
    asked: int
    preparation: Work
    preparations: int
    round: Work
    evaluations: int
    memory: tuple[Part, ...]
    kept_copies: tuple[str, ...]
    vllm_share: VllmShare | None
    devices: int

    @property
    def total(self) -> Work:
        """The whole run, without evaluations."""
        return self.preparation * self.preparations + self.round * self.config.federation.rounds

    @property
    def generated_tokens(self) -> int:
        return (self.total.episodes + self.total.judged) * self.agent.generated_tokens

    @property
    def learnt_tokens(self) -> int:
        """Tokens that go through the model's updates: every episode once for each gradient epoch."""
        return self.total.episodes * self.agent.episode_tokens * self.config.learning.gradient_epochs

    @property
    def model_bytes(self) -> int:
        """One set of parameters in a message."""
        return self.agent.trainable * PARAMETER_BYTES

    @property
    def answer_bytes(self) -> int:
        """Maximum size of an episode in a message."""
        return EPISODE_BYTES + TOKEN_BYTES * self.agent.context_length

    def count_bytes_down(self, work: Work) -> int:
        answers = work.answers_down * self.answer_bytes
        return work.models_down * self.model_bytes + answers + work.tasks_down * TASK_BYTES

    def count_bytes_up(self, work: Work) -> int:
        answers = work.answers_up * self.answer_bytes
        return work.models_up * self.model_bytes + answers + work.scores_up * SCORE_BYTES + -(-work.bits_up // 8)

    @property
    def peak(self) -> int:
        """Bytes that a device needs at the peak."""
        return compute_peak(self.memory)

    def estimate_device_hours(self, tokens_per_second: float) -> float:
        """Device-hours of playing alone; learning from the episodes takes about as long again."""
        return self.generated_tokens / tokens_per_second / 3600


def plan_run(config: RunConfig, device_bytes: int = DEVICE_BYTES) -> RunPlan:
    """The plan of a configuration on devices of this memory. Opens no model and needs neither torch nor data."""
    agent = plan_agent(config.agent, config.env, config.warm_start, device_bytes)
    clients = _count_clients(config)
    asked = min(config.federation.clients_per_round or clients, clients)
    scale = Scale(config.learning, clients, asked, agent.rows_per_episode, config.partition.roles)
    algorithm = get_algorithm_class(config.algorithm)
    settings = load_settings(algorithm, config.algorithm)
    _check_roles(config, algorithm.list_roles(settings))
    work = algorithm.estimate_round(settings, scale)
    preparation = algorithm.estimate_preparation(settings, scale)
    if work is None or preparation is None:
        raise OptionError(
            f"the algorithm {config.algorithm['name']!r} does not declare the work of a round: give its class "
            "`estimate_round`"
        )
    vllm = _find_vllm_share(config.agent)
    kept = algorithm.list_kept_copies(settings)
    return RunPlan(
        config,
        agent,
        clients,
        asked,
        preparation,
        algorithm.count_preparations(settings, config.federation.rounds),
        work,
        _count_evaluations(config),
        (
            *list_memory_parts(agent, config.learning, kept, vllm),
            *(
                part
                for model in algorithm.list_second_models(settings, config.learning)
                for part in list_second_parts(model, plan_agent(model.agent, config.env, None, device_bytes))
            ),
        ),
        kept,
        vllm,
        max(1, len(config.federation.device_per_worker) or config.federation.workers)
        * (config.learning.sharding.devices if config.learning.sharding is not None else 1),
    )


def _find_vllm_share(agent: AgentSettings) -> VllmShare | None:
    """The memory of vLLM, if it plays."""
    if agent.rollouts != "vllm":
        return None
    options = VllmOptions.load(agent.options)
    return VllmShare(options.memory, options.sleep)


def _check_roles(config: RunConfig, needed: Sequence[str]) -> None:
    """Check that tasks are set aside for a method's roles; a split from a file contains its roles."""
    missing = [name for name in needed if not config.partition.roles.get(name)]
    if missing and config.partition.file is None:
        raise OptionError(
            f"the algorithm {config.algorithm['name']!r} needs tasks of the role {missing[0]!r}: "
            f"ask for them with partition.roles.{missing[0]}"
        )


def _count_clients(config: RunConfig) -> int:
    if config.partition.clients is not None:
        return config.partition.clients
    from fedagentgym.partitions.client_split import load_client_split

    assert config.partition.file is not None
    return len(load_client_split(config.partition.file, env=config.env.options))


def _count_evaluations(config: RunConfig) -> int:
    """Number of evaluations of the run: before the first round, at each interval, and after the last."""
    if config.evaluation is None:
        return 0
    rounds, every = config.federation.rounds, config.evaluation.every
    return 1 + -(-rounds // every)
