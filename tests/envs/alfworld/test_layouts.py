"""Room layouts: sizes, doors, shared standing points, and which rooms are never seen in training."""

from __future__ import annotations

from collections import Counter

import pytest

from fedagentgym.envs.alfworld.figures import load_statistics
from fedagentgym.envs.alfworld.layouts import (
    SIZES,
    TINY_OBJECTS,
    TINY_RECEPTACLES,
    Layout,
    LayoutKey,
    generate_layout,
    get_room_kind,
    list_seen_scenes,
    list_unseen_scenes,
)


def _rooms(size: str, scenes: tuple[int, ...], seed: int = 0) -> list[Layout]:
    return [generate_layout(LayoutKey(seed, size, scene)) for scene in scenes]


def _looks(room: Layout) -> tuple[tuple[str, bool], ...]:
    return tuple(sorted((receptacle.kind, receptacle.openable) for receptacle in room.receptacles))


def test_a_full_layout_has_the_receptacles_of_its_scene() -> None:
    for scene in (*list_seen_scenes("full"), *list_unseen_scenes("full")):
        found = Counter(receptacle.kind for receptacle in generate_layout(LayoutKey(3, "full", scene)).receptacles)
        assert found == Counter(load_statistics().scenes[scene].receptacles)


@pytest.mark.parametrize("size", SIZES)
def test_seen_and_unseen_scenes_do_not_meet(size: str) -> None:
    seen, unseen = list_seen_scenes(size), list_unseen_scenes(size)
    assert len(seen) == 108 and not set(seen) & set(unseen)
    assert {get_room_kind(scene) for scene in unseen} == {"kitchen", "living_room", "bedroom", "bathroom"}


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("seed", [0, 1, 17])
def test_unseen_rooms_of_the_smaller_sizes_look_like_no_seen_room(size: str, seed: int) -> None:
    seen = {(room.room, _looks(room)) for room in _rooms(size, list_seen_scenes(size), seed)}
    assert not seen & {(room.room, _looks(room)) for room in _rooms(size, list_unseen_scenes(size), seed)}


@pytest.mark.parametrize("seed", range(5))
def test_tiny_rooms_are_tiny(seed: int) -> None:
    for room in _rooms("tiny", (*list_seen_scenes("tiny"), *list_unseen_scenes("tiny")), seed):
        assert 3 <= len(room.receptacles) <= 6
        assert room.get_receptacle_kinds() <= TINY_RECEPTACLES[room.room]
        assert room.kinds <= TINY_OBJECTS[room.room]
        assert sum(receptacle.openable for receptacle in room.receptacles) <= 4


@pytest.mark.parametrize("size", SIZES)
def test_ids_are_unique_and_the_agent_starts_between_the_furniture(size: str) -> None:
    for room in _rooms(size, list_seen_scenes(size)):
        ids = [receptacle.id for receptacle in room.receptacles]
        places = {receptacle.place for receptacle in room.receptacles}
        assert len(set(ids)) == len(ids)
        assert room.start not in places and not places & set(room.floor)


def test_basins_and_zeros_are_spelled_as_game_files_do() -> None:
    ids = [
        r.id for seed in range(4) for room in _rooms("full", list_seen_scenes("full"), seed) for r in room.receptacles
    ]
    assert all(one.startswith("Sink_bar_") for one in ids if one.endswith("_bar_SinkBasin"))
    assert any(one.endswith("_bar_BathtubBasin") for one in ids)
    assert not any("_minus_00_dot_00" in one for one in ids)
    assert any("_plus_00_dot_00" in one for one in ids) and any("_bar_00_dot_00" in one for one in ids)


def test_fridges_and_microwaves_always_open_and_surfaces_never() -> None:
    for room in _rooms("full", list_seen_scenes("full")):
        for receptacle in room.receptacles:
            if receptacle.kind in ("Fridge", "Microwave"):
                assert receptacle.openable
            if receptacle.kind not in load_statistics().openable:
                assert not receptacle.openable


def test_layouts_are_the_same_for_the_same_key_and_differ_between_seeds_and_owners() -> None:
    key = LayoutKey(5, "full", 14)
    first = generate_layout(key)
    generate_layout.cache_clear()
    assert generate_layout(key) == first
    others = [
        generate_layout(key._replace(seed=6)),
        generate_layout(key._replace(owner="0.1")),
        generate_layout(key._replace(owner="0.2")),
    ]
    assert len({one.receptacles for one in (first, *others)}) == 4


def test_a_tiny_room_has_the_lamp_of_its_kind_and_most_have_something_to_stand_it_on() -> None:
    rooms = [room for room in _rooms("tiny", list_seen_scenes("tiny")) if room.room in ("living_room", "bedroom")]
    for room in rooms:
        assert set(room.lamps) <= {{"living_room": "FloorLamp", "bedroom": "DeskLamp"}[room.room]}
    assert sum(bool(room.lamps) for room in rooms) > 0.9 * len(rooms)
