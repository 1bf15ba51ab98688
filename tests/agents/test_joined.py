"""Rollouts of several adapters in one batch: each learner plays as it does alone, whoever plays beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.agents.model import cached, joined
from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import stream
from fedagentgym.base.together import get_group, run_together
from fedagentgym.learning.weights import OwnedWeights

from .models import WORDS, make_policy, sharpened
from .test_session import Play

Weights = dict[str, np.ndarray[Any, Any]]


def draw_weights(policy: TorchPolicy, seed: int, size: float = 0.05) -> Weights:
    """An adapter of a learner."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (weight.detach() + size * torch.randn(weight.shape, generator=generator)).numpy()
        for name, weight in policy.parameters().items()
    }


def play(policy: TorchPolicy, weights: Weights, decoding: Decoding, number: int, turns: int) -> Play:
    """A learner's rollout, with rows that come and go; then it moves its weights, as a step does, and plays once more."""
    policy.set_weights(weights)
    owner = OwnedWeights(policy)
    played = Play(policy, decoding, number)
    played.whole(turns, rows=2 + number % 3)
    owner.acquire()
    with torch.no_grad():
        for parameter in policy.parameters().values():
            parameter.mul_(1.1)
    policy.bump_version()
    again = Play(policy, decoding, number)
    again.whole(2, rows=2)
    played.texts += again.texts
    played.replies += again.replies
    return played


def assert_alike(found: Play, alone: Play, atol: float = 1e-5) -> None:
    assert found.texts == alone.texts
    assert len(found.replies) == len(alone.replies)
    for one, other in zip(found.replies, alone.replies, strict=True):
        assert [start for start, _ in one] == [start for start, _ in other]
        for (_, logprobs), (_, expected) in zip(one, other, strict=True):
            np.testing.assert_allclose(logprobs, expected, atol=atol, rtol=0)


def make_works(policy: TorchPolicy, members: list[int], decoding: Decoding) -> list[Callable[[], Play]]:
    weights = [draw_weights(policy, member) for member in members]
    return [
        partial(play, policy, own, decoding, member, 2 + member % 4)
        for own, member in zip(weights, members, strict=True)
    ]


@pytest.mark.parametrize(
    ("place", "settings_"),
    [
        ("packed", AdapterSettings(rank=4)),
        ("packed", AdapterSettings(rank=3, targets=("v_proj", "gate_proj"), layers="last-1")),
        ("in place", AdapterSettings(rank=2, targets=("q_proj", "up_proj"))),
    ],
)
def test_a_batch_of_adapters_is_each_adapter_alone(
    place: str, settings_: AdapterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`in place`: as large models run, whose weights are read where they are."""
    if place == "in place":
        monkeypatch.setattr(cached, "_MAX_PACKED_PARAMETERS", 0)
    monkeypatch.setattr(cached, "_LONG_STRETCH", 6)  # some passes multiply stretches, some mask
    model, tokenizer = make_tiny_model(WORDS, context_length=512)
    policy = TorchPolicy(sharpened(model), tokenizer, forward="own", adapter=settings_)
    works = make_works(policy, [1, 2, 4], Decoding(max_new_tokens=6))
    served = []
    serve = joined.JoinedPlay.serve
    monkeypatch.setattr(joined.JoinedPlay, "serve", lambda self, asked: served.append(len(asked)) or serve(self, asked))
    found = run_together(works)
    assert max(served) == 3  # it was one batch
    for together, work in zip(found, works, strict=True):
        assert_alike(together, work())
    assert len({str(one.texts) for one in found}) == 3


@settings(max_examples=4)
@given(data=st.data())
def test_a_learner_does_not_notice_who_plays_beside_it(data: st.DataObject) -> None:
    policy = make_policy("own", adapter=True)
    members = data.draw(st.lists(st.integers(0, 30), unique=True, min_size=2, max_size=4))
    decoding = Decoding(
        max_new_tokens=data.draw(st.integers(1, 6)), temperature=data.draw(st.sampled_from([0.0, 1.0, 0.7]))
    )
    one, *others = make_works(policy, members, decoding)
    alone = one()
    assert_alike(run_together([one, *others])[0], alone)
    assert_alike(run_together([*others, one])[-1], alone)


def test_members_with_other_decoding_or_constraints_share_no_call_and_no_tokens() -> None:
    policy = make_policy("own", adapter=True)
    weights = draw_weights(policy, 1)
    decodings = [Decoding(max_new_tokens=5), Decoding(max_new_tokens=7, temperature=0.0), Decoding(max_new_tokens=5)]
    works = [partial(play, policy, weights, one, 3, 3) for one in decodings]
    for together, work in zip(run_together(works), works, strict=True):
        assert_alike(together, work())


def test_an_adapter_with_a_number_that_is_not_finite_spoils_no_other() -> None:
    policy = make_policy("own", adapter=True)
    broken = draw_weights(policy, 7)
    name = next(name for name in broken if "lora_B" in name)
    broken[name][0, 0] = np.inf
    one, two = make_works(policy, [1, 2], Decoding(max_new_tokens=4))
    alone = one()

    def fail() -> None:
        policy.set_weights(broken)
        with policy.open_session() as session:
            rows = session.open([[3, 4, 5]])
            session.generate(rows, [stream(1)], Decoding(max_new_tokens=2))

    found = run_together([one, fail, two])
    assert_alike(found[0], alone)


def test_members_whose_frozen_weights_differ_each_play_on_their_own() -> None:
    """A method may send changes of the frozen weights: what one member sets is not read by another."""
    policy = make_policy("own", adapter=True)
    layer = next(name for name, part in policy.model.named_modules() if hasattr(part, "lora_A"))
    change = np.full(policy.model.get_submodule(layer).get_base_layer().weight.shape, 0.05, dtype=np.float32)
    plain = draw_weights(policy, 1)
    moved = draw_weights(policy, 2) | {f"base/{layer}": change}
    decoding = Decoding(max_new_tokens=5)

    def run(weights: Weights, number: int) -> tuple[list[list[int]], list[Any]]:
        policy.set_weights(weights)
        played = Play(policy, decoding, number)
        played.whole(3, rows=2)
        return played.texts, played.replies

    works = [partial(run, plain, 1), partial(run, moved, 2), partial(run, moved, 3), partial(run, plain, 4)]
    alone = [work() for work in works]
    for (texts, replies), (expected, others) in zip(run_together(works), alone, strict=True):
        assert texts == expected
        for one, other in zip(chain(*replies), chain(*others), strict=True):
            np.testing.assert_allclose(one[1], other[1], atol=1e-5, rtol=0)


def test_modules_of_transformers_refuse_a_batch_in_one_sentence() -> None:
    policy = make_policy("hf", adapter=True)
    with pytest.raises(OptionError, match=r"set agent\.forward=own or agent\.rollouts=vllm"):
        run_together([policy.open_session, policy.open_session])
    assert get_group() is None
