from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.base.errors import OptionError
from fedagentgym.learning.advantages import (
    GRPO,
    AdvantageEstimator,
    DrGRPO,
    GiGPO,
    group_advantages,
    is_constant,
    returns,
    standardised,
    step_advantages,
)
from fedagentgym.learning.objectives import PerTurn
from fedagentgym.learning.trajectory import Group, Trajectory, Turn

rewards = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12)


def group(*observations: str) -> tuple[Trajectory, ...]:
    """One trajectory per string; every letter is an observation."""
    return tuple(
        Trajectory("t", 0, tuple(Turn(letter, "", "", 0.0, True, True) for letter in text)) for text in observations
    )


@given(rewards)
@settings(deadline=None, max_examples=100)
def test_standardised_rewards_have_mean_zero_and_keep_their_order(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    scaled = standardised(array)
    assert abs(scaled.mean()) < 1e-6
    assert np.all(np.diff(scaled[np.argsort(array)]) >= -1e-9)
    assert scaled.std() <= 1 + 1e-9


def test_population_and_sample_deviation() -> None:
    array = np.array([0.0, 1.0, 1.0, 4.0])
    centred = array - 1.5
    assert standardised(array) == pytest.approx(centred / (array.std() + 1e-6))
    assert standardised(array, "sample") == pytest.approx(centred / (array.std(ddof=1) + 1e-6))
    assert standardised(array, "none") == pytest.approx(centred)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.1 + 0.2, 0.1 + 0.2], [5.0], [], [1.0, np.nan], [np.inf, 0.0]])
def test_groups_that_say_nothing_get_exactly_zero(values: list[float]) -> None:
    assert standardised(np.array(values)).tolist() == [0.0] * len(values)


def test_an_episode_s_advantage_is_that_of_all_its_turns() -> None:
    per_turn = (np.array([0.0, 1.0]), np.array([0.0, 0.0, 0.0]))
    first, second = group_advantages(group("ab", "abc"), per_turn, GRPO())
    assert first == pytest.approx([1, 1], abs=1e-5) and second == pytest.approx([-1, -1, -1], abs=1e-5)


def test_baseline_over_turns_counts_long_episodes_more_often() -> None:
    per_turn = (np.array([1.0]), np.array([0.0, 0.0, 0.0]))
    chosen = DrGRPO(baseline="turns")
    first, second = group_advantages(group("a", "abc"), per_turn, chosen)
    assert first.tolist() == [0.75] and second.tolist() == [-0.25] * 3


def test_discounted_returns() -> None:
    assert returns(np.array([1.0, 0.0, 4.0]), 0.5).tolist() == [2.0, 2.0, 4.0]


def test_gigpo_by_hand() -> None:
    """Both episodes pass through `a`; only one of them is at `b` and `c`, which therefore say nothing."""
    per_turn = (np.array([0.0, 1.0]), np.array([0.0, 0.0]))
    chosen = GiGPO(omega=0.5, gamma=0.9)
    first, second = group_advantages(group("ab", "ac"), per_turn, chosen)
    episode = 0.5 / (0.5 + 1e-6)
    step = 0.45 / (0.45 + 1e-6)
    assert first == pytest.approx([episode + 0.5 * step, episode])
    assert second == pytest.approx([-episode - 0.5 * step, -episode])


def test_gigpo_with_no_step_weight_is_grpo() -> None:
    per_turn = (np.array([0.0, 1.0]), np.array([0.3, 0.0]), np.array([0.0, 0.2]))
    members = group("ab", "ab", "aa")
    plain = group_advantages(members, per_turn, GRPO())
    zero = group_advantages(members, per_turn, GiGPO(omega=0))
    assert all(np.array_equal(a, b) for a, b in zip(plain, zero, strict=True))


def test_an_observation_met_twice_in_one_episode_compares_its_two_returns() -> None:
    (steps,) = step_advantages([["a", "a"]], (np.array([0.5, 1.0]),), "none")
    assert steps.tolist() == [-0.25, 0.25]


def test_constant_groups_are_recognised_over_different_lengths() -> None:
    assert is_constant((np.array([0.0, 1.0]), np.array([1.0])))
    assert not is_constant((np.array([0.0, 1.0]), np.array([0.5])))
    assert is_constant(())


class Odd(AdvantageEstimator):
    """Gives back whatever it was told to."""

    given: Any = None

    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return self.given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((np.zeros(2),), "advantage estimator 'odd' gives 1 advantages to a group of 2 episodes"),
        ((np.zeros(2), np.zeros(2)), r"gives advantages of shape \(2,\) to an episode of 1 turns"),
        ((np.zeros(2), np.array([np.nan])), "gives task t an advantage that is not a finite number"),
    ],
)
def test_advantages_that_do_not_fit_their_group_are_refused(given: PerTurn, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        group_advantages(group("ab", "a"), (np.zeros(2), np.zeros(1)), Odd(name="odd", given=given))
