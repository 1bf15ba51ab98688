"""`background.json`: what the report shows besides the rounds, written once when a run begins.

The clients' tasks, and the success of the environment's expert on the evaluation tasks. The run itself does not use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.files import read_json, write_atomic
from fedagentgym.base.numbers import mean

if TYPE_CHECKING:
    from fedagentgym.learning.evaluation_sets import OpenedSet
    from fedagentgym.learning.settings import EvaluationSettings
    from fedagentgym.partitions.client_split import ClientSplit

FILE = "background.json"
MOST_CLIENTS = 1000
"""Clients whose mixtures are written; of larger federations these are the first."""
MOST_TASKS = 200
"""Tasks of a set that the expert plays: it is one line of a chart and must cost less than an evaluation."""


@dataclass(frozen=True)
class Background:
    """The categories of the run's tasks, how many of each the clients hold, and the expert's held-out success, also by category
    where the run is judged on one set."""

    clients: int
    categories: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    expert: float | None = None
    expert_categories: Mapping[str, float] = field(default_factory=dict)

    def find_mixture(self, client: int) -> Mapping[str, int]:
        """The number of tasks of each category of a client; empty if it was not written."""
        if client >= len(self.counts):
            return {}
        return {name: count for name, count in zip(self.categories, self.counts[client], strict=True) if count}


def write_background(folder: Path, client_split: ClientSplit, sets: Sequence[OpenedSet], seed: int) -> None:
    """Write the file, unless it is there already."""
    if (folder / FILE).is_file():
        return
    from fedagentgym.algorithms.support.judging import count_categories

    counts = count_categories(client_split)[:MOST_CLIENTS]
    found = Background(
        len(client_split),
        tuple(client_split.table.names),
        tuple(tuple(int(count) for count in row) for row in counts),
        *_judge_expert(sets, seed),
    )
    write_atomic(folder / FILE, canonical_json(asdict(found)) + "\n")


def read_background(folder: Path) -> Background | None:
    """The background of a run; None if the run has no such file."""
    place = folder / FILE
    if not place.is_file():
        return None
    plain = read_json(place)
    try:
        return _parse(plain)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise DataError(f"{place} is malformed: it is not what a run of this version writes") from None


def _parse(plain: Mapping[str, Any]) -> Background:
    categories = tuple(str(name) for name in plain["categories"])
    counts = tuple(tuple(int(count) for count in row) for row in plain["counts"])
    if any(len(row) != len(categories) or min(row, default=0) < 0 for row in counts):
        raise ValueError("a client has a count for every category")
    expert = plain.get("expert")
    by_category = {str(name): float(value) for name, value in plain.get("expert_categories", {}).items()}
    return Background(int(plain["clients"]), categories, counts, None if expert is None else float(expert), by_category)


def _judge_expert(sets: Sequence[OpenedSet], seed: int) -> tuple[float | None, dict[str, float]]:
    """The success of the expert on all sets, and by category of a single one; nothing where it is known in advance (an expert
    that gives the answers of a data set), or where an environment has none."""
    from fedagentgym.agents.make import make_agent
    from fedagentgym.learning.evaluation import evaluate

    if not sets or any(one.env.takes == "reply" for one in sets):
        return None, {}
    try:
        found = [
            evaluate(make_agent("expert", one.env, seed), one.env, _shorten(one.settings), seed=seed) for one in sets
        ]
    except FedAgentGymError:
        return None, {}
    single = found[0].categories if len(found) == 1 else {}
    by_category = {name: estimates["success"].mean for name, estimates in single.items()}
    return mean([one.overall["success"].mean for one in found]), by_category


def _shorten(settings: EvaluationSettings) -> EvaluationSettings:
    tasks = MOST_TASKS if settings.tasks is None else min(settings.tasks, MOST_TASKS)
    return settings.model_copy(update={"tasks": tasks, "repeats": 1, "resamples": 1})
