"""Which environments there are, and what brings the data of some of them."""

from __future__ import annotations

from fedagentgym.base.registry import Registry

ENVIRONMENTS = Registry(
    "environment",
    {
        "fedagentgym/ALFWorld-v0": "fedagentgym.envs.alfworld.env:ALFWorldEnv",
        "fedagentgym/Code-v0": "fedagentgym.envs.reasoning.code:CodeEnv",
        "fedagentgym/Guess-v0": "fedagentgym.envs.guess:GuessEnv",
        "fedagentgym/Math-v0": "fedagentgym.envs.reasoning.math:MathEnv",
        "fedagentgym/Mixture-v0": "fedagentgym.envs.reasoning.mixture:MixtureEnv",
        "fedagentgym/WebShop-v0": "fedagentgym.envs.webshop.env:WebShopEnv",
        "fedagentgym/QA-v0": "fedagentgym.envs.reasoning.qa:QAEnv",
    },
)

DATA_SETS = Registry(
    "group of data sets",
    {
        "alfworld": "fedagentgym.envs.alfworld.importer:DATA_SETS",
        "reasoning": "fedagentgym.envs.reasoning.sources.installing:DATA_SETS",
        "webshop": "fedagentgym.envs.webshop.importer:DATA_SETS",
    },
)
"""Mappings from names to `DataSet`s (envs/data_sets.py)."""
