"""The success per client of a run: the ranked model on each client's own mixture of held-out tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedagentgym.algorithms.support.judging import count_categories, measure_mixture
from fedagentgym.base.numbers import mean
from fedagentgym.leaderboard.record import ClientRecord
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import ClientSplit


def describe_clients(client_split: ClientSplit, groups: Sequence[Group]) -> tuple[ClientRecord, ...]:
    """Every client of a division: its tasks by category, and its success in these categories."""
    success = measure_categories(groups)
    names = client_split.table.names
    return tuple(
        describe_client(number, dict(zip(names, (int(count) for count in counts), strict=True)), success)
        for number, counts in enumerate(count_categories(client_split))
    )


def measure_categories(groups: Sequence[Group]) -> dict[str, float]:
    """The success in each category."""
    found: dict[str, list[float]] = {}
    for group in groups:
        found.setdefault(group[0].category, []).append(mean([float(one.success) for one in group]))
    return {category: mean(values) for category, values in sorted(found.items())}


def describe_client(number: int, counts: Mapping[str, int], success: Mapping[str, float]) -> ClientRecord:
    held = {category: count for category, count in counts.items() if count}
    total = sum(held.values())
    own, coverage = measure_mixture(held, success) if total else (0.0, 0.0)
    return ClientRecord(
        client=number,
        tasks=total,
        mixture={category: count / total for category, count in held.items()},
        coverage=coverage,
        success=own if coverage else None,
    )
