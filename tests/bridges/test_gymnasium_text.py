"""An environment of gymnasium as a world: the same steps as the environment itself, and every promise of a world."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import pytest

import fedagentgym
from fedagentgym.agents.presets import make_agent
from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import stream
from fedagentgym.bridges.gymnasium_text import GymnasiumTextEnv
from fedagentgym.envs import open_env
from fedagentgym.envs.core import SUCCESS_REWARD
from fedagentgym.learning import collect
from fedagentgym.testing import check_env


@pytest.fixture(scope="module")
def lake(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gymnasium_text_example", root / "examples" / "gymnasium_text.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[module.__name__] = module  # so that episodes of its class can be pickled
    spec.loader.exec_module(module)
    return module


def test_it_keeps_every_promise(lake: ModuleType) -> None:
    check_env(lake.LakeEnv.id)


def test_the_expert_crosses_both_lakes(lake: ModuleType) -> None:
    env = open_env(lake.LakeEnv.id, split="val")
    played = collect(make_agent("expert"), env, env.pool.ids[:10])
    assert all(trajectory.success and trajectory.score == 1.0 for trajectory in played.trajectories)


class SlipperyEnv(GymnasiumTextEnv):
    """The environment's own chance decides too: it must be the same after a replay."""

    id = "tests/Slippery-v0"
    gymnasium_id = "FrozenLake-v1"
    categories: ClassVar[Mapping[str, Mapping[str, Any]]] = {"4": {"map_name": "4x4"}, "8": {"map_name": "8x8"}}
    role = "You slip."
    action_help = "0, 1, 2, 3."

    def render_observation(self, observation: Any, env: Any, info: Mapping[str, Any]) -> str:
        return str(observation)

    def parse_action(self, text: str, env: Any) -> int | None:
        return int(text) if text in ("0", "1", "2", "3") else None

    def expert(self) -> Any:
        return self

    def act(self, episode: Any) -> str:
        return "1"


fedagentgym.register_env(SlipperyEnv.id, SlipperyEnv, replace=True)


def test_any_order_of_steps_is_what_the_environment_itself_does() -> None:
    env = open_env(SlipperyEnv.id)
    draw = stream(5, "order")
    tasks = [env.pool[place] for place in (0, 1, 1, 2, 3)]
    theirs = [gymnasium.make("FrozenLake-v1", **SlipperyEnv.categories[task.category]) for task in tasks]
    starts = [str(other.reset(seed=task.payload)[0]) for other, task in zip(theirs, tasks, strict=True)]
    rows = env.reset_many(tasks, [0] * len(tasks))
    assert [row.view.observation for row in rows] == starts
    past = [list(rows)]
    for _ in range(300):
        row = draw.integers(len(tasks))
        if rows[row].over:
            continue
        action = str(draw.integers(4))
        observation, reward, terminated, _, _ = theirs[row].step(int(action))
        if draw.uniform() < 0.2:  # a step elsewhere, from a moment long past, and a copy in another process
            old = past[draw.integers(len(past))][row]
            env.step_many([pickle.loads(pickle.dumps(old))], ["2"])
        (rows[row],) = env.step_many([rows[row]], [action])
        assert (rows[row].view.observation, rows[row].reward, rows[row].terminated) == (
            str(observation),
            reward,
            terminated,
        )
        past.append(list(rows))
    again = pickle.loads(pickle.dumps(env))
    moved = [episode for episode in past[-1] if not episode.over]
    both = [each.step_many(moved, ["1"] * len(moved)) for each in (env, again)]
    assert [episode.view for episode in both[0]] == [episode.view for episode in both[1]]
    env.close()


def test_episodes_with_the_same_history_leave_no_environment_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made, closed = list[Any](), list[Any]()
    make = gymnasium.make

    def note(*args: Any, **options: Any) -> Any:
        env = make(*args, **options)
        made.append(env)
        monkeypatch.setattr(env, "close", lambda: closed.append(env))
        return env

    monkeypatch.setattr(gymnasium, "make", note)
    env = open_env(SlipperyEnv.id)
    task = env.pool[0]
    for _ in range(2):
        rows = env.reset_many([task] * 6, [0] * 6)
        rows = env.step_many(rows, ["1"] * 6)
        assert all(row.view == rows[0].view for row in rows)
    assert len(made) <= 6, "an environment whose place another takes is used again"
    env.close()
    assert len(closed) == len(made) == len({id(each) for each in closed})


class WordlessEnv(SlipperyEnv):
    id = "tests/Wordless-v0"
    render_observation = GymnasiumTextEnv.render_observation


def test_an_environment_without_texts_is_refused_with_what_to_write() -> None:
    fedagentgym.register_env(WordlessEnv.id, WordlessEnv, replace=True)
    with pytest.raises(OptionError, match="write render_observation"):
        open_env(WordlessEnv.id).reset(seed=0)


class CartEnv(GymnasiumTextEnv):
    """A task of survival: whoever keeps the pole up is stopped by the turn limit."""

    id = "tests/Cart-v0"
    gymnasium_id = "CartPole-v1"
    success_return = 10.0
    role = "Balance."
    action_help = "left or right"

    def render_observation(self, observation: Any, env: Any, info: Mapping[str, Any]) -> str:
        return " ".join(f"{value:.3f}" for value in observation)

    def parse_action(self, text: str, env: Any) -> int | None:
        return {"left": 0, "right": 1}.get(text)


@pytest.mark.parametrize(("turns", "solved"), [(8, False), (10, True), (12, True)])
@pytest.mark.parametrize("reward", ["score", "success10"])
@pytest.mark.parametrize("last", ["left", "what"], ids=["understood", "not understood"])
def test_a_return_that_is_reached_is_success_also_at_the_turn_limit(
    turns: int, solved: bool, reward: str, last: str
) -> None:
    env = open_env(CartEnv, max_turns=turns, reward=reward)
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    paid = []
    while not episode.over:
        move = last if episode.turn == turns - 1 else "left" if episode.turn % 2 else "right"
        (episode,) = env.step_many([episode], [move])
        paid.append(episode.reward)
        assert not episode.view.success or episode.over, "the return is checked at the end"
    reached = turns - (last == "what")
    assert episode.turn == turns and episode.view.success is (solved and reached >= 10)
    assert episode.view.rewards == {"accuracy/return": min(1.0, reached / 10)}
    assert sum(paid) == pytest.approx(reached if reward == "score" else SUCCESS_REWARD * episode.view.success)


def test_a_task_of_survival_keeps_every_promise() -> None:
    class ShortEnv(CartEnv):
        """A pole that must be kept up for eight turns."""

        id = "tests/ShortCart-v0"
        default_max_turns = 8
        success_return = 8.0

    fedagentgym.register_env(ShortEnv.id, ShortEnv, replace=True)
    check_env(ShortEnv.id)
