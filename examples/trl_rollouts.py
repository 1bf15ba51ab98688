"""TRL trains a model on a world; the episodes are played by this package, with exact tokens, masks and log-probs.

Here: three steps of a tiny model that knows nothing yet. For your own: pass `model="Qwen/Qwen2.5-1.5B-Instruct"` to the trainer,
leave out `processing_class`, and let the agent settings say how it is prompted.
"""

from __future__ import annotations

import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from fedagentgym.agents import make_tiny_model
from fedagentgym.bridges.trl import RolloutFunction, get_episode_reward, make_task_rows
from fedagentgym.envs import open_env


def main() -> None:
    env = open_env("fedagentgym/Guess-v0", max_turns=4)  # or one client's world: client_split[3].open_env()
    model, tokenizer = make_tiny_model(env.vocabulary(), context_length=512)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model.to_transformers(),
            processing_class=tokenizer.hf,
            train_dataset=Dataset.from_list(make_task_rows(env)),
            rollout_func=RolloutFunction(
                env, {"template": "compact", "think": False, "chat": False, "decoding": {"max_new_tokens": 8}}
            ),
            reward_funcs=[get_episode_reward],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=3,
                per_device_train_batch_size=8,
                num_generations=4,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
            ),
        )
        trainer.train()
    print(f"{trainer.state.global_step} steps, {int(trainer.state.num_input_tokens_seen)} tokens")


if __name__ == "__main__":
    main()
