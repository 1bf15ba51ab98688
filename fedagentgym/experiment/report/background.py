"""The clients of a run on its report: their tasks, in which rounds they took part, and their success.

`background.json` has data that the records of rounds lack: the clients' tasks, and the success of the environment's expert on the
evaluation tasks. It is written once when a run begins; the run itself does not use it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.files import read_json, write_atomic
from fedagentgym.base.rounding import count_things
from fedagentgym.base.settings import Settings
from fedagentgym.base.statistics import mean
from fedagentgym.pages.render import format_percent

if TYPE_CHECKING:
    from fedagentgym.learning.evaluation import OpenedSet
    from fedagentgym.partitions.client_split import ClientSplit

Record = Mapping[str, Any]
FILE = "background.json"
MAX_CLIENTS = 1000
"""Maximum number of clients whose mixtures are written; in a larger federation the first ones."""
MAX_TASKS = 200
"""Tasks of a set that the expert plays: it is one line of a chart and must cost less than an evaluation."""
MAX_ROWS, FIRST_ROWS = 60, 8
"""Clients in the figure, and in the open part of the table."""


class Background(Settings):
    """The categories of the run's tasks, how many of each the clients hold, and the expert's held-out success, also by category
    where the run is evaluated on one set."""

    clients: int
    categories: tuple[str, ...]
    counts: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]
    expert: float | None = None
    expert_categories: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_counts(self) -> Background:
        if any(len(row) != len(self.categories) for row in self.counts):
            raise ValueError("a client has a count for every category")
        return self

    def find_mixture(self, client: int) -> Mapping[str, int]:
        """The number of tasks of each category of a client; empty if it was not written."""
        if client >= len(self.counts):
            return {}
        return {name: count for name, count in zip(self.categories, self.counts[client], strict=True) if count}


def write_background(folder: Path, client_split: ClientSplit, sets: Sequence[OpenedSet], seed: int) -> None:
    """Write the file, unless it is there already."""
    if (folder / FILE).is_file():
        return
    from fedagentgym.agents.presets import make_agent
    from fedagentgym.algorithms.reports import count_categories
    from fedagentgym.learning.evaluation import evaluate

    expert, by_category = None, dict[str, float]()
    # an expert that gives the answers of a data set always succeeds, so it is not played; an environment may have no expert
    if sets and all(one.env.takes != "reply" for one in sets):
        played = []
        with contextlib.suppress(FedAgentGymError):
            for one in sets:
                tasks = MAX_TASKS if one.settings.tasks is None else min(one.settings.tasks, MAX_TASKS)
                settings = one.settings.model_copy(update={"tasks": tasks, "repeats": 1})
                played.append(evaluate(make_agent("expert", one.env, seed), one.env, settings, seed=seed))
            expert = mean([one.overall["success"].mean for one in played])
            if len(played) == 1:
                by_category = {name: found["success"].mean for name, found in played[0].categories.items()}
    counts = count_categories(client_split)[:MAX_CLIENTS]
    found = Background(
        clients=len(client_split),
        categories=tuple(client_split.table.names),
        counts=tuple(tuple(int(count) for count in row) for row in counts),
        expert=expert,
        expert_categories=by_category,
    )
    write_atomic(folder / FILE, canonical_json(found.model_dump(mode="json")) + "\n")


def read_background(folder: Path) -> Background | None:
    """The background of a run; None if the run has no such file."""
    place = folder / FILE
    if not place.is_file():
        return None
    try:
        return Background.load(read_json(place))
    except OptionError:
        raise DataError(f"{place} is malformed: it is not what a run of this version writes") from None


# ---- the clients on the report ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientRow:
    """One client over the run. `own` is the success of the global model on the client's own mixture of held-out tasks."""

    client: int
    mixture: Mapping[str, int]
    rounds: Mapping[int, float | None]
    """The rounds in which it took part, with its success in training if it reported one."""
    failed: tuple[int, ...]
    own: float | None
    update_norm: float | None

    @property
    def tasks(self) -> int:
        return sum(self.mixture.values())

    @property
    def trained(self) -> float | None:
        """The last success in training that it reported."""
        reported = [value for _, value in sorted(self.rounds.items()) if value is not None]
        return reported[-1] if reported else None

    @property
    def largest(self) -> str:
        """The category of which it has most tasks."""
        most = Counter(self.mixture).most_common(1)
        return f"{most[0][0]} {format_percent(most[0][1] / self.tasks)}" if most else ""

    def describe_mixture(self, names: Sequence[str]) -> str:
        return ", ".join(f"{name or 'no category'} {self.mixture[name]}" for name in names if self.mixture.get(name))


@dataclass(frozen=True)
class FederationView:
    """The figure, with the clients that took part most often, and the table of all clients, worst first."""

    about: str
    total: int
    last: int
    names: Sequence[str]
    shown: Sequence[ClientRow]
    ranked: bool
    columns: Sequence[str]
    rows: Sequence[tuple[ClientRow, Sequence[str]]]
    further: Sequence[tuple[ClientRow, Sequence[str]]]


_COLUMNS: Mapping[str, Callable[[ClientRow], str]] = {
    "success, own mixture": lambda row: format_percent(row.own),
    "success in training": lambda row: format_percent(row.trained),
    "rounds": lambda row: str(len(row.rounds) or ""),
    "update norm": lambda row: "" if row.update_norm is None else f"{row.update_norm:.3g}",
    "failed calls": lambda row: str(len(row.failed) or ""),
}
"""The columns of the table; one that is empty for all clients is left out."""


def view_federation(records: Sequence[Record], background: Background | None) -> FederationView | None:
    """Return the report's view of the clients; None for a run with fewer than two clients."""
    rows = collect_clients(records, background)
    total = max(len(rows), background.clients if background is not None else 0)
    if total < 2:
        return None
    most_often = sorted(rows, key=lambda row: (-len(row.rounds), row.client))[:MAX_ROWS]
    known = background.categories if background is not None else ()
    columns = {name: write for name, write in _COLUMNS.items() if any(write(row) for row in rows)}
    unknown = 2.0  # after every share
    worst_first = sorted(
        rows,
        key=lambda row: (
            unknown if row.own is None else row.own,
            unknown if row.trained is None else row.trained,
            row.client,
        ),
    )
    table = [(row, [write(row) for write in columns.values()]) for row in worst_first]
    last = records[-1]["round"] if any(record["participants"] for record in records) else 0
    return FederationView(
        _describe_clients(rows, total, last),
        total,
        last,
        known or sorted({name for row in rows for name in row.mixture}),
        sorted(most_often, key=lambda row: row.client),
        any(row.own is not None or row.trained is not None for row in rows),
        list(columns),
        table[:FIRST_ROWS],
        table[FIRST_ROWS:],
    )


def collect_clients(records: Sequence[Record], background: Background | None) -> list[ClientRow]:
    """All clients that are known from the background or from the rounds, in the order of their numbers."""
    # held-out success by category in the last evaluation; a set's name represents the whole set
    last = next((record["evaluation"] for record in reversed(records) if "evaluation" in record), None)
    groups = [] if last is None else [last["categories"], *(one["categories"] for one in last.get("sets", {}).values())]
    success = {name: found["success"]["mean"] for group in reversed(groups) for name, found in group.items()}
    known = set(range(len(background.counts))) if background is not None else set()
    known |= {client for record in records for client in record["participants"]}
    rows = []
    for client in sorted(known):
        mixture = background.find_mixture(client) if background is not None else {}
        covered = {name: count for name, count in mixture.items() if name in success}
        own = sum(count * success[name] for name, count in covered.items()) / sum(covered.values()) if covered else None
        took_part = [record for record in records if client in record["participants"]]
        reported = {record["round"]: record["clients"].get(str(client), {}) for record in took_part}
        norms = [numbers["update_norm"] for numbers in reported.values() if "update_norm" in numbers]
        failed = {one["round"] for one in took_part if any(call["client"] == client for call in one["failures"])}
        rounds = {number: numbers.get("success") for number, numbers in reported.items()}
        rows.append(ClientRow(client, mixture, rounds, tuple(sorted(failed)), own, mean(norms) if norms else None))
    return rows


def _describe_clients(rows: Sequence[ClientRow], total: int, last: int) -> str:
    members = sum(1 for row in rows if row.rounds)
    about = (
        f"{members:,} of {total:,} clients took part in {count_things(last, 'round')}."
        if last
        else f"{count_things(total, 'client')}."
    )
    own = sorted((row.own, row.client) for row in rows if row.own is not None)
    if len(own) < 2:
        return about
    middle = mean([value for value, _ in own])
    return (
        f"{about} On each client's own mixture of held-out tasks the global model solves {format_percent(middle)} on average,"
        f" {format_percent(own[0][0])} at the worst client ({own[0][1]}) and {format_percent(own[-1][0])} at the best"
        f" ({own[-1][1]})."
    )
