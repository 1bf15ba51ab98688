"""Comparisons between ranks: each holds a whole policy and its part of a sharded one, and takes the same steps with both.

`python -m tests.learning.sharding_cases CASE ...`, on every rank alike.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.protocols import Completion, Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.algorithms.feddyn import DynamicPenalty
from fedagentgym.algorithms.scaffold import Correction
from fedagentgym.base import devices
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_yaml
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import stream
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.opened import Run
from fedagentgym.experiment.run import finish
from fedagentgym.federation.commits import CommitStore
from fedagentgym.learning.forward import embed
from fedagentgym.learning.learner import PolicyUpdate
from fedagentgym.learning.penalties import Penalty, Proximal, make_kl
from fedagentgym.learning.settings import LearningSettings, SupervisedSettings
from fedagentgym.learning.sharding import ShardedPolicy
from fedagentgym.learning.supervised import Example, SupervisedTraining
from fedagentgym.learning.trajectory import Row, build_trajectory_rows
from fedagentgym.runs.folder import CONFIG
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.algorithms.test_methods import RUNS
from tests.learning.conftest import random_trajectory

RATE = 2e-5
"""AdamW's steps are of this size also where a gradient is little more than rounding, and there they differ by a part of it."""
CLOSE = 1e-6
Arrays = Mapping[str, NDArray[Any]]


def make_policy(
    family: str = "Qwen2",
    *,
    adapter: bool = False,
    tied: bool = True,
    forward: Literal["auto", "own", "hf"] = "auto",
    dtype: torch.dtype = torch.float32,
) -> TorchPolicy:
    """A model of this family with random weights."""
    import transformers

    tiny, tokenizer = make_tiny_model(["go to the fridge and take an apple from it then put it on a red table"], "0.1m")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=tokenizer.size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        eos_token_id=tiny.config.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
    lora = AdapterSettings(rank=4, alpha=8.0) if adapter else None
    return TorchPolicy(model.to(dtype), tokenizer, adapter=lora, forward=forward)


def make_both(**model: Any) -> tuple[TorchPolicy, ShardedPolicy]:
    """The same policy whole and sharded."""
    return make_policy(**model), ShardedPolicy(make_policy(**model), offload=False)


def make_rows(seed: int, count: int = 7) -> list[Row]:
    """Rows of random trajectories."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    while len(rows) < count:
        trajectory = random_trajectory(random)
        rows += build_trajectory_rows(trajectory, random.standard_normal(len(trajectory.turns)))
    return rows[:count]


def open_learner(policy: Any, settings: Mapping[str, Any] | None = None, mu: float = 0.0) -> PolicyUpdate:
    chosen = LearningSettings.load({"learning_rate": RATE, **(settings or {})}, "learning")
    penalties: list[Penalty] = [Proximal(mu)] if mu else []
    if chosen.kl.coefficient:
        penalties.append(make_kl(chosen.kl, policy.get_weights()))
    return PolicyUpdate(policy, Decoding(), chosen, penalties=penalties)


def take_steps(learner: PolicyUpdate, seeds: Sequence[int]) -> list[dict[str, float]]:
    return [learner.train_step(make_rows(seed), order=seed) for seed in seeds]


def find_difference(first: Arrays, second: Arrays) -> float:
    assert first.keys() == second.keys()
    return max((float(np.abs(first[name] - second[name]).max()) for name in first), default=0.0)


def check_steps(settings: Mapping[str, Any] | None = None, mu: float = 0.0, **model: Any) -> None:
    """Three steps with both policies: the same weights, moments and metrics."""
    policies = make_both(**model)
    start = policies[0].get_weights()
    learners = [open_learner(policy, settings, mu) for policy in policies]
    one, two = (take_steps(learner, range(3)) for learner in learners)
    weights = [learner.get_weights() for learner in learners]
    assert find_difference(weights[0], start) > RATE
    assert find_difference(*weights) < CLOSE
    moments = [learner.get_optimizer_state() for learner in learners]
    assert find_difference(*moments) < CLOSE
    for metrics, others in zip(one, two, strict=True):
        assert others == pytest.approx(metrics, rel=1e-4, abs=1e-4)


def speak(policy: Any) -> list[Completion]:
    """Two turns of two rows."""

    def play() -> list[Completion]:
        streams = [stream(0, "sample", number) for number in range(2)]
        with policy.open_session() as session:
            rows = session.open([[2, 3, 4], [2, 3]])
            first = session.generate(rows, streams, Decoding(max_new_tokens=6))
            session.append(rows, [[5], [6, 7]])
            return [*first, *session.generate(rows, streams, Decoding(max_new_tokens=6))]

    return devices.here().share(play, policy)


def get_rank() -> int:
    return devices.here().rank


# ---- the cases ------------------------------------------------------------------------------------------------------


def learn_and_resume() -> None:
    whole, parted = make_both()
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
    np.testing.assert_allclose(
        *(embed(policy, ["take an apple", "go to table"]) for policy in (whole, parted)), atol=1e-6
    )

    ends = []
    for learner in (alone, both, both):
        learner.load(*state)
        take_steps(learner, [1])
        ends.append(learner.get_weights())
    assert find_difference(ends[0], ends[1]) < CLOSE, "whole weights and moments are resumed by any number of ranks"
    assert find_difference(ends[1], ends[2]) == 0, "the same number of ranks gives the same bits"


def pass_outcomes_on() -> None:
    """Results and errors of rank 0 reach all; an error on one rank alone is not taken for one of all."""
    assert devices.here().share(get_rank) == 0
    assert devices.here().make_first(get_rank) == get_rank()
    assert devices.here().share(lambda: devices.here().share(lambda: 1)) == 1

    def fail() -> None:
        raise DataError("nothing there")

    class OfLibrary(ValueError):
        def __init__(self, text: str, file: object) -> None:
            super().__init__(text)

    def fail_in_library() -> None:
        raise OfLibrary("unknown", sys.stdin)

    with pytest.raises(RuntimeError, match="OfLibrary: unknown"):
        devices.here().share(fail_in_library)
    with pytest.raises(DataError, match="nothing there") as raised:
        devices.here().share(fail)
    devices.here().check_alike(raised.value)
    devices.here().check_alike(DataError("raised by all"))
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(devices.here().share(lambda: kept))
        if get_rank() == 0:
            (folder / "file").write_text("rank 0")
        devices.here().share(lambda: None)
        with devices.here().own_folder(folder, filled=True) as place:
            assert (place / "file").read_text() == "rank 0"
            assert (place == folder) == (get_rank() == 0)
        devices.here().share(lambda: None)


def families() -> None:
    for family in ("Qwen2", "Qwen3", "Llama"):
        for adapter in (False, True):
            check_steps(family=family, adapter=adapter)


def settings() -> None:
    chosen: list[Mapping[str, Any]] = [
        {"kl": {"coefficient": 0.1, "reference": "base"}},
        {"checkpointing": True},
        {"entropy": 0.01, "minibatch_rows": 3, "micro_tokens": 16},
        {"micro_tokens": 1, "loss": "sequence"},
        {"optimizer": "sgd", "learning_rate": 1e-2},
    ]
    for one in chosen:
        check_steps(one, tied=False)


def corrections() -> None:
    """The penalties of SCAFFOLD and FedDyn, and what SCAFFOLD keeps of its gradients."""
    for make in (Correction, partial(DynamicPenalty, 0.1)):
        ends = []
        for policy in make_both():
            random = np.random.default_rng(0)
            arrays = {
                name: (1e-3 * random.standard_normal(value.shape)).astype(np.float32)
                for name, value in policy.get_weights().items()
            }
            penalty: Penalty = make(arrays)
            chosen = LearningSettings(optimizer="sgd", learning_rate=1e-2)
            learner = PolicyUpdate(policy, Decoding(), chosen, penalties=[penalty])
            take_steps(learner, range(2))
            kept = penalty.compute_mean_gradient() if isinstance(penalty, Correction) else {}
            ends.append({**learner.get_weights(), **{f"kept/{name}": value for name, value in kept.items()}})
        assert find_difference(*ends) < CLOSE


def nothing_to_do() -> None:
    """One row, forced rows only, and both mixed: some rank computes nothing, and nobody waits for it."""
    rows = make_rows(0)
    forced = [
        dataclasses.replace(
            row, allowed_ids=row.ids[row.own].astype(np.int32), allowed_counts=np.ones(len(row.own), dtype=np.int32)
        )
        for row in rows
    ]
    mixed = [forced[index] if index % 2 else row for index, row in enumerate(rows)]
    learners = [open_learner(policy, {"kl": 0.1}) for policy in make_both()]
    for batch in (rows[:1], forced, mixed, rows):
        for learner in learners:
            learner.train_step(batch)
        assert find_difference(*(learner.get_weights() for learner in learners)) < CLOSE
        one, two = (learner.compute_bias_gradient(batch) for learner in learners)
        np.testing.assert_allclose(two, one, atol=1e-6)
        for first, second in zip(*(learner.score_rows(batch) for learner in learners), strict=True):
            np.testing.assert_allclose(second, first, atol=1e-5)
    with pytest.raises(DataError, match="on one side only"):
        learners[1].load({}, {}, {})


def imitation() -> None:
    """Muon's products are in bfloat16, so its steps differ by more; a step made of parts of a matrix would differ by its rate."""
    random = np.random.default_rng(0)
    batches = [
        [Example(random.integers(0, 23, 9), np.r_[0, random.random(8)].astype(np.float32)) for _ in range(6)]
        for _ in range(3)
    ]
    for matrix_rate, bound in ((None, CLOSE), (2e-3, 2e-4)):
        chosen = SupervisedSettings(steps=5, learning_rate=1e-4, matrix_rate=matrix_rate)
        policies = make_both()
        start = policies[0].get_weights()
        for policy in policies:
            training = SupervisedTraining(policy, chosen)
            for batch in batches:
                training.train_step(batch)
        ends = [policy.get_weights() for policy in policies]
        assert find_difference(*ends) < bound < find_difference(ends[0], start)


def play_between_steps() -> None:
    """Passes that only rank 0 makes must not be waited for by the others, nor be left over for the next update."""
    for adapter in (False, True):
        policies = make_both(adapter=adapter, forward="hf")
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


def bfloat16() -> None:
    """Products in bfloat16 differ with the batch that they are made in: the start and the moved parameters are compared."""
    for adapter in (False, True):
        policies = make_both(adapter=adapter, dtype=torch.bfloat16)
        learners = [open_learner(policy) for policy in policies]
        start = learners[0].get_weights()
        assert find_difference(start, learners[1].get_weights()) == 0
        one, two = (take_steps(learner, [0])[0] for learner in learners)
        assert two["surprisal"] == pytest.approx(one["surprisal"], rel=0.02)
        for learner in learners:
            assert 0 < find_difference(learner.get_weights(), start) < 1.1 * RATE
        policies[1].set_weights(start)
        assert find_difference(policies[1].get_weights(), start) == 0


REFUSED = {"es", "fedex-lora", "flora", "flora, first draw", "ram", "fedprox, value head", "fedprox, value heads"}
"""The methods that change the base, have a value head, or compute no gradients: a policy on several devices has none of these."""


def methods() -> None:
    """Runs of methods with second models, embeddings, written tasks and server's steps end alike on all ranks, or are refused."""
    refused = set()
    for name, (method, settings, changes) in RUNS.items():
        plain = merge(merge(SMALL_CONFIG, changes), {"algorithm": {"name": method, **settings}})
        try:
            config = load_config(merge(plain, {"learning": {"sharding": {"devices": 2}}}))
        except OptionError:
            refused.add(name)
            continue
        with tempfile.TemporaryDirectory() as kept, devices.here().own_folder(Path(kept), filled=False) as place:
            place.mkdir(parents=True, exist_ok=True)
            (place / CONFIG).write_text(format_yaml(config.plain()))
            try:
                run = Run.open(config, place)
            except OptionError:
                refused.add(name)
                continue
            finish(run)
            commits = CommitStore(place / "rounds")
            digest = commits.read(commits.list_rounds()[-1]).state.digest
        assert digest == devices.here().share(lambda: digest), name  # noqa: B023
    assert refused == REFUSED, sorted(refused)


def fail_alone() -> None:
    """Rank 1 has an error of its own while rank 0 is in a common computation."""
    _, parted = make_both()
    if get_rank() == 1:
        raise MemoryError("no memory on one device")
    parted.get_weights()


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        learn_and_resume,
        pass_outcomes_on,
        families,
        settings,
        corrections,
        nothing_to_do,
        imitation,
        play_between_steps,
        bfloat16,
        methods,
        fail_alone,
    )
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = devices.find_place()
    assert place is not None
    with devices.join(place, "cpu"):
        for name in sys.argv[1:]:
            CASES[name]()
