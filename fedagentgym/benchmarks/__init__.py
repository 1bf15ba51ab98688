"""Measurements. Each benchmark is a function `run(quick)` that returns its figures."""

from fedagentgym.base.registry import Registry

if __name__ != "fedagentgym.benchmarks":
    raise ImportError(
        "the folder `benchmarks` at the root is a link for readers: import fedagentgym.benchmarks instead"
    )


BENCHMARKS = Registry(
    "benchmark",
    {
        "alfworld": "fedagentgym.benchmarks.speed.alfworld:run",
        "alfworld-houses": "fedagentgym.benchmarks.speed.houses:run",
        "communication": "fedagentgym.benchmarks.communication:run",
        "misconceptions-houses": "fedagentgym.benchmarks.misconceptions:run_houses",
        "misconceptions-math": "fedagentgym.benchmarks.misconceptions:run_math",
        "misconceptions-shop": "fedagentgym.benchmarks.misconceptions:run_shop",
        "privacy-probes": "fedagentgym.benchmarks.privacy_probes:run",
        "speed-agents": "fedagentgym.benchmarks.speed.agents:run",
        "learning-tiny": "fedagentgym.benchmarks.learning_tiny:run",
        "learning-tiny-alfworld": "fedagentgym.benchmarks.learning_tiny:run_alfworld",
        "learning-tiny-math": "fedagentgym.benchmarks.learning_tiny:run_math",
        "learning-tiny-skills": "fedagentgym.benchmarks.learning_tiny:run_skills",
        "learning-tiny-webshop": "fedagentgym.benchmarks.learning_tiny:run_webshop",
        "small-math": "fedagentgym.benchmarks.small:run_math",
        "speed-federation": "fedagentgym.benchmarks.speed.federation:run",
        "table1-tiny": "fedagentgym.benchmarks.tables:run_table1_tiny",
        "fedgrpo-tiny": "fedagentgym.benchmarks.tables:run_fedgrpo_tiny",
        "pubswap-tiny": "fedagentgym.benchmarks.tables:run_pubswap_tiny",
        "fedmoa-tiny": "fedagentgym.benchmarks.tables:run_fedmoa_tiny",
        "skills-fedagent": "fedagentgym.benchmarks.skills_tables:run_fedagent",
        "skills-fedgrpo": "fedagentgym.benchmarks.skills_tables:run_fedgrpo",
        "skills-pubswap": "fedagentgym.benchmarks.skills_tables:run_pubswap",
        "skills-fedmoa": "fedagentgym.benchmarks.skills_tables:run_fedmoa",
        "skills-methods": "fedagentgym.benchmarks.skills_tables:run_methods",
        "skills-pages": "fedagentgym.benchmarks.skills_tables:write_pages",
        "speed-core": "fedagentgym.benchmarks.speed.core:run",
        "speed-partitions": "fedagentgym.benchmarks.speed.partitions:run",
        "webshop": "fedagentgym.benchmarks.speed.webshop:run",
        "webshop-figures": "fedagentgym.benchmarks.webshop_figures:run",
        "speed-verifiers": "fedagentgym.benchmarks.speed.verifiers:run",
    },
)
