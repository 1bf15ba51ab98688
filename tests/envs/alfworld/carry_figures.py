"""Derive the generator's figures from the counts of ALFRED's trajectories (test data beside the repository).

Run `python tests/envs/alfworld/carry_figures.py` to write `fedagentgym/envs/alfworld/data/alfred_figures.json` anew; a test
asserts that the shipped file is what this derivation gives. Three steps turn counts into sampling weights:

1. *Combinations.* The counts know task type by room and task type by combination, not both at once. A table of
   (combination, room) is fitted to both margins by iterative proportional fitting, started from how well a room offers the
   combination. Trials whose object lay on the floor are left out: a text game cannot pick up from the floor.
2. *Places.* The share of objects of a type that start in each receptacle type is known over all scenes. A scene without that
   receptacle type puts the object elsewhere, so weights are fitted until the shares over the scenes come out.
3. *Copies.* Numbers of copies follow the general shape (1 : 2 : 3 copies as 31258 : 23849 : 18745), tilted to each type's mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parents[3] / "fedagentgym" / "envs" / "alfworld" / "data" / "alfred_figures.json"
SOURCE = Path(__file__).parents[4] / "shared" / "data" / "alfworld" / "alfred_statistics.yaml"
ROOMS = ("kitchen", "living_room", "bedroom", "bathroom")
FIRST_SCENE = {"kitchen": 1, "living_room": 201, "bedroom": 301, "bathroom": 401}
CATEGORIES = {
    "Pick": "pick_and_place_simple",
    "Look": "look_at_obj_in_light",
    "Clean": "pick_clean_then_place_in_recep",
    "Heat": "pick_heat_then_place_in_recep",
    "Cool": "pick_cool_then_place_in_recep",
    "Pick2": "pick_two_obj_and_place",
}
FORBIDDEN_START = {"Clean": "SinkBasin", "Heat": "Microwave", "Cool": "Fridge"}
SINGLE = {"Boots", "TeddyBear", "PaperTowelRoll", "Footstool", "ScrubBrush", "Plunger", "TennisRacket", "BasketBall"}
Scenes = dict[int, tuple[int, dict[str, int]]]


def derive(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the data file."""
    relations = dict(statistics["relations"])
    may_hold = {kind: sorted(kinds) for kind, kinds in relations["may_hold"].items()}
    for twin in relations["same_list_as_CounterTop"]:
        may_hold[twin] = may_hold["CounterTop"]
    scenes = {room: _scenes(statistics, room) for room in ROOMS}
    numbers = statistics["counts"]["scene_numbers"]
    train = set(numbers["train"])
    objects = {
        room: _objects(statistics, room, {s: v for s, v in scenes[room].items() if s in train}, may_hold)
        for room in ROOMS
    }
    lamps = {lamp: facts["scenes_having_it"] for lamp, facts in statistics["receptacles"]["lamps"].items()}
    return {
        "about": "Figures counted from ALFRED (github.com/askforalfred/alfred, MIT licence, copyright (c) 2019 ALFRED), "
        "commit f91f4c0c9; derived by tests/envs/alfworld/carry_figures.py.",
        "scenes": {room: {str(s): [t, kinds] for s, (t, kinds) in scenes[room].items()} for room in ROOMS},
        "unseen": numbers["valid_unseen"],
        "spare": numbers["never_in_train_or_valid"],
        "objects": objects,
        "lamps": lamps,
        "combinations": {
            category: _combinations(statistics, category, scenes, objects, may_hold, lamps, train)
            for category in CATEGORIES
        },
        "target_copies": {
            category: _four(statistics["objects"]["copies_per_type_train"]["target_type"][name])
            for category, name in CATEGORIES.items()
        },
        "may_hold": may_hold,
        "traits": {
            trait: relations[trait] for trait in ("heatable", "coolable", "cleanable", "sliceable", "toggleable")
        }
        | {"container": relations["movable_receptacles"]},
        "openable": {
            kind: _openable(statistics, kind) for kind in ("Fridge", "Cabinet", "Microwave", "Drawer", "Safe")
        },
        "shared": {
            room: facts["share"]
            for room, facts in statistics["receptacles"]["shared_locations"][
                "recomputed_for_all_known_receptacles"
            ].items()
            if room in ROOMS
        },
        "shared_pairs": statistics["receptacles"]["shared_locations"]["recomputed_pairs"],
        "heights": {
            kind: [round(100 * row[0]), round(100 * row[1]), round(100 * row[2])]
            for kind, row in statistics["ids"]["receptacle_height_y_m"].items()
        },
        "extent": {room: _extent(statistics, room) for room in ROOMS},
        "horizons": statistics["ids"]["location"]["horizon_counts"],
    }


def _scenes(statistics: Mapping[str, Any], room: str) -> Scenes:
    """Number of trials and receptacles by type of the room's scenes: exact counts where they are known, else lower bounds."""
    first, found = FIRST_SCENE[room], {}
    for number, facts in statistics["receptacles"]["scenes"].items():
        if first <= int(number) < first + 30:
            exact = facts.get("exact", "same")
            found[int(number)] = (int(facts["trials"]), dict(facts["lb"] if exact == "same" else exact))
    return dict(sorted(found.items()))


def _objects(
    statistics: Mapping[str, Any], room: str, scenes: Scenes, may_hold: Mapping[str, list[str]]
) -> dict[str, Any]:
    counted = statistics["objects"]["train"][room]["types"]
    known = statistics["objects"]["scenes_having_type"][room]["pickupable"]
    placed = statistics["start_places"]["estimated_all_objects_train"][room]["by_object"]
    result = {}
    for kind, (_, _, mean, _) in sorted(counted.items()):
        shares = {place: share for place, share in placed[kind].items() if kind in may_hold.get(place, [])}
        floor = max(0.0, 1.0 - sum(shares.values())) if shares else 1.0
        result[kind] = {
            "scenes": known[kind],
            "copies": [1, 0, 0] if kind in SINGLE else _tilted(mean),
            "places": _fitted_places(shares, floor, scenes),
            "floor": round(1000 * floor),
        }
    return result


def _tilted(mean: float) -> list[int]:
    """Weights of 1, 2 and 3 copies with this mean, in thousandths."""
    base = (31258.0, 23849.0, 18745.0)
    low, high = 1e-6, 1e6
    for _ in range(200):
        tilt = (low * high) ** 0.5
        weights = [w * tilt**n for n, w in enumerate(base)]
        now = sum((n + 1) * w for n, w in enumerate(weights)) / sum(weights)
        low, high = (tilt, high) if now < min(mean, 2.99) else (low, tilt)
    return [round(1000 * w / sum(weights)) for w in weights]


def _fitted_places(shares: Mapping[str, float], floor: float, scenes: Scenes) -> dict[str, int]:
    """Weights that give these shares over the scenes, weighted by their trials, when a scene uses the places it has."""
    if not shares:
        return {}
    total = sum(shares.values())
    wanted = {place: share / total for place, share in shares.items()}
    weights = dict(wanted)
    rows = [(trials, [place for place in wanted if place in kinds]) for trials, kinds in scenes.values() if trials]
    for _ in range(300):
        got = dict.fromkeys(wanted, 0.0)
        for trials, here in rows:
            mass = sum(weights[place] for place in here)
            for place in here:
                got[place] += trials * weights[place] / mass
        everything = sum(got.values())
        for place, share in wanted.items():
            if got[place]:
                weights[place] *= (share * everything / got[place]) ** 0.5
        top = max(weights.values())
        weights = {place: min(max(weight / top, 1e-4), 1.0) for place, weight in weights.items()}
    return {place: max(1, round(10000 * weight)) for place, weight in weights.items()}


def _combinations(
    statistics: Mapping[str, Any],
    category: str,
    scenes: Mapping[str, Scenes],
    objects: Mapping[str, Any],
    may_hold: Mapping[str, list[str]],
    lamps: Mapping[str, Mapping[str, int]],
    train: set[int],
) -> dict[str, dict[str, int]]:
    """Room -> 'Object>Destination' -> weight in tenths of a trial, fitted to both margins."""
    name = CATEGORIES[category]
    counts = statistics["targets"]["train"]["combos"][name]
    by_room = statistics["counts"]["train"]["task_type_x_room"][name]
    picked = statistics["start_places"]["picked"]["train"]
    table: dict[tuple[str, str], float] = {}
    wanted: dict[str, float] = dict.fromkeys(counts, 0.0)
    for combination, count in counts.items():
        kind, destination = combination.split(">")
        offers = {}
        for room in by_room:
            facts = objects[room].get(kind)
            if facts is None:
                continue
            if category == "Look":
                weight = float(lamps[destination].get(room, 0)) if facts["places"] else 0.0
            else:
                weight = sum(
                    trials
                    for scene, (trials, kinds) in scenes[room].items()
                    if scene in train
                    and destination in kinds
                    and any(_starts(category, kind, destination, kinds, may_hold))
                )
            picks = picked[room].get(kind, {})
            lying = picks.get("none", 0) / max(1, sum(picks.values()))
            offers[room] = (weight * facts["scenes"] / 30, 1.0 - lying)
        mass = sum(weight for weight, _ in offers.values())
        for room, (weight, reachable) in offers.items():
            if weight * reachable > 0:
                table[combination, room] = weight * reachable
                wanted[combination] += count * reachable * weight / mass
    total, room_total = sum(wanted.values()), sum(by_room.values())
    for _ in range(500):
        _scale(table, 1, {room: total * count / room_total for room, count in by_room.items()})
        _scale(table, 0, wanted)
    result: dict[str, dict[str, int]] = {}
    for (combination, room), weight in sorted(table.items()):
        if round(10 * weight):
            result.setdefault(room, {})[combination] = round(10 * weight)
    return result


def _starts(
    category: str, kind: str, destination: str, kinds: Mapping[str, int], may_hold: Mapping[str, list[str]]
) -> Iterator[str]:
    """Receptacle types of a scene in which the target may lie at the start."""
    refused = {destination} if category in ("Pick", "Pick2") else {FORBIDDEN_START.get(category, "")}
    yield from (place for place in kinds if place not in refused and kind in may_hold.get(place, []))


def _scale(table: dict[tuple[str, str], float], axis: int, wanted: Mapping[str, float]) -> None:
    sums: dict[str, float] = {}
    for key, weight in table.items():
        sums[key[axis]] = sums.get(key[axis], 0.0) + weight
    for key in table:
        table[key] *= wanted[key[axis]] / sums[key[axis]] if sums[key[axis]] else 0.0


def _four(counts: Mapping[int, int]) -> list[int]:
    return [int(counts.get(copies, 0)) for copies in (1, 2, 3, 4)]


def _openable(statistics: Mapping[str, Any], kind: str) -> list[int]:
    facts = statistics["receptacles"]["openable_share_in_exact_scenes"][kind]
    return [facts["with_opening_point"], facts["exact"]]


def _extent(statistics: Mapping[str, Any], room: str) -> dict[str, list[int]]:
    """5 and 95 per cent points of the receptacles' x and z in centimetres, and of the standing points in steps."""
    axes = statistics["ids"]["axis_ranges_m"][room]["receptacle"]
    grid = statistics["ids"]["location"]["range"][room]
    metres = {axis: [round(100 * axes[axis][1]), round(100 * axes[axis][3])] for axis in ("x", "z")}
    return metres | {f"loc_{axis}": [grid[axis][1], grid[axis][3]] for axis in ("x", "z")}


def written(figures: Mapping[str, Any]) -> str:
    """The data file's text: one line per entry of the second level, so that a change shows as a readable difference."""
    blocks = []
    for name, value in figures.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"  {json.dumps(str(key))}: {json.dumps(entry)}" for key, entry in value.items())
            blocks.append(f"{json.dumps(name)}: {{\n{rows}\n}}")
        else:
            blocks.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(written(derive(yaml.safe_load(SOURCE.read_text()))))
