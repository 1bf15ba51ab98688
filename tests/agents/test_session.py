"""Sessions: in whatever order rows come, speak, leave and return, their log-probs are those of a full forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from fedagentgym.agents.model import cached
from fedagentgym.agents.model.architectures import fits
from fedagentgym.agents.model.cache import Chunks
from fedagentgym.agents.model.generate import TorchSession
from fedagentgym.agents.model.hf import ModuleForward
from fedagentgym.agents.model.loading import SIZES, make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import Stream, stream

from .models import WORDS, full_logprobs, make_policy, random_ids, sharpened, wake_adapter

Reply = tuple[int, list[float]]


class Play:
    """Turns with ragged prompts, chunks and replies; rows skip turns, leave, and others enter in their place."""

    def __init__(self, policy: TorchPolicy, decoding: Decoding, seed: int = 3) -> None:
        self.policy, self.decoding = policy, decoding
        self.source = stream(seed, "play")
        self.alive: dict[int, int] = {}
        self.texts: list[list[int]] = []
        self.replies: list[list[Reply]] = []
        self.streams: list[Stream] = []
        self.open_session = policy.open_session()

    def enter(self, prompts: list[list[int]], copies: int = 1) -> None:
        each = [prompt for prompt in prompts for _ in range(copies)]
        for row, ids in zip(self.open_session.open(prompts, copies), each, strict=True):
            self.alive[row] = len(self.texts)
            self.texts.append(list(ids))
            self.replies.append([])
            self.streams.append(stream(11, len(self.texts)))

    def generate(self, rows: list[int]) -> None:
        answers = self.open_session.generate(rows, [self.streams[self.alive[row]] for row in rows], self.decoding)
        stops = self.policy.tokenizer.stop_ids
        for row, answer in zip(rows, answers, strict=True):
            number = self.alive[row]
            self.replies[number].append((len(self.texts[number]), list(answer.logprobs)))
            self.texts[number] += answer.token_ids
            assert len(answer.token_ids) == len(answer.logprobs) <= self.decoding.max_new_tokens
            assert (answer.finish == "stop") is (answer.token_ids[-1] in stops)
            assert not any(token in stops for token in answer.token_ids[:-1])

    def leave(self, rows: list[int]) -> None:
        self.open_session.drop(rows)
        for row in rows:
            del self.alive[row]

    def feed(self) -> None:
        chunks = [random_ids(self.source, self.policy, 1 + (3 * index) % 11) for index in range(len(self.alive))]
        self.open_session.append(list(self.alive), chunks)
        for row, chunk in zip(self.alive, chunks, strict=True):
            self.texts[self.alive[row]] += chunk
            assert self.open_session.length(row) == len(self.texts[self.alive[row]])

    def whole(self, turns: int = 6, rows: int = 5) -> None:
        with self.open_session:
            self.enter([random_ids(self.source, self.policy, 9 + 7 * index) for index in range(rows)], copies=2)
            for turn in range(turns):
                self.generate([row for index, row in enumerate(self.alive) if (index + turn) % 4 or turn == 0])
                self.leave([row for index, row in enumerate(self.alive) if (index + turn) % 5 == 1])
                self.feed()
                if turn in (1, 3):
                    longer = self.texts[0][:14] + random_ids(self.source, self.policy, 20)
                    self.enter([longer, random_ids(self.source, self.policy, 40)])

    def check(self, atol: float = 1e-5) -> int:
        """Compare every reply with the full forward pass; return how many tokens were compared."""
        checked = 0
        for ids, said in zip(self.texts, self.replies, strict=True):
            full = full_logprobs(self.policy, ids, self.decoding.temperature)
            for start, logprobs in said:
                expected = full[start - 1 : start - 1 + len(logprobs)]
                torch.testing.assert_close(torch.tensor(logprobs, dtype=torch.float64), expected, atol=atol, rtol=0)
                checked += len(logprobs)
        return checked


@pytest.mark.parametrize("forward", ["hf", "own", "in place"])
@pytest.mark.parametrize("adapter", [False, True])
def test_logprobs_equal_a_full_forward(forward: str, adapter: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`in place`: as large models run, whose weights are not packed and whose adapters are not merged."""
    if forward == "in place":
        monkeypatch.setattr(cached, "_MAX_PACKED_PARAMETERS", 0)
    policy = make_policy("own" if forward == "in place" else forward, adapter)
    for decoding in (Decoding(max_new_tokens=9), Decoding(max_new_tokens=24, temperature=0.6)):
        play = Play(policy, decoding)
        play.whole()
        assert play.check(2e-5) > 150


@settings(max_examples=12)
@given(data=st.data())
def test_any_order_of_calls_keeps_rows_apart(data: st.DataObject) -> None:
    policy = make_policy(data.draw(st.sampled_from(["hf", "own"])))
    play = Play(policy, Decoding(max_new_tokens=data.draw(st.integers(1, 7))), data.draw(st.integers(0, 99)))
    with play.open_session:
        for _ in range(data.draw(st.integers(2, 9))):
            rows = list(play.alive)
            step = data.draw(st.sampled_from(["enter", "again", "speak", "speak", "hear", "leave"]))
            if step == "enter" or not rows:
                lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
                prompts = [random_ids(play.source, policy, length) for length in lengths]
                play.enter(prompts, data.draw(st.integers(1, 3)))
            elif step == "again":
                shared = play.texts[data.draw(st.integers(0, len(play.texts) - 1))]
                play.enter([shared[: data.draw(st.integers(1, len(shared)))]])
            elif step == "hear":
                play.feed()
            else:
                chosen = data.draw(st.lists(st.sampled_from(rows), unique=True, min_size=1))
                play.generate(chosen) if step == "speak" else play.leave(chosen)
    play.check()


_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_OWN: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2, untied": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": False}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 12}),
    "llama, one head": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 1, "num_hidden_layers": 1}),
    "biases": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
}
"""Every architecture and rope is compared in `test_decoder.py`; here sessions cut their passes."""
_MODULES_ONLY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 12}),
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
}


def make_other(kind: Any, config: Any, options: dict[str, Any], attention: str = "sdpa") -> tuple[Any, Any]:
    _, tokenizer = make_tiny_model(WORDS)
    settings = {**_SMALL, **options, "vocab_size": tokenizer.size, "attn_implementation": attention}
    return sharpened(kind(config(**settings))), tokenizer


@pytest.mark.parametrize("name", _MODULES_ONLY)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_other_architectures_through_their_modules(name: str, attention: str) -> None:
    """Sliding windows of a part of the layers or of all."""
    model, tokenizer = make_other(*_MODULES_ONLY[name], attention)
    play = Play(TorchPolicy(model, tokenizer), Decoding(max_new_tokens=6))
    play.whole(turns=4, rows=3)
    assert play.check() > 40
    assert not fits(model.config)
    with pytest.raises(OptionError, match="own is for plain Qwen2, Qwen3, Llama and Mistral"):
        TorchPolicy(model, tokenizer, forward="own")


@pytest.mark.parametrize("name", _OWN)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "in place"])
def test_architectures_that_are_written_out(name: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped heads, normed queries, untied heads, biases; small passes and blocks, so that all are cut."""
    monkeypatch.setattr(cached, "_MAX_TOKENS_PER_PASS", 50)
    monkeypatch.setattr(cached, "_QUERY_BLOCK", 8)
    if not packed:
        monkeypatch.setattr(cached, "_MAX_PACKED_PARAMETERS", 0)
    model, tokenizer = make_other(*_OWN[name])
    assert fits(model.config)
    play = Play(TorchPolicy(model, tokenizer, forward="own"), Decoding(max_new_tokens=6))
    play.whole(turns=4, rows=3)
    assert play.check() > 40


@pytest.mark.parametrize("forward", ["hf", "own"])
def test_a_row_generates_the_same_beside_any_others(forward: str) -> None:
    policy = make_policy(forward)
    decoding = Decoding(max_new_tokens=12)
    prompts = [random_ids(stream(1, index), policy, 5 + index) for index in range(6)]
    with policy.open_session() as session:
        rows = session.open(prompts)
        together = session.generate(rows, [stream(2, index) for index in range(6)], decoding)
    for index in (0, 3, 5):
        with policy.open_session() as session:
            alone = session.generate(session.open([prompts[index]]), [stream(2, index)], decoding)[0]
        assert alone.token_ids == together[index].token_ids
        assert alone.logprobs == pytest.approx(together[index].logprobs, abs=1e-5)


@settings(max_examples=10)
@given(data=st.data())
def test_copies_generate_the_same_until_they_differ(data: st.DataObject) -> None:
    """Near-greedy copies, among rows that are silent, over several turns: every log-prob is that of a full forward pass."""
    policy = make_policy(data.draw(st.sampled_from(["hf", "own"])))
    play = Play(
        policy,
        Decoding(max_new_tokens=data.draw(st.integers(1, 12)), temperature=data.draw(st.sampled_from([0.3, 1.0]))),
    )
    with play.open_session:
        for _ in range(data.draw(st.integers(1, 4))):
            prompts = [
                random_ids(play.source, policy, length)
                for length in data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=2))
            ]
            play.enter(prompts, data.draw(st.integers(2, 6)))
            play.generate(data.draw(st.permutations(list(play.alive)))[: data.draw(st.integers(1, len(play.alive)))])
            play.open_session.append(list(play.alive), [[40, 41]] * len(play.alive))
            for number in play.alive.values():
                play.texts[number] += [40, 41]
            play.leave(data.draw(st.lists(st.sampled_from(list(play.alive)), unique=True, max_size=3)))
    play.check(atol=3e-5)


@pytest.mark.parametrize("forward", ["hf", "own"])
def test_copies_generate_what_each_would_alone(forward: str) -> None:
    policy = make_policy(forward)
    prompts = [random_ids(stream(1, index), policy, 12) for index in range(2)]
    for temperature in (0.0, 0.3, 1.0):
        decoding = Decoding(max_new_tokens=10, temperature=temperature)
        with policy.open_session() as session:
            run, seen = session.forward.compute_logits, []

            def counting(chunks: Any, choices: Any = None, run: Any = run, seen: list[int] = seen) -> Any:
                seen.append(len(chunks.slots))
                return run(chunks, choices)

            session.forward.compute_logits = counting  # type: ignore[method-assign]
            rows = session.open(prompts, copies=6)
            together = session.generate(rows, [stream(2, index) for index in range(12)], decoding)
        said = {
            (index // 6, answer.token_ids[:length]) for index, answer in enumerate(together) for length in range(10)
        }
        assert temperature == 1.0 or sum(seen[1:]) <= len(said)
        for index in range(0, 12, 1 if forward == "own" else 5):
            with policy.open_session() as session:
                alone = session.generate(session.open([prompts[index // 6]]), [stream(2, index)], decoding)[0]
            assert alone.token_ids == together[index].token_ids
            assert alone.logprobs == pytest.approx(together[index].logprobs, abs=3e-5)


def test_a_call_draws_the_same_number_of_uniforms_whatever_is_said() -> None:
    policy = make_policy("own")
    source = stream(4, "row")
    with policy.open_session() as session:
        session.generate(session.open([[40, 41]]), [source], Decoding(max_new_tokens=10))
    untouched = stream(4, "row")
    untouched.uniform(10)
    assert source.uniform() == untouched.uniform()


def test_greedy_is_the_argmax_and_certain() -> None:
    policy = make_policy("hf")
    prompt = random_ids(stream(0, "greedy"), policy, 12)
    with policy.open_session() as session:
        said = session.generate(session.open([prompt]), [stream(0)], Decoding(temperature=0.0, max_new_tokens=5))[0]
    ids = list(prompt)
    for token in said.token_ids:
        with torch.no_grad():
            assert int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)
    assert set(said.logprobs) == {0.0}


def test_copies_of_a_prompt_run_it_once() -> None:
    policy = make_policy("own")
    session = policy.open_session()
    seen: list[int] = []
    run = session.forward.compute_logits

    def counting(chunks: Any, choices: Any = None) -> Any:
        seen.append(len(chunks.ids))
        return run(chunks, choices)

    session.forward.compute_logits = counting  # type: ignore[method-assign]
    prompt = random_ids(stream(0), policy, 100)
    rows = session.open([prompt], copies=8)
    session.generate(rows, [stream(1, row) for row in rows], Decoding(max_new_tokens=1))
    assert sum(seen) == 99 + 1
    late = session.open([prompt])
    session.generate(late, [stream(2)], Decoding(max_new_tokens=1))
    assert sum(seen) == 99 + 1 + 1


@settings(max_examples=20)
@given(
    paths=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=2, max_size=6),
    forward=st.sampled_from(["hf", "own"]),
)
def test_common_beginnings_of_prompts_that_enter_together_run_once(paths: list[list[int]], forward: str) -> None:
    """Whatever the tree of the prompts, each of its tokens runs once, and every reply is that of its prompt alone."""
    policy = make_policy(forward)
    play = Play(policy, Decoding(max_new_tokens=2))
    parts = [random_ids(stream(0, part), policy, length) for part, length in enumerate((3, 9, 17))]
    prompts = [[token for part in path for token in parts[part]] for path in paths]
    with play.open_session:
        play.open_session.forward.pass_cost = 0
        run, seen = play.open_session.forward.compute_logits, [0]

        def counting(chunks: Any, choices: Any = None) -> Any:
            seen[0] += len(chunks.ids)
            return run(chunks, choices)

        play.open_session.forward.compute_logits = counting  # type: ignore[method-assign]
        play.enter(prompts)
        distinct = set(map(tuple, prompts))
        within = {prompt[:end] for prompt in distinct for end in range(1, len(prompt))}
        play.generate(list(play.alive))
    assert seen[0] <= len(within) + len(distinct) + len(prompts)
    assert play.check() >= len(prompts)


@pytest.mark.parametrize("forward", ["hf", "own"])
def test_siblings_run_once_until_they_part(forward: str) -> None:
    """Rows that hold the same tokens share a pass, whoever speaks with them; what they say is checked in full."""
    policy = make_policy(forward)
    play = Play(policy, Decoding(max_new_tokens=3))
    with play.open_session:
        run = play.open_session.forward.compute_logits
        seen: list[int] = []

        def counting(chunks: Any, choices: Any = None) -> Any:
            seen.append(len(chunks.slots))
            return run(chunks, choices)

        play.open_session.forward.compute_logits = counting  # type: ignore[method-assign]
        play.enter([random_ids(play.source, policy, 20), random_ids(play.source, policy, 20)], copies=3)
        play.streams = [stream(7) for _ in play.texts]
        rows = list(play.alive)
        for chunk in ([40, 41], [42]):
            play.open_session.append(rows, [chunk] * 6)
            for row in rows:
                play.texts[play.alive[row]] += chunk
            seen.clear()
            play.generate(rows)
            assert seen[0] == 2
        play.open_session.append(rows[:1], [[50]])
        play.texts[play.alive[rows[0]]] += [50]
        seen.clear()
        play.generate(rows)
        assert seen[0] == 3
    assert play.check() >= 6 * 3


def test_no_room_is_said_before_anything_is_generated() -> None:
    policy = make_policy("own", context_length=40)
    with policy.open_session() as session:
        rows = session.open([random_ids(stream(0), policy, length) for length in (20, 35)])
        done, full = session.generate(rows, [stream(1), stream(2)], Decoding(max_new_tokens=8))
        assert done.finish in ("stop", "length")
        assert full == ((), (), "context", ())
        assert session.length(rows[1]) == 35
        with pytest.raises(DataError, match="does not fit into the model's context of 40"):
            session.open([[5] * 40])
        with pytest.raises(DataError, match="no tokens"):
            session.open([[]])


def test_generating_nothing_is_nothing() -> None:
    policy = make_policy("own")
    with policy.open_session() as session:
        assert session.generate([], [], Decoding()) == []
        assert session.open([]) == []


def test_merging_an_adapter_leaves_no_trace() -> None:
    policy = make_policy("hf", adapter=True)
    before = {name: weight.detach().clone() for name, weight in policy.model.state_dict().items()}
    outer, inner = policy.open_session(), policy.open_session()
    outer.close()
    row = inner.open([[40, 41, 42]])
    inner.generate(row, [stream(0)], Decoding(max_new_tokens=2))
    inner.close()
    inner.close()
    after = policy.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(getattr(module, "merged", False) for module in policy.model.modules())


def measure_gap(policy: TorchPolicy, size: float) -> float:
    """How far play is from the learner on average, with a B of normal numbers of this size."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in policy.parameters().items():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * size)
    play = Play(policy, Decoding(max_new_tokens=24))
    play.whole()
    gaps = []
    for ids, said in zip(play.texts, play.replies, strict=True):
        full = full_logprobs(policy, ids, exact=False)
        for start, logprobs in said:
            played = torch.tensor(logprobs, dtype=torch.float64)
            gaps.append((played - full[start - 1 : start - 1 + len(played)]).abs())
    return float(torch.cat(gaps).mean())


@pytest.mark.parametrize("forward", ["hf", "own"])
def test_an_adapter_on_a_base_in_bfloat16_plays_as_it_learns(forward: Any, tmp_path: Path) -> None:
    """Merged into such weights, small changes would be rounded away: the gap of `hf` would be ten times that without one."""
    make_policy(forward).save(tmp_path)
    stored: dict[str, Any] = {"dtype": "bfloat16", "device": "cpu", "forward": forward}
    policy = TorchPolicy.load(tmp_path, adapter=AdapterSettings(rank=4, alpha=8.0), **stored)
    without = measure_gap(policy, 0.0)
    assert measure_gap(policy, 0.05) < 1.5 * without < 0.04
    assert not any(getattr(module, "merged", False) for module in policy.model.modules())
    wide = TorchPolicy.load(tmp_path, adapter=AdapterSettings(rank=4, alpha=8.0), **{**stored, "dtype": "float32"})
    with wide.open_session():
        merged = [bool(module.merged) for module in wide.model.modules() if hasattr(module, "merged")]
    assert merged and all(merged) is (forward == "hf"), "float32 loses nothing"


def test_an_adapted_head_in_bfloat16_plays_as_it_learns() -> None:
    model, tokenizer = make_other(*_OWN["qwen2, untied"])
    settings = AdapterSettings(rank=2, targets=("lm_head", "q_proj"))
    policy = TorchPolicy(model.to(torch.bfloat16), tokenizer, forward="own", adapter=settings)
    wake_adapter(policy)
    head = policy.model.get_base_model().lm_head
    decoder = cached.CachedDecoder(policy.model, policy.device)
    states = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(decoder.head(states), head(states))
        assert torch.equal(decoder.head.weight, head.get_base_layer().weight)
    decoder.slots.reserve(2, 8, 64)
    ids, slots = np.arange(4, 9), np.arange(2)
    chosen = torch.tensor([[3, 5], [7, 9]])
    found = [
        decoder.compute_logits(Chunks(ids, slots, np.zeros(2, dtype=int), np.array([3, 2])), choices)
        for choices in (None, chosen)
    ]
    assert torch.equal(found[0].gather(1, chosen), found[1])


def test_a_merged_weight_is_rounded_once() -> None:
    policy = make_policy("hf", adapter=True)
    layer = next(part for part in policy.model.modules() if hasattr(part, "lora_A"))
    base = layer.get_base_layer()
    base.weight.data = base.weight.data.bfloat16()
    (low, high, scale), *_ = cached.list_adapters(layer)
    exact = base.weight.float() + scale * (high @ low)
    torch.testing.assert_close(cached.merge_weight(layer), exact.bfloat16(), rtol=0, atol=0)


def test_autocast_sessions_agree_with_an_autocast_forward() -> None:
    """Rollouts of a GPU, here on a CPU: float32 weights, bfloat16 arithmetic and cache."""
    policy = make_policy("hf", adapter=True)
    stops = policy.tokenizer.stop_ids
    forward = ModuleForward(policy.model, policy.device, torch.bfloat16)
    prompt = random_ids(stream(0), policy, 30)
    with TorchSession(forward, 512, stops) as session:
        rows = session.open([prompt], copies=3)
        session.append(rows, [[40], [41, 42], [43, 44, 45]])
        said = session.generate(rows, [stream(1, row) for row in rows], Decoding(max_new_tokens=8))
    assert forward.slots.keys[0].dtype == torch.bfloat16
    for chunk, answer in zip([[40], [41, 42], [43, 44, 45]], said, strict=True):
        ids = [*prompt, *chunk, *answer.token_ids]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            full = full_logprobs(policy, ids, exact=False)[-len(answer.token_ids) :]
        said_logprobs = torch.tensor(answer.logprobs, dtype=torch.float64)
        torch.testing.assert_close(said_logprobs, full, atol=0.25, rtol=0)
        assert float((said_logprobs - full).abs().mean()) < 0.05


def test_training_after_a_session_works() -> None:
    for forward in ("hf", "own"):
        policy = make_policy(forward, adapter=True)
        with policy.open_session() as session:
            session.generate(session.open([[40, 41, 42]]), [stream(0)], Decoding(max_new_tokens=2))
        policy.model(input_ids=torch.tensor([[40, 41, 42]])).logits.sum().backward()
        gradients = [weight.grad for weight in policy.parameters().values()]
        assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("size", list(SIZES))
def test_every_tiny_size_generates(size: str) -> None:
    model, tokenizer = make_tiny_model(WORDS, size)
    assert fits(model.config)
    policy = TorchPolicy(model, tokenizer)
    with policy.open_session() as session:
        answer = session.generate(session.open([[40, 41]]), [stream(0)], Decoding(max_new_tokens=3))[0]
    expected = full_logprobs(policy, [40, 41, *answer.token_ids])[1:]
    assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
    if size == "vllm":
        assert model.config.hidden_size // model.config.num_attention_heads == 64


def test_tiny_models_are_the_same_bits_and_leave_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first, _ = make_tiny_model(WORDS, seed=3)
    second, _ = make_tiny_model(WORDS, seed=3)
    other, _ = make_tiny_model(WORDS, seed=4)
    weights = [np.concatenate([w.detach().numpy().ravel() for w in m.parameters()]) for m in (first, second, other)]
    assert np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])
    assert torch.equal(state, torch.random.get_rng_state())
