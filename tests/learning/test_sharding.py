"""An update on several ranks is the update of one: the same weights, moments and metrics, whatever is trained and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.devices import find_place
from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import join_ranks
from fedagentgym.learning.sharding import deal_batches

from .ranks import finish, start_ranks

CASES = "tests.learning.sharding_cases"
RUN: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"sampler": "coverage", "clients": 2, "xi": 2.0, "mean_tasks": 8},
}


@pytest.mark.slow
def test_two_ranks_learn_what_one_does_and_go_on_from_each_other() -> None:
    finish(start_ranks(2, CASES, "pass_outcomes_on", "learn_and_resume"), [0, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "cases"),
    [
        (2, ["families", "settings", "corrections", "imitation"]),
        (2, ["play_between_steps", "bfloat16"]),
        (3, ["nothing_to_do"]),
        (2, ["methods"]),
    ],
)
def test_whatever_is_trained_it_is_the_same_on_several_ranks(count: int, cases: list[str]) -> None:
    finish(start_ranks(count, CASES, *cases), [0] * count)


@pytest.mark.slow
def test_a_rank_that_fails_alone_ends_all() -> None:
    zero, one = finish(start_ranks(2, CASES, "fail_alone"), [1, 1])
    assert "rank 0 of 2 (cpu) lost another rank, which has ended" in zero
    assert "rank 1 of 2 (cpu) failed alone (MemoryError: no memory on one device)" in one


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


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning": {"sharding": {"devices": 0}}}, "learning.sharding.devices"),
        ({"learning": {"sharding": {"device": 2}}}, "did you mean 'devices'"),
        ({"learning": {"sharding": {}}, "federation": {"backend": "flower"}}, "not for flower"),
        ({"learning": {"sharding": {}}, "federation": {"workers": 2}}, "set federation.workers=0"),
        ({"learning": {"sharding": {}}, "federation": {"deadline": 9.0}}, "leave out federation.deadline"),
        ({"learning": {"sharding": {}}, "agent": {"device": "cuda:1"}}, "agent.device=cuda, not cuda:1"),
        ({"learning": {"sharding": {}}, "agent": {"rollouts": "vllm", "model": "x"}}, "rollouts=torch"),
        ({"learning": {"sharding": {"offload": True}}, "agent": {"device": "cpu"}}, "leave it out on a CPU"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        load_config({**RUN, **changes})


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets the environment of a process that torchrun started."""

    def start(rank: object, size: object, here: object) -> None:
        for name, value in {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": here}.items():
            monkeypatch.setenv(name, str(value))

    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return start


def test_a_sharded_run_and_torchrun_go_together(torchrun: Any) -> None:
    def refuse(sentence: str, sharding: dict[str, Any] | None = None) -> None:
        config = load_config({**RUN, "learning": {"sharding": sharding}})
        with pytest.raises(OptionError, match=sentence), join_ranks(config):
            pass

    refuse("start torchrun --nproc-per-node 4 -m fedagentgym train", {"devices": 4})
    torchrun(0, 3, 3)
    refuse("torchrun started 3 processes, 3 of them on this machine: start torchrun", {"devices": 2})
    refuse(r"torchrun started 3 processes, .* learning.sharding=\{devices: 3\}")
    torchrun(1, 2, 1)
    refuse("2 processes, 1 of them on this machine", {"devices": 2})
    torchrun("one", 2, 2)
    with pytest.raises(OptionError, match="RANK and WORLD_SIZE are numbers"):
        find_place()


def test_one_device_that_keeps_its_weights_shards_nothing() -> None:
    config = load_config({**RUN, "learning": {"sharding": {"devices": 1}}, "federation": {"workers": 1}})
    assert config.learning.sharding is not None
    assert not config.learning.sharding.is_needed
    assert config.digest == load_config(RUN).digest, "how many devices share an update may change when a run is resumed"
    with join_ranks(config):
        pass
