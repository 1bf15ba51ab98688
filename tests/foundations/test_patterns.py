"""Every regular expression of the package takes time that grows with the text alone, whatever the text is."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from pathlib import Path
from re import _parser as sre_parse  # type: ignore[attr-defined]
from typing import Any

import pytest

import fedagentgym

ONE = {"LITERAL", "NOT_LITERAL", "IN", "ANY", "CATEGORY"}
"""What matches one character."""
FUNCTIONS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
PIECES = (
    *"aA\u00e97 0\n\t.,-_/:;='\"#@%&!*$^|()[]{}<>`~\\",
    *(
        "\\a",
        "\\text{",
        "\\boxed{",
        "\\(",
        "\\[",
        "a ",
        " a",
        "1 ",
        "1,",
        "1.",
        "1/",
        "a.",
        "a,",
        "-a",
        "1e",
        "1-",
        "$a",
        "{a",
    ),
    *(
        "(a",
        "[a",
        "<a>",
        "**a",
        "a=",
        "a: ",
        "\n\n",
        "\n ",
        "a\n",
        "<think>",
        "</think>",
        "<action>",
        "</action>",
        "<think></think><action>",
    ),
)


@functools.cache
def read_patterns() -> dict[str, re.Pattern[str]]:
    """The patterns that modules hold, and those that stand as a text in a call."""
    found: dict[str, re.Pattern[str]] = {}

    def collect(name: str, value: object) -> None:
        if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
            found.setdefault(value.pattern, value)
        elif isinstance(value, tuple | list | frozenset):
            for item in value:
                collect(name, item)
        elif isinstance(value, dict):
            for item in value.values():
                collect(name, item)

    for module in pkgutil.walk_packages(fedagentgym.__path__, "fedagentgym."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:
            continue
        for name, value in vars(loaded).items():
            collect(name, value)
    for path in sorted(Path(fedagentgym.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS:
                called, first = node.func.value, node.args[0] if node.args else None
                is_re = isinstance(called, ast.Name) and called.id == "re"
                if is_re and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.setdefault(first.value, re.compile(first.value))
    return found


def hostile_texts(pattern: str, length: int) -> Iterator[str]:
    """Long texts of one piece, of pieces that the pattern names, and of a beginning that it asks for."""
    named = re.findall(r"[A-Za-z]{2,}", pattern)
    literal = re.findall(r"\\\\[a-z]+", pattern)
    pieces = dict.fromkeys((*PIECES, *named[:6], *(text.replace("\\\\", "\\") for text in literal[:6])))
    for piece in pieces:
        yield (piece * (length // len(piece) + 1))[:length]
    for opening in (*named[:3], "\\boxed{", "(", "{", "$", "1"):
        yield opening + " " * length + "\x00"
        yield opening + "a" * length + "\x00"


def find_slow(length: int, seconds: float) -> list[str]:
    slow = []
    for text, pattern in read_patterns().items():
        for hostile in hostile_texts(text, length):
            started = time.process_time()
            pattern.search(hostile)
            pattern.match(hostile)
            pattern.fullmatch(hostile)
            if time.process_time() - started > seconds:
                slow.append(f"{text[:100]} on {hostile[:30]!r}")
                break
    return slow


def test_no_pattern_takes_long_over_any_text() -> None:
    """A pattern whose time grows with the square of the length takes seconds here, all others milliseconds."""
    assert len(read_patterns()) > 60
    assert find_slow(5_000, seconds=0.25) == []


@pytest.mark.slow
def test_no_pattern_takes_long_over_a_hundred_thousand_characters() -> None:
    assert find_slow(100_000, seconds=0.5) == []


def list_nodes(node: object) -> Iterator[tuple[object, Any]]:
    """The nodes of a parsed pattern, at any depth."""
    if isinstance(node, sre_parse.SubPattern):
        for name, value in node:
            yield name, value
            yield from list_nodes(value)
    elif isinstance(node, tuple | list):
        for part in node:
            yield from list_nodes(part)


def find_possessive_groups(pattern: re.Pattern[str]) -> list[object]:
    """What a pattern repeats possessively, other than one character."""
    parsed = sre_parse.parse(pattern.pattern, pattern.flags)
    repeated = [value[2] for name, value in list_nodes(parsed) if str(name) == "POSSESSIVE_REPEAT"]
    return [one for one in repeated if len(one) > 1 or str(one[0][0]) not in ONE]


def test_no_group_is_repeated_possessively() -> None:
    """Before 3.11.5 Python takes half a group too many there: `(?>(?:..)*)` means the same and is right in all versions."""
    assert find_possessive_groups(re.compile(r"[0-9]++(?:,[0-9]{3})*+")) and not find_possessive_groups(
        re.compile(r"a*+.?+")
    )
    assert [text for text, pattern in read_patterns().items() if find_possessive_groups(pattern)] == []
