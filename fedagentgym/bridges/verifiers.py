"""verifiers: an environment as a taskset of verifiers' version 1, for `vf-eval` and for trainers that use verifiers.

verifiers finds a taskset by the name of a top-level module. Two lines make such a module (`examples/verifiers_taskset.py`):

    from fedagentgym.bridges.verifiers import GymEnv, GymTaskset
    __all__ = ["GymEnv", "GymTaskset"]

Tested with verifiers 0.4.0. The environment takes the part of the user: it opens the dialogue, and every reply is a step. Its
reward, score and success are recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import Field

from fedagentgym.agents.players.conversation import Conversation
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.imports import require
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.registry import find_env_id

vf: Any = require("verifiers.v1", "verifiers")

__all__ = ["GymEnv", "GymTaskset"]


class GymConfig(vf.TasksetConfig):  # type: ignore[misc]
    """The keys of the taskset in a configuration of verifiers."""

    env: str = "fedagentgym/Math-v0"
    """Id of the environment, such as `fedagentgym/Math-v0`, or its short name, such as `math`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment, such as `split`. `client_split` (a file) and `client` select the tasks of one client."""
    think: bool = False
    """True if the prompt asks for a thought before an action."""
    seed: int = 0
    """Seed of the episodes."""


class GymData(vf.TaskData):  # type: ignore[misc]
    """The values that define one episode: the environment with its options, the task's id, the seed, and `think`."""

    env: str
    options: dict[str, Any]
    task: str
    seed: int
    think: bool


class GymTask(vf.Task[GymData]):  # type: ignore[misc]
    """One task of an environment."""


class GymEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """The configuration of `GymEnv`: one player."""

    player: vf.AgentConfig = vf.AgentConfig()


class GymEnv(vf.Env[GymEnvConfig]):  # type: ignore[misc]
    """Plays one episode per task, as a dialogue."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play the episode of a task with the player, and record reward, score and success."""
        data = task.data
        chat = Conversation(_open(data.env, _freeze(data.options)), data.task, data.seed, Template(think=data.think))
        reward = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                over = chat.reply(segment.last_reply)
                reward += chat.episode.reward
                if over:
                    break
                segment = await interaction.turn(chat.messages[-1]["content"])
        trace, view = interaction.trace, chat.episode.view
        trace.record_reward("reward", reward)
        trace.info.update(score=float(view.score), success=bool(view.success), category=chat.episode.task.category)


class GymTaskset(vf.Taskset[GymTask, GymConfig]):  # type: ignore[misc]
    """The tasks of an environment or of one of its clients."""

    def load(self) -> Iterator[GymTask]:
        """Yield a task for each id of the environment's pool."""
        config = self.config
        env = _open(config.env, _freeze(config.options))
        for task in env.pool.ids:
            chat = Conversation(env, task, config.seed, Template(think=config.think))
            named = {"env": env.id, "options": config.options, "task": task, "seed": config.seed, "think": config.think}
            yield GymTask(GymData(name=task, prompt=chat.messages[-1]["content"], **named), config.task)


def _freeze(options: dict[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)


@lru_cache(maxsize=8)
def _open(env: str, options: str) -> TextEnv:
    return open_env(find_env_id(env), **json.loads(options))
