"""Wrong programs against the tests of generated programming tasks.

* Constants: a program that returns one of the values that its tests expect.
* Shorter programs: the solution without one of its statements.
* Changed programs: the solution with another operator, another comparison, or a number that is larger by one. Some of these do
  the same as the solution (for whole numbers, `x > 3` is `x >= 4`), so not all of them can be caught. Changed programs that pass
  are tried on further inputs.

The programs are made from our own solutions, so they are run in this process and not in the sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from benchmarks.findings import Findings
from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.code import CodeEnv
from fedagentgym.envs.reasoning.generators.problems import Program

Function = Callable[..., Any]
TASKS, INPUTS = 500, 1000
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
FAILURES = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, NameError, MemoryError)


def load_function(program: str | ast.Module) -> Function:
    """The function that a program defines."""
    names: dict[str, Any] = {}
    exec(compile(program, "<program>", "exec"), names)
    function: Function = names["f"]
    return function


def passes(function: Function, task: Program) -> bool:
    """True if a program returns the expected value in all calls of a task's tests."""
    try:
        return all(function(*deepcopy(call.args)) == call.expected for call in task.tests.calls)
    except FAILURES:
        return False


def leave_statements_out(solution: str) -> Iterator[ast.Module]:
    """The program without one of its statements, each in turn."""
    blocks = [node for node in ast.walk(ast.parse(solution)) if isinstance(node, ast.FunctionDef | ast.For)]
    for block, place in ((block, place) for block, node in enumerate(blocks) for place in range(len(node.body))):
        tree = ast.parse(solution)
        body = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.For)][block].body
        body[place] = ast.Pass(lineno=body[place].lineno, col_offset=body[place].col_offset)
        yield ast.fix_missing_locations(tree)


def change_once(solution: str) -> Iterator[ast.Module]:
    """The program with one operator, comparison or number changed, each in turn."""
    for place in range(sum(1 for _ in ast.walk(ast.parse(solution)))):
        tree = ast.parse(solution)
        node = list(ast.walk(tree))[place]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            node.op = OPERATORS[type(node.op)]()
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            node.ops[0] = COMPARISONS[type(node.ops[0])]()
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            node.value += 1
        else:
            continue
        yield ast.fix_missing_locations(tree)


def count_survivors(programs: Iterator[ast.Module], task: Program) -> tuple[int, int]:
    """The number of programs, and how many of them pass a task's tests."""
    passed = [passes(load_function(program), task) for program in programs]
    return len(passed), sum(passed)


def draw_inputs(task: Program, count: int) -> Iterator[Any]:
    """Random inputs of the same kind as in a task's tests, but more of them, and also larger and smaller ones."""
    given = [call.args[0] for call in task.tests.calls]
    source = stream(0, "mutants", task.statement)
    letters = "".join(sorted({letter for text in given for letter in str(text)}))
    lowest = 1 if "sequence" in task.statement else -100
    for _ in range(count):
        length = source.integers(15)
        if isinstance(given[0], int):
            yield lowest + source.integers(300 if lowest < 0 else 60)
        elif isinstance(given[0], str):
            yield "".join(source.pick(letters) for _ in range(length))
        else:
            yield [source.integers(100) - 30 for _ in range(length)]


def is_equal(function: Function, task: Program, count: int) -> bool:
    """True if a program does the same as the solution on random inputs."""
    solution = load_function(task.solution)
    return all(_run(function, given) == _run(solution, given) for given in draw_inputs(task, count))


def _run(function: Function, given: Any) -> Any:
    try:
        return function(deepcopy(given))
    except FAILURES as error:
        return type(error)


def count_changed(task: Program) -> tuple[int, int, int]:
    """The numbers of changed programs, of passing ones that equal the solution on all tried inputs, and of wrong passing ones."""
    programs = [load_function(program) for program in change_once(task.solution)]
    passing = [program for program in programs if passes(program, task)]
    equal = sum(is_equal(program, task, INPUTS) for program in passing)
    return len(programs), equal, len(passing) - equal


def count_constants(task: Program) -> tuple[int, int]:
    """The number of values that a task's tests expect, and the number of constants among them that pass all tests."""
    values = {repr(call.expected) for call in task.tests.calls}
    return len(values), len(values) if len(values) == 1 else 0


def draw_tasks(size: str, split: str, most: int) -> Sequence[Program]:
    """The tasks of a split: all of them, or `most` that are drawn."""
    pool = open_env(CodeEnv, size=size, split=split).pool
    places = stream(0, "mutants", size, split).shuffled(list(range(len(pool))))[:most]
    return [pool[place].payload for place in places]


def find_mutants(quick: bool) -> Findings:
    """The numbers of wrong programs, and of those that pass the tests of tasks."""
    rows: dict[str, tuple[float | str, ...]] = {}
    for size in ("default", "tiny"):
        for split in ("test", "train", "unseen"):
            tasks = draw_tasks(size, split, 20 if quick else TASKS)
            shorter = [count_survivors(leave_statements_out(task.solution), task) for task in tasks]
            constants, changed = [count_constants(task) for task in tasks], [count_changed(task) for task in tasks]
            kinds: tuple[list[tuple[int, ...]], ...] = ([*constants], [*shorter], [*changed])
            counts = [cell for counted in kinds for cell in map(sum, zip(*counted, strict=True))]
            rows[f"Code, {size}, {split}"] = (len(tasks), *counts)
    columns = (
        "tasks",
        "constants",
        "that pass",
        "shorter programs",
        "of them pass",
        "changed programs",
        "equal on 1,000 inputs",
        "wrong and pass",
    )
    return Findings("tests of", dict.fromkeys(columns, ",d"), rows)
