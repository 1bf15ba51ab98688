"""Rollouts of thousands of episodes in lockstep: `collect` keeps a fixed number of rows busy until all episodes are played.

Every turn queries the agent for one move per row and steps all environments at once; a row whose episode is over gets the next
episode before the following turn. The environment's seed and the agent's random stream of an episode depend only on its number
(task and copy), not on its row: the same seed gives the same episodes for any number of rows, up to the agent's arithmetic (see
`agents/protocols.py` on floating point).

`regrade` grades another party's episodes by replaying their actions, as a server does with answers from clients. The tokens are
kept; rewards, scores and the end of an episode are those of the environment that replays it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Job
from fedagentgym.base.devices import here
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.imports import missing_explained
from fedagentgym.base.process import report_episodes
from fedagentgym.base.progress import Progress
from fedagentgym.base.rounding import count_things
from fedagentgym.base.statistics import mean
from fedagentgym.base.streams import derive, stream
from fedagentgym.base.together import own_time
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.learning.trajectory import Group, Trajectory, Turn, make_segments, number_segments

if TYPE_CHECKING:
    from fedagentgym.agents.protocols import Move, PlayedEpisode, Player
    from fedagentgym.agents.settings import AgentSettings
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.tasks import Task
    from fedagentgym.envs.view import Episode


@dataclass(slots=True)
class RolloutStats:
    """The environment steps and tokens that were played, and the seconds that the agent and the environment took."""

    steps: int = 0
    tokens: int = 0
    agent_seconds: float = 0.0
    env_seconds: float = 0.0

    @property
    def env_share(self) -> float:
        total = self.agent_seconds + self.env_seconds
        return self.env_seconds / total if total else 0.0


_NO_COUNTS: Mapping[str, float] = {}


class Mismatch(NamedTuple):
    """Absolute differences between the log-probs recorded in rollouts and those recomputed for training: their mean, and the
    number that 99.9 % of them do not exceed."""

    mean: float
    most: float


class Rollouts(NamedTuple):
    """The episodes, grouped by drawn task in the given order, and their statistics. If their tokens were scored again, `mismatch`
    compares both scores. If a harness played them, `program` counts its calls and their outcomes."""

    groups: tuple[Group, ...]
    stats: RolloutStats
    mismatch: Mismatch | None = None
    program: Mapping[str, float] = _NO_COUNTS

    def __repr__(self) -> str:
        tasks, episodes = count_things(len(self.groups), "task"), count_things(len(self.trajectories), "episode")
        return f"Rollouts({tasks}, {episodes})"

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group]

    def compute_metrics(self) -> dict[str, float]:
        """Means over the episodes, and the seconds of the rollout. If a harness has lost all episodes, there are no means."""
        episodes = self.trajectories
        turns = [turn for trajectory in episodes for turn in trajectory.turns]
        means = {
            "success": mean([float(trajectory.success) for trajectory in episodes]),
            "score": mean([trajectory.score for trajectory in episodes]),
            "reward": mean([trajectory.reward for trajectory in episodes]),
            "turns": mean([float(len(trajectory.turns)) for trajectory in episodes]),
            "tokens": mean([float(trajectory.tokens) for trajectory in episodes]),
            "invalid": mean([float(not turn.valid) for turn in turns]),
            "format/broken": mean([float(not turn.format) for turn in turns]),
        }
        counts = {"episodes": float(len(episodes)), "env_steps": float(self.stats.steps)}
        means = means | counts if episodes else counts
        seconds = {"seconds/agent": self.stats.agent_seconds, "seconds/env": self.stats.env_seconds}
        reported = {f"program/{name}": value for name, value in self.program.items()}
        if self.mismatch is None:
            return means | seconds | reported
        return means | seconds | reported | {"mismatch": self.mismatch.mean, "mismatch/most": self.mismatch.most}


@dataclass(slots=True)
class _ActiveEpisode:
    """An episode that is being played, with its moves and turns so far."""

    job: Job
    episode: Episode
    moves: list[Move] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    out_of_room: bool = False


@missing_explained()
def collect(
    agent: Player | AgentSettings | Mapping[str, Any] | str,
    env: EnvLike,
    tasks: Sequence[str | Task],
    *,
    group_size: int = 1,
    seed: int = 0,
    parallel: int = 64,
    progress: Progress | None = None,
    first: int = 0,
    drop_lost: bool = False,
) -> Rollouts:
    """Play groups of episodes in parallel.

    The episodes of a group have the same task and start, and differ in the agent's draws. An episode depends on the seed and
    its place in the list alone, not on `parallel`.

    Args:
        agent: An instance of a class derived from `Agent`, any other `Player`, or the name or the settings of one.
        env: The environment, or its name.
        tasks: Tasks of the environment, or their ids; a task may occur several times.
        group_size: Episodes of each task.
        seed: Seed of the episodes and of the agent's draws.
        parallel: Episodes that are played at the same time.
        progress: The progress bar, which advances with each finished episode.
        first: Number of the first task, if `tasks` is a part of a longer list; its episodes then equal those of the full list.
        drop_lost: Whether episodes that a harness lost (`agent.harness`) are left out, as for learning; otherwise they count with
            the rewards that they earned, as for an evaluation.

    Returns:
        `Rollouts`: `groups`, a tuple of `Trajectory` for each task in the given order; `trajectories`, the same in one list;
        `stats`, how much was played and how long it took.

    Raises:
        OptionError: If `group_size` or `parallel` is less than 1.
        UnknownNameError: If the environment has no such task.

    Examples:
        >>> from fedagentgym.agents import make_agent
        >>> from fedagentgym.envs import open_env
        >>> env = open_env("fedagentgym/Guess-v0")
        >>> [len(group) for group in collect(make_agent("random"), env, env.pool.ids[:2], group_size=3).groups]
        [3, 3]
    """
    if group_size < 1 or parallel < 1:
        raise OptionError(f"group_size and parallel must be at least 1, got {group_size} and {parallel}")
    world = open_env(env)
    player = make_agent(agent, world)
    found = (world.pool[task] if isinstance(task, str) else task for task in tasks)
    jobs = (
        Job(place * group_size + sample, task, derive(seed, "episode", place), sample)
        for place, task in enumerate(found, start=first)
        for sample in range(group_size)
    )
    if isinstance(player, TokenAgent) and player.harness is not None:
        return _play_by_program(player, world, list(jobs), seed, progress, drop_lost)
    if getattr(world, "is_reported", False):
        raise OptionError(f"{world.id} is played only by harnesses: set agent.harness with world: own")
    return here().share(
        lambda: _play(player, world, jobs, group_size, seed, parallel, progress), getattr(player, "policy", None)
    )


def _play(
    agent: Player,
    env: TextEnv,
    waiting: Iterator[Job],
    group_size: int,
    seed: int,
    parallel: int,
    progress: Progress | None,
) -> Rollouts:
    finished: dict[int, Trajectory] = {}
    stats = RolloutStats()
    rows: dict[int, _ActiveEpisode] = {}
    with agent.play(env) as players:
        while True:
            clock = own_time()
            fresh = [job for _, job in zip(range(parallel - len(rows)), waiting, strict=False)]
            episodes = env.reset_many([job.task for job in fresh], [job.seed for job in fresh])
            stats.env_seconds += own_time() - clock
            clock = own_time()
            if fresh:
                streams = [stream(seed, "sample", job.number) for job in fresh]
                entered = players.enter(episodes, streams)
                for row, job, episode in zip(entered, fresh, episodes, strict=True):
                    rows[row] = _ActiveEpisode(job, episode)
            if not rows:
                break
            order = sorted(rows)
            moves = players.act(order, [rows[row].episode for row in order])
            stats.agent_seconds += own_time() - clock
            clock = own_time()
            _step_active(env, [rows[row] for row in order], moves, stats)
            stats.env_seconds += own_time() - clock
            over = [row for row in order if rows[row].episode.over or rows[row].out_of_room]
            players.leave(over)
            report_episodes(len(over))
            for row in over:
                played = rows.pop(row)
                finished[played.job.number] = _make_trajectory(played)
                if progress is not None:
                    progress.advance()
    ordered = [finished[number] for number in sorted(finished)]
    starts = range(0, len(ordered), group_size)
    return Rollouts(tuple(tuple(ordered[start : start + group_size]) for start in starts), stats)


def _step_active(env: TextEnv, playing: Sequence[_ActiveEpisode], moves: Sequence[Move], stats: RolloutStats) -> None:
    """Step every row with a reply; a row whose context is full ends here."""
    acting = []
    for row, move in zip(playing, moves, strict=True):
        if move.finish == "context":
            row.out_of_room = True
        else:
            acting.append((row, move))
    episodes = env.step_many([row.episode for row, _ in acting], [move.action for _, move in acting])
    stats.steps += len(acting)
    for (row, move), after in zip(acting, episodes, strict=True):
        row.moves.append(move)
        row.turns.append(_make_turn(env, row.episode, move, (move.action,), (after,)))
        row.episode = after
        stats.tokens += len(move.token_ids)


def _make_turn(env: TextEnv, before: Episode, move: Move, acts: tuple[str, ...], after: Sequence[Episode]) -> Turn:
    """The turn that consists of a reply and its actions; `after` is the episode after each action."""
    views = [one.view for one in after]
    return Turn(
        observation=before.view.observation,
        reply=move.reply,
        acts=acts,
        reward=sum(float(one.reward) for one in after),
        valid=all(view.valid for view in views),
        format=move.format,
        rewards={name: sum(float(view.rewards.get(name, 0.0)) for view in views) for name in env.reward_names},
        score=float((views[-1] if views else before.view).score),
        tokens=len(move.token_ids),
        learn=move.learn,
        admissible=before.view.admissible or (),
    )


def _make_trajectory(played: _ActiveEpisode, numbers: Sequence[int] | None = None) -> Trajectory:
    """The record of an episode; `numbers` is the segment of each turn, if the turns of a segment need not be consecutive."""
    episode, view = played.episode, played.episode.view
    numbers = number_segments(played.moves) if numbers is None else numbers
    return Trajectory(
        task=episode.task.id,
        seed=episode.seed,
        turns=tuple(turn._replace(segment=number) for turn, number in zip(played.turns, numbers, strict=True)),
        segments=make_segments(played.moves, numbers),
        category=episode.task.category,
        sample=played.job.sample,
        score=float(view.score),
        success=bool(view.success),
        terminated=episode.terminated,
        truncated=episode.truncated or played.out_of_room,
        last=view.observation,
    )


def _play_by_program(
    agent: TokenAgent, env: TextEnv, jobs: Sequence[Job], seed: int, progress: Progress | None, drop_lost: bool
) -> Rollouts:
    """Let the agent's harness play. With `drop_lost`, lost episodes are left out, and then groups with only one episode left; if
    fewer than half of all episodes are left, none is kept."""
    assert agent.harness is not None
    by_number, stats, clock = {job.number: job for job in jobs}, RolloutStats(), own_time()
    groups: dict[int, list[Trajectory]] = {}
    lost: Counter[str] = Counter()
    for played in sorted(_watch(agent.harness.play(agent, env, jobs, seed), progress), key=lambda one: one.number):
        if played.lost is not None:
            lost[played.lost] += 1
            if drop_lost:
                continue
        job = by_number[played.number]
        turns = [_make_turn(env, one.before, one.move, one.acts, one.after) for one in played.turns]
        row = _ActiveEpisode(job, played.episode, [one.move for one in played.turns], turns, played.truncated)
        stats.steps += sum(len(one.acts) for one in played.turns)
        stats.tokens += sum(turn.tokens for turn in turns)
        groups.setdefault(job.number - job.sample, []).append(
            _make_trajectory(row, [one.segment for one in played.turns])
        )
    stats.agent_seconds = own_time() - clock
    several = any(job.sample for job in jobs)
    kept = [tuple(group) for group in groups.values() if len(group) > 1 or not (drop_lost and several)]
    counts = {**agent.harness.counts, "lost": sum(lost.values()), **{f"lost/{why}": n for why, n in lost.items()}}
    if jobs and drop_lost and 2 * sum(map(len, kept)) < len(jobs):
        kept = []
    return Rollouts(tuple(kept), stats, None, {name: float(number) for name, number in sorted(counts.items())})


def _watch(played: Iterable[PlayedEpisode], progress: Progress | None) -> Iterator[PlayedEpisode]:
    for one in played:
        report_episodes(1)
        if progress is not None:
            progress.advance()
        yield one


def check_tokens(groups: Sequence[Group], vocabulary: int, context: int) -> None:
    """Refuse episodes with tokens outside of this vocabulary and context: learning from them would fail or use invalid
    numbers."""
    for trajectory in (trajectory for group in groups for trajectory in group):
        if any(turn.tokens < 0 for turn in trajectory.turns):
            raise DataError(f"an answer to {trajectory.task} has a turn with a negative number of tokens")
        if not trajectory.segments and any(turn.tokens for turn in trajectory.turns):
            raise DataError(f"an answer to {trajectory.task} has turns with tokens that it does not hold")
        for segment in trajectory.segments:
            ids = np.concatenate([segment.prompt_ids, segment.token_ids, segment.allowed_ids])
            if len(ids) and not (ids.min() >= 0 and ids.max() < vocabulary):
                raise DataError(f"an answer to {trajectory.task} holds a token outside the vocabulary of {vocabulary}")
            if len(segment.prompt_ids) + len(segment.token_ids) > context:
                raise DataError(
                    f"an answer to {trajectory.task} is longer than the model's context of {context} tokens"
                )
            if not len(segment.prompt_ids) and segment.mask[:1].any():
                raise DataError(f"an answer to {trajectory.task} begins without a prompt")
            said = segment.logprobs[segment.mask]
            if not (np.isfinite(said) & (said <= 1e-3)).all():
                raise DataError(f"an answer to {trajectory.task} has an invalid log-prob")


def regrade(env: TextEnv, groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with the grades of their episodes replaced by those of `env`, whose pool must contain their tasks."""
    return tuple(tuple(regrade_trajectory(env, trajectory) for trajectory in group) for group in groups)


def regrade_trajectory(env: TextEnv, trajectory: Trajectory) -> Trajectory:
    """Replay one episode and return it with the new grades; actions after the end of the replay are not played, with reward 0."""
    (episode,) = env.reset_many([trajectory.task], [trajectory.seed])
    turns = []
    for turn in trajectory.turns:
        if episode.over:
            turns.append(turn._replace(reward=0.0, rewards={}, score=episode.view.score))
            continue
        episode, grades = play_acts(env, episode, turn.acts)
        turns.append(turn._replace(**grades))
    return replace(
        trajectory,
        turns=tuple(turns),
        category=episode.task.category,
        score=float(episode.view.score),
        success=bool(episode.view.success),
        terminated=episode.terminated,
        truncated=not episode.terminated,
    )


def play_acts(env: TextEnv, episode: Episode, acts: Sequence[str]) -> tuple[Episode, dict[str, Any]]:
    """Play the actions of one turn, and return the episode after them and the graded fields of the turn.

    `reward` and `rewards` are sums, `score` is the score after the last action, and `valid` is True if all actions were valid. A
    turn without actions earns nothing, and its `valid` is left out. Actions after the end of the episode are not played.
    """
    rewards, reward, valid = dict.fromkeys(env.reward_names, 0.0), 0.0, list[bool]()
    for act in acts:
        if episode.over:
            break
        (episode,) = env.step_many([episode], [act])
        view = episode.view
        reward += float(episode.reward)
        rewards = {name: earned + float(view.rewards.get(name, 0.0)) for name, earned in rewards.items()}
        valid.append(bool(view.valid))
    grades = {"reward": reward, "rewards": rewards, "score": float(episode.view.score)}
    return episode, grades | ({"valid": all(valid)} if valid else {})
