"""TRL's own trainer on our worlds: by tools that the model calls, and by our rollouts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.agents.engines.tiny import make_tiny_model
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.bridges.trl import (
    RolloutFunction,
    ToolEnvironment,
    convert_trajectory,
    find_group_tasks,
    get_episode_reward,
    make_environment_factory,
    make_task_rows,
    make_tool_rows,
)
from fedagentgym.envs import open_env
from fedagentgym.learning.trajectory import Trajectory
from tests.agents.models import sharpened

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore:You are using")

AGENT = {"template": "compact", "think": False, "chat": False, "decoding": {"max_new_tokens": 6}}


def make_config(folder: Path, **changes: Any) -> Any:
    settings = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "temperature": 0.7,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_completion_length": 256,
        "logging_steps": 1,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    return trl.GRPOConfig(output_dir=str(folder), **{**settings, **changes})


def count_letters(completions: list[str], **columns: object) -> list[float]:
    """So that a random model's rollouts differ in their reward."""
    return [float(len(completion)) for completion in completions]


def make_trainer(folder: Path, rollouts: RolloutFunction, **options: Any) -> Any:
    from datasets import Dataset

    model, tokenizer = make_tiny_model(rollouts.env.vocabulary(), context_length=256)
    rows = make_task_rows(rollouts.env, rollouts.env.pool.ids[:12])
    return trl.GRPOTrainer(
        sharpened(model).to_transformers(),
        reward_funcs=[get_episode_reward, count_letters],
        args=make_config(folder),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer.hf,
        rollout_func=rollouts,
        **options,
    )


@pytest.fixture(scope="module")
def guess() -> Any:
    return open_env("fedagentgym/Guess-v0", max_turns=3)


@pytest.mark.parametrize("adapter", [False, True], ids=["all weights", "adapter"])
def test_three_steps_on_exact_tokens_masks_and_logprobs(guess: Any, tmp_path: Path, adapter: bool) -> None:
    import torch

    rollouts = RolloutFunction(guess, AGENT, seed=3)
    seen: list[dict[str, Any]] = []

    def watch(prompts: Any, trainer: Any) -> Any:
        before = {name: value.clone() for name, value in trainer.model.named_parameters()}
        out = rollouts(prompts, trainer)
        assert trainer.model.training
        assert all(torch.equal(value, before[name]) for name, value in trainer.model.named_parameters())
        seen.append({**out, "prompts": prompts})
        check_against_trl(trainer, out)
        return out

    options = {}
    if adapter:
        import peft

        options["peft_config"] = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    watch.env = guess  # type: ignore[attr-defined]
    trainer = make_trainer(tmp_path, watch, **options)  # type: ignore[arg-type]
    initial = {name: value.detach().clone() for name, value in trainer.model.named_parameters() if value.requires_grad}
    trainer.train()
    assert trainer.state.global_step == 3 and len(seen) == 3
    assert any(not torch.equal(value, initial[n]) for n, value in trainer.model.named_parameters() if n in initial)
    for batch in seen:
        assert batch["prompts"][:4] == [batch["prompts"][0]] * 4 and batch["prompts"][4] != batch["prompts"][0]
        assert batch["prompt_ids"][0] == batch["prompt_ids"][3]
        assert any(0 in mask for mask in batch["env_mask"])
    name = "rewards/get_episode_reward/mean"
    logged = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert logged == pytest.approx([float(np.mean(batch["episode_reward"])) for batch in seen])


def check_against_trl(trainer: Any, out: dict[str, Any]) -> None:
    """The log-probs are those that TRL computes for the same tokens; what the world said has none and is masked."""
    import torch

    for prompt, tokens, mask, ours in zip(
        *(out[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")), strict=True
    ):
        ids = torch.tensor([[*prompt, *tokens]])
        with torch.no_grad():
            theirs, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model.eval(), ids, torch.ones_like(ids), len(tokens)
            )
        trainer.model.train()
        chosen = np.array(mask, dtype=bool)
        assert chosen.any() and np.allclose(theirs[0].numpy()[chosen], np.array(ours)[chosen], atol=2e-5)


def test_what_cannot_be_trained_so_is_refused(guess: Any) -> None:
    with pytest.raises(OptionError, match="context: session"):
        RolloutFunction(guess, {"context": "window"})
    with pytest.raises(OptionError, match="constrained"):
        RolloutFunction(guess, {"decoding": {"constrained": True}})
    assert find_group_tasks(["a", "a", "b", "b", "b", "b"], 2) == ["a", "b", "b"]
    with pytest.raises(OptionError, match="whole groups"):
        find_group_tasks(["a", "a", "b"], 2)
    with pytest.raises(DataError, match="make_task_rows"):
        find_group_tasks([[{"role": "user"}]], 1)  # type: ignore[list-item]


def test_an_episode_without_a_word_is_a_row_that_teaches_nothing() -> None:
    row = convert_trajectory(Trajectory("guess/train/00001", 0, ()), 7)
    assert row["env_mask"] == [0] and row["completion_ids"] == [7] and row["episode_reward"] == 0.0


# ---- the model calls tools --------------------------------------------------------------------------------------


def test_an_environment_for_tools_plays_one_episode(guess: Any) -> None:
    instance = make_environment_factory(guess)()
    (row,) = make_tool_rows(guess, ["guess/train/00003"])
    opening = instance.reset(**row)
    assert "between 1 and" in opening and "- guess 1" in opening
    twin = ToolEnvironment(guess)
    assert twin.reset(**row) == opening
    number = guess.pool["guess/train/00003"].payload.number
    assert "That is not a guess" in instance.act("nonsense") and instance.get_reward() == 0.0
    assert "The episode is over" in instance.act(f"guess {number}") and instance.get_reward() == 1.0
    with pytest.raises(OptionError, match="episode is over"):
        instance.act("guess 1")
    assert twin.get_reward() == 0.0 and "number" in twin.act("nonsense") + opening
    instance.reset(**row)
    assert instance.get_reward() == 0.0


def test_three_steps_with_tool_calls(guess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL renders, parses and calls; what the model says is scripted here, for a random model calls no tools."""
    from datasets import Dataset

    vocabulary = [*guess.vocabulary(), "user system assistant tool function name arguments act action guess number"]
    plain, tokenizer = make_tiny_model(vocabulary, context_length=8192)
    model = plain.to_transformers()
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.hf.chat_template = template.read_text()
    tokenizer.hf.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    model.resize_token_embeddings(len(tokenizer.hf))
    rows = make_tool_rows(guess, guess.pool.ids[:8])
    trainer = trl.GRPOTrainer(
        model,
        args=make_config(tmp_path, max_completion_length=4096),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer.hf,
        environment_factory=make_environment_factory(guess),
    )
    spoken: list[str] = []

    def say(prompt_ids: list[list[int]], *rest: Any, **options: Any) -> tuple[list[list[int]], None]:
        """The right number in every second rollout of a group at once, a wrong one in the others; then the end."""
        said = []
        for place, ids in enumerate(prompt_ids):
            prompt = trainer.processing_class.decode(ids)
            spoken.append(prompt)
            if "tool_response" in prompt or "The episode is over" in prompt:
                text = "done"
            else:
                number = trainer.environments[place]._episode.state.hidden.number
                call = {"name": "act", "arguments": {"action": f"guess {number if place % 2 else 10**6}"}}
                text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
            said.append(trainer.processing_class.encode(f"{text}<|im_end|>", add_special_tokens=False))
        return said, None

    monkeypatch.setattr(trainer, "_generate_single_turn", say)
    trainer.train()
    assert trainer.state.global_step == 3
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [entry["reward"] for entry in logs] == [0.5] * 3
    assert all(entry["tools/call_frequency"] == 1.0 and entry["tools/failure_frequency"] == 0.0 for entry in logs)
    assert all(math.isfinite(entry["loss"]) and entry["grad_norm"] > 0 for entry in logs)
    assert "I think of a number" in spoken[0] and '"name": "act"' in spoken[0]
    assert any("Yes, it is" in prompt for prompt in spoken)
