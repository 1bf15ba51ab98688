"""TRL trains the tiny agent on one client's tasks, and its reward rises. This package plays the episodes, and gives TRL exact
tokens, masks and log-probs.

    python examples/trl_rollouts.py              # one seed
    python examples/trl_rollouts.py 0 1 2 3 4    # the five seeds of docs/experiments/recipes.md

The client has the tasks of one category, in which the tiny agent mostly follows the wrong procedure. To train your own model,
give the trainer its name (`model="Qwen/Qwen2.5-1.5B-Instruct"`), leave out the settings of the tiny agent, and choose a smaller
learning rate.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence

from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import fedagentgym
from fedagentgym.agents import make_agent
from fedagentgym.bridges.trl import RolloutFunction, get_episode_reward, make_task_rows
from fedagentgym.envs import TextEnv, open_env

OPTIONS = {"wording": "short", "naming": "repeated"}
TINY = {"template": "compact", "think": False, "chat": False, "decoding": {"max_new_tokens": 64}}
STEPS, BLOCK = 25, 5


def train(env: TextEnv, folder: str, seed: int) -> list[float]:
    """Train the model in the folder, save it there, and return the mean reward of each step."""
    trainer = GRPOTrainer(
        model=folder,
        train_dataset=Dataset.from_list(make_task_rows(env)),
        rollout_func=RolloutFunction(env, TINY, seed=seed),
        reward_funcs=[get_episode_reward],
        args=GRPOConfig(
            output_dir=folder,
            seed=seed,
            max_steps=STEPS,
            per_device_train_batch_size=64,
            num_generations=8,
            learning_rate=1e-3,
            adam_beta2=0.99,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)  # it prints every entry of the log
    trainer.train()
    trainer.save_model(folder)
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def measure_success(folder: str, town: str) -> float:
    """Return the success of the model in the folder on the held-out tasks of the category `town`."""
    agent = make_agent({"name": "tiny", "model": folder, **TINY})
    tests = open_env("Skills", split="test", **OPTIONS)
    return fedagentgym.evaluate(agent, tests).categories[town]["success"].mean


def format_mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(seeds: Sequence[int]) -> None:
    client = fedagentgym.federate("Skills", partition="by_source", clients=8, env=OPTIONS)[1]
    env = client.open_env()
    (town,) = env.pool.categories
    curves, before, after = [], [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            make_agent("tiny", env).policy.save(folder)
            before.append(measure_success(folder, town))
            curves.append(train(env, folder, seed))
            after.append(measure_success(folder, town))
    print("steps     mean reward (lowest to highest seed)")
    for first in range(0, STEPS, BLOCK):
        rewards = [sum(curve[first : first + BLOCK]) / BLOCK for curve in curves]
        bar = "#" * round(40 * sum(rewards) / len(rewards))
        print(f"{first + 1:2d} to {first + BLOCK:2d}  {format_mean(rewards)}  {bar}")
    print(f"held-out tasks of {town} solved: {before[0]:.2f} before, {format_mean(after)} after")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0])
