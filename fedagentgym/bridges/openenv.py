"""OpenEnv: serves an environment by OpenEnv's protocol, so that its clients (TRL, verifiers, ...) can play it.

    app = make_app(open_env("fedagentgym/WebShop-v0", size="tiny"))     # in shop.py
    uvicorn shop:app

Tested with openenv 0.10.0. A session plays one episode at a time; all sessions share the environment. `reset` takes `seed`, and
either `task` (an id) or `split` and `index`, as the protocol's task routes list them. With only a seed it starts the same episode
as `env.reset(seed=...)`.

An observation has the text that a player sees, and the message that shows this text to a chat model. The last observation also
has the grade, the task and its category. Correct answers and hidden state do not leave the server before.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, create_model

from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import require
from fedagentgym.base.peers import HostCheck
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.envs.tasks import shorten_env_id
from fedagentgym.envs.view import Episode, describe, first_message, next_message
from fedagentgym.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["TextAction", "TextObservation", "TextState", "make_app"]

_server: Any = require("openenv.core.env_server", "openenv")
_types: Any = require("openenv.core.env_server.types", "openenv")


class TextAction(_types.Action):  # type: ignore[misc]
    """An agent's action: a command, or a whole reply in environments that take replies. A number is taken as its text."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    text: str = Field(description="the action")


class TextObservation(_types.Observation):  # type: ignore[misc]
    """An agent's observation; at the end also the grade and the rest of gymnasium's `info`."""

    text: str = Field(description="the observation")
    prompt: str = Field(description="the next message to a chat model: at reset the whole prompt, then what is seen")
    admissible: list[str] | None = Field(default=None, description="the actions that can be taken, if they are listed")
    turn: int = Field(description="turns taken")
    valid: bool = Field(description="whether the environment accepted the action")
    truncated: bool = Field(default=False, description="the episode ended because its turns were used up")
    task: str | None = Field(default=None, description="task id, at the end")
    category: str | None = Field(default=None, description="category of the task, at the end")
    score: float | None = Field(default=None, description="score, 0 to 1, at the end")
    success: bool | None = Field(default=None, description="whether the task is solved, at the end")
    rewards: dict[str, float] | None = Field(default=None, description="components of the reward, at the end")


class TextState(_types.State):  # type: ignore[misc]
    """The current episode."""

    env: str = Field(default="", description="environment id")
    task: str = Field(default="", description="task id; empty before the first reset")
    task_set: str = Field(default="", description="digest of the tasks that this server plays")


class TextEnvironment(_server.Environment):  # type: ignore[misc]
    """One session. The lock guards the environment, which is not thread-safe."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: TextEnv, lock: threading.Lock) -> None:
        super().__init__()
        self._env, self._lock = env, lock
        self._episode: Episode | None = None
        self._name: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        split: str | None = None,
        index: int | None = None,
        **others: object,
    ) -> TextObservation:
        """Start an episode of the named task, or else of a task drawn with the seed."""
        if others:
            raise OptionError(f"reset takes seed, episode_id, task, split and index; {sorted(others)[0]!r} is unknown")
        seed = secrets.randbits(62) if seed is None else seed
        if split is not None or index is not None:
            if task is not None or index is None:
                raise OptionError("name a task by its id, or by split and index")
            task = self.get_task(split or self._split, index)["id"]
        pool = self._env.pool
        chosen = pool[task] if task is not None else pool[stream(seed, "task").integers(len(pool))]
        with self._lock:
            (self._episode,) = self._env.reset_many([chosen], [seed])
        self._name = episode_id
        return self._observe(self._episode, None)

    def step(self, action: TextAction, timeout_s: float | None = None, **others: object) -> TextObservation:
        """Take one action."""
        if self._episode is None:
            raise OptionError("call reset before the first step")
        if self._episode.over:
            raise OptionError("the episode is over: call reset")
        before = self._episode
        with self._lock:
            (self._episode,) = self._env.step_many([before], [action.text])
        return self._observe(self._episode, before)

    @property
    def state(self) -> TextState:
        shown: dict[str, Any] = {"env": self._env.id, "episode_id": self._name, "task_set": self._env.task_set.digest}
        if self._episode is not None:
            shown |= {"step_count": self._episode.turn, "task": self._episode.task.id}
        return TextState(**shown)

    def get_metadata(self) -> Any:
        """Return the server's description of the environment."""
        return _types.EnvironmentMetadata(name=self._env.id, description=describe(self._env), version=__version__)

    # ---- the protocol's list of tasks ---------------------------------------------------------------------------

    @property
    def _split(self) -> str:
        return self._env.pool.split

    def list_splits(self) -> list[str]:
        return [self._split]

    def num_tasks(self, split: str) -> int:
        self._check_split(split)
        return len(self._env.pool)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        if not 0 <= index < self.num_tasks(split):
            raise IndexError(f"the split {split!r} has {len(self._env.pool)} tasks, there is no number {index}")
        return self.get_task_range(split, index, index + 1)[0]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        self._check_split(split)
        pool = self._env.pool
        places = range(*slice(start, stop).indices(len(pool)))
        return [{"id": pool.ids[place], "index": place, "category": pool[place].category} for place in places]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def _check_split(self, split: str) -> None:
        if split != self._split:
            raise OptionError(f"this server plays the split {self._split!r}, not {split!r}")

    def _observe(self, episode: Episode, before: Episode | None) -> TextObservation:
        view, graded = episode.view, {}
        member = self._env.find_member(episode.task)
        if episode.over:
            graded = {
                "task": episode.task.id,
                "category": episode.task.category,
                "score": float(view.score),
                "success": bool(view.success),
                "rewards": {name: float(view.rewards.get(name, 0.0)) for name in self._env.reward_names},
            }
        return TextObservation(
            text=view.observation,
            prompt=first_message(member, view)
            if before is None
            else next_message(member, view, before.view.admissible),
            admissible=None if view.admissible is None else list(view.admissible),
            turn=episode.turn,
            valid=bool(view.valid),
            truncated=episode.truncated,
            done=episode.over,
            reward=None if before is None else float(episode.reward),
            **graded,
        )


def make_app(env: EnvLike, *, sessions: int = 64, hosts: Sequence[str] = ()) -> FastAPI:
    """Make a server that offers an environment by OpenEnv's protocol.

    Args:
        env: The environment; all sessions share it.
        sessions: Maximum number of sessions.
        hosts: Host names by which clients reach this server, besides its addresses and `localhost`. `*` allows every name that
            does not resolve to the loopback address. The check keeps web pages of other servers from playing.

    Returns:
        The application, for uvicorn or any other ASGI server.

    Examples:
        >>> app = make_app(open_env("fedagentgym/WebShop-v0", size="tiny"))  # doctest: +SKIP
    """
    if isinstance(hosts, str):
        raise OptionError(f"hosts must be a list of names, got {hosts!r}")
    env = open_env(env)
    described = Field(description=f"the action. {env.action_help}")
    action = create_model("TextAction", __base__=TextAction, text=(str, described))
    make = partial(TextEnvironment, env, threading.Lock())
    about = {"max_concurrent_envs": sessions, "env_name": shorten_env_id(env.id), "state_cls": TextState}
    app: FastAPI = _server.create_fastapi_app(make, action, TextObservation, **about)
    app.add_middleware(HostCheck, names=hosts)
    return app
