"""The interface of samplers, which are frozen settings classes with a method `sample`, and the division of a pool by a sampler.

A division draws the roles first, then the clients' tasks among the remaining ones, then the part of the server's tasks that
clients hold: the share `server_overlap`. No client holds a task of the roles `public`, `auxiliary` and `warmup`.
"""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.base.encoding import canonical_json, to_plain_numbers
from fedagentgym.base.errors import (
    DataError,
    OptionError,
    find_closest_name,
    join_names,
    show_value,
    unknown_name_error,
)
from fedagentgym.base.settings import MAX_BITS, Settings
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.record import ROLES
from fedagentgym.partitions.samplers import SAMPLERS
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]
Axis = Literal["mixture", "sizes", "hardness"]
Compat = Literal["fedagent"]

MAX_CLIENTS = 1_000_000
"""Maximum number of clients of a split, since its file holds an entry for each."""


_NUMBERS: tuple[Any, ...] = (int, float, int | None, float | None)
_FLAGS: tuple[Any, ...] = (bool, bool | None)
"""The types of parameters that a text could be converted to."""


class Sampler(Settings):
    """Base class of samplers: derive a class, write `sample`, and register it with `fedagentgym.register_sampler`.

    The fields are the parameters that `federate` takes; they are stored in the split file. Draw from `fedagentgym.stream(seed,
    ...)`, so that a seed gives the same split everywhere.

    Attributes:
        axes: The axes in which the sampler makes clients differ (`mixture`, `sizes`, `hardness`); the others are left to chance.
        needs_labels: Whether the sampler needs to know which tasks count as solved.

    Examples:
        >>> from fedagentgym.partitions import Assignment, Sampler
        >>> class Rotate(Sampler):
        ...     first: int = 0
        ...     def sample(self, table, clients, seed):
        ...         numbers = range(self.first, len(table))
        ...         return Assignment.from_lists(numbers[client::clients] for client in range(clients))
    """

    axes: ClassVar[frozenset[Axis]] = frozenset()
    """The axes in which this sampler makes clients differ; the other axes are left to chance."""

    needs_labels: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_texts(cls, data: Any) -> Any:
        """Refuse the text of a number or a flag, and a number in place of a flag."""
        for key, value in data.items() if isinstance(data, Mapping) else ():
            kind = cls.model_fields[key].annotation if key in cls.model_fields else None
            if kind in _NUMBERS and isinstance(value, str) and "e" not in value.lower():  # PyYAML reads 1e-3 as a text
                raise ValueError(f"{key} must be a number, not the text {show_value(value)}")
            if kind in _FLAGS and value is not None and not isinstance(value, bool | np.bool_):
                raise ValueError(f"{key} must be True or False, not {show_value(value)}")
        return data

    @abstractmethod
    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        """Divide the tasks of a table among clients; called by `federate`.

        Args:
            table: The tasks: `table.ids`, `table.codes` (the category of each, as an index of `table.names`), `table.solved`.
            clients: Number of clients.
            seed: Seed of all draws.

        Returns:
            The numbers of each client's tasks: an `Assignment`, which depends only on the parameters and the arguments.

        Raises:
            OptionError: If the table has too few tasks for the parameters.
        """

    def count_clients(self, table: TaskTable) -> int | None:
        """Return the number of clients to make if `federate` is called without one.

        Args:
            table: The tasks.

        Returns:
            The number of clients that the tasks or the parameters name; None, the default, if they name none.
        """
        return None

    def list_axes(self) -> frozenset[Axis]:
        """Return the axes in which the sampler makes clients differ with these parameters; by default `axes`.

        Returns:
            A subset of `mixture`, `sizes` and `hardness`.
        """
        return self.axes


class LabelSampler(Sampler):
    """A sampler that skews one label of the tasks; everything else is drawn uniformly."""

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes"})

    label: str = Field(
        default="category",
        description="field in which clients differ: category, hardness (needs labels), or any other field of the tasks",
    )

    def list_axes(self) -> frozenset[Axis]:
        known: dict[str, frozenset[Axis]] = {"category": self.axes, "hardness": frozenset({"hardness", "sizes"})}
        return known.get(self.label, frozenset({"mixture", "sizes", "hardness"}))


class FunctionSampler:
    """A plain function (table, clients, seed, **parameters) that returns an Assignment or one list of task ids per client."""

    axes: frozenset[Axis] = frozenset({"mixture", "sizes", "hardness"})
    needs_labels = False

    def __init__(self, name: str, function: Any, parameters: Mapping[str, Any]) -> None:
        self._name, self._function, self._parameters = name, function, dict(parameters)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return self._parameters

    def count_clients(self, table: TaskTable) -> int | None:
        return None

    def list_axes(self) -> frozenset[Axis]:
        return self.axes

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        result = self._function(table, clients, seed, **self._parameters)
        if isinstance(result, Assignment):
            return result
        if not isinstance(result, Iterable) or isinstance(result, str):
            raise self._refuse(result)
        lists = [ids if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids) for ids in result]
        for ids in lists:
            if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
                raise self._refuse(ids)
        return Assignment.from_lists(table.find_numbers(ids, f"client {number}") for number, ids in enumerate(lists))

    def _refuse(self, found: object) -> OptionError:
        return OptionError(
            f"the sampler {self._name!r} returned {show_value(found)}: it returns an Assignment, or a list of task ids, which are"
            " texts, for each client"
        )


OTHER_NAMES = (("mean_tasks", "tasks_per_client"), ("beta", "alpha"))
"""Parameters and their aliases: a sampler also takes the alias, unless it has a parameter of that name."""


TAKEN = (
    "env_id",
    "partition",
    "clients",
    "seed",
    "split",
    "env",
    "variant",
    "roles",
    "server_overlap",
    "labels",
    "pool",
)
"""Names of arguments of `federate`; a parameter with such a name would never reach the sampler."""


def check_parameter_names(name: str, target: object) -> None:
    """Refuse a sampler with a parameter that has the name of an argument of `federate`."""
    own: Iterable[str] = ()
    if isinstance(target, type) and issubclass(target, Sampler):
        own = target.model_fields
    elif callable(target):
        own = list(inspect.signature(target).parameters)[3:]
    if taken := [key for key in own if key in TAKEN]:
        raise OptionError(
            f"the sampler {name!r} has a parameter {taken[0]!r}, which is an argument of federate: choose another name"
        )


def make_sampler(name: str, parameters: Mapping[str, Any]) -> Sampler | FunctionSampler:
    """The sampler of this name with validated parameters. If it has `mean_tasks`, `tasks_per_client` is an alias of that."""
    target = SAMPLERS.get(name)
    check_parameter_names(name, target)
    given = {key: value for key, value in parameters.items() if value is not None}
    if isinstance(target, type) and issubclass(target, Sampler):
        fields = target.model_fields
        others = [other for own, other in OTHER_NAMES if own in fields and other not in fields]
        _check_names(name, given, [*fields, *others])
        for own, other in OTHER_NAMES:
            if own in fields and other not in fields and other in given:
                if own in given:
                    raise OptionError(f"give {own} or {other}, not both: they mean the same here")
                given[own] = given.pop(other)
        missing = [key for key, info in fields.items() if info.is_required() and key not in given]
        if missing:
            raise OptionError(f"the sampler {name!r} needs {missing[0]} ({fields[missing[0]].description})")
        return target.load(given, f"sampler {name}")
    if callable(target):
        return FunctionSampler(name, target, _complete_parameters(name, target, given))
    raise OptionError(f"the sampler {name!r} is neither a Sampler class nor a function (table, clients, seed, ...)")


def _complete_parameters(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a function sampler with their values, given or by default, as a split file holds them."""
    signature = inspect.signature(function)
    own = list(signature.parameters.values())[3:]
    if not any(one.kind is one.VAR_KEYWORD for one in own):
        _check_names(name, given, [one.name for one in own])
    for one in own:
        if one.default is one.empty and one.name not in given and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            raise OptionError(f"the sampler {name!r} needs {one.name}, which has no default")
    try:
        bound = signature.bind(None, None, None, **given)
    except (
        TypeError
    ):  # it does not take (table, clients, seed): the error of its call names the function's file and line
        return dict(given)
    bound.apply_defaults()
    found = {
        one.name: bound.arguments[one.name] for one in own if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    }
    for key, value in {**found, **{key: given[key] for key in given if key not in found}}.items():
        try:
            found[key] = json.loads(canonical_json(to_plain_numbers(value)))
        except DataError:
            raise OptionError(
                f"the sampler {name!r}: its parameter {key} must be a plain value that a split file can hold, got"
                f" {show_value(value)}"
            ) from None
    return found


def _check_names(name: str, given: Iterable[str], accepted: Sequence[str]) -> None:
    """Refuse parameters that the sampler does not have. This runs before missing parameters are reported."""
    for key in given:
        if key not in accepted:
            guess = find_closest_name(key, accepted)
            hint = f"did you mean {guess!r}?" if guess else f"it takes {join_names(accepted) or 'none'}"
            raise OptionError(f"the sampler {name!r} has no parameter {key!r}: {hint}")


def finds_clients(name: str) -> bool:
    """Return whether the sampler of this name can find the number of clients in the tasks."""
    target = SAMPLERS.get(name) if name in SAMPLERS else None
    return (
        isinstance(target, type) and issubclass(target, Sampler) and target.count_clients is not Sampler.count_clients
    )


def check_whole_number(value: Any, name: str, least: int | None = None) -> int:
    """Check and return an integer of Python or numpy that a caller gave."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise OptionError(f"{name} must be a whole number{bound}, got {show_value(value)}")
    if int(value).bit_length() > MAX_BITS:
        raise OptionError(f"{name} must be a number of at most {MAX_BITS} bits, got {show_value(value)}")
    return int(value)


def check_client_count(clients: Any) -> int:
    """Check and return the number of clients that a caller gave."""
    count = check_whole_number(clients, "clients", least=1)
    if count > MAX_CLIENTS:
        raise OptionError(f"a split has at most {MAX_CLIENTS:,} clients, {count:,} are asked for")
    return count


def dump_parameters(sampler: Sampler | FunctionSampler) -> dict[str, Any]:
    """The parameters as stored in the split file; those that are None are omitted."""
    return {key: value for key, value in sampler.model_dump(mode="json").items() if value is not None}


def sample_clients(sampler: Sampler | FunctionSampler, table: TaskTable, clients: int, seed: int) -> Assignment:
    """Sample an assignment and check that it has `clients` clients, known items and no repeats."""
    clients = check_client_count(clients)
    assignment = sampler.sample(table, clients, seed)
    if not isinstance(assignment, Assignment):
        raise OptionError(
            f"{type(sampler).__name__}.sample returned {show_value(assignment)}: it returns an Assignment, such as"
            " Assignment.from_lists"
        )
    if len(assignment) != clients:
        raise DataError(f"the sampler made {len(assignment):,} clients, {clients:,} were asked for")
    if assignment.items.size and not 0 <= int(np.min(assignment.items)) <= int(np.max(assignment.items)) < len(table):
        raise DataError("the sampler gave out an item that the pool does not hold")
    if assignment.has_repeats():
        raise DataError("the sampler gave one client an item twice")
    return assignment


# ---- feasible sizes ---------------------------------------------------------------------------------------------


def check_pool_size(tasks: int, table: TaskTable) -> None:
    """Raise if a client would need more tasks than the pool has."""
    if tasks > len(table):
        raise OptionError(
            f"{tasks:,} tasks per client are asked for, the pool has {len(table):,}: "
            f"lower tasks_per_client to at most {len(table):,}"
        )


def check_disjoint(table: TaskTable, *, clients: int, tasks: int, name: str) -> None:
    """Raise if the pool has too few tasks for clients without overlap; `name` is the parameter that asks for the tasks."""
    if clients * tasks > len(table):
        most = len(table) // clients
        raise OptionError(
            f"{clients:,} clients x {tasks:,} tasks without overlap need {clients * tasks:,} tasks, the pool has {len(table):,}: "
            + (
                f"lower {name} to at most {most:,} or use fewer clients"
                if most
                else f"use at most {len(table):,} clients"
            )
        )


def check_overlap(table: TaskTable, *, clients: int, tasks: int, overlap: float = 1.0) -> int:
    """Return how many different items are needed if `overlap` clients hold each item; raise if the pool has fewer."""
    needed = max(tasks, int(-(-clients * tasks // overlap)))
    if needed > len(table):
        enough = -(-clients * tasks * 100 // len(table)) / 100
        most = int(overlap * len(table)) // clients
        lower = f"lower tasks per client to {most}" if most else f"use at most {len(table):,} clients"
        raise OptionError(
            f"{clients:,} clients x {tasks:,} tasks at overlap {overlap:g} need {needed:,} tasks, "
            f"the pool has {len(table):,}: raise overlap to {enough:g} or {lower}"
        )
    return needed


# ---- the division of a pool -----------------------------------------------------------------------------------------

DEFAULT_CLIENTS = 10
RESERVED = ("public", "auxiliary", "warmup")


def check_role_sizes(sizes: object) -> dict[str, int]:
    """Check the number of tasks of each role that a caller gave; return the positive ones, in the order of `ROLES`."""
    if not isinstance(sizes, Mapping):
        raise OptionError(f"roles must be a mapping from a role to its number of tasks, got {show_value(sizes)}")
    for name, size in sizes.items():
        if name not in ROLES:
            raise unknown_name_error("role", name, ROLES)
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise OptionError(f"the role {name!r} holds a number of tasks, got {show_value(size)}")
    return {name: int(sizes[name]) for name in ROLES if sizes.get(name)}


class Division(NamedTuple):
    """The assignment, with tasks numbered as in the table, and the task ids of each role."""

    clients: Assignment
    roles: dict[str, tuple[str, ...]]


def divide(
    table: TaskTable,
    sampler: Sampler | FunctionSampler,
    clients: int | None,
    seed: int,
    role_sizes: Mapping[str, int],
    server_overlap: float,
) -> Division:
    """Draw the roles and the clients' tasks. The result depends only on the arguments; `verify` calls this again and compares.

    If `clients` is None, the sampler's `count_clients` gives the number, for the tasks that no role took; its None means 10.
    """
    # 1) roles that exclude client tasks
    free = np.ones(len(table), dtype=bool)
    drawn: dict[str, Ints] = {}
    wanted = {name: role_sizes[name] for name in RESERVED if name in role_sizes}
    if wanted and sum(wanted.values()) >= len(table):
        asked = ", ".join(f"{name} {size:,}" for name, size in wanted.items())
        raise OptionError(
            f"the roles ({asked}) take all {len(table):,} tasks of the pool: lower them, clients need tasks too"
        )
    for name, size in wanted.items():
        left = np.flatnonzero(free)
        drawn[name] = np.sort(left[stream(seed, "role", name).choice(left.size, size)])
        free[drawn[name]] = False

    # 2) the server's tasks that no client may hold
    server = role_sizes.get("server", 0)
    shared = round(server * server_overlap)
    left = np.flatnonzero(free)
    if shared < server and server - shared >= left.size:
        raise OptionError(
            f"the server needs {server - shared:,} tasks that no client holds, and only {left.size:,} are left of the pool: lower"
            " the role or raise server_overlap, clients need tasks too"
        )
    unshared = left[stream(seed, "role", "server/unshared").choice(left.size, server - shared)]
    free[unshared] = False

    # 3) the clients' tasks, among those that are left
    rest = table if free.all() else table.select(free)
    if clients is None:
        found = sampler.count_clients(rest)
        clients = DEFAULT_CLIENTS if found is None else found
    assignment = sample_clients(sampler, rest, clients, seed)

    # 4) the server's tasks that clients hold too
    if server:
        held = np.flatnonzero(assignment.count_copies(len(rest)) > 0)
        if shared > held.size:
            raise OptionError(
                f"the role server needs {shared:,} tasks that clients hold, and they hold {held.size:,}: lower the role or"
                " server_overlap"
            )
        known = held[stream(seed, "role", "server").choice(held.size, shared)]
        drawn["server"] = np.sort(np.concatenate([rest.rows[known], unshared]))
    roles = {name: tuple(table.ids[number] for number in numbers.tolist()) for name, numbers in drawn.items()}
    return Division(assignment.renumber(rest.rows), roles)
