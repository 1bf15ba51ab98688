"""Programming tasks in six families at five levels. A specification consists of several steps from a fixed set of steps.

A step has three parts that were written independently: its sentence in the specification, its line in the solution, and
the function that performs it. Expected results come from these functions; a test checks that the lines do the same.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedagentgym.envs.reasoning.generators.mutants import (
    FAILED,
    compile_mutants,
    compile_mutants_of_function,
    run_or_fail,
)
from fedagentgym.envs.reasoning.generators.problems import (
    A_LIST,
    A_NATURAL,
    A_NUMBER,
    A_TEXT,
    Form,
    Inputs,
    Program,
    draw_calls,
    split_words,
)
from fedagentgym.envs.verifiers.code import Checks

VALUES = 12
"""Maximum number of steps of one kind that are `usual`."""


class Step(NamedTuple):
    """A step of a specification: in words, as a line of Python, and as a function.

    Tasks of level 1 have few steps, chosen among all; other levels choose among the `usual` ones, so that all kinds occur.
    """

    said: str
    line: str
    does: Callable[[Any], Any]
    usual: bool = True


StepRow = tuple[str, str, Callable[..., Any]] | tuple[str, str, Callable[..., Any], Sequence[Any]]


def _make_steps(*rows: StepRow) -> list[Step]:
    """A step of each row, or one for every value of `{k}` where a row has values."""
    steps = []
    for said, line, does, *values in rows:
        if values:
            every = -(-len(values[0]) // VALUES)
            for place, k in enumerate(values[0]):
                steps.append(Step(said.format(k=k), line.format(k=k), partial(does, k=k), place % every == 0))
        else:
            steps.append(Step(said, line, does))
    return steps


def _insertion_sort(values: list[int]) -> list[int]:
    done: list[int] = []
    for value in values:
        bisect.insort(done, value)
    return done


def _drop_duplicates(values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _cumulative_sums(values: list[int]) -> list[int]:
    total, totals = 0, []
    for value in values:
        total += value
        totals.append(total)
    return totals


def _rotate(text: str, k: int) -> str:
    characters = list(text)
    for _ in range(min(k, len(characters))):
        characters.append(characters.pop(0))
    return "".join(characters)


# ---- steps ----------------------------------------------------------------------------------------------------------

NUMBER_STEPS = _make_steps(
    ("add {k}", "n = n + {k}", lambda n, k: n + k, range(1, 60)),
    ("subtract {k}", "n = n - {k}", lambda n, k: n - k, range(1, 60)),
    ("multiply by {k}", "n = n * {k}", lambda n, k: n * k, range(2, 10)),
    ("take the remainder by {k}", "n = n % {k}", lambda n, k: n - k * (n // k), range(7, 30)),
    ("divide by {k} and drop the fraction downwards", "n = n // {k}", lambda n, k: (n - n % k) // k, range(2, 10)),
    ("take the larger of it and {k}", "n = max(n, {k})", lambda n, k: k if n < k else n, range(1, 30)),
    ("take the smaller of it and {k}", "n = min(n, {k})", lambda n, k: n if n < k else k, range(10, 60, 2)),
    (
        "if it is even add {k}, else halve it downwards",
        "n = n + {k} if n % 2 == 0 else n // 2",
        lambda n, k: (n - 1) // 2 if n & 1 else n + k,
        range(1, 12),
    ),
    ("square it", "n = n * n", lambda n: n**2),
    ("take its absolute value", "n = abs(n)", lambda n: n if n >= 0 else -n),
)
LIST_STEPS = _make_steps(
    ("add {k} to every number", "xs = [x + {k} for x in xs]", lambda xs, k: list(map(k.__add__, xs)), range(1, 60)),
    (
        "multiply every number by {k}",
        "xs = [x * {k} for x in xs]",
        lambda xs, k: list(map(k.__mul__, xs)),
        range(2, 12),
    ),
    (
        "keep only the numbers above {k}",
        "xs = [x for x in xs if x > {k}]",
        lambda xs, k: list(filter(k.__lt__, xs)),
        range(-8, 8),
    ),
    (
        "keep only the numbers divisible by {k}",
        "xs = [x for x in xs if x % {k} == 0]",
        lambda xs, k: [x for x in xs if not x % k],
        range(2, 6),
    ),
    (
        "drop the numbers divisible by {k}",
        "xs = [x for x in xs if x % {k} != 0]",
        lambda xs, k: [x for x in xs if x // k * k != x],
        range(2, 6),
    ),
    (
        "keep only the first {k} numbers",
        "xs = xs[:{k}]",
        lambda xs, k: [x for at, x in enumerate(xs) if at < k],
        range(2, 6),
    ),
    (
        "drop the first {k} numbers",
        "xs = xs[{k}:]",
        lambda xs, k: [x for at, x in enumerate(xs) if at >= k],
        range(1, 4),
    ),
    (
        "replace every number by its remainder by {k}",
        "xs = [x % {k} for x in xs]",
        lambda xs, k: [x - x // k * k for x in xs],
        range(5, 30),
    ),
    ("append {k}", "xs = xs + [{k}]", lambda xs, k: [*xs, k], range(60)),
    ("sort the numbers upwards", "xs = sorted(xs)", _insertion_sort),
    ("sort the numbers downwards", "xs = sorted(xs, reverse=True)", lambda xs: _insertion_sort(xs)[::-1]),
    ("reverse the order", "xs = xs[::-1]", lambda xs: list(reversed(xs))),
    ("keep the first of equal numbers only", "xs = list(dict.fromkeys(xs))", _drop_duplicates),
    ("replace every number by its square", "xs = [x * x for x in xs]", lambda xs: [x**2 for x in xs]),
    (
        "replace every number by its absolute value",
        "xs = [abs(x) for x in xs]",
        lambda xs: [x if x > 0 else -x for x in xs],
    ),
    (
        "replace every number by the sum of the numbers up to it",
        "xs = [sum(xs[:i + 1]) for i in range(len(xs))]",
        _cumulative_sums,
    ),
    (
        "take every second number, beginning with the first",
        "xs = xs[::2]",
        lambda xs: [x for at, x in enumerate(xs) if not at % 2],
    ),
)
REDUCING_STEPS = _make_steps(
    ("return the sum", "return sum(xs)", lambda xs: _cumulative_sums([0, *xs])[-1]),
    ("return how many are left", "return len(xs)", lambda xs: sum(1 for _ in xs)),
    (
        "return the largest, or 0 if none is left",
        "return max(xs, default=0)",
        lambda xs: _insertion_sort(xs)[-1] if xs else 0,
    ),
    (
        "return the smallest, or 0 if none is left",
        "return min(xs, default=0)",
        lambda xs: _insertion_sort(xs)[0] if xs else 0,
    ),
    (
        "return the sum of the squares",
        "return sum(x * x for x in xs)",
        lambda xs: _cumulative_sums([0, *(x**2 for x in xs)])[-1],
    ),
    (
        "return how many are below {k}",
        "return sum(x < {k} for x in xs)",
        lambda xs, k: len(xs) - len([x for x in xs if x >= k]),
        range(2, 24, 6),
    ),
    (
        "return how many are above {k}",
        "return sum(x > {k} for x in xs)",
        lambda xs, k: len([x for x in xs if k < x]),
        range(-4, 20, 6),
    ),
    (
        "return the first minus the second plus the third and so on",
        "return sum(xs[::2]) - sum(xs[1::2])",
        lambda xs: _cumulative_sums([0, *(-x if at % 2 else x for at, x in enumerate(xs))])[-1],
    ),
    (
        "return the sum of the distances of neighbours",
        "return sum(abs(xs[i] - xs[i - 1]) for i in range(1, len(xs)))",
        lambda xs: _cumulative_sums([0, *(max(a, b) - min(a, b) for a, b in itertools.pairwise(xs))])[-1],
    ),
    (
        "multiply every number by its place, counted from 1, and return the remainder of their sum by {k}",
        "return sum((i + 1) * xs[i] for i in range(len(xs))) % {k}",
        lambda xs, k: sum(_cumulative_sums(xs[::-1])) % k,
        range(40, 60),
    ),
)
WRITTEN = [a + b for a in ("", *"pqvx") for b in "pqvwxyz"]
TEXT_STEPS = _make_steps(
    ("reverse the text", "s = s[::-1]", lambda s: "".join(reversed(s))),
    ("make all letters capitals", "s = s.upper()", lambda s: "".join(map(str.upper, s))),
    ("make all letters small", "s = s.lower()", lambda s: "".join(map(str.lower, s))),
    (
        "swap capitals and small letters",
        "s = s.swapcase()",
        lambda s: "".join(c.lower() if c.isupper() else c.upper() for c in s),
    ),
    ("write every character twice", 's = "".join(c + c for c in s)', lambda s: "".join(c * 2 for c in s)),
    (
        "take every second character, beginning with the first",
        "s = s[::2]",
        lambda s: "".join(c for at, c in enumerate(s) if not at % 2),
    ),
    (
        "sort the characters",
        's = "".join(sorted(s))',
        lambda s: "".join(map(chr, _insertion_sort([ord(c) for c in s]))),
    ),
    (
        "keep the first of equal characters only",
        's = "".join(dict.fromkeys(s))',
        lambda s: "".join(_drop_duplicates(list(s))),
    ),
    ("remove every '{k}'", 's = s.replace("{k}", "")', lambda s, k: "".join(c for c in s if c != k), "abcdeiourstnlm"),
    (
        "replace every '{k[0]}' by '{k[1]}'",
        's = s.replace("{k[0]}", "{k[1]}")',
        lambda s, k: s.translate({ord(k[0]): k[1]}),
        [c + d for c in "abcdeiourstnlm" for d in "pqvwxyz"],
    ),
    (
        "keep only the first {k} characters",
        "s = s[:{k}]",
        lambda s, k: "".join(c for at, c in enumerate(s) if at < k),
        range(2, 12),
    ),
    (
        "drop the first {k} characters",
        "s = s[{k}:]",
        lambda s, k: "".join(c for at, c in enumerate(s) if at >= k),
        range(1, 6),
    ),
    ("move the first {k} characters to the end", "s = s[{k}:] + s[:{k}]", _rotate, range(1, 5)),
    ("repeat the text {k} times", "s = s * {k}", lambda s, k: "".join(s for _ in range(k)), range(2, 5)),
    ("put '{k}' in front", 's = "{k}" + s', lambda s, k: f"{k}{s}", WRITTEN),
    ("put '{k}' at the end", 's = s + "{k}"', lambda s, k: f"{s}{k}", WRITTEN),
)
COUNTING_STEPS = _make_steps(
    ("return how many characters are left", "return len(s)", lambda s: sum(1 for _ in s)),
    (
        "return how many capitals are left",
        "return sum(c.isupper() for c in s)",
        lambda s: len([c for c in s if "A" <= c <= "Z"]),
    ),
    ("return how many different characters are left", "return len(set(s))", lambda s: len(_drop_duplicates(list(s)))),
    (
        "return how many vowels of 'aeiou' are left",
        'return sum(c in "aeiou" for c in s)',
        lambda s: sum(s.count(c) for c in "aeiou"),
    ),
    ("return how many '{k}' are left", 'return s.count("{k}")', lambda s, k: sum(c == k for c in s), "aeos"),
    (
        "return the sum of the places of all capitals, counted from 1",
        "return sum(i + 1 for i in range(len(s)) if s[i].isupper())",
        lambda s: sum(at for at, c in enumerate(s, start=1) if "A" <= c <= "Z"),
    ),
    (
        "return how many characters come before a larger one",
        "return sum(s[i] < s[i + 1] for i in range(len(s) - 1))",
        lambda s: len([a for a, b in itertools.pairwise(s) if ord(b) > ord(a)]),
    ),
    (
        "multiply the code of every character by its place, counted from 1, and return the remainder of their sum by {k}",
        "return sum((i + 1) * ord(s[i]) for i in range(len(s))) % {k}",
        lambda s, k: sum(_cumulative_sums([ord(c) for c in reversed(s)])) % k,
        range(40, 60),
    ),
)


NEW_STEPS = {
    "n": _make_steps(
        ("subtract it from {k}", "n = {k} - n", lambda n, k: k + -n, range(5, 60)),
        ("replace it by its distance from {k}", "n = abs(n - {k})", lambda n, k: max(n, k) - min(n, k), range(1, 40)),
        ("add its square", "n = n + n * n", lambda n: n * (n + 1)),
    ),
    "xs": _make_steps(
        (
            "subtract every number from {k}",
            "xs = [{k} - x for x in xs]",
            lambda xs, k: [k + -x for x in xs],
            range(5, 60),
        ),
        (
            "keep only the numbers below {k}",
            "xs = [x for x in xs if x < {k}]",
            lambda xs, k: list(filter(k.__gt__, xs)),
            range(8, 40),
        ),
        (
            "put the last number in front",
            "xs = xs[-1:] + xs[:-1]",
            lambda xs: [xs[at - 1] for at in range(len(xs))],
        ),
        (
            "replace every number by its distance from {k}",
            "xs = [abs(x - {k}) for x in xs]",
            lambda xs, k: [max(x, k) - min(x, k) for x in xs],
            range(1, 30),
        ),
    ),
    "s": _make_steps(
        ("keep only the last {k} characters", "s = s[-{k}:]", lambda s, k: "".join(list(s)[-k:]), range(3, 9)),
        (
            "write '{k}' between all characters",
            's = "{k}".join(s)',
            lambda s, k: "".join(k * (at > 0) + c for at, c in enumerate(s)),
            WRITTEN,
        ),
        ("append the reversed text", "s = s + s[::-1]", lambda s: s + "".join(reversed(s))),
    ),
}
"""Steps of the split `unseen` only. Each of its specifications begins with one, except those of sequences."""

# ---- tasks ----------------------------------------------------------------------------------------------------------


SPARE = 9
"""Number of specifications that are reserved for each problem of a form, so that at least one of them makes a problem."""


def _make_program(
    asked: str,
    solution: str,
    inputs: Inputs,
    trace: Callable[[Any], Sequence[Any]],
    shorter: Sequence[Callable[[Sequence[Any]], Any]],
    mutants: Sequence[Callable[[Sequence[Any]], Any]],
) -> Program | None:
    calls = draw_calls(asked, inputs, trace, shorter, mutants)
    if calls is None:
        return None
    examples = " ".join(f"f({call.args[0]!r}) is {call.expected!r}." for call in calls[:2])
    return Program(
        f"{asked}\nExamples: {examples}", Checks("f", calls), solution, "I do the steps one after the other ."
    )


def _continue(steps: Sequence[Step], number: int, left: Any, trace: Sequence[Any]) -> Any:
    """The final result if `left` is the value before the step of this number; `trace` has the right values before each step.

    As soon as a value equals the right one, so does the result.
    """
    for place in range(number, len(steps)):
        if left == trace[place]:
            return trace[-1]
        left = steps[place].does(left)
    return left


def _leave_out(steps: Sequence[Step], out: int, trace: Sequence[Any]) -> Any:
    return _continue(steps, out + 1, trace[out], trace)


def _replace(steps: Sequence[Step], number: int, mutant: Callable[[Any], Any], trace: Sequence[Any]) -> Any:
    left = mutant(trace[number])
    return left if left is FAILED else run_or_fail(_continue, steps, number + 1, left, trace)


def _list_mutants(name: str, steps: Sequence[Step]) -> list[Callable[[Sequence[Any]], Any]]:
    """The programs in which one step is replaced by a mutant, as functions of the trace of right values."""
    return [
        partial(_replace, steps, number, mutant)
        for number, step in enumerate(steps)
        for mutant in compile_mutants(step.line.removeprefix("return ").removeprefix(f"{name} = "), name)
    ]


def _make_pipeline(name: str, inputs: Inputs, ends: bool, *steps: Step) -> Program | None:
    """A program of steps on one argument. It returns the value after the last step; if `ends`, this step is itself a return."""
    what = {"n": "a whole number n", "xs": "a list of whole numbers xs", "s": "a text s"}[name]
    said = [step.said for step in steps] + ([] if ends else ["return the result"])
    numbered = " ".join(f"({number}) {part}." for number, part in enumerate(said, start=1))
    lines = [step.line for step in steps] + ([] if ends else [f"return {name}"])
    solution = f"def f({name}):\n" + "".join(f"    {line}\n" for line in lines)

    def trace(given: Any) -> list[Any]:
        left = [given]
        for step in steps:
            left.append(step.does(left[-1]))
        return left

    shorter = [partial(_leave_out, steps, out) for out in range(len(steps) - ends)]
    asked = f"Write a function f({name}) for {what}. {numbered}"
    return _make_program(asked, solution, inputs, trace, shorter, _list_mutants(name, steps))


def _make_pipeline_levels(
    name: str, inputs: Inputs, steps: Sequence[Step], last: Sequence[Step] = (), unseen: bool = False
) -> tuple[tuple[Form[Program], ...], ...]:
    """A form for each level, with one step more than at the level before; with `unseen`, the first step is one of `NEW_STEPS`."""
    make = partial(_make_pipeline, name, inputs, bool(last))
    usual = [step for step in steps if step.usual]
    ends = (last,) if last else ()
    stages = [[steps if level == 1 else usual] * (level + 1) for level in range(1, 6)]
    if unseen:
        stages = [[[step for step in NEW_STEPS[name] if step.usual], *usual_ones] for _, *usual_ones in stages]
    return tuple((Form((*taken, *ends), make, SPARE),) for taken in stages)


def _recurrence(summed: bool, a: int, b: int, p: int, q: int, c: int, m: int) -> Program | None:
    """A program for the terms of a sequence, or for their sums; the rule has more parts at higher levels."""
    rule = f"{p} times the one before" if p > 1 else "the one before"
    if q:
        rule += f" plus {q} times the one before that" if q > 1 else " plus the one before that"
    rule += f" plus {c}" if c else ""
    rule += f", all taken as the remainder by {m}" if m else ""
    start = f"{a} and {b}" if q else f"{a}"
    asked = f"A sequence starts with {start}; every further number is {rule}. "
    wanted = "the sum of the first n numbers" if summed else "number n"
    asked += f"Write a function f(n) that returns {wanted} (n >= 1)."
    step = (f"{p} * y" if p > 1 else "y") + (f" + {q} * x" if q > 1 else " + x" if q else "") + (f" + {c}" if c else "")
    step = f"({step}) % {m}" if m else step
    begin, turn, end = ("x, y = {a}, {b}", "x, y = y, ", "x") if q else ("y = {a}", "y = ", "y")
    solution = f"def f(n):\n    {begin.format(a=a, b=b)}\n"
    if summed:
        solution += f"    total = {end}\n    for _ in range(n - 1):\n        {turn}{step}\n"
        solution += f"        total = total + {end}\n    return total\n"
    else:
        solution += f"    for _ in range(n - 1):\n        {turn}{step}\n    return {end}\n"

    def find_terms(p: int, q: int, c: int, m: int, n: int) -> list[int]:
        terms = [a, b] if b else [a]
        while len(terms) < n:
            value = p * terms[-1] + (q * terms[-2] if q else 0) + c
            terms.append(value % m if m else value)
        return _cumulative_sums(terms[:n]) if summed else terms[:n]

    def find_last(parts: tuple[int, int, int, int], trace: Sequence[int]) -> int:
        return find_terms(*parts, len(trace))[-1]

    def find_other(mutant: Callable[[int], Any], trace: Sequence[int]) -> Any:
        return mutant(len(trace))

    less = {(1, q, c, m), (p, min(q, 1), c, m), (p, 0, c, m), (p, q, 0, m), (p, q, c, 0)} - {(p, q, c, m)}
    shorter = [partial(find_last, parts) for parts in sorted(less)]
    mutants = [partial(find_other, mutant) for mutant in compile_mutants_of_function(solution, "f")]
    return _make_program(asked, solution, A_NATURAL, partial(find_terms, p, q, c, m), shorter, mutants)


NONE = (0,)
RULES: tuple[tuple[Sequence[int], ...], ...] = (
    (range(1, 200), NONE, (1,), NONE, range(2, 200), NONE),
    (range(1, 100), NONE, range(2, 6), NONE, range(1, 100), NONE),
    (range(1, 20), NONE, range(2, 12), NONE, range(1, 20), range(50, 100)),
    (range(1, 12), range(1, 12), range(1, 5), range(1, 5), NONE, range(50, 100)),
    (range(1, 10), range(1, 10), range(1, 5), range(1, 5), range(1, 10), range(50, 100)),
)


def _make_families(unseen: bool) -> dict[str, tuple[tuple[Form[Program], ...], ...]]:
    """The forms of each family at each level: those of the split `unseen`, or those of all other splits."""
    return {
        "numbers": _make_pipeline_levels("n", A_NUMBER, NUMBER_STEPS, unseen=unseen),
        "lists": _make_pipeline_levels("xs", A_LIST, LIST_STEPS, unseen=unseen),
        "aggregates": _make_pipeline_levels("xs", A_LIST, LIST_STEPS, REDUCING_STEPS, unseen),
        "texts": _make_pipeline_levels("s", A_TEXT, TEXT_STEPS, unseen=unseen),
        "counting": _make_pipeline_levels("s", A_TEXT, TEXT_STEPS, COUNTING_STEPS, unseen),
        "sequences": tuple((Form(ranges, partial(_recurrence, unseen), SPARE),) for ranges in RULES),
    }


LEVEL_PROGRAMS, UNSEEN_PROGRAMS = _make_families(unseen=False), _make_families(unseen=True)
CODE_WORDS = split_words(
    " ".join(
        step.said
        for step in (
            *NUMBER_STEPS,
            *LIST_STEPS,
            *REDUCING_STEPS,
            *TEXT_STEPS,
            *COUNTING_STEPS,
            *(step for steps in NEW_STEPS.values() for step in steps),
        )
    )
    + """ Write a function f for whole number n list of numbers xs text s return the result Examples True False is in I do
    steps one after other A sequence starts with and every further times before plus that all taken as remainder by returns def
    for range len if else not max min sum sorted abs dict fromkeys set count upper lower swapcase replace join isupper reverse
    default ord _ == != <= >= // ** x y c i total"""
)
