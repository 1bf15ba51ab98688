"""Programming tasks in six families at five levels: a specification of several steps, each from a small language of steps.

A step has three sides that were written apart: the sentence of the specification, the line of the solution, and what it
does. Expected results come from what the steps do; that the lines of the solution do the same is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedagentgym.base.streams import Stream
from fedagentgym.envs.reasoning.generators.problems import (
    Form,
    Program,
    draw_calls,
    draw_natural,
    draw_number,
    draw_number_list,
    draw_text,
    split_words,
)
from fedagentgym.envs.verifiers.code import Checks


class Step(NamedTuple):
    """A step of a specification: in words, as a line of Python, and as what it does."""

    said: str
    line: str
    does: Callable[[Any], Any]


StepRow = tuple[str, str, Callable[..., Any]] | tuple[str, str, Callable[..., Any], Sequence[Any]]


def _make_steps(*rows: StepRow) -> list[Step]:
    """A step of each row, or one for every value of `{k}` where a row has values."""
    steps = []
    for said, line, does, *values in rows:
        if values:
            steps += [Step(said.format(k=k), line.format(k=k), partial(does, k=k)) for k in values[0]]
        else:
            steps.append(Step(said, line, does))
    return steps


def _insertion_sort(values: list[int]) -> list[int]:
    done: list[int] = []
    for value in values:
        place = sum(other <= value for other in done)
        done.insert(place, value)
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
    ("add {k}", "n = n + {k}", lambda n, k: n + k, range(1, 26)),
    ("subtract {k}", "n = n - {k}", lambda n, k: n - k, range(1, 26)),
    ("multiply by {k}", "n = n * {k}", lambda n, k: n * k, range(2, 10)),
    ("take the remainder by {k}", "n = n % {k}", lambda n, k: n - k * (n // k), range(7, 30)),
    ("divide by {k} and drop the fraction downwards", "n = n // {k}", lambda n, k: (n - n % k) // k, range(2, 10)),
    ("take the larger of it and {k}", "n = max(n, {k})", lambda n, k: k if n < k else n, range(-9, 8)),
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
    ("add {k} to every number", "xs = [x + {k} for x in xs]", lambda xs, k: list(map(k.__add__, xs)), range(1, 16)),
    ("multiply every number by {k}", "xs = [x * {k} for x in xs]", lambda xs, k: list(map(k.__mul__, xs)), range(2, 8)),
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
        range(5, 18),
    ),
    ("append {k}", "xs = xs + [{k}]", lambda xs, k: [*xs, k], range(10)),
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
        range(2, 24),
    ),
    (
        "return how many are above {k}",
        "return sum(x > {k} for x in xs)",
        lambda xs, k: len([x for x in xs if k < x]),
        range(-4, 20),
    ),
)
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
        [c + d for c in "aeiou" for d in "xyz"],
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
    ("put '{k}' in front", 's = "{k}" + s', lambda s, k: f"{k}{s}", "pqvwxyz"),
    ("put '{k}' at the end", 's = s + "{k}"', lambda s, k: f"{s}{k}", "pqvwxyz"),
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
    ("return how many '{k}' are left", 'return s.count("{k}")', lambda s, k: sum(c == k for c in s), "abcdeiourstnlm"),
)


# ---- tasks ----------------------------------------------------------------------------------------------------------


def _make_program(asked: str, solution: str, draw: Callable[[Stream], Any], apply: Callable[[Any], Any]) -> Program:
    calls = draw_calls(asked, draw, apply)
    examples = " ".join(f"f({call.args[0]!r}) is {call.expected!r}." for call in calls[:2])
    return Program(
        f"{asked}\nExamples: {examples}", Checks("f", calls), solution, "I do the steps one after the other ."
    )


def _make_pipeline(name: str, draw: Callable[[Stream], Any], ends: bool, *steps: Step) -> Program:
    """A specification of steps on one argument; unless the last step returns, the result is what is left."""
    what = {"n": "a whole number n", "xs": "a list of whole numbers xs", "s": "a text s"}[name]
    said = [step.said for step in steps] + ([] if ends else ["return the result"])
    numbered = " ".join(f"({number}) {part}." for number, part in enumerate(said, start=1))
    lines = [step.line for step in steps] + ([] if ends else [f"return {name}"])
    solution = f"def f({name}):\n" + "".join(f"    {line}\n" for line in lines)

    def apply(given: Any) -> Any:
        for step in steps:
            given = step.does(given)
        return given

    return _make_program(f"Write a function f({name}) for {what}. {numbered}", solution, draw, apply)


def _make_pipeline_levels(
    name: str, draw: Callable[[Stream], Any], steps: Sequence[Step], last: Sequence[Step] = ()
) -> tuple[tuple[Form[Program], ...], ...]:
    levels = []
    for level in range(1, 6):
        stages = [steps] * (level if last is REDUCING_STEPS else level + 1)
        ranges = (*stages, last) if last else tuple(stages)
        levels.append((Form(ranges, partial(_make_pipeline, name, draw, bool(last))),))
    return tuple(levels)


def _recurrence(a: int, b: int, p: int, q: int, c: int, m: int) -> Program:
    """Terms of a sequence with a rule; later levels have more of the rule."""
    rule = f"{p} times the one before"
    rule += f" plus {q} times the one before that" if q else ""
    rule += f" plus {c}" if c else ""
    rule += f", all taken as the remainder by {m}" if m else ""
    start = f"{a} and {b}" if q else f"{a}"
    asked = f"A sequence starts with {start}; every further number is {rule}. "
    asked += "Write a function f(n) that returns number n (n >= 1)."
    step = f"{p} * y" + (f" + {q} * x" if q else "") + (f" + {c}" if c else "")
    step = f"({step}) % {m}" if m else step
    begin = f"x, y = {a}, {b}" if q else f"x = y = {a}"
    times = "n - 1" if not q else "n - 2"
    solution = f"def f(n):\n    {begin}\n"
    if q:
        solution += "    if n == 1:\n        return x\n"
    solution += f"    for _ in range({times}):\n        x, y = y, {step}\n    return y\n"

    def term(n: int) -> int:
        terms = [a, b] if q else [a]
        while len(terms) < n:
            value = p * terms[-1] + (q * terms[-2] if q else 0) + c
            terms.append(value % m if m else value)
        return terms[n - 1]

    return _make_program(asked, solution, draw_natural, term)


NONE = (0,)
SEQUENCES: tuple[tuple[Form[Program], ...], ...] = (
    (Form((range(1, 60), NONE, (1,), NONE, range(2, 90), NONE), _recurrence),),
    (Form((range(1, 40), NONE, range(2, 6), NONE, range(1, 40), NONE), _recurrence),),
    (Form((range(1, 20), NONE, range(2, 12), NONE, range(1, 20), range(50, 100)), _recurrence),),
    (Form((range(1, 12), range(1, 12), range(1, 5), range(1, 5), NONE, range(50, 100)), _recurrence),),
    (Form((range(1, 10), range(1, 10), range(1, 5), range(1, 5), range(1, 10), range(50, 100)), _recurrence),),
)
LEVEL_PROGRAMS: dict[str, tuple[tuple[Form[Program], ...], ...]] = {
    "numbers": _make_pipeline_levels("n", draw_number, NUMBER_STEPS),
    "lists": _make_pipeline_levels("xs", draw_number_list, LIST_STEPS),
    "aggregates": _make_pipeline_levels("xs", draw_number_list, LIST_STEPS, REDUCING_STEPS),
    "texts": _make_pipeline_levels("s", draw_text, TEXT_STEPS),
    "counting": _make_pipeline_levels("s", draw_text, TEXT_STEPS, COUNTING_STEPS),
    "sequences": SEQUENCES,
}
CODE_WORDS = split_words(
    " ".join(step.said for step in (*NUMBER_STEPS, *LIST_STEPS, *REDUCING_STEPS, *TEXT_STEPS, *COUNTING_STEPS))
    + """ Write a function f for whole number n list of numbers xs text s return the result Examples True False is in I do
    steps one after other A sequence starts with and every further times before plus that all taken as remainder by returns def
    for range len if else not max min sum sorted abs dict fromkeys set count upper lower swapcase replace join isupper reverse
    default _ == != <= >= // ** x y c i"""
)
