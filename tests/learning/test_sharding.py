"""An update on two ranks is the update of one: the same weights, moments and metrics, whatever is trained and how."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.protocols import Completion, Decoding
from fedagentgym.base.errors import DataError, OptionError, ProcessUnusableError
from fedagentgym.base.streams import stream
from fedagentgym.experiment.config import load_config
from fedagentgym.learning.embedding import embed
from fedagentgym.learning.learners import open_imitation
from fedagentgym.learning.settings import SupervisedSettings
from fedagentgym.learning.sharding import ranks
from fedagentgym.learning.sharding.model import deal_batches
from fedagentgym.learning.supervised import Example
from tests.learning.sharded import RATE, find_difference, make_policy, make_rows, open_learner, shard, take_steps

CLOSE = 1e-6
RUN: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"sampler": "coverage", "clients": 2, "xi": 2.0, "mean_tasks": 8},
}


@pytest.fixture(scope="module", autouse=True)
def end_ranks() -> Iterator[None]:
    yield
    ranks.close_ranks()


def compare(settings: Mapping[str, Any] | None = None, proximal: float = 0.0, **model: Any) -> None:
    """Three steps on one rank and on two."""
    policies = [make_policy(**model), shard(make_policy(**model))]
    start = policies[0].get_weights()
    learners = [open_learner(policy, settings, proximal) for policy in policies]
    one, two = (take_steps(learner, range(3)) for learner in learners)
    weights = [learner.get_weights() for learner in learners]
    assert find_difference(weights[0], start) > RATE
    assert find_difference(*weights) < CLOSE
    assert find_difference(*(learner.get_optimizer_state() for learner in learners)) < CLOSE
    for metrics, others in zip(one, two, strict=True):
        assert others == pytest.approx(metrics, rel=1e-4, abs=1e-4)


def speak(policy: Any) -> list[Completion]:
    """Two turns of two rows."""
    streams = [stream(0, "sample", number) for number in range(2)]
    with policy.open_session() as session:
        rows = session.open([[2, 3, 4], [2, 3]])
        first = session.generate(rows, streams, Decoding(max_new_tokens=6))
        session.append(rows, [[5], [6, 7]])
        return [*first, *session.generate(rows, streams, Decoding(max_new_tokens=6))]


def test_two_ranks_learn_what_one_does_and_go_on_from_each_other() -> None:
    whole, parted = make_policy(), shard(make_policy())
    settings = {"kl": 0.1, "minibatches": 2, "gradient_clip": 0.5}
    alone, both = open_learner(whole, settings, 0.1), open_learner(parted, settings, 0.1)
    assert find_difference(alone.get_weights(), both.get_weights()) == 0
    first, second = take_steps(alone, [0]), take_steps(both, [0])
    assert second[0] == pytest.approx(first[0], rel=1e-4, abs=1e-4)
    state = both.get_weights(), both.get_optimizer_state(), both.get_anchor_weights()
    assert find_difference(alone.get_weights(), state[0]) < CLOSE

    for policy in (whole, parted):
        policy.set_weights(state[0])
    assert speak(whole) == speak(parted)
    np.testing.assert_array_equal(*(embed(policy, ["take an apple", "go to table"]) for policy in (whole, parted)))

    ends = []
    for learner in (alone, both, both):
        learner.load(*state)
        take_steps(learner, [1])
        ends.append(learner.get_weights())
    assert find_difference(ends[0], ends[1]) < CLOSE, "whole weights and moments are resumed by any number of ranks"
    assert find_difference(ends[1], ends[2]) == 0, "the same number of ranks gives the same bits"


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Llama"])
def test_every_family_learns_on_two_ranks_what_it_learns_on_one(family: str, adapter: bool) -> None:
    compare(family=family, adapter=adapter)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"kl": {"coefficient": 0.1, "reference": "base"}},
        {"checkpointing": True},
        {"entropy": 0.01, "minibatch_rows": 3, "micro_tokens": 16},
        {"micro_tokens": 1, "loss": "sequence"},
    ],
)
def test_every_setting_means_the_same_on_two_ranks(settings: Mapping[str, Any]) -> None:
    compare(settings, tied=False)


@pytest.mark.slow
def test_ranks_that_have_nothing_to_do_keep_step() -> None:
    """One row, forced rows only, and both mixed: some rank computes nothing, and nobody waits for it."""
    rows = make_rows(0)
    forced = [
        dataclasses.replace(
            row, allowed_ids=row.ids[row.own].astype(np.int32), allowed_counts=np.ones(len(row.own), dtype=np.int32)
        )
        for row in rows
    ]
    mixed = [forced[index] if index % 2 else row for index, row in enumerate(rows)]
    learners = [open_learner(make_policy(), {"kl": 0.1}), open_learner(shard(make_policy(), 3), {"kl": 0.1})]
    for batch in (rows[:1], forced, mixed, rows):
        for learner in learners:
            learner.train_step(batch)
        assert find_difference(*(learner.get_weights() for learner in learners)) < CLOSE
        one, two = (learner.compute_bias_gradient(batch) for learner in learners)
        np.testing.assert_allclose(two, one, atol=1e-6)
        for first, second in zip(*(learner.score_rows(batch) for learner in learners), strict=True):
            np.testing.assert_allclose(second, first, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("matrix_rate", "bound"), [(None, CLOSE), (2e-3, 2e-4)])
def test_imitation_on_two_ranks(matrix_rate: float | None, bound: float) -> None:
    """Muon's products are in bfloat16, so its steps differ by more; a step made of parts of a matrix would differ by its rate."""
    random = np.random.default_rng(0)
    batches = [
        [Example(random.integers(0, 23, 9), np.r_[0, random.random(8)].astype(np.float32)) for _ in range(6)]
        for _ in range(3)
    ]
    settings = SupervisedSettings(steps=5, learning_rate=1e-4, matrix_rate=matrix_rate)
    policies = [make_policy(), shard(make_policy())]
    start = policies[0].get_weights()
    for policy in policies:
        training = open_imitation(policy, settings)
        for batch in batches:
            training.train_step(batch)
    ends = [policy.get_weights() for policy in policies]
    assert find_difference(*ends) < bound < find_difference(ends[0], start)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
def test_rank_0_plays_by_its_modules_between_two_steps(adapter: bool) -> None:
    """Passes that only rank 0 makes must not be waited for by the others, nor be left over for the next update."""
    policies = make_policy(adapter=adapter, forward="hf"), shard(make_policy(adapter=adapter, forward="hf"))
    learners = [open_learner(policy, {"kl": 0.1}) for policy in policies]
    for number in range(3):
        weights = learners[0].get_weights()
        for learner in learners:
            learner.load(weights, {}, {})
        whole, parted = (speak(policy) for policy in policies)
        assert whole == parted
        for learner in learners:
            take_steps(learner, [number])
        assert find_difference(*(learner.get_weights() for learner in learners)) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
def test_weights_in_bfloat16_are_parted_too(adapter: bool) -> None:
    """Products in bfloat16 differ with the batch that they are made in: the start and the moved parameters are compared."""
    import torch

    policies = [
        make_policy(adapter=adapter, dtype=torch.bfloat16),
        shard(make_policy(adapter=adapter, dtype=torch.bfloat16)),
    ]
    learners = [open_learner(policy) for policy in policies]
    start = learners[0].get_weights()
    assert find_difference(start, learners[1].get_weights()) == 0
    one, two = (take_steps(learner, [0])[0] for learner in learners)
    assert two["surprisal"] == pytest.approx(one["surprisal"], rel=0.02)
    for learner in learners:
        assert 0 < find_difference(learner.get_weights(), start) < 1.1 * RATE
    policies[1].set_weights(start)
    assert find_difference(policies[1].get_weights(), start) == 0


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
def test_a_parted_policy_is_saved_whole(adapter: bool, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    whole, parted = make_policy(adapter=adapter), shard(make_policy(adapter=adapter))
    take_steps(open_learner(parted), [0])
    whole.set_weights(parted.get_weights())
    for policy, name in ((whole, "whole"), (parted, "parted")):
        policy.save(tmp_path / name)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parted"))
    assert find_difference(one, two) == 0


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_update_with_one_sentence() -> None:
    parted = shard(make_policy())
    learner = open_learner(parted)
    os.kill(parted.ranks._followers[0].process.pid, signal.SIGKILL)
    with pytest.raises(
        ProcessUnusableError, match=r"^rank 1 of 2 \(cpu\) of the sharded model ended \(killed by signal 9\)"
    ):
        take_steps(learner, [0])
    with pytest.raises(ProcessUnusableError, match="nothing can be computed"):
        parted.get_weights()
    take_steps(open_learner(shard(make_policy())), [0])


@pytest.mark.slow
def test_weights_of_another_model_are_refused_before_any_rank_hears_of_them() -> None:
    parted = shard(make_policy())
    learner = open_learner(parted)
    with pytest.raises(DataError, match="on one side only"):
        learner.load({}, {}, {})
    with pytest.raises(OptionError, match="no session is open"), parted.open_session():
        parted.set_weights(learner.get_weights())
    take_steps(learner, [0])


@given(
    lengths=st.lists(st.integers(1, 50), max_size=12),
    cuts=st.lists(st.integers(1, 5), min_size=12, max_size=12),
    count=st.integers(1, 5),
)
def test_dealt_batches_hold_every_row_once(lengths: list[int], cuts: list[int], count: int) -> None:
    rows, batches = list(range(len(lengths))), []
    for size in cuts:
        batches.append(rows[:size])
        rows = rows[size:]
    dealt = deal_batches([batch for batch in batches if batch], lengths, count)
    assert len(dealt) == count
    assert sorted(index for part in dealt for batch in part for index in batch) == list(range(len(lengths)))
    assert all(batch for part in dealt for batch in part)
    sizes = [len(part) for part in dealt]
    assert sizes[0] == max(sizes)
    assert len(lengths) < count or min(sizes) > 0 or not lengths


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning": {"sharding": {"devices": 0}}}, "learning.sharding.devices"),
        ({"learning": {"sharding": {"device": 2}}}, "did you mean 'devices'"),
        ({"learning": {"sharding": {"devices": 2}}, "federation": {"backend": "flower-simulation"}}, "in-process"),
        ({"learning": {"sharding": {"devices": 2}}, "agent": {"rollouts": "vllm", "model": "x"}}, "rollouts=torch"),
        ({"learning": {"sharding": {"offload": True}}, "agent": {"device": "cpu"}}, "leave it out on a CPU"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        load_config({**RUN, **changes})


def test_one_device_that_keeps_its_weights_shards_nothing() -> None:
    config = load_config(
        {**RUN, "learning": {"sharding": {"devices": 1}}, "federation": {"backend": "flower-simulation"}}
    )
    assert config.learning.sharding is not None
    assert not config.learning.sharding.is_needed
    assert config.digest == load_config(RUN).digest, "how many devices share an update may change when a run is resumed"
