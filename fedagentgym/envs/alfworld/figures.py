"""The counts that generated houses follow, read once from the package's data file.

`data/alfred_figures.json` holds what the generator needs of the statistics of ALFRED's scenes and trajectories: the
receptacles of its 120 scenes, which objects a room holds and where they start, which combinations of object and destination
occur for each task type, what may hold what, how ids are spelled. All weights are integers, so that a draw is the same on
every machine. The file is derived from the counts by `tests/envs/alfworld/carry_figures.py`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Generic, TypeVar

from fedagentgym.base.streams import Stream

T = TypeVar("T")
ROOMS = ("kitchen", "living_room", "bedroom", "bathroom")


class WeightedChoice(Generic[T]):
    """Outcomes with integer weights, drawn with one number of a stream."""

    __slots__ = ("_ends", "outcomes")

    def __init__(self, pairs: Iterable[tuple[T, int]]) -> None:
        kept = [(outcome, weight) for outcome, weight in pairs if weight > 0]
        self.outcomes = tuple(outcome for outcome, _ in kept)
        self._ends = list(accumulate(weight for _, weight in kept))

    def __bool__(self) -> bool:
        return bool(self.outcomes)

    def draw(self, stream: Stream) -> T:
        return self.outcomes[bisect_right(self._ends, stream.integers(self._ends[-1]))]


@dataclass(frozen=True)
class ObjectStatistics:
    """The occurrences of a type of object in a kind of room."""

    scenes: int
    """The number of scenes that have any, among the 30 of the kind of room."""
    copies: WeightedChoice[int]
    places: Mapping[str, int]
    """Receptacle kind -> weight of starting there, among the kinds that the room has."""
    floor: int
    """The number of objects in a thousand that lie on the floor, out of reach."""


@dataclass(frozen=True)
class Scene:
    """One of the 120 scenes: how often it was used and how many receptacles of each kind it has."""

    number: int
    room: str
    trials: int
    receptacles: Mapping[str, int]


@dataclass(frozen=True)
class Extent:
    """The ranges of coordinates of a room's receptacles (centimetres) and standing points (steps of 25 cm)."""

    x: tuple[int, int]
    z: tuple[int, int]
    loc_x: tuple[int, int]
    loc_z: tuple[int, int]


@dataclass(frozen=True)
class SceneStatistics:
    """Everything in the data file."""

    scenes: Mapping[int, Scene]
    unseen: tuple[int, ...]
    spare: tuple[int, ...]
    objects: Mapping[str, Mapping[str, ObjectStatistics]]
    lamps: Mapping[str, Mapping[str, int]]
    combinations: Mapping[str, Mapping[str, Mapping[tuple[str, str], int]]]
    """Category -> room -> (object, destination or lamp) -> weight."""
    target_copies: Mapping[str, WeightedChoice[int]]
    may_hold: Mapping[str, frozenset[str]]
    traits: Mapping[str, frozenset[str]]
    openable: Mapping[str, tuple[int, int]]
    """Receptacle kind -> (how many can be opened, of how many)."""
    shared: Mapping[str, int]
    """Room -> how many receptacles of a thousand share their standing point with another one."""
    shared_pairs: Mapping[tuple[str, str], int]
    heights: Mapping[str, tuple[int, int, int]]
    extent: Mapping[str, Extent]
    horizons: WeightedChoice[int]

    def get_scenes(self, room: str) -> list[Scene]:
        return [scene for scene in self.scenes.values() if scene.room == room]


@cache
def load_statistics() -> SceneStatistics:
    """The figures, read at first use."""
    raw = json.loads(
        files("fedagentgym.envs.alfworld").joinpath("data/alfred_figures.json").read_text(encoding="utf-8")
    )
    return SceneStatistics(
        scenes={
            int(number): Scene(int(number), room, trials, kinds)
            for room in ROOMS
            for number, (trials, kinds) in raw["scenes"][room].items()
        },
        unseen=tuple(raw["unseen"]),
        spare=tuple(raw["spare"]),
        objects={
            room: {
                kind: ObjectStatistics(
                    row["scenes"], WeightedChoice(enumerate(row["copies"], 1)), row["places"], row["floor"]
                )
                for kind, row in raw["objects"][room].items()
            }
            for room in ROOMS
        },
        lamps=raw["lamps"],
        combinations={
            category: {
                room: {_split_pair(name, ">"): weight for name, weight in weights.items()}
                for room, weights in by_room.items()
            }
            for category, by_room in raw["combinations"].items()
        },
        target_copies={category: WeightedChoice(enumerate(row, 1)) for category, row in raw["target_copies"].items()},
        may_hold={kind: frozenset(kinds) for kind, kinds in raw["may_hold"].items()},
        traits={trait: frozenset(kinds) for trait, kinds in raw["traits"].items()},
        openable={kind: (row[0], row[1]) for kind, row in raw["openable"].items()},
        shared={room: round(1000 * share) for room, share in raw["shared"].items()},
        shared_pairs={_split_pair(name, "+"): count for name, count in raw["shared_pairs"].items()},
        heights={kind: (row[0], row[1], row[2]) for kind, row in raw["heights"].items()},
        extent={
            room: Extent(*((row[axis][0], row[axis][1]) for axis in ("x", "z", "loc_x", "loc_z")))
            for room, row in raw["extent"].items()
        },
        horizons=WeightedChoice((int(horizon), count) for horizon, count in raw["horizons"].items()),
    )


def _split_pair(name: str, mark: str) -> tuple[str, str]:
    first, _, second = name.partition(mark)
    return first, second
