"""Several kinds of question in one world: each is played by the rules of its own."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.mixture import MixtureEnv
from fedagentgym.testing import check_env


def test_it_conforms() -> None:
    check_env("fedagentgym/Mixture-v0", size="tiny", kinds=["math", "qa"])


def test_every_kind_is_played_by_its_own_rules() -> None:
    env = MixtureEnv(kinds=("math", "qa", "code"), size="tiny")
    for kind, start in zip(("math", "qa", "code"), (0, 3000, 6000), strict=True):
        task = env.pool[start]
        assert task.category == kind and task.id == f"mixture/{kind}/train/00000"
        (episode,) = env.reset_many([task], [0])
        (done,) = env.step_many([episode], [env.expert().act(episode)])
        assert done.view.success and done.view.rewards[f"accuracy/{kind}"] == 1.0
    own, alone = env.pool[5], MathEnv(size="tiny").pool[5]
    assert own.payload == ("math", alone.payload)


def test_a_client_of_one_kind_knows_one_accuracy() -> None:
    env: Any = gymnasium.make("fedagentgym/Mixture-v0", size="tiny", tasks=["mixture/code/train/00001"]).unwrapped
    assert [name for name in env.reward_names if name.startswith("accuracy")] == ["accuracy/code"]
    assert set(env.reset(seed=0)[1]["rewards"]) == set(env.reward_names)


@pytest.mark.parametrize(
    "options", [{"kinds": ()}, {"kinds": ("math", "math")}, {"kinds": "math"}, {"kinds": ("moth",)}, {"variant": {}}]
)
def test_bad_options_are_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(FedAgentGymError):
        MixtureEnv(size="tiny", **options)
