from __future__ import annotations

from dataclasses import replace

import pytest

from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.learning.advantages import OBJECTIVES, compute_training_rewards, length, objective_values, repetition
from fedagentgym.learning.trajectory import Trajectory, Turn


def episode(sizes: list[int], success: bool, reward: float = 0.0, broken: int = 0, reply: str = "") -> Trajectory:
    turns = tuple(
        Turn(
            "o",
            reply,
            ("a",),
            reward if last else 0.0,
            True,
            index >= broken,
            {"format": 0.5, "accuracy/x": float(last)},
            0,
            n,
        )
        for index, (n, last) in enumerate(zip(sizes, [False] * (len(sizes) - 1) + [True], strict=True))
    )
    return Trajectory("t", 0, turns, success=success, score=0.25)


def test_length_prefers_short_right_answers_and_never_pays_wrong_ones() -> None:
    group = (episode([2], True), episode([4], True), episode([6], True), episode([2], False), episode([6], False))
    assert length(group) == pytest.approx([0.5, 0.0, -0.5, 0.0, -0.5])
    assert length((episode([3], True), episode([3], False))) == [0.0, 0.0]


def test_repetition_is_the_share_of_phrases_seen_before() -> None:
    group = (
        episode([1], True, reply="a b c d"),
        episode([1], True, reply="a a a a a"),
        episode([1], True, reply="x y"),
    )
    assert repetition(group) == pytest.approx([0.0, 1 / 3 - 1, 0.0])
    assert repetition((episode([1, 1], True, reply="A b c"), episode([1], True, reply="a b"))) == [-0.5, 0.0]
    assert repetition((episode([1], True, reply="a b a b"),), size=2) == pytest.approx([-1 / 3])


def test_components_are_summed_over_turns_and_score_is_paid_at_the_end() -> None:
    group = (episode([1, 1], True, reward=10.0),)
    assert [part.tolist() for part in objective_values(group, "format")] == [[0.5, 0.5]]
    assert [part.tolist() for part in objective_values(group, "reward")] == [[0.0, 10.0]]
    assert [part.tolist() for part in objective_values(group, "score")] == [[0.0, 0.25]]


def test_format_is_what_the_world_pays_or_else_the_parsers_judgement() -> None:
    bare = tuple(
        replace(each, turns=tuple(turn._replace(rewards={}) for turn in each.turns))
        for each in (episode([1, 1], False), episode([1, 1], True, broken=1))
    )
    assert [part.tolist() for part in objective_values(bare, "format")] == [[0.0, 1.0], [0.0, 0.0]]


def test_broken_format_costs_its_penalty_at_its_turn_also_where_success_pays_ten() -> None:
    (learned,) = compute_training_rewards((episode([1, 1, 1], True, reward=10.0, broken=2),), {"reward": 1.0}, 0.1)
    assert learned.tolist() == pytest.approx([-0.1, -0.1, 10.0])


def test_weights_mix_objectives() -> None:
    (learned,) = compute_training_rewards((episode([1, 1], True),), {"accuracy/x": 2.0, "format": 0.5}, 0.0)
    assert learned.tolist() == [0.25, 2.25]


def test_an_unknown_objective_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="accuracy/x"):
        objective_values((episode([1], True),), "accuracy/y")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([1.0], "objective 'odd' gives 1 values to a group of 2 episodes"),
        ([1.0, float("nan")], "objective 'odd' gives task t a value that is not a finite number"),
    ],
)
def test_values_that_do_not_fit_their_group_are_refused(given: list[float], told: str) -> None:
    OBJECTIVES.register("odd", lambda group: given, replace=True)
    with pytest.raises(OptionError, match=told):
        objective_values((episode([1], True), episode([1], True)), "odd")
