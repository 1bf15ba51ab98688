"""Without the optional extras every public name either works or says in one sentence which extra it needs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib
import sys
from importlib.machinery import PathFinder

from fedagentgym.base.imports import EXTRAS

HIDDEN = {module for modules in EXTRAS.values() for module in modules}


class Hiding:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)

    @staticmethod
    def invalidate_caches():
        pass

    find_distributions = PathFinder.find_distributions


sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]

import fedagentgym
from fedagentgym.base.errors import MissingExtraError


def run(what, call):
    try:
        call()
    except MissingExtraError as error:
        print(what, "needs:", error)
    except ImportError as error:
        print(what, "BARE:", repr(error))


PACKAGES = "agents algorithms envs federation leaderboard learning partitions testing"
for package in map(importlib.import_module, ["fedagentgym", *(f"fedagentgym.{name}" for name in PACKAGES.split())]):
    for name in package.__all__:
        run(f"{package.__name__}.{name}", lambda: getattr(package, name))
from fedagentgym import agents, testing
from fedagentgym.agents import AGENTS
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.experiment.trackers import TRACKERS
from fedagentgym.federation.backends import BACKENDS

for registry in (AGENTS, ALGORITHMS, TRACKERS, BACKENDS):
    for name in registry.names():
        run(f"{registry.kind} {name}", lambda: registry.get(name))
env = importlib.import_module("fedagentgym.envs").open_env("Guess")
run("train", lambda: fedagentgym.train("demo", ["output.folder=/nonexistent/run"]))
run("sweep", lambda: fedagentgym.sweep("demo", {"seed": [1]}, ["output.folder=/nonexistent/run"]))
run("evaluate", lambda: fedagentgym.evaluate("tiny", "Guess", tasks=2))
run("collect", lambda: fedagentgym.collect("tiny", "Guess", env.pool.ids[:2]))
run("make_agent", lambda: agents.make_agent("tiny", env))
run("check_algorithm", lambda: testing.check_algorithm("fedagent"))
run("check_agent", lambda: testing.check_agent("tiny"))
run("check_loss", lambda: testing.check_loss("ppo"))
run("random", lambda: print("random", fedagentgym.evaluate("random", "Guess", tasks=2).tasks))
"""


def test_a_missing_extra_is_named_at_every_door() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert not [line for line in lines if "BARE" in line]
    needing = {line.partition(" needs: ")[0] for line in lines}
    doors = {"train", "sweep", "evaluate", "collect", "make_agent", "check_algorithm", "check_agent", "check_loss"}
    assert {*doors, "fedagentgym.agents.TorchPolicy", "fedagentgym.learning.LocalTraining"} <= needing
    assert all("pip install 'fedagentgym[" in line for line in lines if " needs: " in line)
    assert "random 2" in lines, "what needs no extra works"
