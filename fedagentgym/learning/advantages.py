"""Rewards and advantages of a group of episodes. Numpy, float64, one group at a time.

The learned reward is a weighted sum of objectives. The name of an objective is looked up in this order:

1. `reward`: the rewards that the environment's `step` returned; `score`: the environment's final score;
2. a component of the environment's `info["rewards"]`;
3. a group objective, registered in `OBJECTIVES`: `length` (shorter than its siblings), `repetition` (penalty for repeated
   phrases), `format` (if the environment has no component of that name), or your own.

Every value is kept per turn, so that step-level methods can use it; an episode's value is the sum over its turns. The advantages
are those of grpo, dr_grpo, gigpo, gae, or a registered estimator:

    grpo      A_i = (R_i - mean) / (std + 1e-6)
    dr_grpo   A_i = R_i - mean
    gigpo     A_it = A_i + omega * (q_it - mean_c) / (std_c + 1e-6)

where R_i is the return of episode i, q_it the discounted return from turn t on, and c the turns of the group that start from
an identical observation. A group whose rewards are all equal gets exactly zero.

`gae` compares an episode with the predictions of a value head, and not with its group (`learning/values.py`).

A penalty p_it of a single turn (`format_penalty_on: turn`) lowers only that turn: R_i - p_it replaces R_i, q_it - p_it replaces
q_it, and mean and deviation are over all turns of the group, since an episode then has no single value.

An estimator is a settings class, registered by name: its fields are its settings, and its `estimate` computes the advantages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError, show_value, unknown_name_error
from fedagentgym.base.imports import Registry
from fedagentgym.base.rounding import count_things
from fedagentgym.base.settings import NamedSettings
from fedagentgym.learning.trajectory import Group, PerTurn, Values

EPSILON = 1e-6
Deviation = Literal["population", "sample", "none"]
Baseline = Literal["trajectories", "turns"]


class AdvantageEstimator(NamedSettings):
    """Base class of advantage estimators: derive a class, write `estimate`, register it with `register_advantage`.

    The fields are the estimator's settings in configurations. `fedagentgym.testing.check_advantage` tests an estimator.

    Examples:
        >>> import numpy as np
        >>> from typing import Literal
        >>> from fedagentgym.learning import AdvantageEstimator
        >>> class Ranks(AdvantageEstimator):
        ...     name: Literal["ranks"] = "ranks"
        ...     def estimate(self, group, rewards):
        ...         order = np.argsort(np.argsort([part.sum() for part in rewards]))
        ...         centre = (len(group) - 1) / 2
        ...         return tuple(np.full(len(part), rank - centre) for part, rank in zip(rewards, order))
    """

    uses_values: ClassVar[bool] = False
    """True if the step needs a value head, which only `gae` uses."""
    needs_groups: ClassVar[bool] = False
    """True if the advantage of a group's only episode is always 0."""

    @abstractmethod
    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        """Compute the advantages of the episodes of one task.

        Args:
            group: The episodes.
            rewards: For each episode an array with the learned reward of each turn.

        Returns:
            For each episode an array with the advantage of each turn. An advantage must not depend on the order of the episodes.
        """

    @property
    def compares_turns(self) -> bool:
        """True if `estimate_turns` can be used with these settings: turns of one episode can have values of their own."""
        return False

    def estimate_turns(self, group: Group, rewards: PerTurn, penalties: PerTurn) -> PerTurn:
        """Compute the advantages if single turns have penalties (`learning.format_penalty_on: turn`).

        Args:
            group: The episodes.
            rewards: For each episode an array with the learned reward of each turn, without the penalties.
            penalties: For each episode an array with the penalty of each turn.

        Returns:
            For each episode an array with the advantage of each turn.

        Raises:
            OptionError: If the estimator does not support this, as by default.
        """
        raise OptionError(f"advantage estimator {self.name!r} does not support penalties of single turns")


class DrGRPO(AdvantageEstimator):
    """The return of an episode minus the group's mean: R - mean."""

    name: Literal["dr_grpo"] = "dr_grpo"
    baseline: Baseline = Field(
        default="trajectories",
        description="mean over episodes, or over turns (an episode of 9 turns counts 9 times)",
    )
    needs_groups: ClassVar[bool] = True

    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return episode_advantages(rewards, "none", self.baseline)

    @property
    def compares_turns(self) -> bool:
        return self.baseline == "turns"

    def estimate_turns(self, group: Group, rewards: PerTurn, penalties: PerTurn) -> PerTurn:
        return turn_advantages(compute_turn_values(rewards, penalties), "none")


class GRPO(AdvantageEstimator):
    """(R - mean) / (std + 1e-6)."""

    name: Literal["grpo"] = "grpo"
    std: Literal["population", "sample"] = Field(
        default="population", description="divisor of the variance: n, or n - 1 as in TRL and verl"
    )
    baseline: Baseline = Field(
        default="trajectories",
        description="mean and std over episodes, or over turns (an episode of 9 turns counts 9 times)",
    )
    needs_groups: ClassVar[bool] = True

    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return episode_advantages(rewards, self.std, self.baseline)

    @property
    def compares_turns(self) -> bool:
        return self.baseline == "turns"

    def estimate_turns(self, group: Group, rewards: PerTurn, penalties: PerTurn) -> PerTurn:
        return turn_advantages(compute_turn_values(rewards, penalties), self.std)


class GiGPO(GRPO):
    """grpo plus a comparison of the returns of turns that start from the same observation."""

    name: Literal["gigpo"] = "gigpo"  # type: ignore[assignment]
    baseline: Baseline = Field(default="trajectories", description="as in grpo, for the advantage of whole episodes")
    omega: float = Field(
        default=1.0, ge=0, description="weight of the advantage of single turns (the paper's step level)"
    )
    gamma: float = Field(default=0.95, ge=0, le=1, description="discount of later rewards in a turn's return")
    needs_groups: ClassVar[bool] = False  # turns of one episode may start from the same observation

    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        whole = super().estimate(group, rewards)
        return self._add_steps(group, whole, tuple(discounted_returns(part, self.gamma) for part in rewards))

    def estimate_turns(self, group: Group, rewards: PerTurn, penalties: PerTurn) -> PerTurn:
        whole = super().estimate_turns(group, rewards, penalties)
        steps = tuple(discounted_returns(r, self.gamma) - p for r, p in zip(rewards, penalties, strict=True))
        return self._add_steps(group, whole, steps)

    def _add_steps(self, group: Group, whole: PerTurn, step_returns: PerTurn) -> PerTurn:
        observations = [[turn.observation for turn in trajectory.turns] for trajectory in group]
        steps = step_advantages(observations, step_returns, self.std)
        return tuple(episode + self.omega * step for episode, step in zip(whole, steps, strict=True))


class GAE(AdvantageEstimator):
    """Generalised advantage estimation with a value head (arXiv:1506.02438); together with a clipped loss it is PPO.

    Episodes are not compared with each other, so a group may have a single episode. A training step computes the values and the
    advantages of tokens. `estimate` has no value head: it returns the advantages of turns, with 0 for every value.
    """

    name: Literal["gae"] = "gae"
    gamma: float = Field(default=1.0, ge=0, le=1, description="discount from one sampled token to the next")
    lam: float = Field(
        default=0.95,
        ge=0,
        le=1,
        description="how far an advantage looks ahead: with 1 to the end, with 0 only to the next value",
    )
    span: Literal["episode", "turn"] = Field(
        default="episode",
        description="episode: each turn earns its own reward, and the values of later turns count; turn: each turn counts as an "
        "episode of its own and earns the return of the whole episode, as in the published code",
    )
    whiten: bool = Field(default=True, description="the advantages of a step get mean 0 and deviation 1")
    head: Literal["shared", "own"] = Field(
        default="shared",
        description="the value head; shared: averaged with the other parameters; own: each client keeps its own, never sent",
    )
    learning_rate: float = Field(default=1e-3, ge=0, description="learning rate of the value head")
    clip: float | None = Field(
        default=0.2,
        gt=0,
        description="clipping range of a value around its old value; null: no clipping",
    )
    vf_coef: float = Field(
        default=0.1,
        ge=0,
        description="weight of the value loss in the gradient of the model below the head; 0: the head learns alone",
    )
    uses_values: ClassVar[bool] = True

    def estimate(self, group: Group, rewards: PerTurn) -> PerTurn:
        return self.estimate_turns(group, rewards, tuple(np.zeros_like(part) for part in rewards))

    @property
    def compares_turns(self) -> bool:
        return self.span == "turn"

    def estimate_turns(self, group: Group, rewards: PerTurn, penalties: PerTurn) -> PerTurn:
        if self.span == "turn":
            return compute_turn_values(rewards, penalties)
        return tuple(discounted_returns(part, self.gamma * self.lam) for part in rewards)


ADVANTAGES = Registry("advantage estimator")
"""Name -> a class derived from `AdvantageEstimator`."""
for _name, _estimator in {"grpo": GRPO, "dr_grpo": DrGRPO, "gigpo": GiGPO, "gae": GAE}.items():
    ADVANTAGES.register(_name, _estimator)


def standardise(
    rewards: Values, deviation: Deviation = "population", repeats: NDArray[np.int64] | None = None
) -> Values:
    """Rewards minus their mean, divided by their deviation; zero for a constant, single or non-finite group.

    `repeats` is the number of times that each reward counts in the mean and the deviation.

    >>> standardise(np.array([1.0, 0.0, 0.0, 1.0])).round(3).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    if len(rewards) == 0 or not np.isfinite(rewards).all() or rewards.max() == rewards.min():
        return np.zeros(len(rewards), dtype=np.float64)
    sample = rewards if repeats is None else np.repeat(rewards, repeats)
    if len(sample) == 0 or sample.max() == sample.min():
        return np.zeros(len(rewards), dtype=np.float64)
    scale = 1.0 if deviation == "none" else float(sample.std(ddof=1 if deviation == "sample" else 0)) + EPSILON
    return np.asarray((rewards - sample.mean()) / scale, dtype=np.float64)


def discounted_returns(rewards: Values, gamma: float) -> Values:
    """Discounted sum of the rewards from each turn on."""
    result = np.zeros_like(rewards)
    ahead = 0.0
    for turn in range(len(rewards) - 1, -1, -1):
        ahead = rewards[turn] + gamma * ahead
        result[turn] = ahead
    return result


def group_advantages(
    group: Group, rewards: PerTurn, estimator: AdvantageEstimator, penalties: PerTurn | None = None
) -> PerTurn:
    """The validated advantages of a group. `penalties` are those of single turns, if any."""
    found = (
        estimator.estimate(group, rewards) if penalties is None else estimator.estimate_turns(group, rewards, penalties)
    )
    return spread_advantages(group, found, f"advantage estimator {estimator.name!r}")


def spread_advantages(group: Group, given: Sequence[float] | PerTurn, source: str) -> PerTurn:
    """One finite number per turn, from one number (or one array over turns) per episode."""
    returned: object = given  # a user's own estimator may return anything
    if not isinstance(returned, Sequence | np.ndarray) or isinstance(returned, str):
        raise OptionError(
            f"{source} returned {show_value(given)}: it must return an array over the turns for each episode of the group"
        )
    if len(given) != len(group):
        raise OptionError(f"{source} gives {len(given)} advantages to a group of {len(group)} episodes")
    spread = []
    for trajectory, value in zip(group, given, strict=True):
        try:
            array, turns = np.asarray(value, dtype=np.float64), len(trajectory.turns)
        except (TypeError, ValueError):
            raise OptionError(
                f"{source} gives task {trajectory.task} {show_value(value)}, which is not an array of numbers"
            ) from None
        if array.shape not in ((), (turns,)):
            raise OptionError(
                f"{source} gives advantages of shape {array.shape} to an episode of {count_things(turns, 'turn')}"
            )
        if not np.isfinite(array).all():
            raise OptionError(f"{source} gives task {trajectory.task} an advantage that is not a finite number")
        spread.append(np.broadcast_to(array, (turns,)))
    return tuple(spread)


def episode_advantages(rewards: PerTurn, deviation: Deviation, baseline: Baseline) -> PerTurn:
    """The standardised return of each episode, for all of its turns."""
    turns = np.array([len(part) for part in rewards], dtype=np.int64)
    totals = np.array([part.sum() for part in rewards], dtype=np.float64)
    episode = standardise(totals, deviation, turns if baseline == "turns" else None)
    return tuple(np.full(count, advantage) for count, advantage in zip(turns, episode, strict=True))


def compute_turn_values(rewards: PerTurn, penalties: PerTurn) -> PerTurn:
    """The value of each turn: the return of its episode minus the turn's own penalty."""
    return tuple(part.sum() - charged for part, charged in zip(rewards, penalties, strict=True))


def turn_advantages(values: PerTurn, deviation: Deviation) -> PerTurn:
    """Standardise over all turns of the group, each with its own value.

    >>> broken, whole = turn_advantages((np.array([0.0, -0.1, 0.0]), np.zeros(3)), "sample")
    >>> broken.round(2).tolist(), whole.round(2).tolist()
    ([0.41, -2.04, 0.41], [0.41, 0.41, 0.41])
    """
    scaled = standardise(np.concatenate(values) if values else np.zeros(0), deviation)
    return tuple(np.split(scaled, np.cumsum([len(part) for part in values])[:-1])) if values else ()


def step_advantages(anchors: Sequence[Sequence[Hashable]], step_returns: PerTurn, deviation: Deviation) -> PerTurn:
    """Standardise the returns of all turns that start from the same anchor; an anchor seen once gives zero."""
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for row, keys in enumerate(anchors):
        for turn, key in enumerate(keys):
            places.setdefault(key, []).append((row, turn))
    result = tuple(np.zeros(len(part), dtype=np.float64) for part in step_returns)
    for members in places.values():
        scaled = standardise(np.array([step_returns[row][turn] for row, turn in members]), deviation)
        for (row, turn), value in zip(members, scaled, strict=True):
            result[row][turn] = value
    return result


def is_constant(rewards: PerTurn, penalties: PerTurn | None = None) -> bool:
    """Return whether all episodes of a group (or its turns, if they have penalties of their own) have equal values."""
    if penalties is None:
        values = [float(part.sum()) for part in rewards]
    else:
        values = [float(value) for part in compute_turn_values(rewards, penalties) for value in part]
    return max(values) == min(values) if values else True


def length(group: Group) -> list[float]:
    """0.5 for the shortest to -0.5 for the longest episode of the group; a failed episode gets at most 0."""
    sizes = [trajectory.tokens for trajectory in group]
    shortest, longest = min(sizes), max(sizes)
    if shortest == longest:
        return [0.0] * len(group)
    scaled = [0.5 - (size - shortest) / (longest - shortest) for size in sizes]
    return [value if trajectory.success else min(0.0, value) for value, trajectory in zip(scaled, group, strict=True)]


def repetition(group: Group, size: int = 3) -> list[float]:
    """0 when no phrase of `size` words occurs twice, down to nearly -1 when all are the same."""
    shares = []
    for trajectory in group:
        phrases: list[tuple[str, ...]] = []
        for turn in trajectory.turns:
            words = turn.reply.lower().split()
            phrases += [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
        shares.append(len(set(phrases)) / len(phrases) - 1.0 if phrases else 0.0)
    return shares


def kept_format(group: Group) -> list[float]:
    """1 for an episode whose every reply has the required format, according to the agent's parser."""
    return [float(all(turn.format for turn in trajectory.turns)) for trajectory in group]


Objective = Callable[[Group], Sequence[float]]
"""A group objective: one number per episode of the group."""
OBJECTIVES = Registry("objective")
"""Name -> `Objective`."""
OBJECTIVES.register("length", length)
OBJECTIVES.register("repetition", repetition)
OBJECTIVES.register("format", kept_format)


def objective_values(group: Group, name: str) -> PerTurn:
    """The named objective, per trajectory and turn; a group objective is paid at the last turn."""
    if name == "reward":
        return tuple(np.array([turn.reward for turn in trajectory.turns], dtype=np.float64) for trajectory in group)
    if name == "score":
        return _assign_to_last_turn(group, [trajectory.score for trajectory in group])
    components = {component for trajectory in group for turn in trajectory.turns for component in turn.rewards}
    if name in components:
        return tuple(
            np.array([turn.rewards.get(name, 0.0) for turn in trajectory.turns], dtype=np.float64)
            for trajectory in group
        )
    if name in OBJECTIVES:
        return _assign_to_last_turn(group, group_objective(group, name))
    raise unknown_name_error("objective", name, list_objectives(components), registered=True)


def group_objective(group: Group, name: str) -> list[float]:
    """The validated values of a registered objective."""
    objective: Objective = OBJECTIVES.get(name)
    given = objective(group)
    try:
        found = [float(value) for value in given]
    except (TypeError, ValueError):
        raise OptionError(
            f"objective {name!r} returned {show_value(given)}: it must return one number for each episode of the group"
        ) from None
    if len(found) != len(group):
        raise OptionError(f"objective {name!r} gives {len(found)} values to a group of {len(group)} episodes")
    if not np.isfinite(found).all():
        raise OptionError(f"objective {name!r} gives task {group[0].task} a value that is not a finite number")
    return found


def list_objectives(components: Sequence[str] | set[str]) -> list[str]:
    """Every valid name of an objective, given the environment's components."""
    return list(dict.fromkeys(["reward", "score", *sorted(components), *OBJECTIVES]))


def compute_training_rewards(group: Group, weights: Mapping[str, float], format_penalty: float) -> PerTurn:
    """The scalar reward for learning: weighted objectives minus the penalty at each turn with a malformed reply."""
    total = tuple(-part for part in compute_format_penalties(group, format_penalty))
    for name, weight in weights.items():
        total = tuple(so_far + weight * part for so_far, part in zip(total, objective_values(group, name), strict=True))
    return total


def compute_format_penalties(group: Group, format_penalty: float) -> PerTurn:
    """The penalty of each turn for a malformed reply."""
    return tuple(
        format_penalty * np.array([not turn.format for turn in trajectory.turns], dtype=np.float64)
        for trajectory in group
    )


def _assign_to_last_turn(group: Group, finals: Sequence[float]) -> PerTurn:
    result = []
    for trajectory, final in zip(group, finals, strict=True):
        array = np.zeros(len(trajectory.turns), dtype=np.float64)
        array[-1:] = final
        result.append(array)
    return tuple(result)
