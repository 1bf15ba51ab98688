"""A method that combines the clients' updates by a strategy of Flower (FedAvg, FedYogi, Krum, ...).

    fedagentgym train demo --plugin flower_strategy.py --set "algorithm={name: flower-strategy, strategy: FedYogi}"

The state that an adaptive strategy keeps between rounds is part of the global state, so a resumed run ends with the same
parameters as an uninterrupted run.
Tried with flwr 1.41 (extra [flower]).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import flwr.serverapp.strategy as strategies
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from pydantic import Field

import fedagentgym
from fedagentgym.algorithms import Averaging, AveragingSettings, Card, Scale
from fedagentgym.errors import OptionError

KEPT = ("m_t", "v_t")
"""Attributes in which Flower's adaptive strategies keep state between rounds."""


class StrategySettings(AveragingSettings):
    name: Literal["flower-strategy"] = "flower-strategy"
    strategy: str = Field(default="FedAvg", description="name of a class of flwr.serverapp.strategy")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the strategy")


class FlowerStrategy(Averaging[StrategySettings]):
    """Federated averaging in which the strategy's `aggregate_train` replaces the mean."""

    settings_class = StrategySettings

    def combine(self, state: Any, used: Sequence[Any], updates: Iterator[Mapping[str, Any]], this_round: Any) -> Any:
        if not used:
            return state
        strategy = make_strategy(self.settings)
        strategy.current_arrays = {name: np.asarray(value) for name, value in state.parameters.items()}
        for part in KEPT:
            kept = {
                name.removeprefix(f"{part}/"): value
                for name, value in state.optimizer.items()
                if name.startswith(f"{part}/")
            }
            setattr(strategy, part, {name: np.array(value) for name, value in kept.items()} or None)
        replies = [make_reply(reply, update) for reply, update in zip(used, updates, strict=True)]
        arrays, _ = strategy.aggregate_train(this_round.number, replies)
        if arrays is None:
            return state
        after = {name: np.asarray(array.numpy(), state.parameters[name].dtype) for name, array in arrays.items()}
        moments = {
            f"{part}/{name}": np.asarray(value)
            for part in KEPT
            for name, value in (getattr(strategy, part) or {}).items()
        }
        return type(state)(after, moments, state.memory)

    @classmethod
    def describe(cls, settings: StrategySettings, scale: Scale) -> Card:
        return replace(super().describe(settings, scale), needs_counts=True)


def make_strategy(settings: StrategySettings) -> Any:
    cls = getattr(strategies, settings.strategy, None)
    if cls is None or not hasattr(cls, "aggregate_train"):
        raise OptionError(f"algorithm.strategy: flwr.serverapp.strategy has no {settings.strategy!r}")
    try:
        return cls(**settings.options)
    except TypeError as error:
        raise OptionError(f"algorithm.options: {error}") from None


def make_reply(reply: Any, update: Mapping[str, Any]) -> Any:
    """A client's update in the form of the messages that `aggregate_train` takes."""
    arrays = ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in update.items()})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": reply.examples})})
    return SimpleNamespace(
        content=content, has_error=lambda: False, metadata=SimpleNamespace(src_node_id=reply.client + 1)
    )


fedagentgym.register_algorithm("flower-strategy", FlowerStrategy, replace=True)

CONFIG = {
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"sampler": "preference", "clients": 3, "tasks_per_client": 8, "omega": 0.9},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 2, "group_size": 4, "learning_rate": 1e-3},
    "federation": {"rounds": 2},
    "evaluation": None,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, options in [("FedAvg", {}), ("FedYogi", {"eta": 0.01}), ("Krum", {})]:
            chosen = {"name": "flower-strategy", "strategy": name, "options": options}
            output = {"folder": f"{folder}/{name}", "report": "none"}
            run = fedagentgym.train({**CONFIG, "name": name, "algorithm": chosen, "output": output})
            print(name, run.record["rounds"], "rounds,", run.record["failures"], "failures")


if __name__ == "__main__":
    main()
