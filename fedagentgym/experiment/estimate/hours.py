"""The hours of a run on a GPU and their price: tokens of the run, divided by the speeds of a card that are measured or estimated.

A speed that is not given is an estimate: a decoding step reads the weights once for all episodes that are played together and
takes two operations for each weight and token; learning takes six for each weight that is trained, four under an adapter, and two
for each further pass of a policy step. Both run at a share of the card's peaks. Keys and values, the sending of weights and
waiting are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.rounding import format_bytes, format_fixed, format_share
from fedagentgym.envs.make import env_class
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.estimate.duration import EpisodeLengths, measure_lengths
from fedagentgym.experiment.estimate.plan import RunPlan

ATTAINED = 0.3
"""The share of a card's peaks that is assumed. No speed was measured on a GPU."""
HALF = 2
"""Bytes of a weight that a GPU reads."""


@dataclass(frozen=True)
class Gpu:
    """A card by its data sheet: bytes, operations in a second (dense bfloat16) and bytes in a second."""

    title: str
    memory: int
    operations: float
    bandwidth: float


GPUS = {
    "h100": Gpu("NVIDIA H100 SXM", 80 * 10**9, 989e12, 3.35e12),
    "h200": Gpu("NVIDIA H200 SXM", 141 * 10**9, 989e12, 4.8e12),
    "a100": Gpu("NVIDIA A100 SXM", 80 * 10**9, 312e12, 2.039e12),
    "l40s": Gpu("NVIDIA L40S", 48 * 10**9, 362e12, 0.864e12),
    "l4": Gpu("NVIDIA L4", 24 * 10**9, 121e12, 0.3e12),
}
"""As NVIDIA's data sheets state them."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a run: generated to learn from and to score, generated in evaluations, read in prompts, learnt from in policy
    steps, and in supervised ones."""

    generated: float
    evaluated: float
    read: float
    learnt: float
    imitated: float


@dataclass(frozen=True)
class Speeds:
    """Tokens in a second, of one device; `measured` if the speed of generating was given."""

    generating: float
    reading: float
    learning: float
    imitating: float
    measured: bool


@dataclass(frozen=True)
class Hours:
    """Device-hours of a run by part."""

    playing: float
    evaluating: float
    reading: float
    learning: float

    @property
    def total(self) -> float:
        return self.playing + self.evaluating + self.reading + self.learning


@dataclass(frozen=True)
class GpuPlan:
    """The tokens and hours of a run on a card: if episodes are as the expert's (None if these are not known), and at most."""

    gpu: Gpu
    memory: int
    speeds: Speeds
    tokens: tuple[Tokens | None, Tokens]
    reply_tokens: float | None
    stand_in: bool
    """True if the expert played generated tasks, since the data are not here."""
    price: float | None

    @property
    def hours(self) -> tuple[Hours | None, Hours]:
        expected, most = self.tokens
        return (None if expected is None else count_hours(expected, self.speeds)), count_hours(most, self.speeds)


def plan_gpu(
    plan: RunPlan,
    gpu: Gpu,
    *,
    memory: int | None = None,
    tokens_per_second: float | None = None,
    reply_tokens: float | None = None,
    price: float | None = None,
) -> GpuPlan:
    """The plan of a run on a card.

    Args:
        plan: The plan of the run.
        gpu: The card.
        memory: Bytes of the card's memory, if they differ from the data sheet.
        tokens_per_second: A measured speed of generating.
        reply_tokens: Tokens of a mean reply; by default those of the expert.
        price: The price of an hour.

    Returns:
        The plan.
    """
    lengths, stand_in = find_lengths(plan.config)
    expected = None if lengths is None else count_tokens(plan, lengths, reply_tokens)
    episodes = plan.total.episodes + plan.total.scored
    most = Tokens(
        plan.generated_tokens,
        plan.evaluated_tokens or 0,
        episodes * plan.agent.episode_tokens,
        plan.updated_tokens,
        plan.learnt_tokens - plan.updated_tokens,
    )
    speeds = estimate_speeds(plan, gpu, tokens_per_second)
    return GpuPlan(gpu, memory or gpu.memory, speeds, (expected, most), reply_tokens, stand_in, price)


def find_lengths(config: RunConfig) -> tuple[EpisodeLengths | None, bool]:
    """The lengths of the run's episodes when the expert plays; True if generated tasks replace data that are not installed."""
    try:
        return measure_lengths(config), False
    except FedAgentGymError:
        options = {"size": "tiny"} if "size" in env_class(config.env.id).Options.model_fields else {}
        turns = {name: value for name, value in config.env.options.items() if name == "max_turns"}
    try:
        env = config.env.model_copy(update={"options": {**options, **turns}})
        return measure_lengths(config.model_copy(update={"env": env})), True
    except FedAgentGymError:
        return None, False


def count_tokens(plan: RunPlan, lengths: EpisodeLengths, reply_tokens: float | None) -> Tokens:
    """The tokens if every episode is as long as the expert's, with replies of `reply_tokens` if that is given."""
    total = plan.total
    replies = lengths.replies if reply_tokens is None else lengths.turns * reply_tokens
    prompts, judged = lengths.prompt + lengths.later, (plan.evaluated or 0) + (plan.ranked or 0)
    played = total.episodes + total.scored
    texts = lengths.turns if plan.agent.rows_per_episode > 1 else 1.0  # with a window, a demonstration is one turn
    return Tokens(
        generated=played * replies,
        evaluated=judged * replies,
        read=(played + judged) * prompts,
        learnt=total.episodes * (prompts + replies) * plan.config.learning.gradient_epochs,
        imitated=plan.imitated * (prompts + lengths.replies) / texts,
    )


def estimate_speeds(plan: RunPlan, gpu: Gpu, tokens_per_second: float | None = None) -> Speeds:
    """The speeds of a card with the model of a run."""
    weights, learning = plan.agent.parameters, plan.config.learning
    together = min(learning.parallel_episodes, learning.episodes_per_step)
    generating, reading = estimate_playing(weights, together, gpu)
    passes = 4 if plan.agent.has_adapter else 6
    passes += 2 * learning.checkpointing
    further = 2 * (learning.behaviour != "recorded") + 2 * (learning.kl.coefficient > 0)
    operations = weights * (passes + further / learning.gradient_epochs)
    return Speeds(
        generating=tokens_per_second or generating,
        reading=reading,
        learning=ATTAINED * gpu.operations / operations,
        imitating=ATTAINED * gpu.operations / (weights * passes),
        measured=tokens_per_second is not None,
    )


def estimate_playing(weights: int, together: int, gpu: Gpu) -> tuple[float, float]:
    """The tokens that a card generates and reads in a second, for a model of `weights` parameters in `together` episodes."""
    step = max(HALF * weights / gpu.bandwidth, 2 * weights * together / gpu.operations)
    return ATTAINED * together / step, ATTAINED * gpu.operations / (2 * weights)


def count_hours(tokens: Tokens, speeds: Speeds) -> Hours:
    """The device-hours of these tokens."""
    return Hours(
        playing=tokens.generated / speeds.generating / 3600,
        evaluating=tokens.evaluated / speeds.generating / 3600,
        reading=tokens.read / speeds.reading / 3600,
        learning=(tokens.learnt / speeds.learning + tokens.imitated / speeds.imitating) / 3600,
    )


PARTS = ("playing", "evaluating", "reading", "learning", "total")


def make_plain_gpu(found: GpuPlan) -> dict[str, Any]:
    """The plan as plain values. The first of each pair assumes the expert's episodes; it is null if their length is not known."""
    hours = [None if one is None else {name: getattr(one, name) for name in PARTS} for one in found.hours]
    price = None if found.price is None else [None if one is None else one["total"] * found.price for one in hours]
    return {
        "gpu": {**asdict(found.gpu), "memory": found.memory},
        "speeds": asdict(found.speeds),
        "attained": ATTAINED,
        "tokens": [None if one is None else asdict(one) for one in found.tokens],
        "device_hours": hours,
        "price": price,
    }


def format_gpu(found: GpuPlan, judged: bool) -> Iterator[str]:
    """The plan, line by line; `judged` if the episodes of evaluations are known."""
    expected, most = found.hours
    speeds = found.speeds
    source = "measured by you" if speeds.measured else "estimated"
    yield f"{found.gpu.title}, {format_bytes(found.memory)}; speeds of one device, in tokens a second:"
    yield f"  generating {speeds.generating:,.0f} ({source}), reading {speeds.reading:,.0f}, learning {speeds.learning:,.0f}"
    yield (
        f"  (estimates by operations and bytes at {format_share(ATTAINED)} of the peaks that NVIDIA's data sheet states;"
        "\n  nothing was measured on a GPU: give yours with --tokens-per-second)"
    )
    columns = ("like the expert", "at most")
    yield f"{'':28s}{columns[0]:>20s}{columns[1]:>20s}"
    for label, name in (("tokens generated", "generated"), ("  in evaluations", "evaluated"), ("tokens read", "read")):
        cells = ("not known" if one is None else f"{getattr(one, name):,.0f}" for one in found.tokens)
        yield f"{label:28s}" + "".join(f"{cell:>20s}" for cell in cells)
    for name in PARTS:
        cells = ("not known" if one is None else format_fixed(getattr(one, name), 1) for one in (expected, most))
        label = "device-hours" if name == "total" else f"hours of {name}"
        yield f"{label:28s}" + "".join(f"{cell:>20s}" for cell in cells)
    if found.price is not None:
        cells = ("not known" if one is None else format_fixed(one.total * found.price, 2) for one in (expected, most))
        yield f"{f'price at {found.price:g} an hour':28s}" + "".join(f"{cell:>20s}" for cell in cells)
    if not judged:
        yield "evaluations are not in these numbers: the data are not here"
    if expected is not None:
        tasks = "generated tasks, since the data are not here" if found.stand_in else "tasks of the run"
        said = "its own" if found.reply_tokens is None else f"of {found.reply_tokens:g} tokens"
        yield f"like the expert: with its turns in {tasks},"
        yield f"  and replies {said}; a model that thinks or fails takes more"
