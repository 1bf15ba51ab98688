"""The native engine's rules, one by one, on a hand-made flat; and that it never changes what it is given."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError
from fedagentgym.envs.alfworld.engine import Outcome, list_admissible_commands, start, step
from fedagentgym.envs.alfworld.game import Game, HouseState, Receptacle, Thing, build_game, list_members
from fedagentgym.envs.alfworld.grounding import parse_typed_variables
from fedagentgym.envs.alfworld.plans import infer_category, make_goal, render_goal
from fedagentgym.envs.alfworld.tables import tables_of

FOOD = frozenset(("pickupable", "heatable", "coolable", "cleanable", "sliceable"))
CARRIED = frozenset(("pickupable",))


def flat(**changes: Any) -> Game:
    """A kitchen with two receptacles at one location, a container with something in it, a knife, a lamp."""
    parts: dict[str, Any] = {
        "receptacles": [
            Receptacle("Fridge_bar__plus_01_dot_00", "Fridge", "loc_bar_1", openable=True),
            Receptacle("Microwave_bar__minus_01_dot_00", "Microwave", "loc_bar_2", openable=True),
            Receptacle("CounterTop_bar_0", "CounterTop", "loc_bar_2"),
            Receptacle("Sink_bar_1_bar_SinkBasin", "SinkBasin", "loc_bar_3"),
            Receptacle("Shelf_bar_1", "Shelf", "loc_bar_4"),
            Receptacle("Shelf_bar_2", "Shelf", "loc_bar_5"),
            Receptacle("Shelf_bar_3", "Shelf", None),
        ],
        "things": [
            Thing("Apple_bar_1", "Apple", ("CounterTop_bar_0",), "loc_bar_2", FOOD),
            Thing("Apple_bar_2", "Apple", ("Fridge_bar__plus_01_dot_00",), "loc_bar_1", FOOD),
            Thing(
                "Bowl_bar_1", "Bowl", ("CounterTop_bar_0",), "loc_bar_2", CARRIED | {"container"}, inner=("Fork_bar_1",)
            ),
            Thing("Fork_bar_1", "Fork", ("CounterTop_bar_0",), "loc_bar_2", CARRIED),
            Thing("Knife_bar_1", "Knife", ("CounterTop_bar_0",), "loc_bar_2", CARRIED),
            Thing("DeskLamp_bar_1", "DeskLamp", ("Shelf_bar_1",), "loc_bar_4", frozenset(("toggleable",))),
            Thing("Sink_bar_1", "Sink", (), "loc_bar_3"),
        ],
        "start": "loc_bar_9",
        "can_contain": {
            kind: ["Apple", "Bowl", "Fork", "Knife"] for kind in ("Fridge", "Microwave", "CounterTop", "SinkBasin")
        },
        "goal": make_goal("Heat", "Apple", "CounterTop"),
        "task": "put a hot apple in countertop",
        "category": "Heat",
    }
    return build_game(**{**parts, **changes})


def play(game: Game, *commands: str) -> Outcome:
    """Play commands that must all be admissible."""
    outcome = start(game)
    for command in commands:
        assert command in list_admissible_commands(game, outcome.state), (
            command,
            list_admissible_commands(game, outcome.state),
        )
        outcome = step(game, outcome.state, command)
        assert outcome.valid
    return outcome


def test_the_introduction_lists_what_can_be_reached() -> None:
    assert start(flat()).feedback == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, you see a countertop 1, a fridge 1, a microwave 1, "
        "a shelf 3, a shelf 2, and a sinkbasin 1.\n\n"
        "Your task is to: put a hot apple in countertop."
    )


def test_the_introduction_faces_the_receptacle_one_starts_at() -> None:
    opening = start(flat(start="loc_bar_2")).feedback
    assert "\n\nYou are facing the countertop 1, and microwave 1. Next to it, you see nothing.\n\n" in opening


def test_before_the_first_move_one_sees_nothing() -> None:
    assert (
        play(flat(), "look").feedback == "You are in the middle of a room. Looking quickly around you, you see nothing."
    )


def test_admissible_commands_are_sorted_and_skip_where_one_stands() -> None:
    game = flat()
    assert list_admissible_commands(game, play(game, "go to microwave 1").state) == (
        "examine countertop 1",
        "examine microwave 1",
        "go to fridge 1",
        "go to shelf 2",
        "go to shelf 3",
        "go to sinkbasin 1",
        "help",
        "inventory",
        "look",
        "open microwave 1",
        "take apple 2 from countertop 1",
        "take bowl 1 from countertop 1",
        "take fork 1 from countertop 1",
        "take knife 1 from countertop 1",
    )


def test_heating_needs_no_open_door_and_wins_with_the_last_step() -> None:
    game = flat()
    outcome = play(game, "go to countertop 1", "take apple 2 from countertop 1", "heat apple 2 with microwave 1")
    assert outcome.feedback == "You heat the apple 2 using the microwave 1."
    assert not outcome.state.won
    outcome = step(game, outcome.state, "move apple 2 to countertop 1")
    assert outcome.state.won
    outcome = step(game, outcome.state, "take apple 2 from countertop 1")
    assert not outcome.state.won, "a win is undone by undoing the goal"


def test_cooling_cancels_heat() -> None:
    game = flat()
    hot = ("go to microwave 1", "take apple 2 from countertop 1", "heat apple 2 with microwave 1")
    assert play(game, *hot, "examine apple 2").feedback == "This is a hot apple 2."
    cold = (*hot, "go to fridge 1", "cool apple 2 with fridge 1")
    assert play(game, *cold, "examine apple 2").feedback == "This is a cold apple 2."
    washed = (*cold, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1")
    assert play(game, *washed, "examine apple 2").feedback == "This is a cool and clean apple 2."


def test_a_closed_door_hides_and_keeps() -> None:
    game = flat()
    outcome = play(game, "go to fridge 1")
    assert outcome.feedback == "You arrive at fridge 1. The fridge 1 is closed."
    assert step(game, outcome.state, "take apple 1 from fridge 1") == Outcome(outcome.state, "Nothing happens.", False)
    opened = play(game, "go to fridge 1", "open fridge 1")
    assert opened.feedback == "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."
    assert step(game, opened.state, "close fridge 1").feedback == "You close the fridge 1."


def test_slicing_needs_a_knife_in_hand_and_the_thing_at_hand() -> None:
    game = flat(goal=("and", ("exists", ("?o", "-", "object"), ("isSliced", "?o"))))
    outcome = play(game, "go to countertop 1", "take knife 1 from countertop 1", "slice apple 2 with knife 1")
    assert outcome.feedback == "You sliced the apple 2 with the knife 1."
    assert outcome.state.won
    away = play(game, "go to countertop 1", "take knife 1 from countertop 1", "go to shelf 2")
    assert step(game, away.state, "slice apple 2 with knife 1").feedback == "Nothing happens."


def test_a_container_in_hand_shows_what_is_in_it() -> None:
    outcome = play(flat(), "go to countertop 1", "take bowl 1 from countertop 1", "examine bowl 1")
    assert outcome.feedback == "This is a normal bowl 1. In it, you see a fork 1."


def test_what_was_moved_to_a_neighbour_lies_beside() -> None:
    game = flat()
    moved = (
        "go to countertop 1",
        "take fork 1 from countertop 1",
        "open microwave 1",
        "move fork 1 to microwave 1",
        "look",
    )
    assert (
        play(game, *moved).feedback == "You are facing the countertop 1, and microwave 1. Next to it, you see a fork 1."
    )


def test_use_always_turns_on() -> None:
    game = flat()
    lit = ("go to shelf 3", "use desklamp 1")
    assert play(game, *lit).feedback == play(game, *lit, "use desklamp 1").feedback == "You turn on the desklamp 1."
    assert "take desklamp 1 from shelf 3" not in list_admissible_commands(game, play(game, *lit).state)


def test_a_thing_in_two_places_leaves_only_the_one_it_is_taken_from() -> None:
    twice = Thing("Fork_bar_1", "Fork", ("CounterTop_bar_0", "Microwave_bar__minus_01_dot_00"), "loc_bar_2", CARRIED)
    game = flat(things=[twice])
    outcome = play(game, "go to microwave 1", "take fork 1 from countertop 1", "open microwave 1")
    assert outcome.feedback.endswith("In it, you see a fork 1.")


def test_the_put_wording() -> None:
    game = flat(wording="put")
    assert play(game, "go to countertop 1").feedback.startswith("You arrive at loc 5. On the countertop 1")
    outcome = play(game, "go to countertop 1", "take fork 1 from countertop 1", "put fork 1 in/on countertop 1")
    assert outcome.feedback == "You put the fork 1 in/on the countertop 1."
    for command in ("help", "move fork 1 to countertop 1"):
        assert step(game, outcome.state, command).feedback == "Nothing happens."


def test_the_move_wording_has_help_and_no_put() -> None:
    game = flat()
    assert play(game, "help").feedback.startswith("Available commands:\n  look: ")
    held = play(game, "go to countertop 1", "take fork 1 from countertop 1")
    assert step(game, held.state, "put fork 1 in/on countertop 1").feedback == "Nothing happens."


@pytest.mark.parametrize(
    "command", ["", "  ", "take", "go to", "go to ", "GO TO fridge 1", "look x", "help x", "inventory ?"]
)
def test_other_texts_do_nothing(command: str) -> None:
    game = flat()
    outcome = start(game)
    assert step(game, outcome.state, command) == Outcome(outcome.state, "Nothing happens.", False)


def test_names_count_down_along_the_sorted_ids_and_basins_have_their_own() -> None:
    tables = tables_of(flat())
    assert tables.receptacle_names[-4:] == ("shelf 3", "shelf 2", "shelf 1", "sinkbasin 1")
    assert dict(zip(flat().objects, tables.object_names, strict=True))["Sink_bar_1"] == "sink 1"


def test_a_game_is_small_and_equal_after_pickling() -> None:
    game = flat()
    start(game)
    again = pickle.loads(pickle.dumps(game))
    assert again == game
    assert hash(again) == hash(game)
    assert not again.derived


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"receptacles": [Receptacle("A_bar_1", "Shelf", None), Receptacle("a_bar_1", "Shelf", None)]}, "twice"),
        ({"things": [Thing("A_bar_1", "Apple", ("Oven_bar_1",))]}, "Oven_bar_1"),
        ({"wording": "shove"}, "wording"),
    ],
)
def test_records_that_contradict_each_other_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        flat(**changes)


@given(st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from(["move", "put"]))
def test_what_is_offered_works_and_nothing_given_is_changed(choices: list[int], wording: str) -> None:
    game = flat(wording=wording)
    outcome = start(game)
    for choice in choices:
        offered = list_admissible_commands(game, outcome.state)
        assert list(offered) == sorted(set(offered))
        before = pickle.dumps(outcome.state)
        after = step(game, outcome.state, offered[choice % len(offered)])
        assert after.valid
        assert pickle.dumps(outcome.state) == before
        check_conserved(game, after.state)
        outcome = after


def check_conserved(game: Game, state: HouseState) -> None:
    """Each thing is where it was, somewhere else, or in hand; never lost and never doubled."""
    for thing in range(len(game.objects)):
        places = [number for number, held in enumerate(state.contents) if held >> thing & 1]
        started = [number for number, held in enumerate(game.contents) if held >> thing & 1]
        assert len(places) + (state.held == thing) == len(started)


@given(st.text(max_size=60))
def test_any_text_is_a_command(text: str) -> None:
    game = flat()
    outcome = step(game, start(game).state, text)
    assert outcome.valid == (text.strip() in list_admissible_commands(game, start(game).state))


@given(st.integers(0, 2**80))
def test_members_of_a_bit_set(bits: int) -> None:
    assert sum(1 << number for number in list_members(bits)) == bits


def test_goals_of_all_types_are_told_apart() -> None:
    for category in ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2"):
        assert infer_category(make_goal(category, "Apple", "Shelf")) == category


def test_a_goal_is_rendered_over_lines_as_on_one() -> None:
    goal = make_goal("Pick2", "Apple", "Shelf")
    assert " ".join(render_goal(goal).split()).replace("( ", "(").replace(" )", ")") == render_goal(goal, None)
    assert list(parse_typed_variables(("?a", "?b"))) == [("?a", "object"), ("?b", "object")]


@pytest.mark.parametrize(
    "goal",
    [
        ("and", ("exists", ("?o", "-", "object"), ("checked", "?o"))),
        ("and", ("exists", ("?o", "-", "spoon"), ("isHot", "?o"))),
        ("and", ("isHot", "?free")),
        ("and", ("isHot",)),
        ("and", ("isHot", ("a", "b"))),
    ],
)
def test_goals_the_engine_cannot_follow_are_refused(goal: Any) -> None:
    with pytest.raises(DataError, match="the goal"):
        start(replace(flat(), goal=goal))
