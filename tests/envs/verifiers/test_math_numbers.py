"""Plain numbers in words and powers of ten, and the size of an answer at which it is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fedagentgym.envs.verifiers.math_text import refusal
from fedagentgym.envs.verifiers.mathematics.numbers import Number, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 dozen", 24),
        ("twenty-three", 23),
        ("twenty three", 23),
        ("ninety", 90),
        ("5e3", 5000),
        ("5 x 10^3", 5000),
        (r"5 \times 10^{3}", 5000),
        ("5*10^-2", Fraction(1, 20)),
        ("1.5 million", 1_500_000),
        ("2 hundred", 200),
        ("2 thousand", 2_000),
        ("2 billion", 2 * 10**9),
        ("2 trillion", 2 * 10**12),
    ],
)
def test_a_number_in_words_or_with_a_power_of_ten_is_exact(text: str, value: Fraction) -> None:
    found = number(text)
    assert found is not None and found.value == value


@pytest.mark.parametrize("text", ["1.2345e1", r"1.2345 \times 10^1", "12.345"])
def test_a_power_of_ten_leaves_fewer_decimals(text: str) -> None:
    found = number(text)
    assert found is not None and found.places == 3
    assert number("1.2e5") == Number(Fraction(120_000)) and number("1.2e-2") == Number(Fraction(12, 1000), places=3)


def test_only_one_phrase_before_a_number_is_left_out() -> None:
    assert number("the answer is 4") == Number(Fraction(4))
    assert number("the answer is 4 when y is even") is None


@pytest.mark.parametrize("text", ["dozen", "10^3", "twenty-", "5e"])
def test_what_is_no_plain_number_is_none(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    ("part", "most", "told"),
    [
        ("=1", 24, "too many parts"),
        ("^1", 24, "too many parts"),
        (r"\a", 120, "too many parts"),
        (r"\sum", 4, "too many parts"),
    ],
)
def test_an_answer_has_so_many_parts_at_most(part: str, most: int, told: str) -> None:
    assert refusal("1" + part * most) is None
    assert refusal("1" + part * (most + 1)) == told


def test_an_answer_is_so_deep_at_most() -> None:
    assert refusal("(" * 12 + "1" + ")" * 12) is None
    assert refusal("(" * 13 + "1" + ")" * 13) == "too deep"
    assert refusal("{1") == refusal(r"\boxed{1}") == "braces do not match"
