"""The reader: what it makes of good problems, and one clear sentence for each kind of bad one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError
from fedagentgym.envs.alfworld.game import Game
from fedagentgym.envs.alfworld.gamefiles import domain_digest, grammar_digest, render_problem
from fedagentgym.envs.alfworld.houses import make_house_pool
from fedagentgym.envs.alfworld.plans import make_goal, render_goal
from fedagentgym.envs.alfworld.reader import ProblemText, infer_scene, read_game, read_problem

GAME: Game = make_house_pool("train", env="fedagentgym/ALFWorld-v0", size="tiny")[0].payload
TEXT = render_problem(GAME)
TASK = GAME.task


def read(text: str, **said: str) -> Game:
    return read_problem(text, task=TASK, where="here", **said)


def test_a_written_problem_is_read_back_as_the_same_game() -> None:
    assert read(TEXT, scene=GAME.scene) == GAME


def test_case_blanks_comments_and_order_do_not_matter() -> None:
    noisy = re.sub(r"\n", " ; a (comment\n\t", TEXT.upper().replace("TYPE", "Type"))
    again = read(noisy)
    assert [one.lower() for one in again.objects] == [one.lower() for one in GAME.objects]
    assert (again.contents, again.traits, again.laid, again.openable) == (
        GAME.contents,
        GAME.traits,
        GAME.laid,
        GAME.openable,
    )


def test_what_is_only_declared_is_no_part_of_the_game() -> None:
    more = TEXT.replace("(:objects", "(:objects Faucet_bar_1 - object loc_bar_0 - location Apple - object")
    assert read(more, scene=GAME.scene) == GAME


def test_distances_and_costs_are_passed_over() -> None:
    start = GAME.locations[GAME.start]
    more = TEXT.replace(
        "(:init", f"(:init (= (total-cost) 0) (= (distance {start} {start}) 3) (checked {GAME.receptacles[0]})"
    )
    assert read(more, scene=GAME.scene) == GAME


def replaced(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


BAD_PROBLEMS = {
    "nothing": ("", "empty"),
    "only a comment": ("; nothing", "empty"),
    "no parenthesis": ("define", r"line 1: expected '\('"),
    "not a problem": ("(hello)", "begins with"),
    "cut off": (TEXT[: len(TEXT) // 2], "text ends before"),
    "text after the end": (TEXT + " (x)", "text follows the end"),
    "too deep": ("(" * 5000, "nested more than"),
    "no goal": (replaced("(:goal", "(:gaol"), "section .:goal"),
    "two inits": (replaced("(:goal", "(:init)(:goal"), "two sections"),
    "unknown type": (replaced(" - agent", " - robot"), f"line {line_of(TEXT, ' - agent')}: unknown type 'robot'"),
    "declared twice": (replaced("(:objects", "(:objects agent1 - agent"), "declared twice"),
    "unknown predicate": (
        replaced("(openable ", "(opennable "),
        rf"line {line_of(TEXT, '(openable ')}: unknown predicate.*openable",
    ),
    "undeclared name": (replaced("(openable ", "(openable Ghost_bar_1"), "does not declare"),
    "wrong types": (replaced("(openable ", "(pickupable "), r"takes \(object\)"),
    "no start": (replaced("(atLocation ", "(examined "), "where the agent starts"),
    "goal of unknown predicate": (replaced("(objectType ?o", "(objectKind ?o"), "objectkind"),
    "full hands without a thing": (replaced("(:init", "(:init (holdsAny agent1)"), "holds"),
    "a word as a fact": (replaced("(:init", "(:init openable"), "expected a fact"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PROBLEMS)
def test_bad_problems_are_refused_in_one_sentence(name: str) -> None:
    text, said = BAD_PROBLEMS[name]
    with pytest.raises(DataError, match=said) as caught:
        read(text)
    assert "here" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "goal",
    [
        "()", "(and)(and)", "and", "(exists)", "(exists (?o - object))", "(exists ?o (isHot ?o))", "(exists (?o - ) (isHot ?o))",
        "(not)", "(forall (?o - object))", "(imply (isHot a))", "((isHot a))", "(isHot)", "(isHot (a))", "(and isHot)",
        "(exists ((?o) - object) (isHot ?o))", "(holds ?a ?o)", "(objectType)", "(= 1)", "((and) (and))",
        "(exists (o - object) (isHot o))",
        "(exists (?o - object ?o - receptacle) (isHot ?o))", "(exists (?a ?b ?c ?d ?e ?f ?g ?h - object) (isHot ?h))",
    ],
)  # fmt: skip
def test_unusual_goals_are_read_or_refused_but_never_crash(goal: str) -> None:
    text = f"{TEXT.partition('(:goal')[0]}(:goal {goal}))"
    try:
        read(text)
    except DataError as error:
        assert "here" in str(error)


def test_unsolvable_games_are_refused() -> None:
    head = TEXT.partition("(:goal")[0]
    with pytest.raises(DataError, match="here: the game is unsolvable"):
        read(f"{head}(:goal {render_goal(make_goal('Pick', 'NoSuchThing', 'Shelf'))}))")


WORDS = re.findall(r"[()]|[^\s()]+", TEXT)


@given(
    st.lists(st.tuples(st.integers(0, len(WORDS) - 1), st.integers(0, len(WORDS) - 1), st.integers(0, 2)), max_size=4)
)
def test_damaged_problems_are_read_or_refused_but_never_crash(damages: list[tuple[int, int, int]]) -> None:
    words = list(WORDS)
    for first, second, kind in damages:
        first, second = first % len(words), second % len(words)
        if kind == 0:
            del words[first]
        elif kind == 1:
            words[first], words[second] = words[second], words[first]
        else:
            words.insert(first, words[second])
    try:
        read(" ".join(words))
    except DataError as error:
        assert str(error).startswith("here")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(DataError):
        read(text)


def test_lines_are_counted_as_an_editor_does() -> None:
    source = ProblemText("(a\n(b ; c\n\n d) e\n", "here")
    assert [source.find_line(position) for position in range(7)] == [1, 1, 2, 2, 4, 4, 4]


# ---- files ----------------------------------------------------------------------------------------------------------


def game_file(folder: Path, content: Any, trajectory: str | None = "{}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "game.tw-pddl"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    if trajectory is not None:
        (folder / "traj_data.json").write_text(trajectory)
    return path


BAD_FILES: dict[str, tuple[Any, str | None, str]] = {
    "truncated": (b'{"pddl_domain": "x', "{}", "not valid JSON"),
    "empty": (b"", "{}", "not valid JSON"),
    "not text": (b"\xff\xfe\x00", "{}", "not valid JSON"),
    "deep": (b"[" * 100_000, "{}", "not valid JSON"),
    "a list": ([], "{}", "expected a JSON object"),
    "no grammar": ({"pddl_domain": "", "pddl_problem": ""}, "{}", "'grammar'"),
    "a number": ({"pddl_domain": 1, "grammar": "", "pddl_problem": ""}, "{}", "'pddl_domain'"),
    "marked unsolvable": (
        {"pddl_domain": "", "grammar": "", "pddl_problem": "", "solvable": False},
        "{}",
        "unsolvable",
    ),
    "unknown grammar": ({"pddl_domain": "", "grammar": "grammar ::", "pddl_problem": ""}, "{}", "unknown grammar"),
    "no trajectory": ({}, None, "traj_data.json"),
    "damaged trajectory": ({}, "{", "traj_data.json"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    content, trajectory, said = BAD_FILES[name]
    with pytest.raises(DataError, match=said) as caught:
        read_game(game_file(tmp_path, content, trajectory))
    assert str(tmp_path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "traj_data.json").write_text("{}")
    with pytest.raises(DataError, match="there is no such file"):
        read_game(tmp_path / "game.tw-pddl")


def test_scenes_are_read_from_folder_names() -> None:
    assert infer_scene(Path("/x/train/pick_two_obj_and_place-CD-None-Safe-308/trial_T1/game.tw-pddl")) == "FloorPlan308"
    assert infer_scene(Path("/x/game.tw-pddl")) == ""


def test_digests_ignore_blanks_comments_and_the_task() -> None:
    assert domain_digest("(a  ; note\n b)") == domain_digest("(a b)")
    texts = ['"rhs": "Your task is to: put a mug."\n }', '"rhs":   "Your task is to: look at it, please."\n}']
    assert len({grammar_digest(text) for text in texts}) == 1
