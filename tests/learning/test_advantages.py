from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import OptionError
from fedagentgym.learning.advantages import (
    GRPO,
    AdvantageEstimator,
    DrGRPO,
    GiGPO,
    compute_format_penalties,
    compute_training_rewards,
    discounted_returns,
    group_advantages,
    is_constant,
    standardise,
    step_advantages,
    turn_advantages,
)
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group, PerTurn, Trajectory, Turn

rewards = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12)


def group(*observations: str) -> tuple[Trajectory, ...]:
    """One trajectory per string; every letter is an observation."""
    return tuple(
        Trajectory("t", 0, tuple(Turn(letter, "", (), 0.0, True, True) for letter in text)) for text in observations
    )


@given(rewards)
def test_standardised_rewards_have_mean_zero_and_keep_their_order(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    scaled = standardise(array)
    assert abs(scaled.mean()) < 1e-6
    assert np.all(np.diff(scaled[np.argsort(array)]) >= -1e-9)
    assert scaled.std() <= 1 + 1e-9


def test_population_and_sample_deviation() -> None:
    array = np.array([0.0, 1.0, 1.0, 4.0])
    centred = array - 1.5
    assert standardise(array) == pytest.approx(centred / (array.std() + 1e-6))
    assert standardise(array, "sample") == pytest.approx(centred / (array.std(ddof=1) + 1e-6))
    assert standardise(array, "none") == pytest.approx(centred)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.1 + 0.2, 0.1 + 0.2], [5.0], [], [1.0, np.nan], [np.inf, 0.0]])
def test_groups_that_say_nothing_get_exactly_zero(values: list[float]) -> None:
    assert standardise(np.array(values)).tolist() == [0.0] * len(values)


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
    assert discounted_returns(np.array([1.0, 0.0, 4.0]), 0.5).tolist() == [2.0, 2.0, 4.0]


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


def test_a_penalty_of_one_turn_makes_a_group_of_equal_returns_say_something() -> None:
    rewards = (np.array([0.0, 1.0]), np.array([1.0]))
    assert is_constant(rewards, (np.zeros(2), np.zeros(1)))
    assert is_constant(rewards, (np.full(2, 0.1), np.full(1, 0.1)))
    assert not is_constant(rewards, (np.array([0.1, 0.0]), np.zeros(1)))
    assert is_constant((), ())


@pytest.mark.parametrize("repeats", [[0, 0], [3, 0], [0, 1]])
def test_a_group_whose_turns_belong_to_one_episode_says_nothing(repeats: list[int]) -> None:
    assert standardise(np.array([1.0, 0.0]), repeats=np.array(repeats)).tolist() == [0.0, 0.0]


def test_repeats_count_in_mean_and_deviation() -> None:
    found = standardise(np.array([1.0, 0.0]), repeats=np.array([1, 3]))
    assert found.tolist() == pytest.approx([0.75 / (np.sqrt(3) / 4 + 1e-6), -0.25 / (np.sqrt(3) / 4 + 1e-6)])


def test_a_group_without_turns_has_no_advantages() -> None:
    assert turn_advantages((), "sample") == ()
    assert group_advantages((), (), GRPO(baseline="turns"), ()) == ()


def test_an_estimator_without_penalties_of_single_turns_says_so() -> None:
    members, zeros = group("ab", "a"), (np.zeros(2), np.zeros(1))
    with pytest.raises(OptionError, match="'odd' does not support penalties of single turns"):
        group_advantages(members, zeros, Odd(name="odd", given=zeros), zeros)
    assert not Odd(name="odd").compares_turns


@pytest.mark.parametrize(("option", "wrong"), [("omega", -0.1), ("gamma", -0.1), ("gamma", 1.1)])
def test_an_option_of_gigpo_outside_of_its_range_is_refused(option: str, wrong: float) -> None:
    with pytest.raises(OptionError, match=option):
        LearningSettings.load({"advantage": {"name": "gigpo", option: wrong}})


class Odd(AdvantageEstimator):
    """Returns whatever it was made with."""

    given: Any = None

    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return self.given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((np.zeros(2),), "advantage estimator 'odd' gives 1 advantages to a group of 2 episodes"),
        ((np.zeros(2), np.zeros(2)), r"gives advantages of shape \(2,\) to an episode of 1 turn"),
        ((np.zeros(2), np.array([np.nan])), "gives task t an advantage that is not a finite number"),
    ],
)
def test_advantages_that_do_not_fit_their_group_are_refused(given: PerTurn, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        group_advantages(group("ab", "a"), (np.zeros(2), np.zeros(1)), Odd(name="odd", given=given))


def failed(turns: int, broken: int = 0) -> Trajectory:
    """An episode that earns nothing, the format of whose first `broken` turns is broken."""
    return Trajectory("t", 0, tuple(Turn("x", "", (), 0.0, True, number >= broken) for number in range(turns)))


def advantages_of(members: Group, **settings: Any) -> list[list[float]]:
    chosen = LearningSettings.load({"advantage": {"name": "grpo", "std": "sample", "baseline": "turns"}, **settings})
    rewards = compute_training_rewards(members, {"reward": 1.0}, 0.0)
    penalties = compute_format_penalties(members, chosen.format_penalty)
    if chosen.format_penalty_on == "turn":
        found = group_advantages(members, rewards, chosen.advantage, penalties)
    else:
        found = group_advantages(members, compute_training_rewards(members, {"reward": 1.0}, 0.1), chosen.advantage)
    return [part.round(2).tolist() for part in found]


def test_one_broken_turn_of_two_failed_episodes() -> None:
    """Sample deviation over turns: at its own turn as the published code does, or spread over the episode."""
    members = (failed(3, broken=1), failed(3))
    assert advantages_of(members, format_penalty_on="turn") == [[-2.04, 0.41, 0.41], [0.41, 0.41, 0.41]]
    assert advantages_of(members) == [[-0.91] * 3, [0.91] * 3]


@given(st.lists(st.tuples(st.floats(-5, 5), st.lists(st.booleans(), min_size=1, max_size=5)), min_size=1, max_size=5))
def test_penalties_at_their_turns_are_standardised_over_all_turns(episodes: list[tuple[float, list[bool]]]) -> None:
    """Against loops; and where no turn is broken, both ways are the same."""
    members = tuple(
        Trajectory("t", 0, tuple(Turn("x", "", (), 0.0, True, ok) for ok in flags)) for _, flags in episodes
    )
    rewards = tuple(np.array([value, *[0.0] * (len(flags) - 1)]) for value, flags in episodes)
    flat = [value - 0.25 * (not ok) for value, flags in episodes for ok in flags]
    found = group_advantages(members, rewards, DrGRPO(baseline="turns"), compute_format_penalties(members, 0.25))
    mean = sum(flat) / len(flat)
    assert np.concatenate(found) == pytest.approx([value - mean for value in flat], abs=1e-9)
    unbroken = group_advantages(members, rewards, GRPO(baseline="turns"), compute_format_penalties(members, 0.0))
    spread = group_advantages(members, rewards, GRPO(baseline="turns"))
    assert np.concatenate(unbroken) == pytest.approx(np.concatenate(spread), abs=1e-9)


def test_gigpo_charges_a_broken_turn_in_both_of_its_parts() -> None:
    members = (failed(2, broken=1), failed(2))
    chosen = GiGPO(baseline="turns", omega=2.0)
    rewards, penalties = compute_training_rewards(members, {"reward": 1.0}, 0.0), compute_format_penalties(members, 0.1)
    flat = np.array([-0.1, 0.0, 0.0, 0.0])
    scaled = (flat - flat.mean()) / (flat.std() + 1e-6)
    first, second = group_advantages(members, rewards, chosen, penalties)
    assert [*first, *second] == pytest.approx((3 * scaled).tolist(), abs=1e-9)


def test_estimators_that_compare_episodes_refuse_penalties_of_single_turns() -> None:
    for advantage in ("grpo", "dr_grpo", "gigpo", {"name": "grpo", "baseline": "trajectories"}):
        with pytest.raises(OptionError, match="needs an advantage whose baseline is over turns"):
            LearningSettings.load({"advantage": advantage, "format_penalty_on": "turn"}, "learning")
    with pytest.raises(OptionError, match="'odd' does not support penalties"):
        group_advantages((failed(1),), (np.zeros(1),), Odd(name="odd", given=()), (np.zeros(1),))
