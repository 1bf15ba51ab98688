"""The chain of a run's rounds, checked before the run continues.

Every note contains the digests of the previous note, of that round's evaluation, and of what the run was made from. So a change
to any of them breaks the chain at the first round that does not fit, and that round is named. The notes contain enough to
write `metrics.jsonl` again. Without a key, a chain proves only that no part was changed alone: somebody who recomputes every
digest has made another run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.federation.commits import CommitStore, Note, identify_evaluation
from fedagentgym.federation.records import Record, check_totals
from fedagentgym.federation.states import check_stored_state

Draw = Callable[[int], Sequence[int]]
"""The clients that take part in a round, by its number."""


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
        return [self._make_line(note) for note in self.notes]

    def _make_line(self, note: Note) -> Record:
        evaluation = self.evaluations.get(note.round)
        return {**note.record, **({} if evaluation is None else {"evaluation": dict(evaluation)})}


CONFIGURATION = "configuration"
_UP_TO = re.compile(r"configuration up to round (\d{1,9})")


def extend_inputs(
    inputs: Mapping[str, str], newest: Note, list_shorter: Callable[[], Collection[str]]
) -> dict[str, str]:
    """The inputs of a run that may have been extended: they tell which configuration was in force up to which round.

    `list_shorter` gives the configurations that equal this one except for fewer rounds; any other is unknown, so that the
    chain is refused.
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


def _find_inputs_of_longer_run(rounds: CommitStore) -> Mapping[str, str] | None:
    """The inputs according to the newest note, if they show that the run was extended."""
    numbers = rounds.list_notes()
    try:
        inputs = rounds.read_note(numbers[-1]).links.inputs if numbers else {}
    except FedAgentGymError:
        return None  # the check of all notes reports what is wrong with it
    return inputs if any(_UP_TO.fullmatch(name) for name in inputs) else None


def read_chain(folder: Path, inputs: Mapping[str, str] | None = None) -> Chain | None:
    """The linked notes of the run in a folder, or None if no round was committed; the error names the first broken link.

    `inputs` are the digests of what the run is made from; without them the notes only have to agree with each other.
    """
    rounds = CommitStore(folder / "rounds")
    if inputs is None:
        inputs = _find_inputs_of_longer_run(rounds)
    notes: list[Note] = []
    evaluations: dict[int, Mapping[str, Any]] = {}
    for place, number in enumerate(rounds.list_notes()):
        try:
            if number != place:
                raise DataError(f"{rounds.get_path(place)} is missing")
            note = rounds.read_note(number)
            _check_inputs(note, notes[0].links.inputs if inputs is None and notes else inputs)
            _check_previous(note, notes[-1] if notes else None, evaluations.get(number - 1))
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
            rounds.check_state(note)
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


def _check_inputs(note: Note, inputs: Mapping[str, str] | None) -> None:
    """Raise unless a round was played with the run's present inputs."""
    inputs = None if inputs is None else _expect_inputs(inputs, note.round)
    if inputs is None or inputs == dict(note.links.inputs):
        return
    names = sorted({*inputs, *note.links.inputs})
    changed = next(name for name in names if inputs.get(name) != note.links.inputs.get(name))
    raise DataError(f"it was played with another {changed} than the present one")


def _check_previous(note: Note, before: Note | None, evaluation: Mapping[str, Any] | None) -> None:
    """Raise unless a note refers to the previous note and its evaluation."""
    links = note.links
    if links.previous != (None if before is None else before.digest):
        raise DataError("it does not follow from the round before: one of the two was changed")
    if links.previous_evaluation != (None if evaluation is None else identify_evaluation(evaluation)):
        raise DataError(f"the evaluation of round {note.round - 1} is missing or was changed")
    check_totals(note.record, None if before is None else before.record, "its record")


def _check_file(path: Path, expected: str | None) -> None:
    """Check that a file to which a round refers is unchanged, and that one to which it does not refer is absent."""
    if expected is None:
        if path.exists():
            raise DataError(f"{path} does not belong to it")
    elif not path.is_file():
        raise DataError(f"{path} is missing")
    elif file_digest(path) != expected:
        raise DataError(f"{path} was changed after it was written")
