"""Proving a split: is it what it says, does it follow from its seed, and did nothing move that was not asked for?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedagentgym.base.errors import DataError, FedAgentGymError, listed
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.variants import Plain, assign_variants
from fedagentgym.partitions.analysis.statistics import excess
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.division import Division, divide
from fedagentgym.partitions.files.split import NoVariants, SplitRecord, client_digest, record_digest
from fedagentgym.partitions.pools import env_class, open_pool
from fedagentgym.partitions.roles import RESERVED
from fedagentgym.partitions.samplers import SAMPLERS
from fedagentgym.partitions.samplers.sampler import make_sampler, sample_clients
from fedagentgym.partitions.table import TaskTable

TOLERATED_Z = 6.0
IMPORTED = "imported"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `ok` is None where it could not be."""

    name: str
    ok: bool | None
    detail: str


def verify(
    record: SplitRecord, pool: TaskPool, table: TaskTable, assignment: Assignment, options: Mapping[str, Any]
) -> list[Check]:
    """Every check of a record against its pool, the content first. `assignment` is the record's, in the numbers of `table`;
    with `options` the environment loads the pool."""
    return [
        _check_content(record),
        _check_pool(record, pool, assignment),
        _check_roles(record),
        _check_evaluation(record, options),
        _check_sampling(record, table, assignment),
        *_check_axes(record, table, assignment),
    ]


def _check_content(record: SplitRecord) -> Check:
    digests = b"".join(client_digest(ids, variant) for ids, variant in zip(record.held(), record.variants, strict=True))
    if record_digest(record.header(), digests) != record.digest or digests != record.client_digests:
        return Check("content", False, "the content was changed after the split was made: its digest does not match")
    return Check("content", True, f"{len(record):,} clients match the digest {record.digest[:19]}...")


def _check_pool(record: SplitRecord, pool: TaskPool, assignment: Assignment) -> Check:
    if record.pool_digest != pool.digest:
        return Check("pool", False, f"made for the pool {record.pool_digest}, this one is {pool.digest}")
    if assignment.has_repeats():
        return Check("pool", False, "a client holds a task twice")
    return Check("pool", True, f"every task is in the pool ({len(pool):,} tasks), none twice on a client")


def _check_roles(record: SplitRecord) -> Check:
    if not record.roles:
        return Check("roles", True, "none asked for")
    held = {name for ids in record.held() for name in ids}
    seen: dict[str, str] = {}
    for role in RESERVED:
        for name in record.roles.get(role, ()):
            if name in held or name in seen:
                other = seen.get(name, "a client")
                return Check("roles", False, f"{name} is in the role {role!r} and belongs to {other} too")
            seen[name] = f"the role {role!r}"
    server = record.roles.get("server", ())
    if any(name in seen for name in server):
        return Check("roles", False, "the server holds tasks of a reserved role")
    sizes = ", ".join(f"{name} {len(ids):,}" for name, ids in record.roles.items())
    shared = f"; {sum(name in held for name in server):,} of the server's tasks are held by clients" if server else ""
    return Check("roles", True, sizes + shared)


def _check_evaluation(record: SplitRecord, options: Mapping[str, Any]) -> Check:
    known = set(record.evaluation) | set(env_class(record.env_id).evaluation_splits)
    if record.env_split in known or record.env_split == "all":
        return Check("evaluation", False, f"the split divides {record.env_split!r}, which holds evaluation tasks")
    held = {name for ids in record.held() for name in ids} | {name for ids in record.roles.values() for name in ids}
    for name in sorted(known):
        try:
            pool = open_pool(record.env_id, name, options)
        except DataError:
            continue
        leaked = sorted(held.intersection(pool.ids))
        if leaked:
            return Check("evaluation", False, f"{len(leaked):,} tasks of {name!r} are given out: {listed(leaked, 3)}")
    return Check(
        "evaluation", True, f"no task of {', '.join(sorted(known)) or 'an evaluation split'} is held by anybody"
    )


def _check_sampling(record: SplitRecord, table: TaskTable, assignment: Assignment) -> Check:
    if record.sampler == IMPORTED:
        return Check("re-sampling", None, "the split was imported, not sampled: there is nothing to repeat")
    if record.sampler not in SAMPLERS:
        return Check(
            "re-sampling", None, f"the sampler {record.sampler!r} is not registered here: import the code that does"
        )
    try:
        again, roles = _sample_again(record, table)
        same_variants = all(old == new for old, new in zip(record.variants, _draw_variants(record), strict=True))
    except FedAgentGymError as error:
        return Check("re-sampling", False, f"sampling again fails: {error}")
    same_roles = dict(record.roles) == roles
    if again.same_as(assignment) and same_roles and same_variants:
        return Check(
            "re-sampling", True, f"{record.sampler} with seed {record.seed} gives the same tasks again, bit for bit"
        )
    return Check("re-sampling", False, _explain_difference(record, assignment, again, same_roles, same_variants))


def _sample_again(record: SplitRecord, table: TaskTable) -> Division:
    """The division once more, from its sampler, parameters and seed."""
    sizes = {name: len(ids) for name, ids in record.roles.items()}
    sampler = make_sampler(record.sampler, record.parameters)
    return divide(table, sampler, len(record), record.seed, sizes, record.server_overlap)


def _draw_variants(record: SplitRecord) -> Sequence[Plain | None]:
    if record.variant is None:
        return NoVariants(len(record))
    cls = env_class(record.env_id)
    return assign_variants(cls.id, cls.variants, record.variant, record.seed, len(record))


def _explain_difference(
    record: SplitRecord, ours: Assignment, again: Assignment, same_roles: bool, same_variants: bool
) -> str:
    """Tell a changed file from a library that draws differently."""
    made = {name: record.provenance.get(name) for name in ("numpy", "scipy")}
    published = bool(record.parameters.get("compat"))
    if not can_resample(published):
        return (
            "this numpy or scipy cannot re-sample: it draws other numbers than the ones this library was tested with "
            f"(the split was made with numpy {made['numpy']}, scipy {made['scipy']}); the content itself matches its digest"
        )
    if not same_variants:
        return "the variants do not follow from the seed: the content was changed and its digest made anew"
    if not same_roles:
        return "the roles do not follow from the seed: the content was changed and its digest made anew"
    changed = sum(not np.array_equal(ours[client], again[client]) for client in range(len(record)))
    return f"{changed:,} of {len(record):,} clients do not follow from the seed: the content was changed and its digest made anew"


def can_resample(published: bool) -> bool:
    """Whether the numbers behind all samplers come out here as they did where the library was tested."""
    return _fingerprint(published) == _FINGERPRINTS[published]


def _fingerprint(published: bool) -> str:
    table = TaskTable(
        [f"{number:03d}" for number in range(300)], ("a", "b", "c"), np.arange(300) % 7 % 3, np.arange(300)
    )
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
        drawn = sample_clients(make_sampler(name, parameters), table, 12, 5)
        hasher.update(drawn.offsets.astype("<i8").tobytes() + drawn.items.astype("<i8").tobytes())
    return hasher.hexdigest()[:16]


_FINGERPRINTS = {False: "a94c95e625904c08", True: "03d19fc4d5815d00"}


def _check_axes(record: SplitRecord, table: TaskTable, assignment: Assignment) -> list[Check]:
    """The axes that the sampler leaves alone must look as chance makes them."""
    if record.sampler == IMPORTED or record.sampler not in SAMPLERS or record.parameters.get("compat"):
        return [Check("other axes", None, "not promised by this sampler")]
    moved = make_sampler(record.sampler, record.parameters).axes
    reserved = {name for role in RESERVED for name in record.roles.get(role, ())}
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
