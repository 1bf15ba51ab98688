"""Recorded episodes on disk: one JSON line an episode, one writer, one reader.

A line holds what `about` says of all episodes of a file (environment, pool, agent, policy, ...) and the episode: its task, seed,
outcome and turns in the order of time. A turn has the observation, the reply with its number of `tokens` and the `segment` of the
episode that holds them, the `acts` that the reply led to (one, in environments of this package), and what these earned. A *brief*
line leaves out what a replay gives back: the seed, observations and admissible actions. Texts may hold halves of characters (lone
surrogates), as where a reply was cut: JSON has an escape for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import check_line, parse_json, read_json_line_texts
from fedagentgym.learning.trajectory import Group, Trajectory, from_plain, to_plain

_EXAMPLE = Trajectory("", 0, (), labels={"any": 0})
_OWN = frozenset({*to_plain(_EXAMPLE), *to_plain(_EXAMPLE, segments=False)})
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False)


class Line(NamedTuple):
    """A line: its place for messages, its episode, its other fields, its text, and whether it is brief."""

    where: str
    trajectory: Trajectory
    about: dict[str, Any]
    text: str
    brief: bool


def format_line(trajectory: Trajectory, about: Mapping[str, Any] | None = None, *, brief: bool = False) -> str:
    """The line of an episode, without its end; `about` adds fields such as a digest.

    Raises:
        DataError: If it could not be read again: a number that is not finite, or a label that JSON does not know.
    """
    plain = to_plain(trajectory, segments=False, admissible=not brief)
    if brief:
        del plain["seed"], plain["last"]
        for turn in plain["turns"]:
            del turn["observation"]
    try:
        return _ENCODER.encode({**(about or {}), **plain})
    except (TypeError, ValueError) as error:
        raise DataError(f"an episode of {trajectory.task!r} cannot be written: {error}") from None


def read_lines(path: str | Path) -> Iterator[Line]:
    """Every episode of a file; nothing is skipped, and one line is held at a time.

    Raises:
        DataError: At a line that is no episode, or not ended.
    """
    for where, plain, text in read_json_line_texts(path, halves=True):
        yield _parse(where, plain, text)


def parse_lines(texts: Iterable[str], where: str) -> Iterator[Line]:
    """The same for lines that were read already, without their ends; `where` is for messages."""
    for number, text in enumerate(texts, start=1):
        place = f"{where}, line {number}"
        check_line(text.encode("utf-8", "surrogatepass"), place)
        yield _parse(place, parse_json(text, place, halves=True), text)


def _parse(where: str, plain: Any, text: str) -> Line:
    if not isinstance(plain, dict):
        raise DataError(f"{where}: an episode is a JSON object, found {type(plain).__name__}")
    brief, turns = "seed" not in plain, plain.get("turns")
    if brief:
        of_turns = (turn for turn in turns if isinstance(turn, dict)) if isinstance(turns, list) else ()
        if "last" in plain or any("observation" in turn or "admissible" in turn for turn in of_turns):
            raise DataError(
                f"{where}: not a trajectory: without a seed a line is brief, and holds no observations either"
            )
    elif "last" not in plain:
        raise DataError(f"{where}: not a trajectory: with a seed a line is whole, and its last observation is missing")
    if "segments" in plain:
        raise DataError(f"{where}: not a trajectory: the tokens of an episode do not belong in its line")
    try:
        trajectory = from_plain(plain, brief=brief)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Line(where, trajectory, {name: value for name, value in plain.items() if name not in _OWN}, text, brief)


def group_by_task(trajectories: Iterable[Trajectory]) -> tuple[Group, ...]:
    """Consecutive episodes of one task, as groups."""
    return tuple(tuple(members) for _, members in groupby(trajectories, key=lambda one: one.task))
