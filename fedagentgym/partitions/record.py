"""A client split as it is stored: an assignment of tasks and variants to clients, its provenance, and its digests.

A client split is a value that people publish and cite. Its digest covers everything that determines what a client plays: the
environment and its options, the digest of the pool, sampler, parameters and seed, roles, and one digest per client over its
task ids and its variant. The date and the library versions are stored too, but not covered by the digest.

A matching digest proves little about a file from someone else, since anyone who changes a field can recompute the digest. Every
field of the header therefore has a type and a range, and other values are refused before anything is computed from them.
Saving makes the same checks, so that no split is written that could not be read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OutOfRangeError, show_value
from fedagentgym.base.files import check_format
from fedagentgym.base.shorten import show_fields
from fedagentgym.envs.variants import Plain
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.labels import Labels

SCHEMA = "fedagentgym/client-split/1"
_PIECE = 1 << 24
ROLES = ("public", "auxiliary", "server", "warmup")


@dataclass(frozen=True, eq=False)
class SplitRecord:
    """A division of a pool as it is stored; `ClientSplit.record` is one.

    Attributes:
        env_id: Id of the environment.
        env_split: The split whose tasks are divided.
        env_options: Options of the environment, without paths.
        pool_digest: Digest of the pool.
        sampler: Name of the sampler.
        parameters: Parameters of the sampler.
        seed: Seed of everything that was random.
        clients: The tasks of each client, as indices of `ids`.
        ids: Sorted ids of the tasks; None for a split that was read from a folder or zip, until the pool is opened.
        variants: The clients' variants, None for a client that plays the unchanged environment.
        variant: The variant argument of `federate` in full: its kind and parameters. None without variants.
        roles: Ids of the tasks that were set aside, by role.
        server_overlap: Share of the server's tasks that clients hold as well.
        evaluation: Names of the evaluation splits, which are never divided.
        labels: The tasks that count as solved, if the sampler needed labels or the caller gave them.
        provenance: Versions and date; not part of the digest.
        stored_digests: The clients' digests that were read with the arrays of a split; its clients are checked against them.
    """

    env_id: str
    env_split: str
    env_options: Mapping[str, Any]
    pool_digest: str
    sampler: str
    parameters: Mapping[str, Any]
    seed: int
    clients: Assignment
    ids: Sequence[str] | None
    variants: Sequence[Plain | None]
    variant: Plain | None = None
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    server_overlap: float = 1.0
    evaluation: tuple[str, ...] = ()
    labels: Labels | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    stored_digests: bytes | None = None

    def __repr__(self) -> str:
        return show_fields(self)

    def __len__(self) -> int:
        return len(self.clients)

    def get_tasks(self, client: int) -> tuple[str, ...]:
        """Return the task ids of a client. If the split has `stored_digests`, the ids are checked against the client's digest.

        Args:
            client: Number of the client.

        Returns:
            The ids, sorted.

        Raises:
            OutOfRangeError: If there is no such client.
            DataError: If the ids do not match the digest.
        """
        if isinstance(client, bool) or not isinstance(client, int | np.integer) or not 0 <= client < len(self):
            raise OutOfRangeError(
                f"there is no client {show_value(client)}: the split has {len(self):,}, numbered 0 to {len(self) - 1:,}"
            )
        ids = self._lookup_ids(client)
        if self.stored_digests is not None:
            expected = self.stored_digests[32 * client : 32 * client + 32]
            if compute_client_digest(ids, self.variants[client]) != expected:
                raise DataError(
                    f"client {client} of the split does not match its digest: the file was changed, or it belongs to another pool"
                )
        return ids

    def iter_tasks(self) -> Iterator[tuple[str, ...]]:
        """The task ids of every client, in order."""
        return (self._lookup_ids(client) for client in range(len(self)))

    def check_clients(self) -> None:
        """Check every client of a stored split against its digest, and that the tasks of every client ascend without repeats."""
        if self.stored_digests is not None:
            for client in range(len(self)):
                self.get_tasks(client)
        if (unordered := find_unordered(self.clients)) is not None:
            raise DataError(
                f"client {unordered} of the split does not hold its tasks in order, each once: it was changed"
            )

    def to_header(self) -> dict[str, Any]:
        """Everything that the digest covers except the clients' tasks and variants."""
        return {
            "schema": SCHEMA,
            "env": {"id": self.env_id, "split": self.env_split, "options": dict(self.env_options)},
            "pool_digest": self.pool_digest,
            "sampler": {"name": self.sampler, "parameters": dict(self.parameters)},
            "seed": self.seed,
            "variant": None if self.variant is None else dict(self.variant),
            "server_overlap": self.server_overlap,
            "evaluation": list(self.evaluation),
            "labels": None if self.labels is None else self.labels.to_record(),
            "roles": {name: list(ids) for name, ids in self.roles.items()},
        }

    @cached_property
    def client_digests(self) -> bytes:
        """The digests of all clients, joined; each has 32 bytes."""
        if self.stored_digests is not None:
            return self.stored_digests
        return b"".join(
            compute_client_digest(ids, variant) for ids, variant in zip(self.iter_tasks(), self.variants, strict=True)
        )

    @cached_property
    def digest(self) -> str:
        """sha256 over the header and the clients' digests."""
        covered = canonical_json(self.to_header()).encode("ascii") + b"\n" + self.client_digests
        return "sha256:" + hashlib.sha256(covered).hexdigest()

    def _lookup_ids(self, client: int) -> tuple[str, ...]:
        if self.ids is None:
            raise DataError("this split names its tasks by number: open it together with its pool (load_client_split)")
        numbers = self.clients[client].tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(self.ids):
            raise DataError(
                f"client {client} of the split holds a task number that the pool does not have: it was changed"
            )
        return tuple(map(self.ids.__getitem__, numbers))


def compute_client_digest(ids: Sequence[str], variant: Plain | None) -> bytes:
    text = "\n".join([*ids, "null" if variant is None else canonical_json(dict(variant))])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def find_unordered(clients: Assignment) -> int | None:
    """The first client whose items do not ascend strictly. Items are checked in pieces, since a file may hold very many."""
    for start in range(0, max(len(clients.items) - 1, 0), _PIECE):
        piece = np.asarray(clients.items[start : start + _PIECE + 1])
        places = np.flatnonzero(piece[1:] <= piece[:-1]) + start + 1
        owners = np.searchsorted(clients.offsets, places, side="right") - 1
        inside = np.flatnonzero(clients.offsets[owners] < places)
        if inside.size:
            return int(owners[inside[0]])
    return None


def find_outside(clients: Assignment, tasks: int) -> int | None:
    """The first client with a task number that is out of range."""
    for start in range(0, len(clients.items), _PIECE):
        piece = np.asarray(clients.items[start : start + _PIECE])
        if int(piece.min()) < 0 or int(piece.max()) >= tasks:
            place = start + int(np.flatnonzero((piece < 0) | (piece >= tasks))[0])
            return int(np.searchsorted(clients.offsets, place, side="right")) - 1
    return None


# ---- the header, checked field by field -------------------------------------------------------------------------------


MAX_CLIENTS = 10_000_000
MAX_ASSIGNMENTS = 1_000_000_000
MAX_SEED = 1 << 128
_MAX_NAME = 200
_MAX_VALUES = 1 << 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FIELDS: dict[str, tuple[type, ...]] = {
    "env": (dict,),
    "pool_digest": (str,),
    "sampler": (dict,),
    "seed": (int,),
    "variant": (dict, type(None)),
    "server_overlap": (int, float),
    "evaluation": (list,),
    "labels": (dict, type(None)),
    "roles": (dict,),
}
_NESTED_FIELDS: tuple[tuple[str, str, type], ...] = (
    ("env", "id", str),
    ("env", "split", str),
    ("env", "options", dict),
    ("sampler", "name", str),
    ("sampler", "parameters", dict),
)
_BESIDE = ("schema", "digest", "provenance", "variants", "clients", "assignments")
"""The other fields of a split file."""


def check_header(data: Any, where: str) -> dict[str, Any]:
    """Check the JSON object of a split file and return its fields of a `SplitRecord`, except the clients and their variants."""
    data = data if isinstance(data, dict) else {}
    check_format(data.get("schema"), SCHEMA, where, "a split file")
    for name, kinds in _FIELDS.items():
        if name not in data:
            raise DataError(f"{where}: the field {name!r} is missing")
        if not isinstance(data[name], kinds) or isinstance(data[name], bool):
            raise DataError(f"{where}: the field {name!r} has the wrong type ({type(data[name]).__name__})")
    for place, name, kind in _NESTED_FIELDS:
        if not isinstance(data[place].get(name), kind):
            raise DataError(f"{where}: the field '{place}.{name}' is missing or has the wrong type")
    for name in _FIELDS:
        if (fault := _find_fault(name, data[name])) is not None:
            raise DataError(f"{where}: the field {name!r} {fault}")
    if unknown := sorted(set(data) - {*_FIELDS, *_BESIDE}):
        raise DataError(f"{where}: the field {unknown[0][:80]!r} is not part of a split file")
    provenance = data.get("provenance", {})
    if not isinstance(provenance, dict) or _find_value_fault(provenance) is not None:
        raise DataError(f"{where}: the field 'provenance' must hold names and plain values")
    labels = None if data["labels"] is None else Labels.from_record(data["labels"])
    canonical_json({name: data[name] for name in _FIELDS})  # raises if a value has no canonical form
    return {
        "env_id": data["env"]["id"],
        "env_split": data["env"]["split"],
        "env_options": data["env"]["options"],
        "pool_digest": data["pool_digest"],
        "sampler": data["sampler"]["name"],
        "parameters": data["sampler"]["parameters"],
        "seed": data["seed"],
        "variant": data["variant"],
        "roles": {name: tuple(ids) for name, ids in data["roles"].items()},
        "server_overlap": data["server_overlap"],
        "evaluation": tuple(data["evaluation"]),
        "labels": labels,
        "provenance": provenance,
    }


def is_id_list(row: Any) -> bool:
    """Return whether a value is a list of task ids."""
    return isinstance(row, list) and all(isinstance(name, str) for name in row)


def _find_fault(name: str, value: Any) -> str | None:
    """Return the fault of a field's value, whose type was checked before; None if it has none."""
    match name:
        case "env":
            if set(value) != {"id", "split", "options"}:
                return "must hold id, split and options alone"
        case "pool_digest":
            if not _DIGEST.fullmatch(value):
                return f"must be sha256: and 64 hexadecimal digits, it is {value[:80]!r}"
        case "sampler":
            if set(value) != {"name", "parameters"}:
                return "must hold name and parameters alone"
            if not value["name"]:
                return "must have a name"
        case "seed":
            if abs(value) >= MAX_SEED:
                return "must be a whole number of at most 128 bits"
        case "server_overlap":
            if not 0.0 <= value <= 1.0:
                return f"must lie between 0 and 1, it is {str(value)[:40]}"
        case "evaluation":
            if not is_id_list(value) or len(set(value)) < len(value) or len(value) > 100:
                return "must be a list of different names of splits"
        case "labels":  # `Labels.from_record` checks the other fields of the labels
            return None if value is None else _find_value_fault(value.get("source"))
        case "roles":
            for role, ids in value.items():
                if role not in ROLES:
                    return f"names a role {role[:80]!r}: the roles are {', '.join(ROLES)}"
                if not is_id_list(ids):
                    return "is malformed: every role must hold a list of task ids"
                if len(set(ids)) < len(ids):
                    return f"names a task twice in the role {role!r}"
            return None
    return _find_value_fault(value)


def _find_value_fault(value: Any) -> str | None:
    """Return the fault of a plain value that should be small: its size, or a text with characters that cannot be printed."""
    waiting = [value]
    seen = 0
    while waiting:
        item = waiting.pop()
        seen += 1
        if seen > _MAX_VALUES:
            return f"holds more than {_MAX_VALUES:,} values"
        if isinstance(item, dict):
            if any(len(name) > _MAX_NAME for name in item):
                return f"holds a name of more than {_MAX_NAME} characters"
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and not item.replace("\n", "").replace("\t", "").isprintable():
            return f"holds a character that cannot be printed: {item[:80]!r}"
    return None
