"""Sessions: whatever order rows come, speak, drop and return in, their log-probs are those of a full forward pass."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fedagentgym.agents.policy import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.agents.tiny import tiny_model
from fedagentgym.agents.torch_policy import TorchPolicy
from fedagentgym.base.errors import DataError
from fedagentgym.base.streams import Stream, stream

WORDS = ["go to the fridge and take an apple from it then put it on a table near red shoes"]


def sharpened(model: Any, seed: int = 1) -> Any:
    """Random weights of a size that makes the distribution uneven, or equal log-probs would prove little."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.15)
            else:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def make_policy(forward: str = "hf", adapter: bool = False, **options: Any) -> TorchPolicy:
    model, tokenizer = tiny_model(WORDS, context_length=512)
    settings = AdapterSettings(rank=4, alpha=8.0) if adapter else None
    policy = TorchPolicy(sharpened(model), tokenizer, forward=forward, adapter=settings, **options)
    if adapter:
        with torch.no_grad():
            for name, weight in policy.parameters().items():
                if "lora_B" in name:
                    weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(5)) * 0.2)
    return policy


def full_logprobs(policy: TorchPolicy, ids: list[int], temperature: float = 1.0) -> Any:
    """Log-probs of every token after the first, by one forward pass of the model as it is trained."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0].float() / temperature
    return torch.log_softmax(logits, -1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def random_ids(source: Stream, policy: TorchPolicy, length: int) -> list[int]:
    return [int(i) for i in source.integers(policy.tokenizer.size, size=length)]


def play(
    policy: TorchPolicy, decoding: Decoding, turns: int = 6, rows: int = 5
) -> tuple[list[list[int]], list[list[tuple[int, list[float]]]]]:
    """Six turns with ragged prompts, chunks and replies; rows leave, and others enter in their place."""
    source = stream(3, "play")
    alive: dict[int, int] = {}
    texts: list[list[int]] = []
    replies: list[list[tuple[int, list[float]]]] = []
    streams: list[Stream] = []
    session = policy.session()

    def enter(prompts: list[list[int]], copies: int) -> None:
        for row, ids in zip(session.open(prompts, copies), [p for p in prompts for _ in range(copies)], strict=True):
            alive[row] = len(texts)
            texts.append(list(ids))
            replies.append([])
            streams.append(stream(11, len(texts)))

    with session:
        enter([random_ids(source, policy, 9 + 7 * i) for i in range(rows)], copies=2)
        for turn in range(turns):
            handles = [row for index, row in enumerate(alive) if (index + turn) % 4 or turn == 0]
            answers = session.generate(handles, [streams[alive[r]] for r in handles], decoding)
            for row, answer in zip(handles, answers, strict=True):
                replies[alive[row]].append((len(texts[alive[row]]), list(answer.logprobs)))
                texts[alive[row]] += answer.token_ids
                assert len(answer.token_ids) == len(answer.logprobs) <= decoding.max_new_tokens
                stopped = answer.token_ids[-1] in policy.tokenizer.stop_ids
                assert (answer.finish == "stop") is stopped
                assert not any(token in policy.tokenizer.stop_ids for token in answer.token_ids[:-1])
            leaving = [row for index, row in enumerate(alive) if (index + turn) % 5 == 1]
            session.drop(leaving)
            for row in leaving:
                del alive[row]
            chunks = [random_ids(source, policy, 1 + (3 * index) % 11) for index in range(len(alive))]
            session.append(list(alive), chunks)
            for row, chunk in zip(alive, chunks, strict=True):
                texts[alive[row]] += chunk
                assert session.length(row) == len(texts[alive[row]])
            if turn in (1, 3):
                enter([texts[0][:14] + random_ids(source, policy, 20), random_ids(source, policy, 40)], copies=1)
    return texts, replies


@pytest.mark.parametrize("forward", ["hf", "own"])
@pytest.mark.parametrize("adapter", [False, True])
def test_logprobs_equal_a_full_forward(forward: str, adapter: bool) -> None:
    policy = make_policy(forward, adapter)
    for decoding in (Decoding(max_new_tokens=9), Decoding(max_new_tokens=24, temperature=0.6)):
        texts, replies = play(policy, decoding)
        checked = 0
        for ids, said in zip(texts, replies, strict=True):
            full = full_logprobs(policy, ids, decoding.temperature)
            for start, logprobs in said:
                expected = full[start - 1 : start - 1 + len(logprobs)]
                torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-5, rtol=0)
                checked += len(logprobs)
        assert checked > 150
