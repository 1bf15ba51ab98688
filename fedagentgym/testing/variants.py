"""The requirements of a variant of an environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.variants import assign_variants, complete_request
from fedagentgym.partitions import split_files
from fedagentgym.partitions.client_split import federate
from fedagentgym.testing.environments import check_env

CLIENTS = 24
OPENED = 3


def check_variant(env_id: str, kind: str, *, env: Mapping[str, Any] | None = None, **parameters: Any) -> None:
    """Check a variant that the environment declares or that was registered for it, with the given parameters; `env` are
    options of the environment, such as a small size.

    What a client gets must depend on (seed, client) alone, differ between clients, survive a split file, leave the tasks
    alone, and give environments that keep every promise of `check_env`.
    """
    options = dict(env or {})
    cls = ENVIRONMENTS.get(env_id)
    request = complete_request(cls.id, cls.variants, {"kind": kind, **parameters})
    assert request is not None
    drawn = assign_variants(cls.id, cls.variants, request, 0, CLIENTS)
    assert drawn == assign_variants(cls.id, cls.variants, request, 0, CLIENTS), (
        f"{kind} draws another variant each time"
    )
    few = assign_variants(cls.id, cls.variants, request, 0, 2)
    assert drawn[:2] == few, f"{kind} draws another variant where there are more clients"
    different = list({json.dumps(one, sort_keys=True): one for one in drawn}.values())
    assert len(different) > 1, f"{kind} gives the same variant to every client"
    made = federate(env_id, clients=CLIENTS, tasks_per_client=1, variant=request, env=options)
    stored = split_files.from_json(json.loads(split_files.to_json(made.record)), "the split of the check")
    assert list(stored.variants) == list(drawn), f"{kind} comes out of a split file changed"
    plain = open_env(env_id, **options)
    for one in different[:OPENED]:
        changed = open_env(env_id, **options, variant=one)
        assert changed.pool.digest == plain.pool.digest, f"{kind} changes which tasks there are"
        check_env(changed)
