"""The rounds of a run on disk. A round is there whole or not at all, and whatever is read is checked against its digest.

`rounds/0007/` is the state after round 7: `global.bin` (the global state, an encoded message) and `round.json` (its digest,
the names of the clients' states, the round's record). The folder is filled beside its place, synced, and renamed; a kill or
a full disk in between leaves the round before as the newest. `rounds/0000/` is the state before round 1.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import bytes_digest, canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import atomic_folder, read_bytes, read_json
from fedagentgym.federation.exchange import StateName
from fedagentgym.federation.message import Message
from fedagentgym.federation.server_state import ServerState

SCHEMA = "fedagentgym/round-1"


@dataclass(frozen=True)
class Commit:
    """What a run goes on from."""

    round: int
    state: ServerState
    heads: Mapping[int, StateName]
    record: Mapping[str, Any]


class CommitStore:
    """The folder `rounds/` of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, commit: Commit) -> None:
        """Make a round the newest one. On failure nothing has changed."""
        header = {
            "schema": SCHEMA,
            "round": commit.round,
            "digest": commit.state.digest,
            "heads": {str(client): list(name) for client, name in commit.heads.items()},
            "record": commit.record,
        }
        place = self.folder / f"{commit.round:04d}"
        try:
            with atomic_folder(place) as part:
                with (part / "global.bin").open("wb") as file:
                    file.writelines(commit.state.message.pieces.iter_buffers())
                (part / "round.json").write_text(canonical_json(header), encoding="ascii")
        except DataError as error:
            raise DataError(
                f"round {commit.round} could not be committed ({error}); the round before is intact"
            ) from error

    def list_rounds(self) -> list[int]:
        """Rounds that are there, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.folder.iterdir() if entry.name.isdecimal() and entry.is_dir())

    def read_latest(self) -> Commit | None:
        """The newest round, or None in a new run."""
        numbers = self.list_rounds()
        return self.read(numbers[-1]) if numbers else None

    def read(self, number: int) -> Commit:
        """A round, checked: its bytes have the recorded digest and its header is complete."""
        place = self.folder / f"{number:04d}"
        header = read_json(place / "round.json")
        try:
            if header["schema"] != SCHEMA or header["round"] != number:
                raise DataError(f"{place}: not a round that this version reads ({header['schema']!r})")
            heads = {int(client): StateName(*map(int, name)) for client, name in header["heads"].items()}
            expected, record = header["digest"], dict(header["record"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{place / 'round.json'}: malformed, {type(error).__name__} {error}") from None
        data = read_bytes(place / "global.bin")
        if bytes_digest(data) != expected:
            raise DataError(f"{place / 'global.bin'}: damaged, its digest is not the recorded one")
        return Commit(number, ServerState.from_message(Message.decode(data)), heads, record)

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Remove all rounds but these."""
        kept = set(numbers)
        for number in self.list_rounds():
            if number not in kept:
                doomed = (self.folder / f"{number:04d}").rename(self.folder / f".{number:04d}.old.part")
                shutil.rmtree(doomed, ignore_errors=True)

    def remove_partial(self) -> None:
        """Remove what a killed process left half-written."""
        for entry in self.folder.glob(".*.part") if self.folder.is_dir() else ():
            shutil.rmtree(entry, ignore_errors=True)
