"""Floor 6: what is measured. Each benchmark is a function `run(quick)` that returns the figures it printed its name to."""

from dataclasses import dataclass

from fedagentgym.base.registry import Registry

if __name__ != "fedagentgym.benchmarks":
    raise ImportError(
        "the folder `benchmarks` at the root is a link for readers: import fedagentgym.benchmarks instead"
    )


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of a benchmark: what, how much, in which unit, and the bar it is held against, if any."""

    name: str
    value: float
    unit: str
    bar: str = ""


BENCHMARKS = Registry(
    "benchmark",
    {
        "alfworld": "fedagentgym.benchmarks.speed_alfworld:run",
        "alfworld-houses": "fedagentgym.benchmarks.speed_houses:run",
        "communication": "fedagentgym.benchmarks.communication:run",
        "privacy-probes": "fedagentgym.benchmarks.privacy_probes:run",
        "speed-agents": "fedagentgym.benchmarks.speed_agents:run",
        "learning-tiny": "fedagentgym.benchmarks.learning_tiny:run",
        "learning-tiny-alfworld": "fedagentgym.benchmarks.learning_tiny:alfworld",
        "learning-tiny-math": "fedagentgym.benchmarks.learning_tiny:math",
        "learning-tiny-webshop": "fedagentgym.benchmarks.learning_tiny:webshop",
        "speed-federation": "fedagentgym.benchmarks.speed_federation:run",
        "table1-tiny": "fedagentgym.experiments:table1_tiny",
        "fedgrpo-tiny": "fedagentgym.experiments:fedgrpo_tiny",
        "pubswap-tiny": "fedagentgym.experiments:pubswap_tiny",
        "fedmoa-tiny": "fedagentgym.experiments:fedmoa_tiny",
        "speed-core": "fedagentgym.benchmarks.speed_core:run",
        "speed-partitions": "fedagentgym.benchmarks.speed_partitions:run",
        "webshop": "fedagentgym.benchmarks.speed_webshop:run",
        "webshop-figures": "fedagentgym.benchmarks.webshop_figures:run",
        "speed-verifiers": "fedagentgym.benchmarks.speed_verifiers:run",
    },
)
