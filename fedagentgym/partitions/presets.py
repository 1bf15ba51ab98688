"""The settings of the papers by name, ready for `federate(**get_preset(name))` and `fedagentgym split make --preset NAME`.

The FedAgent paper gives 100 clients 100 tasks each, on WebShop (`goal_order: fedagent`: goals 0-499 for validation, 500 onwards
for training) and on ALFWorld, with mild and strong skew on each of its three axes. It gives no bounds for coverage. Its code uses
(100, 500, 1000), which makes clients five times larger than in its other settings. Both versions are here: `coverage` with mean
100, which is comparable with the other settings, and `coverage-published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedagentgym.base.errors import unknown_name_error

WEBSHOP = {"env_id": "fedagentgym/WebShop-v0", "env": {"goal_order": "fedagent"}}
ALFWORLD = {"env_id": "fedagentgym/ALFWorld-v0", "env": {}}
MATH = {"env_id": "fedagentgym/Math-v0", "env": {}}
MIXTURE = {"env_id": "fedagentgym/Mixture-v0", "env": {"kinds": ["math", "code"]}}
CLIENTS, TASKS = 100, 100


def _make_presets() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, base in (("webshop", WEBSHOP), ("alfworld", ALFWORLD)):
        common = {**base, "clients": CLIENTS, "seed": 0}
        found[f"fedagent-{name}-uniform"] = {**common, "partition": "uniform", "tasks_per_client": TASKS}
        for omega in (0.1, 0.9):
            keywords = {"partition": "preference", "tasks_per_client": TASKS, "omega": omega}
            found[f"fedagent-{name}-preference-{omega:g}"] = {**common, **keywords}
        for xi in (1, 256):
            sizes = {"min_tasks": 20, "mean_tasks": TASKS, "max_tasks": 300, "xi": xi}
            found[f"fedagent-{name}-coverage-{xi}"] = {**common, "partition": "coverage", **sizes}
            published = {"min_tasks": 100, "mean_tasks": 500, "max_tasks": 1000, "xi": xi}
            found[f"fedagent-{name}-coverage-published-{xi}"] = {**common, "partition": "coverage", **published}
            hard = {"partition": "hardness", "tasks_per_client": TASKS, "xi": xi}
            found[f"fedagent-{name}-hardness-{xi}"] = {**common, **hard}
    skewed = {**MATH, "seed": 0, "partition": "dirichlet"}
    equal = {**skewed, "equal_size": True, "clients": 4}
    public = {"public": 1250}
    disjoint = {"partition": "uniform", "disjoint": True, "clients": 10}
    sources = {"partition": "by_source", "clients": 15, "sources": {"math": 10, "code": 5}}
    return {
        **found,
        "fedgrpo-math-dirichlet-0.1": {
            **skewed,
            "clients": 8,
            "beta": 0.1,
            "roles": {"auxiliary": 100, "server": 2000},
        },
        "pubswap-math-dirichlet-0.3": {**equal, "beta": 0.3, "roles": public},
        "pubswap-math-dirichlet-0.1": {**equal, "beta": 0.1, "roles": public},
        "fedmoa-math-disjoint": {**MATH, "seed": 0, **disjoint},
        "fedmoa-mixture-by-source": {**MIXTURE, "seed": 0, **sources},
    }


PRESETS: Mapping[str, dict[str, Any]] = _make_presets()

FIGURE_PRESETS = {
    number: f"fedagent-{name}-{rest}"
    for number, (name, rest) in enumerate(
        [
            ("webshop", "preference-0.1"),
            ("webshop", "preference-0.9"),
            ("alfworld", "preference-0.1"),
            ("alfworld", "preference-0.9"),
            ("webshop", "coverage-1"),
            ("webshop", "coverage-256"),
            ("alfworld", "coverage-1"),
            ("alfworld", "coverage-256"),
            ("webshop", "hardness-1"),
            ("webshop", "hardness-256"),
            ("alfworld", "hardness-1"),
            ("alfworld", "hardness-256"),
        ],
        start=5,
    )
}
"""The preset that each of the paper's figures 5-16 shows."""


def get_preset(name: str) -> dict[str, Any]:
    """The keywords of `federate` for a named setting.

    >>> get_preset("fedagent-alfworld-preference-0.9")["omega"]
    0.9
    """
    if name not in PRESETS:
        raise unknown_name_error("partition preset", name, PRESETS)
    return dict(PRESETS[name])
