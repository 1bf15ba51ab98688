"""Readers for programming data sets."""

from __future__ import annotations

import ast

from fedagentgym.envs.reasoning.generators.program import Program
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources.rows import Row
from fedagentgym.envs.verifiers.code import Checks, calls_of


def humaneval(row: Row, split: str) -> LoadedTask:
    prompt, entry, test = row.get_text("prompt"), row.get_text("entry_point"), row.get_text("test")
    _check_syntax(row, "prompt", prompt)
    _check_syntax(row, "test", test)
    preamble = prompt[: prompt.index(f"def {entry}")] if f"def {entry}" in prompt else ""
    tests = Checks(entry, code=test, setup=prompt, check="check", preamble=preamble)
    statement = f"Complete this function.\n```python\n{prompt.rstrip()}\n```"
    return LoadedTask(split, "humaneval", Program(statement, tests, prompt + str(row.get("canonical_solution") or "")))


def mbpp(row: Row, split: str) -> LoadedTask | None:
    """MBPP. If the files name no split, the task's number determines it, as published; tasks 1 to 10 are for prompts only."""
    number = row.get("task_id")
    if isinstance(number, int) and 1 <= number <= 10:
        return None
    asserts = row.get_value("test_list")
    if not isinstance(asserts, list) or not asserts or not all(isinstance(one, str) for one in asserts):
        raise row.make_error("test_list", "is not a list of asserts")
    imports = row.get("test_imports")
    setup = "\n".join(imports) if isinstance(imports, list) else str(row.get("test_setup_code") or "")
    for one in asserts:
        _check_syntax(row, "test_list", one)
    _check_syntax(row, "test_setup_code", setup)
    simple = None if setup.strip() else calls_of(asserts)
    if simple is not None:
        tests = Checks(simple[0], simple[1])
    else:
        tests = Checks(code="\n".join([setup, *asserts]))
    statement = f"{row.get_text('text', 'prompt')}\nYour program must pass tests like this one:\n{asserts[0]}"
    if row.split is None and isinstance(number, int):
        split = "test" if 11 <= number <= 510 else "val" if 511 <= number <= 600 else "train"
    return LoadedTask(split, "mbpp", Program(statement, tests, str(row.get("code") or "")))


def _check_syntax(row: Row, name: str, source: str) -> None:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise row.make_error(name, f"is not Python: {error}") from None
