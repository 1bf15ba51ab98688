from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedagentgym.base.imports import load_plugins, module_name
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends import Backend
from fedagentgym.federation.backends.in_process import open_backend
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.exchange import ApplicationSpec
from fedagentgym.federation.round import ServerConfig, run_rounds

TOY_FILE = str(Path(__file__).with_name("toy.py"))
TOY = module_name(Path(TOY_FILE))


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    import sys

    load_plugins((TOY_FILE,))
    return sys.modules[TOY]


def toy_recipe(target: str = "build", **arguments: Any) -> ApplicationSpec:
    return ApplicationSpec(f"{TOY}:{target}", arguments, (TOY_FILE,))


@pytest.fixture
def recipe() -> Callable[..., ApplicationSpec]:
    return toy_recipe


@pytest.fixture
def open_toy() -> Iterator[Callable[..., Backend]]:
    """Backends on the toy that are closed when the test ends."""
    opened: list[Backend] = []

    def start(workers: int = 0, folder: Path | None = None, **arguments: Any) -> Backend:
        opened.append(open_backend(toy_recipe(**arguments), workers=workers, folder=folder))
        return opened[-1]

    yield start
    for backend in opened:
        backend.close()


@pytest.fixture
def run_toy(toy: ModuleType, open_toy: Callable[..., Backend]) -> Callable[..., Commit]:
    """A whole toy run in a folder; keyword arguments that are not the plan's go to the toy."""

    def run(
        folder: Path,
        *,
        rounds: int = 3,
        clients: int = 4,
        workers: int = 0,
        seed: int = 0,
        per_round: int | None = None,
        quorum: float | None = 0.5,
        deadline: float | None = None,
        plan: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Commit:
        settings = FederationSettings(rounds=rounds, clients_per_round=per_round, quorum=quorum, deadline=deadline)
        backend = open_toy(workers, folder / "states", **arguments)
        return run_rounds(
            toy.build(**arguments, clients=clients), backend, ServerConfig(folder, seed, settings, **(plan or {}))
        ).commit

    return run
