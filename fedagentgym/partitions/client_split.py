"""A client split: a pool and its division among clients, each of which opens a playable environment."""

from __future__ import annotations

import inspect
import operator
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import gymnasium
import numpy as np

from fedagentgym.base.encoding import shorten_digest
from fedagentgym.base.errors import (
    DataError,
    FedAgentGymError,
    OptionError,
    join_names,
    require_type,
    show_value,
    unknown_name_error,
)
from fedagentgym.base.files import cache_folder
from fedagentgym.base.hub import HUB_NAME, LICENCE, check_hub_name, check_licence, pull_folder, push_folder
from fedagentgym.base.rounding import count_things
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import EnvLike, build, env_class, open_env, read_options
from fedagentgym.envs.options import EnvOptions
from fedagentgym.envs.pool import TaskPool, describe_pool_words
from fedagentgym.envs.registry import find_env_id
from fedagentgym.envs.tasks import TaskSet
from fedagentgym.envs.variants import Plain, assign_variants, check_request, complete_request
from fedagentgym.partitions import split_files
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.division import (
    check_client_count,
    check_role_sizes,
    check_whole_number,
    divide,
    dump_parameters,
    make_sampler,
)
from fedagentgym.partitions.labels import resolve_labels
from fedagentgym.partitions.record import SplitRecord, find_outside
from fedagentgym.partitions.samplers import SAMPLERS
from fedagentgym.partitions.table import TaskTable, list_evaluation, open_pool, refuse_evaluation
from fedagentgym.version import __version__

if TYPE_CHECKING:
    from fedagentgym.partitions.statistics import Statistics
    from fedagentgym.partitions.verification import CheckResult


@dataclass(frozen=True)
class Client:
    """One client of a split: `make` opens its environment.

    Attributes:
        client_split: The split that the client belongs to.
        index: Number of the client, from 0 on.
        tasks: Ids of the client's tasks.
        variant: The client's variant of the environment as plain values; None for the unchanged environment.
    """

    client_split: ClientSplit
    index: int
    tasks: tuple[str, ...]
    variant: Plain | None

    @property
    def pool(self) -> TaskPool:
        """The client's tasks with their payloads."""
        return self.client_split.pool.subset(self.tasks)

    @property
    def task_set(self) -> TaskSet:
        """The `TaskSet` that names this client's tasks."""
        return replace(self.client_split.task_set, ids=self.tasks)

    def open_env(self, **options: Any) -> TextEnv:
        """Open an environment over this client's tasks, in its variant, for playing many episodes.

        Args:
            **options: Options of the environment that change no task, paths of its data, or `pool=` with the same digest.
                With an evaluation split as `split=`, the environment has that split's tasks in the client's variant.

        Returns:
            The environment itself.

        Raises:
            OptionError: If an option would change the tasks, or is decided by the split.
            DataError: If the pool or the data is not the one that was divided.
        """
        opened, own = self.client_split, self.client_split.record.env_split
        pool, split = options.pop("pool", None), options.get("split", own)
        require_type("split must be the name of a split", split, str)
        split = opened.env_class.canonical_split(split)
        if split == own or split in opened.env_class.evaluation_splits:
            options.pop("split", None)
        chosen = add_options(opened.env_options, options, opened.env_class.id) if options else opened.env_options
        if split != own:
            return build(opened.env_class, chosen, split=split, pool=pool, variant=self.variant)
        if not self.tasks:
            raise DataError(f"client {self.index} of the split has no tasks to play")
        changes_data = any(chosen.get_marks()[name] in ("task", "local") for name in options)
        if pool is None and (opened.own_pool or (self.variant is None and not changes_data)):
            return build(opened.env_class, chosen, split=own, tasks=self.tasks, pool=opened.pool, variant=self.variant)
        if pool is not None and not isinstance(pool, TaskPool):
            raise OptionError(f"pool must be a TaskPool, got {show_value(pool)}")
        return build(opened.env_class, chosen, split=own, tasks=self.task_set, pool=pool, variant=self.variant)

    def open_world(self, split: str) -> TextEnv:
        """Open an environment over all tasks of a split in this client's variant.

        Args:
            split: The split.

        Returns:
            The environment itself.
        """
        require_type("a split is a name", split, str)
        opened = self.client_split
        split = opened.env_class.canonical_split(split)
        return build(opened.env_class, opened.env_options, split=split, variant=self.variant)

    def make(self, **options: Any) -> gymnasium.Env[str, str]:
        """Make the same environment with `gymnasium.make(env_id, client_split=..., client=...)`.

        Args:
            **options: Options of the environment that change no task, and keywords of `gymnasium.make`.

        Returns:
            The environment, with gymnasium's wrappers.

        Raises:
            OptionError: If an option would change the tasks, or is decided by the split.
            DataError: If the pool or the data is not the one that was divided.
        """
        return gymnasium.make(
            self.client_split.record.env_id, client_split=self.client_split, client=self.index, **options
        )

    def make_vec(
        self,
        count: int,
        *,
        vectorization_mode: Literal["sync", "async"] = "sync",
        vector_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Make a vector environment of copies of this client's environment.

        Args:
            count: Number of copies.
            vectorization_mode: `sync` runs all copies in this process, `async` runs each in its own process.
            vector_kwargs: Keywords of gymnasium's vector environment, as for `gymnasium.make_vec`: `{"shared_memory": False}`.
            **options: Options of the environment that change no task.

        Returns:
            The vector environment.

        Raises:
            OptionError: If an option would change the tasks, or is decided by the split.
        """
        require_type("copies are counted by a whole number", count, int)
        copies = [self.index] * count
        return self.client_split.make_vec(
            copies, vectorization_mode=vectorization_mode, vector_kwargs=vector_kwargs, **options
        )

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        env_id = self.client_split.record.env_id
        return f"Client({self.index}: {count_things(len(self.tasks), 'task')} of {env_id}, variant {self.variant})"


class Clients(Sequence[Client]):
    """The clients of a split as a sequence; each is made on access."""

    def __init__(self, client_split: ClientSplit) -> None:
        self._client_split = client_split

    def __len__(self) -> int:
        return len(self._client_split)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Client: ...

    @overload
    def __getitem__(self, key: slice) -> list[Client]: ...

    def __getitem__(self, key: SupportsIndex | slice) -> Client | list[Client]:
        """The client with a number (counted from the end if negative), or the list of clients of a slice."""
        if isinstance(key, slice):
            return [self._client_split.client(index) for index in range(*key.indices(len(self)))]
        if isinstance(key, bool) or not isinstance(key, SupportsIndex):
            raise OptionError(f"clients are numbered: {show_value(key)} is neither a number nor a slice")
        index = operator.index(key)
        return self._client_split.client(index + len(self) if -len(self) <= index < 0 else index)

    def __repr__(self) -> str:
        return f"<{count_things(len(self), 'client')} of {self._client_split!r}>"


class ClientSplit:
    """A pool of tasks and its division among clients; `federate` and `load_client_split` make one.

    It is a sequence of its clients: it has a length, supports indexing (`client_split[3]`) and slicing, and can be iterated.

    Attributes:
        record: The division as it is stored: a `SplitRecord`.
        pool: The pool that is divided.
        options: Options of the environment that the pool was loaded with.
        table: The pool as samplers see it: a `TaskTable`.
        task_set: The `TaskSet` that names all tasks of the pool.
    """

    def __init__(
        self, record: SplitRecord, pool: TaskPool, options: Mapping[str, Any], *, own_pool: bool = False
    ) -> None:
        self.pool = pool
        self.own_pool = own_pool
        self.options = dict(options)
        self.record = record
        if record.ids is None:
            self.record = replace(record, ids=self.table.ids)

    def __len__(self) -> int:
        return len(self.record)

    def __iter__(self) -> Iterator[Client]:
        return (self.client(index) for index in range(len(self)))

    @overload
    def __getitem__(self, key: SupportsIndex) -> Client: ...

    @overload
    def __getitem__(self, key: slice) -> list[Client]: ...

    def __getitem__(self, key: SupportsIndex | slice) -> Client | list[Client]:
        return self.clients[key]

    @property
    def clients(self) -> Clients:
        """All clients, in order."""
        return Clients(self)

    def __repr__(self) -> str:
        record = self.record
        return f"ClientSplit({count_things(len(self), 'client')} of {record.env_id}, {record.sampler} {dict(record.parameters)})"

    def client(self, index: int) -> Client:
        """Return a client.

        Args:
            index: Number of the client, from 0 on.

        Returns:
            The client.

        Raises:
            OutOfRangeError: If there is no such client.
            DataError: If the split was stored and the client's tasks do not match their digest.
        """
        tasks = self.record.get_tasks(index)
        return Client(self, int(index), tasks, self.record.variants[index])

    def role(self, name: str) -> TaskPool:
        """Return the tasks that were set aside for a role.

        Args:
            name: `public`, `auxiliary`, `server` or `warmup`.

        Returns:
            The pool of the role's tasks; the pool of `server` has no answers.

        Raises:
            OptionError: If nothing was set aside for this role.
        """
        require_type("a role is a name", name, str)
        if name not in self.record.roles:
            raise OptionError(
                f"this split has no role {name!r} (its roles: {join_names(self.record.roles) or 'none'}): make it with"
                " roles={...}"
            )
        ids = self.record.roles[name]
        return self.pool.without_answers(ids) if name == "server" else self.pool.subset(ids)

    def make_vec(
        self,
        clients: Sequence[int] | None = None,
        *,
        vectorization_mode: Literal["sync", "async"] = "sync",
        vector_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Make a vector environment with one environment per client.

        Args:
            clients: Numbers of the clients, in the order of the vector's environments; by default all.
            vectorization_mode: `sync` runs all environments in this process, `async` runs each in its own process.
            vector_kwargs: Keywords of gymnasium's vector environment, as for `gymnasium.make_vec`: `{"shared_memory": False}`.
            **options: Options of the environment that change no task.

        Returns:
            The vector environment.

        Raises:
            OutOfRangeError: If there is no such client.
            OptionError: If `clients` is empty, the vectorization_mode or a keyword of `vector_kwargs` is unknown, or an option
                would change the tasks.
        """
        require_type("clients are a list of their numbers", clients, Iterable, type(None))
        vectors: dict[str, Callable[..., gymnasium.vector.VectorEnv[Any, Any, Any]]]
        vectors = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}
        if vectorization_mode not in vectors:
            raise unknown_name_error("vectorization_mode", vectorization_mode, vectors)
        require_type("vector_kwargs must be a mapping from keywords to values", vector_kwargs, Mapping, type(None))
        keywords = dict(vector_kwargs or {})
        known = [name for name in inspect.signature(vectors[vectorization_mode]).parameters if name != "env_fns"]
        for name in keywords:
            if name not in known:
                raise unknown_name_error(f"keyword of {vectorization_mode} vector environments", name, known)
        chosen = [self.client(number) for number in (range(len(self)) if clients is None else clients)]
        if not chosen:
            raise OptionError("a vector environment needs at least one client")
        return vectors[vectorization_mode]([partial(client.make, **options) for client in chosen], **keywords)

    @property
    def digest(self) -> str:
        """The identity of the split: it changes if any client's tasks or variant change."""
        return self.record.digest

    @cached_property
    def env_class(self) -> type[TextEnv]:
        """The class of the environment whose tasks are divided."""
        return env_class(self.record.env_id)

    @cached_property
    def env_options(self) -> EnvOptions:
        """The checked options with which the pool was loaded."""
        return self.env_class.Options.read(self.record.env_id, self.options)

    @cached_property
    def task_set(self) -> TaskSet:
        """The `TaskSet` that names all tasks of the divided pool."""
        record = self.record
        return TaskSet(record.env_id, self.env_options.deciding, record.env_split, record.pool_digest, self.pool.ids)

    @cached_property
    def table(self) -> TaskTable:
        """The pool as samplers see it, with labels if there are any."""
        table = TaskTable.from_pool(self.pool)
        found = self.record.labels
        if found is None:
            found = resolve_labels(None, self.pool, table.ids)
        return table if found is None else table.with_solved(found.solved)

    @cached_property
    def assignment(self) -> Assignment:
        """The assignment, with tasks numbered as in `table`. The digests of all clients are checked first."""
        record = self.record
        record.check_clients()
        if record.ids is None or len(record.ids) == len(self.table.ids):
            return record.clients
        return record.clients.renumber(self.table.find_numbers(record.ids, "the split"))

    def statistics(self) -> Statistics:
        """Compute how the clients differ.

        Returns:
            `sizes`, `counts` and `shares` by category, `distances` from the mixture of the pool, `copies` of each task, and the
            similarity of pairs of clients.
        """
        from fedagentgym.partitions.statistics import compute_statistics

        return compute_statistics(self.assignment, self.table, self.record.sampler)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the figure that fits the sampler (extra `[plots]`).

        Args:
            path: If given, the figure is written there, as .png or .svg.

        Returns:
            The matplotlib axes.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        from fedagentgym.partitions.plots import plot_client_split

        return plot_client_split(self.record, self.statistics(), path)

    def verify(self) -> list[CheckResult]:
        """Check digests, pool, roles and labels, that no client holds an evaluation task, and that the seed reproduces the split.

        Returns:
            The checks, each with `name`, `ok` and `detail`. If a check cannot be decided here, its `ok` is None and the split
            counts as not verified.
        """
        from fedagentgym.partitions.verification import verify

        return verify(self.record, self.pool, self.table, self.assignment, self.options)

    def save(self, path: str | Path) -> Path:
        """Write the split to a file or folder, without the contents of its tasks.

        Args:
            path: `.json` writes one text file, of at most a million assignments; `.zip` an archive; any other path a folder.

        Returns:
            The path.

        Raises:
            OptionError: If the split is too large for this kind of file.
        """
        return split_files.save(self.record, path, self.table.ids)

    def push_to_hub(self, name: str, *, private: bool = False, licence: str = LICENCE) -> str:
        """Push the split to the Hugging Face Hub as `fedagentgym hub push` does; `load_client_split(name)` opens it.

        The repository gets the split's file, a card, a figure (with matplotlib), a table of clients and tasks (with pyarrow), and
        Croissant metadata. Its other files are removed.

        Args:
            name: The repository: `OWNER/NAME`.
            private: Whether the repository is private, if it is new.
            licence: Licence of the split, by its name on the Hub.

        Returns:
            The address of the repository.

        Raises:
            OptionError: If the name or the licence is malformed.
            DataError: If the hub cannot be reached or refuses the push.
        """
        from fedagentgym.partitions.repository import write_repository

        require_type("a repository is a name", name, str)
        require_type("a licence is a name", licence, str)
        check_hub_name(name)
        check_licence(licence, "licence")
        with TemporaryDirectory(prefix="fedagentgym-push-") as scratch:
            large = self.record.clients.items.size > split_files.MAX_JSON_ASSIGNMENTS
            file = self.save(Path(scratch, "split.zip" if large else "split.json"))
            write_repository(file, self.record, self, Path(scratch, "repository"), name, licence)
            return push_folder(Path(scratch, "repository"), "dataset", name, private=private)


# ---- making -----------------------------------------------------------------------------------------------------


def federate(
    env_id: EnvLike,
    *,
    partition: str = "uniform",
    clients: int | None = None,
    seed: int = 0,
    split: str = "train",
    env: Mapping[str, Any] | None = None,
    variant: str | Plain | None = None,
    roles: Mapping[str, int] | None = None,
    server_overlap: float = 1.0,
    labels: str | Path | Mapping[str, Any] | None = None,
    pool: TaskPool | None = None,
    **parameters: Any,
) -> ClientSplit:
    """Divide the tasks of an environment among clients.

    `federate(env_id)` gives ten clients equal shares of the training tasks, drawn at random without overlap.

    Args:
        env_id: Id of the environment, its short name such as `WebShop`, or an environment, whose options (except `render_mode`)
            and pool are used. It must play all tasks of `split` without a variant.
        partition: Name of the sampler.
        clients: Number of clients. By default the number that the sampler finds (`natural`, `by_source`), otherwise 10.
        seed: Seed of everything that is random.
        split: The split whose tasks are divided; evaluation splits are refused.
        env: Options of the environment.
        variant: The kind of variants by which the clients' environments differ, or `{"kind": ..., parameter: value}`.
        roles: Number of tasks to set aside, by role: `public`, `auxiliary`, `server` or `warmup`.
        server_overlap: Share of the server's tasks that clients hold as well.
        labels: The tasks that count as solved: a label file, a mapping, or "pool" for the easier half by the tasks' own
            hardness. Labels of the default pools come with the package.
        pool: Tasks of your own in place of those that the environment loads.
        **parameters: Parameters of the sampler, such as `tasks_per_client`, `omega`, `xi` or `beta`.

    Returns:
        The client split, a sequence of clients.

    Raises:
        UnknownNameError: If there is no such environment, split, sampler or variant.
        OptionError: If an option is unknown or impossible.
        DataError: If data or labels are missing.

    Examples:
        >>> made = federate("fedagentgym/Guess-v0")
        >>> len(made), len(made[0])
        (10, 60)
    """
    if env is not None and not (isinstance(env, Mapping) and all(isinstance(name, str) for name in env)):
        raise OptionError(
            f"env must be a mapping from the environment's options to their values, got {show_value(env)}"
        )
    options = dict(env or {})
    opened = None if isinstance(env_id, str) else open_env(env_id)
    env_id = find_env_id(env_id if opened is None else opened.id)
    cls = env_class(env_id)
    split = cls.canonical_split(split)
    refuse_evaluation(cls, split)
    if opened is not None:
        _refuse_partial(opened, split, pool)
        own = {name: value for name, value in opened.options.given.items() if name != "render_mode"}
        options = {**own, **options}
        pool = opened.given_pool if pool is None else pool
    seed = check_whole_number(seed, "seed")
    clients = None if clients is None else check_client_count(clients)
    if (
        isinstance(server_overlap, bool)
        or not isinstance(server_overlap, int | float)
        or not 0.0 <= server_overlap <= 1.0
    ):
        raise OptionError(f"server_overlap must be a number between 0 and 1, got {show_value(server_overlap)}")
    sampler, sizes = make_sampler(partition, parameters), check_role_sizes(roles or {})
    request = None if variant is None else complete_request(cls.id, cls.variants, variant)
    if request is not None:
        check_request(cls.id, cls.variants, request, read_options(env_id, options), pool)
    whole = open_pool(env_id, split, options, pool)
    table = TaskTable.from_pool(whole)
    needs_labels = sampler.needs_labels or parameters.get("label") == "hardness"
    found = resolve_labels(labels, whole, table.ids)
    if found is None and needs_labels:
        raise DataError(
            f"hardness needs to know which tasks of {whole.env} ({whole.split}) are solved, and no labels come with this pool: "
            f"make them with `fedagentgym label {describe_pool_words(whole)}` and pass labels=FILE, or pass labels='pool' "
            "for the easier half by the tasks' own hardness"
        )
    if found is not None:
        table = table.with_solved(found.solved)
    division = divide(table, sampler, clients, seed, sizes, server_overlap)
    variants: Sequence[Plain | None] = (None,) * len(division.clients)
    if request is not None:
        variants = assign_variants(cls.id, cls.variants, request, seed, len(division.clients))
    made = SplitRecord(
        env_id=env_id,
        env_split=split,
        env_options=read_options(env_id, options).portable,
        pool_digest=whole.digest,
        sampler=partition,
        parameters=dump_parameters(sampler),
        seed=seed,
        clients=division.clients,
        ids=table.ids,
        variants=variants,
        variant=request,
        roles=division.roles,
        server_overlap=float(server_overlap),
        evaluation=list_evaluation(cls),
        labels=found if labels is not None or needs_labels else None,
        provenance=collect_provenance(),
    )
    divided = ClientSplit(made, whole, options, own_pool=pool is not None)
    divided.__dict__["table"] = table
    return divided


def _refuse_partial(opened: TextEnv, split: str, pool: TaskPool | None) -> None:
    """Raise if an environment has something that the split of its tasks would not have."""
    if opened.variant is not None:
        raise OptionError(
            f"{opened.id}: the environment to divide must have no variant, and this one has"
            f" {show_value(opened.remake.keywords['variant'])}: give its id and variant=, which draws each client's own"
        )
    if pool is None and opened.given_pool is None and opened.whole_pool.split != split:
        raise OptionError(
            f"{opened.id}: the environment to divide must play the split {split!r}, and this one plays"
            f" {opened.whole_pool.split!r}: make it with split={split!r}, or give its id"
        )
    if pool is None and len(opened.pool) != len(opened.whole_pool):
        raise OptionError(
            f"{opened.id}: the environment to divide must play all tasks of its pool, and this one plays"
            f" {len(opened.pool):,} of {len(opened.whole_pool):,}: to divide only these, also give pool=env.pool"
        )


def collect_provenance() -> dict[str, str]:
    """Today's date and the versions of the libraries. They are stored with a split, but not covered by its digest."""
    import scipy

    return {
        "fedagentgym": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


# ---- opening ----------------------------------------------------------------------------------------------------


def load_client_split(
    path: str | Path, *, env: Mapping[str, Any] | None = None, pool: TaskPool | None = None
) -> ClientSplit:
    """Open a split file.

    Args:
        path: The file, the folder of a large split, or a repository `OWNER/NAME` of the Hugging Face Hub, which is pulled once.
        env: Paths of data (`{"data": FOLDER}`) and other options of the environment that change no task.
        pool: The pool that was divided, if the environment does not load it.

    Returns:
        The client split, with the pool that was divided.

    Raises:
        OptionError: If an option would change the tasks.
        DataError: If the file is damaged or of a newer format, or the pool is not the one that was divided.
    """
    if not isinstance(path, str | Path):
        raise OptionError(f"a split is opened by the path of its file, got {show_value(path)}")
    if isinstance(path, str) and HUB_NAME.fullmatch(path) and not Path(path).suffix and not Path(path).exists():
        folder = cache_folder("hub", *path.split("/"))
        if not folder.exists():
            try:
                pull_folder(path, folder, lambda made: split_files.load(split_files.find_in(made)))
            except DataError as error:
                raise DataError(
                    f"there is no split file {path} here, and it cannot be pulled from the hub: {error}"
                ) from error
        path = split_files.find_in(folder)
    return open_client_split(path, env=env, pool=pool)


def open_client_split(
    path: str | Path, *, env: Mapping[str, Any] | None = None, pool: TaskPool | None = None
) -> ClientSplit:
    """Open a split file of this machine, as configurations and commands do. Nothing is pulled from the Hub."""
    record = split_files.load(path)
    stored = read_options(record.env_id, record.env_options)
    stored.refuse_foreign(str(path))
    options = add_options(stored, env or {}, record.env_id).given
    whole = open_pool(record.env_id, record.env_split, options, pool)
    return bind(record, whole, options, str(path), own_pool=pool is not None)


def bind(
    record: SplitRecord, pool: TaskPool, options: Mapping[str, Any], where: str, *, own_pool: bool = False
) -> ClientSplit:
    """The client split of a record and its pool, after checking that they belong together."""
    cls = env_class(record.env_id)
    if record.pool_digest != pool.digest:
        named = {name for ids in record.roles.values() for name in ids} | set(record.ids or ())
        missing = sorted(name for name in named if name not in pool)
        detail = "this pool has tasks of these ids, but they were made from other data or options"
        if missing:
            detail = f"{len(missing):,} of its task ids are not in this pool, the first is {missing[0]!r}"
        local = [f"{name}=" for name, mark in cls.Options.get_marks().items() if mark == "local"]
        raise DataError(
            f"{where} was made for another pool of {record.env_id} ({record.env_split}, options {dict(record.env_options)}): "
            f"{detail}; if it was made with {' or '.join([*local, 'pool='])}, give that again. "
            f"Pool digest in the file {shorten_digest(record.pool_digest)}, here {shorten_digest(pool.digest)}"
        )
    try:
        if record.sampler in SAMPLERS:
            make_sampler(record.sampler, record.parameters)
        if record.variant is not None:
            complete_request(cls.id, cls.variants, record.variant)
    except FedAgentGymError as error:
        raise DataError(f"{where} has impossible parameters: {error}") from None
    opened = ClientSplit(record, pool, options, own_pool=own_pool)
    if record.labels is not None and record.labels.solved.size != len(pool.ids):
        raise DataError(f"{where} has labels for {record.labels.solved.size:,} tasks, its pool has {len(pool.ids):,}")
    if record.ids is None and (client := find_outside(record.clients, len(pool.ids))) is not None:
        raise DataError(
            f"client {client} of the split holds a task number that the pool does not have: {where} was changed"
        )
    for name, ids in record.roles.items():
        opened.table.find_numbers(ids, f"the role {name!r} of {where}")
    if record.ids is not opened.table.ids:
        opened.table.find_numbers(record.ids or (), where)
    return opened


def add_options(fixed: EnvOptions, given: Mapping[str, Any], env_id: str) -> EnvOptions:
    """The options of a split, updated with options that do not change its tasks.

    Options that decide no task, and paths of data, can be added. Other options may only repeat the split's value. Whether the
    data is the same is checked later, by the digest of the pool.
    """
    for name in ("split", "tasks", "pool", "variant"):
        if name in given:
            raise OptionError(f"{name}= is decided by the split: leave it out")
    after = type(fixed).read(env_id, {**fixed.given, **given})
    deciding = [name for name in given if after.get_marks()[name] == "task"]
    kept, wanted = (fixed.deciding, after.deciding) if deciding else ({}, {})
    for name in deciding:
        if wanted.get(name) != kept.get(name):
            raise OptionError(
                f"{name}={_show(given[name])} would change the tasks of the split, which was made with "
                f"{name}={_show(kept.get(name))}: leave it out, or make a split with it "
                f"(federate({env_id!r}, env={{{name!r}: ...}}))"
            )
    return after


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def open_split_client(
    env_id: str, client_split: ClientSplit | str | Path, client: int, options: dict[str, Any]
) -> TextEnv:
    """The environment of one client, for `gymnasium.make(env_id, client_split=..., client=...)`. If the split is a file, paths of
    data and a pool are used to open the file, and the other options to open the client's environment."""
    if not isinstance(client_split, ClientSplit):
        path, pool, where = Path(client_split), options.pop("pool", None), dict[str, Any]()
        if options:
            marks = env_class(env_id).Options.get_marks()
            where = {name: value for name, value in options.items() if marks.get(name) in ("task", "local")}
        if pool is not None or (where and read_options(env_id, where).names_local_data):
            client_split = open_client_split(path, env=where, pool=pool)
            options = {name: value for name, value in options.items() if name not in where}
        else:
            client_split = _open_unchanged(str(path), split_files.compute_fingerprint(path))
    if client_split.record.env_id != env_id:
        raise OptionError(f"the split divides {client_split.record.env_id}, not {env_id}: use its id in gymnasium.make")
    return client_split.client(client).open_env(**options)


@lru_cache(maxsize=8)
def _open_unchanged(path: str, _fingerprint: str) -> ClientSplit:
    """The split of a file. It is cached by the file's content, so that a hundred clients read the file once."""
    return open_client_split(path)
