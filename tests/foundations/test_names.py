"""One word, one meaning: names that the package has left behind do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

OLD_WORDS = (
    "Workbench",
    "workbench",
    "bench.bench",
    "load_federation",
    "register_partition",
    "PARTITIONS",
    "WorldKind",
    "given_away",
    "_look_back",
    "unmarked",
)
OLD_FILES = {"keeping", "travelling", "answers", "masters", "workbench", "worlds", "running", "exporting", "utils"}
DOUBLY_NAMED = {
    "Table": "say which: TaskTable, RoundTable, ExperimentTable",
    "Federation": "the split of tasks is a ClientSplit; federation is the package and the rounds",
    "Split": "train, val, test are splits; what a split file holds is a SplitRecord",
    "Bench": "what an algorithm knows of a run is an ExperimentSpec",
}


def modules(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((root / "fedagentgym").rglob("*.py")):
        yield path.relative_to(root), ast.parse(path.read_text("utf-8"))


@pytest.mark.parametrize("word", OLD_WORDS)
def test_old_words_are_gone(root: Path, word: str) -> None:
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    texts = [*(root / "fedagentgym").rglob("*.py"), *(root / "docs").rglob("*.md"), root / "README.md"]
    assert [str(path.relative_to(root)) for path in texts if pattern.search(path.read_text("utf-8"))] == []


def test_no_file_has_a_name_that_says_nothing(root: Path) -> None:
    assert [str(path) for path, _ in modules(root) if path.stem in OLD_FILES] == []


def test_no_signature_has_a_parameter_called_world(root: Path) -> None:
    """An opened environment is `env`; what differs between clients' environments is a `variant`."""
    found = []
    for path, tree in modules(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                found += [f"{path}:{node.lineno} {node.name}" for one in arguments if one.arg in ("world", "worlds")]
    assert found == []


def test_classes_have_names_of_one_meaning(root: Path) -> None:
    found = [
        f"{path}:{node.lineno} {node.name}: {DOUBLY_NAMED[node.name]}"
        for path, tree in modules(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in DOUBLY_NAMED
    ]
    assert found == []
