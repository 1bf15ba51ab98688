"""A result with the suite against which it is held, and what belongs into each of its runs: configuration, tasks, streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import RunConfig
from fedagentgym.leaderboard.entries import describe_plugins, find_packaged, load_settings
from fedagentgym.leaderboard.play import make_evaluation_config
from fedagentgym.leaderboard.results import Result, RunKey, name_run
from fedagentgym.leaderboard.suite import FREE, MOST_ROUNDS, OpenedScenario, Suite, check_budget, make_config
from fedagentgym.runs.claims import Due, Examined, Part, RefutedError
from fedagentgym.runs.folder import RunFolder, publish_config
from fedagentgym.runs.record import RunRecord, is_learner
from fedagentgym.runs.replay import describe_speaker


@dataclass(frozen=True)
class Held:
    """A result with the suite against which it is held; `plugins` is the method's code that the verifier has loaded."""

    result: Result
    suite: Suite
    opened: Mapping[str, OpenedScenario]
    plugins: tuple[str, ...] = ()
    configs: dict[RunKey, RunConfig] = field(default_factory=dict)
    """The checked configuration of every run of the methods track."""

    @property
    def is_method(self) -> bool:
        return self.suite.track == "methods"

    @property
    def is_known(self) -> bool:
        """True if the method belongs to this package, or to plugins that the verifier has loaded."""
        own = [one.model_copy(update={"path": None}) for one in describe_plugins(self.plugins)]
        return list(self.result.entry.publish().plugins) == own

    def open(self, key: RunKey) -> OpenedScenario:
        """The scenario of a run in the world of its seed."""
        return self.opened[key[0]].at(key[1])


@dataclass(frozen=True)
class CheckedRun:
    """A run that was checked: its episodes, and whether its recorded costs are all that its configuration takes."""

    key: RunKey
    found: Examined
    is_counted: bool = True


class Spoken(NamedTuple):
    """The verification of the player: how, if for all cells, and if every episode was the same, to the numbers of tokens."""

    about: str
    everywhere: bool
    exact: bool


def make_due(held: Held, key: RunKey, config: RunConfig) -> Due:
    """The content of a run of the methods track."""
    suite, opened = held.suite, held.open(key)
    env = open_env(opened.env.id, **{**opened.options, "split": suite.selection.split})
    ids, last = env.pool.ids[: suite.selection.tasks], config.federation.rounds
    assert config.evaluation is not None
    ranked = Part(opened.env, suite.ranking.split, opened.ids, suite.ranking.repeats, derive(key[1], "ranked"))
    curve = Part(env, suite.selection.split, ids, suite.selection.repeats, derive(config.seed, "evaluation"))
    rounds = [number for number in range(last + 1) if config.evaluation.is_due(number, last)]
    speaker, confidence = describe_speaker(config.agent, "model"), config.evaluation.confidence
    return Due(config.agent.name, speaker, ranked, opened.ranking, curve, rounds, opened.client_split, confidence)


def make_agent_due(held: Held, key: RunKey, kind: str) -> Due:
    """The content of a run of the agents track."""
    opened, settings = held.open(key), load_settings(held.result.entry, held.suite.ranking.temperature)
    config = make_evaluation_config(opened, held.result.entry, key[1])
    speaker = describe_speaker(find_packaged(settings, opened.env) or settings, kind)
    ranked = Part(opened.env, config.evaluation.split, opened.ids, config.evaluation.repeats, config.seed)
    return Due(settings.name, speaker, ranked, config.evaluation)


def check_config(held: Held, key: RunKey, run: RunFolder, record: RunRecord) -> RunConfig:
    """Check that the configuration is the one that the suite and the method's changes give.

    A method from a plugin is not loaded: then the suite's part is compared, and the rest is accepted.
    """
    entry, where, known = held.result.entry, name_run(key), held.is_known
    place = f"{where}: config.yaml"
    try:
        packed = publish_config(run.config)
        changes, plugins = (entry.changes, held.plugins) if known else ((), ())
        made = make_config(held.suite, key[0], changes, seed=key[1], plugins=plugins, stream=entry.stream)
    except FedAgentGymError as error:
        raise RefutedError("configuration", f"{place}: the method's changes cannot be applied: {error}") from None
    # plugins under the paths that they had where the method was run, which the digest depends on
    named, there = packed.get("plugins"), tuple(made.plugins)
    if isinstance(named, list) and [Path(str(one)).name for one in named] == [Path(one).name for one in made.plugins]:
        there = tuple(map(str, named))
    expected = made.model_copy(update={"plugins": there})
    wanted = publish_config(expected.plain())
    for name in sorted({*wanted, *packed} if known else {*wanted, *packed}.difference(FREE, ["name"])):
        if canonical_json(packed.get(name)) != canonical_json(wanted.get(name)):
            raise RefutedError("configuration", f"{place}: {name!r} is not what the suite and the method's changes say")
    if known:
        algorithm = str(expected.algorithm["name"])
        about = {"name": expected.name, "algorithm": algorithm, "config_digest": expected.digest, "kind": "training"}
        compare_record(where, record, about)
    else:
        rounds = (packed.get("federation") or {}).get("rounds")
        if not isinstance(rounds, int) or not 0 <= rounds <= MOST_ROUNDS:
            raise RefutedError("configuration", f"{place}: federation.rounds is no number of rounds")
        federation = expected.federation.model_copy(update={"rounds": rounds})
        expected = expected.model_copy(update={"federation": federation})
    if not is_learner(record.agent, expected.agent):
        raise RefutedError("configuration", f"{where}: the agent of the record is not that of the suite")
    try:
        check_budget(held.suite, expected, known=known)
    except FedAgentGymError as error:
        raise RefutedError("budget", f"{where}: {error}") from None
    if expected.federation.rounds > MOST_ROUNDS:
        raise RefutedError("configuration", f"{place}: federation.rounds is above {MOST_ROUNDS:,}")
    return expected


def compare_record(where: str, record: RunRecord, expected: Mapping[str, Any]) -> None:
    """Check parts of a record that say what was run, not what came out."""
    for name, value in expected.items():
        if getattr(record, name) != value:
            problem = "is not what the suite and the entry give"
            raise RefutedError("configuration", f"{where}: {name!r} of the record {problem}")
