"""Verification of a split, and the comparison of two splits.

A split is verified if its content matches its digest, its seed reproduces it, clients hold no evaluation task, and axes that its
sampler does not control look random.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from unicodedata import category, normalize

import numpy as np

from fedagentgym.base.errors import DataError, FedAgentGymError, join_names
from fedagentgym.base.rounding import format_fixed
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import build, env_class, open_env
from fedagentgym.envs.pool import TaskPool, represent
from fedagentgym.envs.variants import Plain, assign_variants
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.division import RESERVED, divide, make_sampler, sample_clients
from fedagentgym.partitions.labels import Labels, find_shipped, from_mapping, from_pool
from fedagentgym.partitions.record import SplitRecord, compute_client_digest
from fedagentgym.partitions.samplers import SAMPLERS
from fedagentgym.partitions.statistics import compare_with_chance
from fedagentgym.partitions.table import TaskTable, list_evaluation

MAX_Z = 6.0
IMPORTED = "imported"


@dataclass(frozen=True)
class CheckResult:
    """One check and its result. `ok` is None if the check cannot be decided; the split then counts as not verified."""

    name: str
    ok: bool | None
    detail: str


def verify(
    record: SplitRecord, pool: TaskPool, table: TaskTable, assignment: Assignment, options: Mapping[str, Any]
) -> list[CheckResult]:
    """Run every check of a record against its pool, the content first. `assignment` is the record's, with tasks numbered as in
    `table`. `options` are the environment's options, with which evaluation splits are loaded."""
    digests = b"".join(
        compute_client_digest(ids, variant) for ids, variant in zip(record.iter_tasks(), record.variants, strict=True)
    )
    if replace(record, stored_digests=digests).digest != record.digest or digests != record.client_digests:
        content = (False, "the content was changed after the split was made: its digest does not match")
    else:
        content = (True, f"{len(record):,} clients match the digest {record.digest[:19]}...")
    if record.pool_digest != pool.digest:
        held = (False, f"made for the pool {record.pool_digest}, this one is {pool.digest}")
    elif assignment.has_repeats():
        held = (False, "a client holds a task twice")
    else:
        held = (True, f"every task is in the pool ({len(pool):,} tasks), and no client holds a task twice")
    return [
        CheckResult("content", *content),
        CheckResult("pool", *held),
        _check_roles(record),
        *_check_labels(record, pool, table),
        _check_evaluation(record, pool, options),
        _check_sampling(record, table, assignment),
        *_check_axes(record, table, assignment),
    ]


def _check_roles(record: SplitRecord) -> CheckResult:
    if not record.roles:
        return CheckResult("roles", True, "none asked for")
    held = {name for ids in record.iter_tasks() for name in ids}
    seen: dict[str, str] = {}
    for role in RESERVED:
        for name in record.roles.get(role, ()):
            if name in held or name in seen:
                other = seen.get(name, "a client")
                return CheckResult("roles", False, f"{name} is in the role {role!r} and belongs to {other} too")
            seen[name] = f"the role {role!r}"
    server = record.roles.get("server", ())
    if any(name in seen for name in server):
        return CheckResult("roles", False, "the server holds tasks of a reserved role")
    sizes = ", ".join(f"{name} {len(ids):,}" for name, ids in record.roles.items())
    shared = f"; {sum(name in held for name in server):,} of the server's tasks are held by clients" if server else ""
    return CheckResult("roles", True, sizes + shared)


def _check_labels(record: SplitRecord, pool: TaskPool, table: TaskTable) -> list[CheckResult]:
    """Recompute labels from their source and compare. Labels measured by play are not checked, except those of the package."""
    if record.labels is None:
        return []
    source, shipped = record.labels.source, find_shipped(pool)
    known: Labels | None = None
    if source.get("policy") == {"name": "given"}:
        flags = dict(zip(table.ids, record.labels.solved.tolist(), strict=True))
        known = from_mapping(flags, table.ids)
    elif source.get("policy", {}).get("name") == "pool":
        known = from_pool(pool, table.ids)
    elif shipped is not None and dict(shipped.policy) == source.get("policy") and shipped.seed == source.get("seed"):
        known = shipped.resolve_labels(pool, table.ids)
    if known is None:
        detail = "measured by play: the digest covers them, and they are not measured again here"
        return [CheckResult("labels", True, detail)]
    same = np.array_equal(known.solved, record.labels.solved) and dict(known.source) == dict(source)
    detail = "recomputed from their source" if same else "the labels differ from what their source gives"
    return [CheckResult("labels", same, detail)]


def _check_evaluation(record: SplitRecord, pool: TaskPool, options: Mapping[str, Any]) -> CheckResult:
    cls = env_class(record.env_id)
    known, named = set(cls.evaluation_splits), list_evaluation(cls)
    if set(record.evaluation) != set(named):
        listed = ", ".join(record.evaluation) or "none"
        return CheckResult(
            "evaluation",
            False,
            f"the split lists {listed} as evaluation splits, {record.env_id} has {join_names(named)}",
        )
    if record.env_split in known or record.env_split == "all":
        return CheckResult("evaluation", False, f"the split divides {record.env_split!r}, which holds evaluation tasks")
    for name in sorted(known):
        try:
            env = open_env(record.env_id, **{**options, "split": name})
        except DataError:
            continue
        if leaked := find_leaks(record, pool, options, env, env.pool.ids):
            shown = join_names(leaked, 3)
            return CheckResult("evaluation", False, f"{len(leaked):,} tasks of {name!r} are held by clients: {shown}")
    return CheckResult(
        "evaluation", True, f"no task of {', '.join(sorted(known)) or 'an evaluation split'} is held by a client"
    )


COMPARED_TASKS = 200
"""Number of tasks by which two pools are compared."""
MANY_TIMES = 5
"""If there are more matches than this multiple of the number expected by chance, they are not due to chance."""


def find_leaks(
    record: SplitRecord, pool: TaskPool, options: Mapping[str, Any], env: TextEnv, ids: Sequence[str]
) -> list[str]:
    """The tasks among `ids` of the environment `env` that the split's clients or roles hold, in the order of `ids`."""
    held = {name for tasks in record.iter_tasks() for name in tasks}.union(*record.roles.values())
    cls = env_class(record.env_id)

    def open_own() -> TextEnv:
        return build(cls, cls.Options.read(record.env_id, options), split=record.env_split, pool=pool)

    return find_repeated(pool, held, open_own, env, ids)


def find_repeated(
    pool: TaskPool, held: Set[str], open_own: Callable[[], TextEnv], env: TextEnv, ids: Sequence[str]
) -> list[str]:
    """The tasks `ids` of an environment that are among the tasks `held` of a pool, in the order of `ids`.

    Tasks are compared by their ids. If both environments take replies, questions are also compared by their words
    (`read_words`), since a file with duplicates or a mixture has the same question under another id; `open_own` opens the
    environment of the pool for this. Tasks from the user's own code or data are also compared by their payloads.
    """
    if env.id == pool.env:
        if repeated := [name for name in ids if name in held and _is_same_task(pool, env.pool, name)]:
            return repeated
        if has_own_tasks(env) and (same := find_same_tasks(pool, sorted(held), env.pool, ids)):
            return same
    if env.takes != "reply" or env_class(pool.env).takes != "reply":
        return []
    own = open_own()
    turns = min(own.max_turns, env.max_turns)
    seen = {read_questions(own, name, turns) for name in own.pool.ids if name in held}
    return [name for name in ids if read_questions(env, name, turns) in seen]


def refuse_imitated(shown: TextEnv, env: TextEnv, split: str, tasks: int | None) -> None:
    """Refuse to evaluate on tasks that an expert shows before learning. The package's own `warmup` splits need no check, since
    they hold no evaluation tasks."""
    if not has_own_tasks(shown):
        return
    ids = env.pool.ids[:tasks]
    if repeated := find_repeated(shown.pool, frozenset(shown.pool.ids), lambda: shown, env, ids):
        raise DataError(
            f"the expert shows {len(repeated):,} of the {len(ids):,} evaluated tasks of the split {split!r} in the split"
            f" 'warmup', such as {repeated[0]}: the splits of {env.id} must have no task in common"
        )


def read_questions(env: TextEnv, task: str, turns: int) -> tuple[str, ...]:
    """The words of a task's questions in up to `turns` turns. One question is not enough, since two tasks may begin alike."""
    (episode,) = env.reset_many([task], [0])
    asked = [read_words(episode.view.observation)]
    while len(asked) < turns:
        (episode,) = env.step_many([episode], [""])
        if episode.over:
            break
        asked.append(read_words(episode.view.observation))
    return tuple(asked)


_WORD = re.compile(r"\w+|[^\w\s]")


def read_words(text: str) -> str:
    """The words and marks of a text, by which copies are recognised although their blanks, capitals, Unicode forms or invisible
    characters differ.

    >>> read_words("What is\\u00a02+2 ?") == read_words("what is 2 + 2?")
    True
    """
    if not text.isascii():
        text = normalize("NFKC", normalize("NFKC", text).casefold())
        text = "".join(character for character in text if category(character) != "Cf")
    return " ".join(_WORD.findall(text.casefold()))


def _is_same_task(pool: TaskPool, other: TaskPool, name: str) -> bool:
    """Return whether an id names the same task in both pools. Other data can have other tasks under the same ids."""
    try:
        return name not in pool or represent(pool[name].payload) == represent(other[name].payload)
    except DataError:  # payloads without a text
        return True


def has_own_tasks(env: TextEnv) -> bool:
    """Return whether the tasks come from code or data of the user. For other tasks ids are enough: the package's own splits have
    no task in common, and the ids of installed published data name their split."""
    return type(env).__module__.partition(".")[0] != "fedagentgym" or env.options.names_own_data


def find_same_tasks(pool: TaskPool, held: Iterable[str], other: TaskPool, ids: Sequence[str]) -> list[str]:
    """The tasks `ids` of the pool `other` with the same payload as a held task of `pool`, under any id.

    If an environment has few states, held tasks repeat each other, and evaluation tasks repeat held tasks by chance. So repeats
    count only if they are far more than the repeats among the held tasks suggest, or if both pools have the same tasks
    throughout, as in an environment that ignores the split.
    """
    try:
        own = Counter(represent(pool[name].payload) for name in held if name in pool)
        theirs = {name: represent(other[name].payload) for name in ids}
        found, count = [name for name in ids if theirs[name] in own], own.total()
        alike = sum(times * (times - 1) for times in own.values()) / max(count * (count - 1), 1)
        if len(found) > MANY_TIMES * len(ids) * count * alike:
            return found
        count = min(len(pool), len(other), COMPARED_TASKS)
        first, second = ([represent(task.payload) for task in islice(one, count)] for one in (pool, other))
    except DataError:  # payloads without a text
        return []
    return list(ids) if sorted(first) == sorted(second) else []


def _check_sampling(record: SplitRecord, table: TaskTable, assignment: Assignment) -> CheckResult:
    name = "re-sampling"
    if record.sampler == IMPORTED:
        detail = "cannot be verified: the split was imported, not sampled, so there is nothing to repeat"
        return CheckResult(name, None, detail)
    if record.sampler not in SAMPLERS:
        detail = f"cannot be verified: the sampler {record.sampler!r} is not registered, import its code first"
        return CheckResult(name, None, detail)
    try:
        sampler, sizes = (
            make_sampler(record.sampler, record.parameters),
            {n: len(ids) for n, ids in record.roles.items()},
        )
        again, roles = divide(table, sampler, len(record), record.seed, sizes, record.server_overlap)
        variants: Sequence[Plain | None] = (None,) * len(record)
        if record.variant is not None:
            cls = env_class(record.env_id)
            variants = assign_variants(cls.id, cls.variants, record.variant, record.seed, len(record))
        same_variants = all(old == new for old, new in zip(record.variants, variants, strict=True))
    except FedAgentGymError as error:
        return CheckResult(name, False, f"sampling again fails: {error}")
    except (ArithmeticError, ValueError, TypeError, LookupError, MemoryError) as error:
        return CheckResult(name, False, f"sampling again fails: {type(error).__name__}: {str(error)[:200]}")
    same_roles = dict(record.roles) == roles
    if again.same_as(assignment) and same_roles and same_variants:
        detail = f"{record.sampler} with seed {record.seed} reproduces the same tasks, bit for bit"
        return CheckResult(name, True, detail)
    # a changed file, or a library that draws differently?
    if not can_resample(bool(record.parameters.get("compat"))):
        numpy, scipy = record.provenance.get("numpy"), record.provenance.get("scipy")
        detail = (
            "cannot be verified: this numpy or scipy cannot re-sample, it draws other numbers than the ones this library"
            f" was tested with (the split was made with numpy {numpy}, scipy {scipy}); the content itself matches its digest"
        )
        return CheckResult(name, None, detail)
    changed = sum(not np.array_equal(assignment[client], again[client]) for client in range(len(record)))
    detail = (
        f"{changed:,} of {len(record):,} clients do not follow from the seed: the content and its digest were changed"
    )
    if not same_roles:
        detail = "the roles do not follow from the seed: the content was changed and its digest recomputed"
    if not same_variants:
        detail = "the variants do not follow from the seed: the content was changed and its digest recomputed"
    return CheckResult(name, False, detail)


_FINGERPRINTS = {False: "a94c95e625904c08", True: "03d19fc4d5815d00"}


def can_resample(published: bool) -> bool:
    """Return whether samplers draw the same random numbers here as where this library was tested."""
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
    return hasher.hexdigest()[:16] == _FINGERPRINTS[published]


def _check_axes(record: SplitRecord, table: TaskTable, assignment: Assignment) -> list[CheckResult]:
    """Check that the axes that the sampler does not control look random."""
    if record.sampler == IMPORTED or record.sampler not in SAMPLERS or record.parameters.get("compat"):
        return [CheckResult("other axes", True, "this sampler leaves no axis to chance")]
    try:
        moved = make_sampler(record.sampler, record.parameters).list_axes()
    except FedAgentGymError as error:
        return [CheckResult("other axes", False, f"the sampler cannot be built: {error}")]
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
        checks.append(CheckResult("sizes untouched", spread == 0, f"sizes differ by {spread:,}"))
    if "mixture" not in moved:
        given = solved if "hardness" in moved and solved is not None else nothing
        checks.append(_check_chance("mixture untouched", seen, codes, given))
    if "hardness" not in moved and solved is not None:
        given = codes if "mixture" in moved else nothing
        checks.append(_check_chance("hardness untouched", seen, solved, given))
    return checks


def _check_chance(name: str, assignment: Assignment, labels: np.ndarray, strata: np.ndarray) -> CheckResult:
    ratio, z = compare_with_chance(assignment, labels, strata)
    by_chance = f"the value expected by chance (z = {format_fixed(z, 1, '+')}, tolerated up to {MAX_Z:g})"
    detail = f"dispersion is {format_fixed(ratio, 2)} times {by_chance}"
    return CheckResult(name, z <= MAX_Z, detail)


# ---- comparison of two splits -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitDifference:
    """The differences of two splits in their settings, and the similarity of their clients' tasks."""

    digests: tuple[str, str]
    fields: dict[str, tuple[Any, Any]]
    clients: int
    changed: int
    mean_jaccard: float
    least_jaccard: float
    least_client: int

    @property
    def identical(self) -> bool:
        return self.digests[0] == self.digests[1]

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "identical": self.identical}


def compare(first: SplitRecord, second: SplitRecord) -> SplitDifference:
    """Compare two splits, client by client, up to the smaller number of clients. Both records must have task ids."""
    count = min(len(first), len(second))
    pairs = [(set(first.get_tasks(client)), set(second.get_tasks(client))) for client in range(count)]
    values = [len(a & b) / max(len(a | b), 1) if a | b else 1.0 for a, b in pairs]
    least = min(range(count), key=values.__getitem__)
    left, right = _flatten_record(first), _flatten_record(second)
    names = [*left, *(name for name in right if name not in left)]
    return SplitDifference(
        digests=(first.digest, second.digest),
        fields={name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)},
        clients=count,
        changed=sum(a != b for a, b in pairs),
        mean_jaccard=sum(values) / count,
        least_jaccard=values[least],
        least_client=least,
    )


def _flatten_record(record: SplitRecord) -> dict[str, Any]:
    header = record.to_header()
    flat = {f"env.{key}": value for key, value in header["env"].items()}
    flat["pool_digest"] = header["pool_digest"]
    flat["sampler"] = record.sampler
    flat.update({f"sampler.{key}": value for key, value in record.parameters.items()})
    flat.update({"seed": record.seed, "variant": record.variant, "clients": len(record)})
    flat.update({f"role.{name}": len(ids) for name, ids in record.roles.items()})
    flat["labels"] = None if record.labels is None else record.labels.source.get("digest")
    return flat
