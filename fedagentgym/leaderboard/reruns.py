"""The results of maintainers who ran an entry again: stored next to the result, in its `verification.json`.

They run the entry themselves, on the public tasks and on those of the secret twin, and pack both. Of these results only the
numbers are kept: the episodes of a secret twin would reveal its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedagentgym.base.errors import OptionError
from fedagentgym.base.files import format_path
from fedagentgym.leaderboard.entries import identify_agent
from fedagentgym.leaderboard.record import (
    VERIFICATION,
    Manifest,
    Rerun,
    Verification,
    read_document,
    read_manifest,
)
from fedagentgym.leaderboard.twins import name_twin


def describe_rerun(result: Path, again: Sequence[Path], by: str) -> Rerun:
    """Compare own results with a submitted one; each must be of the same entry, on its suite or on the twin."""
    submitted, found = read_manifest(result), Rerun(date="", by=by)
    for folder in again:
        made = read_manifest(folder)
        check_same_entry(submitted, made, folder)
        if made.suite == submitted.suite:
            changes: dict[str, object] = {"public": made.overall}
        elif made.suite.name == name_twin(submitted.suite.name):
            changes = {"secret": made.overall, "secret_suite": made.suite.digest}
        else:
            raise OptionError(
                f"{format_path(folder)} is of {made.suite.name}: neither the suite of {format_path(result)}, "
                f"{submitted.suite.name}, nor its secret twin"
            )
        found = found.model_copy(update={**changes, "date": max(found.date, made.made.date)})
    return found


def check_same_entry(submitted: Manifest, made: Manifest, folder: Path) -> None:
    """Refuse a result of another agent or method."""
    first, second = submitted.entry, made.entry
    same = identify_agent(first.agent) == identify_agent(second.agent) and first.method == second.method
    if first.method is None:
        same = same and [cell.policy for cell in submitted.cells] == [cell.policy for cell in made.cells]
    if not same:
        raise OptionError(f"{format_path(folder)} was not played by the entry {first.name!r}, but by {second.name!r}")


def find_rerun(result: Path, manifest: str) -> Rerun | None:
    """The earlier findings about the same manifest, if any."""
    place = result / VERIFICATION
    if not place.is_file():
        return None
    before = read_document(Verification, place)
    return before.rerun if before.manifest == manifest else None
