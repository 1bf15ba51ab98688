"""The cost of gymnasium's vector interface per step, compared with `step_many`, in one run on the smallest env."""

from __future__ import annotations

import time

import gymnasium

from fedagentgym.base.measurement import Measurement
from fedagentgym.envs.guess import GuessEnv

ROUNDS = 5


def run(quick: bool = False) -> list[Measurement]:
    """A step of a thousand environments through Gymnasium's vector API and step_many."""
    count, steps = (200, 5) if quick else (1000, 10)
    vector = gymnasium.make_vec("fedagentgym/Guess-v0", num_envs=count, vectorization_mode="sync")
    env = GuessEnv()
    ids = [env.pool.ids[number % len(env.pool)] for number in range(count)]
    actions = tuple(f"guess {1 + number % 10}" for number in range(count))

    def time_gymnasium() -> float:
        vector.reset(seed=0)
        start = time.perf_counter()
        for _ in range(steps):
            vector.step(actions)
        return (time.perf_counter() - start) / (count * steps)

    def time_step_many() -> float:
        episodes = env.reset_many(ids, range(count))
        start = time.perf_counter()
        for _ in range(steps):
            episodes = env.step_many(episodes, actions)
        return (time.perf_counter() - start) / (count * steps)

    pairs = [(time_gymnasium(), time_step_many()) for _ in range(ROUNDS)]
    vector.close()
    slow, fast = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    return [
        Measurement("step through gymnasium.make_vec (sync)", slow * 1e6, "us per environment"),
        Measurement("step through step_many", fast * 1e6, "us per environment"),
        Measurement("ratio", slow / fast, "times", "at least 10"),
    ]
