"""Test code that is given with a task: the checks in it that run, and the calls of its test functions.

Test code fails a program by raising an error. Code that never raises would accept every program, for example functions that
nobody calls, comparisons without `assert`, or asserts whose failure is caught. Such code is refused here. Functions without
parameters whose names begin with `test` are called, as pytest does.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

NEEDED = "asserts, functions test...() without parameters, or a function check(candidate)"
_RAISE = ("fail", "raises", "exit", "quit", "_exit", "abort")
"""Functions that end a test; so do those whose names begin with `assert`."""
_LOOKS_UP = ("eval", "exec", "globals")
"""Built-in functions by which test code can find the program's names."""
_BROAD = ("AssertionError", "Exception", "BaseException")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class UndecidedError(ValueError):
    """Test code that cannot decide; the message continues a sentence about it."""


@lru_cache(maxsize=4096)
def complete_tests(parts: tuple[str, ...], setup: str = "", check: str = "") -> str:
    """The code of these parts, with calls of its test functions where it has none.

    Args:
        parts: The test code: one text, or several that run one after the other.
        setup: Helpers of the test code.
        check: Name of a function in the code that is called with the program's function.

    Raises:
        UndecidedError: If the code is no Python, or no assert in it runs, or some of its tests never run.
    """
    try:
        trees = [ast.parse(part) for part in parts]
        helpers = ast.parse(setup)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UndecidedError(f"is not Python: {error}") from None
    top = [statement for tree in trees for statement in tree.body]
    ran = _Run([*trees, helpers])
    for tree in trees:
        ran.enter(tree.body)
    if check:
        defined = [one for one in (*helpers.body, *top) if isinstance(one, Function) and one.name == check]
        if not defined:
            raise UndecidedError(f"defines no function {check!r}")
        ran.enter_function(defined[-1])
    called: list[list[str]] = []
    for tree in trees:
        tests = [one for one in tree.body if isinstance(one, Function) and _is_test(one.name) and one.name != check]
        tests = [one for one in tests if one.name not in ran.called]
        for name, count in Counter(one.name for one in tests).items():
            if count > 1:
                raise UndecidedError(f"defines {name} twice, and only the last of them can run")
        for test in tests:
            if not _runs_without_arguments(test):
                raise UndecidedError(f"never runs {test.name}: a test function must be plain and without parameters")
            ran.enter_function(test)
            returned = (node.value for node in _walk_own(test) if isinstance(node, ast.Return))
            ran.compares += sum(isinstance(value, ast.Compare) for value in returned)
        called.append([test.name for test in tests])
    if ran.compares:
        raise UndecidedError(f"compares without an assert: tests must be {NEEDED}")
    if not ran.checks:
        raise UndecidedError(f"holds no assert that runs and can fail: tests must be {NEEDED}")
    if not _uses_program(trees, helpers, ran, check):
        raise UndecidedError("uses no name that it does not define or import, so that no program would run")
    for one in top:
        if isinstance(one, ast.ClassDef):
            inner = [part.name for part in one.body if isinstance(part, Function) and part.name.startswith("test")]
            if never := next((name for name in inner if name not in ran.called), None):
                raise UndecidedError(f"never runs {one.name}.{never}: tests must be {NEEDED}")
    calls = [[f"{name}()" for name in names] for names in called]
    if len({name for names in called for name in names}) == sum(map(len, called)):
        return "\n".join([*parts, *(call for lines in calls for call in lines)])
    return "\n".join(line for part, lines in zip(parts, calls, strict=True) for line in (part, *lines))


def list_unbound(trees: Sequence[ast.AST]) -> list[str]:
    """Names that code uses without defining them."""
    used: dict[str, None] = {}
    bound = set(dir(builtins)) | {"candidate", "METADATA"}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used[node.id] = None
            elif isinstance(node, ast.Name):
                bound.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.alias):
                bound.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                bound.add(node.name)
    return [name for name in used if name not in bound]


def _uses_program(trees: Sequence[ast.AST], helpers: ast.AST, ran: _Run, check: str) -> bool:
    given = {"candidate", *_LOOKS_UP}
    for function in ran.functions.get(check, ()):
        arguments = function.args
        given |= {one.arg for one in (*arguments.posonlyargs, *arguments.args, arguments.vararg) if one is not None}
    loaded = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))
    return bool(list_unbound([helpers, *trees])) or any(
        node.id in given and isinstance(node.ctx, ast.Load) for node in loaded
    )


def defines_check(parts: Sequence[str], name: str = "check") -> bool:
    """True if the code defines a function of this name that takes an argument."""
    found = [one for part in parts for one in ast.parse(part).body if isinstance(one, Function) and one.name == name]
    return bool(found and (found[-1].args.posonlyargs or found[-1].args.args or found[-1].args.vararg))


def _is_test(name: str) -> bool:
    return name.startswith("test") or name == "check"


def _runs_without_arguments(function: Function) -> bool:
    given = function.args
    needed = len(given.posonlyargs) + len(given.args) > len(given.defaults) or None in given.kw_defaults
    return not needed and isinstance(function, ast.FunctionDef) and not _is_generator(function)


def _is_generator(function: Function) -> bool:
    """True if a call of the function does not run its body."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _walk_own(function))


def _walk_own(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of inner functions and classes."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


class _Run:
    """The statements that run, as far as names tell: a function runs if code that runs uses its name.

    `checks` is the number of statements that can fail. `compares` is the number of comparisons whose result nobody uses, and
    `called` has the names of the functions that are called.
    """

    def __init__(self, trees: Sequence[ast.AST]) -> None:
        self.functions: dict[str, list[Function]] = {}
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, Function):
                    self.functions.setdefault(node.name, []).append(node)
                elif isinstance(node, ast.ClassDef):  # a call of a class runs its special methods
                    special = [one for one in node.body if isinstance(one, Function) and one.name.startswith("__")]
                    self.functions.setdefault(node.name, []).extend(special)
        self.checks, self.compares = 0, 0
        self.called: set[str] = set()
        self._entered: set[tuple[int, bool]] = set()

    def enter_function(self, function: Function, caught: bool = False) -> None:
        """Run the body of a function. `caught` is true if a failure in it does not end the test."""
        key = (id(function), caught)
        if key not in self._entered and not (isinstance(function, ast.FunctionDef) and _is_generator(function)):
            self._entered.add(key)
            ends = next((place for place, one in enumerate(function.body, 1) if isinstance(one, ast.Return)), None)
            self.enter(function.body[:ends], caught)

    def enter(self, nodes: Sequence[ast.AST], caught: bool = False) -> None:
        waiting = [(node, caught) for node in reversed(nodes)]
        while waiting:
            node, caught = waiting.pop()
            if isinstance(node, ast.Try | ast.TryStar):
                inner = caught or any(map(self._swallows, node.handlers))
                waiting.extend((one, inner) for one in node.body)
                waiting.extend((one, caught) for one in (*node.handlers, *node.orelse, *node.finalbody))
                continue
            if isinstance(node, ast.With) and any(_name_of(one.context_expr) == "suppress" for one in node.items):
                waiting.extend((one, True) for one in node.body)
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Name | ast.Attribute | ast.Lambda):
                continue  # a function that is named and not called does not run
            if not caught and self._can_fail(node):
                self.checks += 1
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare):
                self.compares += 1
            if isinstance(node, ast.Call):
                self.called.add(_name_of(node))
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                name = node.id if isinstance(node, ast.Name) else node.attr
                for function in self.functions.get(name, ()):
                    self.enter_function(function, caught)
            waiting.extend((one, caught) for one in _list_children(node))

    def _swallows(self, handler: ast.ExceptHandler) -> bool:
        """True if a handler catches failed asserts and goes on."""
        caught = [None] if handler.type is None else [_name_of(node) for node in _list_types(handler.type)]
        if not any(name is None or name in _BROAD for name in caught):
            return False
        inside = _Run([])
        inside.functions = self.functions
        inside.enter(handler.body)
        return not inside.checks

    def _can_fail(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Assert):
            return not _is_true(node.test)
        if isinstance(node, ast.Call):
            name = _name_of(node)
            return name not in self.functions and (name.startswith("assert") or name in _RAISE)
        return isinstance(node, ast.Raise)


def _is_true(node: ast.expr) -> bool:
    """True for an expression that is true whatever the program does."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return any(map(_is_true, node.values))
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts)
    if isinstance(node, ast.Lambda):
        return True
    return isinstance(node, ast.Constant) and bool(node.value)


def _list_children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that run with it, not the bodies of functions and of branches that are never taken."""
    if isinstance(node, Function):
        return iter((*node.decorator_list, *node.args.defaults, *(one for one in node.args.kw_defaults if one)))
    if isinstance(node, ast.For) and isinstance(node.iter, ast.List | ast.Tuple) and not node.iter.elts:
        return iter(node.orelse)
    if isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Constant) and not node.test.value:
        return iter(node.orelse)
    return ast.iter_child_nodes(node)


def _list_types(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _name_of(node: ast.AST) -> str:
    """The last name of an expression: `f`, `module.f` and calls of them."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
