"""Generators of reasoning-gym as one environment, whose tasks are divided among clients with different mixtures of generators."""

from __future__ import annotations

import fedagentgym
import fedagentgym.bridges.reasoning_gym as bridge

KINDS = ["chain_sum", "gcd", "leg_counting", "spell_backward", "countdown"]


def main() -> None:
    print(f"{len(bridge.list_generators())} generators")
    split = fedagentgym.federate(
        "fedagentgym/ReasoningGym-v0",
        partition="preference",
        clients=5,
        tasks_per_client=30,
        omega=0.9,
        env={"generators": KINDS},
    )
    for client in split:
        print(f"client {client.index}: {client.pool.categories}")
    env = split.client(0).open_env()
    (episode,) = env.reset_many([env.pool[0]], [0])
    print(episode.view.observation)
    (episode,) = env.step_many([episode], [env.expert().act(episode)])
    print(episode.view.observation, episode.reward)


if __name__ == "__main__":
    main()
