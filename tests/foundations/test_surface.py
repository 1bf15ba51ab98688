"""The public surface: what README, docs and examples import is exported, documented and imported on first use."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import typing
from pathlib import Path

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


def is_public(module: str, name: str | None) -> bool:
    """Whether an import is of the surface; `fedagentgym.bridges` has one public module a library."""
    if module.startswith("fedagentgym.bridges."):
        return importlib.util.find_spec(module) is not None
    return module in SURFACE and (name is None or name in importlib.import_module(module).__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_and_examples_import_public_names_only(page: Path) -> None:
    text = page.read_text("utf-8")
    sources = [text] if page.suffix == ".py" else [inspect.cleandoc("\n" + block) for _, block in BLOCK.findall(text)]
    internal = {found for source in sources for found in list_imports(source) if not is_public(*found)}
    assert internal == set()


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda value: value)
def test_an_exported_name_exists_and_classes_and_functions_have_a_docstring(package: str, name: str) -> None:
    value = getattr(importlib.import_module(package), name)
    if (inspect.isclass(value) or inspect.isfunction(value)) and not typing.is_typeddict(value):
        assert inspect.getdoc(value)


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

    with pytest.raises(AttributeError, match=r"module 'fedagentgym\.learning' has no attribute 'trian'"):
        fedagentgym.learning.trian  # noqa: B018
