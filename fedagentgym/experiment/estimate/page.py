"""A plan as text for the terminal and as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedagentgym.experiment.estimate.fit import find_remedies
from fedagentgym.experiment.estimate.plan import RunPlan

COUNTS = (
    ("episodes to learn from", "episodes"),
    ("episodes only judged", "judged"),
    ("optimizer steps", "optimizer_steps"),
)


def make_plain(plan: RunPlan, tokens_per_second: float) -> dict[str, Any]:
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
        "evaluations": plan.evaluations,
        "round": {name: getattr(plan.round, name) for _, name in COUNTS},
        "total": {name: getattr(total, name) for _, name in COUNTS},
        "tokens": {"generated": plan.generated_tokens, "learnt": plan.learnt_tokens},
        "bytes": {
            "round": {"down": plan.count_bytes_down(plan.round), "up": plan.count_bytes_up(plan.round)},
            "total": {"down": plan.count_bytes_down(total), "up": plan.count_bytes_up(total)},
        },
        "memory": {
            "parts": [{"name": part.name, "phase": part.phase, "bytes": part.size} for part in plan.memory],
            "peak": plan.peak,
        },
        "devices": plan.devices,
        "tokens_per_second": tokens_per_second,
        "device_hours": plan.estimate_device_hours(tokens_per_second),
    }


def format_plan(plan: RunPlan, tokens_per_second: float, device_bytes: int | None) -> Iterator[str]:
    """The plan, line by line."""
    agent, federation = plan.agent, plan.config.federation
    share = "" if agent.trainable == agent.parameters else f", {agent.trainable:,} of them trained"
    clients = f"{plan.asked} of {plan.clients} clients a round"
    yield f"{plan.config.name}: {plan.config.algorithm['name']}, {federation.rounds} rounds, {clients}"
    yield f"agent {agent.name}: {agent.model}, {agent.parameters:,} parameters{share}"
    yield ""
    yield f"{'at most':28s}{'one round':>20s}{'whole run':>20s}"
    total = plan.total
    for label, name in COUNTS:
        yield f"{label:28s}{getattr(plan.round, name):>20,}{getattr(total, name):>20,}"
    for label, count in (("to the clients", plan.count_bytes_down), ("from the clients", plan.count_bytes_up)):
        yield f"{label:28s}{format_bytes(count(plan.round)):>20s}{format_bytes(count(total)):>20s}"
    yield f"{'tokens generated':48s}{plan.generated_tokens:>20,}"
    yield f"{'tokens learnt from':48s}{plan.learnt_tokens:>20,}"
    yield f"{'evaluations':48s}{plan.evaluations:>20,}"
    yield ""
    yield f"memory of a device{'':30s}{format_bytes(plan.peak):>20s}"
    for part in plan.memory:
        when = "" if part.phase == "always" else f" ({part.phase})"
        yield f"  {part.name + when:46s}{format_bytes(part.size):>20s}"
    yield ""
    hours = plan.estimate_device_hours(tokens_per_second)
    yield f"{hours:,.1f} device-hours of playing at {tokens_per_second:,.0f} tokens a second, plus learning"
    if device_bytes is not None and plan.peak > device_bytes:
        yield f"does not fit into {format_bytes(device_bytes)}: {find_remedies(plan, device_bytes)}"


def format_bytes(count: int) -> str:
    """
    >>> format_bytes(1500), format_bytes(2_345_678_901)
    ('1.5 kB', '2.35 GB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if unit != "TB" else f"{size:,.1f} TB"
