"""Wrong programs that are close to a right one: another operator, comparison or function, or a number changed by one.

`draw_calls` chooses hidden tests that these mutants fail, as far as it finds an input at which they are wrong.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any

OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add, ast.Mult),
    ast.Mult: (ast.Add, ast.Sub),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv, ast.Mult),
}
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
NAMES = {"max": "min", "min": "max", "upper": "lower", "lower": "upper"}
NUMBERS = ("k", "m")
"""Names that stand for the numbers of a template."""
FAILED = object()
"""The result of a program that raises; it equals no other."""
FAILURES = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, NameError, MemoryError)


def change_one_part(node: ast.AST, change: Callable[[ast.AST], Iterable[ast.AST]]) -> Iterator[ast.AST]:
    """The program with one node changed, for each node and each of the replacements that `change` gives for it."""
    yield from change(node)
    for field, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [value]
        for at, part in enumerate(parts):
            for changed in change_one_part(part, change) if isinstance(part, ast.AST) else ():
                other = copy.copy(node)
                setattr(other, field, [*parts[:at], changed, *parts[at + 1 :]] if parts is value else changed)
                yield other


def _list_changes(node: ast.AST) -> Iterator[ast.AST]:
    """The replacements of a node, with another operator, comparison, number or name."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            yield from (ast.BinOp(left, kind(), right) for kind in OPERATORS.get(type(op), ()))
        case ast.Compare(left=left, ops=[op], comparators=right) if isinstance(op, COMPARISONS):
            yield from (ast.Compare(left, [kind()], right) for kind in COMPARISONS if not isinstance(op, kind))
        case ast.Constant(value=number) if type(number) is int:
            yield from (ast.Constant(number + by) for by in (1, -1))
        case ast.Name(id=name) if name in NUMBERS:
            yield from (ast.BinOp(node, kind(), ast.Constant(1)) for kind in (ast.Add, ast.Sub))
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name], node.ctx)
        case ast.Attribute(value=value, attr=name) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], node.ctx)


@cache
def compile_mutants(expression: str, *names: str) -> tuple[Callable[..., Any], ...]:
    """The mutants of an expression, as functions of these names."""
    tree = ast.parse(f"lambda {', '.join(names)}: ({expression})", mode="eval")
    return tuple(partial(run_or_fail, eval(_compile(each, "eval"))) for each in change_one_part(tree, _list_changes))


def compile_mutants_of_function(program: str, name: str) -> list[Callable[..., Any]]:
    """The mutants of a program that defines a function `name`, as functions."""
    made: list[Callable[..., Any]] = []
    for tree in change_one_part(ast.parse(program), _list_changes):
        names: dict[str, Any] = {}
        exec(_compile(tree, "exec"), names)
        made.append(partial(run_or_fail, names[name]))
    return made


def _compile(tree: Any, mode: str) -> Any:
    return compile(ast.fix_missing_locations(tree), "<mutant>", mode)


def run_or_fail(function: Callable[..., Any], *given: Any) -> Any:
    """The result of a function, or `FAILED` if it raises."""
    try:
        return function(*given)
    except FAILURES:
        return FAILED
