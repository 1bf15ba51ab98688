"""The registered environments, and the data sets that some of them can install."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedagentgym.base.escape import quote_word
from fedagentgym.base.imports import Registry
from fedagentgym.envs.tasks import shorten_env_id

ENVIRONMENTS = Registry(
    "environment",
    {
        "fedagentgym/ALFWorld-v0": "fedagentgym.envs.alfworld.env:ALFWorldEnv",
        "fedagentgym/Code-v0": "fedagentgym.envs.reasoning.code:CodeEnv",
        "fedagentgym/Guess-v0": "fedagentgym.envs.guess:GuessEnv",
        "fedagentgym/Math-v0": "fedagentgym.envs.reasoning.math:MathEnv",
        "fedagentgym/Own-v0": "fedagentgym.envs.own:OwnEnv",
        "fedagentgym/Mixture-v0": "fedagentgym.envs.reasoning.mixture:MixtureEnv",
        "fedagentgym/Records-v0": "fedagentgym.envs.records.env:RecordsEnv",
        "fedagentgym/WebShop-v0": "fedagentgym.envs.webshop.env:WebShopEnv",
        "fedagentgym/QA-v0": "fedagentgym.envs.reasoning.qa:QAEnv",
        "fedagentgym/Skills-v0": "fedagentgym.envs.skills.env:SkillsEnv",
    },
    shorten=shorten_env_id,
)
"""Id -> class of the environment; `ENVIRONMENTS.names()` lists the ids, `fedagentgym.register_env` adds one."""


find_env_id = ENVIRONMENTS.find
"""The id that a name stands for: `find_env_id("webshop")` is `fedagentgym/WebShop-v0`."""


def format_env_words(env_id: str, options: Mapping[str, Any]) -> str:
    """The command-line words that open this environment with these options.

    >>> format_env_words("fedagentgym/ALFWorld-v0", {"size": "tiny"})
    'fedagentgym/ALFWorld-v0 --env-set size=tiny'
    """
    words = [quote_word(env_id)]
    for name, value in options.items():
        if value is not None:
            written = value if isinstance(value, str) else json.dumps(value, default=str)
            words.append(f"--env-set {quote_word(f'{name}={written}')}")
    return " ".join(words)


DATA_SETS = Registry(
    "group of data sets",
    {
        "alfworld": "fedagentgym.envs.alfworld.folders:DATA_SETS",
        "reasoning": "fedagentgym.envs.reasoning.sources.installing:DATA_SETS",
        "webshop": "fedagentgym.envs.webshop.stock:DATA_SETS",
    },
)
"""Mappings from names to `DataSet`s (envs/data_sets.py)."""
