"""Fixtures of all tests: where the provided test data lies, and a cache of their own."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from fedagentgym.base import progress

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("FEDAGENTGYM_CACHE", str(ROOT / ".cache"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until all tests are collected: a search for garbage visits every test and module that is there by then
os.fsync = lambda file: None  # no test cuts the power; processes that tests kill are children, which sync as always

# A busy machine draws inputs slowly and runs over deadlines: neither is a fault of what is tested.
DAY = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], max_examples=25)
hypothesis.settings.register_profile("day", DAY)
hypothesis.settings.register_profile("night", DAY, max_examples=200)
hypothesis.settings.load_profile(os.environ.get("TESTS_PROFILE", "day"))

TOGETHER = (
    "tests/envs/alfworld/test_differential.py::test_generated_games",
    "tests/envs/alfworld/test_differential.py::test_games_as_no_generator",
    "tests/envs/verifiers/escape/",
    "tests/papers/",
    "tests/leaderboard/",
    "tests/pages/",
    "tests/fuzz/test_commands.py",
    "tests/cuda/",
    "tests/experiment/test_agent_file.py",
    "tests/experiment/test_evaluation_sets.py",
    "tests/experiment/test_running.py",
    "tests/federation/test_evidence.py",
    "tests/algorithms/test_expert_agents.py",
    "tests/algorithms/test_written_tasks.py",
    "tests/learning/test_pretrain.py",
    "tests/agents/test_models.py",
    "tests/agents/test_loading.py",
    "tests/agents/test_vllm.py",
    "tests/envs/alfworld/test_folders.py",
    "tests/envs/webshop/",
    "tests/algorithms/test_inherited_options.py",
    "tests/installs/",
)
"""Folders and files whose tests share what is expensive to make (a model, a finished run, a shop), and single tests of a minute.
The longest first: the processes end at about the same time when only short files are left."""


def find_place(node_id: str) -> str:
    """The line of TOGETHER to which a test belongs; empty for the others."""
    return next((place for place in TOGETHER if node_id.startswith(place)), "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a sample `by_day` leaves out as slow, and bring the tests of TOGETHER to the front."""
    cases = Counter[str]()
    for item in items:
        if (sample := item.get_closest_marker("by_day")) is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % sample.args[0]:
                item.add_marker("slow")
            cases[test] += 1
    order = {place: number for number, place in enumerate((*TOGETHER, ""))}
    items.sort(key=lambda item: order[find_place(item.nodeid)])


def pytest_collection_finish() -> None:
    """Leave ten thousand tests and the modules behind them out of every later search for garbage."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, give the tests of a line of TOGETHER, and of any other file, to one process, which makes their fixtures and what
    they cache once, and imports what they need.

    (`--dist loadgroup` of pytest-xdist 3.8 ignores its groups under pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class TogetherScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return find_place(nodeid) or nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return TogetherScheduling(config, log)


@pytest.fixture(autouse=True)
def _normal_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command with `--quiet` silences the whole process, which runs other tests afterwards."""
    monkeypatch.setattr(progress, "_verbosity", "normal")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data and recorded answers of the originals, provided beside the checkout on development machines."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the test data folder ../shared/data is not beside this checkout")
    return folder


@pytest.fixture
def finishes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ends of the replies that a test plays, as the engine names them: `stop`, `length` and so on."""
    from fedagentgym.learning import rollouts

    seen: list[str] = []
    make = rollouts.make_segments

    def watch(moves: Any, numbers: Any = None) -> Any:
        seen.extend(move.finish for move in moves)
        return make(moves, numbers)

    monkeypatch.setattr(rollouts, "make_segments", watch)
    return seen
