"""An environment of your own with three methods, which is checked, divided among clients and played by a random agent."""

from __future__ import annotations

from fedagentgym import evaluate, federate, register_env, stream
from fedagentgym.agents import make_agent
from fedagentgym.envs import Task, TaskPool, TextEnv, View
from fedagentgym.testing import check_env

State = tuple[int, int]


class LampEnv(TextEnv):
    """Walk along a corridor to the lamp."""

    id = "me/Lamp-v0"
    role = "You are walking along a corridor."
    action_help = "left, right: go one place."
    default_max_turns = 12

    def load_pool(self, split: str) -> TaskPool:
        draws = stream(0, "corridor", split)
        tasks = [
            {"category": "near" if (place := 1 + draws.integers(6)) < 4 else "far", "payload": place} for _ in range(60)
        ]
        return TaskPool.from_records(tasks, env=self.id, split=split)

    def begin(self, task: Task, seed: int) -> tuple[State, View]:
        return (0, task.payload), View(observation="You are at place 0.", admissible=("left", "right"))

    def advance(self, state: State, action: str) -> tuple[State, View]:
        place, lamp = state
        place = max(place + {"left": -1, "right": 1}.get(action, 0), 0)
        won = place == lamp
        text = "Here is the lamp." if won else f"You are at place {place}."
        view = View(text, ("left", "right"), float(won), float(won), won, won, valid=action in ("left", "right"))
        return (place, lamp), view


def main() -> None:
    register_env(LampEnv.id, LampEnv, replace=True)
    check_env(LampEnv.id)
    for client in federate(LampEnv.id, partition="pathological", categories_per_client=1, clients=4):
        evaluated = evaluate(make_agent("random"), client.open_env(), {"tasks": len(client)})
        print(
            f"client {client.index} {client.pool.categories}: random succeeds {evaluated.overall['success'].mean:.0%}"
        )


if __name__ == "__main__":
    main()
