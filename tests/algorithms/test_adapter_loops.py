"""Methods that average adapters, on factors of matrices that unlike clients want to reach: each equals a plain loop."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedagentgym.agents.settings import AdapterSettings, AgentSettings
from fedagentgym.algorithms.factors import read_changes
from fedagentgym.algorithms.fedex_lora import FedExLoRA
from fedagentgym.algorithms.fedit import FedIT, FFALoRA
from fedagentgym.algorithms.fedsa_lora import FedSALoRA
from fedagentgym.algorithms.flexlora import FlexLoRA
from fedagentgym.algorithms.flora import FLoRA
from fedagentgym.algorithms.ram import RAM
from fedagentgym.algorithms.runtime import DividedSites, ResidentModel, Site
from fedagentgym.base.streams import derive, generator
from fedagentgym.federation.algorithm import FederationSettings, draw_participants
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.message import Message
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.federation.states import StateStore
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import LocalReport, SiteState
from tests.algorithms.test_corrections import make_no_split

CLIENTS, ROUNDS, STEPS, RATE, RANK, SCALE = 4, 20, 4, 0.05, 2, 2.0
RANDOM = np.random.default_rng(5)
GOALS = RANDOM.normal(size=(CLIENTS, 5, 6))
LOW, HIGH = "layer.lora_A.default.weight", "layer.lora_B.default.weight"
FIRST = RANDOM.uniform(-0.4, 0.4, (RANK, 6))
START = {LOW: FIRST, HIGH: np.zeros((5, RANK))}
Matrix = Any


def learn(client: int, low: Matrix, high: Matrix, base: Matrix, *, only_high: bool = False) -> tuple[Matrix, Matrix]:
    """Gradient steps on half the squared distance of `base + SCALE * high @ low` from the client's goal."""
    for _ in range(STEPS):
        gap = base + SCALE * high @ low - GOALS[client]
        steps = SCALE * high.T @ gap, SCALE * gap @ low.T
        low, high = (low if only_high else low - RATE * steps[0]), high - RATE * steps[1]
    return low, high


class Learner:
    """The part of a `LocalTraining` that methods use."""

    agent = None

    def __init__(self, client: int, weights: Any) -> None:
        self._client, self._weights = client, dict(weights)

    def run(self, steps: int, *, seed: int) -> LocalReport:
        assert steps == STEPS
        base = self._weights.get("base/layer", np.zeros((5, 6)))
        only_high = LOW not in self._weights
        low, high = learn(self._client, self._weights.get(LOW, FIRST), self._weights[HIGH], base, only_high=only_high)
        self._weights |= {HIGH: high} if only_high else {LOW: low, HIGH: high}
        return LocalReport({}, ())

    def get_state(self) -> SiteState:
        return SiteState({name: value for name, value in self._weights.items() if not name.startswith("base/")})


class MatrixSite(Site):
    reported_counts = {"examples": 1}  # noqa: RUF012 - read only

    def open_learner(self, start: SiteState, *, run_steps: int | None = None, penalties: Any = ()) -> Any:
        return Learner(self.client, start.weights)


class MatrixRuntime:
    learning, rounds, seed = LearningSettings(), 1, 0
    sites = DividedSites(make_no_split)
    env = SimpleNamespace(max_turns=1)
    client_split = range(CLIENTS)

    def __init__(self, train: Any) -> None:
        self.initial_weights = START if train == "both" else {HIGH: START[HIGH]}
        self.make_weight_forms = ResidentModel(None, self.initial_weights).make_weight_forms  # type: ignore[arg-type]
        adapter = AdapterSettings(rank=RANK, alpha=SCALE * RANK, train=train)
        self.spec = SimpleNamespace(sampled_episodes=0, evaluation=None, agent=AgentSettings(adapter=adapter))

    def get_site(self, client: int, learning: LearningSettings) -> Site:
        return MatrixSite(client, None, None, learning)  # type: ignore[arg-type]


def plain(
    name: str, step: float, momentum: float, asked: int | None, ranks: Any = (RANK,), pad: str = "zero"
) -> Matrix:
    """The product of the policy, in units of SCALE * B A, after all rounds."""
    low, high, rest, velocity = FIRST, np.zeros((5, RANK)), np.zeros((5, 6)), np.zeros((5, 6))
    moving = np.zeros_like(low), np.zeros_like(high)
    for number in range(1, ROUNDS + 1):
        chosen = draw_participants(0, number, range(CLIENTS), asked)
        base = (SCALE * rest).astype(np.float32)  # as it is sent
        ends = []
        for client in chosen:
            rank = ranks[client % len(ranks)]
            a, b = learn(client, low[:rank], high[:, :rank], base, only_high=name == "ffa")
            ends.append((np.vstack([a, np.zeros((RANK - rank, 6))]), np.hstack([b, np.zeros((5, RANK - rank))])))
        if pad == "holders":
            for row in range(RANK):
                holders = [end for end, k in zip(ends, chosen, strict=True) if row < ranks[k % len(ranks)]]
                if holders:
                    low = np.vstack([low[:row], np.mean([end[0][row] for end in holders], axis=0), low[row + 1 :]])
                    column = np.mean([end[1][:, row] for end in holders], axis=0)[:, None]
                    high = np.hstack([high[:, :row], column, high[:, row + 1 :]])
            continue
        lower, higher = (np.mean([end[factor] for end in ends], axis=0) for factor in (0, 1))
        held = max(ranks[client % len(ranks)] for client in chosen)
        if name in ("fedit", "fedex"):  # a row of A that no client has stays
            lower[held:] = low[held:]
        if name in ("fedit", "ffa"):
            moves = momentum * moving[0] + lower - low, momentum * moving[1] + higher - high
            moves[0][held:] = moving[0][held:]
            low, high = np.vstack([(low + step * moves[0])[:held], low[held:]]), high + step * moves[1]
            moving = moves
            continue
        moves = np.array([b @ a - high @ low for a, b in ends])
        if name == "ram":
            sizes = np.abs(moves)
            kept = np.array([one >= np.sort(one, axis=None)[-9] for one in sizes])  # 0.3 of 30
            target = (moves * kept).sum(0) / np.maximum(kept.sum(0), 1)
        else:
            target = moves.mean(0)
        velocity = momentum * velocity + target
        aim = high @ low + step * velocity
        if name == "flexlora":
            left, sizes, right = np.linalg.svd(aim)
            used, high = min(RANK, int((sizes > 1e-14 * sizes[0]).sum())), np.zeros((5, RANK))
            low = np.vstack([right[:used] * np.sqrt(sizes[:used])[:, None], low[used:]])
            high[:, :used] = left[:, :used] * np.sqrt(sizes[:used])
        elif name == "fedex":
            low, high = lower, higher
            rest = rest + aim - high @ low
        else:
            high = np.zeros_like(high)
            rest = rest + aim
            if name == "flora, drawn anew":
                stream = generator(derive(0, "server", number, "adapter"), LOW)
                low = stream.uniform(-(6**-0.5), 6**-0.5, low.shape)
    return rest + high @ low


METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedit": (FedIT, {}),
    "ffa": (FFALoRA, {}),
    "flexlora": (FlexLoRA, {}),
    "fedex": (FedExLoRA, {}),
    "flora": (FLoRA, {"draw": "first"}),
    "flora, drawn anew": (FLoRA, {}),
    "ram": (RAM, {"density": 0.3, "threshold": 0.0}),
}
CASES = [(name, 1.0, 0.0) for name in METHODS] + [(name, 0.7, 0.5) for name in METHODS]


@pytest.mark.by_day(2)
@pytest.mark.parametrize("asked", [None, 2])
@pytest.mark.parametrize(("name", "step", "momentum"), CASES)
def test_each_is_the_plain_loop(name: str, step: float, momentum: float, asked: int | None, tmp_path: Path) -> None:
    method, own = METHODS[name]
    settings = method.settings_class.load(
        {"local_steps": STEPS, "server_step": step, "server_momentum": momentum, **own}
    )
    for rounds in (7, ROUNDS):  # the second goes on where the first ended
        algorithm = method(settings, MatrixRuntime(method.trains))
        plan = FederationSettings(rounds=rounds, clients_per_round=asked)
        backend = SequentialBackend(algorithm, tmp_path / "states")
        state = run_rounds(algorithm, backend, ServerConfig(tmp_path, 0, plan)).commit.state
    low = state.parameters.get(LOW, FIRST)
    found = read_changes(state.memory.get("base", {})).get("layer", 0.0) + state.parameters[HIGH] @ low
    np.testing.assert_allclose(found, plain(name, step, momentum, asked), atol=1e-7)  # what is sent has float32


@pytest.mark.by_day(2)
@pytest.mark.parametrize("asked", [None, 2])
@pytest.mark.parametrize("share", ["A", "B"])
def test_fedsa_is_the_plain_loop_of_one_factor(share: str, asked: int | None, tmp_path: Path) -> None:
    settings = FedSALoRA.settings_class.load({"local_steps": STEPS, "share": share})
    for rounds in (7, ROUNDS):
        algorithm = FedSALoRA(settings, MatrixRuntime("both"))  # type: ignore[arg-type]
        backend = SequentialBackend(algorithm, tmp_path / "states")
        plan = FederationSettings(rounds=rounds, clients_per_round=asked)
        commit = run_rounds(algorithm, backend, ServerConfig(tmp_path, 0, plan)).commit
    shared, own = (FIRST, START[HIGH]) if share == "A" else (START[HIGH], FIRST)
    kept = [own] * CLIENTS
    for number in range(1, ROUNDS + 1):
        returned = []
        for client in draw_participants(0, number, range(CLIENTS), asked):
            factors = (shared, kept[client]) if share == "A" else (kept[client], shared)
            low, high = learn(client, *factors, np.zeros((5, 6)))
            kept[client] = high if share == "A" else low
            returned.append(low if share == "A" else high)
        shared = np.mean(returned, axis=0)
    name, other = (LOW, HIGH) if share == "A" else (HIGH, LOW)
    assert set(commit.state.parameters) == {name}
    np.testing.assert_allclose(commit.state.parameters[name], shared, atol=1e-9)
    for client, head in commit.heads.items():
        state = Message.decode(StateStore(tmp_path / "states").get(client, head) or b"")
        played = algorithm.client_parameters(commit.state, client, state)
        np.testing.assert_allclose(played[other], kept[client], atol=1e-9)
        assert np.array_equal(played[name], commit.state.parameters[name])


RANKED = ["fedit", "flexlora", "fedex", "flora", "ram"]
PADDED = [*((name, "zero") for name in RANKED), ("fedit", "holders")]


@pytest.mark.by_day(2)
@pytest.mark.parametrize("asked", [None, 1, 2])
@pytest.mark.parametrize(
    ("name", "pad", "step", "momentum"),
    [(*chosen, 1.0, 0.0) for chosen in PADDED] + [(name, "zero", 0.7, 0.5) for name in RANKED],
)
def test_clients_of_unlike_ranks_are_the_plain_loop(
    name: str, pad: str, step: float, momentum: float, asked: int | None, tmp_path: Path
) -> None:
    """A small learner of the client's own rank against one whose adapter is filled up with zeros, which stay zero."""
    method, own = METHODS[name]
    given = {"local_steps": STEPS, "ranks": [1, 2], "server_step": step, "server_momentum": momentum, **own}
    settings = method.settings_class.load({**given, **({"pad": pad} if pad != "zero" else {})})
    for rounds in (7, ROUNDS):
        algorithm = method(settings, MatrixRuntime("both"))
        backend = SequentialBackend(algorithm, tmp_path / "states")
        plan = ServerConfig(tmp_path, 0, FederationSettings(rounds=rounds, clients_per_round=asked))
        state = run_rounds(algorithm, backend, plan).commit.state
    found = (
        read_changes(state.memory.get("base", {})).get("layer", 0.0) + state.parameters[HIGH] @ state.parameters[LOW]
    )
    np.testing.assert_allclose(found, plain(name, step, momentum, asked, (1, 2), pad), atol=1e-7)


@pytest.mark.parametrize("name", RANKED)
def test_equal_ranks_are_the_method_without_ranks(name: str, tmp_path: Path) -> None:
    method, own = METHODS[name]
    commits = []
    for ranks in (None, [RANK]):
        settings = method.settings_class.load({"local_steps": STEPS, "ranks": ranks, **own})
        algorithm, folder = method(settings, MatrixRuntime("both")), tmp_path / str(ranks)
        backend = SequentialBackend(algorithm, folder / "states")
        commits.append(run_rounds(algorithm, backend, ServerConfig(folder, 0, FederationSettings(rounds=2))).commit)
    assert len({commit.state.digest for commit in commits}) == 1


@pytest.mark.parametrize(("name", "pad"), PADDED)
def test_an_update_is_what_a_client_of_a_small_rank_has_trained(
    name: str, pad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that it lacks are none of it: the client is not refused beside others, and nothing is put there by clipping."""
    method, own = METHODS[name]
    plain = {"local_steps": STEPS, "ranks": [2, 2, 1, 2], "pad": pad, **own}
    plain = plain if name == "fedit" else {key: value for key, value in plain.items() if key != "pad"}

    def play(folder: str, rounds: int, **changes: Any) -> Any:
        algorithm = method(method.settings_class.load({**plain, **changes}), MatrixRuntime("both"))
        backend = SequentialBackend(algorithm, tmp_path / folder / "states")
        return run_rounds(
            algorithm, backend, ServerConfig(tmp_path / folder, 0, FederationSettings(rounds=rounds))
        ).commit

    bound = 0.01
    clipped = {"clip_norm": bound, "max_ratio": None}
    if pad == "holders":
        short = play("short", 2, checks=clipped).state.parameters
        assert np.linalg.norm(short[LOW] - FIRST) < 2 * 2 * bound
    elif name in ("fedit", "fedex"):
        alone = play("alone", 1, ranks=[1], checks=clipped).state.parameters
        assert np.array_equal(alone[LOW][1:], FIRST[1:]) and not alone[HIGH][:, 1:].any()
        assert alone[LOW][0] == pytest.approx(FIRST[0], abs=bound)
    monkeypatch.setattr(sys.modules[__name__], "RATE", 1e-7)
    record = play("slow", 2).record
    assert not record["failures"] and len(record["clients"]) == CLIENTS
    assert all(numbers["update_norm"] < 1e-4 for numbers in record["clients"].values())
