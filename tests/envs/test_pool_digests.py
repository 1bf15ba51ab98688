"""The tasks of every environment, size and split are those of tests/golden/pools.json.

`python tests/envs/test_pool_digests.py` writes that file. It is for new environments and sizes: a change of the tasks behind an
id that is there is a new version of the environment (`-v1`), since results under the old id are about the old tasks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.encoding import bytes_digest
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_pool
from fedagentgym.envs.pool import TaskPool, represent

GOLDEN = Path(__file__).parents[1] / "golden" / "pools.json"
SIZES: dict[str, tuple[dict[str, Any], ...]] = {
    "fedagentgym/ALFWorld-v0": (
        {"size": "full"},
        {"size": "small"},
        {"size": "tiny"},
        {"size": "tiny", "wording": "put"},
    ),
    "fedagentgym/Code-v0": ({"size": "default"}, {"size": "tiny"}),
    "fedagentgym/Guess-v0": ({},),
    "fedagentgym/Math-v0": ({"size": "default"}, {"size": "tiny"}),
    "fedagentgym/Mixture-v0": (
        {"size": "default"},
        {"size": "tiny", "kinds": ["math", "qa", "code"], "categories": "own"},
    ),
    "fedagentgym/Own-v0": ({}, {"held_out": 0.5}),
    "fedagentgym/QA-v0": ({"size": "default"}, {"size": "tiny"}),
    "fedagentgym/Records-v0": ({}, {"size": "tiny"}, {"size": "tiny", "categories": "kind"}),
    "fedagentgym/Skills-v0": ({}, {"skills": 4}, {"skills": 16, "procedures": 2, "turns": 2}),
    "fedagentgym/WebShop-v0": (
        {"size": "default"},
        {"size": "small"},
        {"size": "tiny"},
        {"size": "tiny", "goal_order": "fedagent"},
    ),
}
"""The options of every size; those left out have their defaults."""
LOOKED_AT = 5


def identify_tasks(env: TextEnv) -> list[str]:
    """The digest of each split's pool, of that of all, and one of some payloads, which the pools' own need not cover; then those
    of a split that is no part of all."""
    whole = open_pool(env, "all")
    parts = [open_pool(env, split) for split in env.splits]
    within = [pool for pool in parts if not len(pool) or pool.ids[0] in whole]
    apart = [pool for pool in parts if pool not in within]
    return [*_digest_pools([*within, whole], within), *(_digest_pools(apart, apart) if apart else ())]


def _digest_pools(pools: list[TaskPool], read: list[TaskPool]) -> list[str]:
    payloads = [pool[place].payload for pool in read for place in range(0, len(pool), 1 + len(pool) // LOOKED_AT)]
    return [*(pool.digest for pool in pools), bytes_digest(represent(payloads).encode("utf-8", "surrogatepass"))]


def identify_all(env_id: str) -> dict[str, list[str]]:
    return {json.dumps(options): identify_tasks(open_env(env_id, **options)) for options in SIZES[env_id]}


@pytest.mark.parametrize("env_id", SIZES)
def test_the_tasks_of_an_environment_never_change(env_id: str) -> None:
    expected = json.loads(GOLDEN.read_text())[env_id]
    assert identify_all(env_id) == expected, (
        f"the tasks of {env_id} changed: that is a new version of the environment, register it under {env_id[:-1]}1 and leave "
        "the old one as it is"
    )


def test_every_environment_is_in_the_table() -> None:
    assert {name for name in ENVIRONMENTS.names() if name.startswith("fedagentgym/")} - {
        "fedagentgym/ReasoningGym-v0"
    } == set(SIZES)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({env_id: identify_all(env_id) for env_id in SIZES}, indent=1) + "\n")
