"""ALFWorld's generated houses: time to make them, length of their shortest plans, and the expert's success."""

from __future__ import annotations

import time
from statistics import mean

from fedagentgym.base.measurement import Measurement
from fedagentgym.benchmarks.speed.yardstick import Yardstick
from fedagentgym.envs.alfworld.env import ALFWorldEnv
from fedagentgym.envs.alfworld.plans import find_shortest_plan
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.task import Task


def run(quick: bool = False) -> list[Measurement]:
    """Generated houses: time to make one, shortest plans, the share that the expert wins."""
    unit = Yardstick.measure()
    figures = [unit.to_measurement()]
    for size, bar in (
        ("tiny", "100 within 20 turns"),
        ("small", "at least 95 within 50 turns"),
        ("full", "at least 95 within 50 turns"),
    ):
        env = ALFWorldEnv(size=size, split="all")
        numbers = range(0, len(env.pool), 10 if quick else 1)
        start = time.perf_counter()
        tasks = [env.pool[number] for number in numbers]
        seconds = time.perf_counter() - start
        training = [task for task in tasks if task.split == "train"]
        turns = [_count_expert_turns(env, task) for task in training]
        won = [count for count in turns if count is not None]
        lengths = [len(find_shortest_plan(task.payload) or ()) for task in training]
        receptacles = [len(task.payload.receptacles) for task in training]
        objects = [len(task.payload.objects) for task in training]
        figures += [
            Measurement(
                f"receptacles, {size}", mean(receptacles), f"on average, {min(receptacles)} to {max(receptacles)}"
            ),
            Measurement(f"objects, {size}", mean(objects), f"on average, {min(objects)} to {max(objects)}"),
            Measurement(f"generating a {size} game", 1000 * seconds / len(tasks), "ms"),
            Measurement(f"generating 3,553 {size} games", 3553 * seconds / len(tasks), "s", unit.limit(60_000, "s")),
            Measurement(
                f"expert's wins, {size}", 100 * len(won) / len(turns), f"% of {len(turns)} training games", bar
            ),
            Measurement(f"expert's turns, {size}", mean(won), f"on average, {max(won)} at most"),
            Measurement(f"shortest plan, {size}", mean(lengths), f"commands on average, {max(lengths)} at most"),
        ]
    return figures


def _count_expert_turns(env: TextEnv, task: Task) -> int | None:
    """After how many turns the expert wins a task, if it does."""
    (episode,), expert = env.reset_many([task], [0]), env.expert()
    while not episode.over:
        (episode,) = env.step_many([episode], [expert.act(episode)])
    return episode.turn if episode.view.success else None
