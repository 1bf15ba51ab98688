"""Build an algorithm from the `algorithm:` part of a configuration, on the server and in every worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.base import BaseAlgorithm
from fedagentgym.algorithms.support.runtime import Runtime
from fedagentgym.algorithms.support.spec import ExperimentSpec
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings


def make_algorithm(spec: ExperimentSpec, runtime: Runtime) -> BaseAlgorithm[Any]:
    """The algorithm that a spec names, with its own settings validated."""
    cls = get_algorithm_class(spec.algorithm)
    return cls(load_settings(cls, spec.algorithm), runtime)


def get_algorithm_class(section: Mapping[str, Any]) -> type[BaseAlgorithm[Any]]:
    """The class that is registered under the section's name."""
    if "name" not in section:
        raise OptionError("the key 'algorithm.name' is missing")
    name = str(section["name"])
    cls = ALGORITHMS.get(name)
    if not (isinstance(cls, type) and issubclass(cls, BaseAlgorithm)):
        raise OptionError(
            f"the algorithm {name!r} is not a class derived from fedagentgym.algorithms.base.BaseAlgorithm"
        )
    return cls


def load_settings(cls: type[BaseAlgorithm[Any]], section: Mapping[str, Any]) -> Settings:
    """The algorithm's own settings from the `algorithm:` part of a configuration."""
    return cls.settings_class.load(dict(section), "algorithm")


def build_algorithm(spec: ExperimentSpec | Mapping[str, Any], device: str | None = None) -> BaseAlgorithm[Any]:
    """What a worker builds from an `ApplicationSpec`: the algorithm, whose operations it serves."""
    loaded = spec if isinstance(spec, ExperimentSpec) else ExperimentSpec.load(spec, "spec")
    return make_algorithm(loaded, Runtime(loaded, device))
