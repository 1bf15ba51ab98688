"""A suite: a versioned definition of what is played, on which tasks, under which seeds, and by which measure it is ranked.

Suites are data. Those of the package are `suites/NAME.yaml`; your own are files with other paths. There are two tracks:

    agents    one agent plays the held-out tasks of every scenario; a scenario is an environment with its options
    methods   a federated method trains under the scenario's division of tasks among clients, `selection` chooses the round
              on `val`, and the chosen round is ranked on `test`; a scenario is changes to the suite's configuration

A definition contains the digests of the pools, of the ranked tasks and of the divisions. A suite whose tasks differ from the
published ones refuses to start, so that a name always refers to the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, model_validator

from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, OptionError, unknown_name_error
from fedagentgym.base.files import format_path, read_text
from fedagentgym.base.parsing import parse_yaml
from fedagentgym.base.settings import Settings
from fedagentgym.leaderboard.record import Digest, Name, SuiteReference, Text, Track
from fedagentgym.learning.settings import EvaluationSettings


class Ranking(Settings):
    """How the ranked number is measured: on `test`, or on another split that is used for nothing else."""

    split: str = Field(default="test", description="split whose tasks are played")
    tasks: int | None = Field(default=None, ge=1, description="number of tasks, from the first on; null: all")
    repeats: int = Field(default=1, ge=1, description="episodes per task")
    temperature: float = Field(default=0.4, ge=0, description="sampling temperature")

    def make_evaluation(self) -> EvaluationSettings:
        return EvaluationSettings(
            split=self.split,
            tasks=self.tasks,
            repeats=self.repeats,
            temperature=self.temperature,
        )


class Selection(Ranking):
    """The evaluations by which the ranked round of a run is chosen."""

    split: str = Field(default="val", description="split on which the round is chosen, never the ranked one")
    every: int = Field(default=1, ge=1, description="rounds between evaluations")

    def make_evaluation(self) -> EvaluationSettings:
        return super().make_evaluation().model_copy(update={"every": self.every})


class Scenario(Settings):
    """What is played. Agents: `env` with `options`. Methods: `changes` to the suite's configuration."""

    about: Text = ""
    env: str | None = Field(default=None, description="agents: environment id")
    options: dict[str, Any] = Field(default_factory=dict, description="agents: the environment's options")
    tasks: int | None = Field(default=None, ge=1, description="agents: tasks played here, in place of ranking.tasks")
    changes: tuple[str, ...] = Field(default=(), description="methods: a.b=value, as for `fedagentgym train --set`")
    axis: str | None = Field(default=None, description="scenarios of one axis differ in heterogeneity alone")
    level: float | None = Field(default=None, description="place on the axis; 0 is the uniform division")
    methods_differ: bool = Field(default=True, description="false: known to show no difference between methods")
    because: Text = Field(default="", description="with methods_differ: false, the reason")
    pool: Digest | None = Field(default=None, description="digest of the split that is ranked")
    task_ids: Digest | None = Field(default=None, description="digest of the ids of the ranked tasks, in order")
    client_split: Digest | None = Field(default=None, description="methods: digest of the division among clients")


class Baseline(Settings):
    """An entry that comes with a suite: an agent, or on the methods track the changes that define a method."""

    title: Text = ""
    agent: dict[str, Any] | str | None = None
    changes: tuple[str, ...] = ()


class Budget(Settings):
    """The limits of a run; null: no limit."""

    rounds: int | None = Field(default=None, ge=0)
    episodes: int | None = Field(default=None, ge=0, description="episodes that are learned from, all clients together")
    bytes: int | None = Field(default=None, ge=0, description="sent and received, all clients together")


class Twin(Settings):
    """The secret twin: the same generators under a seed of which only this digest is published (see `twins`)."""

    digest: Digest
    disclosed_salt: str | None = Field(default=None, description="published with the next version, with the seed")
    disclosed_seed: int | None = Field(default=None, ge=0)


class Suite(Settings):
    """The definition of a suite."""

    name: Name
    version: int = Field(default=1, ge=1)
    track: Track
    title: Text
    about: Text = ""
    expected: tuple[Text, ...] = Field(default=(), description="what is expected, written down before it is played")
    paper: Text | None = Field(default=None, description="paper whose numbers are shown next to it")
    config: str | dict[str, Any] | None = Field(
        default=None, description="methods: a configuration, or a preset's name with :VARIANT,... after it"
    )
    changes: tuple[str, ...] = Field(default=(), description="methods: changes to the configuration of every scenario")
    scenarios: dict[Name, Scenario] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    ranking: Ranking = Ranking()
    selection: Selection = Selection()
    rank_by: str = Field(default="success", description="the measure that ranks")
    target: float | None = Field(default=None, description="methods: success on `val` to be reached")
    pass_powers: tuple[int, ...] = Field(default=(), description="k of pass^k, at most ranking.repeats")
    budget: Budget = Budget()
    baselines: dict[Name, Baseline] = Field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = Field(default=(), description="entries whose difference is reported")
    smallest_difference: float = Field(default=0.0, ge=0, description="the smallest difference that counts")
    minutes: float | None = Field(default=None, gt=0, description="about how long all baselines take on two cores")
    hardware: Text = Field(default="", description="required hardware, if more than two cores")
    secret: Twin | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        tail = self.name.rpartition("-v")[2]
        if tail.isdecimal() and tail != self.name and int(tail) != self.version:
            raise ValueError(f"the name {self.name!r} ends with another version than {self.version}")
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError("seeds are different numbers from 0 on")
        if odd := [name for name, one in self.scenarios.items() if one.because and one.methods_differ]:
            raise ValueError(f"scenario {odd[0]!r}: because is the reason for methods_differ: false")
        if self.pass_powers and max(self.pass_powers) > self.ranking.repeats:
            raise ValueError(
                f"pass^{max(self.pass_powers)} needs as many repeats of a task, there are {self.ranking.repeats}"
            )
        check_track = self._check_agents if self.track == "agents" else self._check_methods
        check_track()
        return self

    def _check_agents(self) -> None:
        for name, scenario in self.scenarios.items():
            if scenario.env is None or scenario.changes:
                raise ValueError(f"scenario {name!r}: on the agents track a scenario has an env and no changes")
        if self.config is not None or self.changes:
            raise ValueError("on the agents track there is no configuration to be changed")
        if bad := [name for name, one in self.baselines.items() if one.agent is None or one.changes]:
            raise ValueError(f"baseline {bad[0]!r}: on the agents track a baseline is an agent")

    def _check_methods(self) -> None:
        if self.config is None:
            raise ValueError("on the methods track a suite names a configuration")
        if self.selection.split == self.ranking.split:
            raise ValueError("the split that ranks cannot be the one on which the round is chosen")
        for name, scenario in self.scenarios.items():
            if scenario.env is not None or scenario.options or scenario.tasks is not None:
                raise ValueError(f"scenario {name!r}: on the methods track a scenario is changes to the configuration")
        if bad := [name for name, one in self.baselines.items() if one.agent is not None]:
            raise ValueError(
                f"baseline {bad[0]!r}: on the methods track the agent is the suite's, a baseline is a method"
            )

    @property
    def digest(self) -> str:
        """The digest of what is played. Descriptions and baselines are not part of it: adding one changes no result."""
        plain = self.model_dump(mode="json")
        for key in ("title", "about", "expected", "paper", "baselines", "pairs", "minutes", "hardware", "secret"):
            plain.pop(key)
        for scenario in plain["scenarios"].values():
            scenario.pop("about")
            scenario.pop("because")
        return digest(plain)

    @property
    def reference(self) -> SuiteReference:
        return SuiteReference(name=self.name, version=self.version, track=self.track, digest=self.digest)

    def get_ranking(self, scenario: str) -> Ranking:
        """How the tasks of a scenario are played for the ranked number."""
        tasks = self.scenarios[scenario].tasks
        return self.ranking if tasks is None else self.ranking.model_copy(update={"tasks": tasks})


def list_suites() -> tuple[str, ...]:
    """The suites of this package."""
    entries = (files("fedagentgym.leaderboard") / "suites").iterdir()
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml")))


def load_suite(source: str | Path) -> Suite:
    """A suite of the package by its name, or one's own from a YAML file."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return parse_suite(read_text(path), format_path(path))
    if str(source) not in list_suites():
        raise unknown_name_error("suite", str(source), list_suites())
    place = files("fedagentgym.leaderboard") / "suites" / f"{source}.yaml"
    suite = parse_suite(place.read_text("utf-8"), f"suite {source}")
    if suite.name != str(source):
        raise DataError(f"suite {source}: its file names another suite, {suite.name!r}")
    return suite


def parse_suite(text: str, where: str) -> Suite:
    """The suite of a YAML text."""
    plain = parse_yaml(text, where)
    if not isinstance(plain, Mapping):
        raise DataError(f"{where}: a suite is a mapping of settings, found {type(plain).__name__}")
    try:
        return Suite.load(plain)
    except OptionError as error:
        raise DataError(f"{where}: {error}") from None


def to_yaml(suite: Suite) -> str:
    """The text of a suite that is written beside results: all set fields, in one canonical form."""
    text: str = yaml.safe_dump(
        suite.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True, width=120
    )
    return text
