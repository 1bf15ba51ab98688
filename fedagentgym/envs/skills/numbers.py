"""The numbers of a question, and what a procedure makes of them.

A procedure is a word over `+` and `-`: `+-` adds the second number and takes off the third. Numbers are chosen so that nothing
but the result tells one procedure from another: every number, every step and every result has two digits, no digit is carried
or borrowed, and no two procedures of one length give the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product

DIGITS = range(10)
MOST_STEPS = 3
Numbers = tuple[int, ...]


def apply_procedure(procedure: str, numbers: Numbers) -> int:
    """The result of a procedure.

    >>> apply_procedure("+-", (45, 21, 13))
    53
    """
    result = numbers[0]
    for sign, number in zip(procedure, numbers[1:], strict=True):
        result += number if sign == "+" else -number
    return result


def write_steps(procedure: str, numbers: Numbers) -> str:
    """The steps in words of one form, whichever procedure it is.

    >>> write_steps("+-", (45, 21, 13))
    '45 + 21 = 66 . 66 - 13 = 53'
    """
    steps, result = [], numbers[0]
    for sign, number in zip(procedure, numbers[1:], strict=True):
        after = apply_procedure(sign, (result, number))
        steps.append(f"{result} {sign} {number} = {after}")
        result = after
    return " . ".join(steps)


def list_procedures(steps: int) -> tuple[str, ...]:
    """All procedures with this number of steps, each followed by its opposite.

    >>> list_procedures(2)
    ('++', '--', '+-', '-+')
    """
    positive = ["".join(signs) for signs in product("+-", repeat=steps) if signs[0] == "+"]
    return tuple(one for signs in positive for one in (signs, signs.translate(str.maketrans("+-", "-+"))))


@lru_cache(maxsize=MOST_STEPS)
def list_numbers(steps: int) -> tuple[Numbers, ...]:
    """All numbers that a question with this number of steps may have, in order."""
    tens, ones = list(_iter_digits(steps, least=1)), list(_iter_digits(steps, least=0))
    made = (tuple(10 * ten + one for ten, one in zip(upper, lower, strict=True)) for upper in tens for lower in ones)
    return tuple(sorted(numbers for numbers in made if _tells_procedures_apart(numbers[1:])))


def _iter_digits(steps: int, least: int) -> Iterator[tuple[int, ...]]:
    """Digits of one place: the first may have all others added or taken off, and stays between `least` and 9."""
    for others in product(range(least, 10), repeat=steps):
        total = sum(others)
        yield from ((first, *others) for first in DIGITS if first - total >= least and first + total <= 9)


def _tells_procedures_apart(others: Sequence[int]) -> bool:
    """Signed sums differ if and only if the sums of all choices of these numbers do."""
    sums = [sum(chosen) for size in range(len(others) + 1) for chosen in combinations(others, size)]
    return len(set(sums)) == len(sums)
