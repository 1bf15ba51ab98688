"""Forced tokens go in unasked: the tokens, their probabilities and their choices are those of one full pass per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.model.generate import nucleus
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.protocols import Completion, Constraint, Decoding
from fedagentgym.agents.text.constraints import ActionTrie, FreeWords
from fedagentgym.base.streams import Stream, stream

from .models import make_policy, random_ids

FIRST, LAST = 300, 330
"""The tokens that tries are made of."""
_POLICIES: dict[str, TorchPolicy] = {}


def get_policy(forward: str) -> TorchPolicy:
    if forward not in _POLICIES:
        _POLICIES[forward] = make_policy(forward)
    return _POLICIES[forward]


class Said(NamedTuple):
    ids: list[int]
    logprobs: list[float]
    allowed: list[tuple[int, ...]]
    margin: float
    """The distance of a uniform from a boundary of the cumulative distribution: below rounding, either token is right."""


def speak_plainly(
    policy: TorchPolicy, ids: Sequence[int], uniforms: Any, rule: Constraint | None, decoding: Decoding
) -> Said:
    """The reference: one pass of the Hugging Face model over all the tokens, for every token, forced or not."""
    state, said, margin = None if rule is None else rule.start(), Said([], [], [], 1.0), 1.0
    for uniform in uniforms:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([[*ids, *said.ids]])).logits[0, -1].double()
        allowed = list(range(len(logits))) if rule is None else list(rule.get_allowed_tokens(state))
        if rule is not None:
            said.allowed.append(tuple(allowed))
        token, logprob, near = draw(logits[allowed], uniform, decoding)
        margin = min(margin, near)
        said.ids.append(allowed[token])
        said.logprobs.append(logprob)
        if said.ids[-1] in policy.tokenizer.stop_ids:
            break
        if rule is not None and len(said.ids) < decoding.max_new_tokens:
            state = rule.advance(state, said.ids[-1])
    return said._replace(margin=margin)


def draw(logits: torch.Tensor, uniform: float, decoding: Decoding) -> tuple[int, float, float]:
    if decoding.temperature == 0.0:
        ordered = logits.sort(descending=True).values
        return int(logits.argmax()), 0.0, 1.0 if len(logits) == 1 else float(ordered[0] - ordered[1])
    logprobs = torch.log_softmax(logits / decoding.temperature, -1)
    near = 1.0
    if decoding.top_p < 1.0:
        ordered = logprobs.exp().sort(descending=True).values
        near = float((ordered.cumsum(0) - ordered - decoding.top_p).abs().min())
        kept = nucleus(logprobs[None], decoding.top_p)[0]
        logprobs = torch.log_softmax(logprobs.masked_fill(~kept, float("-inf")), -1)
    ends = logprobs.exp().cumsum(0)
    token = int(torch.searchsorted(ends, uniform * ends[-1], right=True))
    inner = ends[:-1]
    near = min(near, float((inner - uniform).abs().min())) if len(inner) else near
    return token, float(logprobs[token]), near


@st.composite
def tries(draw: st.DrawFn, stop: int, most: int) -> ActionTrie:
    """Few first tokens and long tails: mostly forced, with choices here and there; some with a slot of free words."""
    word = st.lists(st.integers(FIRST, LAST), min_size=1, max_size=most - 1)
    stems = draw(st.lists(word, min_size=1, max_size=4))
    replies: list[list[tuple[int, ...]]] = []
    for stem in stems:
        for tail in draw(st.lists(st.lists(st.integers(FIRST, FIRST + 3), max_size=4), min_size=1, max_size=3)):
            replies.append([(*(stem + tail)[: most - 1], stop)])
    free = None
    if draw(st.booleans()) and most >= 4:
        names = st.lists(st.integers(LAST + 1, LAST + 4), min_size=1, max_size=2)
        words = draw(st.lists(names, min_size=1, max_size=3))
        free = FreeWords(words, words)
        if min(map(len, words)) + 3 <= most:
            replies.append([(FIRST - 1,), (FIRST - 2, stop)])
    return ActionTrie(replies, free, most)


@given(data=st.data())
def test_forced_chunks_equal_a_pass_for_every_token(data: st.DataObject) -> None:
    policy = get_policy(data.draw(st.sampled_from(["hf", "own"])))
    stop = min(policy.tokenizer.stop_ids)
    most = data.draw(st.integers(2, 10))
    decoding = Decoding(
        max_new_tokens=most,
        temperature=data.draw(st.sampled_from([1.0, 0.7, 0.0])),
        top_p=data.draw(st.sampled_from([1.0, 0.8])),
        constrained=True,
    )
    seed = data.draw(st.integers(0, 1000))
    source = stream(seed, "texts")
    count = data.draw(st.integers(1, 5))
    texts = [random_ids(source, policy, data.draw(st.integers(1, 30))) for _ in range(count)]
    streams, twins = ([stream(seed, "say", row) for row in range(count)] for _ in range(2))
    with policy.open_session() as session:
        rows = session.open(texts)
        for _ in range(data.draw(st.integers(1, 4))):
            chosen = data.draw(st.lists(st.sampled_from(range(count)), unique=True, min_size=1))
            rules = [
                data.draw(st.none() | tries(stop, most)) if index else data.draw(tries(stop, most))
                for index in range(len(chosen))
            ]
            answers = session.generate(
                [rows[place] for place in chosen], [streams[place] for place in chosen], decoding, rules
            )
            for place, rule, answer in zip(chosen, rules, answers, strict=True):
                if not agree(policy, texts[place], twins[place], rule, decoding, answer):
                    return
                texts[place] += answer.token_ids
                heard = random_ids(source, policy, data.draw(st.integers(0, 6)))
                session.append([rows[place]], [heard])
                texts[place] += heard
                assert session.length(rows[place]) == len(texts[place])


def agree(
    policy: TorchPolicy, text: list[int], twin: Stream, rule: Constraint | None, decoding: Decoding, answer: Completion
) -> bool:
    """Hold an answer against the plain reference; False where rounding decides and the two may part."""
    plain = speak_plainly(policy, text, twin.uniform(decoding.max_new_tokens), rule, decoding)
    if plain.margin < 1e-5:
        return False
    assert list(answer.token_ids) == plain.ids
    assert answer.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
    assert list(answer.allowed) == plain.allowed
    assert (answer.finish == "stop") is (plain.ids[-1] in policy.tokenizer.stop_ids)
    return True


def count_passes(session: Any) -> list[list[int]]:
    """Note the lengths of the chunks of every pass."""
    seen: list[list[int]] = []
    run = session.forward.compute_logits

    def counting(chunks: Any, choices: Any = None) -> Any:
        seen.append(chunks.lengths.tolist())
        return run(chunks, choices)

    session.forward.compute_logits = counting
    return seen


def test_a_reply_without_a_choice_asks_nothing() -> None:
    policy = get_policy("own")
    stop = min(policy.tokenizer.stop_ids)
    trie = ActionTrie([[(300, 301, 302, stop)]], None, 6)
    session = policy.open_session()
    seen = count_passes(session)
    (row,) = session.open([[40, 41, 42]])
    (said,) = session.generate([row], [stream(0)], Decoding(max_new_tokens=6, constrained=True), [trie])
    assert seen == []
    assert said == ((300, 301, 302, stop), (0.0,) * 4, "stop", ((300,), (301,), (302,), (stop,)))
    session.append([row], [[43, 44]])
    (free,) = session.generate([row], [stream(1)], Decoding(max_new_tokens=1))
    assert seen == [[9]]
    plain = speak_plainly(
        policy, [40, 41, 42, *said.token_ids, 43, 44], stream(1).uniform(1), None, Decoding(max_new_tokens=1)
    )
    assert list(free.token_ids) == plain.ids
    assert free.logprobs == pytest.approx(plain.logprobs, abs=1e-5)


def test_the_model_is_asked_once_per_choice() -> None:
    """Two rows, one with two choices and one with one; the forced tokens between come with what follows."""
    policy = get_policy("own")
    stop = min(policy.tokenizer.stop_ids)
    double = ActionTrie([[(300, a, 303, 304, b, stop)] for a in (301, 302) for b in (305, 306)], None, 8)
    single = ActionTrie([[(300, 301, 302, c, stop)] for c in (303, 304)], None, 8)
    session = policy.open_session()
    seen = count_passes(session)
    rows = session.open([[40, 41, 42], [50, 51]])
    said = session.generate(
        rows, [stream(0), stream(1)], Decoding(max_new_tokens=8, constrained=True), [double, single]
    )
    assert [len(answer.token_ids) for answer in said] == [6, 5]
    assert seen == [[4, 5], [3]]


@pytest.mark.parametrize("forward", ["hf", "own"])
def test_a_reply_that_is_cut_short_ends_by_its_length(forward: str) -> None:
    """A constraint of another length than the reply's: its forced tokens stop where the reply must."""
    policy = get_policy(forward)
    stop = min(policy.tokenizer.stop_ids)
    trie = ActionTrie([[(300, 301, a, 303, 304, 305, stop)] for a in (301, 302)], None, 10)
    for most in range(1, 8):
        decoding = Decoding(max_new_tokens=most, constrained=True)
        with policy.open_session() as session:
            (said,) = session.generate(session.open([[40, 41]]), [stream(3)], decoding, [trie])
        assert len(said.token_ids) == most == len(said.logprobs) == len(said.allowed)
        assert said.finish == ("stop" if most == 7 else "length")
        assert agree(policy, [40, 41], stream(3), trie, decoding, said)


def test_constrained_rows_keep_the_room_of_their_context() -> None:
    policy = make_policy("own", context_length=40)
    stop = min(policy.tokenizer.stop_ids)
    trie = ActionTrie([[(300, a, stop)] for a in (301, 302)], None, 8)
    with policy.open_session() as session:
        rows = session.open([random_ids(stream(0), policy, length) for length in (20, 32, 33)])
        streams = [stream(1, row) for row in rows]
        said = session.generate(rows, streams, Decoding(max_new_tokens=8, constrained=True), [trie] * 3)
        assert [answer.finish for answer in said] == ["stop", "stop", "context"]
        assert [session.length(row) for row in rows] == [23, 35, 33]
    untouched = [stream(1, row) for row in rows]
    assert [one.uniform() for one in streams] == [np.asarray(other.uniform(9))[8] for other in untouched]
