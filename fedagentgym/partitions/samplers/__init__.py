"""Samplers of client splits, one file each."""

from __future__ import annotations

from fedagentgym.base.imports import Registry

SAMPLERS = Registry(
    "sampler",
    {
        "uniform": "fedagentgym.partitions.samplers.uniform:Uniform",
        "preference": "fedagentgym.partitions.samplers.preference:Preference",
        "preference_dirichlet": "fedagentgym.partitions.samplers.preference:PreferenceDirichlet",
        "coverage": "fedagentgym.partitions.samplers.coverage:Coverage",
        "preference_coverage": "fedagentgym.partitions.samplers.preference:PreferenceCoverage",
        "hardness": "fedagentgym.partitions.samplers.hardness:Hardness",
        "dirichlet": "fedagentgym.partitions.samplers.dirichlet:Dirichlet",
        "by_source": "fedagentgym.partitions.samplers.natural:BySource",
        "pathological": "fedagentgym.partitions.samplers.shards:Pathological",
        "shards": "fedagentgym.partitions.samplers.shards:Shards",
        "natural": "fedagentgym.partitions.samplers.natural:Natural",
        "held": "fedagentgym.partitions.samplers.natural:Held",
    },
)
"""The samplers of client splits by name. `SAMPLERS.names()` lists the names; `fedagentgym.register_sampler` adds a sampler."""
