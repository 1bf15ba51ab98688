"""Programs for very small models: one-line functions from thirty templates with two small numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fedagentgym.base.streams import Stream
from fedagentgym.envs.reasoning.generators.problems import Form, Program, draw_calls, split_words
from fedagentgym.envs.verifiers.code import Checks

FIRST, SMALL, POSITIVE, FEW = range(1, 20), range(20), range(2, 20), range(2, 8)
Meaning = Callable[[Any, int, int], Any]


def _draw_int(source: Stream) -> int:
    return source.integers(60) - 20


def _draw_list(source: Stream) -> list[int]:
    return [source.integers(20) for _ in range(source.integers(4) + 2)]


def _draw_string(source: Stream) -> str:
    return "".join(source.pick("abcdefgh") for _ in range(source.integers(6) + 8))


INPUTS = {"x": _draw_int, "xs": _draw_list, "s": _draw_string}


def _make_templates(name: str, *rows: tuple[str, str, Meaning, *tuple[range, ...]]) -> tuple[Form[Program], ...]:
    """Templates with this input: the question, the expression that solves it, its meaning, and the ranges of two numbers."""
    forms = []
    for said, written, meaning, *ranges in rows:
        drawn = (*ranges, *(FIRST, SMALL)[len(ranges) :])
        forms.append(Form(drawn, partial(_make_program, name, said, written, meaning)))
    return tuple(forms)


def _make_program(name: str, said: str, written: str, meaning: Meaning, k: int, m: int) -> Program:
    asked = f"Write f ( {name} ) that returns {said.format(k=k, m=m)} ."
    calls = draw_calls(asked, INPUTS[name], lambda given: meaning(given, k, m))
    solution = written.format(k=k, m=m)
    return Program(asked, Checks("f", calls), f"def f ( {name} ) : return {solution}", f"return {solution} .")


TINY_PROGRAMS: dict[str, tuple[Form[Program], ...]] = {
    "arithmetic": _make_templates(
        "x",
        ("x times {k} plus {m}", "x * {k} + {m}", lambda x, k, m: x * k + m),
        ("x times {k} minus {m}", "x * {k} - {m}", lambda x, k, m: x * k - m),
        ("x plus {k} , all times {m}", "( x + {k} ) * {m}", lambda x, k, m: (x + k) * m),
        ("x minus {k} , all times {m}", "( x - {k} ) * {m}", lambda x, k, m: (x - k) * m),
        ("the remainder of x by {k} , plus {m}", "x % {k} + {m}", lambda x, k, m: x % k + m, POSITIVE),
        ("the larger of x and {k} , plus {m}", "max ( x , {k} ) + {m}", lambda x, k, m: max(x, k) + m),
        ("the smaller of x and {k} , plus {m}", "min ( x , {k} ) + {m}", lambda x, k, m: min(x, k) + m),
    ),
    "conditions": _make_templates(
        "x",
        ("whether x plus {k} is above {m}", "x + {k} > {m}", lambda x, k, m: x + k > m),
        ("whether x minus {k} is above {m}", "x - {k} > {m}", lambda x, k, m: x - k > m),
        ("whether x times {k} is below {m}", "x * {k} < {m}", lambda x, k, m: x * k < m, FEW, range(20, 90)),
        ("{k} if x is above {m} , else x", "{k} if x > {m} else x", lambda x, k, m: k if x > m else x),
        ("x if x is below {m} , else {k}", "x if x < {m} else {k}", lambda x, k, m: x if x < m else k),
        (
            "whether the remainder of x by {k} is below {m}",
            "x % {k} < {m}",
            lambda x, k, m: x % k < m,
            range(5, 20),
            range(1, 5),
        ),
    ),
    "lists": _make_templates(
        "xs",
        ("the sum of xs times {k} plus {m}", "sum ( xs ) * {k} + {m}", lambda xs, k, m: sum(xs) * k + m),
        ("the largest of xs times {k} plus {m}", "max ( xs ) * {k} + {m}", lambda xs, k, m: max(xs) * k + m),
        ("the smallest of xs times {k} plus {m}", "min ( xs ) * {k} + {m}", lambda xs, k, m: min(xs) * k + m),
        ("the length of xs times {k} plus {m}", "len ( xs ) * {k} + {m}", lambda xs, k, m: len(xs) * k + m),
        ("the first of xs times {k} plus {m}", "xs [ 0 ] * {k} + {m}", lambda xs, k, m: xs[0] * k + m),
        ("each of xs times {k} plus {m}", "[ x * {k} + {m} for x in xs ]", lambda xs, k, m: [m + k * x for x in xs]),
        (
            "those of xs above {k} , plus {m}",
            "[ x + {m} for x in xs if x > {k} ]",
            lambda xs, k, m: [m + x for x in xs if not x <= k],
        ),
        (
            "how many of xs are above {k} , plus {m}",
            "sum ( x > {k} for x in xs ) + {m}",
            lambda xs, k, m: len([x for x in xs if x > k]) + m,
        ),
    ),
    "strings": _make_templates(
        "s",
        ("the length of s times {k} plus {m}", "len ( s ) * {k} + {m}", lambda s, k, m: len(s) * k + m),
        ("the first {k} letters of s , {m} times", "s [ : {k} ] * {m}", lambda s, k, m: s[:k] * m, FEW, FEW),
        ("s without its first {k} letters , {m} times", "s [ {k} : ] * {m}", lambda s, k, m: s[k:] * m, FEW, FEW),
        ("letters {k} to {m} of s", "s [ {k} : {m} ]", lambda s, k, m: s[k:m], range(7), range(7, 20)),
        (
            "how many letters of s are like its first , times {k} plus {m}",
            "len ( [ c for c in s if c in s [ : 1 ] ] ) * {k} + {m}",
            lambda s, k, m: s.count(s[0]) * k + m,
        ),
        ("s {k} times , then the first {m} letters", "( s * {k} ) [ : {m} ]", lambda s, k, m: (s * k)[:m], FEW, SMALL),
        ("the length of s plus {k} , all times {m}", "( len ( s ) + {k} ) * {m}", lambda s, k, m: (len(s) + k) * m),
        (
            "s in capitals {k} times , then the first {m}",
            "( s . upper ( ) * {k} ) [ : {m} ]",
            lambda s, k, m: (s.upper() * k)[:m],
            FEW,
        ),
        (
            "s backwards {k} times , then the first {m}",
            "( s [ : : - 1 ] * {k} ) [ : {m} ]",
            lambda s, k, m: ("".join(reversed(s)) * k)[:m],
            FEW,
        ),
    ),
}
TINY_CODE_WORDS = split_words(
    """Write f x xs s c that returns times plus minus all the remainder of by larger and smaller whether is above below if else
    sum largest smallest length first each those how many are letters without its to in then capitals backwards letter like
    def return max min len for upper ( ) [ ] : , . + - * / % < > = ``` ```python python 0 1 2 3 4 5 6 7 8 9"""
)
