"""The GPU's code on a pretended GPU: nothing mixes devices, and every product runs in the type that it should.

The models are small and have no numbers; see `pretended.py` for what is given by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.decoder.cached import merge_weight
from fedagentgym.agents.engines.loading import choose_device, choose_dtype
from fedagentgym.agents.engines.torch_policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.streams import stream
from fedagentgym.envs import open_env
from fedagentgym.learning import memory
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.forward import embed
from fedagentgym.learning.local import LocalTraining, SiteState
from fedagentgym.learning.memory import CHUNK_LOGITS, GPU_SHARE, MOST_TOKENS, estimate_token_bytes, find_pass_limits
from fedagentgym.learning.penalties import Proximal
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings, SupervisedSettings
from fedagentgym.learning.supervised import SupervisedTraining, make_examples
from fedagentgym.learning.trajectory import build_rows

from .pretended import CUDA, MEMORY, PretendedCuda, load_guard, pretend

BF16, FP32 = torch.bfloat16, torch.float32
KINDS = ("full", "lora", "narrow")
"""All weights in float32; an adapter on a base in bfloat16; all weights in bfloat16, with masters in float32."""
ARCHITECTURES = ("Qwen2", "Qwen3", "Llama", "Mistral")
SLOW = pytest.mark.slow
MOST_KINDS = ("full", pytest.param("lora", marks=SLOW), pytest.param("narrow", marks=SLOW))
WORLD = "fedagentgym/Guess-v0"
WORLD_TASKS = open_env(WORLD).pool.ids[:2]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model of every architecture, made on the processor; Mistral's has a window, which our own passes leave to it."""
    import transformers

    from fedagentgym.agents.engines.tiny import make_tiny_model

    base = tmp_path_factory.mktemp("models")
    plain, tokenizer = make_tiny_model(open_env(WORLD).vocabulary(), context_length=256)
    sizes = {name: getattr(plain.config, name) for name in ("vocab_size", "hidden_size", "intermediate_size")}
    stops = {name: getattr(plain.config, name) for name in ("eos_token_id", "pad_token_id")}
    for name in ARCHITECTURES:
        config = getattr(transformers, f"{name}Config")(
            **sizes, **stops, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16
        )
        config.max_position_embeddings = 256
        if name == "Mistral":
            config.sliding_window = 16
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        model.generation_config.eos_token_id = stops["eos_token_id"]
        model.save_pretrained(base / name)
        tokenizer.hf.save_pretrained(base / name)
    return {name: base / name for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def groups(folders: dict[str, Path]) -> list[Any]:
    """Two groups of two short episodes, played on the processor."""
    agent = open_agent(folders["Qwen2"])
    return list(collect(agent, open_env(WORLD, max_turns=2), WORLD_TASKS, group_size=2, seed=3).groups)


@pytest.fixture
def gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    load_guard(root / ".cache" / "tests")
    with pretend(monkeypatch) as mode:
        yield mode


def open_agent(folder: Path, kind: str = "full", forward: str = "auto") -> TokenAgent:
    adapter = AdapterSettings(rank=4, alpha=8.0) if kind == "lora" else None
    dtype = "bfloat16" if kind == "narrow" else choose_dtype(adapter is not None, choose_device("auto"))
    policy = TorchPolicy.load(folder, dtype=dtype, device="auto", adapter=adapter, forward=forward)
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
def test_a_model_is_loaded_onto_the_gpu(gpu: PretendedCuda, folders: dict[str, Path], kind: str) -> None:
    agent = open_agent(folders["Qwen2"], kind)
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


@pytest.mark.parametrize(
    ("forward", "architecture"),
    [
        ("hf", "Qwen3"),
        ("own", "Qwen3"),
        *(pytest.param("hf", name, marks=SLOW) for name in ("Qwen2", "Llama", "Mistral")),
        *(pytest.param("own", name, marks=SLOW) for name in ("Qwen2", "Llama")),
    ],
)
def test_a_session_prefills_and_decodes(
    gpu: PretendedCuda, folders: dict[str, Path], forward: str, architecture: str
) -> None:
    """By default the model's own modules run, under autocast, as in training; our own pass runs in the type of the weights."""
    policy = open_agent(folders[architecture], forward=forward).policy
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
        assert session.slots.dtype == (BF16 if forward == "hf" else FP32)
    assert len(answers) == 8 and all(answer.token_ids == (30, 30) for answer in answers)
    assert gpu.list_product_dtypes() == {BF16 if forward == "hf" else FP32}


class EvenTokens:
    """A constraint: three tokens are allowed everywhere."""

    def start(self) -> int:
        return 0

    def get_allowed_tokens(self, state: int) -> tuple[int, ...]:
        return (28, 30, 32)

    def advance(self, state: int, token: int) -> int:
        return state + 1


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["own", "hf"])
def test_constrained_and_nucleus_sampling_stay_on_the_gpu(
    gpu: PretendedCuda, folders: dict[str, Path], forward: str
) -> None:
    policy = open_agent(folders["Qwen2"], forward=forward).policy
    with policy.open_session() as session:
        rows = session.open([[1, 2, 3], [1, 2]])
        (one, two) = session.generate(rows, [stream(0, row) for row in rows], Decoding(max_new_tokens=2, top_p=0.9))
        greedy = session.generate(rows, [stream(0, row) for row in rows], Decoding(max_new_tokens=2, temperature=0.0))
        bound = [EvenTokens(), EvenTokens()]
        told = session.generate(rows, [stream(0, row) for row in rows], Decoding(max_new_tokens=3), bound)
        mixed = session.generate(rows, [stream(0, row) for row in rows], Decoding(max_new_tokens=3), [bound[0], None])
    assert one.token_ids == two.token_ids == greedy[0].token_ids == (30, 30)
    assert {answer.token_ids for answer in (*told, *mixed)} == {(30, 30, 30)}


@pytest.mark.parametrize("forward", ["hf", pytest.param("own", marks=SLOW)])
def test_an_adapter_is_merged_and_taken_out_again(gpu: PretendedCuda, folders: dict[str, Path], forward: str) -> None:
    policy = open_agent(folders["Qwen3"], "lora", forward).policy
    layers = [module for module in policy.model.modules() if hasattr(module, "get_delta_weight")]
    before = [layer.get_base_layer().weight.data for layer in layers]
    assert {merge_weight(layer).dtype for layer in layers} == {BF16}
    with policy.open_session() as session:
        merged = [layer.get_base_layer().weight for layer in layers]
        assert {(weight.device, weight.dtype) for weight in merged} == {(CUDA, BF16)}
        assert all(bool(layer.merged) == (forward == "hf") for layer in layers)
        rows = session.open([[1, 2, 3]])
        assert session.generate(rows, [stream(0)], Decoding(max_new_tokens=2))[0].token_ids == (30, 30)
        assert session.slots.dtype == BF16
    assert not any(layer.merged for layer in layers)
    assert all(
        layer.get_base_layer().weight.shape == weight.shape for layer, weight in zip(layers, before, strict=True)
    )
    assert gpu.list_product_dtypes() >= {BF16}


def test_an_evaluation_plays_on_the_gpu(gpu: PretendedCuda, folders: dict[str, Path]) -> None:
    agent = open_agent(folders["Llama"])
    found = evaluate(agent, open_env(WORLD, max_turns=1), EvaluationSettings(tasks=2))
    assert found.tasks == 2 and found.overall["success"].mean == 0.0
    assert gpu.list_product_dtypes() == {BF16}


@pytest.mark.slow
def test_texts_are_embedded_on_the_gpu(gpu: PretendedCuda, folders: dict[str, Path]) -> None:
    policy = open_agent(folders["Qwen2"], "lora").policy
    assert embed(policy, ["guess 3", "guess 4 5"]).shape == (2, 64)


# ---- learning ---------------------------------------------------------------------------------------------------------

UPDATES: tuple[Any, ...] = (
    ("full", {"kl": 0.1, "proximal": True}),
    ("lora", {"kl": {"coefficient": 0.1, "reference": "base"}, "entropy": 0.01, "minibatch_rows": 2}),
    pytest.param("narrow", {"kl": {"coefficient": 0.1, "reference": "base"}, "proximal": True}, marks=SLOW),
    pytest.param("full", {"checkpointing": True, "micro_tokens": 40}, marks=SLOW),
    pytest.param("lora", {"checkpointing": True, "minibatch_rows": 2, "gradient_epochs": 2}, marks=SLOW),
    pytest.param("narrow", {"minibatch_rows": 2, "gradient_clip": None}, marks=SLOW),
)


@pytest.mark.parametrize(("kind", "options"), UPDATES)
def test_a_policy_update_runs_on_the_gpu(
    gpu: PretendedCuda, folders: dict[str, Path], groups: list[Any], kind: str, options: dict[str, Any]
) -> None:
    """Products run in bfloat16; gradients, moments, anchors and what is sent are float32."""
    agent = open_agent(folders["Qwen3"], kind)
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


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["Mistral", "Llama"])
def test_other_architectures_are_updated_on_the_gpu(
    gpu: PretendedCuda, folders: dict[str, Path], groups: list[Any], architecture: str
) -> None:
    """Mistral with a window runs through its own modules, over padded rows."""
    local = start(open_agent(folders[architecture]), micro_tokens=60)
    gpu.products.clear()
    assert update(local, groups)["update/skipped"] == 0
    assert gpu.list_product_dtypes() == {BF16}


@pytest.mark.parametrize("kind", MOST_KINDS)
def test_logits_in_parts_are_scored_on_the_gpu(
    gpu: PretendedCuda, folders: dict[str, Path], groups: list[Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of several chunks of logits is added up by a pass of our own, in the types of autocast."""
    agent = open_agent(folders["Qwen2"], kind)
    local = start(agent)
    monkeypatch.setitem(CHUNK_LOGITS, "cuda", 4 * agent.tokenizer.size)
    gpu.products.clear()
    assert update(local, groups)["update/skipped"] == 0
    assert gpu.list_product_dtypes() == {BF16}


@pytest.mark.slow
def test_gradients_of_objectives_are_computed_on_the_gpu(
    gpu: PretendedCuda, folders: dict[str, Path], groups: list[Any]
) -> None:
    local = start(open_agent(folders["Qwen2"]))
    rows = build_rows(groups, [[np.ones(len(each.turns)) for each in group] for group in groups])
    gradient = local._updater.compute_bias_gradient(rows)
    assert gradient.shape == (64,) and gradient.dtype == np.float64


@pytest.mark.parametrize("kind", MOST_KINDS)
def test_clients_take_turns_on_the_gpu_and_swap_answers(
    gpu: PretendedCuda, folders: dict[str, Path], groups: list[Any], kind: str
) -> None:
    """PubSwap: two clients on one resident model; each scores the other's answers anew and learns from them."""
    agent = open_agent(folders["Qwen2"], kind)
    local = start(agent, proximal=True)
    here = local.get_state(optimizer=True, anchor=True)
    local.load_state(SiteState(here.weights))
    (strange,) = local.recompute_logprobs(groups[1:])
    update(local, [groups[0], strange])
    other = local.get_state(optimizer=True, anchor=True)
    local.load_state(here)
    local.load_state(other)
    assert find_places(agent) <= {("cuda", BF16), ("cuda", FP32)}
    masters = local._updater._weights.full
    assert {(value.device, value.dtype) for value in masters.values()} == {(CUDA, FP32)}


@pytest.mark.parametrize("kind", MOST_KINDS)
def test_a_supervised_step_runs_on_the_gpu(
    gpu: PretendedCuda, folders: dict[str, Path], groups: list[Any], kind: str
) -> None:
    agent = open_agent(folders["Qwen3"], kind)
    settings = SupervisedSettings(steps=2, batch_size=2, matrix_rate=None if kind == "lora" else 0.01)
    gpu.products.clear()
    training = SupervisedTraining(agent.policy, settings)
    examples = make_examples([trajectory for group in groups for trajectory in group])
    assert np.isfinite(training.run(examples, seed=1)).all()
    assert {(value.device, value.dtype) for value in training._weights.full.values()} == {(CUDA, FP32)}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_read_and_set_on_the_gpu(gpu: PretendedCuda, folders: dict[str, Path], kind: str) -> None:
    policy = open_agent(folders["Llama"], kind).policy
    weights = policy.get_weights()
    assert {value.dtype for value in weights.values()} == {np.dtype(np.float32)}
    policy.set_weights(weights)
    assert {weight.device for weight in policy.parameters().values()} == {CUDA}


def test_a_gpu_takes_long_passes(gpu: PretendedCuda, folders: dict[str, Path]) -> None:
    policy = open_agent(folders["Qwen2"]).policy
    limits = find_pass_limits(policy.model, policy.device, "auto")
    per_token = estimate_token_bytes(policy.model)
    assert limits.micro_tokens == MOST_TOKENS["cuda"] <= MEMORY // GPU_SHARE // per_token
    assert limits.kept == MEMORY // GPU_SHARE // per_token
    assert memory.read_free_bytes(CUDA) == MEMORY
