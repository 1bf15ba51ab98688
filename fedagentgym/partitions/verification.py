"""Proving a split: is it what it says, does it follow from its seed, and did nothing move that was not asked for?"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedagentgym.base.errors import DataError, FedAgentGymError, listed
from fedagentgym.envs.variants import assign_worlds
from fedagentgym.partitions import PARTITIONS
from fedagentgym.partitions.analysis.statistics import excess
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.division import Division, divide
from fedagentgym.partitions.files.split import client_digest, split_digest
from fedagentgym.partitions.roles import RESERVED
from fedagentgym.partitions.samplers.sampling import sampled, sampler_of
from fedagentgym.partitions.table import Table

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import Federation

TOLERATED_Z = 6.0
IMPORTED = "imported"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `ok` is None where it could not be."""

    name: str
    ok: bool | None
    detail: str


def verify(federation: Federation) -> list[Check]:
    """Every check of a split against its pool, the content first."""
    return [
        _content(federation),
        _pool(federation),
        _roles(federation),
        _evaluation(federation),
        _resampled(federation),
        *_axes(federation),
    ]


def _content(federation: Federation) -> Check:
    split = federation.split
    digests = b"".join(client_digest(ids, world) for ids, world in zip(split.held(), split.worlds, strict=True))
    if split_digest(split.header(), digests) != split.digest or digests != split.client_digests:
        return Check("content", False, "the content was changed after the split was made: its digest does not match")
    return Check("content", True, f"{len(split):,} clients match the digest {split.digest[:19]}...")


def _pool(federation: Federation) -> Check:
    split, pool = federation.split, federation.pool
    if split.pool_digest != pool.digest:
        return Check("pool", False, f"made for the pool {split.pool_digest}, this one is {pool.digest}")
    if federation.assignment.has_repeats():
        return Check("pool", False, "a client holds a task twice")
    return Check("pool", True, f"every task is in the pool ({len(pool):,} tasks), none twice on a client")


def _roles(federation: Federation) -> Check:
    split = federation.split
    if not split.roles:
        return Check("roles", True, "none asked for")
    held = {name for ids in split.held() for name in ids}
    seen: dict[str, str] = {}
    for role in RESERVED:
        for name in split.roles.get(role, ()):
            if name in held or name in seen:
                other = seen.get(name, "a client")
                return Check("roles", False, f"{name} is in the role {role!r} and belongs to {other} too")
            seen[name] = f"the role {role!r}"
    server = split.roles.get("server", ())
    if any(name in seen for name in server):
        return Check("roles", False, "the server holds tasks of a reserved role")
    sizes = ", ".join(f"{name} {len(ids):,}" for name, ids in split.roles.items())
    shared = f"; {sum(name in held for name in server):,} of the server's tasks are held by clients" if server else ""
    return Check("roles", True, sizes + shared)


def _evaluation(federation: Federation) -> Check:
    from fedagentgym.partitions.client_split import environment, open_pool

    split = federation.split
    known = set(split.evaluation) | set(environment(split.env_id).evaluation_splits)
    if split.env_split in known or split.env_split == "all":
        return Check("evaluation", False, f"the split divides {split.env_split!r}, which holds evaluation tasks")
    held = {name for ids in split.held() for name in ids} | {name for ids in split.roles.values() for name in ids}
    for name in sorted(known):
        try:
            pool = open_pool(split.env_id, name, federation.options)
        except DataError:
            continue
        leaked = sorted(held.intersection(pool.ids))
        if leaked:
            return Check("evaluation", False, f"{len(leaked):,} tasks of {name!r} are given out: {listed(leaked, 3)}")
    return Check(
        "evaluation", True, f"no task of {', '.join(sorted(known)) or 'an evaluation split'} is held by anybody"
    )


def _resampled(federation: Federation) -> Check:
    split = federation.split
    if split.sampler == IMPORTED:
        return Check("re-sampling", None, "the split was imported, not sampled: there is nothing to repeat")
    if split.sampler not in PARTITIONS:
        return Check(
            "re-sampling", None, f"the partition {split.sampler!r} is not registered here: import the code that does"
        )
    try:
        again, roles = _again(federation)
    except FedAgentGymError as error:
        return Check("re-sampling", False, f"sampling again fails: {error}")
    same_roles = dict(split.roles) == roles
    worlds = [None] * len(split) if split.world is None else assign_worlds(split.world, split.seed, len(split))
    same_worlds = all(old == new for old, new in zip(split.worlds, worlds, strict=True))
    if again.same_as(federation.assignment) and same_roles and same_worlds:
        return Check(
            "re-sampling", True, f"{split.sampler} with seed {split.seed} gives the same tasks again, bit for bit"
        )
    return Check("re-sampling", False, _why_not(federation, again, same_roles, same_worlds))


def _again(federation: Federation) -> Division:
    """The split once more, from its sampler, parameters and seed."""
    split = federation.split
    sizes = {name: len(ids) for name, ids in split.roles.items()}
    sampler = sampler_of(split.sampler, split.parameters)
    return divide(federation.table, sampler, len(split), split.seed, sizes, split.server_overlap)


def _why_not(federation: Federation, again: Assignment, same_roles: bool, same_worlds: bool) -> str:
    """Tell a changed file from a library that draws differently."""
    split = federation.split
    made = {name: split.provenance.get(name) for name in ("numpy", "scipy")}
    published = bool(split.parameters.get("compat"))
    if not can_resample(published):
        return (
            "this numpy or scipy cannot re-sample: it draws other numbers than the ones this library was tested with "
            f"(the split was made with numpy {made['numpy']}, scipy {made['scipy']}); the content itself matches its digest"
        )
    if not same_worlds:
        return "the worlds do not follow from the seed: the content was changed and its digest made anew"
    if not same_roles:
        return "the roles do not follow from the seed: the content was changed and its digest made anew"
    ours, other = federation.assignment, again
    changed = sum(not np.array_equal(ours[client], other[client]) for client in range(len(split)))
    return f"{changed:,} of {len(split):,} clients do not follow from the seed: the content was changed and its digest made anew"


def can_resample(published: bool) -> bool:
    """Whether the numbers behind all samplers come out here as they did where the library was tested."""
    return _fingerprint(published) == _FINGERPRINTS[published]


def _fingerprint(published: bool) -> str:
    table = Table([f"{number:03d}" for number in range(300)], ("a", "b", "c"), np.arange(300) % 7 % 3, np.arange(300))
    table = table.with_solved(np.arange(300) % 5 < 2)
    extra = {"compat": "fedagent"} if published else {}
    specs: list[tuple[str, dict[str, object]]] = [
        ("preference", {"omega": 0.7, "tasks_per_client": 30, **extra}),
        ("coverage", {"xi": 2.0, "mean_tasks": 20, **extra}),
        ("hardness", {"xi": 2.0, "tasks_per_client": 20, **extra}),
    ]
    if not published:
        specs += [("preference_dirichlet", {"omega": 0.5, "tasks_per_client": 30}), ("dirichlet", {"beta": 0.3})]
    hasher = hashlib.sha256()
    for name, parameters in specs:
        drawn = sampled(sampler_of(name, parameters), table, 12, 5)
        hasher.update(drawn.offsets.astype("<i8").tobytes() + drawn.items.astype("<i8").tobytes())
    return hasher.hexdigest()[:16]


_FINGERPRINTS = {False: "a94c95e625904c08", True: "03d19fc4d5815d00"}


def _axes(federation: Federation) -> list[Check]:
    """The axes that the sampler leaves alone must look as chance makes them."""
    split, assignment, table = federation.split, federation.assignment, federation.table
    if split.sampler == IMPORTED or split.sampler not in PARTITIONS or split.parameters.get("compat"):
        return [Check("other axes", None, "not promised by this sampler")]
    moved = sampler_of(split.sampler, split.parameters).axes
    reserved = {name for role in RESERVED for name in split.roles.get(role, ())}
    free = np.array([name not in reserved for name in table.ids]) if reserved else np.ones(len(table), dtype=bool)
    place = np.cumsum(free) - 1
    seen = Assignment(assignment.offsets, place[assignment.items])
    codes = table.codes[free]
    solved = None if table.solved is None else table.solved[free].astype(np.int64)
    nothing = np.zeros(len(codes), dtype=np.int64)
    checks = []
    if "sizes" not in moved:
        spread = int(np.ptp(assignment.sizes))
        checks.append(Check("sizes untouched", spread == 0, f"sizes differ by {spread:,}"))
    if "mixture" not in moved:
        given = solved if "hardness" in moved and solved is not None else nothing
        checks.append(_by_chance("mixture untouched", seen, codes, given))
    if "hardness" not in moved and solved is not None:
        given = codes if "mixture" in moved else nothing
        checks.append(_by_chance("hardness untouched", seen, solved, given))
    return checks


def _by_chance(name: str, assignment: Assignment, labels: np.ndarray, strata: np.ndarray) -> Check:
    ratio, z = excess(assignment, labels, strata)
    detail = f"dispersion is {ratio:.2f} times what chance gives (z = {z:+.1f}, tolerated up to {TOLERATED_Z:g})"
    return Check(name, z <= TOLERATED_Z, detail)
