"""Values of expressions: roots that are exact, determinants, angles in degrees, and what is too large to be compared."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.envs.reasoning.math import calculate
from fedagentgym.envs.verifiers.math_text import normal
from fedagentgym.envs.verifiers.mathematics.equality import equal_expressions, equal_scalars
from fedagentgym.envs.verifiers.mathematics.syntax import parse
from fedagentgym.envs.verifiers.mathematics.values import TooLarge, Undefined, constant


def are_equal(gold: str, answer: str) -> bool:
    def refuse(_: str, __: str) -> bool:
        raise AssertionError("no computer algebra is needed here")

    return equal_scalars(normal(gold), normal(answer), refuse)


@settings(deadline=None, max_examples=30)
@given(root=st.integers(1, 40), under=st.integers(1, 9), degree=st.integers(2, 7))
def test_roots_of_powers_are_exact_and_those_of_their_neighbours_are_not(root: int, under: int, degree: int) -> None:
    power = rf"\frac{{{root**degree}}}{{{under**degree}}}"
    assert constant(parse(rf"\sqrt[{degree}]{{{power}}}")) == Fraction(root, under)
    for neighbour in (root**degree + 1, root**degree - 1):
        if neighbour > 1:
            assert not isinstance(constant(parse(rf"\sqrt[{degree}]{{{neighbour}}}")), Fraction)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5).flatmap(lambda size: st.lists(st.integers(-4, 4), min_size=size**2, max_size=size**2)))
def test_determinants_of_at_most_four_rows(entries: list[int]) -> None:
    matrix = np.array(entries).reshape(round(len(entries) ** 0.5), -1)
    text = r" \\ ".join(" & ".join(map(str, row)) for row in matrix.tolist())
    tree = parse(rf"\begin{{vmatrix}} {text} \end{{vmatrix}}")
    if len(matrix) > 4:
        with pytest.raises(Undefined):
            constant(tree)
    else:
        assert constant(tree) == round(float(np.linalg.det(matrix)))


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        (r"90^\circ-x", "90-x", True),
        ("90-x", r"90^\circ-x", True),
        (r"90^\circ-x^\circ", "90-x", True),
        (r"45\sqrt{2}^\circ", r"45\sqrt2", True),
        (r"90^\circ-x", r"\frac{\pi}{2}-x", True),
        (r"90^\circ-x", r"\frac{\pi}{2}-2x", False),
        (r"90^\circ-x", "80-x", False),
        (r"\sin 30^\circ", r"\sin 30", False),
    ],
)
def test_an_angle_is_its_number_of_degrees_or_its_value_in_radians(gold: str, answer: str, equal: bool) -> None:
    assert are_equal(gold, answer) is equal


def test_values_of_too_many_digits_are_not_compared() -> None:
    assert equal_expressions(parse(r"\sqrt{2}^{4001}"), parse(r"\sqrt2 \cdot 2^{2000}"))
    assert not equal_expressions(parse(r"\sqrt{2}^{4001}"), parse(r"\sqrt3 \cdot 2^{2000}"))
    with pytest.raises(TooLarge):
        equal_expressions(parse(r"\sqrt{2}^{9999}"), parse(r"\sqrt2 \cdot 2^{4999}"))


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("sqrt(9/4)", "3/2"),
        ("sqrt(2)", "1.414213562"),
        ("sqrt(0)", "0"),
        ("factorial(3)", "6"),
        ("comb(300, 1)", "300"),
    ],
)
def test_functions_of_the_calculator(expression: str, shown: str) -> None:
    assert calculate(expression) == shown
