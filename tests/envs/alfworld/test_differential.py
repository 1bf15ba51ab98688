"""The native engine against the real one, step by step: text, admissible commands, score and end must be equal."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from duel import MOSTLY_TINY, Report, cluttered_cases, duels, plain_cases, room_of, unusual_case, unusual_cases

from fedagentgym.base.errors import DataError
from fedagentgym.envs.alfworld.game import CATEGORIES
from fedagentgym.envs.alfworld.gamefiles import make_game_content
from fedagentgym.envs.alfworld.plans import make_goal, render_goal
from fedagentgym.envs.alfworld.reader import parse_game
from fedagentgym.envs.alfworld.real import RealEngine

pytestmark = pytest.mark.skipif(
    find_spec("textworld") is None, reason="the real engine comes with the extra [alfworld]"
)
PLAIN, STEPS = 13, 20
ODD, ODD_STEPS = 4, 30
IN_ITSELF = 153
"""Of seed 1: the odd game in which an object container contains itself."""


def assert_equal(reports: list[Report]) -> None:
    different = [(report.name, report.differences) for report in reports if report.differences]
    assert not different, different[:3]


@pytest.fixture(scope="module")
def plain_reports() -> list[Report]:
    return duels(plain_cases(PLAIN, STEPS, sizes=MOSTLY_TINY))


def test_generated_games_go_the_same_way_in_both_engines(plain_reports: list[Report]) -> None:
    assert_equal(plain_reports)
    assert all(report.steps == STEPS for report in plain_reports)


def test_generated_games_cover_types_rooms_and_wordings_and_go_on_past_the_goal(plain_reports: list[Report]) -> None:
    assert len(plain_reports) == PLAIN
    games = [report.game for report in plain_reports]
    assert set(Counter(game.category for game in games)) == set(CATEGORIES)
    assert {room_of(game) for game in games} == {"kitchen", "living room", "bedroom", "bathroom"}
    assert {(game.category, game.wording) for game in games} == {(c, w) for c in CATEGORIES for w in ("move", "put")}
    assert sum(report.wins > 0 for report in plain_reports) >= 8
    assert sum(report.steps_after_win for report in plain_reports) >= 20


def test_games_as_no_generator_writes_them_go_the_same_way_too() -> None:
    in_itself = unusual_case(IN_ITSELF, ODD_STEPS, seed=1)
    assert any(held >> outer & 1 for outer, held in in_itself.game.inner)
    reports = duels([*unusual_cases(ODD, ODD_STEPS, seed=6), *cluttered_cases(2, ODD_STEPS), in_itself])
    assert_equal(reports)
    assert sum(report.wins for report in reports) > 0


def test_both_engines_refuse_the_same_hopeless_goals() -> None:
    game = plain_cases(1, 1)[0].game
    some = ("objectType", "?o", f"{game.object_kinds[0]}Type")
    real = RealEngine()
    for goal in (
        make_goal("Pick", "NoSuchThing", game.receptacle_kinds[0]),
        make_goal("Heat", game.object_kinds[0], "NoSuchPlace"),
        ("and", ("exists", ("?o", "-", "object"), ("and", some, ("isSliced", "?free")))),
    ):
        content = make_game_content(game)
        content["pddl_problem"] = f"{content['pddl_problem'].partition('(:goal')[0]}(:goal {render_goal(goal)}))"
        with pytest.raises(DataError):
            parse_game(content, "hopeless")
        with pytest.raises(DataError, match="cannot play"):
            real.play(content, [])
    real.close()


@pytest.mark.slow
def test_a_thousand_generated_games() -> None:
    assert_equal(duels(plain_cases(1000, STEPS, seed=1)))


@pytest.mark.slow
def test_three_hundred_unusual_games() -> None:
    assert_equal(duels(unusual_cases(300, 60, seed=1)))
