"""The tasks of the skills environment: the procedure of each category, and pools that ask the same questions in all of them.

A *surface* is a question without its category: the numbers and the things. Surfaces are numbered through a permutation
that depends on the seed alone; every split is a range of these numbers, and each of its surfaces is asked in every category. So
tasks and surfaces are disjoint across splits, and without the category a surface does not determine the right answer.

A *procedure* is a word over `+` and `-`: `+-` adds the second number and takes off the third. Numbers are chosen so that nothing
but the result distinguishes the procedures: every number, every step and every result has two digits, no digit is carried
or borrowed, and no two procedures of one length give the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from fedagentgym.base.errors import DataError, OptionError, show_value
from fedagentgym.base.streams import stream
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.reasoning.generators.problems import Form, ProblemSequence, split_words
from fedagentgym.envs.reasoning.pools import Cell, PoolGenerator

DIGITS = range(10)
MAX_STEPS = 3
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
    """The steps of a procedure as text, which has the same form for all procedures.

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


@lru_cache(maxsize=MAX_STEPS)
def list_numbers(steps: int) -> tuple[Numbers, ...]:
    """All numbers that a question with this number of steps may have, in order."""
    tens, ones = list(_iter_digits(steps, least=1)), list(_iter_digits(steps, least=0))
    made = (tuple(10 * ten + one for ten, one in zip(upper, lower, strict=True)) for upper in tens for lower in ones)
    return tuple(sorted(numbers for numbers in made if _distinguishes_procedures(numbers[1:])))


def _iter_digits(steps: int, least: int) -> Iterator[tuple[int, ...]]:
    """Digits of one decimal place: if all others are added to the first or taken off, the result is between `least` and 9."""
    for others in product(range(least, 10), repeat=steps):
        total = sum(others)
        yield from ((first, *others) for first in DIGITS if first - total >= least and first + total <= 9)


def _distinguishes_procedures(others: Sequence[int]) -> bool:
    """Return whether no two procedures give the same result, which is so if no two subsets of these numbers have the same sum."""
    sums = [sum(chosen) for size in range(len(others) + 1) for chosen in combinations(others, size)]
    return len(set(sums)) == len(sums)


TOWNS = split_words(
    """Arle Bost Cray Dorn Elde Fenn Garth Holm Ince Jarl Kirn Lund Marl Nore Orme Pell Quay Rusk Sele Thorn Ulme
    Vale Wick Yarm Aske Birl Cove Dray Esk Firth Glen Hythe Isle Jedd Kelso Leam Mold Ness Oban Penn Quill Ross
    Staw Tyne Uphill Vere Wold Yell Ashby Brae Croft Dell Erne Ford Grange Hurst Ilam Judd Kemp Lyme Mere Nidd
    Otter Priory"""
)
THINGS = ("hats", "cups", "pens", "coins", "boats", "bells", "maps", "rings")
MIN_SKILLS, MAX_SKILLS = 4, len(TOWNS)
MAX_TURNS = 3
SURFACES = {"val": 32, "test": 64, "warmup": 384, "train": 256}
GENERATOR_VERSION = 1


class SkillTask(NamedTuple):
    """A task's payload: the category (`town`), the things, the numbers of each turn, and (the gold) procedure and answers."""

    town: str
    things: str
    numbers: tuple[Numbers, ...]
    procedure: str = ""
    answers: tuple[int, ...] = ()


@dataclass(frozen=True)
class SkillWorld:
    """The number of skills, how alike they are, and the length of a task."""

    skills: int
    procedures: int
    sharing: int | None
    turns: int
    seed: int
    train_tasks: int | None

    def __post_init__(self) -> None:
        _check_range("skills", self.skills, MIN_SKILLS, MAX_SKILLS)
        _check_range("procedures", self.procedures, 1, MAX_STEPS)
        _check_range("turns", self.turns, 1, MAX_TURNS)
        known = 2**self.procedures
        if self.sharing is None:
            if self.skills % known:
                raise OptionError(
                    f"skills={self.skills} cannot share the {known} procedures of {self.procedures} steps equally: take a "
                    f"multiple of {known}, or set with sharing= how many skills share each procedure"
                )
            return
        if self.sharing < 1 or self.skills % self.sharing or not 2 <= self.skills // self.sharing <= known:
            raise OptionError(
                f"sharing={self.sharing} must divide skills={self.skills} into 2 to {known} groups, each with a procedure "
                f"of procedures={self.procedures} steps"
            )

    @property
    def categories(self) -> tuple[str, ...]:
        return TOWNS[: self.skills]

    def assign_procedures(self) -> dict[str, str]:
        """Category -> procedure; every procedure in use has equally many categories."""
        sharing = self.sharing or self.skills // 2**self.procedures
        in_use = list_procedures(self.procedures)[: self.skills // sharing]
        order = stream(self.seed, "skills", "procedures").shuffled([one for one in in_use for _ in range(sharing)])
        return dict(zip(self.categories, order, strict=True))

    def make_generator(self, env_id: str) -> PoolGenerator:
        """The pools of all splits."""
        numbers = list_numbers(self.procedures)
        ranges: tuple[Sequence[Any], ...] = (*(numbers for _ in range(self.turns)), THINGS)
        cells = [
            Cell(
                town,
                1,
                ProblemSequence([Form(ranges, partial(_make_task, town, procedure))], self.seed, "skills", self.turns),
            )
            for town, procedure in self.assign_procedures().items()
        ]
        sizes = {split: surfaces * self.skills for split, surfaces in SURFACES.items()}
        if self.train_tasks is not None:
            sizes["train"] = self.train_tasks
        source = {
            "generator": "skills",
            "version": GENERATOR_VERSION,
            "skills": self.skills,
            "procedures": self.procedures,
            "sharing": self.sharing,
            "turns": self.turns,
            "seed": self.seed,
        }
        return PoolGenerator(env_id, cells, sizes, source, strip_task, rate_task)

    def make_pool(self, env_id: str, split: str) -> TaskPool:
        return self.make_generator(env_id).make_pool(split)


def _make_task(town: str, procedure: str, *surface: Any) -> SkillTask:
    *numbers, things = surface
    answers = tuple(apply_procedure(procedure, asked) for asked in numbers)
    return SkillTask(town, things, tuple(numbers), procedure, answers)


def strip_task(payload: Any) -> SkillTask:
    """The task without its gold: procedure and answers."""
    return parse_task(payload)._replace(procedure="", answers=())


def rate_task(payload: SkillTask) -> float:
    """Hardness in 0..1: the sum of the digits that have to be added or taken off, as a share of the largest possible."""
    digits = [digit for numbers in payload.numbers for number in numbers[1:] for digit in divmod(number, 10)]
    return sum(digits) / (4 * 2 * len(payload.numbers))


def parse_task(payload: Any) -> SkillTask:
    """The record of a payload, also of a plain mapping with `town`, `things`, `numbers` and `procedure` or `answers`."""
    if isinstance(payload, SkillTask):
        return payload
    try:
        return _read_mapping(payload)
    except (KeyError, TypeError, ValueError):
        raise DataError(
            "a payload of fedagentgym/Skills-v0 has texts 'town' and 'things', 'numbers' (a list of two to four numbers for"
            f" each turn), and a 'procedure' such as '+-' or 'answers', got {show_value(payload)}"
        ) from None


def _read_mapping(payload: Mapping[str, Any]) -> SkillTask:
    numbers = tuple(tuple(_read_number(number) for number in asked) for asked in payload["numbers"])
    town, things, procedure = payload["town"], payload["things"], payload.get("procedure", "")
    answers = tuple(_read_number(answer) for answer in payload.get("answers", ()))
    steps = {len(asked) - 1 for asked in numbers}
    whole = all(isinstance(text, str) for text in (town, things, procedure)) and not set(procedure) - set("+-")
    if not whole or len(steps) != 1 or not 1 <= min(steps) <= MAX_STEPS or (procedure and len(procedure) not in steps):
        raise ValueError
    if procedure and not answers:
        answers = tuple(apply_procedure(procedure, asked) for asked in numbers)
    if answers and len(answers) != len(numbers):
        raise ValueError
    return SkillTask(town, things, numbers, procedure, answers)


def _read_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError
    return int(value)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise OptionError(f"{name} must be between {least} and {most}, got {value}")
