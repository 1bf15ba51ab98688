"""No module imports, on whatever way round, a module that imports it; lazy imports and those for types count as imports."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

EXCLUDED = ("fedagentgym.agents",)
"""Its circle (agent, rendering, demonstrators) is another change's to dissolve."""

Graph = Mapping[str, set[str]]


def read_imports(package: Path) -> dict[str, set[str]]:
    """Which modules of the package each of its modules imports, anywhere in its text."""
    names = {path: _module_name(path, package) for path in package.rglob("*.py")}
    known = set(names.values())
    graph: dict[str, set[str]] = {}
    for path, name in names.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= modules if modules <= known else {*(modules & known), node.module}
        graph[name] = (found & known) - {name}
    return graph


def _module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_circles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which reaches all others."""
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, groups))


def _reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph[name])
    return seen


def test_no_import_goes_in_a_circle(root: Path) -> None:
    graph = read_imports(root / "fedagentgym")
    kept = {name: found for name, found in graph.items() if not name.startswith(EXCLUDED)}
    kept = {name: {other for other in found if other in kept} for name, found in kept.items()}
    assert len(kept) > 200
    assert find_circles(kept) == []


def test_circles_are_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from house.b import thing\n")
    (package / "b.py").write_text("def late():\n    from house import c\n")
    (package / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.a import other\n"
    )
    (package / "d.py").write_text("import house.a\n")
    assert find_circles(read_imports(package)) == [["house.a", "house.b", "house.c"]]
