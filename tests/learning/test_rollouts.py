"""Lockstep play with a toy agent whose moves depend on its stream and its episode only."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

import numpy as np
import pytest

from fedagentgym.agents.protocols import Move
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import Stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.view import Episode
from fedagentgym.learning.export import format_episode
from fedagentgym.learning.rollouts import Rollouts, RolloutStats, check_tokens, collect
from fedagentgym.learning.state import mean_metrics
from fedagentgym.learning.trajectory import from_plain, to_plain
from tests.learning.conftest import random_trajectory


class Guesser:
    """Guesses at random; remembers how many rows were busy at once, and which numbers they had."""

    name = "guesser"

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.busy: list[int] = []
        self.entered = 0
        self.closed = False

    def play(self, env: TextEnv) -> Guesser:
        self.streams: dict[int, Stream] = {}
        return self

    def enter(self, episodes: Sequence[Episode], streams: Sequence[Stream]) -> list[int]:
        assert all(episode.turn == 0 for episode in episodes)
        free = [row for row in range(1000) if row not in self.streams][: len(episodes)]
        self.streams.update(zip(free, streams, strict=True))
        self.entered += len(episodes)
        return free

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        self.busy.append(len(rows))
        return [self._move(self.streams[row], episode) for row, episode in zip(rows, episodes, strict=True)]

    def _move(self, stream: Stream, episode: Episode) -> Move:
        if episode.turn >= self.room:
            return Move("", "", finish="context")
        assert episode.view.admissible is not None
        number = stream.integers(len(episode.view.admissible)) + 1
        return Move(
            f"<action>guess {number}</action>",
            f"guess {number}",
            format=number != 3,
            context_ids=(1,),
            token_ids=(5, number),
            logprobs=(-0.5, -1.0),
            fresh=episode.turn == 0,
        )

    def leave(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self.streams[row]

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Guesser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@pytest.fixture(scope="module")
def env() -> GuessEnv:
    return open_env(GuessEnv)


@pytest.mark.parametrize("parallel", [1, 5, 64])
def test_the_episodes_do_not_depend_on_the_number_of_rows(env: GuessEnv, parallel: int) -> None:
    tasks = list(env.pool.ids[:6])
    reference = collect(Guesser(), env, tasks, group_size=4, seed=3, parallel=24)
    other = collect(Guesser(), env, tasks, group_size=4, seed=3, parallel=parallel)
    assert [format_episode(t) for t in other.trajectories] == [format_episode(t) for t in reference.trajectories]
    assert [[t.task for t in group] for group in other.groups] == [[task] * 4 for task in tasks]


def test_episodes_can_be_sent_to_another_process(env: GuessEnv) -> None:
    """As rank 0 of a sharded run sends them to the others."""
    played = collect(Guesser(), env, env.pool.ids[:3], group_size=2, seed=5)
    found = pickle.loads(pickle.dumps(played))
    assert [[one.turns for one in group] for group in found.groups] == [
        [one.turns for one in group] for group in played.groups
    ]
    assert found.stats == played.stats and found.program == {}


def test_copies_share_the_start_and_differ_in_what_the_agent_draws(env: GuessEnv) -> None:
    ids = [env.pool.ids[1], env.pool.ids[1]]
    first, again = collect(Guesser(), env, ids, group_size=8, seed=0).groups
    assert len({t.seed for t in first}) == 1 and first[0].seed != again[0].seed
    assert len({t.actions for t in first}) > 1
    assert [t.sample for t in first] == list(range(8))


def test_a_finished_row_is_reused_at_once(env: GuessEnv) -> None:
    agent = Guesser()
    rollouts = collect(agent, env, list(env.pool.ids[:10]), group_size=4, parallel=8)
    turns = sum(len(t.turns) for t in rollouts.trajectories)
    assert agent.entered == 40 and agent.closed and sum(agent.busy) == turns == rollouts.stats.steps
    full = agent.busy.index(min(agent.busy, key=lambda busy: busy == 8))
    assert all(busy == 8 for busy in agent.busy[:full]) and agent.busy[full:] == sorted(agent.busy[full:], reverse=True)


def test_turns_say_what_happened(env: GuessEnv) -> None:
    trajectory = collect(Guesser(), env, ["guess/train/00001"], seed=1).trajectories[0]
    (segment,) = trajectory.segments
    assert segment.prompt_ids.tolist() == [1]
    assert segment.mask.tolist() == ([True, True, False] * len(trajectory.turns))[:-1]
    assert trajectory.tokens == 2 * len(trajectory.turns) == int(segment.mask.sum())
    assert all(turn.format == (turn.action != "guess 3") for turn in trajectory.turns)
    assert trajectory.success == (trajectory.reward == 1.0) == (trajectory.turns[-1].rewards == {"accuracy/guess": 1.0})
    assert trajectory.terminated == trajectory.success and trajectory.truncated != trajectory.terminated


def test_a_full_context_ends_the_episode_truncated_and_unstepped(env: GuessEnv) -> None:
    rollouts = collect(Guesser(room=2), env, [env.pool.ids[1]] * 6, seed=2)
    cut = [t for t in rollouts.trajectories if not t.success]
    assert cut and all(len(t.turns) == 2 and t.truncated and not t.terminated for t in cut)
    silent = collect(Guesser(room=0), env, [env.pool.ids[1]]).trajectories[0]
    assert silent.turns == () and silent.segments == () and silent.truncated


def test_metrics_are_means_over_episodes(env: GuessEnv) -> None:
    rollouts = collect(Guesser(), env, list(env.pool.ids[:8]), group_size=2)
    metrics, episodes = rollouts.compute_metrics(), rollouts.trajectories
    assert metrics["episodes"] == 16
    assert metrics["success"] == sum(t.success for t in episodes) / 16
    assert metrics["turns"] == sum(len(t.turns) for t in episodes) / 16
    assert 0 <= rollouts.stats.env_share <= 1


def test_a_step_whose_episodes_were_all_lost_has_no_means_which_the_other_steps_decide() -> None:
    lost = Rollouts((), RolloutStats(steps=3), program={"lost": 2.0})
    found = lost.compute_metrics()
    assert found["episodes"] == 0 and found["program/lost"] == 2 and not {"reward", "success", "tokens"} & found.keys()
    assert mean_metrics([found, {"reward": 0.5, "episodes": 2.0}])["reward"] == 0.5


def test_no_tasks_no_episodes(env: GuessEnv) -> None:
    assert collect(Guesser(), env, []).groups == ()
    with pytest.raises(OptionError, match="at least 1"):
        collect(Guesser(), env, ["guess/train/00001"], group_size=0)


@pytest.mark.parametrize("tokens", [1, 5 * 10**9, 2**63])
def test_an_answer_cannot_claim_tokens_that_it_does_not_hold(tokens: int) -> None:
    """A learner makes arrays of as many numbers as an answer of another client claims tokens."""
    honest = random_trajectory(np.random.default_rng(0))
    check_tokens([(from_plain(to_plain(honest)),)], vocabulary=1 << 31, context=1 << 10)
    turns = tuple(turn._replace(tokens=tokens) for turn in honest.turns)
    with pytest.raises(DataError, match="tokens"):
        check_tokens([(from_plain(to_plain(replace(honest, turns=turns, segments=()))),)], 1 << 31, 1 << 10)
    with pytest.raises(DataError, match="tokens"):
        from_plain(to_plain(replace(honest, turns=turns)))
