"""The carried-over figures: the shipped file is what the counts give, and it is complete for the generator."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from fedagentgym.base.streams import stream
from fedagentgym.envs.alfworld.figures import ROOMS, WeightedChoice, load_statistics
from fedagentgym.envs.alfworld.game import CATEGORIES


def _derivation() -> ModuleType:
    path = Path(__file__).with_name("carry_figures.py")
    spec = importlib.util.spec_from_file_location("carry_figures", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_file_is_what_the_counts_give(shared_data: Path) -> None:
    derivation = _derivation()
    statistics = yaml.safe_load((shared_data / "alfworld" / "alfred_statistics.yaml").read_text())
    derived = json.loads(derivation.written(derivation.derive(statistics)))
    assert json.loads(derivation.TARGET.read_text()) == derived


def test_scenes_are_those_of_the_four_rooms() -> None:
    known = load_statistics()
    assert len(known.scenes) == 120
    assert {room: len(known.get_scenes(room)) for room in ROOMS} == dict.fromkeys(ROOMS, 30)
    assert set(known.unseen) == {10, 219, 308, 424}
    assert len(known.spare) == 8 and not set(known.spare) & set(known.unseen)


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_combination_can_be_meant(category: str) -> None:
    """The object can go to the destination (or be looked at), and treatments fit the object."""
    known = load_statistics()
    trait = {"Clean": "cleanable", "Heat": "heatable", "Cool": "coolable"}.get(category)
    for room, combinations in known.combinations[category].items():
        for (thing, place), weight in combinations.items():
            assert weight > 0
            assert thing in known.objects[room]
            assert place in known.lamps if category == "Look" else thing in known.may_hold[place]
            assert trait is None or thing in known.traits[trait]


def test_heat_and_cool_live_in_kitchens_and_look_where_lamps_are() -> None:
    rooms = {category: set(load_statistics().combinations[category]) for category in CATEGORIES}
    assert rooms["Heat"] == rooms["Cool"] == {"kitchen"}
    assert rooms["Clean"] == {"kitchen", "bathroom"}
    assert rooms["Look"] == {"bedroom", "living_room"}


def test_objects_start_only_where_they_can_be_put_back() -> None:
    known = load_statistics()
    for room in ROOMS:
        for kind, facts in known.objects[room].items():
            assert all(kind in known.may_hold[place] for place in facts.places)


def test_a_weighted_draw_follows_its_weights() -> None:
    draws, choice = stream(0, "test"), WeightedChoice([("a", 3), ("never", 0), ("b", 1)])
    drawn = [choice.draw(draws) for _ in range(4000)]
    assert set(drawn) == {"a", "b"}
    assert 0.72 < drawn.count("a") / 4000 < 0.78
    assert not WeightedChoice([("never", 0)])
