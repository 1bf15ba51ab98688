"""The cost of client splits: every sampler at the paper's size, and with a hundred thousand clients over a million tasks. The
times of dividing, writing, opening and reading one client are measured. The twelve figures of the FedAgent paper are drawn
too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.measurement import Measurement, Yardstick
from fedagentgym.base.streams import stream
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import TaskIds

ENV = "fedagentgym/Guess-v0"
SHARES = (0.783, 0.140, 0.031, 0.029, 0.017)
PAPER = (6_410, 100, 100)
LARGE = (1_000_000, 100_000, 100)
QUICK = (100_000, 10_000, 100)
FIGURE_FOLDER = ROOT / "bench-figures"
GIB = 2.0**30


def make_sampler_parameters(items: int, clients: int, tasks: int) -> dict[str, dict[str, Any]]:
    """The parameters of every sampler at a size. Those without overlap divide the pool once, so their clients are smaller."""
    spread = {"mean_tasks": tasks, "min_tasks": tasks // 5, "max_tasks": 3 * tasks}
    own = max(1, min(tasks, items // clients))
    return {
        "uniform": {"tasks_per_client": tasks},
        "preference": {"tasks_per_client": tasks, "omega": 0.9},
        "preference_dirichlet": {"tasks_per_client": tasks, "omega": 0.5},
        "coverage": {"xi": 1.0, **spread},
        "preference_coverage": {"omega": 0.9, "xi": 1.0, **spread},
        "hardness": {"tasks_per_client": tasks, "xi": 1.0},
        "dirichlet": {"beta": 0.1, "equal_size": True, "tasks_per_client": own},
        "by_source": {"sources": _allocate_sources(clients), "tasks_per_client": max(1, own // 2)},
    }


def _allocate_sources(clients: int) -> dict[str, int]:
    counts = [max(1, int(clients * share)) for share in SHARES]
    counts[0] += clients - sum(counts)
    return {f"c{number}": count for number, count in enumerate(counts)}


def make_synthetic_pool(items: int) -> TaskPool:
    """A pool with the skew of WebShop's categories, whose tasks have no content."""
    codes = stream(0, "benchmark pool").weighted(SHARES, size=items).astype(np.int32)
    names = [f"c{number}" for number in range(len(SHARES))]
    ids = TaskIds(ENV, "train", items)
    return TaskPool(env=ENV, split="train", ids=ids, categories=(names, codes), payload=int, source={"items": items})


def measure(sampler: str, items: int, clients: int, tasks: int) -> dict[str, float]:
    """The cost of one sampler in this process: seconds to divide, write, open, and read one client; processor time and peak
    resident memory of the whole process."""
    import resource

    from fedagentgym.partitions.client_split import federate, load_client_split

    pool = make_synthetic_pool(items)
    parameters = dict(make_sampler_parameters(items, clients, tasks)[sampler])
    if sampler == "hardness":
        parameters["labels"] = _make_labels(pool)
    found: dict[str, float] = {}

    def time_call(name: str, action: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = action()
        found[name] = time.perf_counter() - start
        return result

    federate(
        ENV, partition=sampler, clients=len(SHARES), pool=make_synthetic_pool(500), **_make_warm_up_parameters(sampler)
    )
    made = time_call("divide", lambda: federate(ENV, partition=sampler, clients=clients, pool=pool, **parameters))
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("split.json" if clients * tasks <= 1_000_000 else "split")
        time_call("write", lambda: made.save(path))
        opened = time_call("open", lambda: load_client_split(path, pool=pool))
        time_call("client", lambda: opened.client(clients // 2).tasks)
    found["processor"] = time.process_time()
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    return found


def _make_labels(pool: TaskPool) -> dict[str, bool]:
    solved = stream(1, "benchmark labels").uniform(len(pool)) < 0.4
    return dict(zip(pool.ids, solved.tolist(), strict=True))


def _make_warm_up_parameters(sampler: str) -> dict[str, Any]:
    """The parameters of a small first call, which loads the sampler's imports so that they are not part of the figures."""
    pool = make_synthetic_pool(500)
    labels = {"labels": _make_labels(pool)} if sampler == "hardness" else {}
    return {**make_sampler_parameters(500, len(SHARES), 2)[sampler], **labels}


def run(quick: bool = False) -> list[Measurement]:
    """Time and memory of every sampler at two sizes, and of the figures."""
    size = QUICK if quick else LARGE
    unit = Yardstick.measure()
    results = [unit.to_measurement()]
    for name in make_sampler_parameters(*PAPER):
        small = _measure_in_process(name, PAPER)
        results.append(
            Measurement(f"{name}, 100 clients of 6,410 tasks: divide", small["divide"], "s", unit.limit(200, "s"))
        )
        results.append(
            Measurement(f"{name}, the same: write and open", small["write"] + small["open"], "s", unit.limit(1000, "s"))
        )
    for name in make_sampler_parameters(*size):
        large = _measure_in_process(name, size)
        what = f"{name}, {size[1]:,} clients of {size[0]:,} tasks"
        whole = large["divide"] + large["write"] + large["open"]
        results.append(Measurement(f"{what}: divide, write, open", whole, "s", unit.limit(60_000, "s")))
        results.append(Measurement(f"{what}: divide", large["divide"], "s"))
        results.append(Measurement(f"{what}: processor time, imports and pool included", large["processor"], "s"))
        results.append(Measurement(f"{what}: one client of the stored split", 1000 * large["client"], "ms"))
        results.append(Measurement(f"{what}: peak memory", large["memory"], "GiB", "below 4"))
    return [*results, *plot_figures(FIGURE_FOLDER)]


def _measure_in_process(sampler: str, size: tuple[int, int, int]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.partitions", sampler, *map(str, size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def plot_figures(folder: Path) -> list[Measurement]:
    """Figures 5-16 of the FedAgent paper, as PNG and SVG; each also reports the dispersion that it shows."""
    from fedagentgym.partitions.client_split import federate
    from fedagentgym.partitions.presets import FIGURE_PRESETS, get_preset

    results = []
    for number, name in FIGURE_PRESETS.items():
        keywords = get_preset(name)
        federation = federate(keywords.pop("env_id"), **keywords)
        for suffix in (".png", ".svg"):
            federation.plot(folder / f"figure-{number:02d}-{name}{suffix}")
        measure, value = federation.statistics().dispersion()
        results.append(Measurement(f"figure {number}, {name}: {measure}", value, ""))
    return results


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:5]))))
