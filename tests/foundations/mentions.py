"""The files and names that a text mentions, and whether they exist; nothing is imported but other libraries' classes."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.foundations.test_surface import BRIDGES, SURFACE, list_exported

ROOT = Path(__file__).resolve().parents[2]

SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?<![\w/.$~*<>{}-])(?:\./)?((?:[\w-][\w.-]*/)*[\w-]+\.py)(?![\w/*])")
FOLDERS = "baselines|benchmarks|docs|examples|fedagentgym|leaderboard|papers|tests"
PATH = re.compile(
    rf"(?<![\w.$~*<>{{}}-])((?:{FOLDERS})/[\w./-]*\w\.(?:ipynb|json|md|png|py|sh|svg|toml|yaml|yml))(?![\w/*])"
)
"""A file of this repository: a path from the root, also at the end of an address."""
FILE_IN_MESSAGE = re.compile(r"(?<![\w/.])((?:\w+/)+\w+\.py)\b")
NAME = re.compile(r"(?<![\w/.@-])(fedagentgym(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?)")
IMPORT = re.compile(r"from (fedagentgym[\w.]*) import (?:\(([^)]*)\)|([\w, ]+))")
CLASS = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
ADDRESS = re.compile(r"fedagentgym/fedagentgym/(?:blob/|tree/)?main/")
NO_MODULES = {"fedagentgym.github", "fedagentgym.yaml", "fedagentgym.json", "fedagentgym.plugins"}
"""An address, two names of files, and the group of entry points that plugins declare."""
OTHERS_FILES = {"agent_system/environments/prompts/webshop.py"}
"""Files of other projects: of FedAgent's published code."""
METHODS = {"FedAgent", "FedProx"}
"""Classes of this package that are called as what everybody knows."""


def find_missing(text: str, folder: Path) -> Iterator[str]:
    """The files and names in a text that do not exist. A bare file name is one of the text's own folder, or, within a longer
    span such as `--plugin mine.py`, the reader's."""
    in_spans = (
        file for span in SPAN.findall(text) for file in FILE.findall(span) if "/" in file or span.startswith(file)
    )
    for file in dict.fromkeys((*in_spans, *PATH.findall(ADDRESS.sub("", text)))):
        places = (ROOT / file, ROOT / "fedagentgym" / file, folder / file)
        if file not in OTHERS_FILES and not any(place.is_file() for place in places):
            yield file
    yield from (name for name in dict.fromkeys(list_names(text)) if not exists(name))


def list_names(text: str) -> Iterator[str]:
    """The dotted names of this package in a text, and those that are imported from it."""
    yield from (name.replace(":", ".") for name in NAME.findall(text))
    for module, several, one in IMPORT.findall(text):
        for part in re.sub(r"#.*|\.\.\.|>>>", "", several or one).split(","):
            if words := part.split():
                yield f"{module}.{words[0]}"


def find_private(message: str) -> Iterator[str]:
    """The names in a message to users that are internal; lines of programs, and a module run by `python -m`, may be."""
    text = re.sub(r"python -m [\w.]+|from [\w.]+ import", "", message)
    for name in NAME.findall(text):
        if ".".join(name.split(".")[:2]) not in NO_MODULES and not is_public(name):
            yield name
    bare = (span for span in SPAN.findall(message) if span in list_file_names())
    for file in (*FILE_IN_MESSAGE.findall(message), *bare):
        if "/" not in file or any((place / file).is_file() for place in (ROOT / "fedagentgym", ROOT)):
            yield file
    if "\n" not in message and " | " not in message:  # else a program, or a type
        yield from (name for name in CLASS.findall(text) if name in list_classes() - list_public() - METHODS)


def is_public(name: str) -> bool:
    parts = name.replace(":", ".").split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in (*SURFACE, *BRIDGES, "fedagentgym.bridges"):
            return length == len(parts) or parts[length] in list_exported(module)
    return False


@functools.cache
def list_public() -> frozenset[str]:
    return frozenset[str]().union(*map(list_exported, (*SURFACE, *BRIDGES)))


@functools.cache
def list_file_names() -> frozenset[str]:
    return frozenset(file.name for file in (ROOT / "fedagentgym").rglob("*.py"))


@functools.cache
def list_classes() -> frozenset[str]:
    """The names of all classes of the package."""
    sources = (file.read_text("utf-8") for file in (ROOT / "fedagentgym").rglob("*.py"))
    return frozenset(name for source in sources for name in re.findall(r"^ *class (\w+)", source, re.MULTILINE))


# ---- dotted names ------------------------------------------------------------------------------------------------------


@functools.cache
def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or what a module defines or imports, or a class has or inherits."""
    parts = name.split(".")
    if ".".join(parts[:2]) in NO_MODULES:
        return True
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if file.is_file():
            return length == len(parts) or module_has(file, parts[length], parts[length + 1 :])
    return False


@functools.cache
def list_bindings(file: Path) -> dict[str, ast.AST]:
    """What a module binds at its top level, also under `if` and `try`: each name with the statement."""
    found: dict[str, ast.AST] = {}
    waiting: list[ast.AST] = list(ast.parse(file.read_text("utf-8")).body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            waiting += [child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        else:
            found |= {one.id: node for one in ast.walk(node) if isinstance(one, ast.Name) and is_stored(one)}
    return found


def is_stored(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def module_has(file: Path, name: str, rest: list[str]) -> bool:
    node = list_bindings(file).get(name)
    if isinstance(node, ast.ImportFrom):
        (source,) = (alias.name for alias in node.names if (alias.asname or alias.name) == name)
        if (node.module or "").partition(".")[0] == "fedagentgym":
            return exists(".".join((node.module or "", source, *rest)))
        return not rest or has_attribute(node.module or "", source, rest[0])
    if isinstance(node, ast.ClassDef):
        return not rest or class_has(file, node, rest[0])
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return not rest
    return node is not None


def class_has(file: Path, cls: ast.ClassDef, name: str) -> bool:
    """Return whether a class has an attribute in its body, on `self`, or by its base classes."""
    for node in cls.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = {
                node.name,
                *(one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and is_stored(one)),
            }
        else:
            found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and is_stored(one)}
        if name in found:
            return True
    for base in cls.bases:
        module, _, named = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")
        if (module or named) not in list_bindings(file):
            return True  # such as a base that is computed
        if has_attribute(module, named, name) if module else module_has(file, named, [name]):
            return True
    return False


def has_attribute(module: str, cls: str, name: str) -> bool:
    """The same of a class of another library; True if it is not installed."""
    try:
        value = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError):
        return True
    return hasattr(value, name) or name in getattr(value, "__annotations__", {})
