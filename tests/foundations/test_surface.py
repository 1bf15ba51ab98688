"""The public surface: what README, docs and examples import is exported, documented and imported on first use.

A docstring of a public function names its parameters, what it returns and which errors it raises; the pages of the reference
(`docs/reference/api`) list the public names.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SURFACE = (
    "fedagentgym",
    "fedagentgym.agents",
    "fedagentgym.algorithms",
    "fedagentgym.envs",
    "fedagentgym.errors",
    "fedagentgym.federation",
    "fedagentgym.leaderboard",
    "fedagentgym.learning",
    "fedagentgym.partitions",
    "fedagentgym.testing",
)
BRIDGES = tuple(
    f"fedagentgym.bridges.{name}"
    for name in (
        *("flower_datasets", "gymnasium_text", "inspect_ai", "openenv"),
        *("reasoning_gym", "rewards", "trl", "verifiers"),
    )
)
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
NAMES = [(package, name) for package in SURFACE for name in importlib.import_module(package).__all__]


def list_imports(source: str) -> set[tuple[str, str | None]]:
    """The modules of this package that a program imports, each with the name that it takes from it."""
    found: set[tuple[str, str | None]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, None) for alias in node.names}
    return {(module, name) for module, name in found if module.partition(".")[0] == "fedagentgym"}


def list_exported(module: str) -> set[str]:
    """The `__all__` of a module; that of a bridge is read from its source, since its library may not be installed."""
    if module not in BRIDGES:
        return set(importlib.import_module(module).__all__)
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8"))
    (value,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return set(ast.literal_eval(value))


def is_public(module: str, name: str | None) -> bool:
    """Return whether an import is of the surface."""
    return module in (*SURFACE, *BRIDGES) and (name is None or name in list_exported(module))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_and_examples_import_public_names_only(page: Path) -> None:
    text = page.read_text("utf-8")
    sources = [text] if page.suffix == ".py" else [inspect.cleandoc("\n" + block) for _, block in BLOCK.findall(text)]
    internal = {found for source in sources for found in list_imports(source) if not is_public(*found)}
    assert internal == set()


SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples):\n((?:    .*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    \*{0,2}(\w+):", re.MULTILINE)


def read_sections(value: object) -> dict[str, list[str]]:
    """The sections of a docstring, each with the names that it explains."""
    text = inspect.getdoc(value)
    assert text, f"{value!r} has no docstring"
    assert len(text.split("\n\n")[0].split()) >= 2, f"{value!r} has no first sentence"
    sections = {name: ENTRY.findall(body) for name, body in SECTION.findall(text + "\n")}
    assert (">>>" in text) == ("Examples" in sections), f"{value!r}: examples stand in a section `Examples`"
    return sections


def list_parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def list_methods(cls: type) -> Iterator[Callable[..., Any]]:
    """The public methods and properties that a class of this package defines itself."""
    for name, member in vars(cls).items():
        holders = ("__func__", "fget", "func")  # a class method, a property, a cached property
        function = next((getattr(member, one) for one in holders if hasattr(member, one)), member)
        if inspect.isfunction(function) and not name.startswith("_") and function.__name__ == name:
            yield function


def check_function(function: Callable[..., Any], sections: dict[str, list[str]]) -> None:
    """Check a documented function's parameters, errors and result."""
    raised = set(sections.get("Raises", []))
    assert raised <= {*list_exported("fedagentgym.errors"), "AssertionError"}, f"{function.__qualname__}: Raises"
    assert sections.get("Args", []) == list_parameters(function), f"{function.__qualname__}: Args are other names"
    gives = inspect.signature(function).return_annotation not in ("None", None, inspect.Signature.empty)
    assert gives == bool({"Returns", "Yields"} & set(sections)), f"{function.__qualname__}: Returns"


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_is_documented(package: str, name: str) -> None:
    value = getattr(importlib.import_module(package), name)
    if inspect.isfunction(value):
        check_function(value, read_sections(value))
    elif inspect.isclass(value) and not typing.is_typeddict(value):
        sections = read_sections(value)
        if "Args" in sections:
            assert sections["Args"] == list_parameters(value.__init__), f"{name}: Args are other names"
        kept = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        fields = set(getattr(value, "_fields", kept))
        assert fields <= {*sections.get("Attributes", ()), *sections.get("Args", ())}, (
            f"{name}: a field is not explained"
        )
        for method in list_methods(value):
            assert inspect.getdoc(getattr(value, method.__name__)), f"{method.__qualname__} has no docstring"
            if method.__doc__ and "Args" in (found := read_sections(method)):
                check_function(method, found)


def test_the_reference_lists_the_public_names() -> None:
    below = {name for package in SURFACE[1:] for name in list_exported(package)} | {"__version__"}
    expected = {f"{package}.{name}" for package in (*SURFACE, *BRIDGES) for name in list_exported(package)}
    expected -= {f"fedagentgym.{name}" for name in below}
    pages = sorted((ROOT / "docs/reference/api").glob("*.md"))
    listed = [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]
    assert sorted(listed) == sorted(expected)


@pytest.mark.parametrize(
    "package", [package for package in SURFACE if package not in ("fedagentgym.errors", "fedagentgym.testing")]
)
def test_type_checkers_see_what_a_package_exports(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(inspect.getsource(module))
    aliases = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(module.__all__) == aliases - {None}
    assert set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error() -> None:
    import fedagentgym.learning

    with pytest.raises(AttributeError, match=r"module 'fedagentgym\.learning' has no attribute 'trainings'"):
        fedagentgym.learning.trainings  # noqa: B018
