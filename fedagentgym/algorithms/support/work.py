"""The work of a method's clients and server, counted from the settings alone.

A plan of a run (`experiment/estimate`) adds the counts up before anything is opened. They assume that every called client
replies, and that an episode takes its maximum number of turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.learning.settings import LearningSettings


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one round, or of the preparation before the first, over all sites together."""

    episodes: int = 0
    """Episodes that are played to learn from."""
    judged: int = 0
    """Episodes that are played or read only to be scored: an expert's answers, candidates that a model scores."""
    optimizer_steps: int = 0
    models_down: int = 0
    """Sets of trainable parameters that the server sends."""
    models_up: int = 0
    answers_down: int = 0
    """Episodes within the server's messages."""
    answers_up: int = 0
    tasks_down: int = 0
    """Tasks without answers in the server's messages."""
    scores_up: int = 0
    """Single numbers within the clients' messages."""
    bits_up: int = 0
    """Yes-or-no answers in the clients' messages."""

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __mul__(self, times: int) -> Work:
        return Work(*(getattr(self, one.name) * times for one in fields(self)))


@dataclass(frozen=True, slots=True)
class SecondModel:
    """A model that clients hold beside the agent that learns."""

    name: str
    agent: AgentSettings
    learning: LearningSettings
    steps: int
    """Policy steps that it is trained for; 0 if it only plays and scores."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What the counts depend on besides the method's own settings."""

    learning: LearningSettings
    clients: int
    asked: int
    """Clients that take part in a round."""
    rows_per_episode: int
    """Rows of the loss per episode at most: one, or one for each turn."""
    roles: Mapping[str, int]
    """Tasks of the server, the public and the auxiliary set."""

    def count_updates(self, episodes: int) -> int:
        """Optimizer steps of one policy step on this many episodes."""
        rows, size = max(episodes * self.rows_per_episode, 1), self.learning.minibatch_rows
        steps = min(self.learning.minibatches, rows) if size is None else -(-rows // size)
        return self.learning.gradient_epochs * steps

    def count_local_work(self, steps: int) -> Work:
        """The work of this many policy steps of one site on its own tasks."""
        episodes = self.learning.episodes_per_step
        return Work(episodes=steps * episodes, optimizer_steps=steps * self.count_updates(episodes))
