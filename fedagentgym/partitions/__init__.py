"""Floor 2: who gets which tasks, and which world. Knows nothing of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedagentgym.base.registry import Registry, resolve

if __name__ != "fedagentgym.partitions":
    raise ImportError(
        "the folder `partitions` at the root is a link for readers: import fedagentgym.partitions instead"
    )

if TYPE_CHECKING:
    from fedagentgym.partitions.federation import Client, Federation, federate, load_federation
    from fedagentgym.partitions.split import Split

PARTITIONS = Registry(
    "partition",
    {
        "uniform": "fedagentgym.partitions.uniform:Uniform",
        "preference": "fedagentgym.partitions.preference:Preference",
        "preference_dirichlet": "fedagentgym.partitions.preference_dirichlet:PreferenceDirichlet",
        "coverage": "fedagentgym.partitions.coverage:Coverage",
        "preference_coverage": "fedagentgym.partitions.preference_coverage:PreferenceCoverage",
        "hardness": "fedagentgym.partitions.hardness:Hardness",
        "dirichlet": "fedagentgym.partitions.dirichlet:Dirichlet",
        "by_source": "fedagentgym.partitions.by_source:BySource",
    },
)

_LAZY = {
    "Client": "fedagentgym.partitions.federation:Client",
    "Federation": "fedagentgym.partitions.federation:Federation",
    "Split": "fedagentgym.partitions.split:Split",
    "federate": "fedagentgym.partitions.federation:federate",
    "load_federation": "fedagentgym.partitions.federation:load_federation",
}

__all__ = ["PARTITIONS", "Client", "Federation", "Split", "federate", "load_federation", "register_partition"]


def register_partition(name: str, target: Any, *, replace: bool = False) -> None:
    """Add a sampler: a `Sampler` subclass, a function (table, clients, seed, **parameters), or "module:attribute"."""
    PARTITIONS.register(name, target, replace=replace)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return resolve(_LAZY[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
