"""A federated method of your own: FedAgent with a server learning rate, so that the server moves part of the way to the mean.

To use the method in other runs, put the class and its registration into a file, and run `fedagentgym train demo --plugin
halfway.py --set algorithm.name=halfway`. This example runs one round with an untrained tiny model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

import fedagentgym
from fedagentgym.algorithms import Averaging, AveragingSettings

CONFIG = {
    "name": "halfway",
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"sampler": "preference", "clients": 3, "tasks_per_client": 8, "omega": 0.9},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 2, "group_size": 4, "learning_rate": 1e-3},
    "federation": {"rounds": 1, "clients_per_round": 2},
    "evaluation": {"tasks": 4, "every": 1},
}


class HalfwaySettings(AveragingSettings):
    name: Literal["halfway"] = "halfway"
    rate: float = Field(default=0.5, gt=0, le=1, description="share of the way to the mean that the server goes")


class Halfway(Averaging[HalfwaySettings]):
    """FedAgent whose global model moves by a share `rate` of the mean update."""

    settings_class = HalfwaySettings

    def combine(self, state: Any, used: Any, updates: Any, this_round: Any) -> Any:
        mean = super().combine(state, used, updates, this_round)
        old, new, rate = state.parameters, mean.parameters, self.settings.rate
        after = {name: ((1 - rate) * old[name] + rate * new[name]).astype(new[name].dtype) for name in new}
        print(f"  the server goes {measure({name: after[name] - old[name] for name in new}):.4f} far")
        return replace(mean, parameters=after)


def measure(steps: Mapping[str, Any]) -> float:
    """The L2 norm of a step over all parameters."""
    return float(np.sqrt(sum(np.square(step, dtype=np.float64).sum() for step in steps.values())))


def main() -> None:
    fedagentgym.register_algorithm("halfway", Halfway, replace=True)
    digests = {}
    for algorithm in ({"name": "fedagent"}, {"name": "halfway", "rate": 1.0}, {"name": "halfway", "rate": 0.25}):
        print(algorithm)
        with tempfile.TemporaryDirectory() as folder:
            done = fedagentgym.train(
                {**CONFIG, "algorithm": {**algorithm, "local_steps": 1}, "output": {"folder": f"{folder}/run"}}
            )
        digests[algorithm.get("rate")] = done.digest
    print("the whole way is FedAgent to the bit:", digests[None] == digests[1.0])
    print("a quarter of the way is another model:", digests[0.25] != digests[1.0])


if __name__ == "__main__":
    main()
