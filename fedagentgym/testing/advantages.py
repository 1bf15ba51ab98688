"""`check_advantage`: the requirements of an advantage estimator."""

from __future__ import annotations

import numpy as np

from fedagentgym.learning.advantages import ADVANTAGES, AdvantageEstimator, group_advantages
from fedagentgym.learning.objectives import objective_values
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.testing.conditions import errors_as_failures, global_generators_untouched
from fedagentgym.testing.episodes import sample_groups


def check_advantage(name: str, **settings: object) -> None:
    """Check a registered estimator with the given settings on made-up groups of episodes.

    It must give one finite number per turn, repeat itself, leave rewards and global generators as they were, not depend on
    the position of an episode in its group, and have settings that survive a configuration file.
    """
    with errors_as_failures():
        found = ADVANTAGES.get(name)
        assert isinstance(found, type) and issubclass(found, AdvantageEstimator), (
            f"{name} is not a class derived from fedagentgym.learning.advantages.AdvantageEstimator"
        )
        estimator = _load({"name": name, **settings})
        assert _load(estimator.model_dump(mode="json")) == estimator, f"the settings of {name} do not survive a file"
        with global_generators_untouched(name):
            for group in sample_groups():
                rewards = objective_values(group, "reward")
                given = tuple(part.copy() for part in rewards)
                first = group_advantages(group, given, estimator)
                assert all(map(np.array_equal, given, rewards)), f"{name} changes the rewards that it is given"
                again = group_advantages(group, given, estimator)
                assert all(map(np.array_equal, first, again)), f"{name} gives the same group other advantages each time"
                turned = group_advantages(group[::-1], given[::-1], estimator)[::-1]
                assert all(map(np.allclose, first, turned)), f"{name} depends on the order of a group's episodes"


def _load(plain: dict[str, object]) -> AdvantageEstimator:
    return LearningSettings.load({"advantage": plain}, "learning").advantage
