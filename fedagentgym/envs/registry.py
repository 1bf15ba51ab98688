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
        "fedagentgym/Skills-v0": "fedagentgym.envs.skills.env:SkillsEnv",
    },
)

DATA_IMPORTERS = Registry(
    "data set to import",
    {
        "alfworld": "fedagentgym.envs.alfworld.importer:import_data",
        "webshop": "fedagentgym.envs.webshop.importer:import_data",
    },
)
DATA_FETCHERS = Registry("data set to fetch", {"alfworld": "fedagentgym.envs.alfworld.importer:fetch"})
