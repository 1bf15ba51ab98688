"""A suite: a versioned definition of scenarios, their tasks, the seeds, and the measure that ranks entries.

Suites are data. The package's suites are `suites/NAME.yaml`; your own suites are YAML files anywhere. There are two tracks:

    agents    one agent plays the held-out tasks of every scenario; a scenario is an environment with its options
    methods   a federated method trains under the scenario's division of tasks among clients, and its last or best round is
              ranked on `test`; a scenario is changes to the suite's configuration

If the last round is ranked (`ranked_round: last`), no method gains from more evaluations, and a method that makes the policy
worse is ranked with the worse policy. A suite may instead rank the round that does best on `val`, as papers do. Then a method
with more evaluations has more rounds to choose from, and one that only makes the policy worse is ranked with its untrained round.

Each planned comparison (`pairs`, `expected`) is tested, with one correction for all. An expected difference must be large enough
for the number of seeds: `spread` is the standard deviation of the difference of two runs, and an expectation is refused if it
would not be found in four of five experiments with these seeds. `control` names one method twice, under two random streams; the
two entries must show no difference.

A definition contains the digests of the pools, of the ranked tasks and of the divisions. A suite whose tasks differ from the
published ones refuses to start, so that a name always refers to the same tasks. A method may change how clients learn and what
the server does. The environment, the division, the agent, the seeds and the evaluation belong to the suite.

Settings of the rows may be searched in other worlds (`tuning`, `leaderboard.grid`). Like `baselines`, they are not part of the
suite's digest: adding or repeating a search does not change the suite, and results of unchanged rows stay valid.

A secret twin is the same suite with a generator seed that only the maintainers know, so its tasks cannot have been seen or tuned
on. The package contains a digest of the seed with a long random salt, so that the seed can neither be guessed nor chosen after
results are known. The next version of the suite publishes both. All splits of a twin are new: a method is trained again on the
twin, and a model is evaluated on tasks that were in no training set.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from itertools import combinations
from operator import not_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import yaml
from pydantic import Field, model_validator

from fedagentgym.base.encoding import bytes_digest, digest
from fedagentgym.base.errors import DataError, OptionError, join_names, require_type, unknown_name_error
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import format_path, parse_yaml, read_json, read_text
from fedagentgym.base.rounding import count_things, format_fixed
from fedagentgym.base.settings import Settings, assign
from fedagentgym.base.statistics import MIN_REPLICATES, find_decidable
from fedagentgym.federation.records import Digest
from fedagentgym.leaderboard.grid import TUNED, Choice, Chosen, Tuning
from fedagentgym.leaderboard.metrics import OWN_REWARDS
from fedagentgym.learning.settings import OWN_WORLD, TEST_SPLITS, EvaluationSettings, RankingSettings, is_test_split
from fedagentgym.runs.claims import describe_tasks
from fedagentgym.runs.folder import read_document
from fedagentgym.runs.record import Name, TasksRecord, Text

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.experiment.config import RunConfig
    from fedagentgym.partitions.client_split import ClientSplit

Track = Literal["agents", "methods"]
FREE = ("algorithm", "learning", "federation", "plugins")
"""The parts of a configuration that belong to a method."""
ADAPTER = "agent.adapter"
"""The setting that also belongs to a method in a suite with `row_adapters`."""
_TEXTS = (
    "title",
    "about",
    "expected",
    "paper",
    "baselines",
    "tuning",
    "chosen",
    "pairs",
    "gains",
    "spread",
    "control",
    "minutes",
    "hardware",
)
DESCRIPTIONS: dict[str, Any] = {
    **dict.fromkeys((*_TEXTS, "secret"), True),
    "scenarios": {"__all__": {"about", "because"}},
    "replicates": {"__all__": {"agent"}},
}
"""The fields of a suite that do not decide what is played, so that its digest leaves them out. Weights of agents are among them,
since they differ between processors."""
STREAM_STEP = 1_000_000
"""The number that is added to a run's seed for each further random stream of a method."""
TUNING = "-tuning"
"""The suffix of the name of a suite of trials."""
SEED_BITS = 48
WHOLE = ""
"""Stands for the mean over all scenarios where a scenario's name is expected, if a suite has several."""
MAX_ROUNDS = 1_000_000


class Ranking(Settings):
    """The evaluation that ranks: on `test`, or on another split that is used for nothing else."""

    split: str = Field(default="test", description="split whose tasks are played")
    tasks: int | None = Field(default=None, ge=1, description="number of tasks, the first of the split; null: all")
    repeats: int = Field(default=1, ge=1, description="episodes per task")
    temperature: float = Field(default=0.4, ge=0, description="sampling temperature")


class Selection(Ranking):
    """The evaluations during a run, by which its ranked round can be chosen."""

    split: str = Field(default="val", description="split on which the round is chosen, never the ranked one")
    every: int = Field(default=1, ge=1, description="rounds between evaluations")


class Scenario(Settings):
    """A scenario of a suite. Agents: `env` with `options`. Methods: `changes` to the suite's configuration."""

    about: Text = ""
    env: str | None = Field(default=None, description="agents: environment id")
    options: dict[str, Any] = Field(default_factory=dict, description="agents: the environment's options")
    tasks: int | None = Field(default=None, ge=1, description="agents: tasks played here, in place of ranking.tasks")
    changes: tuple[str, ...] = Field(
        default=(),
        description="methods: a.b=value, as for `fedagentgym train --set`; ranking.split=val ranks on other tasks than the suite",
    )
    worlds: dict[int, tuple[str, ...]] = Field(
        default_factory=dict, description="methods: further changes in each world, by its number; all worlds or none"
    )
    objectives: tuple[tuple[Text, ...], ...] = Field(
        default=(),
        exclude_if=not_,
        description="methods: components of rewards that clients ask for, in turn, which `own_rewards` measures",
    )
    axis: str | None = Field(default=None, description="scenarios of one axis differ only in their heterogeneity")
    level: float | None = Field(default=None, description="place on the axis; 0 is the uniform division")
    methods_differ: bool = Field(default=True, description="false: known to show no difference between methods")
    because: Text = Field(default="", description="with methods_differ: false, the reason")
    pool: Digest | None = Field(default=None, description="digest of the pool of the ranked split")
    task_ids: Digest | None = Field(default=None, description="digest of the ids of the ranked tasks, in order")
    client_split: Digest | None = Field(default=None, description="methods: digest of the division among clients")


class TaskDigests(Settings):
    """The tasks of a scenario in one world, by their digests."""

    pool: Digest | None = Field(default=None, description="digest of the pool of the ranked split")
    task_ids: Digest | None = Field(default=None, description="digest of the ids of the ranked tasks, in order")
    client_split: Digest | None = Field(default=None, description="digest of the division among clients")


class Replicate(Settings):
    """A published seed of a suite with worlds: the agent from which its runs start, and the tasks of its scenarios."""

    agent: Digest | None = Field(
        default=None, description="digest of the agent's weights, on the processor that made it"
    )
    scenarios: dict[Name, TaskDigests] = Field(default_factory=dict)


class Baseline(Settings):
    """An entry that comes with a suite: an agent, or on the methods track the changes that define a method."""

    title: Text = ""
    agent: dict[str, Any] | str | None = None
    changes: tuple[str, ...] = ()
    stream: int = Field(
        default=0, ge=0, description="methods: number of the random stream, for a second run of one method"
    )


class Expectation(Settings):
    """An expectation about two entries: a difference, or equality within the suite's smallest difference."""

    first: Name
    relation: Literal["above", "below", "equal to"]
    second: Name
    by: float | None = Field(default=None, gt=0, description="least difference; null: the suite's smallest_difference")
    scenarios: tuple[Name, ...] = Field(default=(), description="scenarios in which it is expected; all by default")
    about: Text = ""

    def __str__(self) -> str:
        where = f" in {join_names(self.scenarios)}" if self.scenarios else ""
        how = "" if self.by is None else f" by at least {100 * self.by:g} points"
        about = f": {self.about}" if self.about else ""
        return f"{self.first} is {self.relation} {self.second}{how}{where}{about}"


class Gain(Settings):
    """A difference of differences: the difference of the pair `of` minus that of another pair of entries, or of the same pair in
    another scenario. Without a scenario it is in the mean over all."""

    of: tuple[Name, Name]
    over: tuple[Name, Name] | None = Field(default=None, description="the other pair; null: the same pair")
    scenario: str = Field(default=WHOLE, description="scenario of the first difference")
    over_scenario: str | None = Field(default=None, description="scenario of the second difference; null: the same")

    @property
    def than(self) -> tuple[str, str]:
        return self.over or self.of

    @property
    def than_scenario(self) -> str:
        return self.scenario if self.over_scenario is None else self.over_scenario


class Budget(Settings):
    """The limits of a run. Null means no limit."""

    rounds: int | None = Field(default=None, ge=0)
    episodes: int | None = Field(
        default=None,
        ge=0,
        description="episodes that all sites play to prepare, to learn and to score; without evaluations",
    )
    bytes: int | None = Field(default=None, ge=0, description="sent and received, all clients together")


class Twin(Settings):
    """The secret twin: the same generators under a secret seed, whose digest is published (`make_twin`)."""

    digest: Digest
    disclosed_salt: str | None = Field(default=None, description="published with the next version, with the seed")
    disclosed_seed: int | None = Field(default=None, ge=0)


class Suite(Settings):
    """A benchmark: a versioned definition of scenarios, tasks and seeds, and of the ranking.

    On the track `agents` an agent plays held-out tasks. On the track `methods` a federated method trains, and the policy of its
    last or best round (`ranked_round`) plays the held-out tasks.

    Examples:
        >>> suite = load_suite("agents-v1")
        >>> suite.track, suite.rank_by
        ('agents', 'success')
    """

    name: Name = Field(description="name of the suite; it may end with the version, as in agents-v1")
    version: int = Field(
        default=1, ge=1, description="version of the definition; results of different versions are not compared"
    )
    track: Track = Field(description="agents: an agent plays; methods: a federated method trains an agent")
    title: Text = Field(description="one line about the suite, for lists and pages")
    about: Text = Field(default="", description="a paragraph about the suite")
    expected: tuple[Expectation | Text, ...] = Field(
        default=(),
        description="expectations, written down before the suite is played; one that is a text is shown and not tested",
    )
    paper: Text | None = Field(default=None, description="paper whose numbers are shown beside the suite's")
    config: str | dict[str, Any] | None = Field(
        default=None, description="methods: a configuration, or a preset's name with :VARIANT,... after it"
    )
    changes: tuple[str, ...] = Field(default=(), description="methods: changes to the configuration of every scenario")
    scenarios: dict[Name, Scenario] = Field(
        min_length=1,
        description="scenarios by name: environments (agents), or changes to the configuration (methods)",
    )
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="the seeds of the runs of every entry")
    world: tuple[str, ...] = Field(
        default=(), description="methods: changes that give every seed its own world; {seed} stands for its number"
    )
    first_world: int = Field(default=0, ge=0, description="methods: number of the world of seed 0")
    replicates: dict[int, Replicate] = Field(default_factory=dict, description="methods: the worlds' digests, by seed")
    ranking: Ranking = Field(default=Ranking(), description="the held-out tasks that rank, and how they are played")
    selection: Selection = Field(
        default=Selection(), description="methods: the tasks by which the best round is chosen"
    )
    rank_by: str = Field(default="success", description="the measure that ranks")
    ranked_round: Literal["best", "last"] = Field(
        default="best", description="methods: the ranked round; best: the best of those that `selection` evaluates"
    )
    target: float | None = Field(default=None, ge=0, le=1, description="methods: success on `val` to be reached")
    pass_powers: tuple[int, ...] = Field(default=(), description="k of pass^k, at most ranking.repeats")
    budget: Budget = Field(default=Budget(), description="methods: the most rounds, episodes and bytes of an entry")
    baselines: dict[Name, Baseline] = Field(default_factory=dict, description="the suite's own entries, by name")
    row_adapters: bool = Field(
        default=False,
        exclude_if=not_,
        description="methods: true if a method may set agent.adapter, which otherwise belongs to the suite",
    )
    tuning: Tuning | None = Field(default=None, description="methods: grid and worlds of the search by `bench tune`")
    chosen: dict[Name, Chosen] = Field(
        default_factory=dict, description="methods: settings that it chose; read from the file beside the suite"
    )
    pairs: tuple[tuple[str, str], ...] = Field(default=(), description="entries whose difference is reported")
    gains: tuple[Gain, ...] = Field(default=(), description="methods: differences of differences that are reported")
    smallest_difference: float = Field(default=0.0, ge=0, description="the smallest difference that counts")
    spread: float | None = Field(
        default=None, gt=0, description="methods: standard deviation of the difference of two runs, from earlier runs"
    )
    control: tuple[str, str] | None = Field(
        default=None, description="methods: two baselines that are one method under two streams"
    )
    minutes: float | None = Field(default=None, gt=0, description="about how long all baselines take on two cores")
    hardware: Text = Field(default="", description="required hardware, if more than two cores")
    secret: Twin | None = Field(default=None, description="the same suite on tasks that only the maintainers know")

    @model_validator(mode="after")
    def _check(self) -> Self:
        tail = self.name.rpartition("-v")[2]
        if tail.isdecimal() and tail != self.name and int(tail) != self.version:
            raise ValueError(f"the name {self.name!r} ends with another version than {self.version}")
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError("seeds are different numbers from 0 on")
        if wrong := [name for name, one in self.scenarios.items() if one.because and one.methods_differ]:
            raise ValueError(
                f"scenario {wrong[0]!r}: `because` gives the reason for `methods_differ: false`, which is not set"
            )
        repeats = min(self.get_ranking(name).repeats for name in self.scenarios)
        if (highest := max(self.pass_powers, default=0)) > repeats:
            raise ValueError(f"pass^{highest} needs {highest} repeats of a task, there are {repeats}")
        return self

    @model_validator(mode="after")
    def _check_agents(self) -> Self:
        if self.track == "methods":
            return self
        for name, scenario in self.scenarios.items():
            if scenario.env is None or scenario.changes or scenario.worlds or scenario.objectives:
                raise ValueError(
                    f"scenario {name!r}: on the agents track a scenario has an env and no changes or objectives"
                )
        if self.config is not None or self.changes or self.world:
            raise ValueError("config, changes and world are for the methods track: leave them out")
        if self.in_own_worlds:
            raise ValueError(f"rank_by: {OWN_WORLD} is for the methods track: on the agents track there are no clients")
        if bad := [name for name, one in self.baselines.items() if one.agent is None or one.changes or one.stream]:
            raise ValueError(f"baseline {bad[0]!r}: on the agents track a baseline is an agent")
        if self.control is not None or self.spread is not None or self.gains or self.ranked_round != "best":
            raise ValueError("control, spread, gains and ranked_round are of the methods track, where runs vary")
        if self.tuning is not None or self.chosen or self.row_adapters:
            raise ValueError("tuning, chosen and row_adapters are of the methods track, where rows have settings")
        return self

    @model_validator(mode="after")
    def _check_methods(self) -> Self:
        if self.track == "agents":
            return self
        if self.config is None:
            raise ValueError("on the methods track a suite names a configuration")
        if self.selection.split in TEST_SPLITS:
            raise ValueError(f"selection.split is {self.selection.split}: a test split chooses no round")
        if self.in_own_worlds and self.ranked_round != "last":
            raise ValueError(
                f"rank_by: {OWN_WORLD} ranks what clients keep, which is kept of the last round: set ranked_round: last"
            )
        ranked = {self.get_ranking(name).split for name in self.scenarios}
        if self.selection.split in ranked and self.ranked_round == "best":
            raise ValueError("the split that ranks cannot be the one on which the round is chosen")
        return self

    @model_validator(mode="after")
    def _check_worlds(self) -> Self:
        if self.track == "agents":
            return self
        seeds = (*self.seeds, *(() if self.tuning is None else self.tuning.worlds))
        for name, scenario in self.scenarios.items():
            if scenario.env is not None or scenario.options or scenario.tasks is not None:
                raise ValueError(f"scenario {name!r}: on the methods track a scenario is changes to the configuration")
            if scenario.worlds and (not self.world or self.secret is not None):
                raise ValueError(f"scenario {name!r}: worlds are of a suite with a `world` and without a secret twin")
            if scenario.worlds and (
                unknown := [seed for seed in seeds if self.first_world + seed not in scenario.worlds]
            ):
                raise ValueError(f"scenario {name!r}: worlds has no changes for world {self.first_world + unknown[0]}")
        if wrong := [seed for seed in self.replicates if seed not in self.seeds or not self.world]:
            raise ValueError(f"replicate {wrong[0]} belongs to no seed with a world of its own")
        if self.world and any(one.pool or one.task_ids or one.client_split for one in self.scenarios.values()):
            raise ValueError("every seed has a world of its own: digests of tasks belong to replicates")
        return self

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        """Refuse objectives, baselines, gains and a control that cannot be compared."""
        if self.track == "agents":
            return self
        for name, scenario in self.scenarios.items():
            if any(not asked or len(set(asked)) < len(asked) for asked in scenario.objectives):
                raise ValueError(f"scenario {name!r}: objectives are lists of one component or more, each named once")
        if self.rank_by.startswith(OWN_REWARDS) and not all(one.objectives for one in self.scenarios.values()):
            raise ValueError(f"rank_by: {self.rank_by} needs `objectives` in every scenario")
        if bad := [name for name, one in self.baselines.items() if one.agent is not None]:
            raise ValueError(
                f"baseline {bad[0]!r}: on the methods track the agent is the suite's, a baseline is a method"
            )
        for gain in self.gains:
            if absent := {gain.scenario, gain.than_scenario} - {WHOLE, *self.scenarios}:
                raise ValueError(f"gains: {min(absent)!r} is no scenario")
            if (gain.of, gain.scenario) == (gain.than, gain.than_scenario):
                raise ValueError(f"gains: {join_names(gain.of)} are compared with themselves: give `over` or scenarios")
        if self.control is not None:
            first, second = (self.baselines.get(name) for name in self.control)
            if first is None or second is None:
                raise ValueError(f"control names two baselines, {join_names(self.control)} are not")
            if first.changes != second.changes or first.stream == second.stream:
                raise ValueError(f"control: {join_names(self.control)} must be the same changes under two streams")
        return self

    @model_validator(mode="after")
    def _check_tuning(self) -> Self:
        if self.track == "methods" and self.tuning is not None:
            if shared := sorted(set(self.tuning.worlds) & set(self.seeds)):
                raise ValueError(f"tuning: the world {shared[0]} is reported: settings are chosen in other worlds")
            if odd_rows := [row for row in self.tuning.rows if row not in self.baselines or self.baselines[row].stream]:
                raise ValueError(f"tuning: {odd_rows[0]!r} is no baseline that can be tuned")
            if absent := set(self.tuning.scenarios) - set(self.scenarios):
                raise ValueError(f"tuning: {min(absent)!r} is no scenario")
        return self

    @model_validator(mode="after")
    def _check_expected(self) -> Self:
        """Refuse expectations that the seeds cannot decide: differences, or margins of equality, that four of five experiments
        would not find even if only the planned comparisons were made."""
        for one in self.expected if self.track == "methods" else ():
            if not isinstance(one, Expectation):
                if self.spread is not None:
                    problem = "where `spread` is given, name two entries and how they differ"
                    raise ValueError(f"expected: {one[:60]!r}: {problem}")
                continue
            if wrong := [name for name in one.scenarios if name not in self.scenarios]:
                raise ValueError(f"expected: {wrong[0]!r} is no scenario")
            if wrong := [name for name in (one.first, one.second) if name not in self.baselines]:
                raise ValueError(f"expected: {wrong[0]!r} is no baseline")
            if one.relation == "equal to" and one.by is not None:
                raise ValueError(f"expected: {one}: equality is within smallest_difference, leave out `by`")
            if self.spread is None:
                raise ValueError(f"expected: {one}: give `spread`, the standard deviation of a difference of two runs")
            decided = find_decidable(self.spread, len(self.seeds), len(self.comparisons))
            if (one.by or self.smallest_difference) < decided:
                least = "nothing" if math.isinf(decided) else f"{format_fixed(100 * decided, 1)} points"
                raise ValueError(
                    f"expected: {one}: {len(self.seeds)} seeds decide {least} in four of five experiments: raise `seeds`, or"
                    " expect a larger difference"
                )
        return self

    @property
    def whole(self) -> str:
        """The scenario by which entries are ranked: the mean over scenarios (`WHOLE`), or the only scenario."""
        return WHOLE if len(self.scenarios) > 1 else next(iter(self.scenarios))

    @property
    def comparisons(self) -> list[tuple[str, str, str]]:
        """The planned comparisons: two entries and a scenario or the mean over all. `pairs` are compared in every scenario and in
        the mean, and so are expectations that name no scenarios."""
        everywhere = list(dict.fromkeys([*self.scenarios, self.whole]))
        planned = [(*pair, name) for pair in self.pairs for name in everywhere]
        for one in self.expected:
            if isinstance(one, Expectation):
                planned += [(one.first, one.second, name) for name in one.scenarios or everywhere]
        return list(dict.fromkeys(planned))

    @property
    def family(self) -> int:
        """The number of comparisons of the suite's own baselines that are corrected together: planned comparisons, all pairs in
        the mean over scenarios, and gains."""
        ranked = [name for name in self.baselines if name not in (self.control or ())[1:]]
        planned = {(frozenset(one[:2]), one[2]) for one in self.comparisons}
        return len(planned | {(frozenset(pair), self.whole) for pair in combinations(ranked, 2)}) + len(self.gains)

    @property
    def power(self) -> float | None:
        """The smallest difference that the suite decides in four of five experiments; None if its spread is unknown."""
        return None if self.spread is None else find_decidable(self.spread, len(self.seeds), max(1, self.family))

    @property
    def in_own_worlds(self) -> bool:
        """True if every client's policy is ranked in the client's own variant of the environment."""
        return self.rank_by == OWN_WORLD

    @property
    def digest(self) -> str:
        """The digest of the definition without `DESCRIPTIONS`."""
        return digest(self.model_dump(mode="json", exclude=DESCRIPTIONS))

    def get_ranking(self, scenario: str) -> Ranking:
        """The ranking settings of a scenario: those of the suite, with the scenario's changes."""
        own = self.scenarios[scenario]
        plain: dict[str, Any] = {"ranking": self.ranking.model_dump(exclude_unset=True)}
        for change in filter(changes_ranking, own.changes):
            plain = assign(plain, change)
        if own.tasks is not None:
            plain["ranking"]["tasks"] = own.tasks
        return Ranking.load(plain["ranking"], f"scenario {scenario!r}: ranking")


def describe_few_seeds(suite: Suite) -> str | None:
    """A sentence for a suite of methods with too few seeds: the statistics that it lacks, and how to play more. Else None."""
    if suite.track == "agents" or len(suite.seeds) >= MIN_REPLICATES:
        return None
    lacking = f"no interval, test or rank, which need {MIN_REPLICATES}"
    more = "raise `seeds` in its file"
    if suite.name in list_suites():
        more = f"raise `seeds` in a copy (fedagentgym bench show {quote_word(suite.name)} > mine.yaml) and play it"
    return f"{count_things(len(suite.seeds), 'seed')}: {lacking}; for more, {more}"


def changes_ranking(change: str) -> bool:
    """True if a change is one of the ranking settings."""
    return change.partition("=")[0].partition(".")[0].strip() == "ranking"


def list_suites() -> tuple[str, ...]:
    """Return the names of the suites of this package.

    Returns:
        The names, sorted.
    """
    entries = (files("fedagentgym.leaderboard") / "suites").iterdir()
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml")))


def load_suite(source: str | Path) -> Suite:
    """Load a suite.

    Args:
        source: The name of a suite of this package, or the path of your own YAML file.

    Returns:
        The suite.

    Raises:
        UnknownNameError: If there is no such suite.
        DataError: If the file is no valid suite, or its settings were chosen under another definition.
    """
    suite, path = load_untuned(source), Path(source)
    tuned = path.with_suffix(TUNED)
    if path.suffix not in (".yaml", ".yml"):
        tuned = Path(str(files("fedagentgym.leaderboard") / "suites" / f"{source}{TUNED}"))
    if not tuned.is_file():
        return suite
    choice = read_document(Choice, tuned)
    if choice.definition != compute_definition(suite):
        again = f"remove it, and run `fedagentgym bench tune {quote_word(suite.name)}` again"
        problem = "settings chosen under another definition of the suite, its grid or its rows"
        raise DataError(f"{format_path(tuned)}: {problem}: {again}")
    return suite.model_copy(update={"chosen": choice.get_chosen()})


def load_untuned(source: str | Path) -> Suite:
    """Load a suite without the settings that were chosen for its rows; see `load_suite`."""
    require_type("a suite is a name or the path of a YAML file", source, str, Path)
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
    """Parse the YAML text of a suite. Since all results of a suite hold the same text, recent texts are cached."""
    try:
        return _parse_known(text)
    except DataError:
        return _parse(text, where)


@lru_cache(maxsize=64)
def _parse_known(text: str) -> Suite:
    return _parse(text, "")


def _parse(text: str, where: str) -> Suite:
    plain = parse_yaml(text, where)
    if not isinstance(plain, Mapping):
        raise DataError(f"{where}: a suite is a mapping of settings, found {type(plain).__name__}")
    try:
        return Suite.load(plain)
    except OptionError as error:
        raise DataError(f"{where}: {error}") from None


def to_yaml(suite: Suite) -> str:
    """The YAML text of a suite that is written beside results: all fields that were set, in one canonical form."""
    plain = suite.model_dump(mode="json", exclude_unset=True)
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text


# ---- a scenario on this machine ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenedScenario:
    """A scenario with its environment over the ranked split and, on the methods track, the division among clients.

    If every seed has its own world, this is the scenario in the world of `seed`, and `at` opens the others.
    """

    suite: Suite
    name: str
    seed: int
    env: TextEnv
    options: Mapping[str, Any]
    client_split: ClientSplit | None = None
    _worlds: dict[int, OpenedScenario] = field(default_factory=dict, repr=False, compare=False)

    def at(self, seed: int) -> OpenedScenario:
        """The scenario in the world of a seed."""
        if not self.suite.world or seed == self.seed:
            return self
        if seed not in self._worlds:
            self._worlds[seed] = open_scenario(self.suite, self.name, seed)
        return self._worlds[seed]

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the tasks that rank, in order."""
        tasks = self.suite.get_ranking(self.name).tasks
        if tasks is not None and tasks > len(self.env.pool):
            raise DataError(f"scenario {self.name!r} asks for {tasks} tasks, there are {len(self.env.pool)}")
        return list(self.env.pool.ids[:tasks] if tasks is not None else self.env.pool.ids)

    @property
    def ranking(self) -> RankingSettings:
        """The settings by which a run of this scenario is ranked, under the scenario's seed."""
        return make_ranking(self.suite, self.name, self.seed)

    @cached_property
    def tasks(self) -> TasksRecord:
        """The ranked tasks, as the record of a run names them."""
        return describe_tasks(self.env, self.ids, self.ranking)

    @property
    def digests(self) -> TaskDigests:
        """The digests of the tasks, to compare with those in the suite."""
        divided = None if self.client_split is None else self.client_split.digest
        return TaskDigests(pool=self.tasks.pool, task_ids=self.tasks.task_ids, client_split=divided)

    def describe(self) -> dict[str, Any]:
        """The scenario as `bench show --check` prints it."""
        options = self.env.options.portable
        clients = {} if self.client_split is None else {"clients": len(self.client_split)}
        tasks = {**self.tasks.model_dump(mode="json"), **self.digests.model_dump()}
        return {"name": self.name, "env": self.env.id, "options": options, **tasks, **clients}

    def check_held_out(self) -> None:
        """Refuse evaluation on a split from which agents learn, and on the methods track on tasks that clients train on."""
        from fedagentgym.envs import open_env
        from fedagentgym.experiment.opened import check_evaluated, check_held_out

        played = [self.suite.get_ranking(self.name)]
        if self.client_split is not None:
            played.append(chooses := self.suite.selection)
            if is_test_split(self.env, chooses.split):
                raise OptionError(
                    f"{self.suite.name}: selection.split is {chooses.split}: a test split chooses no round"
                )
        for one in played:
            env = open_env(self.env.id, **{**self.options, "split": one.split})
            if self.client_split is None:
                check_evaluated(env, one.split)
            else:
                check_held_out(self.client_split, env, one.split, one.tasks)

    def check(self) -> None:
        """Raise if the tasks differ from those with which the suite was published."""
        published = self.suite.replicates.get(self.seed)
        own = self.suite.scenarios[self.name]
        listed = own if published is None else published.scenarios.get(self.name, TaskDigests())
        for name in TaskDigests.model_fields:
            expected, here = getattr(listed, name), getattr(self.digests, name)
            if expected not in (None, here):
                where = f", seed {self.seed}" if self.suite.world else ""
                raise DataError(
                    f"{self.suite.name}, scenario {self.name!r}{where}: {name} is {here}, the suite was published with"
                    f" {expected}: its results are about other tasks than these"
                )


def make_ranking(suite: Suite, scenario: str, seed: int) -> RankingSettings:
    """The settings by which a run of a suite is ranked. They do not depend on the method's random stream."""
    played = suite.get_ranking(scenario).model_dump()
    return RankingSettings(**played, round=suite.ranked_round, own_worlds=suite.in_own_worlds, seed=seed)


def open_scenario(suite: Suite, name: str, seed: int | None = None) -> OpenedScenario:
    """Open the scenario of a suite, in the world of a seed (by default the first), and check its digests."""
    from fedagentgym.algorithms.runtime import Runtime
    from fedagentgym.envs import open_env

    split = suite.get_ranking(name).split
    chosen = suite.seeds[0] if seed is None else seed
    if suite.track == "methods":
        config = make_config(suite, name, seed=chosen)
        client_split = Runtime(config.spec()).client_split
        env_id, options = config.env.id, client_split.options
    else:
        client_split, (env_id, options) = None, find_env(suite, name)
    opened = OpenedScenario(suite, name, chosen, open_env(env_id, **{**options, "split": split}), options, client_split)
    opened.check()
    return opened


def describe_replicates(suite: Suite) -> dict[int, Replicate]:
    """The `replicates` of a suite's file for the worlds of all seeds; missing agents are made."""
    from fedagentgym.experiment.opened import resolve_agent

    bare = suite.model_copy(update={"replicates": {}})
    opened = [open_scenario(bare, name) for name in suite.scenarios]
    found = {}
    for seed in suite.seeds if suite.world else ():
        tasks = {one.name: one.at(seed).digests.model_dump() for one in opened}
        agent = resolve_agent(make_config(suite, opened[0].name, seed=seed))[1].get("weights")
        found[seed] = Replicate.load({"agent": agent, "scenarios": tasks})
    return found


def find_env(suite: Suite, scenario: str) -> tuple[str, dict[str, Any]]:
    """The id and options of the environment of a scenario of the agents track. Options that only a machine's user may set are
    refused."""
    from fedagentgym.envs.make import read_options
    from fedagentgym.envs.registry import find_env_id

    definition = suite.scenarios[scenario]
    env_id = find_env_id(str(definition.env))
    read_options(env_id, definition.options).refuse_foreign(f"suite {suite.name}", paths=True)
    return env_id, definition.options


def count_tasks(suite: Suite, scenario: str) -> dict[str, tuple[int, ...]]:
    """The number of tasks that a scenario plays of each split, or one number for each form in which its data is published (which
    is not opened). A split with too few tasks is refused."""
    from fedagentgym.envs.make import env_class, open_env, read_options
    from fedagentgym.envs.protocols import count_published

    ranking = suite.get_ranking(scenario)
    played = {ranking.split: ranking.tasks}
    if suite.track == "methods":
        config = make_config(suite, scenario)
        env_id, options = config.env.id, config.env.options
        played = {suite.selection.split: suite.selection.tasks, **played}
    else:
        env_id, options = find_env(suite, scenario)
    cls = env_class(env_id)
    forms = count_published(cls, read_options(env_id, options))
    found = {}
    for split, tasks in played.items():
        sizes = tuple(form.get(cls.canonical_split(split), 0) for form in forms)
        sizes = sizes or (len(open_env(env_id, **{**options, "split": split}).pool),)
        if min(sizes) < max(1, tasks or 0):
            raise DataError(
                f"{suite.name}, scenario {scenario!r}: the split {split!r} has {min(sizes):,} tasks, so it cannot be played"
                f" ({'all' if tasks is None else f'{tasks:,}'} are asked for)"
            )
        found[split] = sizes if tasks is None else (tasks,)
    return found


def make_config(
    suite: Suite,
    scenario: str,
    method: Sequence[str] = (),
    *,
    seed: int | None = None,
    plugins: Sequence[str] = (),
    stream: int = 0,
) -> RunConfig:
    """Make the configuration of a run. A suite that names code, and a method that changes the suite's settings, are refused."""
    from fedagentgym.experiment.config import list_presets, load_config
    from fedagentgym.experiment.stored import check_foreign_config, is_own_plugin

    chosen = suite.seeds[0] if seed is None else seed
    number = suite.first_world + chosen
    world = [change.replace("{seed}", str(number)) for change in suite.world]
    world += suite.scenarios[scenario].worlds.get(number, ())
    own = [change for change in suite.scenarios[scenario].changes if not changes_ranking(change)]
    fixed = [*suite.changes, *own, *world, f"seed={chosen + STREAM_STEP * stream}"]
    selection = EvaluationSettings(**suite.selection.model_dump()).model_dump(mode="json")
    evaluation = [f"evaluation.{key}={json.dumps(value)}" for key, value in selection.items()]
    ranking = f"ranking={make_ranking(suite, scenario, chosen).model_dump_json()}"
    quiet = ["output.sampled_episodes=0", "output.report=none", "output.trackers=[]", "output.keep_rounds=1"]
    if any("plugins" in assign({}, change) for change in method):
        raise OptionError(f"{suite.name}: changes of a method may not set plugins: name its code with --plugin")
    config = suite.config
    assert config is not None
    if isinstance(config, str) and (preset := config.partition(":")[0]) not in list_presets():
        raise unknown_name_error(f"preset that {suite.name} names", preset, list_presets())
    named = [] if isinstance(config, str) else config.get("plugins") or []
    names_code = not isinstance(named, list) or any(not is_own_plugin(str(one)) for one in named)
    if names_code or any("plugins" in assign({}, change) for change in fixed):
        raise OptionError(f"{suite.name}: a suite may name no code: give its plugins yourself (--plugin)")
    base = load_config(config, [*fixed, "evaluation=null", *evaluation, ranking, *quiet])
    check_foreign_config(base, f"suite {suite.name}")
    found = load_config(base, method, plugins)
    before, after = base.plain(), found.plain()
    if suite.row_adapters:
        for plain in (before, after):
            plain["agent"].pop("adapter", None)
    touched = [key for key in after if key not in FREE and key != "name" and after[key] != before.get(key)]
    if touched:
        free = (*FREE, *([ADAPTER] if suite.row_adapters else []))
        raise OptionError(
            f"{suite.name}: a method may change {join_names(free)} only, {touched[0]!r} belongs to the suite"
        )
    return found


def check_budget(suite: Suite, config: RunConfig, *, known: bool = True) -> None:
    """Refuse, before it begins, a run that needs more rounds or episodes than the suite allows. If the method does not declare
    its episodes, or its code is not `known`, they are counted during the run, as bytes always are."""
    from fedagentgym.experiment.estimate.plan import plan_work

    limits, rounds = suite.budget, config.federation.rounds
    if limits.rounds is not None and rounds > limits.rounds:
        raise OptionError(f"{suite.name}: at most {limits.rounds} rounds, this method has {rounds}")
    if limits.episodes is None or not known or (plan := plan_work(config)) is None:
        return
    work = plan.count_until(rounds)
    if (taken := work.episodes + work.scored) > limits.episodes:
        raise OptionError(
            f"{suite.name}: at most {limits.episodes:,} episodes with all preparation, this method plays {taken:,}"
        )


# ---- tuning -----------------------------------------------------------------------------------------------------------


def name_tuning(suite: str) -> str:
    """The name of the suite that plays the trials of a suite."""
    return f"{suite}{TUNING}"


def make_tuning(suite: Suite) -> Suite:
    """The suite that plays the trials: the same suite in the worlds of its tuning, ranked on the selection split after the last
    round, and evaluated only before the first round and after the last."""
    if suite.tuning is None:
        raise OptionError(f"{suite.name} has no grid: add a section `tuning` to the suite")
    plain = suite.model_dump(mode="json", exclude_unset=True)
    for key in (*_TEXTS, "secret", "replicates", "target", "smallest_difference"):
        plain.pop(key, None)
    if suite.tuning.scenarios:
        plain["scenarios"] = {name: plain["scenarios"][name] for name in suite.tuning.scenarios}
    for scenario in plain["scenarios"].values():  # the suite's digests are of other tasks
        for key in TaskDigests.model_fields:
            scenario.pop(key, None)
        if "changes" in scenario:
            scenario["changes"] = [change for change in scenario["changes"] if not changes_ranking(change)]
    ranking = suite.selection.model_dump(mode="json", exclude={"every"})
    plain |= {"name": name_tuning(suite.name), "title": f"{suite.title}: trials", "seeds": list(suite.tuning.worlds)}
    plain |= {"ranking": ranking, "selection": {**ranking, "every": MAX_ROUNDS}, "ranked_round": "last"}
    return Suite.load(plain)


def find_definition(name: str, own: Suite | None = None) -> Suite | None:
    """The definition of a result's suite: the reader's own suite if given, else the package's, or None if the package has none.
    For results of trials it is the suite of trials of these."""
    base = name.removesuffix(TUNING)
    if own is None and base not in list_suites():
        return None
    found = own or load_suite(base)
    return make_tuning(found) if name == name_tuning(found.name) else found


def compute_definition(suite: Suite) -> str:
    """The digest of everything on which a `Choice` depends: the suite of the trials, the grid, and the rows without chosen
    settings."""
    rows = {name: [*one.changes] for name, one in suite.baselines.items()}
    tuning = None if suite.tuning is None else suite.tuning.model_dump(mode="json")
    played = None if suite.tuning is None else make_tuning(suite).digest
    return digest({"suite": played, "tuning": tuning, "rows": rows})


# ---- secret twins -----------------------------------------------------------------------------------------------------


class Secret(NamedTuple):
    """The maintainers' secret of a suite: the seed of the twin, and the salt of its digest."""

    suite: str
    salt: str
    seed: int

    @property
    def digest(self) -> str:
        """The digest that is published in advance."""
        return bytes_digest(f"fedagentgym twin\n{self.suite}\n{self.salt}\n{self.seed}\n".encode())


def draw_secret(suite: Suite) -> Secret:
    """Draw a new secret from the operating system's random numbers."""
    return Secret(suite.name, secrets.token_hex(32), secrets.randbits(SEED_BITS))


def read_secret(path: Path) -> Secret:
    """Read a secret from the maintainers' file."""
    match read_json(path):
        case {"suite": str(suite), "salt": str(salt), "seed": int(seed), **others} if not others:
            if 0 <= seed < 1 << SEED_BITS:
                return Secret(suite, salt, seed)
    raise DataError(f"{path} holds no secret of a suite")


def name_twin(suite: str) -> str:
    """The name of a suite's secret twin."""
    return f"{suite}-secret"


def make_twin(suite: Suite, secret: Secret) -> Suite:
    """The suite under the secret's seed, if it matches the published digest."""
    if suite.secret is None:
        raise OptionError(f"{suite.name} has no secret twin")
    if secret.suite != suite.name or secret.digest != suite.secret.digest:
        raise DataError(f"this is not the secret whose digest {suite.name} publishes")
    plain = suite.model_dump(mode="json", exclude_unset=True)
    plain |= {"name": name_twin(suite.name), "title": f"{suite.title}, on tasks that nobody knew"}
    del plain["secret"]
    if suite.world:
        plain.pop("replicates", None)
        plain["first_world"] = secret.seed
        return Suite.load(plain)
    for scenario in plain["scenarios"].values():
        for key in ("pool", "task_ids", "client_split"):
            scenario.pop(key, None)
        if suite.track == "agents":
            scenario["options"] = {**scenario.get("options", {}), "seed": secret.seed}
        else:
            scenario["changes"] = [*scenario.get("changes", []), f"env.options.seed={secret.seed}"]
    return Suite.load(plain)
