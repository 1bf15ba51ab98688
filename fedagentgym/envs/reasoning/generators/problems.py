"""Problems, questions and programs as plain values, and the numbering of all problems of a form.

A `Form` is one kind of problem with a finite space of parameters. A `ProblemSequence` holds the forms of one cell
(subject and level) and numbers their problems in an order that depends on the seed. Number j of a sequence is always
the same problem, no two numbers give the same one, and no list of problems is stored. If some parameters make no
problem, several sets of parameters are reserved for each number. Splits are ranges of numbers, so they are disjoint by
construction.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import Stream, derive, stream
from fedagentgym.envs.verifiers.code import Call, Checks


class MathProblem(NamedTuple):
    """The content of a mathematics task.

    `answers` are the gold answers, one of which suffices. `solution` has the steps of a worked solution, which are the expert's
    reasoning. `formal` restates a generated problem as an expression for sympy or brute force, to check the answer.
    """

    problem: str
    answers: tuple[str, ...]
    solution: str = ""
    formal: str = ""


def make_problem(text: str, answer: object, steps: str, formal: str) -> MathProblem:
    """A generated problem with one answer."""
    return MathProblem(text, (str(answer),), steps, formal)


class Fact(NamedTuple):
    """A text and its title."""

    title: str
    text: str


class Question(NamedTuple):
    """The content of a question task.

    `facts` are the supporting and the distracting texts, in the order in which they are shown. `path` lists the titles to look
    up, in order. `solution` is the text of the supporting facts, which is the expert's reasoning. `options` are the letters
    and texts of a multiple choice.
    """

    question: str
    answers: tuple[str, ...]
    facts: tuple[Fact, ...] = ()
    path: tuple[str, ...] = ()
    solution: str = ""
    options: tuple[tuple[str, str], ...] = ()


TESTS, RESULTS, CANDIDATES, SEARCHED = 10, 3, 10, 500


class Program(NamedTuple):
    """The content of a programming task: the specification, hidden tests, a solution (the gold), and the expert's reasoning."""

    statement: str
    tests: Checks
    solution: str = ""
    thought: str = ""


class Inputs(NamedTuple):
    """Test inputs of a program. If the random ones do not reveal a wrong program, others are searched for one that does.

    Attributes:
        draw: Draws a random input.
        listed: Inputs that the search tries first, among them edge cases.
        draw_wide: Draws further inputs for the search, from a wider range.
    """

    draw: Callable[[Stream], Any]
    listed: Sequence[Any]
    draw_wide: Callable[[Stream], Any] | None = None


def draw_calls(
    text: str,
    inputs: Inputs,
    trace: Callable[[Any], Sequence[Any]],
    shorter: Sequence[Callable[[Sequence[Any]], Any]],
    mutants: Sequence[Callable[[Sequence[Any]], Any]] = (),
    most: int = CANDIDATES,
) -> tuple[Call, ...] | None:
    """Test inputs with the required results, drawn with the text of the specification as the seed.

    At least `RESULTS` results are different, so no constant passes. Each of the `shorter` programs leaves out a part of the
    specification and fails at one of the inputs. The result is None if the first `most` inputs do not suffice, or more than
    `TESTS` are needed: then a part of the specification never matters, or too rarely for tests to show it. Each of the
    `mutants`, which are slightly different programs, fails too, unless it is right at all inputs that are tried. `trace` gives
    the values from the input to the result, which is the last one; a wrong program computes its own result from these values.
    """
    source = stream(0, "inputs", text)
    drawn: dict[str, Call] = {}
    traces: dict[str, Sequence[Any]] = {}
    first_of_kind: dict[str, str] = {}
    alive, telling = list(shorter), []
    for turn in range(2 * most):
        enough = not alive and len(first_of_kind) >= RESULTS
        if enough and len(drawn) >= TESTS:
            break
        if turn >= most and not enough:
            return None
        given = inputs.draw(source)
        name = repr(given)
        if name not in drawn:
            traces[name] = steps = trace(given)
            drawn[name] = Call((given,), steps[-1])
            first_of_kind.setdefault(repr(steps[-1]), name)
            if alive:
                passing = [program for program in alive if program(steps) == steps[-1]]
                if len(passing) < len(alive):
                    telling.append(name)
                alive = passing
    different = list(first_of_kind.values())
    needed = dict.fromkeys([*different[:RESULTS], *telling])
    if len(needed) > TESTS:
        return None
    others = [name for name in drawn if name not in needed]
    alive = [program for program in mutants if all(program(traces[name]) == traces[name][-1] for name in needed)]
    wide = (inputs.draw_wide(source) for _ in range(SEARCHED)) if inputs.draw_wide else ()
    searched = itertools.chain(inputs.listed, wide)
    candidates = itertools.chain(
        ((name, traces[name]) for name in others), ((repr(one), trace(one)) for one in searched)
    )
    while alive and (candidate := next(candidates, None)) is not None:
        name, steps = candidate
        passing = [program for program in alive if program(steps) == steps[-1]]
        if len(passing) < len(alive):
            needed[name] = None
            drawn.setdefault(name, Call((steps[0],), steps[-1]))
        alive = passing
    kept = list(dict.fromkeys([*needed, *different[: TESTS // 2], *drawn]))
    return tuple(drawn[name] for name in kept[: max(TESTS, len(needed))])


NATURALS, LETTERS = range(1, 31), "abcdeiou rstnlmABE"


def _draw_number(source: Stream) -> int:
    return source.integers(120) - 40


def _draw_list(source: Stream) -> list[int]:
    return [source.integers(60) - 15 for _ in range(source.integers(9) + 3)]


def _draw_wide_list(source: Stream) -> list[int]:
    return [source.integers(200) - 60 for _ in range(source.integers(15))]


def _draw_text(source: Stream) -> str:
    return draw_letters(source, LETTERS, range(4, 16))


def _draw_wide_text(source: Stream) -> str:
    return draw_letters(source, LETTERS, range(24))


def _draw_natural(source: Stream) -> int:
    return source.pick(NATURALS)


def draw_letters(source: Stream, letters: str, lengths: range) -> str:
    return "".join(source.pick(letters) for _ in range(source.pick(lengths)))


A_NUMBER, A_NATURAL = Inputs(_draw_number, range(-100, 200)), Inputs(_draw_natural, NATURALS)
A_LIST = Inputs(_draw_list, [[], *([number] for number in range(-15, 60))], _draw_wide_list)
A_TEXT = Inputs(_draw_text, ["", *LETTERS], _draw_wide_text)


P = TypeVar("P")
MAX_PER_FORM = 50_000
_MASK = (1 << 64) - 1


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text, for vocabularies."""
    return tuple(text.split())


class Form(NamedTuple, Generic[P]):
    """One kind of problem: the ranges of its parameters, and the function that makes a problem from them.

    If some parameters make no problem, at least `spare` sets of parameters are reserved for each number; its problem is made
    from the first set that works.
    """

    ranges: tuple[Sequence[Any], ...]
    make: Callable[..., P | None]
    spare: int = 1

    @property
    def size(self) -> int:
        return prod(len(values) for values in self.ranges)

    @property
    def offered(self) -> int:
        """The number of problems that are made from this form."""
        return min(self.size // self.spare, MAX_PER_FORM)

    def make_problem(self, number: int) -> P | None:
        """The problem whose parameters have this number in mixed radix; None if they make no problem."""
        chosen = []
        for values in self.ranges:
            number, digit = divmod(number, len(values))
            chosen.append(values[digit])
        return self.make(*chosen)


class FeistelPermutation:
    """A permutation of 0..size-1 that is computed, not stored: a keyed Feistel network with cycle walking."""

    def __init__(self, size: int, seed: int, *path: int | str) -> None:
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = [derive(seed, *path, turn) | 1 for turn in range(4)]

    def __call__(self, index: int) -> int:
        half, mask = self._half, (1 << self._half) - 1
        while True:
            left, right = index >> half, index & mask
            for key in self._keys:
                mixed = ((right + key) * 0x9E3779B97F4A7C15) & _MASK
                mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
                left, right = right, left ^ ((mixed >> 32) & mask)
            index = left << half | right
            if index < self.size:
                return index


class ProblemSequence(Generic[P]):
    """The problems of one cell. Forms with few problems give all they have; none gives more than `MAX_PER_FORM`."""

    def __init__(self, forms: Sequence[Form[P]], seed: int, *path: int | str) -> None:
        self._forms, self._seed, self._path = forms, seed, path

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> P:
        if not 0 <= number < len(self):
            raise OptionError(f"{'/'.join(map(str, self._path))} has {len(self)} different problems, not {number + 1}")
        place = self._order(number)
        which = bisect_right(self._ends, place)
        start = self._ends[which - 1] if which else 0
        form, own = self._forms[which], range(place - start, self._forms[which].size, self._forms[which].offered)
        made = (form.make_problem(self._within[which](turn)) for turn in own)
        problem = next((problem for problem in made if problem is not None), None)
        if problem is None:
            raise OptionError(f"the seed {self._seed} makes no problem {number} of {'/'.join(map(str, self._path))}")
        return problem

    @cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(form.offered for form in self._forms))

    @cached_property
    def _order(self) -> FeistelPermutation:
        return FeistelPermutation(len(self), self._seed, "deck", *self._path)

    @cached_property
    def _within(self) -> list[FeistelPermutation]:
        return [
            FeistelPermutation(form.size, self._seed, "form", number, *self._path)
            for number, form in enumerate(self._forms)
        ]
