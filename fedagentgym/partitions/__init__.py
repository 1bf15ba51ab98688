"""Floor 2: who gets which tasks, and which world. Knows nothing of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedagentgym.base.registry import Registry, resolve

if __name__ != "fedagentgym.partitions":
    raise ImportError(
        "the folder `partitions` at the root is a link for readers: import fedagentgym.partitions instead"
    )

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import Client, Federation, federate, load_federation
    from fedagentgym.partitions.files.split import Split

PARTITIONS = Registry(
    "partition",
    {
        "uniform": "fedagentgym.partitions.samplers.uniform:Uniform",
        "preference": "fedagentgym.partitions.samplers.preference:Preference",
        "preference_dirichlet": "fedagentgym.partitions.samplers.preference_dirichlet:PreferenceDirichlet",
        "coverage": "fedagentgym.partitions.samplers.coverage:Coverage",
        "preference_coverage": "fedagentgym.partitions.samplers.preference_coverage:PreferenceCoverage",
        "hardness": "fedagentgym.partitions.samplers.hardness:Hardness",
        "dirichlet": "fedagentgym.partitions.samplers.dirichlet:Dirichlet",
        "by_source": "fedagentgym.partitions.samplers.by_source:BySource",
    },
)

_LAZY = {
    "Client": "fedagentgym.partitions.client_split:Client",
    "Federation": "fedagentgym.partitions.client_split:Federation",
    "Split": "fedagentgym.partitions.files.split:Split",
    "federate": "fedagentgym.partitions.client_split:federate",
    "load_federation": "fedagentgym.partitions.client_split:load_federation",
}

__all__ = ["PARTITIONS", "Client", "Federation", "Split", "federate", "load_federation", "register_partition"]


def register_partition(name: str, target: Any, *, replace: bool = False) -> None:
    """Add a sampler: a `Sampler` subclass, a function (table, clients, seed, **parameters), or "module:attribute"."""
    PARTITIONS.register(name, target, replace=replace)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return resolve(_LAZY[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
