"""Ranks and rank bands: entries whose difference is not significant share a band.

The first entry leads the first band. Every other entry is compared with the leader, on the same tasks and seeds, with Holm's
correction for the number of comparisons; the band ends before the first entry that is significantly worse, which leads the next
band. Resamples are drawn once for all entries: the difference of two resampled means is the resampled difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedagentgym.leaderboard.intervals import (
    CONFIDENCE,
    Difference,
    Values,
    correct_for_many,
    find_p_value,
    resample_suite,
)

RESAMPLES = 10_000


@dataclass(frozen=True)
class Place:
    """An entry's rank, from 1, and its band; `difference` is to the leader of its band, none for the leader itself."""

    rank: int
    band: int
    difference: Difference | None


def rank(values: Mapping[str, Mapping[str, Values]], better: Literal["higher", "lower"] = "higher") -> dict[str, Place]:
    """The places of entries by name, from `values[entry][scenario][seed, task]` of the same scenarios, tasks and seeds."""
    if not values:
        return {}
    names = sorted(values)
    scenarios = {
        scenario: np.stack([values[name][scenario] for name in names], axis=2) for scenario in values[names[0]]
    }
    sign = 1.0 if better == "higher" else -1.0
    means = sign * np.mean([table.mean(axis=(0, 1)) for table in scenarios.values()], axis=0)
    resampled = sign * resample_suite(scenarios, RESAMPLES)
    order = sorted(range(len(names)), key=lambda number: (-means[number], names[number]))
    places: dict[str, Place] = {}
    left, band = order, 0
    while left:
        band += 1
        members = _find_band(left, means, resampled)
        for number, difference in members:
            places[names[number]] = Place(len(places) + 1, band, difference)
        left = left[len(members) :]
    return places


def _find_band(left: Sequence[int], means: Values, resampled: Values) -> list[tuple[int, Difference | None]]:
    """The leader of the remaining entries, and the following ones that are not significantly worse."""
    leader, others = left[0], left[1:]
    found = correct_for_many([_compare(leader, other, means, resampled) for other in others])
    members: list[tuple[int, Difference | None]] = [(leader, None)]
    for other, difference in zip(others, found, strict=True):
        if difference.adjusted < 1 - CONFIDENCE:
            break
        members.append((other, difference))
    return members


def _compare(leader: int, other: int, means: Values, resampled: Values) -> Difference:
    drawn = np.round(resampled[:, leader] - resampled[:, other], 12)  # what is equal has a difference of just 0
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    p = find_p_value(drawn)
    return Difference(float(means[leader] - means[other]), float(low), float(high), p, p)
