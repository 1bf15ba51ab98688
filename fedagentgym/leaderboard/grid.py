"""The search for a suite's settings as data: the grid of every row, and the chosen settings.

    tuning:                      in the suite's YAML, the same for all rows that train
      worlds: [100, 101, 102]    seeds, none of which is reported
      learning_rate: [0.0005, 0.001, 0.002]
      step_size: [0.5, 1]        tasks per step as a multiple of the row's own; the number of steps is divided by it
      rows:
        fedprox: {knob: algorithm.proximal, values: [0.001, 0.01]}
        centralized: {learning_rate: [0.0001, 0.00025, 0.0005]}

    SUITE.tuned.json             beside it: every setting with its success, and the chosen one of each row (`Choice`)

Every combination is played in every world and scenario (or in those of `scenarios`), and ranked on the suite's selection split
after the last round. The setting with the best mean is chosen. Ties are decided by the smaller learning rate, then the smaller
step, then the value of the knob that is named first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from operator import not_
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedagentgym.base.settings import Settings
from fedagentgym.federation.records import Digest
from fedagentgym.leaderboard.metrics import Interval, find_metric
from fedagentgym.runs.record import MAX_VALUES, Name, Text

RATE, TASKS, PUBLIC = "learning.learning_rate", "learning.tasks_per_step", "public_tasks"
STEPS, ROUNDS = "local_steps", "federation.rounds"
TUNED = ".tuned.json"
"""The suffix of the file of a `Choice`."""
SAME = 1e-9
"""Means whose difference is at most this are equal."""


class Point(NamedTuple):
    """A combination of the grid. `value` is the value of the row's `knob`, if it has one."""

    learning_rate: float
    step_size: float
    knob: str | None = None
    value: Any = None


class RowGrid(Settings):
    """The values of one row's grid that replace the suite's (rates, step sizes) or are added to it (a knob)."""

    learning_rate: tuple[float, ...] | None = Field(
        default=None,
        exclude_if=not_,
        description="the row's own rates, as many as the suite's, if it needs another magnitude",
    )
    step_size: tuple[float, ...] | None = Field(
        default=None, description="the row's own step sizes, as many as the suite's, if its steps have another size"
    )
    knob: Text | None = Field(default=None, description="the method's main setting: a key such as algorithm.proximal")
    values: tuple[Any, ...] = Field(default=(), description="values of the knob")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.knob is None) != (not self.values):
            raise ValueError("knob and values belong together")
        if self.knob in (RATE, TASKS, ROUNDS, f"algorithm.{STEPS}"):
            raise ValueError(f"knob: {self.knob} is tried of every row already")
        texts = [json.dumps(value, sort_keys=True, default=str) for value in self.values]
        if len(set(texts)) < len(texts):
            raise ValueError("values: a value is named twice")
        return self


class Tuning(Settings):
    """The grid of a suite, and the worlds in which its settings are tried."""

    worlds: tuple[int, ...] = Field(min_length=1, description="seeds of the trials, none of the suite's own")
    scenarios: tuple[Name, ...] = Field(default=(), description="where settings are tried; all scenarios by default")
    learning_rate: tuple[float, ...] = Field(min_length=1, description="rates, for every row")
    step_size: tuple[float, ...] = Field(
        default=(1.0,), min_length=1, description="tasks per step as multiples of the row's own; episodes stay the same"
    )
    rows: dict[Name, RowGrid] = Field(default_factory=dict, description="grids of single rows")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.worlds)) < len(self.worlds) or min(self.worlds) < 0:
            raise ValueError("worlds are different seeds from 0 on")
        sizes = [self.step_size, *(row.step_size for row in self.rows.values() if row.step_size is not None)]
        rates = [
            self.learning_rate,
            *(row.learning_rate for row in self.rows.values() if row.learning_rate is not None),
        ]
        for name, numbers in [*(("learning_rate", one) for one in rates), *(("step_size", one) for one in sizes)]:
            if list(numbers) != sorted(set(numbers)) or numbers[0] <= 0:
                raise ValueError(f"{name} holds numbers above 0 in rising order, each once")
        for row, one in self.rows.items():
            own = (("rates", one.learning_rate, self.learning_rate), ("step sizes", one.step_size, self.step_size))
            for name, tried, suite in own:
                if tried is not None and len(tried) != len(suite):
                    raise ValueError(f"rows: {row!r} has {len(tried)} {name}, every row has as many as the suite")
        return self

    def list_points(self, row: str) -> list[Point]:
        """The combinations of a row's grid. Among equally good ones the first is chosen."""
        own = self.rows.get(row, RowGrid())
        values = own.values or (None,)
        rates, sizes = own.learning_rate or self.learning_rate, own.step_size or self.step_size
        return [Point(rate, size, own.knob, value) for rate, size, value in product(rates, sizes, values)]


class Trial(Settings):
    """A setting of a row with its mean over scenarios and worlds. `runs` has the mean of each world; `result` is the digest of
    its archive."""

    changes: tuple[Text, ...] = Field(max_length=MAX_VALUES)
    mean: float
    low: float | None = None
    high: float | None = None
    runs: tuple[float, ...]
    result: Digest


class Chosen(Settings):
    """The setting with which a row is played. It was chosen among `settings` settings, tried in `worlds` worlds."""

    changes: tuple[Text, ...]
    reached: Interval
    settings: int = Field(ge=1)
    worlds: int = Field(ge=1)

    def __str__(self) -> str:
        """
        >>> print(Chosen(changes=("learning.learning_rate=0.001",), reached=Interval(mean=0.5), settings=4, worlds=2))
        learning_rate=0.001, best of 4
        """
        shown = [
            change.partition("=")[0].rpartition(".")[2] + "=" + change.partition("=")[2] for change in self.changes
        ]
        return f"{', '.join(shown)}, best of {self.settings}"


class Tried(Settings):
    """All settings of a row, in the order of the grid, and the number of the chosen one."""

    trials: tuple[Trial, ...] = Field(min_length=1)
    chosen: int = Field(ge=0)


class Choice(Settings):
    """The file of the chosen settings, `SUITE.tuned.json`. `definition` is the digest of everything that the trials depend on."""

    format: Literal[1] = 1
    suite: Name
    definition: Digest
    measure: Text
    rows: dict[Name, Tried]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for row, tried in self.rows.items():
            if tried.chosen != choose_trial(tried.trials, self.measure):
                raise ValueError(f"rows: the chosen setting of {row!r} is not the best one")
        return self

    def get_chosen(self) -> dict[str, Chosen]:
        """The setting with which every row is played."""
        found = {}
        for row, tried in self.rows.items():
            best = tried.trials[tried.chosen]
            reached = Interval(mean=best.mean, low=best.low, high=best.high)
            counts = {"settings": len(tried.trials), "worlds": len(best.runs)}
            found[row] = Chosen(changes=best.changes, reached=reached, **counts)
        return found


def choose_trial(trials: Sequence[Trial], measure: str) -> int:
    """The number of the trial with the best mean; of equal trials, that of the first."""
    sign = -1 if find_metric(measure).better == "lower" else 1
    best = max(sign * trial.mean for trial in trials)
    return next(number for number, trial in enumerate(trials) if sign * trial.mean >= best - SAME)
