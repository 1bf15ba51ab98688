"""TRL's own trainer on our worlds: by tools that the model calls, and by our rollouts."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedagentgym
from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.settings import AgentSettings
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

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using"),
    pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed"),
]

AGENT = {"template": "compact", "think": False, "chat": False, "decoding": {"max_new_tokens": 6}}


def make_config(folder: Path, **changes: Any) -> Any:
    import trl

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
    import trl
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
    """The log-probs are those that TRL computes for the same tokens; what the environment wrote has none and is masked."""
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
    with pytest.raises(OptionError, match="set context to session"):
        RolloutFunction(guess, {"context": "window"})
    with pytest.raises(OptionError, match="constrained"):
        RolloutFunction(guess, {"decoding": {"constrained": True}})
    for unused in (
        {"model": "smollm2"},
        {"adapter": {"rank": 8}},
        {"harness": {"command": ["play"]}},
        {"name": "endpoint", "model": "x"},
        {"options": {"noise": 0.5}},
        {"rollouts": "vllm"},
        AgentSettings(name="expert"),
        AgentSettings(device="cpu"),
    ):
        with pytest.raises(OptionError, match=r"leave it out|does not use"):
            RolloutFunction(guess, unused)
    assert RolloutFunction(guess, AgentSettings(history=1)).settings.name == "trl"
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


@pytest.mark.parametrize(
    ("env_id", "options"),
    [("fedagentgym/Records-v0", {}), ("fedagentgym/QA-v0", {"tools": ["search"], "corpus": "all"})],
)
def test_queries_and_searches_by_tool_calls_are_those_of_the_environment(env_id: str, options: dict[str, Any]) -> None:
    env: Any = open_env(env_id, split="val", **options)
    instance = make_environment_factory(env)()
    for row in make_tool_rows(env, env.pool.ids[:6]):
        said = [instance.reset(**row)]
        (episode,) = env.reset_many([row["task"]], [row["seed"]])
        assert episode.view.observation in said[0]
        expert = env.expert()
        while not episode.over:
            action = expert.act(episode)
            (episode,) = env.step_many([episode], [action])
            assert episode.view.observation in instance.act(action)
        assert instance.get_reward() == episode.reward == 1.0


def train_with_tool_calls(
    guess: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, factory: Any, rows: list[dict[str, Any]] | None
) -> list[str]:
    """TRL renders, parses and calls; what the model says is scripted here, for a random model calls no tools."""
    import trl
    from datasets import Dataset

    vocabulary = [*guess.vocabulary(), "user system assistant tool function name arguments act action guess number"]
    plain, tokenizer = make_tiny_model(vocabulary, context_length=8192)
    model = plain.to_transformers()
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.hf.chat_template = template.read_text()
    tokenizer.hf.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    model.resize_token_embeddings(len(tokenizer.hf))
    trainer = trl.GRPOTrainer(
        model,
        args=make_config(folder, max_completion_length=4096),
        train_dataset=None if rows is None else Dataset.from_list(rows),
        processing_class=tokenizer.hf,
        environment_factory=factory,
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
    return spoken


def test_three_steps_with_tool_calls(guess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_tool_rows(guess, guess.pool.ids[:8])
    train_with_tool_calls(guess, tmp_path, monkeypatch, make_environment_factory(guess), rows)


@pytest.mark.slow
def test_three_steps_on_the_environments_of_two_clients(
    guess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = fedagentgym.federate("fedagentgym/Guess-v0", clients=2, tasks_per_client=4, env={"max_turns": 3})
    envs = {f"client {number}": client.open_env() for number, client in enumerate(split)}
    factories = {name: make_environment_factory(env) for name, env in envs.items()}
    rows = [row for name, env in envs.items() for row in make_tool_rows(env, environment=name)]
    assert {row["environment"] for row in rows} == {"client 0", "client 1"}
    train_with_tool_calls(guess, tmp_path, monkeypatch, factories, rows)


@pytest.mark.slow
def test_three_steps_without_a_data_set(guess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = make_environment_factory(guess, group_size=4)
    train_with_tool_calls(guess, tmp_path, monkeypatch, factory, None)


def test_without_a_data_set_neighbours_begin_alike(guess: Any) -> None:
    factory = make_environment_factory(guess, group_size=2, seed=3)
    rollouts = [factory() for _ in range(4)]
    first, second = ([one.reset(prompt=[]) for one in rollouts] for _ in range(2))
    begun = [one._episode.task.id for one in rollouts]  # type: ignore[union-attr]
    assert begun[0] == begun[1] and begun[2] == begun[3] and "calling the tool" in first[0]
    assert first[0] == first[1] and second[2] == second[3]
    drawn = {factory().reset() for _ in range(40)}
    assert len(drawn) > 1
    with pytest.raises(OptionError, match="group_size"):
        make_environment_factory(guess)().reset()
    with pytest.raises(OptionError, match="at least 1"):
        make_environment_factory(guess, group_size=0)


# ---- the trainer's own generation --------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_steps_on_a_reward_by_task_id(tmp_path: Path) -> None:
    import trl
    from datasets import Dataset

    reward = fedagentgym.make_reward("skills", split="val")
    env = reward.env
    model, tokenizer = make_tiny_model(env.vocabulary(), context_length=512)
    dataset = Dataset.from_list(list(env.pool.subset(env.pool.ids[:8]).to_dataset(env=env)))
    trainer = trl.GRPOTrainer(
        model.to_transformers(),
        reward_funcs=[reward, count_letters],
        args=make_config(tmp_path, max_completion_length=8),
        train_dataset=dataset,
        processing_class=tokenizer.hf,
    )
    trainer.train()
    assert trainer.state.global_step == 3
    assert any("rewards/fedagentgym/Skills-v0/mean" in entry for entry in trainer.state.log_history)


class StandInVllm:
    """Generates as `VLLMGeneration` does, by greedy choice of the trainer's model."""

    mode, max_completion_length, generation_kwargs, max_model_length = "colocate", 256, None, 200

    def __init__(self, model: Any) -> None:
        self.model = model
        self.lengths: set[int] = set()

    def generate(self, prompts: Any, images: None, num_generations: int) -> Any:
        import torch

        assert images is None and num_generations == 1
        self.lengths.add(self.max_completion_length)
        stops = self.generation_kwargs["stop_token_ids"]  # type: ignore[index]
        replies: list[list[int]] = []
        for prompt in prompts:
            reply: list[int] = []
            while len(reply) < self.max_completion_length and (not reply or reply[-1] not in stops):
                with torch.no_grad():
                    logits = self.model(torch.tensor([[*prompt, *reply]])).logits
                reply.append(int(logits[0, -1].argmax()))
            replies.append(reply)
        return prompts, replies, [[[-0.5] for _ in reply] for reply in replies], [[[t] for t in r] for r in replies]


def test_rollouts_are_generated_by_the_trainer_s_vllm(guess: Any, tmp_path: Path) -> None:
    rollouts = RolloutFunction(guess, AGENT, seed=3)
    trainer = make_trainer(tmp_path, rollouts)
    trainer.use_vllm, trainer.vllm_generation = True, StandInVllm(trainer.model.eval())
    tasks = [task for task in guess.pool.ids[:2] for _ in range(4)]
    trainer.num_generations_eval = 4
    out = rollouts(tasks, trainer)
    assert len(out["completion_ids"]) == 8 and trainer.vllm_generation.lengths == {6}
    assert trainer.vllm_generation.max_completion_length == 256
    for mask, logprobs in zip(out["env_mask"], out["logprobs"], strict=True):
        assert {value for value, own in zip(logprobs, mask, strict=True) if own} == {-0.5}
    shared = StandInVllm(trainer.model)
    shared.tensor_parallel_size = 2  # type: ignore[attr-defined]
    again = RolloutFunction(guess, AGENT)
    trainer.vllm_generation = shared
    with pytest.raises(OptionError, match="tensor_parallel"):
        again(tasks, trainer)
