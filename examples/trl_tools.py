"""Episodes of several turns with TRL's tools: TRL generates, and the model acts by calling a tool.

This needs a model that can call tools. Without the name of a model, the script only prints the prompt, one turn and its reward.

    python examples/trl_tools.py Qwen/Qwen3-0.6B
"""

from __future__ import annotations

import sys

from datasets import Dataset

from fedagentgym.bridges.trl import make_environment_factory, make_tool_rows
from fedagentgym.envs import open_env


def train(model: str) -> None:
    from trl import GRPOConfig, GRPOTrainer

    env = open_env("fedagentgym/Guess-v0")
    GRPOTrainer(
        model=model,
        train_dataset=Dataset.from_list(make_tool_rows(env)),
        environment_factory=make_environment_factory(env),  # it also gives the reward
        args=GRPOConfig(output_dir="runs/trl-tools", max_completion_length=2048, max_steps=100),
    ).train()


def show() -> None:
    env = open_env("fedagentgym/Guess-v0")
    episode = make_environment_factory(env)()
    row = make_tool_rows(env)[0]
    print(row["prompt"][0]["content"], episode.reset(**row)[:60], "...")
    print(">", episode.act("guess 5").splitlines()[0])
    print("reward so far:", episode.get_reward())


if __name__ == "__main__":
    train(sys.argv[1]) if len(sys.argv) > 1 else show()
