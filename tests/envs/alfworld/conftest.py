"""For the tests of generated houses: their pools, and playing a task to its end in the native engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from fedagentgym.base.streams import stream
from fedagentgym.envs.alfworld import engine
from fedagentgym.envs.alfworld.expert import HouseholdExpert
from fedagentgym.envs.alfworld.game import Game
from fedagentgym.envs.alfworld.houses import make_house_pool
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.view import Episode, View

ENV = "fedagentgym/ALFWorld-v0"


@cache
def _pool(size: str, split: str = "train") -> TaskPool:
    return make_house_pool(split, env=ENV, size=size)


def _turns_to_win(game: Game, limit: int, noise: float = 0.0) -> int | None:
    """After how many turns the expert wins, or None; with noise, some of its commands are replaced by random ones."""
    task = Task("alfworld/train/00000", ENV, "train", game.category, game)
    outcome, expert, draws = engine.start(game), HouseholdExpert(), stream(0, "noise", game.task, game.scene)
    for turn in range(limit):
        offered = engine.list_admissible_commands(game, outcome.state)
        command = expert.act(Episode(task, 0, turn, None, View(outcome.feedback, offered)))
        assert command in offered, (command, game.task)
        if draws.uniform() < noise:
            command = draws.pick(offered)
        outcome = engine.step(game, outcome.state, command)
        if outcome.state.won:
            return turn + 1
    return None


@pytest.fixture(scope="session")
def pool() -> Callable[..., TaskPool]:
    """`pool(size, split="train")`: a pool of generated houses."""
    return _pool


@pytest.fixture(scope="session")
def turns_to_win() -> Callable[..., int | None]:
    """`turns_to_win(game, limit, noise=0.0)`: the expert plays a game in the native engine."""
    return _turns_to_win
