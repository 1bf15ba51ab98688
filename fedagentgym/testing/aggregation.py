"""`check_aggregation`: the requirements of an aggregation rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedagentgym.base.settings import NamedSettings
from fedagentgym.federation.aggregation import AGGREGATION_RULES, Aggregation, AggregationRule, Mean, aggregate
from fedagentgym.federation.message import Message
from fedagentgym.federation.server_state import ServerState
from fedagentgym.federation.vectors import Array
from fedagentgym.testing.conditions import errors_as_failures, global_generators_untouched

SHAPES: Mapping[str, tuple[int, ...]] = {"bias": (3,), "scale": (), "weight": (4, 5)}
EXAMPLES = (3.0, 1.0, 8.0, 2.0)


class _Holder(NamedSettings):
    """A configuration with one rule in it."""

    name: str = "holder"
    aggregation: Aggregation = Mean()


def check_aggregation(name: str, **settings: object) -> None:
    """Check a registered rule with the given settings on made-up parameters of four clients, over two rounds.

    It must keep names, dtypes and shapes, repeat itself, leave state, updates and global generators as they were, give finite
    parameters, and return a state that survives its commit; its settings must survive a configuration file.
    """
    with errors_as_failures():
        found = AGGREGATION_RULES.get(name)
        assert isinstance(found, type) and issubclass(found, AggregationRule), (
            f"{name} is not a class derived from fedagentgym.federation.aggregation.AggregationRule"
        )
        rule = _load({"name": name, **settings})
        assert _load(rule.model_dump(mode="json")) == rule, f"the settings of {name} do not survive a file"
        weights = rule.weigh(list(EXAMPLES))
        assert len(weights) == len(EXAMPLES), f"{name} weighs {len(EXAMPLES)} clients by {len(weights)} numbers"
        assert all(np.isfinite(weight) and weight >= 0 for weight in weights), f"{name} gives a weight that is not >= 0"
        state = ServerState(_make_parameters(0), memory={"kept": 1})
        with global_generators_untouched(name):
            for number in (1, 2):
                state = _check_round(name, rule, state, number, weights)


def _load(plain: Mapping[str, object]) -> AggregationRule:
    return _Holder.load({"aggregation": dict(plain)}).aggregation


def _check_round(
    name: str, rule: AggregationRule, state: ServerState, number: int, weights: list[float]
) -> ServerState:
    updates = [_make_parameters(10 * number + client) for client in range(len(EXAMPLES))]
    before = [_to_bytes(parameters) for parameters in (state.parameters, *updates)]
    after = aggregate(rule, state, zip(updates, weights, strict=True))
    assert [_to_bytes(parameters) for parameters in (state.parameters, *updates)] == before, (
        f"{name} changes the parameters that it is given"
    )
    assert isinstance(after, ServerState), f"{name} gives a {type(after).__name__} in place of a ServerState"
    for key, value in state.parameters.items():
        assert key in after.parameters, f"{name} loses the parameter {key!r}"
        given = after.parameters[key]
        assert given.dtype == value.dtype, f"{name} gives {key!r} as {given.dtype}, the model has {value.dtype}"
        assert given.shape == value.shape, f"{name} gives {key!r} the shape {given.shape}, the model has {value.shape}"
        assert np.isfinite(given).all(), f"{name} gives parameters that are not finite"
    assert after.memory == state.memory, f"{name} loses what the method remembers in state.memory"
    again = aggregate(rule, state, zip(updates, weights, strict=True))
    assert again.digest == after.digest, f"{name} gives another state for the same updates"
    stored = ServerState.from_message(Message.decode(after.message.encoded))
    following = [aggregate(rule, begun, zip(updates, weights, strict=True)).digest for begun in (after, stored)]
    assert following[0] == following[1], f"{name} continues differently from a state that was stored and read again"
    return after


def _make_parameters(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: np.asarray(random.normal(size=shape), dtype=np.float32) for name, shape in SHAPES.items()}


def _to_bytes(parameters: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in parameters.items()}
