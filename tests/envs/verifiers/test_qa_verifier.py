"""Exact match, F1 and multiple choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.envs.verifiers import Verdict
from fedagentgym.envs.verifiers.qa import chosen_letter, f1, grade_choice, grade_qa, normalise, verify_qa

OPTIONS = {"A": "aspirin", "B": "opium", "C": "the same as A"}


def test_normalisation_drops_case_punctuation_articles_and_blanks() -> None:
    assert normalise("  The Beatles'  first, an L.P.! ") == "beatles first lp"
    assert grade_qa("<answer>the eiffel tower.</answer>", "Eiffel Tower").correct
    assert not grade_qa("<answer>Eiffel</answer>", "Eiffel Tower").correct


def test_f1_is_the_overlap_of_bags_of_words() -> None:
    assert f1("big red red dog", "red dog") == pytest.approx(2 * 2 / 6)
    assert f1("cat", "dog") == 0.0
    assert f1("", "the") == 1.0
    verdict = verify_qa("Eiffel", ["Big Ben", "Eiffel Tower"])
    assert not verdict.correct and verdict.score == pytest.approx(2 / 3)


def test_yes_and_no_have_no_partial_credit() -> None:
    assert f1("yes", "yes it is") == 0.0
    assert f1("no it is not", "no") == 0.0
    assert f1("Yes.", "yes") == 1.0


def test_without_answer_or_gold_nothing_is_right() -> None:
    assert not grade_qa("Paris", "Paris").correct
    assert not grade_qa("<answer></answer>", "Paris").correct
    assert not grade_qa("<answer>the</answer>", ["", "the"]).correct
    assert not verify_qa("x" * 10_000, "x" * 10_000).correct


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(b)", "B"),
        ("B. opium", "B"),
        ("B opium", "B"),
        ("Opium.", "B"),
        ("The answer is B", "B"),
        ("option: A", "A"),
        ("D", None),
        ("a drug", None),
        ("", None),
        ("A or B", None),
    ],
)
def test_a_choice_is_a_letter_or_the_text_of_one_option(answer: str, letter: str | None) -> None:
    assert chosen_letter(answer, OPTIONS) == letter
    assert grade_choice(f"<answer>{answer}</answer>", "B", OPTIONS).correct == (letter == "B")


def test_the_best_of_several_golds_counts_and_the_verdict_states_how() -> None:
    assert verify_qa("Paris", ["London", "Paris", ""]) == Verdict(True, 1.0, "Paris", "exact")
    partial = verify_qa("the old Paris", iter(["London", "old town", "new Paris"]))  # codespell:ignore town
    assert partial == Verdict(False, pytest.approx(0.5), "the old Paris", "overlap")
    assert verify_qa("Paris", ["", "the"]) == Verdict(False, 0.0, "Paris", "no gold answer")
    assert grade_qa("<answer> </answer>", "Paris").reason == grade_qa("Paris", "Paris").reason == "no answer"


def test_an_answer_of_four_thousand_characters_is_compared_and_a_longer_one_is_not() -> None:
    assert verify_qa("x" * 4_000, "x" * 4_000) == Verdict(True, 1.0, "x" * 200, "exact")
    assert verify_qa("x" * 4_001, "x" * 4_001) == Verdict(False, 0.0, "x" * 200, "too long")


def test_a_choice_names_what_was_chosen() -> None:
    assert grade_choice("<answer>B</answer>", "B", OPTIONS) == Verdict(True, 1.0, "B", "chose B")
    assert grade_choice("<answer>A</answer>", "B", OPTIONS) == Verdict(False, 0.0, "A", "chose A")
    assert grade_choice("<answer>D</answer>", "D", OPTIONS) == Verdict(False, 0.0, "D", "no option")
    assert grade_choice(f"<answer>B) {'x' * 300}</answer>", "B", OPTIONS).parsed == f"B) {'x' * 197}"
    for silent in ("<answer></answer>", "B", ""):
        assert grade_choice(silent, "B", OPTIONS).reason == "no answer"


def test_a_text_that_two_options_share_chooses_neither() -> None:
    twice = {"A": "red", "B": "red", "C": "blue"}
    assert chosen_letter("red", twice) is None
    assert chosen_letter("B red", twice) == chosen_letter("(B) red", twice) == "B"
    assert chosen_letter("the answer is c", twice) == "C"


@given(st.text(max_size=60), st.text(max_size=60))
def test_f1_is_symmetric_and_bounded(one: str, other: str) -> None:
    assert f1(one, other) == pytest.approx(f1(other, one))
    assert 0.0 <= f1(one, other) <= 1.0
    assert f1(one, one) == 1.0
    chosen_letter(one, OPTIONS)
