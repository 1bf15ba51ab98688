"""Everything that can be added to the package, added from one file outside of it by one line of registration."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedagentgym
from fedagentgym.agents import AGENTS
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.base.imports import module_name
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.federation.aggregation import AGGREGATION_RULES
from fedagentgym.federation.backends import BACKENDS
from fedagentgym.learning.advantages import ADVANTAGES, OBJECTIVES
from fedagentgym.learning.losses import LOSSES
from fedagentgym.partitions import SAMPLERS

REGISTRIES = (ADVANTAGES, AGENTS, AGGREGATION_RULES, ALGORITHMS, BACKENDS, ENVIRONMENTS, LOSSES, OBJECTIVES, SAMPLERS)
RUN: Mapping[str, Any] = {
    "name": "plugin",
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"clients": 2, "tasks_per_client": 4},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 1, "group_size": 3, "learning_rate": 1e-3},
    "algorithm": {"name": "fedagent", "local_steps": 1},
    "federation": {"rounds": 1},
    "evaluation": None,
    "output": {"report": "none"},
}


@dataclass(frozen=True)
class Kind:
    """A plugin of one kind: its file, which notes in `USED` that it was used, and what is laid over `RUN` to use it."""

    file: str
    config: Mapping[str, Any] = field(default_factory=dict)


SAMPLER = """
import fedagentgym

USED = []


def first_come(table, clients, seed, size=2):
    USED.append(size)
    return [table.ids[client * size : (client + 1) * size] for client in range(clients)]


fedagentgym.register_sampler("first_come", first_come)
"""

ADVANTAGE = """
from pydantic import Field

import fedagentgym
from fedagentgym.learning.advantages import AdvantageEstimator, episode_advantages

USED = []


class Scaled(AdvantageEstimator):
    factor: float = Field(default=1.0, gt=0)

    def estimate(self, group, rewards):
        USED.append(self.factor)
        return tuple(self.factor * part for part in episode_advantages(rewards, "none", "trajectories"))


fedagentgym.register_advantage("scaled", Scaled)
"""

OBJECTIVE = """
import fedagentgym

USED = []


def brief(group):
    USED.append(len(group))
    return [-float(len(trajectory.turns)) for trajectory in group]


fedagentgym.register_objective("brief", brief)
"""

LOSS = """
from pydantic import Field

import fedagentgym
from fedagentgym.learning import PolicyLoss, PolicyTerms

USED = []


class Softened(PolicyLoss):
    power: float = Field(default=1.0, gt=0)

    def compute(self, tokens, clip):
        USED.append(self.power)
        ratio = tokens.compute_ratio()
        return PolicyTerms(-(ratio**self.power) * tokens.advantages, ratio)


fedagentgym.register_loss("softened", Softened)
"""

ALGORITHM = """
from typing import Literal

import fedagentgym
from fedagentgym.algorithms.fedagent import FedAgent, FedAgentSettings

USED = []


class PatientSettings(FedAgentSettings):
    name: Literal["patient"] = "patient"
    patience: int = 1


class Patient(FedAgent):
    settings_class = PatientSettings

    def prepare(self, state, round):
        USED.append(self.settings.patience)
        return super().prepare(state, round)


fedagentgym.register_algorithm("patient", Patient)
"""

BACKEND = """
import fedagentgym
from fedagentgym.federation.backends.in_process import open_backend

USED = []


def open_noted(application, /, *, note, **keywords):
    USED.append(note)
    return open_backend(application, **keywords)


fedagentgym.register_backend("noted", open_noted)
"""

ENVIRONMENT = """
import fedagentgym
from fedagentgym.envs import play
from fedagentgym.envs import play
from fedagentgym.envs.guess import GuessEnv, GuessOptions

USED = []


class LoudOptions(GuessOptions):
    voice: str = play("loud", description="how loud it is")


class LoudGuessEnv(GuessEnv):
    "Guess a number, in capitals."

    id = "me/LoudGuess-v0"
    Options = LoudOptions

    def set_up(self):
        USED.append(self.options.voice)


fedagentgym.register_env("me/LoudGuess-v0", LoudGuessEnv)
"""

AGENT = """
import fedagentgym
from fedagentgym.agents.players.scripted import ScriptedAgent

USED = []


def careless(settings, *, env=None, seed=0):
    USED.append(settings.options["noise"])
    return ScriptedAgent("careless", expert=True, noise=settings.options["noise"])


fedagentgym.register_agent("careless", careless)
"""

AGGREGATION = """
from dataclasses import replace

import fedagentgym
from fedagentgym.federation.aggregation import AggregationRule

USED = []


class Latest(AggregationRule):
    share: float = 1.0

    def begin(self, state):
        return LatestStep(state, self.share)


class LatestStep:
    def __init__(self, state, share):
        self.state, self.share = state, share

    def add(self, update, weight):
        USED.append(self.share)
        self.parameters = {name: value.copy() for name, value in update.items()}

    def finish(self):
        return replace(self.state, parameters=self.parameters)


fedagentgym.register_aggregation("latest", Latest)
"""

VARIANT = """
import fedagentgym
from fedagentgym.envs.variants import ClientVariant, Variant

USED = []


class Voice(ClientVariant):
    volume: int

    def change_view(self, view):
        return view


class Voices(Variant):
    kind = "voice"
    client_variant = Voice
    loudest: int = 3

    def draw(self, seed, client):
        USED.append(self.loudest)
        return Voice(volume=1 + client % self.loudest)


fedagentgym.register_variant("fedagentgym/Guess-v0", Voices, replace=True)
"""

KINDS = [
    pytest.param(
        Kind(SAMPLER, {"partition": {"sampler": "first_come", "size": 3, "tasks_per_client": None}}), 3, id="sampler"
    ),
    pytest.param(
        Kind(ADVANTAGE, {"learning": {"advantage": {"name": "scaled", "factor": 2.0}}}), 2.0, id="advantage estimator"
    ),
    pytest.param(Kind(OBJECTIVE, {"learning": {"objectives": ["reward", "brief"]}}), 3, id="objective"),
    pytest.param(
        Kind(LOSS, {"learning": {"loss": {"name": "softened", "power": 0.5}, "kl": 0.01}}), 0.5, id="policy loss"
    ),
    pytest.param(Kind(ALGORITHM, {"algorithm": {"name": "patient", "patience": 5}}), 5, id="algorithm"),
    pytest.param(Kind(BACKEND, {"federation": {"backend": "noted", "options": {"note": "x"}}}), "x", id="backend"),
    pytest.param(
        Kind(ENVIRONMENT, {"env": {"id": "me/LoudGuess-v0", "options": {"voice": "soft"}}}), "soft", id="environment"
    ),
    pytest.param(
        Kind(AGGREGATION, {"algorithm": {"aggregation": {"name": "latest", "share": 0.5}}}),
        0.5,
        id="aggregation rule",
    ),
    pytest.param(Kind(VARIANT, {"partition": {"variant": {"kind": "voice", "loudest": 2}}}), 2, id="variant"),
]


@pytest.fixture(autouse=True)
def registries_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin of a test stays in its test."""
    for name in [name for name in sys.modules if name.startswith("fedagentgym_plugin_mine")]:
        monkeypatch.delitem(sys.modules, name)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


def plugin(folder: Path, text: str) -> Path:
    assert len(text.strip().splitlines()) < 40
    assert text.count("fedagentgym.register_") == 1
    file = folder / "mine.py"
    file.write_text(text)
    return file


def used(file: Path) -> list[Any]:
    found: list[Any] = sys.modules[module_name(file)].USED
    return found


def configuration(kind: Kind, folder: Path, **federation: Any) -> dict[str, Any]:
    plain = merge(merge(RUN, kind.config), {"output": {"folder": str(folder / "run")}, "federation": federation})
    return {key: without_null(value) for key, value in plain.items()}


def without_null(value: Any) -> Any:
    return {key: inner for key, inner in value.items() if inner is not None} if isinstance(value, dict) else value


@pytest.mark.parametrize(("kind", "setting"), KINDS)
def test_a_plugin_of_the_configuration_is_used_with_its_setting(kind: Kind, setting: Any, tmp_path: Path) -> None:
    file = plugin(tmp_path, kind.file)
    plain = configuration(kind, tmp_path)
    result = fedagentgym.train({**plain, "plugins": [*plain.get("plugins", ()), str(file)]})
    assert result.record["rounds"] == 1 and setting in used(file)
    assert str(file) in yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["plugins"]


@pytest.mark.parametrize(("kind", "setting"), KINDS[:1])
def test_a_plugin_of_the_command_line_is_used_and_written_down(kind: Kind, setting: Any, tmp_path: Path) -> None:
    file, config = plugin(tmp_path, kind.file), tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(configuration(kind, tmp_path)))
    assert main(["--quiet", "train", str(config), "--plugin", str(file)]) == 0
    assert setting in used(file)
    assert str(file) in yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["plugins"]


def test_a_plugin_reaches_worker_processes(tmp_path: Path) -> None:
    kind = KINDS[1].values[0]
    assert isinstance(kind, Kind)
    file = plugin(tmp_path, kind.file)
    digests = []
    for workers in (0, 1):
        folder = tmp_path / str(workers)
        plain = configuration(kind, folder, workers=workers)
        digests.append(fedagentgym.train(plain, plugins=[str(file)]).digest)
    assert digests[0] == digests[1]


def test_an_agent_plays_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = plugin(tmp_path, AGENT)
    about = ["--env", "Guess", "--tasks", "3", "--out", str(tmp_path / "episodes.jsonl"), "--json"]
    chosen = ["--agent", "careless", "--agent-set", "options.noise=0.25", "--plugin", str(file)]
    assert main(["eval", *about, *chosen]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["success"]["mean"] >= 0.0
    assert used(file) == [0.25]


def test_an_environment_is_listed_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = plugin(tmp_path, ENVIRONMENT)
    assert main(["envs", "LoudGuess", "--json", "--plugin", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "me/LoudGuess-v0"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["learning.advantage=gipo"], "learning.advantage: unknown advantage estimator 'gipo': did you mean 'gigpo'?"),
        (
            ["federation.backend=in-proces"],
            "unknown backend 'in-proces': did you mean 'in-process'? (known are in-process,",
        ),
        (["algorithm=fedagnet"], "unknown algorithm 'fedagnet': did you mean 'fedagent'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_the_list(
    changes: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(dict(RUN)))
    assert main(["train", str(config), *(f"--set={change}" for change in changes)]) == 2
    assert told in capsys.readouterr().err
