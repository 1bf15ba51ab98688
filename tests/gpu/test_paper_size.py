"""`paper-webshop:lora` beside its plan: seconds of a round, and memory, on a model of the 1.5B architecture with random weights.

On a machine with a GPU: `pytest -m gpu -s tests/gpu`. Weights and tokenizer are made here, nothing is downloaded; the shop
is the generated one. Here and everywhere else the same is played in small on the processor.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pytest
import torch

from fedagentgym.agents.model.shapes import KNOWN_SHAPES, ModelShape
from fedagentgym.agents.text.tokens import make_word_tokenizer
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.plan import RunPlan, plan_run
from fedagentgym.experiment.run import train

SHOP = "{data: null, goal_order: webshop, size: tiny, reward: success10, max_turns: %d}"
MEMORY_TOLERANCE = 1.25
"""The share of the planned memory that a round may take: the allocator keeps blocks, and CUDA a context."""


class Measured(NamedTuple):
    plan: RunPlan
    seconds: float
    peak: int
    rounds: int


def make_model(folder: Path, shape: ModelShape, dtype: torch.dtype) -> None:
    """A Qwen2 model with random weights, and a tokenizer of the shop's words."""
    import transformers

    tokenizer = make_word_tokenizer(open_env("fedagentgym/WebShop-v0", size="tiny").vocabulary(), 32_768).hf
    config = transformers.Qwen2Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.inner,
        vocab_size=max(shape.vocabulary, len(tokenizer)),
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32_768,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run_beside_plan(folder: Path, changes: list[str], turns: int) -> Measured:
    """Two rounds of the preset, and what its plan says of them."""
    every = [
        f"agent.model={folder / 'model'}",
        "agent.chat=false",
        f"env={{id: fedagentgym/WebShop-v0, options: {SHOP % turns}}}",
        "partition={sampler: uniform, clients: 4, tasks_per_client: 4}",
        "federation.rounds=2",
        "algorithm.local_steps=1",
        "evaluation={tasks: 2, every: 2}",
        f"output.folder={folder / 'run'}",
        *changes,
    ]
    plan = plan_run(load_config("paper-webshop:lora", every))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begun = perf_counter()
    result = train("paper-webshop:lora", every)
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return Measured(plan, perf_counter() - begun, peak, int(result.record["rounds"]))


def format_measured(found: Measured) -> str:
    lines = [f"two rounds: {found.seconds:,.0f} s, evaluations included"]
    lines += [f"memory: measured {found.peak / 1e9:.2f} GB, planned {found.plan.peak / 1e9:.2f} GB"]
    return "\n".join(
        [*lines, *(f"  {part.name} ({part.phase}): {part.size / 1e9:.2f} GB" for part in found.plan.memory)]
    )


@pytest.mark.gpu
def test_the_papers_preset_with_an_adapter_takes_what_was_planned(tmp_path: Path, capsys: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    make_model(tmp_path / "model", KNOWN_SHAPES["Qwen/Qwen2.5-1.5B-Instruct"], torch.bfloat16)
    found = run_beside_plan(tmp_path, ["federation.workers=0"], turns=4)
    with capsys.disabled():
        print(f"\n{format_measured(found)}")  # noqa: T201
    assert found.rounds == 2
    assert found.peak <= MEMORY_TOLERANCE * found.plan.peak


@pytest.mark.slow
def test_the_same_in_small_on_the_processor(tmp_path: Path) -> None:
    make_model(tmp_path / "model", ModelShape("qwen2", 32, 2, 2, 1, 16, 64, 64, tied=True), torch.float32)
    small = ["agent.context_length=1024", "agent.device=cpu", "agent.dtype=float32", "agent.decoding.max_new_tokens=4"]
    small += ["learning.tasks_per_step=1", "learning.group_size=2", "federation.workers=0"]
    found = run_beside_plan(tmp_path, small, turns=2)
    assert found.rounds == 2
    assert "planned" in format_measured(found)
