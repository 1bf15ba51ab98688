"""What the documentation says of a GPU, on a pretended one: types of weights and products, lengths of passes, no mix of devices.

docs/reference/agents.md (types of weights), docs/how-to/estimate-a-run.md (types of products, gradients and moments) and
docs/explanation/tokens.md (lengths of passes). The models are small and have no numbers; see `pretended.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.loading import choose_device, choose_dtype, make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.streams import stream
from fedagentgym.envs import open_env
from fedagentgym.learning import memory
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.memory import GPU_SHARE, MAX_TOKENS, estimate_token_bytes, find_pass_limits
from fedagentgym.learning.penalties import Proximal
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import LearningSettings

from .pretended import CUDA, MEMORY, PretendedCuda, load_guard, pretend

BF16, FP32 = torch.bfloat16, torch.float32
KINDS = ("full", "lora", "narrow")
"""All weights in float32; an adapter on a base in bfloat16; all weights in bfloat16, with masters in float32."""
WORLD = "fedagentgym/Guess-v0"
WORLD_TASKS = open_env(WORLD).pool.ids[:2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, made on the processor."""
    import transformers

    place = tmp_path_factory.mktemp("model")
    plain, tokenizer = make_tiny_model(open_env(WORLD).vocabulary(), context_length=256)
    kept = ("vocab_size", "hidden_size", "intermediate_size", "eos_token_id", "pad_token_id")
    config = transformers.Qwen3Config(
        **{name: getattr(plain.config, name) for name in kept},
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
    )
    model = transformers.Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(place)
    tokenizer.hf.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def groups(folder: Path) -> list[Any]:
    """Two groups of two short episodes, played on the processor."""
    agent = open_agent(folder)
    return list(collect(agent, open_env(WORLD, max_turns=2), WORLD_TASKS, group_size=2, seed=3).groups)


@pytest.fixture
def gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    load_guard(root / ".cache" / "tests")
    with pretend(monkeypatch) as mode:
        yield mode


def open_agent(folder: Path, kind: str = "full") -> TokenAgent:
    adapter = AdapterSettings(rank=4, alpha=8.0) if kind == "lora" else None
    dtype = "bfloat16" if kind == "narrow" else choose_dtype(adapter is not None, choose_device("auto"))
    policy = TorchPolicy.load(folder, dtype=dtype, device="auto", adapter=adapter)
    template = Template(system="", think=False)
    return TokenAgent("small", policy, template, Decoding(max_new_tokens=2), chat=False)


def start(agent: TokenAgent, **learning: Any) -> LocalTraining:
    penalties = [Proximal(0.5)] if learning.pop("proximal", False) else []
    settings = LearningSettings.load({"tasks_per_step": 2, "group_size": 2, "learning_rate": 1e-3, **learning})
    return LocalTraining(agent, open_env(WORLD, max_turns=2), settings, penalties=penalties)


def update(local: LocalTraining, groups: Any) -> dict[str, float]:
    """A policy step; the advantages are given, for nobody has won."""
    return local.update(groups, advantages=[[1.0, -1.0]] * len(groups)).metrics


def find_places(agent: TokenAgent) -> set[tuple[str, torch.dtype]]:
    return {(weight.device.type, weight.dtype) for weight in agent.policy.model.parameters()}


def test_a_mix_of_devices_is_caught(gpu: PretendedCuda) -> None:
    with pytest.raises(RuntimeError, match=r"two different devices|same device"):
        torch.zeros(2, 3, device=CUDA) @ torch.zeros(3, 2)
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        torch.zeros(2, device=CUDA).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_loaded_onto_the_gpu(gpu: PretendedCuda, folder: Path, kind: str) -> None:
    agent = open_agent(folder, kind)
    assert agent.policy.device == CUDA
    assert (
        find_places(agent)
        == {
            "full": {("cuda", FP32)},
            "narrow": {("cuda", BF16)},
            "lora": {("cuda", BF16), ("cuda", FP32)},
        }[kind]
    )
    assert {weight.dtype for weight in agent.policy.parameters().values()} == {BF16 if kind == "narrow" else FP32}
    assert {buffer.device for buffer in agent.policy.model.buffers()} == {CUDA}


# ---- playing ----------------------------------------------------------------------------------------------------------


def test_a_session_prefills_and_decodes(gpu: PretendedCuda, folder: Path) -> None:
    """The model's own modules run, under autocast, as in training."""
    policy = open_agent(folder).policy
    decoding = Decoding(max_new_tokens=2)
    with policy.open_session() as session:
        first = session.open([[1, 2, 3, *range(1, 12)], [1, 2, 3, *range(1, 12), 4]], copies=2)
        answers = session.generate(first, [stream(0, "a", row) for row in first], decoding)
        session.append(first, [[6], [7, 8], [6], [9]])
        session.drop(first[:1])
        more = session.open([[1, 2, 3, *range(1, 12), 9]])
        rows = [*first[1:], *more]
        answers += session.generate(rows, [stream(1, "a", row) for row in rows], decoding)
        assert {tensor.device for tensor in (*session.slots.keys, *session.slots.values)} == {CUDA}
        assert session.slots.dtype == BF16
    assert len(answers) == 8 and all(answer.token_ids == (30, 30) for answer in answers)
    assert gpu.list_product_dtypes() == {BF16}


# ---- learning ---------------------------------------------------------------------------------------------------------

UPDATES: tuple[Any, ...] = (
    ("full", {"kl": 0.1, "proximal": True}),
    ("lora", {"kl": {"coefficient": 0.1, "reference": "base"}, "entropy": 0.01, "minibatch_rows": 2}),
    ("narrow", {"minibatch_rows": 2, "gradient_clip": None}),
)


@pytest.mark.parametrize(("kind", "options"), UPDATES)
def test_a_policy_update_runs_on_the_gpu(
    gpu: PretendedCuda, folder: Path, groups: list[Any], kind: str, options: dict[str, Any]
) -> None:
    """Products run in bfloat16; gradients, moments, anchors and what is sent are float32."""
    agent = open_agent(folder, kind)
    local = start(agent, **options)
    before = agent.policy.version
    gpu.products.clear()
    metrics = update(local, groups)
    assert gpu.list_product_dtypes() == {BF16}
    assert metrics["update/skipped"] == metrics["update/empty"] == 0
    assert agent.policy.version > before
    updater = local._updater
    full = updater._weights.full
    assert {(value.device, value.dtype) for value in full.values()} == {(CUDA, FP32)}
    moments = [value for state in updater._optimizer.state.values() for name, value in state.items() if name != "step"]
    assert len(moments) == 2 * len(full)
    assert {(value.device, value.dtype) for value in moments} == {(CUDA, FP32)}
    assert {(value.device, value.dtype) for value in updater._anchor.values()} <= {(CUDA, FP32)}
    state = local.get_state(optimizer=True, anchor=True)
    arrays = [*state.weights.values(), *state.anchor.values(), *state.optimizer.values()]
    assert {array.dtype for array in arrays} <= {np.dtype(np.float32), np.dtype(np.float64)}
    assert {weight.grad for weight in agent.policy.parameters().values()} == {None}


def test_a_gpu_takes_long_passes(gpu: PretendedCuda, folder: Path) -> None:
    policy = open_agent(folder).policy
    limits = find_pass_limits(policy.model, policy.device, "auto")
    per_token = estimate_token_bytes(policy.model)
    assert limits.micro_tokens == MAX_TOKENS["cuda"] <= MEMORY // GPU_SHARE // per_token
    assert limits.kept == MEMORY // GPU_SHARE // per_token
    assert memory.read_free_bytes(CUDA) == MEMORY
