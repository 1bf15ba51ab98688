"""The speed of play and learning with language models: parts of the engine, dialogues, and policy steps, at several sizes.

Everything runs in one thread, and is compared with its counterpart in transformers or TRL in the same process. Models are
untrained, except SmolLM2-135M, which is measured if `fedagentgym model add smollm2` has added it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.engine import TARGETS, Batch, ModelCost, measure_dialogues, measure_engine, measure_peak, use_one_thread
from benchmarks.measurement import Measurement
from benchmarks.policy_step import StepTiming, Workload, time_steps
from fedagentgym.base.files import cache_folder
from fedagentgym.base.progress import show_progress
from fedagentgym.envs.make import open_env
from fedagentgym.envs.scripted import list_words

if TYPE_CHECKING:
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.envs.core import TextEnv

LARGE = "135m"


@dataclass(frozen=True)
class SizePlan:
    """The measurements at a size: rows of the engine's parts, a policy step of one turn, the limit of its ratio to TRL."""

    batch: Batch
    step: Workload
    steps: int
    bar: float | None = None


PLANS = {
    "0.1m": SizePlan(Batch(32, 256, 32), Workload(8, 8, 1, 32), 6),
    "1m": SizePlan(Batch(32, 256, 32), Workload(8, 8, 1, 32), 4, 2.0),
    "10m": SizePlan(Batch(16, 256, 32), Workload(8, 8, 1, 32), 2, 1.3),
    LARGE: SizePlan(Batch(4, 256, 16), Workload(2, 4, 1, 32), 1, 1.0),
}
QUICK = SizePlan(Batch(16, 128, 16), Workload(4, 4, 1, 16), 3)
HOUSE_STEP = Workload(4, 8, 6, 6)
HOUSE_SIZE = "1m"


def run(quick: bool = False) -> list[Measurement]:
    """Tokens per second of each model size, and whole policy steps beside TRL's."""

    house: TextEnv = open_env("fedagentgym/ALFWorld-v0", split="train", size="tiny")
    problems: TextEnv = open_env("fedagentgym/Math-v0", split="train")
    sizes = ["0.1m"] if quick else list(_list_sizes())
    with use_one_thread(), show_progress("language models at play", len(sizes)) as bar:
        peak = measure_peak()
        found = [Measurement("matrix product of this machine, float32, one thread", peak / 1e9, "GFLOP/s")]
        for size in sizes:
            plan = QUICK if quick else PLANS[size]
            found += _measure_parts(size, plan, problems, peak)
            if size in TARGETS:
                found += measure_dialogues(size, house, partial(_make_policy, size, house), quick)
            if size == HOUSE_SIZE or quick:
                found += _measure_house_step(size, quick)
            bar.advance()
    return found


def _list_sizes() -> Iterator[str]:
    yield from TARGETS
    if cache_folder("models", "smollm2").is_dir():
        yield LARGE


def _make_policy(size: str, env: TextEnv, forward: str = "auto") -> TorchPolicy:
    from fedagentgym.agents.model.loading import make_tiny_model
    from fedagentgym.agents.model.policy import TorchPolicy

    way: dict[str, Any] = {"forward": forward}
    if size == LARGE:
        return TorchPolicy.load(cache_folder("models", "smollm2"), device="cpu", **way)
    return TorchPolicy(*make_tiny_model(list_words(env), size), **way)


def _measure_parts(size: str, plan: SizePlan, env: TextEnv, peak: float) -> list[Measurement]:
    """Prefill, decode and update, with the share of the machine's matrix product; then the ratios to transformers and TRL."""
    policy = _make_policy(size, env)
    cost = ModelCost.of(policy.model)
    engine = measure_engine(policy, plan.batch)
    sides = time_steps(partial(_make_policy, size, env), env, plan.step, plan.steps)
    ours, rows = sides["ours"], plan.batch
    replies = Batch(
        plan.step.episodes, ours.tokens // plan.step.episodes - plan.step.reply_tokens, plan.step.reply_tokens
    )
    parts = {
        "prefill": (engine.prefill, cost.count_prefill(rows) / (rows.rows * rows.prompt)),
        "decode": (engine.decode, cost.count_decode(rows) / (rows.rows * rows.reply)),
        "update": (ours.tokens / ours.learn, cost.count_update(replies, plan.step.copies) / ours.tokens),
    }
    found = []
    for name, (speed, operations) in parts.items():
        found.append(Measurement(f"{size}: {name}", speed, "tokens/s"))
        found.append(Measurement(f"{size}: {name}, share of the matrix product", 100 * speed * operations / peak, "%"))
    found.append(Measurement(f"{size}: prefill and decode / generate", engine.together / engine.generate, "times"))
    return [*found, *_compare_steps(f"{size}: policy step on mathematics", sides, plan.bar)]


def _measure_house_step(size: str, quick: bool) -> list[Measurement]:
    """A policy step of several turns in tiny houses."""

    work = Workload(2, 4, 3, 6) if quick else HOUSE_STEP
    env: TextEnv = open_env("fedagentgym/ALFWorld-v0", split="train", size="tiny", max_turns=work.turns)
    sides = time_steps(partial(_make_policy, size, env), env, work, 2)
    return _compare_steps(f"{size}: policy step in houses, {work.turns} turns", sides, None)


def _compare_steps(name: str, sides: dict[str, StepTiming], bar: float | None) -> list[Measurement]:
    ours, theirs = sides["ours"], sides.get("trl")
    found = [Measurement(name, ours.speed, "tokens/s"), Measurement(f"{name}: of it playing", ours.play_share, "%")]
    if theirs is None:
        return found
    return [
        *found,
        Measurement(f"{name}: TRL's GRPOTrainer", theirs.speed, "tokens/s"),
        Measurement(f"{name}: TRL's tokens / ours", theirs.tokens / ours.tokens, "times"),
        Measurement(f"{name}: ours / TRL", ours.speed / theirs.speed, "times", f"at least {bar:g}" if bar else ""),
    ]
