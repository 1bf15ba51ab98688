"""A federation: a pool, its division among clients, and the way from a client to a playable environment."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError, listed
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.variants import assign_worlds, world_request
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.division import divide
from fedagentgym.partitions.files import labels as label_files
from fedagentgym.partitions.files import store
from fedagentgym.partitions.files.labels import Labels
from fedagentgym.partitions.files.split import NoWorlds, Split
from fedagentgym.partitions.roles import checked_sizes
from fedagentgym.partitions.samplers.sampling import recorded, sampler_of, whole_number
from fedagentgym.partitions.table import Table
from fedagentgym.version import __version__

if TYPE_CHECKING:
    from fedagentgym.partitions.analysis.statistics import Statistics
    from fedagentgym.partitions.verification import Check

FROM_POOL = "pool"
LOCAL_OPTIONS = ("data",)
"""Options that say where something lies on this machine; the pool's digest says what it is, so they are never stored."""


@dataclass(frozen=True)
class Client:
    """One member of a federation: which tasks it holds and which world it plays them in."""

    federation: Federation
    index: int
    tasks: tuple[str, ...]
    world: Mapping[str, Any] | None

    @property
    def pool(self) -> TaskPool:
        """The client's tasks with their payloads."""
        return self.federation.pool.subset(self.tasks)

    def options(self) -> dict[str, Any]:
        """The keywords that make this client's environment."""
        split = self.federation.split
        keywords: dict[str, Any] = {**self.federation.options, "split": split.env_split, "tasks": list(self.tasks)}
        if self.world is not None:
            keywords["world"] = dict(self.world)
        if self.federation.own_pool:
            keywords["pool"] = self.federation.pool
        return keywords

    def make(self, **options: Any) -> gymnasium.Env[str, str]:
        """An ordinary environment over this client's tasks and world; `options` are further keywords of the environment."""
        return gymnasium.make(self.federation.split.env_id, **{**self.options(), **options})

    def make_vec(
        self, count: int, *, mode: Literal["sync", "async"] = "sync", **options: Any
    ) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """`count` such environments behind gymnasium's vector interface."""
        keywords: dict[str, Any] = {**self.options(), **options}
        return gymnasium.make_vec(self.federation.split.env_id, num_envs=count, vectorization_mode=mode, **keywords)

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        return f"Client({self.index}: {len(self.tasks)} tasks of {self.federation.split.env_id}, world {self.world})"


class Federation:
    """A split together with the pool it divides. `len(federation)` clients, `federation.client(i)` each of them."""

    def __init__(self, split: Split, pool: TaskPool, options: Mapping[str, Any], *, own_pool: bool = False) -> None:
        self.pool = pool
        self.own_pool = own_pool
        self.options = dict(options)
        self.split = split
        if split.ids is None:
            self.split = split.bound(self.table.ids)

    def __len__(self) -> int:
        return len(self.split)

    def __iter__(self) -> Iterator[Client]:
        return (self.client(index) for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Federation({len(self)} clients of {self.split.env_id}, {self.split.sampler} {dict(self.split.parameters)})"

    def client(self, index: int) -> Client:
        index = self.split.checked_number(index)
        return Client(self, index, self.split.tasks(index), self.split.worlds[index])

    def role(self, name: str) -> TaskPool:
        """The tasks of a role; what the server holds comes without answers."""
        if name not in self.split.roles:
            raise OptionError(
                f"this split has no role {name!r} ({listed(self.split.roles) or 'none'} there): ask for it with roles={{...}}"
            )
        ids = self.split.roles[name]
        return self.pool.without_answers(ids) if name == "server" else self.pool.subset(ids)

    @property
    def digest(self) -> str:
        return self.split.digest

    @cached_property
    def table(self) -> Table:
        """The pool as samplers see it, with labels if there are any."""
        table = Table.of(self.pool)
        found = self._labels(table.ids)
        return table if found is None else table.with_solved(found.solved)

    def _labels(self, ids: Sequence[str]) -> Labels | None:
        return self.split.labels if self.split.labels is not None else known_labels(self.pool, ids)

    @cached_property
    def assignment(self) -> Assignment:
        """Who holds what, in the numbers of `table`."""
        split = self.split
        if split.ids is None or len(split.ids) == len(self.table.ids):
            return split.clients
        return split.clients.renamed(self.table.numbers(split.ids, "the split"))

    def statistics(self) -> Statistics:
        from fedagentgym.partitions.analysis.statistics import describe

        return describe(self.assignment, self.table, self.split.sampler)

    def plot(self, path: str | Path | None = None) -> Any:
        """The figure that fits the sampler; written to `path` (.png or .svg) if given, returned as matplotlib axes."""
        from fedagentgym.partitions.analysis.plots import draw

        return draw(self, path)

    def verify(self) -> list[Check]:
        from fedagentgym.partitions.verification import verify

        return verify(self)

    def save(self, path: str | Path) -> Path:
        """`.json` one file, `.zip` a zip, otherwise a folder (for more than a million assignments)."""
        return store.save(self.split, path, self.table.ids)


# ---- making -----------------------------------------------------------------------------------------------------


def federate(
    env_id: str,
    *,
    partition: str = "uniform",
    clients: int,
    seed: int = 0,
    split: str = "train",
    env: Mapping[str, Any] | None = None,
    world: str | Mapping[str, Any] | None = None,
    roles: Mapping[str, int] | None = None,
    server_overlap: float = 1.0,
    labels: str | Path | Mapping[str, Any] | None = None,
    pool: TaskPool | None = None,
    **parameters: Any,
) -> Federation:
    """Divide the tasks of an environment among clients.

    `parameters` are those of the sampler (`omega`, `xi`, `beta`, `tasks_per_client`, ...), `env` the options of the
    environment, `world` what differs between the clients' worlds, `roles` how many tasks to set aside and for whom,
    `labels` which tasks count as solved (a label file, a mapping, or "pool" for the easier half by the tasks' own
    difficulty; the default pools bring theirs). `pool` divides a pool of your own instead of the one that the
    environment loads.
    """
    options = dict(env or {})
    cls = environment(env_id)
    split = cls.canonical_split(split)
    refuse_evaluation(cls, split)
    seed, clients = whole_number(seed, "seed"), whole_number(clients, "clients", least=1)
    if not 0.0 <= server_overlap <= 1.0:
        raise OptionError(f"server_overlap lies between 0 and 1, got {server_overlap}")
    sampler, sizes = sampler_of(partition, parameters), checked_sizes(roles or {})
    request = world_request(world, env_id)
    whole = pool if pool is not None else open_pool(env_id, split, options)
    table = Table.of(whole)
    needs_labels = sampler.needs_labels or parameters.get("label") == "hardness"
    found = _resolve_labels(labels, whole, table.ids, needed=needs_labels)
    if found is not None:
        table = table.with_solved(found.solved)
    division = divide(table, sampler, clients, seed, sizes, server_overlap)
    made = Split(
        env_id=env_id,
        env_split=split,
        env_options=stored_options(options),
        pool_digest=whole.digest,
        sampler=partition,
        parameters=recorded(sampler),
        seed=seed,
        clients=division.clients,
        ids=table.ids,
        worlds=NoWorlds(clients) if request is None else assign_worlds(request, seed, clients),
        world=request,
        roles=division.roles,
        server_overlap=float(server_overlap),
        evaluation=cls.evaluation_splits,
        labels=found if labels is not None or needs_labels else None,
        provenance=provenance(),
    )
    federation = Federation(made, whole, options, own_pool=pool is not None)
    federation.__dict__["table"] = table
    return federation


def provenance() -> dict[str, str]:
    """When and with what a split was made: beside the digest, never under it."""
    import scipy

    return {
        "fedagentgym": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def environment(env_id: str) -> type[TextEnv]:
    found: type[TextEnv] = ENVIRONMENTS.get(env_id)
    return found


def refuse_evaluation(cls: type[TextEnv], split: str) -> None:
    if split in cls.evaluation_splits or split == "all":
        raise OptionError(
            f"the split {split!r} is for evaluation or holds such tasks, and those are never divided among clients: use 'train'"
        )


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in LOCAL_OPTIONS}


def open_pool(env_id: str, split: str, options: Mapping[str, Any]) -> TaskPool:
    """The pool that the environment loads under these options."""
    made: Any = gymnasium.make(env_id, split=split, disable_env_checker=True, **options)
    pool: TaskPool = made.unwrapped.pool
    made.close()
    return pool


def known_labels(pool: TaskPool, ids: Sequence[str]) -> Labels | None:
    """Labels that come with the package for this pool."""
    file = label_files.shipped(pool)
    return None if file is None else file.labels(pool, ids)


def _resolve_labels(given: Any, pool: TaskPool, ids: Sequence[str], *, needed: bool) -> Labels | None:
    if given == FROM_POOL:
        return label_files.from_pool(pool, ids)
    if isinstance(given, str | Path):
        return label_files.read_labels(given).labels(pool, ids)
    if isinstance(given, Mapping):
        return label_files.from_mapping(given, ids)
    if given is not None:
        raise OptionError(f"labels is a path or a mapping task id -> solved, got {type(given).__name__}")
    found = known_labels(pool, ids)
    if found is None and needed:
        raise DataError(
            f"hardness needs to know which tasks of {pool.env} ({pool.split}) are solved, and no labels come with this pool: "
            f"make them with `fedagentgym label {pool.env}` and pass labels=FILE, or pass labels='pool' for the easier half "
            "by the tasks' own difficulty"
        )
    return found


# ---- opening ----------------------------------------------------------------------------------------------------


def load_federation(
    path: str | Path, *, env: Mapping[str, Any] | None = None, pool: TaskPool | None = None
) -> Federation:
    """Open a split file. `env` says where data lies (`{"data": FOLDER}`) and may repeat, not change, the split's options."""
    split = store.load(path)
    options = _merged_options(split, env or {})
    environment(split.env_id)
    whole = pool if pool is not None else open_pool(split.env_id, split.env_split, options)
    return bind(split, whole, options, str(path), own_pool=pool is not None)


def bind(split: Split, pool: TaskPool, options: Mapping[str, Any], where: str, *, own_pool: bool = False) -> Federation:
    """A split with its pool, once it is certain that they belong together."""
    if split.pool_digest != pool.digest:
        raise DataError(_mismatch(split, pool, where))
    federation = Federation(split, pool, options, own_pool=own_pool)
    for name, ids in split.roles.items():
        federation.table.numbers(ids, f"the role {name!r} of {where}")
    if split.ids is not federation.table.ids:
        federation.table.numbers(split.ids or (), where)
    return federation


def _mismatch(split: Split, pool: TaskPool, where: str) -> str:
    named = {name for ids in split.roles.values() for name in ids} | set(split.ids or ())
    missing = sorted(name for name in named if name not in pool)
    if missing:
        detail = f"{len(missing):,} of its task ids are not in this pool, the first is {missing[0]!r}"
    else:
        detail = "the ids are there, but the tasks behind them were made from other data or options"
    return (
        f"{where} was made for another pool of {split.env_id} ({split.env_split}, options {dict(split.env_options)}): {detail}. "
        f"Pool digest in the file {label_files.short(split.pool_digest)}, here {label_files.short(pool.digest)}"
    )


def _merged_options(split: Split, given: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in given.items():
        if key in split.env_options and canonical_json(split.env_options[key]) != canonical_json(value):
            raise OptionError(
                f"the split was made with {key}={split.env_options[key]!r}, {value!r} was given: leave it out, the file decides"
            )
    return {**split.env_options, **given}


def open_client(
    env_id: str, federation: Federation | str | Path, client: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The environment keywords of one client, for `gymnasium.make(env_id, federation=..., client=...)`."""
    where = {key: options[key] for key in LOCAL_OPTIONS if key in options}
    if isinstance(federation, Federation):
        opened = federation
    else:
        path = Path(federation)
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        opened = _opened(str(path), stamp, tuple(sorted(where.items())))
    if opened.split.env_id != env_id:
        raise OptionError(f"the split divides {opened.split.env_id}, not {env_id}: use its id in gymnasium.make")
    for key in ("tasks", "pool", "world", "split"):
        if options.get(key) is not None and not (key == "split" and options[key] == opened.split.env_split):
            raise OptionError(f"{key}= is decided by the split: leave it out when federation= is given")
    _merged_options(opened.split, {key: value for key, value in options.items() if key in opened.split.env_options})
    return {**opened.client(client).options(), **where}


@lru_cache(maxsize=8)
def _opened(path: str, stamp: int, where: tuple[tuple[str, Any], ...]) -> Federation:
    """Recently opened split files, so that a hundred clients of one file read it once."""
    return load_federation(path, env=dict(where))
