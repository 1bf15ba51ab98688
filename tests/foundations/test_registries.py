"""Every entry of every registry can be loaded, has a page, is run in its smallest form and, if it is an environment, plays a
golden episode."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.agents import AGENTS
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.base.imports import Registry
from fedagentgym.base.settings import merge
from fedagentgym.envs import DATA_SETS, ENVIRONMENTS, open_env
from fedagentgym.envs.data_sets import list_data_sets
from fedagentgym.testing import (
    check_advantage,
    check_agent,
    check_aggregation,
    check_env,
    check_loss,
    check_objective,
    check_sampler,
    check_template,
    check_tracker,
    digest_episode,
)
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.algorithms.test_methods import RUNS
from tests.partitions.test_samplers import SPECS

REGISTRIES = {
    "fedagentgym.envs": ("ENVIRONMENTS", "DATA_SETS"),
    "fedagentgym.partitions": ("SAMPLERS",),
    "fedagentgym.agents": ("AGENTS",),
    "fedagentgym.algorithms": ("ALGORITHMS",),
    "fedagentgym.learning.advantages": ("ADVANTAGES", "OBJECTIVES"),
    "fedagentgym.learning.losses": ("LOSSES",),
    "fedagentgym.federation.aggregation": ("AGGREGATION_RULES",),
    "fedagentgym.federation.backends": ("BACKENDS",),
    "fedagentgym.agents.text.prompts": ("TEMPLATES",),
    "fedagentgym.experiment.trackers": ("TRACKERS",),
}


def is_ours(target: Any) -> bool:
    """Return whether the package registers this itself; what tests and pages add are objects of other modules."""
    return isinstance(target, str) or target.__module__.startswith("fedagentgym.learning.")


def list_own(registry: Registry) -> list[str]:
    return [name for name in registry.names() if not name.startswith("mine/") and is_ours(registry.get_target(name))]


def find_registries() -> list[Registry]:
    return [getattr(importlib.import_module(module), name) for module, names in REGISTRIES.items() for name in names]


def entries() -> list[tuple[Registry, str]]:
    return [(registry, name) for registry in find_registries() for name in list_own(registry)]


OURS = list_own(ENVIRONMENTS)
CHECKS: dict[str, Callable[[str], object]] = {
    "environment": check_env,
    "sampler": lambda name: None if name == "held" else check_sampler(name, **SPECS[name]),  # held gives out no task
    "advantage estimator": lambda name: check_advantage(
        name, **({"span": "turn"} if name == "gae" else {"baseline": "turns"})
    ),
    "objective": check_objective,
    "policy loss": check_loss,
    "aggregation rule": check_aggregation,
    "prompt template": check_template,
    "tracker": check_tracker,
}
"""Functions that run an entry and check its properties, by kind. Agents and algorithms have tests below."""
TESTED_IN = {
    "group of data sets": "envs/reasoning/test_data_sets.py, envs/alfworld/test_folders.py, envs/webshop/test_site.py",
    "backend": "testing/test_checks.py, federation/test_flower.py",
}
"""Kinds that need more than a line to run, and the tests that run them."""
PLAYED_ELSEWHERE = {
    "human": "agents/test_scripted.py",
    "endpoint": "agents/test_endpoint.py",
    "vllm": "agents/test_vllm.py",
    "tiny": "agents/test_loading.py",
}
"""Agents that need a person, a server, an installed engine or a model of their own."""
PLAYED: dict[str, dict[str, Any]] = {
    "expert": {},
    "random": {},
    "untrained-tiny": {},
    "transformers": {"decoding": {"max_new_tokens": 4}},
    "smollm2": {"decoding": {"max_new_tokens": 16}},
    "qwen2.5-1.5b-instruct": {"decoding": {"max_new_tokens": 4}},
}
"""Agents that play here, and what makes them fast."""
PLAIN_METHODS = {
    "fedagent": {"local_steps": 3},
    "fedavg-grpo": {"local_steps": 3},
    "fedprox": {"local_steps": 3, "proximal": 0.1},
    "centralized": {"local_steps": 3},
    "local": {"local_steps": 3},
    "zero-shot": {},
}
"""Methods that `tests/algorithms/test_methods.py` has no run of, as they are run here."""


@pytest.fixture(scope="module")
def pages(root: Path) -> str:
    return "\n".join(path.read_text() for path in sorted((root / "docs").rglob("*.md")))


@pytest.mark.parametrize(
    ("registry", "name"), entries(), ids=lambda value: value if isinstance(value, str) else value.kind
)
def test_every_entry_loads_has_a_page_and_does_what_its_kind_must(registry: Registry, name: str, pages: str) -> None:
    assert registry.get(name) is not None
    assert name in pages, f"no page in docs/ mentions the {registry.kind} {name}"
    if registry.kind == "tracker":
        pytest.importorskip(name)  # where they are not installed: tests/installs/check_trackers.py
    if registry.kind in CHECKS:
        CHECKS[registry.kind](name)


def test_every_kind_of_entry_is_run_by_a_test(root: Path) -> None:
    kinds = {registry.kind for registry, _ in entries()}
    assert kinds == {*CHECKS, *TESTED_IN, AGENTS.kind, ALGORITHMS.kind}
    for place in (*", ".join(TESTED_IN.values()).split(", "), *PLAYED_ELSEWHERE.values()):
        assert (root / "tests" / place).is_file(), place


def test_every_agent_is_played_by_a_test() -> None:
    """The agents of the papers are one function, which takes the model from the name (`tests/agents/test_presets.py`)."""
    one = AGENTS.get_target("qwen2.5-1.5b-instruct")
    alike = {name for name in list_own(AGENTS) if AGENTS.get_target(name) == one}
    assert {*PLAYED, *PLAYED_ELSEWHERE, *alike} == set(list_own(AGENTS))


@pytest.mark.parametrize("name", PLAYED)
def test_every_agent_plays(name: str, model: Path) -> None:
    """Those with a language model play with one of a few thousand parameters, under their own protocol."""
    check_agent(name, **PLAYED[name], **({"model": str(model), "device": "cpu"} if PLAYED[name] else {}))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model in a folder, as transformers loads it."""
    pytest.importorskip("torch")
    from tests.agents.models import make_policy

    folder = tmp_path_factory.mktemp("model")
    make_policy().save(folder)
    return folder


def test_every_plain_method_learns_in_a_way_of_its_own_but_zero_shot(tmp_path: Path) -> None:
    """One round of each: no two end alike. The other methods run in `tests/algorithms/test_methods.py`."""
    pytest.importorskip("torch")
    from fedagentgym.experiment.run import train

    assert {*PLAIN_METHODS, *(name for name, *_ in RUNS.values())} == set(list_own(ALGORITHMS))
    short = merge(SMALL_CONFIG, {"federation": {"rounds": 1}, "evaluation": None})
    digests: dict[str, str] = {}
    for name, settings in PLAIN_METHODS.items():
        own = {"algorithm": {"name": name, **settings}, "output": {"folder": str(tmp_path / name)}}
        digests[name] = train(merge(short, own)).digest
    assert digests.pop("fedavg-grpo") == digests["fedagent"], "one rule, two papers"
    assert len(set(digests.values())) == len(digests), digests


@pytest.mark.parametrize("env_id", OURS)
def test_every_environment_plays_its_golden_episode(env_id: str, root: Path) -> None:
    """After a wanted change: raise the generator's version, then write what this test prints into the file."""
    golden = json.loads((root / "tests" / "golden" / "episodes.json").read_text())
    assert digest_episode(open_env(env_id)) == golden.get(env_id)


def test_the_states_of_environments_have_names_of_their_own(root: Path) -> None:
    """Tracebacks and type checkers show the name without its module."""
    files = [path for part in ("envs", "bridges") for path in (root / "fedagentgym" / part).rglob("*.py")]
    names = [
        name for path in files for name in re.findall(r"^class (\w*State)\b", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert "GuessState" in names and "State" not in names and len(set(names)) == len(names)


def test_every_data_set_of_the_papers_is_described() -> None:
    mathematics = "math math500 openr1 minerva olympiadbench aime24 aime25 amc deepmath gsm8k dapo-processed"
    others = "webshop alfworld 2wikimultihopqa hotpotqa musique medqa medmcqa mbpp humaneval"
    known = list_data_sets()
    assert {*mathematics.split(), *others.split()} <= set(known)
    assert all(data.name == name and data.licence and data.columns and data.splits for name, data in known.items())
    assert {"alfworld", "reasoning", "webshop"} <= set(DATA_SETS.names())
