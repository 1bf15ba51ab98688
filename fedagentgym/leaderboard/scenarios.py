"""A suite's scenarios on this machine: the environment with its ranked tasks, and the configuration of a run.

Digests that a suite names must match. A method may change how clients learn and what the server does; the environment, the
division, the agent, the seeds and the evaluation belong to the suite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedagentgym.algorithms.support.runtime import Runtime
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, OptionError, join_names
from fedagentgym.base.settings import assign
from fedagentgym.envs import open_env
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.settings import RunConfig
from fedagentgym.leaderboard.record import ScenarioRecord
from fedagentgym.leaderboard.suite import Scenario, Suite

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.partitions.client_split import ClientSplit

FREE = ("algorithm", "learning", "federation", "plugins")
"""The parts of a configuration that belong to a method."""


@dataclass(frozen=True)
class OpenedScenario:
    """A scenario with its environment over the ranked split, and, on the methods track, the clients' tasks."""

    suite: Suite
    name: str
    env: TextEnv
    options: Mapping[str, Any]
    client_split: ClientSplit | None = None

    @cached_property
    def ids(self) -> list[str]:
        """The tasks that are ranked, in order."""
        tasks = self.suite.get_ranking(self.name).tasks
        if tasks is not None and tasks > len(self.env.pool):
            raise DataError(f"scenario {self.name!r} asks for {tasks} tasks, there are {len(self.env.pool)}")
        return list(self.env.pool.ids[:tasks] if tasks is not None else self.env.pool.ids)

    @property
    def definition(self) -> Scenario:
        return self.suite.scenarios[self.name]

    def describe(self) -> ScenarioRecord:
        """The scenario for a record."""
        divided, ranking = self.client_split, self.suite.get_ranking(self.name)
        return ScenarioRecord(
            name=self.name,
            env=self.env.id,
            options=type(self.env).portable_options(self.options),
            split=ranking.split,
            tasks=len(self.ids),
            repeats=ranking.repeats,
            pool=self.env.pool.digest,
            task_ids=digest(self.ids),
            verifier=self.env.get_verifier_version(),
            client_split=None if divided is None else divided.digest,
            clients=None if divided is None else len(divided),
            axis=self.definition.axis,
            level=self.definition.level,
            methods_differ=self.definition.methods_differ,
        )

    def check(self) -> ScenarioRecord:
        """The scenario for a record, if it matches the published suite."""
        found = self.describe()
        for name in ("pool", "task_ids", "client_split"):
            expected = getattr(self.definition, name)
            if expected is not None and expected != getattr(found, name):
                raise DataError(
                    f"{self.suite.name}, scenario {self.name!r}: {name} is {getattr(found, name)}, the suite was published with "
                    f"{expected}: these are other tasks than its results are about"
                )
        return found


def open_scenario(suite: Suite, name: str) -> OpenedScenario:
    """The scenario of a suite, its digests checked."""
    definition, split = suite.scenarios[name], suite.ranking.split
    if suite.track == "methods":
        config = make_config(suite, name)
        client_split = Runtime(config.spec()).client_split
        env_id, options = config.env.id, client_split.options
    else:
        client_split, env_id, options = None, find_env_id(str(definition.env)), definition.options
    opened = OpenedScenario(suite, name, open_env(env_id, **{**options, "split": split}), options, client_split)
    opened.check()
    return opened


def make_config(
    suite: Suite, scenario: str, method: Sequence[str] = (), *, seed: int | None = None, plugins: Sequence[str] = ()
) -> RunConfig:
    """The configuration of a run; a method that changes the suite's part is refused."""
    chosen = suite.seeds[0] if seed is None else seed
    fixed = [*suite.changes, *suite.scenarios[scenario].changes, f"seed={chosen}"]
    evaluation = {**suite.selection.make_evaluation().model_dump(mode="json"), "clients": False}
    judged = [f"evaluation.{key}={_write(value)}" for key, value in evaluation.items()]
    quiet = ["output.sampled_episodes=0", "output.report=none", "output.trackers=[]", "output.keep_rounds=1"]
    assert suite.config is not None
    if any("plugins" in assign({}, change) for change in method):
        raise OptionError(f"{suite.name}: a method's code is named by --plugin, its changes name no plugins")
    base = load_config(suite.config, [*fixed, "evaluation=null", *judged, *quiet])
    found = load_config(base, method, plugins)
    before, after = base.plain(), found.plain()
    touched = [key for key in after if key not in FREE and key != "name" and after[key] != before.get(key)]
    if touched:
        raise OptionError(
            f"{suite.name}: a method changes {join_names(FREE)} and nothing else, {touched[0]!r} belongs to the suite"
        )
    return found


def check_budget(suite: Suite, config: RunConfig) -> None:
    """Refuse a run with more rounds than the suite allows before it begins; other limits are counted during the run."""
    most = suite.budget.rounds
    if most is not None and config.federation.rounds > most:
        raise OptionError(f"{suite.name}: at most {most} rounds, this method has {config.federation.rounds}")


def _write(value: object) -> str:
    """A value for an assignment."""
    import json

    return json.dumps(value)
