"""Every entry of every registry can be loaded, has a page, a test and, if it is an environment, a golden episode."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from fedagentgym.base.registry import Registry
from fedagentgym.cli.environments import open_named
from fedagentgym.envs import DATA_SETS, ENVIRONMENTS
from fedagentgym.envs.data_sets import list_data_sets
from fedagentgym.testing import check_env, digest_episode

REGISTRIES = {
    "fedagentgym.envs": ("ENVIRONMENTS", "DATA_SETS"),
    "fedagentgym.partitions": ("SAMPLERS",),
    "fedagentgym.agents": ("AGENTS",),
    "fedagentgym.algorithms": ("ALGORITHMS",),
    "fedagentgym.benchmarks": ("BENCHMARKS",),
}
OURS = [env_id for env_id in ENVIRONMENTS.names() if env_id.startswith("fedagentgym/")]


def entries() -> list[tuple[Registry, str]]:
    """What the package itself registers, by reference; what tests and pages add are objects of their own."""
    found = []
    for module, names in REGISTRIES.items():
        registries = [getattr(importlib.import_module(module), name) for name in names]
        own = [(registry, name) for registry in registries for name in registry.names() if not name.startswith("mine/")]
        found += [(registry, name) for registry, name in own if isinstance(registry.get_target(name), str)]
    return found


def texts(folder: Path, pattern: str) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.rglob(pattern)))


@pytest.fixture(scope="module")
def pages(root: Path) -> str:
    return texts(root / "docs", "*.md")


@pytest.fixture(scope="module")
def tests(root: Path) -> str:
    return texts(root / "tests", "*.py")


@pytest.mark.parametrize(
    ("registry", "name"), entries(), ids=lambda value: value if isinstance(value, str) else value.kind
)
def test_every_entry_loads_has_a_page_and_a_test(registry: Registry, name: str, pages: str, tests: str) -> None:
    assert registry.get(name) is not None
    assert name in pages, f"no page in docs/ mentions the {registry.kind} {name}"
    if registry.kind != "benchmark":
        assert f'"{name}"' in tests, f"no test names the {registry.kind} {name}"


@pytest.mark.parametrize("env_id", OURS)
def test_every_environment_conforms(env_id: str) -> None:
    check_env(env_id)


@pytest.mark.parametrize("env_id", OURS)
def test_every_environment_plays_its_golden_episode(env_id: str, root: Path) -> None:
    """After a wanted change: raise the generator's version, then write what this test prints into the file."""
    golden = json.loads((root / "tests" / "golden" / "episodes.json").read_text())
    assert digest_episode(open_named(env_id, {})) == golden.get(env_id)


def test_every_data_set_of_the_papers_is_described() -> None:
    mathematics = "math math500 openr1 minerva olympiadbench aime24 aime25 amc deepmath gsm8k dapo-processed"
    others = "webshop alfworld 2wikimultihopqa hotpotqa musique medqa medmcqa mbpp humaneval"
    known = list_data_sets()
    assert {*mathematics.split(), *others.split()} <= set(known)
    assert all(data.name == name and data.licence and data.columns and data.splits for name, data in known.items())
    assert {"alfworld", "reasoning", "webshop"} <= set(DATA_SETS.names())
