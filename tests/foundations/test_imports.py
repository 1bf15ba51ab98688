"""`import fedagentgym` stays light, the layers are kept, and library code neither prints nor touches global generators."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from fedagentgym.base.errors import MissingExtraError
from fedagentgym.base.imports import EXTRAS, Registry, explain_missing

HEAVY = (
    "torch",
    "transformers",
    "ray",
    "flwr",
    "matplotlib",
    "textworld",
    "alfworld",
    "datasets",
    "pandas",
    "scipy.stats",
    "sympy",
    "math_verify",
)


def test_neither_the_package_nor_an_environment_loads_anything_heavy() -> None:
    code = """
import sys
import fedagentgym
print(*sys.modules)
import gymnasium
gymnasium.make("fedagentgym:fedagentgym/Guess-v0").reset(seed=0)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, played = (set(line.split()) for line in done.stdout.splitlines())
    assert "fedagentgym.registration" in imported and "fedagentgym.envs.guess" in played - imported
    assert not (imported | played) & set(HEAVY)


def library(root: Path) -> list[Path]:
    return sorted((root / "fedagentgym").rglob("*.py"))


FORBIDDEN = {
    r"^\s*print\(": "print() in library code: return the value, use the console, or log",
    r"\brandom\.(random|randint|choice|choices|shuffle|sample|seed|uniform|gauss)\(": "the random module's global generator",
    r"\bnp\.random\.(seed|rand|randn|randint|choice|shuffle|permutation|random|normal|uniform)\(": "numpy's global generator",
    r"\bpickle\.loads?\(|torch\.load\((?!.*weights_only=True)": "pickle executes what it reads",
}


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_library_code_is_free_of(pattern: str, root: Path) -> None:
    hits = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in library(root)
        if path.parent.name != "testing"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(pattern, line) and not re.search(r"(rng|draw|generator|self\._\w+|Random\(\w*\))\.", line)
    ]
    assert not hits, f"{FORBIDDEN[pattern]}:\n" + "\n".join(hits)


def test_the_links_at_the_root_are_not_modules_of_their_own(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("a source distribution has no links")
    for name in ("envs", "partitions", "agents"):
        assert (root / name).is_symlink() and (root / name).resolve() == root / "fedagentgym" / name
        refused = subprocess.run(
            [sys.executable, "-c", f"import {name}"], cwd=root, capture_output=True, text=True, check=False
        )
        assert refused.returncode and f"import fedagentgym.{name} instead" in refused.stderr


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def list_nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


def module_files(root: Path) -> dict[str, Path]:
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in library(root)}
    return {name.removesuffix(".__init__"): path for name, path in files.items()}


def imported(path: Path, modules: Collection[str]) -> set[str]:
    """The modules of this package that a module imports anywhere: at the top, in functions, under TYPE_CHECKING. A package
    that exports names imports them when they are used."""
    found = set()
    for node in list_nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.names[0].asname == node.names[0].name:  # an export
                continue
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & set(modules)


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or by others."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = imports[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[start] = seen
    grouped = {frozenset(b for b in reached[a] if a in reached[b]) for a in imports if a in reached[a]}
    return sorted(sorted(group) for group in grouped)


def test_no_modules_import_each_other_in_a_circle(root: Path) -> None:
    files = module_files(root)
    imports = {name: imported(path, files) - {name} for name, path in files.items()}
    assert circles(imports) == []


TARGET = re.compile(r"fedagentgym(\.\w+)+:\w+(\.\w+)*")


@cache
def load_layers() -> tuple[set[str], ...]:
    """The layers of the import contract in pyproject.toml, the lowest first."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["importlinter"]
    return tuple({name.strip() for name in line.split("|")} for line in reversed(settings["contracts"][0]["layers"]))


def layer(module: str) -> int:
    """The number of a module's layer; the modules beside the packages stand above all of them."""
    package = module.split(".")[1] if "." in module else ""
    return next((at for at, packages in enumerate(load_layers()) if package in packages), len(load_layers()))


def string_targets(path: Path, constants: dict[str, str]) -> Iterator[str]:
    """Every string `fedagentgym.module:name`, also as an f-string whose parts are constants of the module."""
    for node in list_nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else constants.get(ast.unparse(part.value), "?")
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
        else:
            continue
        if TARGET.fullmatch(text):
            yield text


def test_string_targets_point_to_the_same_layer_or_a_lower_one(root: Path) -> None:
    found = {}
    for name, path in module_files(root).items():
        tree = parse(path)
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        }
        found.update({(name, target): layer(target.partition(":")[0]) for target in string_targets(path, constants)})
    assert len(found) > 40
    assert not [f"{name} names {target}" for (name, target), at in found.items() if at > layer(name)]


def test_what_registries_name_is_on_the_same_layer_or_a_lower_one(root: Path) -> None:
    seen = 0
    for name in module_files(root):
        if name.endswith("__main__") or layer(name) == len(load_layers()):
            continue
        try:
            module = importlib.import_module(name)
        except MissingExtraError:
            continue
        for registry in (value for value in vars(module).values() if isinstance(value, Registry)):
            for entry in registry:
                target = registry.get_target(entry)
                if isinstance(target, str) and target.startswith("fedagentgym."):
                    seen += 1
                    assert layer(target.partition(":")[0]) <= layer(name), f"{name}: {registry.kind} {entry!r}"
    assert seen > 40


def test_every_extra_declares_what_it_is_said_to_bring(root: Path) -> None:
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra: {re.split(r"[^\w-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in lines}
        for extra, lines in declared.items()
    }
    brought_by = packages_distributions()
    for extra, modules in EXTRAS.items():
        for module in modules:
            distributions = {name.lower().replace("_", "-") for name in brought_by.get(module, [module])}
            assert distributions & named[extra], f"[{extra}] does not declare {module}"


def test_what_is_required_by_name_is_in_the_extra_that_the_sentence_names(root: Path) -> None:
    calls = [
        (path.name, *(ast.literal_eval(argument) for argument in node.args))
        for path in library(root)
        for node in list_nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require"
        if len(node.args) == 2
    ]
    assert len(calls) > 20
    assert not [call for call in calls if call[2] != "dev" and call[1].partition(".")[0] not in EXTRAS[call[2]]]


def test_a_failed_import_is_explained_only_if_an_extra_brings_the_module() -> None:
    assert "fedagentgym[train]" in (explain_missing(ModuleNotFoundError(name="torch.nn")) or "")
    assert explain_missing(ModuleNotFoundError(name="no_such_module")) is None
    assert explain_missing(ImportError("cannot import name", name="torch")) is None
