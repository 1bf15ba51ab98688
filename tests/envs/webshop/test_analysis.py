"""Words, stems, and the fuzzy measure: compared with the original's tools and with hand-worked cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.envs.webshop.analysis import analyze_text, analyze_token, stem, tokenize
from fedagentgym.envs.webshop.reward import exceeds, token_set_ratio

TEXTS = st.text(max_size=60)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("caress", "caress"), ("cats", "cat"), ("feed", "feed"),
        ("agreed", "agre"), ("plastered", "plaster"), ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"),
        ("troubled", "troubl"), ("sized", "size"), ("hopping", "hop"), ("falling", "fall"), ("filing", "file"), ("sky", "sky"),
        ("happy", "happi"), ("relational", "relat"), ("digitizer", "digit"), ("operator", "oper"), ("hopefulness", "hope"),
        ("electrical", "electr"), ("adjustment", "adjust"), ("adoption", "adopt"), ("effective", "effect"), ("rate", "rate"),
        ("controll", "control"), ("roll", "roll"), ("possibly", "possibl"), ("archaeology", "archaeolog"), ("ox", "ox"),
        ("yoyo", "yoyo"), ("sayings", "sai"), ("flying", "fly"), ("xyz1es", "xyz1"),
    ],
)  # fmt: skip
def test_stems_follow_the_authors_own_program(word: str, expected: str) -> None:
    assert stem(word) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("men's t-shirt, 3.5oz", ["men's", "t", "shirt", "3.5oz"]),
        ("u.s.a. 1,000 pcs; a:b 4:3", ["u.s.a", "1,000", "pcs", "a:b", "4", "3"]),
        ("snake_case _x_ __", ["snake_case", "_x_", "__"]),
        ("½ cup ① 5⁵ ❶", ["cup", "5"]),
        ("食品 abc ひら", ["食", "品", "abc", "ひ", "ら"]),
        ("love❤️it ★★ 👨‍💼!", ["love", "❤️", "it", "★", "★", "👨‍💼"]),
        ("(ﾟ∀ﾟ) ωﾟ", ["ωﾟ"]),
        ("naïve café", ["naïve", "café"]),
        ("", []),
        ("a" * 600, ["a" * 255, "a" * 255, "a" * 90]),
    ],
)
def test_words_follow_unicodes_rules(text: str, expected: list[str]) -> None:
    assert tokenize(text) == expected


def test_terms_drop_possessives_stop_words_and_bare_underscores() -> None:
    assert analyze_text("The Women's dresses, and __ it's x’s") == ["women", "dress", "x"]
    assert analyze_token("the") is None
    assert analyze_token("'s") is None


@given(TEXTS)
def test_any_text_can_be_analysed(text: str) -> None:
    assert all(isinstance(found, str) and found for found in analyze_text(text))


@given(st.text(alphabet="abcdefgilnostuyz'9é", min_size=1, max_size=14))
def test_a_stem_is_never_longer_than_one_letter_more(word: str) -> None:
    assert 0 < len(stem(word)) <= len(word) + 1


def test_fuzzy_scores_are_the_originals(parity: Callable[[str], Any]) -> None:
    pairs = parity("fuzz_pairs")["pairs"]
    assert len(pairs) > 900
    assert [token_set_ratio(a, b) for a, b, _, _ in pairs] == [score for _, _, score, _ in pairs]


@given(TEXTS, TEXTS)
def test_fuzzy_scores_are_percentages_and_a_subset_of_words_scores_full(a: str, b: str) -> None:
    assert 0 <= token_set_ratio(a, b) <= 100
    assert token_set_ratio("red shoes", f"{'red shoes'} box") == 100


@given(st.text(alphabet="ab xé'1", max_size=14), st.text(alphabet="ab xé'1", max_size=14), st.integers(1, 99))
def test_the_shortcut_agrees_with_the_score(a: str, b: str, threshold: int) -> None:
    assert exceeds(a, b, threshold) == (token_set_ratio(a, b) > threshold)
