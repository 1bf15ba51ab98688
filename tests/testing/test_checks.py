"""The checks of what people write themselves: what is broken is named in one sentence. That ours pass is tested by
`tests/foundations/test_registries.py`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from fedagentgym.agents import AGENTS
from fedagentgym.agents.players.scripted import ScriptedAgent, ScriptedPlayers
from fedagentgym.agents.protocols import Move
from fedagentgym.agents.text.prompts import TEMPLATES, Template
from fedagentgym.algorithms import ALGORITHMS, Averaging, AveragingSettings
from fedagentgym.algorithms.base import get_algorithm_class
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.view import View
from fedagentgym.federation.aggregation import AGGREGATION_RULES, AggregationRule
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.backends import BACKENDS
from fedagentgym.federation.backends.in_process import open_backend
from fedagentgym.federation.exchange import Reply, Request
from fedagentgym.learning.advantages import ADVANTAGES, OBJECTIVES, AdvantageEstimator
from fedagentgym.learning.losses import LOSSES, Clip, PolicyLoss, PolicyTerms, Tokens
from fedagentgym.learning.trajectory import Group, PerTurn
from fedagentgym.testing import (
    check_advantage,
    check_agent,
    check_aggregation,
    check_algorithm,
    check_backend,
    check_loss,
    check_objective,
    check_template,
    check_tracker,
)


@pytest.fixture(autouse=True)
def registries_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ADVANTAGES, AGENTS, AGGREGATION_RULES, ALGORITHMS, BACKENDS, LOSSES, OBJECTIVES, TEMPLATES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


def test_an_agent_with_a_model_passes() -> None:
    check_agent("untrained-tiny")


@pytest.mark.parametrize("workers", [0, 1])
def test_our_backend_passes(workers: int) -> None:
    check_backend("in-process", workers=workers)


class Short(AdvantageEstimator):
    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return rewards[1:]


class Unfinished(AdvantageEstimator):
    """Forgets `estimate`."""


class Infinite(AdvantageEstimator):
    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return tuple(part / 0.0 for part in rewards)


class Changing(AdvantageEstimator):
    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        for part in rewards:
            part -= 1.0
        return rewards


class Random(AdvantageEstimator):
    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return tuple(np.random.default_rng().normal(size=len(part)) for part in rewards)


class Global(AdvantageEstimator):
    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        random.random()
        return rewards


class FirstIsBest(AdvantageEstimator):
    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return tuple(np.full(len(part), float(place)) for place, part in enumerate(rewards))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("target", "told"),
    [
        (len, "is not a class derived from"),
        (Short, "gives 7 advantages to a group of 8 episodes"),
        (Unfinished, "does not define estimate"),
        (Infinite, "not a finite number"),
        (Changing, "changes the rewards"),
        (Random, "other advantages each time"),
        (Global, "draws from a global generator"),
        (FirstIsBest, "depends on the order"),
    ],
)
def test_a_broken_advantage_estimator_is_told_what_is_wrong(target: Any, told: str) -> None:
    ADVANTAGES.register("mine", target)
    with pytest.raises(AssertionError, match=told):
        check_advantage("mine")


def test_an_unknown_setting_of_an_estimator_is_told() -> None:
    with pytest.raises(AssertionError, match=r"unknown key 'learning\.advantage\.omega'"):
        check_advantage("grpo", omega=1.0)


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        (lambda group: [1.0], "gives 1 values to a group of 8 episodes"),
        (lambda group: [float("inf")] * len(group), "not a finite number"),
        (lambda group: list(np.random.default_rng().normal(size=len(group))), "other values each time"),
        (lambda group: [random.random() * 0.0] * len(group), "draws from a global generator"),
        (lambda group: list(range(len(group))), "depends on the order"),
    ],
)
def test_a_broken_objective_is_told_what_is_wrong(objective: Callable[[Group], list[float]], told: str) -> None:
    OBJECTIVES.register("mine", objective)
    with pytest.raises(AssertionError, match=told):
        check_objective("mine")


class Unbounded(PolicyLoss):
    """The plain importance-weighted loss, or the same with the inverse ratio: infinite for a probability that changed much."""

    name: Literal["unbounded"] = "unbounded"
    inverse: bool = False

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        ratio = (tokens.logprobs - tokens.behaviour).exp()
        return PolicyTerms((1 / ratio if self.inverse else -ratio) * tokens.advantages, ratio)


@pytest.mark.parametrize("inverse", [False, True])
def test_a_loss_that_grows_without_bound_is_told(inverse: bool) -> None:
    LOSSES.register("unbounded", Unbounded)
    with pytest.raises(AssertionError, match="unbounded gives a loss that is not finite"):
        check_loss("unbounded", inverse=inverse)


def test_an_objective_cannot_have_the_name_of_a_reward() -> None:
    with pytest.raises(AssertionError, match="choose another name"):
        check_objective("score")


class Guessing(ScriptedPlayers):
    """Players whose moves a test changes."""

    def __init__(self, env: TextEnv, change: Callable[[list[Any]], list[Any]]) -> None:
        super().__init__(env, expert=False, noise=0.0)
        self.change = change

    def act(self, rows: Sequence[int], episodes: Sequence[Any]) -> list[Move]:
        return self.change(super().act(rows, episodes))


class GuessingAgent(ScriptedAgent):
    def __init__(self, change: Callable[[list[Any]], list[Any]]) -> None:
        super().__init__("guessing", expert=False)
        self.change = change

    def play(self, env: TextEnv) -> Guessing:
        return Guessing(env, self.change)


def in_company(moves: list[Move]) -> list[Move]:
    return moves if len(moves) == 1 else [Move(f"guess {len(moves)}", f"guess {len(moves)}") for _ in moves]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda moves: moves[1:], "act gives 2 moves for 3 rows"),
        (lambda moves: [move.action for move in moves], "a str in place of a Move"),
        (lambda moves: [move._replace(action=3) for move in moves], "no string"),
        (
            lambda moves: [move._replace(token_ids=(1, 2), logprobs=(0.0,)) for move in moves],
            "2 tokens and 1 log-probs",
        ),
        (lambda moves: [move._replace(token_ids=(1, 2)) for move in moves], "2 tokens and 0 log-probs"),
        (lambda moves: [move._replace(logprobs=(0.0,)) for move in moves], "0 tokens and 1 log-probs"),
        (
            lambda moves: [move._replace(token_ids=(1,), logprobs=(0.0,), allowed=((1,), (2,))) for move in moves],
            "1 tokens, and the tokens that were allowed at 2 places",
        ),
        (
            lambda moves: [Move("", f"guess {np.random.default_rng().integers(1 << 60)}") for _ in moves],
            "other moves with the same random streams",
        ),
        (lambda moves: [Move("", f"guess {random.random()}") for _ in moves], "draws from a global generator"),
        (in_company, "when others are played in parallel"),
    ],
)
def test_a_broken_agent_is_told_what_is_wrong(change: Callable[[list[Any]], list[Any]], told: str) -> None:
    AGENTS.register("guessing", lambda settings, env=None, seed=0: GuessingAgent(change))
    with pytest.raises(AssertionError, match=told):
        check_agent("guessing")


class Silent(Template):
    def render_first(self, env: TextEnv, view: View) -> str:
        return None  # type: ignore[return-value]


class Tongueless(Template):
    def render_reply(self, env: TextEnv, action: str) -> str:
        return None  # type: ignore[return-value]


class Hiding(Template):
    def render_first(self, env: TextEnv, view: View) -> str:
        return "Guess."


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (Silent, "'mine' renders a NoneType, no string"),
        (Tongueless, "'mine' renders a NoneType, no string"),
        (Hiding, "'mine' hides the observation of turn 0"),
    ],
)
def test_a_broken_template_is_told_what_is_wrong(template: type[Template], told: str) -> None:
    TEMPLATES.register("mine", template)
    with pytest.raises(AssertionError, match=told):
        check_template("mine")


@pytest.mark.parametrize("check", [check_template, check_tracker, check_algorithm])
def test_an_unknown_name_fails_a_check(check: Callable[[str], object]) -> None:
    with pytest.raises(AssertionError, match=r"unknown .* 'nobody'"):
        check("nobody")


class Relaying:
    """A backend in front of the sequential one, whose requests and replies a test changes."""

    def __init__(self, ask: Callable[[Request], Request], tell: Callable[[list[Reply]], list[Reply]], **options: Any):
        self.backend, self.ask, self.tell = open_backend(**options), ask, tell

    def run(self, requests: Sequence[Request], deadline: float | None) -> Iterable[Reply]:
        return self.tell(list(self.backend.run([self.ask(request) for request in requests], deadline)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def same(thing: Any) -> Any:
    return thing


def without_failures(replies: list[Reply]) -> list[Reply]:
    return [replace(reply, status="ok") for reply in replies]


@pytest.mark.parametrize(
    ("ask", "tell", "told"),
    [
        (same, lambda replies: replies[::-1], r"answers for clients \[5, 2, 1\], asked were \[1, 2, 5\]"),
        (lambda request: replace(request, seed=8), same, "the first call of a client gives other bytes"),
        (lambda request: replace(request, base=None), same, "a call that starts from the state of another gives other"),
        (same, without_failures, "a client that is to raise is 'ok' instead of 'error'"),
        (
            same,
            lambda replies: [replace(reply, status="dead") for reply in replies],
            "the first call of a client fails",
        ),
    ],
)
def test_a_broken_backend_is_told_what_is_wrong(ask: Any, tell: Any, told: str) -> None:
    def open_relaying(recipe: Any, **options: Any) -> Relaying:
        options.pop("device_per_worker")
        return Relaying(ask, tell, recipe=recipe, **options)

    BACKENDS.register("relaying", open_relaying)
    with pytest.raises(AssertionError, match=told):
        check_backend("relaying")


class _Step:
    """The first client's parameters, after something was done to them."""

    def __init__(self, state: ServerState, change: Callable[[ServerState, Any], ServerState]) -> None:
        self._state, self._change = state, change
        self._updates: list[Any] = []

    def add(self, update: Any, weight: float) -> None:
        self._updates.append(update)

    def finish(self) -> ServerState:
        return self._change(self._state, self._updates[0])


def make_rule(change: Callable[[ServerState, Any], ServerState]) -> type[AggregationRule]:
    class Rule(AggregationRule):
        def begin(self, state: ServerState) -> Any:
            return _Step(state, change)

    return Rule


def spoil(state: ServerState, update: Any) -> ServerState:
    update["weight"][0] = 1.0
    return replace(state, parameters=update)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state, update: replace(state, parameters={"bias": update["bias"]}), "loses the parameter"),
        (lambda state, update: replace(state, parameters={k: v.astype("f8") for k, v in update.items()}), "as float64"),
        (lambda state, update: replace(state, parameters={k: v.ravel() for k, v in update.items()}), "the shape"),
        (lambda state, update: replace(state, parameters={k: v * np.nan for k, v in update.items()}), "not finite"),
        (lambda state, update: ServerState(update), "state.memory"),
        (lambda state, update: update, "in place of a ServerState"),
        (
            lambda state, update: replace(
                state, parameters={k: v + np.float32(np.random.normal()) for k, v in update.items()}
            ),
            "another state|global generator",
        ),
        (spoil, "changes the parameters"),
    ],
)
def test_a_broken_aggregation_rule_is_told_what_is_wrong(change: Any, says: str) -> None:
    AGGREGATION_RULES.register("mine", make_rule(change))
    with pytest.raises(AssertionError, match=says):
        check_aggregation("mine")


class Nameless(Settings):
    pass


class Foreign(AveragingSettings):
    name: Literal["other"] = "other"


class Free(AveragingSettings):
    name: str = "mine"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (None, "has no class of settings"),
        (dict, "has no class of settings"),
        (Nameless, "Nameless, have no name; write name: Literal"),
        (Foreign, "Foreign, have the names 'other'; write name: Literal"),
        (Free, ""),
    ],
)
def test_a_method_without_settings_of_its_name_is_told_what_is_missing(settings: Any, told: str) -> None:
    made = type("Mine", (Averaging,), {"settings_class": settings} if settings else {})
    ALGORITHMS.register("mine", made, replace=True)
    with pytest.raises(OptionError, match=told) if told else contextlib.nullcontext():
        get_algorithm_class({"name": "mine"})
