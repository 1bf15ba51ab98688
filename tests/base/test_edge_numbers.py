"""Numbers at the edge, in every setting and option: one sentence, or something that can be computed with."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym import federate
from fedagentgym.base.errors import FedAgentGymError, OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.statistics import (
    bound_spread,
    check_size,
    compare_replicates,
    compare_tasks,
    estimate_replicates,
    estimate_tasks,
)
from fedagentgym.partitions.samplers import SAMPLERS

EDGES: tuple[Any, ...] = (
    *(True, False, math.nan, math.inf, -math.inf, 5e-324, 1e-320, -1e-320, 1e-200, 1e200, 1e308, -1e308, 1.7e308),
    *(-0.0, 10**30, -(10**30), 2**63, -1, 0, np.float32(1e-40), np.float64(1e300), np.int64(-5), np.bool_(True)),
)


def list_settings() -> list[type[Settings]]:
    """All classes of settings of the package, options of environments included."""
    for module in pkgutil.walk_packages(fedagentgym.__path__, "fedagentgym."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue
    found, new = set[type[Settings]](), [Settings]
    while new:
        new = [one for cls in new for one in cls.__subclasses__() if one not in found]
        found.update(new)
    usable = (one for one in found if one.__module__.startswith("fedagentgym.") and not inspect.isabstract(one))
    return sorted(usable, key=lambda cls: cls.__qualname__)


def is_number(annotation: Any) -> bool:
    return any(kind in str(annotation) for kind in ("int", "float"))


def test_no_setting_takes_a_number_that_is_none() -> None:
    classes = list_settings()
    assert len(classes) > 60
    for cls in classes:
        for name, field in cls.model_fields.items():
            if not is_number(field.annotation):
                continue
            for edge in EDGES:
                try:
                    made = cls.load({name: edge})
                except OptionError as error:
                    assert "\n" not in str(error) and len(str(error)) < 1000, (cls, name, edge)
                    continue
                value, kinds = getattr(made, name), str(field.annotation)
                if isinstance(value, float):
                    assert math.isfinite(value) and (not value or abs(value) >= 1e-307), (cls, name)
                if isinstance(value, bool):
                    assert "bool" in kinds or "Any" in kinds, (cls, name)


@pytest.mark.parametrize("sampler", SAMPLERS.names())
def test_a_sampler_divides_at_the_edge_or_says_why_not(sampler: str) -> None:
    for name, field in SAMPLERS.get(sampler).model_fields.items():
        if not is_number(field.annotation):
            continue
        for edge in (True, 1e-320, 1e-300, 1e-150, 1e-12, 1e12, 1e150, 1e308, -1, 0, 2**62):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    split = federate("fedagentgym/Guess-v0", partition=sampler, clients=3, **{name: edge})
                except FedAgentGymError as error:
                    assert "\n" not in str(error)
                else:
                    assert len(split) == 3 and all(len(client) > 0 for client in split)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=8))
def test_a_comparison_of_any_numbers_has_finite_figures_or_is_refused(values: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = compare_replicates(values, margin=0.1)
            spread = estimate_replicates(values)
            means, low, high = estimate_tasks([np.array(values)[:, None]], [False])
            compare_tasks([np.array(values)], bounded=False)
            bound_spread(values)
        except FedAgentGymError:
            with pytest.raises(FedAgentGymError):
                check_size(values)
            return
    figures = [found.mean, found.low, found.high, found.p, spread.mean, *means, *low, *high]
    assert all(one is None or math.isfinite(one) for one in figures)
