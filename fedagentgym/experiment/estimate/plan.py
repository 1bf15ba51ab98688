"""The plan of a run: counts of a round and of the whole run, memory of each device, time at a given speed.

Numbers that depend on the length of episodes are upper bounds: every episode takes all its turns and fills its context.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedagentgym.agents.presets import get_model
from fedagentgym.agents.settings import VllmOptions
from fedagentgym.algorithms.base import EPISODE_BYTES, TOKEN_BYTES
from fedagentgym.algorithms.card import Card, Scale, Sent, Work
from fedagentgym.algorithms.experts import TASK_BYTES
from fedagentgym.algorithms.factors import count_change
from fedagentgym.algorithms.ranks import check_ranks, find_rank
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.algorithms.synthetic_tasks import is_generated
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.rounding import count_things, format_bytes, format_fixed
from fedagentgym.base.statistics import mean
from fedagentgym.envs.make import env_class, read_options
from fedagentgym.envs.protocols import count_published
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.estimate.agent import DEVICE_BYTES, WIDTHS, PlannedAgent, count_rows, plan_agent
from fedagentgym.experiment.estimate.memory import (
    Part,
    compute_least,
    compute_peak,
    list_memory_parts,
    list_second_parts,
)
from fedagentgym.learning.evaluation import count_evaluated
from fedagentgym.learning.settings import EVERY_WORLD, OWN_WORLD, ShardingSettings

PARAMETER_BYTES = 4
"""Parameters are sent in float32."""
SCORE_BYTES = 4


@dataclass(frozen=True)
class WorkPlan:
    """The maximum work of a run's sites: in the preparation, and in a round."""

    clients: int
    asked: int
    preparation: Work
    round: Work
    card: Card

    @property
    def learns(self) -> bool:
        """True if a site computes gradients."""
        return (self.preparation + self.round).optimizer_steps > 0

    def count_until(self, rounds: int) -> Work:
        """The work of this many rounds with their preparations. In round 1 the base is as loaded, and no change is sent."""
        work = self.preparation * self.card.count_preparations(rounds) + self.round * rounds
        return replace(work, bases_down=self.round.bases_down * max(rounds - 1, 0))


@dataclass(frozen=True)
class RunPlan(WorkPlan):
    """The cost of a configuration."""

    config: RunConfig
    agent: PlannedAgent
    sent_parameters: float
    """Parameters in a client's message: the mean over clients, if their ranks differ."""
    received_parameters: float
    """Parameters in a message of the server."""
    base_parameters: float
    """Parameters in a change of the base: the mean over the rounds after the first."""
    ranks: tuple[int, ...]
    """The ranks of the clients' adapters; empty if all have the agent's."""
    evaluations: int
    """Evaluations before the first round, at each interval, and after the last."""
    evaluated: int | None
    """Episodes of all evaluations, those at clients included; None if the tasks' data are not here."""
    ranked: int | None
    """Episodes that rank the run at its end."""
    memory: tuple[Part, ...]
    vllm: VllmOptions | None
    devices: int

    @property
    def total(self) -> Work:
        """The whole run, without evaluations."""
        return self.count_until(self.config.federation.rounds)

    @property
    def sent(self) -> tuple[Sent, ...]:
        """All that clients send to the server, and who reads it."""
        if self.config.partition.is_held:
            evaluation = self.config.evaluation
            return self.card.list_sent(evaluated=evaluation is not None and "held_out" in evaluation.at_clients)
        return self.card.sent if self.card.metered else ()

    @property
    def generated_tokens(self) -> int:
        """Tokens that are generated to learn from and to score."""
        return (self.total.episodes + self.total.scored) * self.agent.generated_tokens

    @property
    def evaluated_tokens(self) -> int | None:
        """Tokens that are generated in evaluations and for the ranking."""
        if self.evaluated is None or self.ranked is None:
            return None
        return (self.evaluated + self.ranked) * self.agent.generated_tokens

    @property
    def imitated(self) -> int:
        """Demonstrations that are learned from: by the method, and in a warm start, which is made once and cached."""
        return self.total.imitated + self.warmed

    @property
    def warmed(self) -> int:
        """Demonstrations that are learned from in the warm start."""
        start = self.config.warm_start
        return 0 if start is None else start.steps * start.batch_size

    @property
    def learnt_tokens(self) -> int:
        """Tokens that go through the model's updates: every episode once for each gradient epoch, and demonstrations."""
        return self.updated_tokens + self.imitated * self.agent.context_length

    @property
    def updated_tokens(self) -> int:
        """Tokens that go through policy steps."""
        return self.total.episodes * self.agent.episode_tokens * self.config.learning.gradient_epochs

    @property
    def answer_bytes(self) -> int:
        """Maximum size of an episode in a message."""
        return EPISODE_BYTES + TOKEN_BYTES * self.agent.context_length

    def count_bytes_down(self, work: Work) -> int:
        answers = work.answers_down * self.answer_bytes
        parameters = round(work.models_down * self.received_parameters) + round(work.bases_down * self.base_parameters)
        numbers = work.tasks_down * TASK_BYTES + work.scores_down * SCORE_BYTES
        return parameters * PARAMETER_BYTES + answers + numbers

    def count_bytes_up(self, work: Work) -> int:
        answers = work.answers_up * self.answer_bytes
        parameters = round(work.models_up * self.sent_parameters)
        return parameters * PARAMETER_BYTES + answers + work.scores_up * SCORE_BYTES + -(-work.bits_up // 8)

    @property
    def peak(self) -> int:
        """Bytes that a device needs at the peak."""
        return compute_peak(self.memory)


def plan_run(config: RunConfig, device_bytes: int = DEVICE_BYTES) -> RunPlan:
    """The plan of a configuration on devices of this memory. Opens no model and needs neither torch nor data."""
    agent = plan_agent(config.agent, config.env, config.warm_start, device_bytes)
    if config.learning.sends_head:
        agent = replace(agent, trainable=agent.trainable + agent.shape.hidden + 1)
    work = plan_work(config)
    if work is None:
        raise OptionError(
            f"the algorithm {config.algorithm['name']!r} does not declare the work of a round: name it in the card "
            "that `describe` returns"
        )
    card, sharding, evaluation = work.card, config.learning.sharding, config.evaluation
    if card.round is not None and card.round.bases_down:
        agent = replace(agent, width=WIDTHS["float32"])  # a base that changes is always stored in float32
    ranks: tuple[int, ...] = ()
    if card.ranks is not None and config.agent.adapter is not None:
        check_ranks(config.algorithm["name"], card.ranks, config.agent.adapter.rank)
        ranks = tuple(find_rank(card.ranks, config.seed, client) for client in range(work.clients))
    vllm = VllmOptions.load(config.agent.options) if config.agent.rollouts == "vllm" else None
    memory = list(list_memory_parts(agent, config.learning, card.kept_copies, vllm, learns=work.learns))
    for model in card.second_models:
        memory += list_second_parts(model, plan_agent(model.agent, config.env, None, device_bytes))
    workers = max(1, len(config.federation.device_per_worker) or config.federation.workers)
    evaluations = 0 if evaluation is None else 1 + -(-config.federation.rounds // evaluation.every)
    evaluated: int | None = 0
    ranked: int | None = 0
    if evaluation is not None:
        once = count_evaluated(evaluation, config.env.id, config.env.options)
        at_clients = {
            "held_out": work.asked * (evaluations - 1),  # trained models, none before round 1
            OWN_WORLD: (work.clients + evaluation.newcomers) * evaluations,
            EVERY_WORLD: work.clients**2 * evaluations,
        }
        times = evaluations + sum(at_clients[name] for name in evaluation.at_clients)
        evaluated = None if once is None else once * times
    if (ranking := config.ranking) is not None:
        once = count_evaluated(ranking.evaluation, config.env.id, config.env.options)
        ranked = None if once is None else once * (1 + (work.clients if ranking.own_worlds else 0))
    return RunPlan(
        **vars(work),
        config=config,
        agent=agent,
        sent_parameters=count_sent(config, agent, card, ranks),
        received_parameters=count_sent(config, agent, card, ranks, factors=card.sends_factors),
        base_parameters=count_base(config, agent, work, ranks),
        ranks=ranks,
        evaluations=evaluations,
        evaluated=evaluated,
        ranked=ranked,
        memory=tuple(memory),
        vllm=vllm,
        devices=workers * (1 if sharding is None else sharding.devices),
    )


def count_sent(
    config: RunConfig, agent: PlannedAgent, card: Card, ranks: Sequence[int], *, factors: bool = True
) -> float:
    """The parameters in a message, as a mean over clients: the trained ones, except factors that are not sent and rows beyond a
    client's rank."""
    adapter = config.agent.adapter
    if adapter is None:
        return agent.trainable
    whole, part = (
        agent.shape.count_adapter_parameters(adapter.rank, adapter.targets, adapter.last, factors=chosen)
        for chosen in (adapter.train, adapter.train if card.factors == "both" else card.factors)
    )
    return agent.trainable - whole + (part * mean(ranks or [adapter.rank]) / adapter.rank if factors else 0)


def count_base(config: RunConfig, agent: PlannedAgent, work: WorkPlan, ranks: Sequence[int]) -> float:
    """The parameters in a change of the base, as the mean over the rounds after the first: its rank grows with every round."""
    adapter, rounds = config.agent.adapter, range(1, max(config.federation.rounds, 2))
    if adapter is None:
        return 0
    if work.card.base_rank == "full":
        return sum(outputs * inputs for outputs, inputs in agent.adapted)
    counted = work.asked - (work.card.base_rank == "clients but one")
    added = sum(sorted(ranks, reverse=True)[:counted]) if ranks else counted * adapter.rank
    return mean([sum(count_change(before * added, *layer) for layer in agent.adapted) for before in rounds])


def plan_work(config: RunConfig) -> WorkPlan | None:
    """The work of a configuration, whatever its agent; None if its method does not declare it."""
    clients = config.partition.clients
    if clients is None:
        clients = len(Runtime(config.spec()).client_split)
    asked = min(config.federation.clients_per_round or clients, clients)
    held = count_held(config) if getattr(config.method, "local_passes", None) is not None else ()
    rows = count_rows(config.agent, config.env)
    generated = getattr(config.method, "candidates_from", None) == "auto" and has_generator(config)
    scale = Scale(config.learning, clients, asked, rows, config.partition.roles, held, generated)
    card = config.describe(scale)
    missing = [name for name in card.roles if not config.partition.roles.get(name)]
    if missing and config.partition.file is None:  # a split from a file contains its roles
        raise OptionError(
            f"the algorithm {config.algorithm['name']!r} needs tasks of the role {missing[0]!r}: "
            f"ask for them with partition.roles.{missing[0]}"
        )
    if card.round is None or card.preparation is None:
        return None
    return WorkPlan(clients, asked, card.preparation, card.round, card)


def has_generator(config: RunConfig) -> bool:
    """Return whether the clients' tasks come from a generator; False if it is not known."""
    try:
        return is_generated(Runtime(config.spec()).client_split.pool.source)
    except DataError:
        return False


def count_held(config: RunConfig) -> tuple[int, ...]:
    """The number of tasks of each client; empty if it is not known. Published data sets that are divided by source are counted as
    they are published."""
    try:
        return tuple(len(client.tasks) for client in Runtime(config.spec()).client_split)
    except DataError:
        sources = config.partition.model_dump().get("sources")
    if config.partition.sampler != "by_source" or not sources:
        return ()
    sizes = {}
    for member in config.env.options.get("members", ()):
        env_id = find_env_id(member["env"])
        forms = count_published(env_class(env_id), read_options(env_id, member["options"]))
        sizes[member["name"]] = max((form.get("train", 0) for form in forms), default=0)
    if not all(sizes.get(source) for source in sources):
        return ()
    return tuple(size for source, clients in sources.items() for size in [sizes[source] // clients] * clients)


# ---- whether a run fits on its devices ------------------------------------------------------------------------------

ADAPTER_RANK = 32


def check_fit(config: RunConfig) -> None:
    """Refuse a run that cannot fit in any case, or names devices of workers that are not here. A run of which only caches or
    activations might exceed the memory is tried."""
    from fedagentgym.agents.model.loading import choose_device

    if config.federation.backend == "in-process":
        for device in config.federation.device_per_worker:
            choose_device(device)
    if get_model(config.agent) is None:  # a program, or a tiny model
        return
    device_bytes = find_device_memory(config.agent.device)
    try:
        plan = plan_run(config, device_bytes)
    except OptionError:
        return  # a model whose size is not known is tried
    least = compute_least(plan.agent, config.learning, plan.card.kept_copies, learns=plan.learns)
    if least > device_bytes:
        raise OptionError(
            f"{plan.agent.model} with {plan.agent.trainable:,} trained parameters needs at least {least / 1e9:,.0f} GB on one "
            f"device, which has {device_bytes / 1e9:,.0f} GB: {find_remedies(plan, device_bytes)}"
        )


def find_device_memory(device: str) -> int:
    """Memory of a device in bytes: of the configured GPU, which must be here, or of this machine."""
    from fedagentgym.agents.model.loading import choose_device

    if (chosen := choose_device(device)).type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(chosen.index or 0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


MAX_SHARDS = 8


def _find_shards(plan: RunPlan, device_bytes: int) -> str:
    """The smallest number of such devices that suffices for an update, or the number with parts offloaded to the machine."""
    for offload in (False, True):
        for devices in (2, 4, MAX_SHARDS):
            sharding = ShardingSettings(devices=devices, offload=offload)
            spread = plan.config.learning.model_copy(update={"sharding": sharding})
            if compute_least(plan.agent, spread, plan.card.kept_copies) <= device_bytes:
                shards = f"learning.sharding={{devices: {devices}, offload: {str(offload).lower()}}}"
                return f"{shards}, federation.workers=0, torchrun --nproc-per-node {devices}"
    return ""


def find_remedies(plan: RunPlan, device_bytes: int) -> str:
    """Alternatives that would fit, in words."""
    fits = []
    learning = plan.config.learning
    if not plan.agent.has_adapter:
        adapted = replace(
            plan.agent,
            has_adapter=True,
            width=2,
            trainable=plan.agent.shape.count_adapter_parameters(ADAPTER_RANK, "all-linear"),
        )
        if compute_least(adapted, learning, plan.card.kept_copies) <= device_bytes:
            fits.append(f"a LoRA adapter (agent.adapter={{rank: {ADAPTER_RANK}}}, agent.dtype=bfloat16)")
    if shards := _find_shards(plan, device_bytes):
        fits.append(f"shards ({shards})")
    if not learning.checkpointing:
        recomputed = learning.model_copy(update={"checkpointing": True})
        parts = list_memory_parts(plan.agent, recomputed, plan.card.kept_copies, plan.vllm)
        if compute_peak(parts) <= device_bytes:
            fits.append("recomputed activations (learning.checkpointing=true)")
    return f"what fits is {' or '.join(fits)}" if fits else "choose a smaller model or a larger device"


# ---- a plan as plain values and as text -----------------------------------------------------------------------------

COUNTS = (
    ("episodes to learn from", "episodes"),
    ("episodes only scored", "scored"),
    ("episodes only read", "read"),
    ("demonstrations imitated", "imitated"),
    ("optimizer steps", "optimizer_steps"),
)


def make_plain(plan: RunPlan) -> dict[str, Any]:
    """The plan as plain values."""
    total = plan.total
    return {
        "name": plan.config.name,
        "agent": {
            "name": plan.agent.name,
            "model": plan.agent.model,
            "parameters": plan.agent.parameters,
            "trainable": plan.agent.trainable,
        },
        "rounds": plan.config.federation.rounds,
        "clients": plan.clients,
        "clients_per_round": plan.asked,
        "ranks": list(plan.ranks),
        "evaluations": plan.evaluations,
        "round": {name: getattr(plan.round, name) for _, name in COUNTS},
        "total": {name: getattr(total, name) for _, name in COUNTS},
        "warm_start": {"imitated": plan.warmed},
        "evaluated": {"episodes": plan.evaluated, "ranked": plan.ranked},
        "tokens": {
            "generated": plan.generated_tokens,
            "evaluated": plan.evaluated_tokens,
            "learnt": plan.learnt_tokens,
        },
        "bytes": {
            "round": {"down": plan.count_bytes_down(plan.round), "up": plan.count_bytes_up(plan.round)},
            "total": {"down": plan.count_bytes_down(total), "up": plan.count_bytes_up(total)},
        },
        "memory": {
            "parts": [{"name": part.name, "phase": part.phase, "bytes": part.size} for part in plan.memory],
            "peak": plan.peak,
        },
        "sent": [asdict(one) for one in plan.sent],
        "devices": plan.devices,
    }


def format_plan(plan: RunPlan) -> Iterator[str]:
    """The plan without hours, line by line."""
    agent, federation = plan.agent, plan.config.federation
    trained = "" if agent.trainable == agent.parameters else f", {agent.trainable:,} of them trained"
    clients = f"{plan.asked} of {count_things(plan.clients, 'client')} a round"
    yield f"{plan.config.name}: {plan.config.algorithm['name']}, {count_things(federation.rounds, 'round')}, {clients}"
    yield f"agent {agent.name}: {agent.model}, {agent.parameters:,} parameters{trained}"
    if plan.ranks:
        counts = (f"{rank} ({count_things(count, 'client')})" for rank, count in sorted(Counter(plan.ranks).items()))
        yield f"ranks of the clients' adapters: {', '.join(counts)}"
    yield ""
    yield f"{'at most':28s}{'one round':>20s}{'whole run':>20s}"
    total = plan.total
    for label, name in COUNTS:
        yield f"{label:28s}{getattr(plan.round, name):>20,}{getattr(total, name):>20,}"
    if plan.warmed:
        yield f"{'demonstrations of the warm start, made once':48s}{plan.warmed:>20,}"
    for label, count in (("to the clients", plan.count_bytes_down), ("from the clients", plan.count_bytes_up)):
        yield f"{label:28s}{format_bytes(count(plan.round)):>20s}{format_bytes(count(total)):>20s}"
    played, judged = plan.generated_tokens, plan.evaluated_tokens
    whole = max(played + (judged or 0), 1)
    share = "" if judged is None else f" ({format_fixed(100 * played / whole, 0)} %)"
    yield f"{f'tokens generated to learn from and to score{share}':48s}{played:>20,}"
    yield f"{'tokens learnt from':48s}{plan.learnt_tokens:>20,}"
    unknown = "the data are not here"
    yield f"{'evaluations':48s}{plan.evaluations:>20,}"
    yield f"{'  episodes':48s}{unknown if plan.evaluated is None else f'{plan.evaluated:,}':>20s}"
    if plan.config.ranking is not None:
        yield f"{'  episodes that rank the run':48s}{unknown if plan.ranked is None else f'{plan.ranked:,}':>20s}"
    share = "" if judged is None else f" ({format_fixed(100 * judged / whole, 0)} %)"
    yield f"{f'  tokens generated{share}':48s}{unknown if judged is None else f'{judged:,}':>20s}"
    yield ""
    yield f"memory of a device{'':30s}{format_bytes(plan.peak):>20s}"
    for part in plan.memory:
        name = part.name if part.phase == "always" else f"{part.name} ({part.phase})"
        yield f"  {name:46s}{format_bytes(part.size):>{66 - max(len(name), 46)}s}"
    yield ""
    for one in plan.sent:
        yield f"clients send {one.kind}: {one.what}; read by {one.readers}"


def describe_misfit(plan: RunPlan, device_bytes: int) -> str | None:
    """A sentence if a device of this memory is too small at the peak, with what would fit."""
    if plan.peak <= device_bytes:
        return None
    return f"does not fit into {format_bytes(device_bytes)}: {find_remedies(plan, device_bytes)}"
