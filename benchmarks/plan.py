"""The minutes that `fedagentgym plan` predicts, and those that a run takes, for models of 0.1, 10 and 135 million parameters.

    python -m benchmarks plan-minutes

The 10 M model has the tiny agent's architecture with larger layers and random weights. Every model imitates before it learns, as
in its preset. Neither the predicted nor the measured seconds include the start of the process.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measurement import Measurement
from fedagentgym.agents.model.pretrained import get_shipped_folder
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.duration import measure_durations
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.experiment.run import train

LARGER = {"hidden_size": 320, "intermediate_size": 1120, "num_hidden_layers": 7, "num_attention_heads": 5}
RUNS: Mapping[str, tuple[str, Sequence[str]]] = {
    "0.1 M": ("tiny-skills:fedavg-grpo", ("env.options.seed=7",)),
    "10 M": ("tiny-skills:fedavg-grpo", ("warm_start.steps=40", "warm_start.episodes=640", "federation.rounds=2")),
    "135 M": ("small-skills", ("warm_start.steps=24", "warm_start.episodes=384", "federation={rounds: 3, workers: 0}")),
}
"""A preset for each model, with changes that shorten long ones."""
BAR = "0.67 to 1.5"


def run(quick: bool) -> list[Measurement]:
    """Predicted and measured minutes of three short runs; about six minutes of one core."""
    found = []
    for name, (preset, changes) in list(RUNS.items())[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            seed = int(time.time())  # imitated agents are cached, and no earlier run had this seed
            given = [*changes, f"output.folder={json.dumps(f'{folder}/run')}", f"warm_start.misconceptions.seed={seed}"]
            if name == "10 M":
                given.append(f"agent.model={json.dumps(str(make_larger_model(Path(folder) / 'larger')))}")
            predicted, measured = compare(preset, given)
        found += [
            Measurement(f"{name}: predicted", predicted / 60, "min"),
            Measurement(f"{name}: measured", measured / 60, "min"),
            Measurement(f"{name}: predicted / measured", predicted / measured, "", BAR),
        ]
    return found


def compare(preset: str, changes: Sequence[str]) -> tuple[float, float]:
    """The predicted and the measured seconds of a run, without the start of the process."""
    config = load_config(preset, changes)
    _, durations = measure_durations(plan_run(config))
    started = time.perf_counter()
    train(config)
    return durations.total - durations.starting, time.perf_counter() - started


def make_larger_model(folder: Path) -> Path:
    """A folder with the shipped agent's tokenizer and a larger model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(
        get_shipped_folder() / "tiny-skills", folder, ignore=shutil.ignore_patterns("model*", "pretrain.json")
    )
    config = AutoConfig.from_pretrained(folder)
    for name, value in LARGER.items():
        setattr(config, name, value)
    config.num_key_value_heads = config.num_attention_heads
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
