"""The rounds of a run on disk. A round is complete or absent, and each contains the digest of the previous one.

`rounds/0007/` is the state after round 7: `global.bin` (the global state, an encoded message), `round.json` (the note of the
round: its record, its links, its digest) and, after its evaluation, `evaluation.json`. The folder is filled under a temporary
name, synced, and renamed; after a kill or a full disk the previous round is still the newest. Global states of old rounds are
removed and their notes stay, so that the whole run can be checked and its records can be written again.

A note has two digests. `digest` covers all that two runs of one configuration have in common, so both runs have the same chain;
`seal` also covers the times.

Every note contains the digests of the previous note, of the previous round's evaluation, and of the run's inputs. So a change to
any of them breaks the chain at the first round that does not fit, and the error names that round. The chain has no key, so it
does not reveal a change after which every digest was recomputed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import bytes_digest, canonical_json, digest, file_digest
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.files import atomic_folder, format_path, lock_file, read_bytes, read_json, write_atomic
from fedagentgym.base.process import get_logger
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.exchange import StateName
from fedagentgym.federation.message import Message
from fedagentgym.federation.records import (
    ClientKey,
    Digest,
    Record,
    Whole,
    check_evaluation,
    check_record,
    check_totals,
    drop_times,
    fits,
)
from fedagentgym.federation.states import check_stored_state

log = get_logger(__name__)

SCHEMA = "fedagentgym/round-2"
EVALUATION_SCHEMA = "fedagentgym/round-evaluation-1"
_FOLDER = re.compile(r"[0-9]{4,}")


@dataclass(frozen=True)
class Links:
    """The digests that link a round to the rest of the run: those of the run's inputs, of the previous round and its
    evaluation, of the client states in the run's folder, and of the sampled trajectories."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    previous: str | None = None
    previous_evaluation: str | None = None
    states: Mapping[int, str] = field(default_factory=dict)
    trajectories: str | None = None


@dataclass(frozen=True)
class Note:
    """A round without its global state: the content of `round.json`."""

    round: int
    state_digest: str
    heads: Mapping[int, StateName]
    record: Mapping[str, Any]
    links: Links

    def to_plain(self) -> dict[str, Any]:
        """The content of `round.json` without the digest and the seal."""
        return {
            "schema": SCHEMA,
            "round": self.round,
            "inputs": dict(self.links.inputs),
            "previous": self.links.previous,
            "previous_evaluation": self.links.previous_evaluation,
            "state": self.state_digest,
            "heads": {str(client): list(name) for client, name in self.heads.items()},
            "states": {str(client): text for client, text in self.links.states.items()},
            "trajectories": self.links.trajectories,
            "record": dict(self.record),
        }

    @cached_property
    def digest(self) -> str:
        """The digest of the round in the chain."""
        return digest({**self.to_plain(), "record": drop_times(self.record)})


@dataclass(frozen=True)
class Commit(Note):
    """A round with its global state, from which a run continues."""

    state: ServerState


@dataclass(frozen=True)
class CommitStore:
    """The folder `rounds/` of a run."""

    folder: Path

    def write(self, commit: Commit) -> None:
        """Make a round the newest one. A failure changes nothing."""
        plain = {**commit.to_plain(), "digest": commit.digest}
        try:
            with atomic_folder(self.get_path(commit.round)) as part:
                with (part / "global.bin").open("wb") as file:
                    file.writelines(commit.state.message.pieces.iter_buffers())
                (part / "round.json").write_text(canonical_json({**plain, "seal": digest(plain)}), encoding="ascii")
        except DataError as error:
            raise DataError(
                f"round {commit.round} could not be committed ({error}); the round before is intact"
            ) from error

    def get_path(self, number: int) -> Path:
        """The folder of a round."""
        return self.folder / f"{number:04d}"

    def list_rounds(self) -> list[int]:
        """Rounds whose global state exists, oldest first."""
        return [number for number in self.list_notes() if (self.get_path(number) / "global.bin").is_file()]

    def list_notes(self) -> list[int]:
        """Rounds that were committed, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (entry.name for entry in self.folder.iterdir() if _FOLDER.fullmatch(entry.name) and entry.is_dir())
        return sorted(int(name) for name in names if name == f"{int(name):04d}")

    def read(self, number: int) -> Commit:
        """Read a round; check that its global state has the recorded digest and that its note is complete."""
        note = self.read_note(number)
        place = self.get_path(number) / "global.bin"
        data = read_bytes(place)
        if bytes_digest(data) != note.state_digest:
            raise DataError(f"{place}: damaged, its digest is not the recorded one")
        state = ServerState.from_message(Message.decode(data))
        return Commit(number, note.state_digest, note.heads, note.record, note.links, state)

    def read_note(self, number: int) -> Note:
        """The note of a round, checked against its own digest and seal."""
        place = self.get_path(number) / "round.json"
        plain = read_json(place)
        if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
            found = plain.get("schema") if isinstance(plain, dict) else type(plain).__name__
            raise DataError(f"{place}: malformed, not a round that this version reads ({str(found)[:60]!r})")
        note = _parse_note(plain, str(place))
        if note.round != number:
            raise DataError(f"{place}: malformed, it is the note of round {note.round}")
        _check_seal({**note.to_plain(), "digest": note.digest}, plain, place)
        return note

    def write_evaluation(self, note: Note, evaluation: Mapping[str, Any]) -> None:
        """Store the evaluation of a committed round; the next round's note refers to it."""
        plain = _seal_evaluation(note, evaluation)
        write_atomic(
            self.get_path(note.round) / "evaluation.json", canonical_json({**plain, "seal": digest(plain)}) + "\n"
        )

    def read_evaluation(self, note: Note) -> dict[str, Any] | None:
        """The evaluation of a round, or None if it has none."""
        place = self.get_path(note.round) / "evaluation.json"
        if not place.exists():
            return None
        plain = read_json(place)
        if not isinstance(plain, dict) or plain.get("schema") != EVALUATION_SCHEMA:
            raise DataError(f"{place}: malformed, not an evaluation that this version reads")
        evaluation = check_evaluation(plain.get("evaluation"), str(place))
        _check_seal(_seal_evaluation(note, evaluation), plain, place)
        return evaluation

    def keep_only(self, newest: int, best: Collection[int]) -> None:
        """Remove all global states except those of the last `newest` rounds and of the `best` rounds."""
        for number in self.list_rounds()[::-1][newest:]:
            if number not in best:
                (self.get_path(number) / "global.bin").unlink(missing_ok=True)


def identify_evaluation(evaluation: Mapping[str, Any]) -> str:
    """The digest of an evaluation without the time it took."""
    return digest({name: value for name, value in evaluation.items() if name != "seconds"})


def _seal_evaluation(note: Note, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": EVALUATION_SCHEMA,
        "round": note.round,
        "commit": note.digest,
        "evaluation": dict(evaluation),
        "digest": identify_evaluation(evaluation),
    }


def _check_seal(expected: Mapping[str, Any], found: Mapping[str, Any], place: Path) -> None:
    """Check that the content of a file is exactly what is expected, and that its seal matches."""
    sealed = {**expected, "seal": digest(expected)}
    if sealed != found:
        names = [name for name in {**sealed, **found} if sealed.get(name) != found.get(name)]
        raise DataError(f"{place}: damaged, it was changed after it was written ({', '.join(sorted(names))[:100]})")


def _parse_note(plain: Mapping[str, Any], where: str) -> Note:
    """The fields of a note, each checked for type and range."""
    inputs, heads, states = plain.get("inputs"), plain.get("heads"), plain.get("states")
    number = plain.get("round")
    if not isinstance(number, int) or not fits(Whole, number):
        raise DataError(f"{where}: malformed, 'round' is a whole number")
    if not isinstance(inputs, dict) or not all(fits(Digest, value) for value in inputs.values()):
        raise DataError(f"{where}: malformed, 'inputs' are digests by name")
    if not isinstance(heads, dict) or not all(fits(ClientKey, client) for client in heads):
        raise DataError(f"{where}: malformed, 'heads' are the names of client states by client")
    if not isinstance(states, dict) or not all(client in heads and fits(Digest, states[client]) for client in states):
        raise DataError(f"{where}: malformed, 'states' are digests of the client states in 'heads'")
    for name in ("previous", "previous_evaluation", "trajectories"):
        if plain.get(name) is not None and not fits(Digest, plain[name]):
            raise DataError(f"{where}: malformed, {name!r} is a digest or null")
    record, state = check_record(plain.get("record"), f"{where}: 'record'"), plain.get("state")
    if not isinstance(state, str) or record["digest"] != state or record["round"] != number:
        raise DataError(f"{where}: malformed, its record is that of another round or state")
    for name in heads.values():
        if not isinstance(name, list) or not fits(list[Whole], name) or len(name) != 2 or name[0] > number:
            raise DataError(f"{where}: malformed, a client state is named by a round up to {number} and a call")
    links = Links(
        inputs,
        plain.get("previous"),
        plain.get("previous_evaluation"),
        {int(client): text for client, text in states.items()},
        plain.get("trajectories"),
    )
    return Note(number, state, {int(client): StateName(*name) for client, name in heads.items()}, record, links)


Draw = Callable[[int], Sequence[int]]
"""A function that returns the clients that take part in a round, given its number."""


@dataclass(frozen=True)
class Chain:
    """The notes of all rounds, oldest first, and the results of their evaluations."""

    notes: tuple[Note, ...]
    evaluations: Mapping[int, Mapping[str, Any]]

    @property
    def newest(self) -> Note:
        return self.notes[-1]

    def list_records(self) -> list[Record]:
        """The lines of `metrics.jsonl`."""
        return [
            {**note.record, "evaluation": dict(self.evaluations[note.round])}
            if note.round in self.evaluations
            else dict(note.record)
            for note in self.notes
        ]


CONFIGURATION = "configuration"
_UP_TO = re.compile(r"configuration up to round (\d{1,9})")


def extend_inputs(
    inputs: Mapping[str, str], newest: Note, list_shorter: Callable[[], Collection[str]]
) -> dict[str, str]:
    """The inputs of a run that may have been extended, with the configuration that was in force up to each extension.

    `list_shorter` returns the digests of configurations that equal this one except for fewer rounds. Any other configuration is
    left out, so that the chain is refused.
    """
    said = {name: value for name, value in newest.links.inputs.items() if _UP_TO.fullmatch(name)}
    before = newest.links.inputs.get(CONFIGURATION, "")
    if before != inputs[CONFIGURATION]:
        said[f"{CONFIGURATION} up to round {newest.round}"] = before
    shorter = list_shorter() if said else ()
    return {**inputs, **{name: value for name, value in said.items() if value in shorter}}


def _expect_inputs(inputs: Mapping[str, str], number: int) -> dict[str, str]:
    """The inputs that a note of this round must name, given the run's present inputs."""
    ends = {int(match[1]): name for name in inputs if (match := _UP_TO.fullmatch(name)) is not None}
    later = sorted(end for end in ends if end >= number)
    kept = {name: value for name, value in inputs.items() if name not in [ends[end] for end in later]}
    return {**kept, CONFIGURATION: inputs[ends[later[0]]]} if later else kept


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[Callable[[], None]]:
    """Lock the run folder; a second process on the same folder is refused. The `with` block gets a function that raises if the
    folder was moved or removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(
            os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644), "r+b"
        )
    except (OSError, ValueError) as error:
        raise DataError(f"cannot use the run folder {format_path(folder)}: {error}") from error
    with file:
        locked = lock_file(file)
        if locked is False:
            raise DataError(f"another process is working on the run in {format_path(folder)}")
        if locked is None:
            log.warning("the file system of %s has no locks: let no second process work there", format_path(folder))
        held = os.fstat(file.fileno())

        def check_place() -> None:
            try:
                same = os.path.samestat(held, (folder / ".lock").lstat())
            except OSError:
                same = False
            if not same:
                raise DataError(
                    f"the run folder {format_path(folder)} was moved or removed while the run was working: a moved folder"
                    " still holds the rounds that were saved"
                )

        try:
            yield check_place
        except (DataError, OSError):  # a missing file, for example, because the folder is gone
            check_place()
            raise


def read_chain(folder: Path, inputs: Mapping[str, str] | None = None) -> Chain | None:
    """The linked notes of the run in a folder, or None if no round was committed; the error names the first broken link.

    `inputs` are the digests of the run's inputs; without them the notes only have to agree with each other.
    """
    rounds = CommitStore(folder / "rounds")
    numbers = rounds.list_notes()
    if inputs is None and numbers:  # the newest note of an extended run names the inputs of all its rounds
        with contextlib.suppress(FedAgentGymError):  # the loop below reports what is wrong with this note
            newest = rounds.read_note(numbers[-1]).links.inputs
            inputs = newest if any(_UP_TO.fullmatch(name) for name in newest) else None
    notes: list[Note] = []
    evaluations: dict[int, Mapping[str, Any]] = {}
    for place, number in enumerate(numbers):
        try:
            if number != place:
                raise DataError(f"{rounds.get_path(place)} is missing")
            note, before, evaluation = (
                rounds.read_note(number),
                notes[-1] if notes else None,
                evaluations.get(number - 1),
            )
            links = note.links

            # The inputs of a note are those of the run or, if `inputs` is None, those of round 0.
            known = notes[0].links.inputs if inputs is None and notes else inputs
            expected = links.inputs if known is None else _expect_inputs(known, number)
            for name in sorted({*expected, *links.inputs}):
                if expected.get(name) != links.inputs.get(name):
                    raise DataError(f"it was played with another {name} than the present one")

            # A note follows from the previous note, its evaluation and its sums.
            if links.previous != (None if before is None else before.digest):
                raise DataError("it does not follow from the round before: one of the two was changed")
            if links.previous_evaluation != (None if evaluation is None else identify_evaluation(evaluation)):
                raise DataError(f"the evaluation of round {number - 1} is missing or was changed")
            check_totals(note.record, None if before is None else before.record, "its record")
            found = rounds.read_evaluation(note)
        except FedAgentGymError as error:
            raise _name_break(place, error) from error
        notes.append(note)
        if found is not None:
            evaluations[number] = found
    return Chain(tuple(notes), evaluations) if notes else None


def check_evidence(folder: Path, chain: Chain, drawn: Draw) -> None:
    """Compare the files of a run with its chain: global states, client states, trajectories, evaluation episodes, and the
    participants."""
    rounds = CommitStore(folder / "rounds")
    for note in chain.notes:
        try:
            place = rounds.get_path(note.round) / "global.bin"
            if place.exists() and file_digest(place) != note.state_digest:
                raise DataError(f"{place}: damaged, its digest is not the recorded one")
            if note.round and list(drawn(note.round)) != note.record["participants"]:
                raise DataError("its record has other participants than the seed draws")
            _check_file(folder / "trajectories" / f"{note.round:04d}.jsonl", note.links.trajectories)
            episodes = chain.evaluations.get(note.round, {}).get("digest")
            if episodes is not None:
                _check_file(folder / "evaluation" / f"{note.round:04d}.jsonl", episodes)
        except FedAgentGymError as error:
            raise _name_break(note.round, error) from error
    newest = chain.newest
    for client, expected in newest.links.states.items():
        try:
            check_stored_state(folder / "states", client, newest.heads[client], expected)
        except FedAgentGymError as error:
            raise _name_break(newest.round, error) from error


def _name_break(number: int, error: FedAgentGymError) -> DataError:
    return DataError(f"the chain of rounds is broken at round {number}: {error}")


def _check_file(path: Path, expected: str | None) -> None:
    """Check that a file to which a round refers is unchanged, and that one to which it does not refer is absent."""
    if expected is None:
        if path.exists():
            raise DataError(f"{path} does not belong to it")
    elif not path.is_file():
        raise DataError(f"{path} is missing")
    elif file_digest(path) != expected:
        raise DataError(f"{path} was changed after it was written")
