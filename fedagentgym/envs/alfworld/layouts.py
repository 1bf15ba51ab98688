"""Room layouts: which receptacles a room has, where they stand, which of them open, and what kinds of objects it holds.

A layout is a pure function of its key. Layout number 14 of the seed 0 has the receptacles of ALFRED's scene 14; where
they stand, which of them open and which share a standing point is drawn. The size decides how many of these receptacles a
room has: all of them in `full`, one or two of a kind in `small`, three to six in `tiny`. In `small` and `tiny`, no unseen room
has the same receptacles as a seen one. A key with an owner names a private layout, for a client whose rooms are in no other
client's houses. It is modelled on one of the training scenes, with redrawn numbers of receptacles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.alfworld.figures import Scene, WeightedChoice, load_statistics
from fedagentgym.envs.alfworld.game import Receptacle

SIZES = ("tiny", "small", "full")
BASINS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}
LAMP_HOSTS = {
    "DeskLamp": ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable"),
    "FloorLamp": ("SideTable", "CoffeeTable", "DiningTable", "Dresser", "Shelf", "Desk", "TVStand", "Sofa", "ArmChair"),
}
APPLIANCES = {"kitchen": ("CounterTop", "Fridge", "Microwave", "SinkBasin"), "bathroom": ("SinkBasin",)}


def _split_kinds(by_room: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {room: frozenset(kinds.split()) for room, kinds in by_room.items()}


TINY_RECEPTACLES = _split_kinds(
    {
        "kitchen": "CounterTop Fridge Microwave SinkBasin Cabinet Drawer DiningTable GarbageCan CoffeeMachine Shelf SideTable",
        "living_room": "Sofa ArmChair CoffeeTable SideTable DiningTable Dresser Shelf Drawer GarbageCan",
        "bedroom": "Bed Desk Dresser Shelf SideTable Drawer GarbageCan ArmChair",
        "bathroom": "Toilet SinkBasin CounterTop Cabinet Drawer BathtubBasin GarbageCan Shelf",
    }
)
TINY_OBJECTS = _split_kinds(
    {
        "kitchen": "Apple Cup Egg Lettuce Mug Plate Potato Tomato",
        "living_room": "Box CreditCard KeyChain Newspaper RemoteControl Statue Laptop",
        "bedroom": "AlarmClock Book CD CellPhone KeyChain Laptop Pen Pencil",
        "bathroom": "Candle Cloth HandTowel SoapBar SoapBottle SprayBottle ToiletPaper",
    }
)
MAX_IN_TINY = 8


class LayoutKey(NamedTuple):
    """Names a layout by ALFRED's scene number. The owner of a private layout names the client and the number of its room."""

    seed: int
    size: str
    scene: int
    owner: str = ""


class Point(NamedTuple):
    """A place in centimetres."""

    x: int
    y: int
    z: int


@dataclass(frozen=True)
class Layout:
    """A furnished room without its movable objects."""

    key: LayoutKey
    room: str
    receptacles: tuple[Receptacle, ...]
    points: tuple[Point, ...]
    lamps: Mapping[str, int]
    """Lamp kind -> the receptacle (by number) that it stands on."""
    kinds: frozenset[str]
    """Kinds of objects that belong to the room."""
    start: str
    floor: tuple[str, ...]
    """Standing points without a receptacle, where objects lie on the floor."""

    @property
    def name(self) -> str:
        return f"FloorPlan{self.key.scene}" + (f"-{self.key.owner}" if self.key.owner else "")

    def find_receptacles(self, kind: str) -> list[int]:
        return self._numbers.get(kind, [])

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, receptacle in enumerate(self.receptacles):
            found.setdefault(receptacle.kind, []).append(number)
        return found

    def get_receptacle_kinds(self) -> frozenset[str]:
        return frozenset(receptacle.kind for receptacle in self.receptacles)


def get_room_kind(scene: int) -> str:
    """The kind of room by scene number: 1-30, 201-230, 301-330, 401-430."""
    return {0: "kitchen", 2: "living_room", 3: "bedroom", 4: "bathroom"}[scene // 100]


def list_unseen_scenes(size: str) -> tuple[int, ...]:
    """Scenes of the split `test`, never used elsewhere: ALFRED's four, or twelve in the smaller sizes, whose rooms vary less."""
    known = load_statistics()
    return known.unseen if size == "full" else tuple(sorted(known.unseen + known.spare))


def list_seen_scenes(size: str) -> tuple[int, ...]:
    """Scenes of the other splits: the 108 that ALFRED's training tasks use."""
    known = load_statistics()
    return tuple(number for number in known.scenes if number not in (*known.unseen, *known.spare))


@lru_cache(maxsize=4096)
def generate_layout(key: LayoutKey) -> Layout:
    """The layout of a key."""
    draws = stream(key.seed, "alfworld", "layout", key.size, key.scene, key.owner)
    room = get_room_kind(key.scene)
    scene = load_statistics().scenes[key.scene]
    drawn = _furnish(key, room, _draw_receptacle_counts(scene, key, draws), draws)
    if key.size != "full" and not key.owner and key.scene in list_unseen_scenes(key.size):
        tries = 1
        while _compute_appearance(drawn) in _collect_seen_appearances(key):
            counts = _draw_receptacle_counts(scene, key, draws)
            # Change the numbers of some kinds after 30 tries: a scene of few kinds might always look like a seen one.
            for _ in range(tries // 30):
                kind = draws.pick(sorted(counts))
                counts[kind] = 1 if counts[kind] > 1 or sum(counts.values()) >= MAX_IN_TINY else 2
            drawn = _furnish(key, room, counts, draws)
            tries += 1
    return drawn


@lru_cache(maxsize=64)
def _collect_seen_appearances(key: LayoutKey) -> frozenset[tuple[tuple[str, bool], ...]]:
    return frozenset(
        _compute_appearance(generate_layout(LayoutKey(key.seed, key.size, scene)))
        for scene in list_seen_scenes(key.size)
        if get_room_kind(scene) == get_room_kind(key.scene)
    )


def _compute_appearance(room: Layout) -> tuple[tuple[str, bool], ...]:
    """Return what a player can recognise a room by: its receptacles and which of them open."""
    return tuple(sorted((receptacle.kind, receptacle.openable) for receptacle in room.receptacles))


def _draw_receptacle_counts(scene: Scene, key: LayoutKey, draws: Stream) -> dict[str, int]:
    counts = dict(scene.receptacles)
    if key.owner:
        counts = {kind: draws.pick(_list_scene_counts(scene.room, kind)) for kind in counts}
    if key.size == "small":
        return {kind: min(count, 1 + draws.integers(2)) for kind, count in counts.items()}
    if key.size == "full":
        return counts
    kept = {kind: 1 for kind in APPLIANCES.get(scene.room, ()) if kind in counts}
    others = [kind for kind in sorted(TINY_RECEPTACLES[scene.room]) if kind in counts and kind not in kept]
    wanted = (5 if scene.room == "kitchen" else 3) + draws.integers(2)
    return kept | dict.fromkeys(draws.shuffled(others)[: max(0, wanted - len(kept))], 1)


@lru_cache(maxsize=512)
def _list_scene_counts(room: str, kind: str) -> tuple[int, ...]:
    """The number of receptacles of a kind in each scene that has any."""
    rows = (scene.receptacles for scene in load_statistics().get_scenes(room))
    return tuple(kinds[kind] for kinds in rows if kind in kinds)


def _furnish(key: LayoutKey, room: str, counts: Mapping[str, int], draws: Stream) -> Layout:
    """Receptacles with ids, standing points and doors; lamps; points on the floor, and the agent's starting point."""
    kinds = [kind for kind, count in sorted(counts.items()) for _ in range(count)]
    spots = _draw_standing_points(room, draws)
    places = _share_standing_points(room, kinds, [next(spots) for _ in kinds], draws)
    opens = _draw_openable(key.size, kinds, draws)
    points = _draw_points(room, kinds, draws)
    receptacles = tuple(
        Receptacle(make_object_id(kind, point, draws), kind, place, openable)
        for kind, point, place, openable in zip(kinds, points, places, opens, strict=True)
    )
    present = _list_object_kinds(key.seed, room, key.scene)
    return Layout(
        key=key,
        room=room,
        receptacles=receptacles,
        points=tuple(points),
        lamps=_place_lamps(key, room, kinds, draws),
        kinds=present & TINY_OBJECTS[room] if key.size == "tiny" else present,
        start=next(spots),
        floor=tuple(next(spots) for _ in range(4)),
    )


def _draw_standing_points(room: str, draws: Stream) -> Iterator[str]:
    """Different standing points, spelled as game files do: `loc_bar_x_bar_z_bar_rotation_bar_horizon`."""
    extent, used = load_statistics().extent[room], set()
    while True:
        x = extent.loc_x[0] + draws.integers(extent.loc_x[1] - extent.loc_x[0] + 1)
        z = extent.loc_z[0] + draws.integers(extent.loc_z[1] - extent.loc_z[0] + 1)
        spot = (x, z, draws.integers(4), load_statistics().horizons.draw(draws))
        if spot not in used:
            used.add(spot)
            yield "loc_bar_" + "_bar_".join(f"_minus_{-part}" if part < 0 else str(part) for part in spot)


def _share_standing_points(room: str, kinds: list[str], places: list[str], draws: Stream) -> list[str]:
    """Let some pairs of receptacles share a standing point; the counts give their share and their kinds."""
    alone = list(range(len(kinds)))
    wanted = load_statistics().shared[room] * len(kinds)
    pairs = wanted // 2000 + (draws.integers(2000) < wanted % 2000)
    for _ in range(pairs):
        options: dict[tuple[int, int], int] = {}
        for (first, second), weight in load_statistics().shared_pairs.items():
            ones, others = ([n for n in alone if kinds[n] == kind] for kind in (first, second))
            options |= {(a, b): weight for a in ones for b in others if (a < b if first == second else a != b)}
        choice = WeightedChoice(options.items())
        if not choice:
            break
        one, other = choice.draw(draws)
        places[other] = places[one]
        alone = [number for number in alone if number not in (one, other)]
    return places


def _draw_openable(size: str, kinds: list[str], draws: Stream) -> list[bool]:
    """For each receptacle, whether it has a door; tiny rooms have at most two doors besides fridge and microwave."""
    opens, doors = [], 0
    for kind in kinds:
        able, of = load_statistics().openable.get(kind, (0, 1))
        door = draws.integers(of) < able
        if size == "tiny" and kind not in ("Fridge", "Microwave"):
            door = door and doors < 2
            doors += door
        opens.append(door)
    return opens


def _draw_points(room: str, kinds: list[str], draws: Stream) -> list[Point]:
    """Coordinates for each receptacle; two of one kind never have the same."""
    extent, used, points = load_statistics().extent[room], set(), []
    for kind in kinds:
        low, middle, high = load_statistics().heights.get(kind, (80, 90, 110))
        while True:
            x = draw_between(extent.x, draws)
            half = (low, middle) if draws.integers(2) else (middle, high)
            point = Point(x, draw_between(half, draws), draw_between(extent.z, draws))
            if (kind, point) not in used:
                break
        used.add((kind, point))
        points.append(point)
    return points


def draw_between(ends: tuple[int, int], draws: Stream) -> int:
    return ends[0] + draws.integers(ends[1] - ends[0] + 1)


def make_object_id(kind: str, point: Point, draws: Stream) -> str:
    """An id as game files spell it: metres with sign and two decimals; a zero sometimes without its sign."""
    name = BASINS.get(kind, kind)
    for axis in point:
        sign = "_minus_" if axis < 0 else "_plus_" if axis > 0 or draws.integers(6) else ""
        name += f"_bar_{sign}{abs(axis) // 100:02d}_dot_{abs(axis) % 100:02d}"
    return f"{name}_bar_{kind}" if kind in BASINS else name


def _place_lamps(key: LayoutKey, room: str, kinds: list[str], draws: Stream) -> dict[str, int]:
    """The room's lamps, each on a receptacle; tiny living rooms and bedrooms have one lamp if something can hold it."""
    scenes, found = load_statistics().lamps, {}
    for lamp in sorted(scenes):
        order = stream(key.seed, "alfworld", "lamps", room, lamp).permutation(30).tolist()
        hosts = [number for host in LAMP_HOSTS[lamp] for number, kind in enumerate(kinds) if kind == host]
        has = order.index(key.scene % 100 - 1) < scenes[lamp].get(room, 0)
        if key.size == "tiny":
            has = lamp == {"living_room": "FloorLamp", "bedroom": "DeskLamp"}.get(room)
        if has and hosts:
            found[lamp] = draws.pick(hosts)
    return found


@lru_cache(maxsize=512)
def _list_object_kinds(seed: int, room: str, scene: int) -> frozenset[str]:
    """The kinds of objects a scene has: each kind is in exactly as many of the 30 scenes as it is in ALFRED's."""
    return frozenset(
        kind
        for kind, facts in load_statistics().objects[room].items()
        if stream(seed, "alfworld", "kinds", room, kind).permutation(30).tolist().index(scene % 100 - 1) < facts.scenes
    )
