"""One household game as a value: the reader and the house generator produce it, and the engine plays it.

A `Game` contains the receptacles and objects, where each one is, what may hold what, where the agent starts
and what must hold in the end. It is immutable, compares by content and pickles small; a `HouseState` holds what changes in play.

Everything is a column: entry `i` of `receptacles`, `receptacle_kinds` and `receptacle_places` describes receptacle
`i`; sets of receptacles or objects are integers used as bit sets (bit `i` for entry `i`). Columns are sorted by
lower-cased id, because the order of ids decides the shown numbers and the order of every list the player reads.
`build_game` makes a game from readable records (`Receptacle`, `Thing`) and does the sorting and the bit sets.

Ids are spelled as in game files (`Apple_bar__minus_02_dot_10_bar_...`); a kind is the PDDL type without its suffix
(`Apple` for `AppleType`); a goal is the S-expression of the PDDL goal as nested tuples of strings (see `plans`).

A game is played by the pure functions of `engine`::

    outcome = start(game)                      # Outcome(state, feedback, valid)
    outcome = step(game, outcome.state, "go to fridge 1")
    list_admissible_commands(game, outcome.state)  # sorted
    outcome.state.won                          # the goal holds now
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from fedagentgym.base.errors import DataError

Goal: TypeAlias = tuple[Any, ...]
"""An S-expression: `("and", ("objectType", "?o", "AppleType"), ...)`; each item is a string or a tuple again."""

WORDINGS = ("move", "put")
CATEGORIES = ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2")
NOWHERE = -1


class Receptacle(NamedTuple):
    """A fixed place that can hold objects: a cabinet, a table, a sink's basin."""

    id: str
    kind: str
    place: str | None
    openable: bool = False
    opened: bool = False


class Thing(NamedTuple):
    """An object, with the receptacles it is in (usually one), the location it is at and what can be done to it.

    `traits` holds names out of `TRAITS`, `condition` names out of `CONDITIONS`; `inner` lists the ids of objects that
    lie inside this one (an object container such as a bowl), a relation that no action changes.
    """

    id: str
    kind: str
    inside: tuple[str, ...] = ()
    place: str | None = None
    traits: frozenset[str] = frozenset()
    condition: frozenset[str] = frozenset()
    inner: tuple[str, ...] = ()


TRAITS = ("pickupable", "container", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
CONDITIONS = ("clean", "hot", "cool", "sliced", "toggled")


@dataclass(frozen=True)
class Game:
    """A household game. Build one with `build_game`; the constructor trusts its arguments."""

    receptacles: tuple[str, ...]
    receptacle_kinds: tuple[str, ...]
    receptacle_places: tuple[int, ...]
    openable: int
    opened: int
    objects: tuple[str, ...]
    object_kinds: tuple[str, ...]
    contents: tuple[int, ...]
    """Per receptacle, the set of the objects in it."""
    laid: tuple[int, ...]
    """Per location, the set of the objects at it."""
    inner: tuple[tuple[int, int], ...]
    """Pairs (container object, set of the objects in it)."""
    traits: tuple[int, ...]
    """The set of objects with each of `TRAITS`, in that order."""
    conditions: tuple[int, ...]
    """The set of objects that start with each of `CONDITIONS`, in that order."""
    locations: tuple[str, ...]
    start: int
    holding: int
    can_contain: Mapping[str, frozenset[str]]
    """Receptacle kind -> object kinds that may be put there."""
    goal: Goal
    task: str
    """The task sentence, without `Your task is to:` and without the full stop."""
    category: str
    wording: str = "move"
    scene: str = ""
    origin: str = field(default="", compare=False)
    """The file that the game was read from, if it was read from one."""

    derived: dict[str, object] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Derived from the game and kept with it (see `tables`), never pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**{column.name: getattr(self, column.name) for column in fields(self)}, "derived": {}}

    def __hash__(self) -> int:
        return hash((self.receptacles, self.objects, self.contents, self.start, self.goal, self.task, self.wording))


def build_game(
    *,
    receptacles: Iterable[Receptacle],
    things: Iterable[Thing],
    start: str,
    can_contain: Mapping[str, Iterable[str]],
    goal: Goal,
    task: str,
    category: str,
    wording: str = "move",
    scene: str = "",
    origin: str = "",
    holding: str | None = None,
    places: Iterable[str] = (),
) -> Game:
    """A game from records; refuses repeated ids and references to unknown ones.

    Locations are those that the records name; `places` adds further ones, which count in the shown numbers of locations.
    """
    if wording not in WORDINGS:
        raise DataError(f"unknown wording {wording!r} of an ALFWorld game; known: {', '.join(WORDINGS)}")
    holders = sorted(receptacles, key=_sort_key)
    objects = sorted(things, key=_sort_key)
    place_index = _build_index([receptacle.id for receptacle in holders], "receptacle")
    object_index = _build_index([thing.id for thing in objects], "object")
    named = [start, *places, *(one.place for one in holders), *(one.place for one in objects)]
    spelled = [place for place in named if place is not None]
    locations = sorted({place.lower(): place for place in spelled}.values(), key=str.lower)
    location_index = _build_index(locations, "location")

    contents, laid, inner = [0] * len(holders), [0] * len(locations), []
    for number, thing in enumerate(objects):
        for holder in thing.inside:
            contents[_look_up(place_index, holder, "receptacle", thing.id)] |= 1 << number
        if thing.place is not None:
            laid[location_index[thing.place.lower()]] |= 1 << number
        if thing.inner:
            inner.append((number, _to_bit_set(_look_up(object_index, one, "object", thing.id) for one in thing.inner)))
    return Game(
        receptacles=tuple(receptacle.id for receptacle in holders),
        receptacle_kinds=tuple(receptacle.kind for receptacle in holders),
        receptacle_places=tuple(
            NOWHERE if receptacle.place is None else location_index[receptacle.place.lower()] for receptacle in holders
        ),
        openable=_to_bit_set(number for number, receptacle in enumerate(holders) if receptacle.openable),
        opened=_to_bit_set(number for number, receptacle in enumerate(holders) if receptacle.opened),
        objects=tuple(thing.id for thing in objects),
        object_kinds=tuple(thing.kind for thing in objects),
        contents=tuple(contents),
        laid=tuple(laid),
        inner=tuple(inner),
        traits=tuple(_to_bit_set(n for n, thing in enumerate(objects) if trait in thing.traits) for trait in TRAITS),
        conditions=tuple(_to_bit_set(n for n, thing in enumerate(objects) if c in thing.condition) for c in CONDITIONS),
        locations=tuple(locations),
        start=location_index[start.lower()],
        holding=NOWHERE if holding is None else _look_up(object_index, holding, "object", "the agent"),
        can_contain=_intern_table(frozenset((kind, frozenset(kinds)) for kind, kinds in can_contain.items())),
        goal=goal,
        task=task,
        category=category,
        wording=wording,
        scene=scene,
        origin=origin,
    )


@lru_cache(maxsize=64)
def _intern_table(pairs: frozenset[tuple[str, frozenset[str]]]) -> Mapping[str, frozenset[str]]:
    """One table for all games that agree on it; thousands of games would otherwise hold thousands of equal tables."""
    return dict(sorted(pairs))


def list_members(bits: int) -> list[int]:
    """The members of a bit set, smallest first.

    >>> list_members(0b10110)
    [1, 2, 4]
    """
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


def _sort_key(record: Receptacle | Thing) -> str:
    return record.id.lower()


def _build_index(ids: Sequence[str], what: str) -> dict[str, int]:
    index = {one.lower(): number for number, one in enumerate(ids)}
    if len(index) != len(ids):
        doubled = next(one for number, one in enumerate(ids) if index[one.lower()] != number)
        raise DataError(f"the {what} {doubled} of an ALFWorld game is defined twice")
    return index


def _look_up(index: Mapping[str, int], wanted: str, what: str, owner: str) -> int:
    if wanted.lower() not in index:
        raise DataError(f"{owner} of an ALFWorld game names the {what} {wanted}, which the game does not have")
    return index[wanted.lower()]


def _to_bit_set(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


class HouseState(NamedTuple):
    """Everything that changes in play. Sets of objects or receptacles are bit sets, numbered as in the game."""

    place: int
    held: int
    opened: int
    contents: tuple[int, ...]
    """Per receptacle, the objects in it."""
    laid: tuple[int, ...]
    """Per location, the objects at it."""
    taken: tuple[int, ...]
    """Per receptacle, the objects that were taken out of it and not put back."""
    clean: int
    hot: int
    cool: int
    sliced: int
    toggled: int
    won: bool
