"""The shortest plan really is the shortest: breadth-first search over the engine finds nothing shorter."""

from __future__ import annotations

import pytest

from fedagentgym.envs.alfworld import engine
from fedagentgym.envs.alfworld.game import CATEGORIES, Game, Receptacle, Thing, build_game
from fedagentgym.envs.alfworld.houses import HouseKey, generate_house
from fedagentgym.envs.alfworld.plans import extract_target, find_shortest_plan, make_goal, plan_commands

IDLE = ("examine", "look", "inventory", "help", "close", "slice")


def _wins_within(game: Game, depth: int) -> bool:
    """Return whether any sequence of at most `depth` commands wins."""
    frontier = {engine.start(game).state}
    for _ in range(depth):
        following = set()
        for state in frontier:
            for command in engine.list_admissible_commands(game, state):
                if not command.startswith(IDLE):
                    following.add(engine.step(game, state, command).state)
        if any(state.won for state in following):
            return True
        frontier = following
    return False


def _short_games(category: str, longest: int, count: int) -> list[Game]:
    games = (generate_house(HouseKey(0, "tiny", "train", number, category)) for number in range(400))
    plans = ((game, find_shortest_plan(game)) for game in games)
    return [game for game, plan in plans if plan is not None and len(plan) <= longest][:count]


@pytest.mark.parametrize(("category", "longest"), [("Pick", 4), ("Look", 4), ("Clean", 6), ("Heat", 6), ("Cool", 6)])
def test_no_shorter_sequence_wins(category: str, longest: int) -> None:
    games = _short_games(category, longest, 4 if longest == 4 else 1)
    assert games
    for game in games:
        plan = plan_commands(game)
        assert plan is not None
        assert not _wins_within(game, len(plan) - 1)


def _two_mugs(first: str, second: str, *, shelf_opens: bool = False, apart: bool = True) -> Game:
    """Two mugs in a room with a drawer, a table and a cabinet; the cabinet is where they belong."""
    receptacles = [
        Receptacle("Drawer_bar_1", "Drawer", "loc_bar_1", openable=True),
        Receptacle("DiningTable_bar_1", "DiningTable", "loc_bar_2"),
        Receptacle("Cabinet_bar_1", "Cabinet", "loc_bar_3" if apart else "loc_bar_2", openable=shelf_opens),
    ]
    traits = frozenset(["pickupable"])
    things = [
        Thing("Mug_bar_1", "Mug", (first,), "loc_bar_1", traits),
        Thing("Mug_bar_2", "Mug", (second,), "loc_bar_1", traits),
    ]
    table = {kind: ["Mug"] for kind in ("Drawer", "DiningTable", "Cabinet")}
    return build_game(
        receptacles=receptacles,
        things=things,
        start="loc_bar_0",
        can_contain=table,
        goal=make_goal("Pick2", "Mug", "Cabinet"),
        task="put two mug in cabinet",
        category="Pick2",
    )


@pytest.mark.parametrize(
    ("game", "length"),
    [
        (_two_mugs("DiningTable_bar_1", "DiningTable_bar_1"), 8),
        (_two_mugs("Drawer_bar_1", "DiningTable_bar_1"), 9),
        (_two_mugs("Drawer_bar_1", "Drawer_bar_1", shelf_opens=True), 10),
        (_two_mugs("DiningTable_bar_1", "DiningTable_bar_1", apart=False), 5),
        (_two_mugs("Cabinet_bar_1", "DiningTable_bar_1"), 4),
        (_two_mugs("Cabinet_bar_1", "Cabinet_bar_1"), 0),
    ],
)
def test_pick_two_by_hand(game: Game, length: int) -> None:
    plan = plan_commands(game)
    assert plan is not None and len(plan) == length
    outcome = engine.start(game)
    for command in plan:
        outcome = engine.step(game, outcome.state, command)
        assert outcome.valid
    assert outcome.state.won


def test_goals_of_other_forms_have_no_plan() -> None:
    game = _two_mugs("Drawer_bar_1", "DiningTable_bar_1")
    sliced = ("and", ("exists", ("?o", "-", "object"), ("and", ("isSliced", "?o"), ("objectType", "?o", "MugType"))))
    everything = ("forall", ("?o", "-", "object"), ("objectType", "?o", "MugType"))
    for goal in (sliced, everything, ("or", sliced, everything)):
        other = build_game(
            receptacles=[Receptacle("Cabinet_bar_1", "Cabinet", "loc_bar_3")],
            things=[Thing("Mug_bar_1", "Mug", ("Cabinet_bar_1",), "loc_bar_3")],
            start="loc_bar_0",
            can_contain={},
            goal=goal,
            task="do something else",
            category="Pick",
        )
        assert extract_target(other) is None and plan_commands(other) is None
    assert extract_target(game) is not None


def test_a_target_that_nothing_can_reach_has_no_plan() -> None:
    nowhere = build_game(
        receptacles=[Receptacle("Cabinet_bar_1", "Cabinet", "loc_bar_3")],
        things=[Thing("Mug_bar_1", "Mug", (), "loc_bar_3", frozenset(["pickupable"]))],
        start="loc_bar_0",
        can_contain={"Cabinet": ["Mug"]},
        goal=make_goal("Pick", "Mug", "Cabinet"),
        task="put a mug in cabinet",
        category="Pick",
    )
    assert plan_commands(nowhere) is None


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_target_is_read_from_the_goal(category: str) -> None:
    game = generate_house(HouseKey(0, "full", "val", 3, category))
    target = extract_target(game)
    assert target is not None and target.category == category
    assert target.thing in game.object_kinds
    assert target.place in (game.object_kinds if category == "Look" else game.receptacle_kinds)
