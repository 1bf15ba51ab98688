"""Programs for very small models: one-line functions from thirty templates with two small numbers.

The ranges are chosen so that both numbers always matter: no program gives the same results without one of its operations,
and none returns a constant.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from fedagentgym.base.streams import Stream
from fedagentgym.envs.reasoning.generators.mutants import change_one_part, compile_mutants, run_or_fail
from fedagentgym.envs.reasoning.generators.problems import Form, Inputs, Program, draw_calls, draw_letters, split_words
from fedagentgym.envs.verifiers.code import Checks

FIRST, SMALL, FEW, LONG = range(2, 24), range(1, 24), range(2, 8), range(9, 24)
MAX_INPUTS = 300
Meaning = Callable[[Any, int, int], Any]


def _draw_number(source: Stream) -> int:
    return source.integers(60) - 20


def _draw_list(source: Stream) -> list[int]:
    return [source.integers(20) for _ in range(source.integers(4) + 2)]


def _draw_wide_list(source: Stream) -> list[int]:
    return [source.integers(60) - 20 for _ in range(source.integers(8) + 1)]


def _draw_text(source: Stream) -> str:
    return draw_letters(source, "abcdefgh", range(8, 14))


def _draw_wide_text(source: Stream) -> str:
    return draw_letters(source, "abcdefgh", range(1, 25))


INPUTS = {
    "x": Inputs(_draw_number, range(-60, 80)),
    "xs": Inputs(_draw_list, [[number] for number in range(25)], _draw_wide_list),
    "s": Inputs(_draw_text, "abcdefgh", _draw_wide_text),
}


def _make_templates(name: str, *rows: tuple[str, str, Meaning, *tuple[range, ...]]) -> tuple[Form[Program], ...]:
    """The forms with this input. A row has the question, the expression that solves it, a function of the same meaning, and
    the ranges of the two numbers."""
    forms = []
    for said, written, meaning, *ranges in rows:
        drawn = (*ranges, *(FIRST, SMALL)[len(ranges) :])
        forms.append(Form(drawn, partial(_make_program, name, said, written, meaning)))
    return tuple(forms)


def _list_operands(node: ast.AST) -> list[ast.expr]:
    """The parts of an expression that can replace it: what remains if its operation is left out."""
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.Subscript():
            return [node.value]
        case ast.Call(func=ast.Attribute() as method):
            return [method.value]
        case ast.Call():
            return node.args
        case ast.ListComp(generators=[ast.comprehension(ifs=[_]) as one]):
            return [ast.ListComp(node.elt, [ast.comprehension(one.target, one.iter, [], 0)])]
    return []


@cache
def _list_shorter(name: str, written: str) -> list[Callable[[int, int, Sequence[Any]], Any]]:
    """A template's programs with one operation left out, as functions of the two numbers and the input."""
    trees = change_one_part(ast.parse(f"lambda k, m, {name}: {_name_numbers(written)}", mode="eval"), _list_operands)
    return [partial(_run_on_input, eval(compile(ast.unparse(tree), "<shorter>", "eval"))) for tree in trees]


def _name_numbers(written: str) -> str:
    return written.format(k="k", m="m")


def _run_on_input(program: Callable[[int, int, Any], Any], k: int, m: int, trace: Sequence[Any]) -> Any:
    return run_or_fail(program, k, m, trace[0])  # it may fail, as the sum of a list and a number does


def _make_program(name: str, said: str, written: str, meaning: Meaning, k: int, m: int) -> Program | None:
    asked = f"Write f ( {name} ) that returns {said.format(k=k, m=m)} ."
    shorter = [partial(program, k, m) for program in _list_shorter(name, written)]
    wrong = [partial(_run_on_input, each, k, m) for each in compile_mutants(_name_numbers(written), "k", "m", name)]
    calls = draw_calls(asked, INPUTS[name], lambda given: (given, meaning(given, k, m)), shorter, wrong, MAX_INPUTS)
    if calls is None:
        return None
    solution = written.format(k=k, m=m)
    return Program(asked, Checks("f", calls), f"def f ( {name} ) : return {solution}", f"return {solution} .")


def _repeat_capitals(s: str, k: int, m: int) -> str:
    return "".join(s[:k].upper() for _ in range(m))


TINY_PROGRAMS: dict[str, tuple[Form[Program], ...]] = {
    "arithmetic": _make_templates(
        "x",
        ("x times {k} plus {m}", "x * {k} + {m}", lambda x, k, m: x * k + m),
        ("x times {k} minus {m}", "x * {k} - {m}", lambda x, k, m: x * k - m),
        ("x plus {k} , all times {m}", "( x + {k} ) * {m}", lambda x, k, m: (x + k) * m, FIRST, FIRST),
        ("x minus {k} , all times {m}", "( x - {k} ) * {m}", lambda x, k, m: (x - k) * m, FIRST, FIRST),
        ("the remainder of x by {k} , plus {m}", "x % {k} + {m}", lambda x, k, m: x % k + m, range(3, 24)),
        ("the larger of x and {k} , plus {m}", "max ( x , {k} ) + {m}", lambda x, k, m: max(x, k) + m),
        ("the smaller of x and {k} , plus {m}", "min ( x , {k} ) + {m}", lambda x, k, m: min(x, k) + m),
    ),
    "conditions": _make_templates(
        "x",
        ("{k} if x is above {m} , else x", "{k} if x > {m} else x", lambda x, k, m: k if x > m else x),
        ("x if x is below {m} , else {k}", "x if x < {m} else {k}", lambda x, k, m: x if x < m else k),
        ("x plus {k} if x is above {m} , else x", "x + {k} if x > {m} else x", lambda x, k, m: x + k * (x > m)),
        ("x minus {k} if x is above {m} , else x", "x - {k} if x > {m} else x", lambda x, k, m: x - k * (x > m)),
        ("x times {k} if x is below {m} , else x", "x * {k} if x < {m} else x", lambda x, k, m: [x, x * k][x < m]),
        (
            "x if the remainder of x by {k} is below {m} , else {m}",
            "x if x % {k} < {m} else {m}",
            lambda x, k, m: m if x % k >= m else x,
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
            range(2, 16),
        ),
        (
            "how many of xs are above {k} , plus {m}",
            "sum ( x > {k} for x in xs ) + {m}",
            lambda xs, k, m: len([x for x in xs if x > k]) + m,
            range(2, 16),
        ),
    ),
    "strings": _make_templates(
        "s",
        ("the length of s times {k} plus {m}", "len ( s ) * {k} + {m}", lambda s, k, m: len(s) * k + m),
        ("the first {k} letters of s , {m} times", "s [ : {k} ] * {m}", lambda s, k, m: s[:k] * m, FEW, FEW),
        ("s without its first {k} letters , {m} times", "s [ {k} : ] * {m}", lambda s, k, m: s[k:] * m, FEW, FEW),
        ("letters {k} to {m} of s", "s [ {k} : {m} ]", lambda s, k, m: s[k:m], range(1, 7), range(7, 13)),
        (
            "how many letters of s are like its first , times {k} plus {m}",
            "len ( [ c for c in s if c in s [ : 1 ] ] ) * {k} + {m}",
            lambda s, k, m: s.count(s[0]) * k + m,
        ),
        ("s {k} times , then the first {m} letters", "( s * {k} ) [ : {m} ]", lambda s, k, m: (s * k)[:m], FEW, LONG),
        (
            "the length of s plus {k} , all times {m}",
            "( len ( s ) + {k} ) * {m}",
            lambda s, k, m: (len(s) + k) * m,
            FIRST,
            FIRST,
        ),
        (
            "s in capitals {k} times , then the first {m}",
            "( s . upper ( ) * {k} ) [ : {m} ]",
            lambda s, k, m: (s.upper() * k)[:m],
            FEW,
            LONG,
        ),
        (
            "s backwards {k} times , then the first {m}",
            "( s [ : : - 1 ] * {k} ) [ : {m} ]",
            lambda s, k, m: ("".join(reversed(s)) * k)[:m],
            FEW,
            LONG,
        ),
    ),
}
UNSEEN_TINY_PROGRAMS: dict[str, tuple[Form[Program], ...]] = {
    "arithmetic": _make_templates(
        "x",
        ("the remainder of x by {k} , times {m}", "x % {k} * {m}", lambda x, k, m: m * (x % k), range(3, 24), FIRST),
        ("the larger of x and {k} , times {m}", "max ( x , {k} ) * {m}", lambda x, k, m: max(x, k) * m, FIRST, FIRST),
        ("the smaller of x and {k} , minus {m}", "min ( x , {k} ) - {m}", lambda x, k, m: min(x, k) - m),
    ),
    "conditions": _make_templates(
        "x",
        ("x plus {k} if x is below {m} , else x", "x + {k} if x < {m} else x", lambda x, k, m: x + k * (x < m)),
        ("x times {k} if x is above {m} , else x", "x * {k} if x > {m} else x", lambda x, k, m: [x, x * k][x > m]),
        ("x if x is above {m} , else {k}", "x if x > {m} else {k}", lambda x, k, m: x if x > m else k),
    ),
    "lists": _make_templates(
        "xs",
        (
            "the largest of xs plus {k} , all times {m}",
            "( max ( xs ) + {k} ) * {m}",
            lambda xs, k, m: (max(xs) + k) * m,
            FIRST,
            FIRST,
        ),
        (
            "the sum of xs minus {k} , all times {m}",
            "( sum ( xs ) - {k} ) * {m}",
            lambda xs, k, m: (sum(xs) - k) * m,
            FIRST,
            FIRST,
        ),
        (
            "those of xs below {k} , times {m}",
            "[ x * {m} for x in xs if x < {k} ]",
            lambda xs, k, m: [m * x for x in xs if not x >= k],
            range(4, 18),
            FIRST,
        ),
    ),
    "strings": _make_templates(
        "s",
        (
            "the first {k} letters of s in capitals , {m} times",
            "s [ : {k} ] . upper ( ) * {m}",
            _repeat_capitals,
            FEW,
            FEW,
        ),
        ("the length of s times {k} minus {m}", "len ( s ) * {k} - {m}", lambda s, k, m: len(s) * k - m),
        (
            "s backwards without its first {k} letters , {m} times",
            "s [ : : - 1 ] [ {k} : ] * {m}",
            lambda s, k, m: "".join(reversed(s))[k:] * m,
            FEW,
            FEW,
        ),
    ),
}
"""Templates of the split `unseen` only, made of the same words."""
TINY_CODE_WORDS = split_words(
    """Write f x xs s c that returns times plus minus all the remainder of by larger and smaller is above below if else
    sum largest smallest length first each those how many are letters without its to in then capitals backwards letter like
    def return max min len for upper ( ) [ ] : , . + - * / % < > = ``` ```python python 0 1 2 3 4 5 6 7 8 9"""
)
