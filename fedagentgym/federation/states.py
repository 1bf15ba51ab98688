"""Client states, stored where they outlive every worker.

Each machine that stores client states has one store: the server with the in-process backend, each client's own machine in a
deployment. A state is named by its (round, call) and never changed. `commit` writes the states to which a round's commit refers.
`prune` keeps the states of the rounds whose global states are kept, so that a run can continue from each of these rounds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fedagentgym.base.encoding import bytes_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import open_plain, read_bytes, write_atomic
from fedagentgym.federation.exchange import StateName

Heads = Mapping[int, StateName]
_SEAL = len(bytes_digest(b""))
_FILE = re.compile(r"\A(\d{4,})-(\d{3,})\.(?:state|answer)")


class StateStore:
    """Client states by client and call, which outlive every worker. A backend that stores client states derives from this class.

    Args:
        folder: Where states are written; by default they live in memory.
        write_through: Whether every state is written at once, instead of with the commit of its round.

    Raises:
        DataError: If `write_through` is set without a folder.
    """

    def __init__(self, folder: Path | None = None, *, write_through: bool = False) -> None:
        if write_through and folder is None:
            raise DataError("a store that writes through needs a folder")
        self._folder = folder
        self._write_through = write_through
        self._memory: dict[tuple[int, StateName], bytes] = {}
        self._stored: set[tuple[int, StateName]] = set()
        """The clients and calls that have a file."""
        for file in folder.glob("*/*") if folder is not None else ():
            if file.parent.name.isdecimal() and (found := _FILE.fullmatch(file.name)) is not None:
                self._stored.add((int(file.parent.name), StateName(int(found[1]), int(found[2]))))

    def get(self, client: int, name: StateName | None) -> bytes | None:
        """The bytes of a state; None if `name` is None, as for a client that has no state yet."""
        if name is None:
            return None
        found = self._memory.get((client, name))
        if found is None:
            if self._folder is None:
                raise DataError(f"client {client} has no state {name}")
            found = _read_verified(_locate(self._folder, client, name))
        return found

    def put(self, client: int, name: StateName, state: bytes | None) -> None:
        """Keep the state that a call made; `state` is None if the call did not change it."""
        if state is None:
            return
        if self._write_through:
            self._write(client, name, state)
        else:
            self._memory[client, name] = state

    def put_answer(self, client: int, name: StateName, request: str, answer: bytes) -> None:
        """Store the whole reply to a request, so that a repeated request gets the same reply without running again."""
        self._write(client, name, request.encode("ascii") + b"\n" + answer, "answer")

    def get_answer(self, client: int, name: StateName, request: str) -> bytes | None:
        """The stored reply to the request with this digest; None if there is none."""
        if self._folder is None or not (path := _locate(self._folder, client, name, "answer")).is_file():
            return None
        asked, _, answer = _read_verified(path).partition(b"\n")
        return answer if asked == request.encode("ascii") else None

    def commit(self, heads: Heads) -> None:
        """Write the states to which the next commit refers."""
        for client, name in heads.items():
            if self._folder is not None and (client, name) in self._memory:
                self._write(client, name, self._memory[client, name])

    def prune(self, rounds: Iterable[Heads]) -> None:
        """Remove the states to which none of these rounds refers."""
        kept = {head for heads in rounds for head in heads.items()}
        if self._folder is None:
            self._memory = {key: state for key, state in self._memory.items() if key in kept}
        else:
            self._memory.clear()
            self._remove({key for key in self._stored if key not in kept})

    def prune_client(self, client: int, base: StateName | None, kept: Collection[StateName]) -> None:
        """Remove old states on a client's own machine. Once a later call starts from `base`, older states are needed only for the
        rounds that the server keeps (`kept`)."""
        if base is not None:
            old = {key for key in self._stored if key[0] == client and key[1] < base}
            self._remove({key for key in old if key[1] not in kept})

    def _write(self, client: int, name: StateName, data: bytes, suffix: str = "state") -> None:
        seal = bytes_digest(data).encode("ascii")
        write_atomic(_locate(self._folder, client, name, suffix), seal + b"\n" + data)
        self._stored.add((client, name))

    def _remove(self, keys: set[tuple[int, StateName]]) -> None:
        for client, name in keys:
            for suffix in ("state", "answer"):
                _locate(self._folder, client, name, suffix).unlink(missing_ok=True)
        self._stored -= keys


def read_state_digests(folder: Path, heads: Heads, before: Heads, known: Mapping[int, str]) -> dict[int, str]:
    """The digests of the client states in a folder; digests of unchanged states are taken from `known`."""
    found = {}
    for client, name in sorted(heads.items()):
        if before.get(client) == name and client in known:
            found[client] = known[client]
        elif (path := _locate(folder, client, name)).is_file():
            with open_plain(path) as file:
                found[client] = file.read(_SEAL).decode("ascii", "replace")
    return found


def check_stored_state(folder: Path, client: int, name: StateName, expected: str) -> None:
    """Raise unless the folder has the state of a client with this digest."""
    path = _locate(folder, client, name)
    if bytes_digest(_read_verified(path)) != expected:
        raise DataError(f"{path}: the stored state differs from the one that the round refers to")


def _locate(folder: Path | None, client: int, name: StateName, suffix: str = "state") -> Path:
    assert folder is not None, "a store in memory has no files"
    return folder / f"{client:06d}" / f"{name}.{suffix}"


def _read_verified(path: Path) -> bytes:
    seal, _, data = read_bytes(path).partition(b"\n")
    if seal != bytes_digest(data).encode("ascii"):
        raise DataError(f"{path}: the stored {path.suffix[1:]} is damaged, its digest does not match")
    return data
