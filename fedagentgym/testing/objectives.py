"""`check_objective`: the requirements of an objective over a group of episodes."""

from __future__ import annotations

import numpy as np

from fedagentgym.learning.objectives import group_objective
from fedagentgym.testing.conditions import errors_as_failures, global_generators_untouched
from fedagentgym.testing.episodes import sample_groups


def check_objective(name: str) -> None:
    """Check a registered objective on made-up groups of episodes.

    It must give one finite number per episode, repeat itself, leave the global generators alone, and not depend on where in its
    group an episode stands.
    """
    assert name not in ("reward", "score"), f"{name!r} is the environment's reward: choose another name"
    with errors_as_failures(), global_generators_untouched(name):
        for group in sample_groups():
            first = group_objective(group, name)
            assert group_objective(group, name) == first, f"{name} gives the same group other values each time"
            turned = group_objective(group[::-1], name)[::-1]
            assert np.allclose(first, turned), f"{name} depends on the order of a group's episodes"
