"""A whole policy step: playing, then learning from the episodes.

No reply ends early, and every episode is used for learning: advantages are given, since an untrained model earns nothing. In
environments with several turns a random walker's actions are played instead of the replies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedagentgym.agents.agent import TokenAgent, TokenPlayers
from fedagentgym.agents.protocols import Decoding, Move
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.streams import stream
from fedagentgym.envs.scripted import random_action
from fedagentgym.learning.local import LocalTraining
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.agents.engines.torch_policy import TorchPolicy
    from fedagentgym.envs.core import Episode, TextEnv

LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Workload:
    """One policy step: tasks, copies of each, turns, and tokens in each reply."""

    tasks: int
    copies: int
    turns: int
    reply_tokens: int

    @property
    def episodes(self) -> int:
        return self.tasks * self.copies


class StepTiming(NamedTuple):
    """Processor seconds of a step, and the tokens of all its episodes, prompts and observations included."""

    play: float
    learn: float
    tokens: int

    @property
    def speed(self) -> float:
        return self.tokens / (self.play + self.learn)

    @property
    def play_share(self) -> float:
        """Percent of the step; 0 if play and learning are not measured separately."""
        return 100 * self.play / (self.play + self.learn) if self.learn else 0.0


class OwnStep:
    """Our side: a `LocalTraining` whose agent ends no reply early and, in environments with several turns, walks at random."""

    def __init__(self, policy: TorchPolicy, env: TextEnv, work: Workload) -> None:
        policy.tokenizer.stop_ids = frozenset()
        kind = TokenAgent if env.takes == "reply" else WalkingAgent
        decoding = Decoding(max_new_tokens=work.reply_tokens)
        self.agent = kind("speed", policy, Template("compact", think=False), decoding)
        settings = LearningSettings(
            tasks_per_step=work.tasks,
            group_size=work.copies,
            learning_rate=LEARNING_RATE,
            format_penalty=0.0,
        )
        self.env, self.work = env, work
        self.local = LocalTraining(self.agent, env, settings)

    def step(self) -> StepTiming:
        """Play and learn once."""
        ids = [self.env.pool.ids[number] for number in range(self.work.tasks)]
        began = time.process_time()
        groups = self.local.collect_groups(0, tasks=ids)
        played = time.process_time()
        self.local.update(groups, advantages=[[(-1.0) ** copy for copy in range(len(group))] for group in groups])
        return StepTiming(played - began, time.process_time() - played, count_tokens(groups))

    def list_prompts(self) -> list[str]:
        """The first observation of each of the step's tasks."""
        groups = self.local.collect_groups(0, tasks=[self.env.pool.ids[number] for number in range(self.work.tasks)])
        return [self.agent.tokenizer.decode(group[0].segments[0].prompt_ids.tolist()) for group in groups]


def count_tokens(groups: Sequence[Group]) -> int:
    """All tokens of all episodes."""
    return sum(
        len(segment.prompt_ids) + len(segment.token_ids)
        for group in groups
        for episode in group
        for segment in episode.segments
    )


class WalkingAgent(TokenAgent):
    """Generates the model's replies, and plays a random walker's actions."""

    def play(self, env: TextEnv) -> TokenPlayers:
        return _WalkingPlayers(self, env)


class _WalkingPlayers(TokenPlayers):
    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        moves = super().act(rows, episodes)
        return [
            move._replace(action=choose_random_action(episode)) for move, episode in zip(moves, episodes, strict=True)
        ]


def choose_random_action(episode: Episode) -> str:
    """The walker's next action: the same for all copies of a task, on both sides."""
    return random_action(episode, episode.view.observation, stream(0, "walk", episode.task.id, episode.turn))
