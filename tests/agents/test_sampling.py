"""Sampling: what is recorded is the distribution that was sampled from."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedagentgym.agents.model.generate import forbid_others, make_choice_table, nucleus, sample_choices, sample_tokens
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.text.constraints import ActionTrie
from fedagentgym.base.streams import stream

from .models import make_policy

LOGITS = torch.tensor([0.3, -1.0, 2.0, float("-inf"), 0.0, 1.5])


def uniforms(count: int) -> torch.Tensor:
    return torch.from_numpy(stream(7, "draws").uniform(count))


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    count = 40_000
    drawn = sample_tokens(LOGITS.expand(count, -1), uniforms(count), temperature)
    expected = softmax(LOGITS.double().numpy() / temperature)
    seen = np.bincount(drawn.ids.numpy(), minlength=6)
    assert seen[3] == 0
    kept = expected > 0
    assert chisquare(seen[kept], expected[kept] * count).pvalue > 1e-4
    assert drawn.logprobs.numpy() == pytest.approx(np.log(expected[drawn.ids.numpy()]), abs=1e-6)


@given(
    st.lists(st.integers(-32, 32).map(lambda eighths: eighths / 4), min_size=2, max_size=12),
    st.floats(2**-50, 1 - 2**-50),
    st.floats(0.3, 3.0),
    st.floats(0.05, 1.0),
)
def test_one_draw_against_plain_arithmetic(raw: list[float], uniform: float, temperature: float, top_p: float) -> None:
    logits = torch.tensor([raw], dtype=torch.float32)
    drawn = sample_tokens(logits, torch.tensor([uniform], dtype=torch.float64), temperature, top_p)
    probabilities = softmax(logits[0].double().numpy() / temperature)
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    near_edge = np.abs(before - top_p).min() < 1e-5
    if near_edge:
        return
    kept = np.zeros(len(raw), dtype=bool)
    kept[order[before < top_p]] = True
    probabilities = np.where(kept, probabilities, 0.0) / probabilities[kept].sum()
    token = int(drawn.ids[0])
    assert kept[token]
    assert float(drawn.logprobs[0]) == pytest.approx(np.log(probabilities[token]), abs=1e-5)
    ends = np.cumsum(probabilities)
    assert ends[token] - probabilities[token] - 1e-5 <= uniform <= ends[token] + 1e-5


def test_the_nucleus_always_keeps_one_token() -> None:
    logprobs = torch.log_softmax(LOGITS.unsqueeze(0), -1)
    assert nucleus(logprobs, 1e-9).sum() == 1
    assert nucleus(logprobs, 1e-9)[0, 2]


def test_extreme_uniforms_stay_among_the_possible_tokens() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 1.0, float("-inf")]] * 2)
    drawn = sample_tokens(logits, torch.tensor([1e-300, 1 - 2**-53], dtype=torch.float64), 1.0)
    assert drawn.ids.tolist() == [1, 2]


def test_draws_among_allowed_tokens_are_renormalised() -> None:
    count = 20_000
    allowed = [(0, 2, 4), (1,)] * (count // 2)
    table = make_choice_table(allowed, LOGITS.device)
    assert table is not None and table[:2].tolist() == [[0, 2, 4], [1, -1, -1]]
    logits = LOGITS.expand(count, -1)
    drawn = sample_choices(logits.gather(1, table.clamp(min=0)), uniforms(count), table, 1.0)
    assert set(drawn.ids[1::2].tolist()) == {1}
    assert drawn.logprobs[1::2].abs().max() == 0
    expected = softmax(LOGITS.double().numpy()[[0, 2, 4]])
    seen = Counter(drawn.ids[::2].tolist())
    assert chisquare([seen[token] for token in (0, 2, 4)], expected * (count // 2)).pvalue > 1e-4
    whole = sample_tokens(forbid_others(logits, allowed), uniforms(count), 1.0)
    assert whole.ids.tolist() == drawn.ids.tolist()
    assert whole.logprobs.numpy() == pytest.approx(drawn.logprobs.numpy(), abs=1e-7)


def test_a_row_that_may_say_anything_has_no_table() -> None:
    assert make_choice_table([(1, 2), None], LOGITS.device) is None
    kept = forbid_others(LOGITS.expand(2, -1), [(1, 2), None])
    assert kept[0].isinf().tolist() == [True, False, False, True, True, True]
    assert torch.equal(kept[1], LOGITS)


def test_generated_texts_follow_the_constrained_distribution() -> None:
    """Chi-square over whole replies of a toy model: two tokens long, three of them admissible."""
    policy = make_policy("own")
    stop = min(policy.tokenizer.stop_ids)
    replies = [(40, 50, stop), (40, 60, stop), (70, 50, stop)]
    trie = ActionTrie([[reply] for reply in replies], None, 3)
    count = 4_000
    with policy.open_session() as session:
        rows = session.open([[41, 42, 43]], copies=count)
        streams = [stream(5, index) for index in range(count)]
        said = session.generate(rows, streams, Decoding(max_new_tokens=3, constrained=True), [trie] * count)
    seen = Counter(answer.token_ids for answer in said)
    assert set(seen) == set(replies)
    expected = []
    for reply in replies:
        total = 0.0
        for index, token in enumerate(reply):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([[41, 42, 43, *reply[:index]]])).logits[0, -1].double()
            allowed = sorted({other[index] for other in replies if other[:index] == reply[:index]})
            total += float(torch.log_softmax(logits[allowed], -1)[allowed.index(token)])
        expected.append(np.exp(total))
        one = next(answer for answer in said if answer.token_ids == reply)
        assert sum(one.logprobs) == pytest.approx(total, abs=1e-5)
        assert one.allowed == tuple(
            tuple(sorted({other[index] for other in replies if other[:index] == reply[:index]})) for index in range(3)
        )
    assert chisquare([seen[reply] for reply in replies], np.array(expected) * count).pvalue > 1e-4


def test_rows_with_and_without_constraints_mix() -> None:
    policy = make_policy("own")
    stop = min(policy.tokenizer.stop_ids)
    trie = ActionTrie([[(40, stop)]], None, 2)
    with policy.open_session() as session:
        rows = session.open([[41, 42]], copies=2)
        free, bound = session.generate(rows, [stream(1), stream(2)], Decoding(max_new_tokens=4), [None, trie])
    assert bound.token_ids == (40, stop)
    assert free.allowed == ()
    with policy.open_session() as session:
        alone = session.generate(session.open([[41, 42]]), [stream(1)], Decoding(max_new_tokens=4))[0]
    assert alone.token_ids == free.token_ids
