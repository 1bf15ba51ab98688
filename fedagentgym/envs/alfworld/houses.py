"""Generated games: a household task in a furnished room, drawn from the figures, the same for the same key.

A game is made in five steps, all from the one stream of its key:

1. the goal: a combination of object and destination that the room kind, the scenes of the split and the size allow, weighted
   as the figures tell for the task type;
2. the layout: a scene that has the destination, weighted by how often it was used - or one of the owner's private rooms;
3. the things: one to four of the target (two and more for Pick2), one to three of every other kind that belongs to the room;
4. their places, by the figures of their kind. No target starts where the goal already holds, in the appliance that is to
   treat it, or out of reach; everything else may lie on the floor in full rooms, where nobody can pick it up;
5. the wording of the task sentence.

A game whose shortest plan is longer than its size allows (ten commands in tiny rooms, thirty else) gets other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.alfworld.figures import Weighted, figures
from fedagentgym.envs.alfworld.game import Game, Thing, build
from fedagentgym.envs.alfworld.goals import goal_of
from fedagentgym.envs.alfworld.layouts import (
    Layout,
    LayoutKey,
    Point,
    between,
    layout,
    room_of,
    seen_scenes,
    spell,
    unseen_scenes,
)
from fedagentgym.envs.alfworld.plans import APPLIANCE, shortest_plan
from fedagentgym.envs.alfworld.sentences import WORDINGS_OF_TYPE, sentence

GENERATOR_VERSIONS = {"tiny": 2, "small": 1, "full": 1}
PRIVATE_ROOMS = 3
LONGEST_PLAN = {"tiny": 10, "small": 30, "full": 30}
OTHERS_IN_TINY = 4
SMALL_KINDS = 9
ON_THE_FLOOR = -1


class HouseKey(NamedTuple):
    """Names a generated game. `owner` is the client whose private rooms it is played in, or empty."""

    seed: int
    size: str
    split: str
    number: int
    category: str
    owner: str = ""
    wording: str = "move"


class Errand(NamedTuple):
    """What a task is about: an object to bring to a destination, or to look at under a lamp."""

    category: str
    room: str
    thing: str
    place: str


@dataclass(frozen=True)
class _Menu:
    """The errands that a split allows, and the scenes in which each can be run."""

    errands: Weighted[Errand]
    scenes: Mapping[Errand, Weighted[int]]


def house(key: HouseKey) -> Game:
    """The game of a key."""
    draws = stream(key.seed, "alfworld", "house", key.size, key.split, key.number, key.category)
    menu = _menu(key.seed, key.size, key.split == "test", key.category)
    errand = menu.errands.draw(draws)
    scene = menu.scenes[errand].draw(draws)
    room = layout(LayoutKey(key.seed, key.size, scene))
    if key.owner:
        room = private_layout(key, errand)
        draws = stream(key.seed, "alfworld", "private house", key.size, key.split, key.number, key.category, key.owner)
    while True:
        game = _game(key, errand, room, draws)
        plan = shortest_plan(game)
        if plan is not None and len(plan) <= LONGEST_PLAN[key.size]:
            return game


@lru_cache(maxsize=256)
def _menu(seed: int, size: str, unseen: bool, category: str) -> _Menu:
    numbers = unseen_scenes(size) if unseen else seen_scenes(size)
    rooms = [layout(LayoutKey(seed, size, number)) for number in numbers]
    offers: list[tuple[Errand, int]] = []
    scenes: dict[Errand, Weighted[int]] = {}
    for room_kind, combinations in figures().combinations[category].items():
        here = [room for room in rooms if room.room == room_kind]
        for (thing, place), weight in combinations.items():
            errand = Errand(category, room_kind, thing, place)
            fitting = [room for room in here if fits(room, errand)]
            usual = [room for room in fitting if thing in room.kinds]
            if size == "tiny":
                fitting = usual
            if fitting:
                offers.append((errand, weight))
                scenes[errand] = Weighted((room.key.scene, max(1, _trials(room))) for room in usual or fitting)
    return _Menu(Weighted(offers), scenes)


def _trials(room: Layout) -> int:
    return figures().scenes[room.key.scene].trials


def fits(room: Layout, errand: Errand) -> bool:
    """Whether the errand can be run in a room: destination or lamp are there, and the object has somewhere to start."""
    if room.room != errand.room:
        return False
    there = errand.place in room.lamps if errand.category == "Look" else bool(room.numbers_of(errand.place))
    appliance = APPLIANCE.get(errand.category)
    treatable = appliance is None or appliance in room.receptacle_kinds()
    return there and treatable and bool(_starts(room, errand))


def private_layout(key: HouseKey, errand: Errand) -> Layout:
    """The first of the owner's rooms, from the game's own number on, in which the errand can be run."""
    order = stream(key.seed, "alfworld", "private rooms", key.size, key.owner, errand.room)
    models = [scene for scene in seen_scenes(key.size) if room_of(scene) == errand.room]
    rooms = [order.pick(models) for _ in range(PRIVATE_ROOMS)]
    first = key.number % PRIVATE_ROOMS
    candidates = [*enumerate(rooms)][first:] + [*enumerate(rooms)][:first]
    while True:
        for number, model in candidates:
            room = layout(LayoutKey(key.seed, key.size, model, f"{key.owner}.{number}"))
            if fits(room, errand):
                return room
        after = candidates[-1][0] + 1 if len(candidates) > PRIVATE_ROOMS else PRIVATE_ROOMS
        candidates = [*enumerate(models, after)]


# ---- what is in the room --------------------------------------------------------------------------------------------


class _Item(NamedTuple):
    kind: str
    where: int


def _game(key: HouseKey, errand: Errand, room: Layout, draws: Stream) -> Game:
    items = [*_targets(key.size, errand, room, draws), *_others(key.size, errand, room, draws)]
    items += [_Item(lamp, number) for lamp, number in sorted(room.lamps.items())]
    things = list(_things(items, room, draws))
    present = {thing.kind for thing in things}
    wording = draws.integers(len(WORDINGS_OF_TYPE[errand.category]))
    return build(
        receptacles=room.receptacles,
        things=things,
        start=room.start,
        can_contain=_can_contain(room, present),
        goal=goal_of(errand.category, errand.thing, errand.place, errand.place),
        task=sentence(errand.category, errand.thing, errand.place, wording),
        category=errand.category,
        wording=key.wording,
        scene=room.name,
    )


def _can_contain(room: Layout, present: set[str]) -> dict[str, frozenset[str]]:
    """What may be put where, of the kinds that there are in the room."""
    table = {kind: figures().may_hold.get(kind, frozenset()) & present for kind in room.receptacle_kinds()}
    return {kind: held for kind, held in table.items() if held}


def _starts(room: Layout, errand: Errand) -> list[int]:
    """Receptacles in which the target may start."""
    category, kind = errand.category, errand.thing
    refused = {errand.place} if category in ("Pick", "Pick2") else {APPLIANCE.get(category, "")}
    return _holders(room, kind, lambda place: place not in refused)


def _holders(room: Layout, kind: str, admitted: Callable[[str], bool] = lambda place: True) -> list[int]:
    may_hold = figures().may_hold
    return [
        number
        for number, receptacle in enumerate(room.receptacles)
        if kind in may_hold.get(receptacle.kind, ()) and admitted(receptacle.kind)
    ]


def _weighted_places(room: Layout, kind: str, holders: list[int]) -> Weighted[int]:
    """The places of a kind in this room by the figures' weights; any that may hold it where the figures know none."""
    weights = figures().objects[room.room][kind].places if kind in figures().objects[room.room] else {}
    counts = {number: len(room.numbers_of(room.receptacles[number].kind)) for number in holders}
    usual = [(number, 60 * weights.get(room.receptacles[number].kind, 0) // counts[number]) for number in holders]
    places = Weighted(usual)
    return places if places else Weighted((number, 1) for number in holders)


@lru_cache(maxsize=8192)
def _usual_places(room: LayoutKey, kind: str) -> Weighted[int]:
    """The places of a kind that no goal asks for: the same in every game of a room."""
    furnished = layout(room)
    return _weighted_places(furnished, kind, _holders(furnished, kind))


def _targets(size: str, errand: Errand, room: Layout, draws: Stream) -> Iterator[_Item]:
    places = _weighted_places(room, errand.thing, _starts(room, errand))
    copies = figures().target_copies[errand.category].draw(draws)
    if size != "full":
        copies = min(copies, 3 if errand.category == "Pick2" else 2)
    for _ in range(copies):
        yield _Item(errand.thing, places.draw(draws))


def _others(size: str, errand: Errand, room: Layout, draws: Stream) -> Iterator[_Item]:
    """Everything that is not a target: all kinds of the room in full size, some of them in the smaller ones."""
    kinds = sorted(room.kinds - {errand.thing})
    if size == "small":
        kinds = draws.shuffled(kinds)[:SMALL_KINDS]
    elif size == "tiny":
        kinds = draws.shuffled(kinds)[: 3 + draws.integers(4)]
    left = OTHERS_IN_TINY if size == "tiny" else 1000
    for kind in kinds:
        facts = figures().objects[room.room][kind]
        copies = facts.copies.draw(draws)
        if size != "full":
            copies = min(copies, 2) if size == "small" else 1 + (draws.integers(6) == 0)
        places = _usual_places(room.key, kind) if facts.places else None
        for _ in range(min(copies, left)):
            left -= 1
            if size == "full" and (not places or draws.integers(1000) < facts.floor):
                yield _Item(kind, ON_THE_FLOOR)
            elif places:
                yield _Item(kind, places.draw(draws))


def _things(items: list[_Item], room: Layout, draws: Stream) -> Iterator[Thing]:
    """Items with ids and traits; each lies within forty centimetres of its receptacle's middle."""
    used: set[tuple[str, Point]] = set()
    for kind, where in items:
        while True:
            point = _beside(room, where, draws)
            if (kind, point) not in used:
                break
        used.add((kind, point))
        receptacle = room.receptacles[where] if where != ON_THE_FLOOR else None
        yield Thing(
            id=spell(kind, point, draws),
            kind=kind,
            inside=(receptacle.id,) if receptacle else (),
            place=receptacle.place if receptacle else draws.pick(room.floor),
            traits=_traits(kind),
        )


def _beside(room: Layout, where: int, draws: Stream) -> Point:
    if where == ON_THE_FLOOR:
        extent = figures().extent[room.room]
        return Point(between(extent.x, draws), draws.integers(12), between(extent.z, draws))
    middle = room.points[where]
    return Point(middle.x - 40 + draws.integers(81), middle.y + draws.integers(12), middle.z - 40 + draws.integers(81))


@lru_cache(maxsize=256)
def _traits(kind: str) -> frozenset[str]:
    known = figures().traits
    traits = {trait for trait, kinds in known.items() if kind in kinds}
    return frozenset(traits if "toggleable" in traits else traits | {"pickupable"})
