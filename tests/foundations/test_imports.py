"""`import fedagentgym` stays light, the floors are kept, and library code neither prints nor touches global generators."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, fedagentgym; print('\\n'.join(sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "fedagentgym.registration" in loaded
    assert not loaded & set(HEAVY)


def test_making_an_environment_loads_no_model_library() -> None:
    made = "gymnasium.make('fedagentgym:fedagentgym/Guess-v0').reset(seed=0)"
    code = f"import sys, gymnasium; {made}; print('\\n'.join(sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & set(HEAVY)


def test_lazy_names_say_when_they_do_not_exist() -> None:
    import fedagentgym

    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fedagentgym.trian  # noqa: B018
    assert "federate" in dir(fedagentgym)


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
    for name in ("envs", "partitions", "agents", "benchmarks"):
        assert (root / name).is_symlink() and (root / name).resolve() == root / "fedagentgym" / name
        refused = subprocess.run(
            [sys.executable, "-c", f"import {name}"], cwd=root, capture_output=True, text=True, check=False
        )
        assert refused.returncode and "import fedagentgym" in refused.stderr
