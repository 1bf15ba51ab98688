from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedagentgym.base.errors import DataError
from fedagentgym.base.streams import generator
from fedagentgym.learning.supervised import (
    BATCHES_SORTED,
    SupervisedSettings,
    SupervisedTraining,
    _iter_batches,
    find_layer_matrices,
    make_examples,
)
from fedagentgym.learning.trajectory import Trajectory

from .conftest import ToyPolicy

Groups = list[tuple[Trajectory, ...]]


def test_own_tokens_weigh_one_observations_little_and_noise_nothing(make_groups: Callable[..., Groups]) -> None:
    trajectory = next(t for group in make_groups(4) for t in group if len(t.turns) == 3)
    noisy = replace(
        trajectory, turns=(trajectory.turns[0], trajectory.turns[1]._replace(learn=False), trajectory.turns[2])
    )
    (example,) = make_examples([noisy], observation_weight=0.25)
    segment = trajectory.segments[0]
    expected = np.full(len(segment.prompt_ids) + len(segment.token_ids), 0.25, dtype=np.float32)
    own = len(segment.prompt_ids) + np.flatnonzero(segment.mask)
    first, second = trajectory.turns[0].tokens, trajectory.turns[1].tokens
    expected[own] = 1.0
    expected[own[first : first + second]] = 0.0
    expected[0] = 0.0
    assert example.weights.tolist() == expected.tolist()
    expected[own] = 1.0
    (careless,) = make_examples([noisy], observation_weight=0.25, imitate_noise=True)
    assert careless.weights.tolist() == expected.tolist()


def test_a_segment_with_nothing_to_imitate_is_left_out(make_groups: Callable[..., Groups]) -> None:
    trajectory = make_groups()[0][0]
    silent = replace(trajectory, turns=tuple(turn._replace(learn=False) for turn in trajectory.turns))
    assert make_examples([silent], observation_weight=0.0) == []


def test_the_step_is_weighted_cross_entropy_however_it_is_cut(make_groups: Callable[..., Groups]) -> None:
    data = make_examples([t for group in make_groups() for t in group])
    policy = ToyPolicy()
    total, weight = 0.0, 0.0
    for example in data:
        logits = policy.model(input_ids=torch.tensor(example.ids)[None]).logits[0]
        surprisal = -torch.log_softmax(logits, -1)[torch.arange(len(example.ids) - 1), torch.tensor(example.ids[1:])]
        total += float((surprisal.detach() * torch.tensor(example.weights[1:])).sum())
        weight += float(example.weights.sum())
    losses = [
        SupervisedTraining(ToyPolicy(), SupervisedSettings(micro_tokens=bound)).train_step(data)
        for bound in (1, 50, 10_000)
    ]
    assert losses == pytest.approx([total / weight] * 3, rel=1e-5)


def test_muon_moves_the_layers_matrices_and_nothing_else() -> None:
    policy = ToyPolicy()
    inner = find_layer_matrices(policy)
    assert {name for name in inner if "proj" not in name} == set()
    assert len(inner) == sum("proj" in name and value.dim() == 2 for name, value in policy.parameters().items())


@pytest.mark.parametrize("matrix_rate", [None, 2e-2])
def test_imitation_learns_and_is_repeatable(make_groups: Callable[..., Groups], matrix_rate: float | None) -> None:
    data = make_examples([t for group in make_groups() for t in group])
    settings = SupervisedSettings(steps=40, batch_size=4, learning_rate=1e-2, matrix_rate=matrix_rate)
    runs = [SupervisedTraining(ToyPolicy(), settings).run(data, seed=1) for _ in range(2)]
    assert runs[0] == runs[1] and np.mean(runs[0][-4:]) < 0.5 * np.mean(runs[0][:4])
    assert SupervisedTraining(ToyPolicy(), settings).run(data, seed=2) != runs[0]


@pytest.mark.parametrize("sort_lengths", [True, False])
def test_batches_hold_every_example_once_a_pass_alike_in_length_or_not(sort_lengths: bool) -> None:
    lengths = [2, 40] * 16
    together = BATCHES_SORTED if sort_lengths else 1
    batches = list(itertools.islice(_iter_batches(lengths, 4, together, generator(0, "batches")), 8))
    assert sorted(index for batch in batches for index in batch) == list(range(32))
    mixed = [len({lengths[index] for index in batch}) == 2 for batch in batches]
    assert any(mixed) != sort_lengths


@pytest.mark.parametrize("matrix_rate", [None, 0.01])
def test_a_training_goes_on_where_another_left_off(
    make_groups: Callable[..., Groups], matrix_rate: float | None
) -> None:
    """With its moments, Muon's momentum and its place in the schedule; without moments every step is a first one."""
    data = make_examples([t for group in make_groups() for t in group])
    schedule = {"name": "linear"}
    settings = SupervisedSettings.load({"steps": 4, "batch_size": 2, "matrix_rate": matrix_rate, "schedule": schedule})

    def train(steps: int, policy: ToyPolicy, former: SupervisedTraining | None = None) -> SupervisedTraining:
        moments, step = ({}, 0) if former is None else (former.get_moments(), former.step)
        training = SupervisedTraining(policy, settings, moments=moments, step=step)
        for number in range(training.step, training.step + steps):
            training.train_step(data[number : number + 2])
        return training

    straight, halves = ToyPolicy(), ToyPolicy()
    whole = train(4, straight)
    second = train(2, halves, train(2, halves))
    assert second.step == whole.step == 4
    theirs, ours = whole.get_weights(), second.get_weights()
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    anew = ToyPolicy()
    train(2, anew)
    restarted = SupervisedTraining(anew, settings, step=2)
    for number in (2, 3):
        restarted.train_step(data[number : number + 2])
    other = restarted.get_weights()
    assert any(not np.array_equal(theirs[name], other[name]) for name in theirs)


def test_no_demonstrations_is_an_error() -> None:
    with pytest.raises(DataError, match="no demonstrations"):
        SupervisedTraining(ToyPolicy(), SupervisedSettings()).run([], seed=0)
