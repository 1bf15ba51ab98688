"""The generated training pool against the counts it is drawn from (test data beside the repository).

Distances between distributions are total variation: half the sum of the absolute differences of the shares. Bounds leave
room for sampling noise of some hundred games; what differs for a reason is left out of the comparison (combinations whose
object lay on the floor in ALFRED, where no text game can pick it up).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
import yaml

from fedagentgym.envs.alfworld.game import CATEGORIES, Game, list_members
from fedagentgym.envs.alfworld.gamefiles import TASK_TYPES
from fedagentgym.envs.alfworld.layouts import get_room_kind
from fedagentgym.envs.alfworld.plans import APPLIANCE, extract_target, find_shortest_plan
from fedagentgym.envs.pool import TaskPool

ROOMS = ("kitchen", "living_room", "bedroom", "bathroom")
EVERY = 2


@dataclass
class Tally:
    """Counts of the generated pool."""

    rooms: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in CATEGORIES})
    combinations: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in CATEGORIES})
    copies: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in CATEGORIES})
    starts: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in CATEGORIES})
    starts_at_goal: Counter[str] = field(default_factory=Counter)
    plans: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in CATEGORIES})
    objects: dict[str, list[int]] = field(default_factory=lambda: {room: [] for room in ROOMS})
    kinds: dict[str, Counter[str]] = field(default_factory=lambda: {room: Counter() for room in ROOMS})
    places: dict[str, Counter[str]] = field(default_factory=lambda: {room: Counter() for room in ROOMS})
    behind_doors: Counter[str] = field(default_factory=Counter)
    sharing: Counter[str] = field(default_factory=Counter)
    receptacles: Counter[str] = field(default_factory=Counter)
    scenes: Counter[int] = field(default_factory=Counter)

    def add(self, game: Game) -> None:
        target, category, scene = extract_target(game), game.category, int(game.scene.removeprefix("FloorPlan"))
        assert target is not None
        room = get_room_kind(scene)
        movable = [kind for kind in game.object_kinds if not kind.endswith("Lamp")]
        self.scenes[scene] += 1
        self.rooms[category][room] += 1
        self.combinations[category][f"{target.thing}>{target.place}"] += 1
        self.copies[category][game.object_kinds.count(target.thing)] += 1
        self.plans[category].append(len(find_shortest_plan(game) or ()))
        self.objects[room].append(len(movable))
        self.kinds[room].update(set(movable))
        self.places[room]["floor"] += len(movable)
        for number, held in enumerate(game.contents):
            kinds = [game.object_kinds[thing] for thing in list_members(held)]
            kinds, place = [kind for kind in kinds if not kind.endswith("Lamp")], game.receptacle_kinds[number]
            self.places[room][place] += len(kinds)
            self.places[room]["floor"] -= len(kinds)
            self.behind_doors[room] += len(kinds) * (game.openable >> number & 1)
            self.starts[category][place] += kinds.count(target.thing)
            self.starts_at_goal[category] += kinds.count(target.thing) * (place == target.place)
        self.receptacles[room] += len(game.receptacles)
        self.sharing[room] += sum(count for count in Counter(game.receptacle_places).values() if count > 1)


@pytest.fixture(scope="module")
def counts(shared_data: Path) -> Mapping[str, Any]:
    return dict(yaml.safe_load((shared_data / "alfworld" / "alfred_statistics.yaml").read_text()))


@pytest.fixture(scope="module")
def tally(pool: Callable[..., TaskPool], shared_data: Path) -> Tally:
    counted, tasks = Tally(), pool("full")
    for index in range(0, len(tasks), EVERY):
        counted.add(tasks[index].payload)
    return counted


def distance(one: Mapping[Any, float], other: Mapping[Any, float]) -> float:
    first, second = sum(one.values()), sum(other.values())
    return sum(abs(one.get(key, 0) / first - other.get(key, 0) / second) for key in {*one, *other}) / 2


@pytest.mark.parametrize("category", CATEGORIES)
def test_rooms_of_a_task_type(tally: Tally, counts: Mapping[str, Any], category: str) -> None:
    wanted = counts["counts"]["train"]["task_type_x_room"][TASK_TYPES[category]]
    assert distance(tally.rooms[category], wanted) < 0.08


@pytest.mark.parametrize("category", CATEGORIES)
def test_objects_and_destinations_of_a_task_type(tally: Tally, counts: Mapping[str, Any], category: str) -> None:
    wanted = counts["targets"]["train"]
    reachable = _reachable(counts, category)
    drawn = tally.combinations[category]
    combinations = {name: count for name, count in wanted["combos"][TASK_TYPES[category]].items() if name in reachable}
    assert set(drawn) <= set(combinations)
    destinations, objects = Counter[str](), Counter[str]()
    for name, count in combinations.items():
        destinations[name.partition(">")[2]] += count
        objects[name.partition(">")[0]] += count
    assert distance(_side(drawn, 2), destinations) < 0.13
    assert distance(_side(drawn, 0), objects) < 0.20
    assert distance(drawn, combinations) < 0.32


def _side(combinations: Mapping[str, int], side: int) -> Counter[str]:
    found = Counter[str]()
    for name, count in combinations.items():
        found[name.partition(">")[side]] += count
    return found


def _reachable(counts: Mapping[str, Any], category: str) -> set[str]:
    """Combinations whose object was picked up from a receptacle at least once."""
    picked: Counter[str] = Counter()
    for room in counts["start_places"]["picked"]["train"].values():
        for kind, places in room.items():
            picked[kind] += sum(places.values()) - places.get("none", 0)
    names = counts["targets"]["train"]["combos"][TASK_TYPES[category]]
    return {name for name in names if picked[name.partition(">")[0]]}


@pytest.mark.parametrize("category", CATEGORIES)
def test_copies_of_the_target(tally: Tally, counts: Mapping[str, Any], category: str) -> None:
    wanted = counts["objects"]["copies_per_type_train"]["target_type"][TASK_TYPES[category]]
    assert distance(tally.copies[category], wanted) < 0.12


@pytest.mark.parametrize("category", CATEGORIES)
def test_plans_are_as_long_as_alfreds(tally: Tally, counts: Mapping[str, Any], category: str) -> None:
    wanted = counts["plans"]["train"][TASK_TYPES[category]]["with_openings"]
    assert abs(median(tally.plans[category]) - wanted["median"]) <= 1
    assert abs(mean(tally.plans[category]) - wanted["mean"]) < 0.4
    assert max(tally.plans[category]) <= wanted["max"]


@pytest.mark.parametrize("category", CATEGORIES)
def test_where_targets_start(tally: Tally, counts: Mapping[str, Any], category: str) -> None:
    starts = tally.starts[category]
    assert not starts[APPLIANCE.get(category, "")]
    share = tally.starts_at_goal[category] / sum(starts.values())
    if category in ("Pick", "Pick2"):
        assert share == 0
    elif category != "Look":
        wanted = counts["start_places"]["start_type_equals_destination_type_train"][TASK_TYPES[category]]["share"]
        assert abs(share - wanted) < 0.13


@pytest.mark.parametrize("room", ROOMS)
def test_how_many_objects_a_room_holds(tally: Tally, counts: Mapping[str, Any], room: str) -> None:
    wanted = counts["objects"]["train"][room]
    assert abs(mean(tally.objects[room]) / wanted["objects_per_trial"]["mean"] - 1) < 0.08
    games = len(tally.objects[room])
    assert abs(sum(tally.kinds[room].values()) / games - wanted["distinct_types_per_trial"]["mean"]) < 1.0
    for kind, (_, share, _, _) in wanted["types"].items():
        assert abs(tally.kinds[room][kind] / games - share) < 0.25, kind


@pytest.mark.parametrize("room", ROOMS)
def test_where_objects_start(tally: Tally, counts: Mapping[str, Any], room: str) -> None:
    estimated = counts["start_places"]["estimated_all_objects_train"][room]
    wanted = dict(estimated["share_by_receptacle_type"])
    wanted["floor"] = wanted.pop("none", 0.0) + wanted.pop("unknown", 0.0)
    assert distance(tally.places[room], wanted) < 0.07
    share = tally.behind_doors[room] / sum(tally.places[room].values())
    assert abs(share - estimated["share_inside_closed_openable"]) < 0.05


@pytest.mark.parametrize("room", ROOMS)
def test_how_many_receptacles_share_a_standing_point(tally: Tally, counts: Mapping[str, Any], room: str) -> None:
    wanted = counts["receptacles"]["shared_locations"]["recomputed_for_all_known_receptacles"][room]["share"]
    assert abs(tally.sharing[room] / tally.receptacles[room] - wanted) < 0.04


def test_every_training_scene_is_used(tally: Tally, counts: Mapping[str, Any]) -> None:
    assert set(tally.scenes) == set(counts["counts"]["scene_numbers"]["train"])
