"""World variants: fixed by (seed, client), understood by the environments, gone in evaluation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fedagentgym.base.errors import OptionError
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.envs.task import short_name
from fedagentgym.envs.variants import KINDS, assign_variants, complete_request
from fedagentgym.partitions.client_split import federate

IDS = {short_name(env_id): env_id for env_id in ENVIRONMENTS.names()}
PAIRS = [(kind, IDS[env]) for kind, cls in KINDS.items() for env in cls.envs if env in IDS]


@pytest.mark.parametrize(("kind", "env_id"), PAIRS)
def test_every_kind_is_understood_by_its_environments(kind: str, env_id: str) -> None:
    made = federate(env_id, clients=3, tasks_per_client=6, world=kind, env={"size": "tiny"})
    for client in made:
        env = client.make()
        observation, info = env.reset(seed=2)
        assert observation and info["task"] in client.tasks and client.world is not None
        assert client.world["kind"] == kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_variant_depends_on_seed_and_client_only(kind: str) -> None:
    env_id = f"fedagentgym/{KINDS[kind].envs[0]}-v0"
    request = complete_request(kind, env_id)
    assert request is not None
    few, many = assign_variants(request, 5, 4), assign_variants(request, 5, 40)
    assert list(few) == list(many[:4])
    assert list(assign_variants(request, 6, 40)) != list(many)


@pytest.mark.parametrize(
    ("kind", "count"), [("index_fields", 8), ("bm25_weights", 8), ("lookalikes", 4), ("rank_wrapper", 4)]
)
def test_variants_are_drawn_evenly(kind: str, count: int) -> None:
    request = complete_request(kind, "fedagentgym/WebShop-v0")
    assert request is not None
    own = {"client", "seed"}
    seen = Counter(str({k: v for k, v in world.items() if k not in own}) for world in assign_variants(request, 0, 800))
    assert len(seen) == count and min(seen.values()) > 0.6 * 800 / count


def test_fewer_variants() -> None:
    request = complete_request({"kind": "bm25_weights", "variants": 2}, "fedagentgym/WebShop-v0")
    assert request == {"kind": "bm25_weights", "variants": 2}
    assert {(world["k1"], world["b"]) for world in assign_variants(request, 0, 50)} == {(1.2, 0.75), (1.2, 0.0)}


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"kind": "bm25_weights", "variants": 9}, "has 8 variants, 9 are asked for"),
        ({"kind": "catalog_split", "env_div": 1.5}, "env_div"),
        ({"kind": "catalog_split", "envdiv": 0.5}, "did you mean 'env_div'"),
        ("scene_split", "it has catalog_split, index_fields"),
    ],
)
def test_bad_worlds(world: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        complete_request(world, "fedagentgym/WebShop-v0")


def test_worlds_leave_the_tasks_alone() -> None:
    """A world level composes with any task level: the division is the same with and without it."""
    keywords: dict[str, Any] = {"partition": "preference", "clients": 4, "tasks_per_client": 9, "omega": 0.9}
    plain = federate(IDS["webshop"], env={"size": "tiny"}, **keywords)
    other = federate(IDS["webshop"], env={"size": "tiny"}, world="bm25_weights", **keywords)
    assert [client.tasks for client in plain] == [client.tasks for client in other]
    assert plain.digest != other.digest


def test_scenes_of_clients_are_disjoint() -> None:
    made = federate(IDS["alfworld"], clients=3, tasks_per_client=8, world="scene_split", env={"size": "tiny"})
    rooms: list[set[str]] = []
    for client in made:
        env = client.make()
        rooms.append({env.reset(seed=0, options={"task": task})[0] for task in client.tasks})
    assert not rooms[0] & rooms[1] and not rooms[1] & rooms[2]
