"""Packed rows against each model's own forward pass: values and gradients, over random rows, models and losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.model import layer
from fedagentgym.agents.model.architectures import fits
from fedagentgym.agents.model.packed import batch_by_nodes, find_queries, pack
from fedagentgym.learning import forward, memory
from fedagentgym.learning.losses import Tokens
from fedagentgym.learning.passes import token_losses
from fedagentgym.learning.penalties import compute_k3
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Row

VOCABULARY = 31
CPU = torch.device("cpu")
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 8}),
    "llama": (transformers.LlamaConfig, {"rope_parameters": LLAMA3}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
}


def make_model(kind: str, lora: bool = False, targets: Any = "all-linear") -> Any:
    config, more = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config(**SIZES, **more)).eval()
        if lora:
            peft = pytest.importorskip("peft")
            model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"))
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.1)
    return model


def make_rows(seed: int, count: int, constrained: bool) -> list[Row]:
    """Rows that share beginnings of any length with each other, some wholly; scored tokens anywhere but at the start."""
    random = np.random.default_rng(seed)
    trunk = random.integers(VOCABULARY, size=24)
    rows = []
    for _ in range(count):
        tail = random.integers(VOCABULARY, size=random.integers(0, 16))
        ids = np.concatenate([trunk[: random.integers(2, len(trunk))], tail]).astype(np.int64)
        own = np.sort(random.choice(np.arange(1, len(ids)), size=random.integers(0, len(ids)), replace=False))
        allowed: list[np.ndarray[Any, Any]] = []
        if constrained and random.random() < 0.7:
            for token in ids[own]:
                others = random.choice(VOCABULARY, size=random.choice([0, 0, 1, 5]), replace=False)
                allowed.append(np.unique(np.append(others, token)))
        flat = np.concatenate([np.zeros(0), *allowed]).astype(np.int32)
        rows.append(
            Row(
                ids,
                own.astype(np.int64),
                -random.random(len(own)).astype(np.float32) * 2,
                random.standard_normal(len(own)),
                flat,
                np.array([len(choice) for choice in allowed], dtype=np.int32),
            )
        )
    return rows


@contextmanager
def plain_passes() -> Iterator[None]:
    """Every model through its own forward pass, over padded rows."""
    with mock.patch.object(forward, "fits", lambda config: False):
        yield


def compute_gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]


def compute_loss(model: Any, rows: list[Row], kl: bool, entropy: bool, **options: Any) -> tuple[torch.Tensor, ...]:
    scores = forward.compute_logprobs(model, rows, CPU, 0.7, entropy, **options)
    chosen = LearningSettings(kl=0.1 if kl else 0.0, entropy=0.05)  # type: ignore[arg-type]
    behaviour = torch.from_numpy(np.concatenate([row.behaviour for row in rows]))
    advantages = torch.from_numpy(np.concatenate([row.advantages for row in rows]).astype(np.float32))
    terms = [(kl, compute_k3(scores.logprobs, behaviour - 0.1))] if kl else []
    tokens = Tokens(scores.logprobs, behaviour, advantages, tuple(len(row.own) for row in rows))
    parts = token_losses(tokens, chosen, terms, scores.entropy)
    return parts.loss.sum(), scores.logprobs


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    norm = torch.sqrt(sum((g.double().square().sum() for g in wanted), torch.zeros((), dtype=torch.float64)))
    apart = torch.sqrt(
        sum(
            ((f.double() - w.double()).square().sum() for f, w in zip(found, wanted, strict=True)),
            torch.zeros((), dtype=torch.float64),
        )
    )
    assert float(apart) <= 1e-5 * float(norm) + 1e-9


MODELS = {(kind, lora): make_model(kind, lora).double() for kind in KINDS for lora in (False, True)}
"""In double precision, so that what is drawn never shows more than the rounding of the float32 scores; the tests below have
float32 models."""


@given(
    st.sampled_from(sorted(MODELS)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0]),
    st.sampled_from([0, layer.SMALL_MATRIX]),
)
def test_values_and_gradients_are_those_of_the_models_own_pass(
    which: tuple[str, bool],
    seed: int,
    count: int,
    constrained: bool,
    kl: bool,
    entropy: bool,
    kept: int | None,
    small: int,
) -> None:
    """Also where matrices and vocabulary count as large."""
    model, rows = MODELS[which], make_rows(seed, count, constrained)
    assert fits(forward.unwrap_model(model).config)
    with mock.patch.object(layer, "SMALL_MATRIX", small), mock.patch.object(forward, "LARGE_VOCABULARY", small):
        loss, scores = compute_loss(model, rows, kl, entropy, kept=kept)
        gradients = compute_gradients(model, loss) if loss.requires_grad else []
    with plain_passes():
        wanted_loss, wanted = compute_loss(model, rows, kl, entropy)
    torch.testing.assert_close(scores, wanted, atol=1e-5, rtol=0)
    assert loss.requires_grad == any(len(forward.find_choices(row)) for row in rows)
    if loss.requires_grad:
        assert_same(gradients, compute_gradients(model, wanted_loss))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_plain_pass_is_the_full_forward_pass_row_by_row(kind: str) -> None:
    model, rows = make_model(kind), make_rows(3, 6, constrained=False)
    alone = []
    for row in rows:
        logits = model(input_ids=torch.from_numpy(row.ids)[None]).logits[0] / 0.7
        alone.append(torch.log_softmax(logits, -1)[torch.from_numpy(row.own - 1), torch.from_numpy(row.ids[row.own])])
    found = forward.compute_logprobs(model, rows, CPU, 0.7).logprobs
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=0)
    with plain_passes():
        torch.testing.assert_close(
            forward.compute_logprobs(model, rows, CPU, 0.7).logprobs, torch.cat(alone), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("lora", [False, True])
def test_what_is_computed_again_has_the_same_bits(lora: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "SMALL_MATRIX", 0)
    model, rows = make_model("qwen3", lora), make_rows(1, 8, constrained=True)
    whole, again = (compute_gradients(model, compute_loss(model, rows, True, True, kept=kept)[0]) for kept in (None, 0))
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "lm_head"], None])
def test_chunks_of_logits_change_nothing(targets: Any) -> None:
    model = make_model("llama", targets is not None, targets)
    rows = make_rows(2, 8, constrained=True)
    one = compute_gradients(model, compute_loss(model, rows, True, True)[0])
    with mock.patch.dict(memory.CHUNK_LOGITS, cpu=5 * VOCABULARY):
        cut = compute_gradients(model, compute_loss(model, rows, True, True)[0])
    assert_same(cut, one)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_gradient_of_a_bias_behind_the_last_block_is_the_same(kind: str) -> None:
    model, rows, found = make_model(kind), make_rows(5, 6, constrained=True), []
    for context in (nullcontext, plain_passes):
        bias = torch.zeros(SIZES["hidden_size"], requires_grad=True)
        with context():
            loss, _ = compute_loss(model, rows, False, False, bias=bias)
        found.append(torch.autograd.grad(loss, bias)[0])
    assert_same(found[:1], found[1:])


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_narrow_numbers_and_autocast_take_the_same_way(kind: str) -> None:
    """The two ways round in other places, so they agree as well as each of them agrees with full precision."""
    rows, model = make_rows(7, 6, constrained=False), make_model(kind)
    exact = compute_loss(model, rows, False, False)[1].detach()
    for context in (nullcontext, plain_passes):
        with context(), torch.autocast("cpu", dtype=torch.bfloat16):
            loss, scores = compute_loss(model, rows, False, False)
        assert all(torch.isfinite(gradient).all() for gradient in compute_gradients(model, loss))
        assert float((scores.detach() - exact).abs().mean()) < 0.05
    model.to(torch.bfloat16)
    for context in (nullcontext, plain_passes):
        with context():
            loss, scores = compute_loss(model, rows, False, False)
        assert all(gradient.dtype == torch.bfloat16 for gradient in compute_gradients(model, loss))
        assert float((scores.detach() - exact).abs().mean()) < 0.1


def test_other_architectures_are_left_to_their_own_pass() -> None:
    assert not fits(make_config_only("gpt2"))
    sliding = transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    assert not fits(sliding)
    assert not fits(transformers.MistralConfig(**SIZES, sliding_window=8))
    assert not fits(transformers.LlamaConfig(**SIZES, attention_dropout=0.1))


def make_config_only(kind: str) -> Any:
    return transformers.AutoConfig.for_model(kind)


rows_of_ids = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


@given(rows_of_ids, st.integers(0, 2**16))
def test_a_tree_holds_every_beginning_once_and_every_row_whole(given_rows: list[list[int]], seed: int) -> None:
    rows = [np.array(row, dtype=np.int64) for row in given_rows]
    tree = pack(rows)
    for row, path in zip(rows, tree.paths, strict=True):
        assert tree.ids[path].tolist() == row.tolist()
        assert tree.positions[path].tolist() == list(range(len(row)))
    assert len(tree.ids) == len({tuple(row[: end + 1]) for row in given_rows for end in range(len(row))})
    assert sorted(np.concatenate([table.nodes for table in tree.tables]).tolist()) == list(range(len(tree.ids)))
    wanted = np.unique(np.random.default_rng(seed).integers(len(tree.ids), size=4))
    found = []
    for table in tree.tables:
        assert table.keys.ravel()[table.places].tolist() == table.nodes.tolist()
        part = find_queries(table, wanted)
        assert part.indices.ravel()[part.places].tolist() == part.wanted.tolist()
        assert part.positions.ravel()[part.places].tolist() == tree.positions[wanted[part.wanted]].tolist()
        found += part.wanted.tolist()
    assert sorted(found) == list(range(len(wanted)))


@given(rows_of_ids, st.integers(1, 40))
def test_micro_batches_hold_every_row_once_and_so_many_nodes(given_rows: list[list[int]], most: int) -> None:
    rows = [np.array(row, dtype=np.int64) for row in given_rows]
    batches = batch_by_nodes(rows, most)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows)))
    for batch in batches:
        assert len(batch) == 1 or len(pack([rows[index] for index in batch]).ids) <= most
