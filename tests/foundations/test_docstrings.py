"""Docstrings agree with signatures, and every file or name that a text mentions exists.

Texts are docstrings, comments, messages and pages. A message to users mentions public names only.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.foundations.test_surface import BRIDGES, SURFACE, list_exported

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fedagentgym", "benchmarks", "examples")
SOURCES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "papers").rglob("*.md")),
    *sorted((ROOT / "leaderboard").glob("*.md")),
    *sorted(file for kind in ("yml", "md") for file in (ROOT / ".github").rglob(f"*.{kind}")),
    *sorted(file for folder in ("fedagentgym", "leaderboard") for file in (ROOT / folder).rglob("*.yaml")),
    *(ROOT / name for name in ("Makefile", "constraints.txt")),
]

SECTION = r"^{}:\n((?:    .*\n|\n)*)"
ENTRY = re.compile(r"^    \*{0,2}(\w+): *(.*)", re.MULTILINE)
IS_BOOL = re.compile(r"\bbool\b|Type(?:Guard|Is)\b|\bBool|NDArray\[np\.bool_?\]")

FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py)(?::\d+|::\w+)*`")
FILE_IN_MESSAGE = re.compile(r"(?<![\w/.])((?:\w+/)+\w+\.py)\b")
PAGE = re.compile(r"\bdocs/[\w/-]+\.(?:md|svg|png)\b")
NAME = re.compile(r"(?<![\w/.@-])fedagentgym(?:\.[A-Za-z_]\w*)+")
NO_MODULES = {"fedagentgym.github", "fedagentgym.yaml", "fedagentgym.json", "fedagentgym.plugins"}
"""An address, two names of files, and the group of entry points that plugins declare."""
OTHERS_FILES = {"agent_system/environments/prompts/webshop.py"}
"""Files of other projects: of FedAgent's published code."""


Function = ast.FunctionDef | ast.AsyncFunctionDef


def list_documented(nodes: list[ast.AST]) -> Iterator[tuple[Function, str]]:
    for node in nodes:
        if isinstance(node, Function) and (text := ast.get_docstring(node)):
            yield node, text


def list_parameters(function: Function) -> dict[str, str]:
    """The parameters of a function in their order, each with its annotation."""
    args = function.args
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in every if one}


def read_section(text: str, title: str) -> str:
    found = re.search(SECTION.format(title), text + "\n", re.MULTILINE)
    return found[1] if found else ""


def find_faults(nodes: list[ast.AST]) -> Iterator[str]:
    """The docstrings of a module that its signatures contradict, and those that are questions."""
    for function, text in list_documented(nodes):
        gives = ast.unparse(function.returns) if function.returns else "None"
        sentence = re.split(r"(?<=[.:;]) ", " ".join(text.split()))[0]
        if gives in ("None", "NoReturn") and (re.match(r"(?:Return|Yield)s?\b", text) or "\nReturns:" in text):
            yield f"line {function.lineno}, {function.name}: nothing is returned"
        if re.match(r"(?:\w+ )?whether\b", sentence, re.IGNORECASE) and gives != "None" and not IS_BOOL.search(gives):
            yield f"line {function.lineno}, {function.name}: `whether`, and returns {gives}"
        parameters, entries = list_parameters(function), dict(ENTRY.findall(read_section(text, "Args")))
        if entries and list(entries) not in (list(parameters), list(parameters)[1:]):
            yield f"line {function.lineno}, {function.name}: Args are {list(parameters)}"
        for name, meaning in entries.items():
            if re.match(r"whether\b", meaning, re.IGNORECASE) and not IS_BOOL.search(parameters.get(name, "bool")):
                yield f"line {function.lineno}, {function.name}: `whether` for {name}: {parameters[name]}"
        if re.match(r" *whether\b", read_section(text, "Returns"), re.IGNORECASE) and not IS_BOOL.search(gives):
            yield f"line {function.lineno}, {function.name}: `whether` in Returns, and returns {gives}"
    for docstring in list_docstrings(nodes):
        if re.match(r"\s*(?:How|Whether|What)\b", str(docstring.value)):
            yield f"line {docstring.lineno}: a docstring says what a thing is or does, it is no question"


def list_comments(source: str) -> list[str]:
    return re.findall(r"#.*", source)


def list_docstrings(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
    """The texts that stand as a statement of their own."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def list_messages(nodes: list[ast.AST]) -> Iterator[str]:
    """The texts of a module that a user may read: all constants with a space, and those of a raised error."""
    docstrings = {id(text) for text in list_docstrings(nodes)}
    raised = {id(part) for node in nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_message = id(node) in raised or " " in node.value
            if is_message and id(node) not in docstrings:
                yield node.value


def find_missing(text: str, folder: Path) -> Iterator[str]:
    """The files and names in a text that do not exist; a bare file name is one of the text's own folder."""
    for file in FILE.findall(text):
        places = (ROOT / file, ROOT / "fedagentgym" / file, folder / file)
        if file not in OTHERS_FILES and not any(place.is_file() for place in places):
            yield file
    yield from (page for page in PAGE.findall(text) if not (ROOT / page).is_file())
    yield from (name for name in NAME.findall(text) if not exists(name))


def find_private(message: str) -> Iterator[str]:
    """The names in a message to users that are internal; lines of programs, and a module run by `python -m`, may be."""
    for name in NAME.findall(re.sub(r"python -m [\w.]+|from [\w.]+ import", "", message)):
        if ".".join(name.split(".")[:2]) not in NO_MODULES and not is_public(name):
            yield name
    yield from (file for file in FILE_IN_MESSAGE.findall(message) if (ROOT / "fedagentgym" / file).is_file())


def is_public(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in (*SURFACE, *BRIDGES, "fedagentgym.bridges"):
            return length == len(parts) or parts[length] in list_exported(module)
    return False


@functools.cache
def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or what a module or a class defines or imports."""
    parts = name.split(".")
    if ".".join(parts[:2]) in NO_MODULES:
        return True
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if file.is_file():
            return has_names(ast.parse(file.read_text("utf-8")), parts[length:])
    return False


def has_names(tree: ast.AST, names: list[str]) -> bool:
    if not names:
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import) and any(
            names[0] == (alias.asname or alias.name) for alias in node.names
        ):
            return True  # that the other module has it is for mypy
        if isinstance(node, ast.Name | ast.FunctionDef) and getattr(node, "id", getattr(node, "name", "")) == names[0]:
            return True
        if isinstance(node, ast.ClassDef) and node.name == names[0]:
            return bool(node.bases) or has_names(node, names[1:])  # a base class may have it
    return False


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """All faults of the sources by kind, each with its file."""
    faults: dict[str, list[str]] = {"false": [], "missing": [], "private": []}
    for file in SOURCES:
        source = file.read_text("utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        messages = list(list_messages(nodes))
        texts = [*list_comments(source), *(str(text.value) for text in list_docstrings(nodes)), *messages]
        faults["false"] += [f"{file}, {fault}" for fault in find_faults(nodes)]
        faults["missing"] += [f"{file}: {name}" for name in find_missing("\n".join(texts), file.parent)]
        if file.is_relative_to(ROOT / "fedagentgym"):
            faults["private"] += [f"{file}: {name}" for name in find_private("\n".join(messages))]
    return faults


def test_docstrings_agree_with_the_signatures(found: dict[str, list[str]]) -> None:
    assert len(SOURCES) > 400 and found["false"] == []


def test_files_and_names_in_docstrings_comments_and_messages_exist(found: dict[str, list[str]]) -> None:
    assert found["missing"] == []


def test_messages_to_users_name_what_is_public(found: dict[str, list[str]]) -> None:
    assert found["private"] == []


def test_files_that_tests_mention_exist() -> None:
    for file in set((ROOT / "tests").rglob("*.py")) - {Path(__file__)}:
        mentioned = re.sub(NAME, "", file.read_text("utf-8"))
        assert list(find_missing(mentioned, file.parent)) == [], file


def test_files_and_names_on_pages_exist() -> None:
    """A file that a page has the reader write is named in one of its blocks of code too."""
    missing = []
    for page in PAGES:
        text = page.read_text("utf-8")
        blocks = "".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
        found = [name for name in find_missing(text, page.parent) if name not in blocks]
        missing += [f"{page.relative_to(ROOT)}: {name}" for name in found]
    assert missing == []


@pytest.mark.parametrize(
    "source",
    [
        'def show() -> None:\n    """Return the rows."""',
        'def show():\n    """Returns the rows."""',
        'def show() -> None:\n    """Print the rows.\n\n    Returns:\n        The rows.\n    """',
        'def show() -> NoReturn:\n    """Yield the rows."""',
        'async def find() -> str | None:\n    """Return whether there is a reason."""',
        'def find() -> int:\n    """Tell whether there is a reason."""',
        'def find() -> int:\n    """Find a reason.\n\n    Returns:\n        Whether there is one.\n    """',
        'def find(a: int) -> int:\n    """Find a reason.\n\n    Args:\n        a: Whether there is one.\n    """',
        'def find(a: int) -> int:\n    """Find a reason.\n\n    Args:\n        b: Where.\n    """',
        'def find(a: int, *, b: int) -> int:\n    """Find a reason.\n\n    Args:\n        a: Where.\n    """',
        'class A:\n    def find(self, *a: int) -> int:\n        """Find it.\n\n        Args:\n            b: Where.\n        """',
        'class A:\n    """Whether there is one."""',
    ],
)
def test_a_false_docstring_is_found(source: str) -> None:
    assert len(list(find_faults(list(ast.walk(ast.parse(source)))))) >= 1


@pytest.mark.parametrize(
    "source",
    [
        'def show() -> None:\n    """Print the rows that `find` returned."""',
        'def find() -> tuple[str, bool]:\n    """Return whether there is one, and its name."""',
        'def is_one(value: object) -> TypeGuard[int]:\n    """Return whether it is a number."""',
        'class A:\n    def find(self, a: bool, *rest: int) -> int:\n        """Find it.\n\n        Args:\n'
        '            a: Whether to look.\n            *rest: Where.\n        """',
    ],
)
def test_a_true_docstring_is_not(source: str) -> None:
    assert list(find_faults(list(ast.walk(ast.parse(source))))) == []


@pytest.mark.parametrize(
    "text",
    [
        "see `base/plugins.py`",
        "`nothing_here.py`, line 3",
        "as `tests/envs/test_nothing.py::test_a` shows",
        "drawn in docs/pictures/nothing.svg",
        "use fedagentgym.trainer",
        "`fedagentgym.envs.variants.Varied` is one",
        "`fedagentgym.envs.Variants`",
        "`fedagentgym.algorithms.bases`",
        "`fedagentgym.leaderboard.Suites`",
    ],
)
def test_what_does_not_exist_is_found(text: str) -> None:
    assert len(list(find_missing(text, ROOT / "tests"))) == 1


def test_the_texts_of_a_module_are_found() -> None:
    source = "'first'\nwith_value = 'a'  # second\ndef f():\n    'third'\n    raise ValueError(f'{f} fourth', 'fifth')"
    nodes = list(ast.walk(ast.parse(source)))
    assert list_comments(source) == ["# second"] and [one.value for one in list_docstrings(nodes)] == ["first", "third"]
    assert sorted(list_messages(nodes)) == [" fourth", "fifth"]


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ("derive from fedagentgym.algorithms.base.BaseAlgorithm", 1),
        ("derive from fedagentgym.algorithms.BaseAlgorithm", 0),
        ("fedagentgym.base is for this package", 1),
        ("made by `python -m fedagentgym.cli.reference`", 0),
        ("from fedagentgym.experiment.flower_app import client_app", 0),
        ("see `base/imports.py` for plugins", 1),
        ("the program my_folder/my_agent.py", 0),
    ],
)
def test_private_names_in_a_message_are_found(message: str, count: int) -> None:
    assert len(list(find_private(message))) == count
