"""SCAFFOLD and FedDyn on quadratics of unlike clients: each equals a plain loop, and both reach what FedAvg does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedagentgym.agents.protocols import Decoding, SharedModel
from fedagentgym.algorithms.fedagent import Averaging, FedAgent, FedAgentSettings
from fedagentgym.algorithms.feddyn import FedDyn, FedDynSettings
from fedagentgym.algorithms.runtime import DividedSites, ResidentModel, Site
from fedagentgym.algorithms.scaffold import Scaffold, ScaffoldSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.federation.algorithm import FederationSettings, draw_participants
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.learner import PolicyUpdate
from fedagentgym.learning.penalties import Penalty, add_gradient
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import LocalReport, SiteState
from fedagentgym.learning.trajectory import NO_IDS, Row
from fedagentgym.partitions.client_split import ClientSplit

Vector = NDArray[np.float64]
CLIENTS, RATE, STEPS = 4, 0.1, 8
LEARNING = LearningSettings(
    optimizer="sgd", learning_rate=RATE, weight_decay=0.0, gradient_clip=None, empty_minibatches="step"
)
"""Every step is one of the penalties: the rows have no advantages."""
IDLE = Row(np.zeros(2, np.int64), np.ones(1, np.int64), np.zeros(1, np.float32), np.zeros(1), NO_IDS, NO_IDS)
"""A row whose advantage is zero: the loss is then that of the penalties alone."""


class Model(torch.nn.Module):
    """A matrix and a vector in double precision, with the sizes that a pass asks for."""

    config = SimpleNamespace(num_attention_heads=1, hidden_size=1, num_hidden_layers=1)

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
        self.vector = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
        self.config.get_text_config = lambda: self.config


class Policy(SharedModel):
    """The part of a `TrainablePolicy` that a learner uses."""

    def __init__(self) -> None:
        self.model, self.device = Model(), torch.device("cpu")

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.model.named_parameters())

    def get_weights(self) -> dict[str, NDArray[Any]]:
        return {name: value.detach().numpy().copy() for name, value in self.parameters().items()}

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        self.claim()
        for name, value in self.parameters().items():
            value.copy_(torch.from_numpy(weights[name]))

    def bump_version(self) -> None:
        pass


class Problem:
    """Client k's loss is the sum of `a * (theta - b) ** 2 / 2`, with its own curvatures `a` and optimum `b`."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.start = {name: np.zeros_like(value) for name, value in self.policy.get_weights().items()}
        self.size = sum(value.size for value in self.start.values())
        random = np.random.default_rng(0)
        self.curvatures = random.uniform(0.3, 2.0, (CLIENTS, self.size))
        self.optima = random.normal(size=(CLIENTS, self.size))
        self.optimum: Vector = (self.curvatures * self.optima).sum(0) / self.curvatures.sum(0)

    def gradient(self, client: int, theta: Vector) -> Vector:
        return np.asarray(self.curvatures[client] * (theta - self.optima[client]))

    def split(self, vector: Vector) -> dict[str, Vector]:
        ends = np.cumsum([value.size for value in self.start.values()])
        parts = zip(self.start.items(), np.split(vector, ends[:-1]), strict=True)
        return {name: part.reshape(value.shape) for (name, value), part in parts}


def flatten(arrays: Mapping[str, Any]) -> Vector:
    return np.concatenate([np.asarray(value).reshape(-1) for value in arrays.values()])


PROBLEM = Problem()


class Quadratic(Penalty):
    of_parameters = True

    def __init__(self, client: int) -> None:
        self._curvatures, self._optima = (
            {name: torch.from_numpy(part) for name, part in PROBLEM.split(rows[client]).items()}
            for rows in (PROBLEM.curvatures, PROBLEM.optima)
        )

    def add_gradients(self, parameters: dict[str, torch.Tensor]) -> float:
        for name, value in parameters.items():
            add_gradient(value, self._curvatures[name] * (value.detach() - self._optima[name]))
        return 0.0


class Learner:
    """The part of a `LocalTraining` that methods use, without play."""

    agent = None

    def __init__(self, client: int, start: SiteState, penalties: Any) -> None:
        given, terms = (start.weights, {}, {}), (Quadratic(client), *penalties)
        self._update = PolicyUpdate(PROBLEM.policy, Decoding(), LEARNING, start=given, penalties=terms)

    def run(self, steps: int, *, seed: int) -> LocalReport:
        for order in range(steps):
            self._update.train_step([IDLE], order=order)
        return LocalReport({}, ())

    def get_state(self) -> SiteState:
        return SiteState(self._update.get_weights())


class QuadraticSite(Site):
    reported_counts = {"examples": 1}  # noqa: RUF012 - read only

    def open_learner(self, start: SiteState, *, run_steps: int | None = None, penalties: Any = ()) -> Any:
        return Learner(self.client, start, penalties)


def make_no_split() -> ClientSplit:
    raise AssertionError("the quadratic problem has no tasks")


class QuadraticRuntime:
    learning, rounds = LEARNING, 1
    sites = DividedSites(make_no_split)
    env = SimpleNamespace(max_turns=1)
    client_split = range(CLIENTS)
    initial_weights = PROBLEM.start
    make_weight_forms = ResidentModel(None, PROBLEM.start).make_weight_forms  # type: ignore[arg-type]

    class spec:
        sampled_episodes, evaluation = 0, None

    def get_site(self, client: int, learning: LearningSettings) -> Site:
        return QuadraticSite(client, None, None, learning)  # type: ignore[arg-type]


def run(folder: Path, method: type[Averaging[Any]], settings: Any, rounds: int, asked: int | None = None) -> Vector:
    algorithm = method(settings, QuadraticRuntime())  # type: ignore[arg-type]
    plan = FederationSettings(rounds=rounds, clients_per_round=asked)
    backend = SequentialBackend(algorithm, folder / "states")
    return flatten(run_rounds(algorithm, backend, ServerConfig(folder, 0, plan)).commit.state.parameters)


def plain_scaffold(rounds: int, asked: int | None, rate: float) -> Vector:
    x, c, own = np.zeros(PROBLEM.size), np.zeros(PROBLEM.size), np.zeros((CLIENTS, PROBLEM.size))
    for number in range(1, rounds + 1):
        chosen = draw_participants(0, number, range(CLIENTS), asked)
        ends, changes = [], []
        for k in chosen:
            y = x.copy()
            for _ in range(STEPS):
                y = y - RATE * (PROBLEM.gradient(k, y) - own[k] + c)
            renewed = own[k] - c + (x - y) / (STEPS * RATE)  # option II
            ends.append(y)
            changes.append(renewed - own[k])
            own[k] = renewed
        x = x + rate * (np.mean(ends, axis=0) - x)
        c = c + np.sum(changes, axis=0) / CLIENTS
    return x


def plain_feddyn(rounds: int, asked: int | None, alpha: float) -> Vector:
    theta, h, own = np.zeros(PROBLEM.size), np.zeros(PROBLEM.size), np.zeros((CLIENTS, PROBLEM.size))
    for number in range(1, rounds + 1):
        chosen = draw_participants(0, number, range(CLIENTS), asked)
        ends = []
        for k in chosen:
            y = theta.copy()
            for _ in range(STEPS):
                y = y - RATE * (PROBLEM.gradient(k, y) - own[k] + alpha * (y - theta))
            own[k] = own[k] - alpha * (y - theta)
            ends.append(y)
        h = h - alpha / CLIENTS * np.sum([end - theta for end in ends], axis=0)
        theta = np.mean(ends, axis=0) - h / alpha
    return theta


@pytest.mark.parametrize("asked", [None, 2])
def test_scaffold_is_the_plain_loop_with_option_two(tmp_path: Path, asked: int | None) -> None:
    found = run(tmp_path, Scaffold, ScaffoldSettings(local_steps=STEPS, server_step=0.8), 4, asked)
    assert np.abs(found - plain_scaffold(4, asked, 0.8)).max() < 1e-10


@pytest.mark.parametrize("asked", [None, 2])
def test_feddyn_is_the_plain_loop(tmp_path: Path, asked: int | None) -> None:
    found = run(tmp_path, FedDyn, FedDynSettings(local_steps=STEPS, alpha=0.5), 4, asked)
    assert np.abs(found - plain_feddyn(4, asked, 0.5)).max() < 1e-10


@pytest.mark.parametrize(
    ("method", "settings", "plain"),
    [
        (Scaffold, ScaffoldSettings(local_steps=STEPS), lambda rounds: plain_scaffold(rounds, None, 1.0)),
        (FedDyn, FedDynSettings(local_steps=STEPS, alpha=1.0), lambda rounds: plain_feddyn(rounds, None, 1.0)),
    ],
)
def test_the_corrected_methods_reach_the_common_optimum_and_fedavg_does_not(
    tmp_path: Path, method: type[Averaging[Any]], settings: Any, plain: Callable[[int], Vector]
) -> None:
    rounds = 10
    uncorrected = run(tmp_path / "mean", FedAgent, FedAgentSettings(local_steps=STEPS), rounds)
    corrected = run(tmp_path / "corrected", method, settings, rounds)
    assert np.abs(uncorrected - PROBLEM.optimum).max() > 0.1
    assert np.abs(corrected - PROBLEM.optimum).max() < 0.01
    assert np.abs(plain(400) - PROBLEM.optimum).max() < 1e-10


def test_what_both_cannot_be_combined_with_is_one_sentence() -> None:
    privacy = {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}
    for settings in (ScaffoldSettings, FedDynSettings):
        with pytest.raises(OptionError, match="leave out proximal"):
            settings.load({"proximal": 0.1})
        with pytest.raises(OptionError, match="privacy cannot be used"):
            settings.load({"privacy": privacy})
    with pytest.raises(OptionError, match="sgd has none"):
        LearningSettings.load({"optimizer": "sgd", "betas": [0.5, 0.9]})
