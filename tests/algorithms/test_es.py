"""Evolution strategies: a plain loop on a quadratic, equal bits everywhere, and what a curious or faulty side cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedagentgym.algorithms.base import describe_method
from fedagentgym.algorithms.card import Scale
from fedagentgym.algorithms.es import MAX_ROWS, ESSettings, EvolutionStrategies, Rows
from fedagentgym.algorithms.runtime import ResidentModel, Site
from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import generator
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.federation.algorithm import FederationSettings, ServerState, draw_participants
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.exchange import ClientContext, Reply, Request
from fedagentgym.federation.message import Message
from fedagentgym.federation.round import FinishedRounds, ServerConfig, run_rounds
from fedagentgym.learning.settings import LearningSettings

ROUNDS, SEED, TASKS = 20, 5, (1, 3, 2, 4)
START = {"first": np.zeros(3, dtype=np.float32), "second": np.ones((2, 2), dtype=np.float32)}
GOALS = [{name: np.float32(client + 1) * (value + 1) for name, value in START.items()} for client in range(len(TASKS))]


def measure(client: int, weights: Any) -> float:
    """The reward of a policy at a client: how near it is to the client's goal."""
    return -float(sum(np.square(weights[name] - goal, dtype=np.float64).sum() for name, goal in GOALS[client].items()))


class OnQuadratic(EvolutionStrategies):
    """Clients score arrays in place of playing."""

    def play(
        self, policy: Any, client: ClientContext[Site]
    ) -> Iterator[tuple[float, dict[str, float], list[dict[str, Any]]]]:
        for index in range(self.settings.population):
            perturbed = self.perturb(policy, client.round, client.id, index)
            yield measure(client.id, perturbed), {"episodes": 1.0}, []


class ArrayRuntime:
    learning, rounds, seed = LearningSettings(), ROUNDS, SEED
    initial_weights = START
    make_weight_forms = ResidentModel(None, START).make_weight_forms  # type: ignore[arg-type]
    spec = SimpleNamespace(sampled_episodes=0, evaluation=None)

    def __init__(self, clients: int) -> None:
        self.client_split = range(clients)

    def get_site(self, client: int, learning: LearningSettings) -> Any:
        return SimpleNamespace(reported_counts={"examples": TASKS[client]})


def play_rounds(
    folder: Path, settings: ESSettings, clients: int, asked: int | None, *, rounds: int = ROUNDS, backend: Any = None
) -> FinishedRounds:
    algorithm = OnQuadratic(settings, ArrayRuntime(clients))  # type: ignore[arg-type]
    made = (backend or SequentialBackend)(algorithm, folder / "states")
    plan = FederationSettings(rounds=rounds, clients_per_round=asked, quorum=0)
    return run_rounds(algorithm, made, ServerConfig(folder, SEED, plan))


def loop(settings: ESSettings, clients: int, asked: int | None) -> dict[str, Any]:
    """The same without a federation, in double precision."""
    theta = {name: value.astype(np.float64) for name, value in START.items()}
    for number in range(1, ROUNDS + 1):
        chosen = draw_participants(SEED, number, range(clients), asked)
        total = sum(TASKS[client] if settings.weights == "tasks" else 1 for client in chosen)
        begun = {name: value.copy() for name, value in theta.items()}
        for client in chosen:
            noises = []
            for index in range(settings.population):
                drawn, sign = (index // 2, (-1) ** index) if settings.antithetic else (index, 1)
                streams = {name: generator(SEED, "perturbation", number, client, drawn, name) for name in START}
                noises.append(
                    {name: sign * streams[name].standard_normal(START[name].shape, np.float32) for name in START}
                )
            found = [measure(client, {n: begun[n] + settings.sigma * one[n] for n in begun}) for one in noises]
            worth = np.array(found) - np.mean(found)
            if settings.scores == "standardised":
                worth /= np.std(found)
            share = (TASKS[client] if settings.weights == "tasks" else 1) / total
            for name, value in theta.items():
                step = np.mean([w * one[name] for w, one in zip(worth, noises, strict=True)], axis=0)
                theta[name] = value + settings.rate * share * step
    return theta


@pytest.mark.parametrize(("clients", "asked"), [(4, None), (4, 2), (1, None)])
@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.3},
        {"rate": 0.3, "antithetic": True, "weights": "tasks"},
        {"rate": 0.1, "scores": "centred", "antithetic": True},
    ],
    ids=["plain", "pairs, by tasks", "centred"],
)
def test_a_run_is_the_plain_loop(options: Any, clients: int, asked: int | None, tmp_path: Path) -> None:
    """Clients that miss rounds, and a stop in between; a client compares its policy with the server's in every round."""
    settings = ESSettings(population=6, sigma=0.1, **options)
    play_rounds(tmp_path, settings, clients, asked, rounds=7)
    finished = play_rounds(tmp_path, settings, clients, asked)
    assert not any(record["failures"] for record in finished.records)
    found, expected = finished.commit.state.parameters, loop(settings, clients, asked)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-4)
    away = [measure(client, START) - measure(client, found) for client in range(clients)]
    assert sum(away) < -1  # it went towards the goals


def test_only_scores_travel_and_a_client_hears_every_row_once(tmp_path: Path) -> None:
    settings = ESSettings(population=6, sigma=0.1, rate=0.3)
    finished = play_rounds(tmp_path, settings, 4, 2)
    rows = Rows.read(finished.commit.state.memory["rows"])
    assert rows.score.shape == (2 * ROUNDS, 6) and rows.round.tolist() == sorted(2 * [*range(1, ROUNDS + 1)])
    down = [record["bytes"]["down"] for record in finished.records]
    up = [record["bytes"]["up"] for record in finished.records]
    assert all(part["weights"] == 0 for part in (*down, *up))
    assert sum(part["scores"] for part in up) == ROUNDS * 2 * 6 * 4
    applied = finished.commit.state.memory["applied"]
    assert sum(part["scores"] for part in down) == sum(applied.values()) * (6 * 4 + 24)
    work = describe_method({"name": "es", "population": 6}, Scale(clients=4, asked=2)).round
    assert work is not None and work.optimizer_steps == 0
    assert sum(part["scores"] for part in down) <= ROUNDS * work.scores_down * 4
    assert sum(part["scores"] for part in up) == ROUNDS * work.scores_up * 4


class Wrong(SequentialBackend):
    """Client 1 sends what is no score; client 2 is not there in round 2."""

    def run(self, requests: Any, deadline: float | None) -> Iterator[Reply]:
        requests = list(requests)
        for request, reply in zip(requests, super().run(requests, deadline), strict=True):
            yield self._spoil(request, reply)

    def _spoil(self, request: Request, reply: Reply) -> Reply:
        if request.client == 2 and request.name.round == 2:
            return Reply(2, "dead", error="nobody is there")
        if request.client != 1:
            return reply
        told = Message(scores={"score": np.full(4, np.nan, dtype=np.float32)}, control={"examples": 1})
        return Reply(1, "ok", told.encoded, reply.state)


def test_faulty_clients_have_no_row_and_others_go_on(tmp_path: Path) -> None:
    settings = ESSettings(population=4, sigma=0.1, rate=0.3)
    finished = play_rounds(tmp_path, settings, 3, None, rounds=4, backend=Wrong)
    rows = Rows.read(finished.commit.state.memory["rows"])
    assert [*zip(rows.round.tolist(), rows.client.tolist(), strict=True)] == [
        (number, client) for number in range(1, 5) for client in ((0,) if number == 2 else (0, 2))
    ]
    assert {failure["client"] for record in finished.records for failure in record["failures"]} == {1, 2}
    assert np.allclose(rows.weight, [0.5, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5])


def test_a_client_notices_another_policy_than_the_server_s() -> None:
    algorithm = OnQuadratic(ESSettings(population=2), ArrayRuntime(1))  # type: ignore[arg-type]
    context: Any = ClientContext(0, 1, SEED, 0, SimpleNamespace(reported_counts={}))
    rows = Rows.read(algorithm.initial_state().memory["rows"])._asdict()
    right = Message(weights=START).digest
    with pytest.raises(Exception, match="has 0 rows, and the server sends those after 3"):
        algorithm.score(Message(), Message(scores=rows, control={"applied": 3, "digest": right}), context)
    with pytest.raises(Exception, match="not computed alike"):
        algorithm.score(Message(), Message(scores=rows, control={"applied": 0, "digest": "0" * 64}), context)
    kept, reply = algorithm.score(Message(), Message(scores=rows, control={"applied": 0, "digest": right}), context)
    assert Message(weights=kept.sets["policy"]).digest == right and reply.scores["score"].shape == (2,)


def test_equal_scores_move_nothing() -> None:
    algorithm = OnQuadratic(ESSettings(population=2, rate=9.0), ArrayRuntime(1))  # type: ignore[arg-type]
    policy = dict(START)
    algorithm.apply(policy, algorithm.make_rows(1, {0: np.array([2.0, 2.0])}, {0: 1}))
    assert ServerState(policy).digest == ServerState(START).digest


def test_its_plan_has_no_gradients_and_its_settings_are_checked() -> None:
    plan = plan_run(load_config("paper-webshop", ["algorithm={name: es, population: 30}"]))
    names = {part.name for part in plan.memory}
    assert not names & {"moments", "gradients", "activations", "base model of the KL term"}
    assert "policy without perturbation" in names and plan.total.optimizer_steps == 0
    assert plan.count_bytes_up(plan.round) == 2 * 30 * 4
    assert plan.count_bytes_down(plan.round) == 100 * 2 * (30 + 6) * 4
    method = OnQuadratic(ESSettings(), ArrayRuntime(2))  # type: ignore[arg-type]
    method.check_start(MAX_ROWS // ROUNDS)
    with pytest.raises(
        OptionError, match=f"20 rounds of {MAX_ROWS // ROUNDS + 1:,} clients are .* rows, at most 1,048,576"
    ):
        method.check_start(MAX_ROWS // ROUNDS + 1)
    with pytest.raises(OptionError, match="population is even, got 5"):
        ESSettings.load({"name": "es", "population": 5, "antithetic": True})
    with pytest.raises(OptionError, match="es cannot learn by a value head"):
        load_config("paper-webshop", ["algorithm=es", "learning.advantage=gae"])
