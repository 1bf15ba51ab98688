"""The success of a run's exported adapter, loaded by `peft` and `transformers` alone, and the run's own evaluation of its tasks.

    fedagentgym export runs/small-skills --out adapter --adapter
    python -m benchmarks.exported_adapter runs/small-skills adapter

This works for runs whose environment takes a reply, and whose prompts are bare observations (`template: compact`, `chat: false`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from fedagentgym.base.errors import DataError
from fedagentgym.base.progress import print_result
from fedagentgym.base.statistics import estimate_tasks
from fedagentgym.cli.guard import run_guarded
from fedagentgym.envs import open_env
from fedagentgym.experiment.agent_file import AgentFile

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

BATCH = 32


def measure(run: Path, adapter: Path) -> dict[str, tuple[float, float, float]]:
    """Mean success with its interval in the run's evaluation, and of the adapter alone."""
    if not (adapter / "agent.yaml").is_file():
        raise DataError(f"{adapter} is no exported adapter: agent.yaml is missing")
    file = AgentFile.load(yaml.safe_load((adapter / "agent.yaml").read_text("utf-8")), "agent.yaml")
    place = run / "evaluation" / f"{int(file.run['round']):04d}.jsonl"
    rows = [json.loads(line) for line in place.read_text("utf-8").splitlines()]
    env = open_env(file.env.id, **{**file.env.options, "split": rows[0]["split"]})
    decoding = file.agent.decoding
    assert decoding is not None
    tasks = [row["task"] for row in rows]
    alone = play_alone(adapter, env, tasks, decoding.max_new_tokens, file.evaluation.temperature)
    return {"run": estimate([row["success"] for row in rows]), "adapter": estimate(alone)}


def estimate(successes: Sequence[bool]) -> tuple[float, float, float]:
    """The mean and both ends of its interval."""
    mean, low, high = estimate_tasks([np.array(successes, dtype=np.float64)[:, None]], [True])
    return float(mean[0]), float(low[0]), float(high[0])


def play_alone(adapter: Path, env: TextEnv, tasks: Sequence[str], most: int, temperature: float) -> list[bool]:
    """Play each task in one reply. An entry is true if the task is solved. No code of this package touches the model."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = json.loads((adapter / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"]
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    drawn: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    torch.manual_seed(0)
    found: list[bool] = []
    for first in range(0, len(tasks), BATCH):
        episodes = env.reset_many(tasks[first : first + BATCH], range(first, first + BATCH))
        asked = tokenizer(
            [f"{episode.view.observation}\n" for episode in episodes],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        ids, mask = asked["input_ids"], asked["attention_mask"]
        said = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=most,
            **(drawn if temperature else {"do_sample": False}),
        )
        replies = tokenizer.batch_decode(said[:, ids.shape[1] :], skip_special_tokens=True)
        found += [episode.view.success for episode in env.step_many(episodes, replies)]
    return found


def print_both(run: Path, adapter: Path) -> None:
    """Print both successes, one on each line."""
    for name, (mean, low, high) in measure(run, adapter).items():
        print_result(f"{name:8s} success {mean:.3f}, interval {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m benchmarks.exported_adapter RUN ADAPTER")
    raise SystemExit(run_guarded(lambda: print_both(Path(sys.argv[1]), Path(sys.argv[2]))))
