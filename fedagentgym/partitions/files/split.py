"""The split file: an assignment of tasks and variants to clients, its provenance, and the digests that prove it.

A client split is a value that people publish and cite. Its digest covers everything that determines what a client plays: the
environment and its options, the digest of the pool, sampler, parameters and seed, roles, and one digest per client over its
task ids and its variant. The date and the library version are stored beside the digest, not covered by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OutOfRangeError, show_value
from fedagentgym.envs.variants import Plain
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.files.labels import Labels

SCHEMA = "fedagentgym/client-split/1"
_PIECE = 1 << 24
ROLES = ("public", "auxiliary", "server", "warmup")


class NoVariants(Sequence[None]):
    """The clients' variants if all play the unchanged environment."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [None] * len(range(*index.indices(self._count)))
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return None


@dataclass(frozen=True, eq=False)
class SplitRecord:
    """One division of one pool as stored. `clients` numbers the tasks by their index among the sorted `ids`."""

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

    def __len__(self) -> int:
        return len(self.clients)

    def get_tasks(self, client: int) -> tuple[str, ...]:
        """The task ids of a client; those of a stored split are checked against the client's digest."""
        client = self.validate_client(client)
        ids = self._lookup_ids(client)
        if self.stored_digests is not None:
            expected = self.stored_digests[32 * client : 32 * client + 32]
            if compute_client_digest(ids, self.variants[client]) != expected:
                raise DataError(
                    f"client {client} of the split does not match its digest: the file was changed, or it belongs to another pool"
                )
        return ids

    def validate_client(self, client: int) -> int:
        """The number of a client as a plain integer; the error names the valid numbers."""
        if isinstance(client, bool) or not isinstance(client, int | np.integer) or not 0 <= client < len(self):
            raise OutOfRangeError(
                f"there is no client {show_value(client)}: the split has {len(self):,}, numbered 0 to {len(self) - 1:,}"
            )
        return int(client)

    def iter_tasks(self) -> Iterator[tuple[str, ...]]:
        """The task ids of every client, in order."""
        return (self._lookup_ids(client) for client in range(len(self)))

    def check_clients(self) -> None:
        """Compare every client of a stored split with its digest, and check that its tasks ascend without repeats."""
        if self.stored_digests is not None:
            for client in range(len(self)):
                self.get_tasks(client)
        if (odd := find_unordered(self.clients)) is not None:
            raise DataError(f"client {odd} of the split does not hold its tasks in order, each once: it was changed")

    def with_ids(self, ids: Sequence[str]) -> SplitRecord:
        """This record with the sorted ids of its pool, which a stored folder leaves out."""
        return self if self.ids is not None else replace(self, ids=ids)

    def to_header(self) -> dict[str, Any]:
        """Everything that the digest covers except the assignment."""
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
        """32 bytes per client."""
        if self.stored_digests is not None:
            return self.stored_digests
        return b"".join(
            compute_client_digest(ids, variant) for ids, variant in zip(self.iter_tasks(), self.variants, strict=True)
        )

    @cached_property
    def digest(self) -> str:
        return record_digest(self.to_header(), self.client_digests)

    def _lookup_ids(self, client: int) -> tuple[str, ...]:
        if self.ids is None:
            raise DataError("this split holds numbers only: open it together with its pool (load_client_split)")
        numbers = self.clients[client].tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(self.ids):
            raise DataError(
                f"client {client} of the split holds a task number that the pool does not have: it was changed"
            )
        return tuple(map(self.ids.__getitem__, numbers))


def compute_client_digest(ids: Sequence[str], variant: Plain | None) -> bytes:
    text = "\n".join([*ids, "null" if variant is None else canonical_json(dict(variant))])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def record_digest(header: Mapping[str, Any], client_digests: bytes) -> str:
    return "sha256:" + hashlib.sha256(canonical_json(header).encode("ascii") + b"\n" + client_digests).hexdigest()


def find_unordered(clients: Assignment) -> int | None:
    """The first client whose items do not ascend strictly; checked in pieces, since a file may hold very many."""
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
