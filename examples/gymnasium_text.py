"""A Gymnasium environment, FrozenLake, with observations and actions in words, whose tasks are divided among clients.

The two maps of FrozenLake are the categories, so clients can differ in the map that they play.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium

import fedagentgym
from fedagentgym.bridges.gymnasium_text import GymnasiumTextEnv
from fedagentgym.envs import Episode

MOVES = ("go left", "go down", "go right", "go up")


class LakeEnv(GymnasiumTextEnv):
    """Cross a frozen lake without falling through a hole."""

    id = "examples/Lake-v0"
    gymnasium_id = "FrozenLake-v1"
    categories: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "small": {"map_name": "4x4", "is_slippery": False},
        "large": {"map_name": "8x8", "is_slippery": False},
    }
    role = "You are crossing a frozen lake: S is the start, G the goal, H a hole."
    action_help = "go left, go down, go right, go up."

    def render_observation(self, observation: Any, env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> str:
        rows = [b"".join(row).decode() for row in env.unwrapped.desc]  # type: ignore[attr-defined]
        row, column = divmod(int(observation), len(rows[0]))
        return "\n".join(rows) + f"\nYou stand in row {row}, column {column}."

    def parse_action(self, text: str, env: gymnasium.Env[Any, Any]) -> int | None:
        return MOVES.index(text) if text in MOVES else None

    def list_actions(self, env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> tuple[str, ...]:
        return MOVES

    def expert(self) -> Walker:
        return Walker()


class Walker:
    """Knows a safe way across each of the two maps."""

    def act(self, episode: Episode) -> str:
        small = (1, 1, 2, 1, 2, 2)
        way = small if episode.task.category == "small" else (2,) * 7 + (1,) * 7
        return MOVES[way[min(len(episode.state.actions), len(way) - 1)]]


fedagentgym.register_env(LakeEnv.id, LakeEnv, replace=True)


def main() -> None:
    split = fedagentgym.federate(LakeEnv.id, partition="preference", clients=4, tasks_per_client=20, omega=0.9)
    for client in split:
        print(f"client {client.index}: {client.pool.categories}")
    env = split.client(0).make()
    observation, info = env.reset(seed=0)
    print(observation)
    observation, reward, terminated, truncated, info = env.step("go down")
    print(observation)
    print("valid:", info["valid"], "actions:", info["admissible"])


if __name__ == "__main__":
    main()
