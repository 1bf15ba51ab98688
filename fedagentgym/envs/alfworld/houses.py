"""Generated games and their pools. A game is a household task in a furnished room, drawn from ALFRED's figures by its key.

A game is made in five steps, from random streams that its key determines:

1. the goal: a combination of object and destination that the room kind, the scenes of the split and the size allow, weighted
   as the figures state for the task type;
2. the layout: a scene that has the destination, weighted by how often it was used, or one of the owner's private rooms;
3. the objects: one to four of the target's kind (at least two for Pick2), one to three of every other kind in the room;
4. their places, by the figures of their kind. No target starts where the goal already holds, in the appliance that is to
   treat it, or out of reach; everything else may lie on the floor in full rooms, where it cannot be picked up;
5. the wording of the task sentence.

A game whose shortest plan is longer than its size allows (ten commands in tiny rooms, thirty otherwise) gets other places.

The default size `full` has ALFWorld's own numbers: 3,553 training, 140 seen and 134 unseen validation games with its mixture
of task types in each. `small` has the same numbers. `tiny` has 3,000 / 200 / 200, every task type equally often. Each size
has 2,000 warm-up games in addition, for demonstrations. Games are generated on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.alfworld.figures import WeightedChoice, load_statistics
from fedagentgym.envs.alfworld.game import CATEGORIES, WORDINGS, Game, Thing, build_game
from fedagentgym.envs.alfworld.layouts import (
    SIZES,
    TINY_OBJECTS,
    TINY_RECEPTACLES,
    Layout,
    LayoutKey,
    Point,
    draw_between,
    generate_layout,
    get_room_kind,
    list_seen_scenes,
    list_unseen_scenes,
    make_object_id,
)
from fedagentgym.envs.alfworld.plans import APPLIANCE, find_shortest_plan, make_goal
from fedagentgym.envs.alfworld.wording import SENTENCE_TEMPLATES, make_task_sentence
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import TaskIds

GENERATOR_VERSIONS = {"tiny": 2, "small": 1, "full": 1}
PRIVATE_ROOMS = 3
MAX_PLAN_LENGTH = {"tiny": 10, "small": 30, "full": 30}
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


class HouseTask(NamedTuple):
    """The errand of a task: an object to bring to a destination, or to look at under a lamp."""

    category: str
    room: str
    thing: str
    place: str


@dataclass(frozen=True)
class _TaskDistribution:
    """The errands that a split allows, and the scenes in which each can be run."""

    errands: WeightedChoice[HouseTask]
    scenes: Mapping[HouseTask, WeightedChoice[int]]


def generate_house(key: HouseKey) -> Game:
    """The game of a key."""
    draws = stream(key.seed, "alfworld", "house", key.size, key.split, key.number, key.category)
    menu = _build_task_distribution(key.seed, key.size, key.split == "test", key.category)
    errand = menu.errands.draw(draws)
    scene = menu.scenes[errand].draw(draws)
    room = generate_layout(LayoutKey(key.seed, key.size, scene))
    if key.owner:
        room = choose_private_layout(key, errand)
        draws = stream(key.seed, "alfworld", "private house", key.size, key.split, key.number, key.category, key.owner)
    while True:
        game = _build_game(key, errand, room, draws)
        plan = find_shortest_plan(game)
        if plan is not None and len(plan) <= MAX_PLAN_LENGTH[key.size]:
            return game


@lru_cache(maxsize=256)
def _build_task_distribution(seed: int, size: str, unseen: bool, category: str) -> _TaskDistribution:
    known = list_unseen_scenes(size) if unseen else list_seen_scenes(size)
    rooms = [generate_layout(LayoutKey(seed, size, number)) for number in known]
    offers: list[tuple[HouseTask, int]] = []
    scenes: dict[HouseTask, WeightedChoice[int]] = {}
    for room_kind, combinations in load_statistics().combinations[category].items():
        here = [room for room in rooms if room.room == room_kind]
        for (thing, place), weight in combinations.items():
            errand = HouseTask(category, room_kind, thing, place)
            fitting = [room for room in here if fits(room, errand)]
            usual = [room for room in fitting if thing in room.kinds]
            if size == "tiny":
                fitting = usual
            if fitting:
                offers.append((errand, weight))
                numbers = (room.key.scene for room in usual or fitting)
                scenes[errand] = WeightedChoice((n, max(1, load_statistics().scenes[n].trials)) for n in numbers)
    return _TaskDistribution(WeightedChoice(offers), scenes)


def fits(room: Layout, errand: HouseTask) -> bool:
    """Return whether the errand can be run: the room has the destination or lamp, the appliance and a start for the object."""
    if room.room != errand.room:
        return False
    there = errand.place in room.lamps if errand.category == "Look" else bool(room.find_receptacles(errand.place))
    appliance = APPLIANCE.get(errand.category)
    treatable = appliance is None or appliance in room.get_receptacle_kinds()
    return there and treatable and bool(_list_start_places(room, errand))


def choose_private_layout(key: HouseKey, errand: HouseTask) -> Layout:
    """The first of the owner's rooms, from the game's own number on, in which the errand can be run, or else a further room."""
    order = stream(key.seed, "alfworld", "private rooms", key.size, key.owner, errand.room)
    models = [scene for scene in list_seen_scenes(key.size) if get_room_kind(scene) == errand.room]
    rooms = [order.pick(models) for _ in range(PRIVATE_ROOMS)]
    first = key.number % PRIVATE_ROOMS
    candidates = [*enumerate(rooms)][first:] + [*enumerate(rooms)][:first]
    while True:
        for number, model in candidates:
            room = generate_layout(LayoutKey(key.seed, key.size, model, f"{key.owner}.{number}"))
            if fits(room, errand):
                return room
        after = candidates[-1][0] + 1 if len(candidates) > PRIVATE_ROOMS else PRIVATE_ROOMS
        candidates = [*enumerate(models, after)]


# ---- what is in the room --------------------------------------------------------------------------------------------


class _Item(NamedTuple):
    kind: str
    where: int


def _build_game(key: HouseKey, errand: HouseTask, room: Layout, draws: Stream) -> Game:
    statistics = load_statistics()
    places = _weigh_places(room, errand.thing, _list_start_places(room, errand))
    copies = statistics.target_copies[errand.category].draw(draws)
    if key.size != "full":
        copies = min(copies, 3 if errand.category == "Pick2" else 2)
    items = [_Item(errand.thing, places.draw(draws)) for _ in range(copies)]
    items += _draw_other_objects(key.size, errand, room, draws)
    items += [_Item(lamp, number) for lamp, number in sorted(room.lamps.items())]
    things = list(_make_things(items, room, draws))
    # What may be put where, among the kinds that are in the room.
    present = {thing.kind for thing in things}
    table = {kind: statistics.may_hold.get(kind, frozenset()) & present for kind in room.get_receptacle_kinds()}
    wording = draws.integers(len(SENTENCE_TEMPLATES[errand.category]))
    return build_game(
        receptacles=room.receptacles,
        things=things,
        start=room.start,
        can_contain={kind: held for kind, held in table.items() if held},
        goal=make_goal(errand.category, errand.thing, errand.place, errand.place),
        task=make_task_sentence(errand.category, errand.thing, errand.place, wording),
        category=errand.category,
        wording=key.wording,
        scene=room.name,
    )


def _list_start_places(room: Layout, errand: HouseTask) -> list[int]:
    """Receptacles in which the target may start."""
    category, kind = errand.category, errand.thing
    refused = {errand.place} if category in ("Pick", "Pick2") else {APPLIANCE.get(category, "")}
    return _list_holders(room, kind, lambda place: place not in refused)


def _list_holders(room: Layout, kind: str, admitted: Callable[[str], bool] = lambda place: True) -> list[int]:
    may_hold = load_statistics().may_hold
    return [
        number
        for number, receptacle in enumerate(room.receptacles)
        if kind in may_hold.get(receptacle.kind, ()) and admitted(receptacle.kind)
    ]


def _weigh_places(room: Layout, kind: str, holders: list[int]) -> WeightedChoice[int]:
    """The places of a kind in this room, weighted by the figures; if these have none, any that may hold it."""
    weights = load_statistics().objects[room.room][kind].places if kind in load_statistics().objects[room.room] else {}
    counts = {number: len(room.find_receptacles(room.receptacles[number].kind)) for number in holders}
    usual = [(number, 60 * weights.get(room.receptacles[number].kind, 0) // counts[number]) for number in holders]
    places = WeightedChoice(usual)
    return places if places else WeightedChoice((number, 1) for number in holders)


@lru_cache(maxsize=8192)
def _weigh_usual_places(room: LayoutKey, kind: str) -> WeightedChoice[int]:
    """The places of a kind that is not the target, which are the same in every game of a room."""
    furnished = generate_layout(room)
    return _weigh_places(furnished, kind, _list_holders(furnished, kind))


def _draw_other_objects(size: str, errand: HouseTask, room: Layout, draws: Stream) -> Iterator[_Item]:
    """Everything that is not a target: all kinds of the room in full size, some of them in the smaller ones."""
    kinds = sorted(room.kinds - {errand.thing})
    if size == "small":
        kinds = draws.shuffled(kinds)[:SMALL_KINDS]
    elif size == "tiny":
        kinds = draws.shuffled(kinds)[: 3 + draws.integers(4)]
    left = OTHERS_IN_TINY if size == "tiny" else 1000
    for kind in kinds:
        facts = load_statistics().objects[room.room][kind]
        copies = facts.copies.draw(draws)
        if size != "full":
            copies = min(copies, 2) if size == "small" else 1 + (draws.integers(6) == 0)
        places = _weigh_usual_places(room.key, kind) if facts.places else None
        for _ in range(min(copies, left)):
            left -= 1
            if size == "full" and (not places or draws.integers(1000) < facts.floor):
                yield _Item(kind, ON_THE_FLOOR)
            elif places:
                yield _Item(kind, places.draw(draws))


def _make_things(items: list[_Item], room: Layout, draws: Stream) -> Iterator[Thing]:
    """Items with ids and traits; each lies within forty centimetres of its receptacle's middle."""
    extent = load_statistics().extent[room.room]
    used: set[tuple[str, Point]] = set()
    for kind, where in items:
        while True:
            if where == ON_THE_FLOOR:
                point = Point(draw_between(extent.x, draws), draws.integers(12), draw_between(extent.z, draws))
            else:
                x, y, z = room.points[where]
                point = Point(x - 40 + draws.integers(81), y + draws.integers(12), z - 40 + draws.integers(81))
            if (kind, point) not in used:
                break
        used.add((kind, point))
        receptacle = room.receptacles[where] if where != ON_THE_FLOOR else None
        yield Thing(
            id=make_object_id(kind, point, draws),
            kind=kind,
            inside=(receptacle.id,) if receptacle else (),
            place=receptacle.place if receptacle else draws.pick(room.floor),
            traits=_get_traits(kind),
        )


@lru_cache(maxsize=256)
def _get_traits(kind: str) -> frozenset[str]:
    known = load_statistics().traits
    traits = {trait for trait, kinds in known.items() if kind in kinds}
    return frozenset(traits if "toggleable" in traits else traits | {"pickupable"})


SPLITS = ("train", "val", "test", "warmup")
TURNS = {"tiny": 20, "small": 50, "full": 50}
WARMUP = 2000
ALFWORLD_MIXTURE: Mapping[str, tuple[int, ...]] = {
    "train": (790, 308, 650, 459, 533, 813),
    "val": (35, 13, 27, 16, 25, 24),
    "test": (24, 18, 31, 23, 21, 17),
}
"""Games per split in the order of `CATEGORIES`, as in ALFWorld's data."""
TINY_SIZES = {"train": 3000, "val": 200, "test": 200, "warmup": WARMUP}


def make_house_pool(
    split: str,
    *,
    env: str,
    size: str = "full",
    seed: int = 0,
    wording: str = "move",
    owner: str = "",
    own_wording: str | None = None,
) -> TaskPool:
    """The generated tasks of a split, or of all splits one after the other.

    With `owner` the tasks are played in a client's private rooms, and with `own_wording` in another wording. Neither changes
    which tasks there are: ids, categories and digest stay the same.
    """
    check_house_options(size, seed, wording)
    names = SPLITS if split == "all" else (split,)
    counts = [sum(get_category_counts(size, name)) for name in names]
    parts = [TaskIds(env, name, count) for name, count in zip(names, counts, strict=True)]
    codes = np.concatenate([_shuffle_categories(seed, size, name) for name in names])
    ends = np.cumsum(counts)

    def make_key(index: int) -> HouseKey:
        part = int(np.searchsorted(ends, index, side="right"))
        number = index - (int(ends[part - 1]) if part else 0)
        return HouseKey(seed, size, names[part], number, CATEGORIES[codes[index]], owner, own_wording or wording)

    return TaskPool(
        env=env,
        split=split,
        ids=parts[0] if len(parts) == 1 else [identifier for part in parts for identifier in part],
        categories=(CATEGORIES, codes),
        payload=lambda index: _get_house(make_key(index)),
        hardness=lambda index: _plan_length(make_key(index)),
        split_of=lambda index: make_key(index).split,
        source={
            "generator": "houses",
            "version": GENERATOR_VERSIONS[size],
            "size": size,
            "seed": seed,
            "wording": wording,
        },
    )


@lru_cache(maxsize=1024)
def _get_house(key: HouseKey) -> Game:
    return generate_house(key)


@lru_cache(maxsize=8192)
def _plan_length(key: HouseKey) -> float:
    """Return how difficult a task is: the number of commands of its shortest plan."""
    return float(len(find_shortest_plan(_get_house(key)) or ()))


def get_category_counts(size: str, split: str) -> tuple[int, ...]:
    """Return how many games of each category a split has."""
    if size == "tiny":
        return _apportion(TINY_SIZES[split], (1,) * len(CATEGORIES))
    return _apportion(WARMUP, ALFWORLD_MIXTURE["train"]) if split == "warmup" else ALFWORLD_MIXTURE[split]


def _apportion(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """`total` in these proportions, rounded by largest remainder."""
    shares = [total * weight // sum(weights) for weight in weights]
    remainders = [total * weight % sum(weights) for weight in weights]
    for number in sorted(range(len(weights)), key=lambda n: (-remainders[n], n))[: total - sum(shares)]:
        shares[number] += 1
    return tuple(shares)


@lru_cache(maxsize=64)
def _shuffle_categories(seed: int, size: str, split: str) -> NDArray[np.int32]:
    """The category of each task of a split: the mixture in random order."""
    codes = np.repeat(np.arange(len(CATEGORIES), dtype=np.int32), get_category_counts(size, split))
    shuffled = codes[stream(seed, "alfworld", "mixture", size, split).permutation(len(codes))]
    shuffled.setflags(write=False)
    return shuffled


def check_house_options(size: str, seed: int, wording: str) -> None:
    """Refuse options of generated houses that are not allowed; the error names the allowed ones."""
    if size not in SIZES:
        raise unknown_name_error("size of ALFWorld's houses", str(size), SIZES)
    if wording not in WORDINGS:
        raise unknown_name_error("wording of ALFWorld's games", str(wording), WORDINGS)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise OptionError(f"the seed of ALFWorld's houses must be a whole number from 0 on, got {seed!r}")


def list_house_words(size: str) -> frozenset[str]:
    """The kinds of receptacles and objects, in lower case, that houses of a size can name."""
    if size == "tiny":
        kinds = {kind for table in (TINY_RECEPTACLES, TINY_OBJECTS) for room in table.values() for kind in room}
    else:
        known = load_statistics()
        kinds = {kind for scene in known.scenes.values() for kind in scene.receptacles}
        kinds |= {kind for room in known.objects.values() for kind in room}
    return frozenset(kind.lower() for kind in kinds | set(load_statistics().lamps))
