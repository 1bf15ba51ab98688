"""WebShop's speed and memory: a step in a shop of a thousand products, and a shop of a million.

Times are processor time, so that a busy machine does not change them (everything here runs in one thread); those of steps
are means over many plays. The large shop is built, opened and played in processes of
their own: peak memory of the build is what the operating system counted; memory of players is their proportional share
(PSS), so that mapped pages are counted once however many processes use them, less that of an idle process that has
imported the same modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import cache_folder
from fedagentgym.base.measurement import Measurement
from fedagentgym.base.progress import progress
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import Episode
from fedagentgym.envs.webshop.env import WebShopEnv

PLAYERS = 8
SEARCHES = 100
MIB = float(1 << 20)


def run(quick: bool = False) -> list[Measurement]:
    """Both shops; `quick` takes 50,000 products in place of a million."""
    return [*_small(200 if quick else 2000), *_large(50_000 if quick else 1_000_000)]


def _small(repeats: int) -> list[Measurement]:
    built = _in_process("construct()", {})
    env = WebShopEnv()
    queries = [env.pool[place % len(env.pool)].payload.instruction for place in range(0, repeats * 7, 7)]
    tasks = [env.pool[place % len(env.pool)] for place in range(repeats)]
    starts: list[Episode] = env.reset_many(tasks, [0] * repeats)
    reset = _per_call(lambda place: env.reset_many([tasks[place]], [0]), repeats)
    shop = env.site.shop
    ranked = _per_call(lambda place: shop.searcher.search(queries[place], 50), repeats)
    searched = _per_call(lambda place: env.step_many([starts[place]], [f"search[{queries[place]}]"]), repeats)
    results = env.step_many(starts, [f"search[{query}]" for query in queries])
    links = [next(value for value in episode.view.extra["clickables"] if value.startswith("b0")) for episode in results]
    opened = _per_call(lambda place: env.step_many([results[place]], [f"click[{links[place]}]"]), repeats)
    items = env.step_many(results, [f"click[{link}]" for link in links])
    details = _per_call(lambda place: env.step_many([items[place]], ["click[features]"]), repeats)
    bought = _per_call(lambda place: env.step_many([items[place]], ["click[buy now]"]), repeats)
    return [
        Measurement("1,000 products: construct (fresh process, imports not counted)", built["seconds"], "s", "< 0.7"),
        Measurement("1,000 products: memory of that process (PSS)", built["memory"], "MiB", "< 150"),
        Measurement("1,000 products: reset", reset, "ms", "< 0.1"),
        Measurement("1,000 products: search, as a step", searched, "ms", "< 0.4"),
        Measurement("1,000 products: search, ranking alone", ranked, "ms"),
        Measurement("1,000 products: click on a product", opened, "ms", "< 0.1"),
        Measurement("1,000 products: click on features", details, "ms", "< 0.1"),
        Measurement("1,000 products: buy", bought, "ms", "< 0.1"),
    ]


def _per_call(call: Callable[[int], object], repeats: int) -> float:
    """Milliseconds of one call."""
    began = time.process_time()
    for place in range(repeats):
        call(place)
    return (time.process_time() - began) * 1e3 / repeats


def _large(products: int) -> list[Measurement]:
    name = f"{products:,} products"
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=cache_folder(), prefix="benchmark-") as folder,
        progress(f"WebShop with {name}", 4) as bar,
    ):
        place = {"FEDAGENTGYM_CACHE": folder}
        built = _in_process(f"build({products})", place)
        bar.advance(note="built")
        opened = _in_process(f"construct({products})", place)
        alone = _players(1, products, place)
        bar.advance(note="opened")
        same = _players(PLAYERS, products, place, same=True)
        bar.advance(note="eight players, same searches")
        other = _players(PLAYERS, products, place)
        bar.advance(note="eight players")
        size = sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(folder) for file in files)  # noqa: PTH202, PTH118
    return [
        Measurement(f"{name}: goals", built["goals"], ""),
        Measurement(f"{name}: make and store products and goals", built["products_seconds"], "s"),
        Measurement(f"{name}: build the index", built["index_seconds"], "s", "< 300"),
        Measurement(f"{name}: peak memory while building (RSS)", built["peak"], "MiB", "< 6144"),
        Measurement(f"{name}: on disk", size / MIB, "MiB"),
        Measurement(f"{name}: open (fresh process, imports not counted)", opened["seconds"], "s", "< 2"),
        Measurement(f"{name}: search", alone["milliseconds"], "ms", "< 25"),
        Measurement(f"{name}: one process after {SEARCHES} searches", alone["memory"], "MiB"),
        Measurement(
            f"{name}: {PLAYERS} processes, the same searches, over one", same["memory"] / alone["memory"], "", "< 1.3"
        ),
        Measurement(
            f"{name}: {PLAYERS} processes, searches of their own, over one", other["memory"] / alone["memory"], ""
        ),
    ]


def _players(count: int, products: int, place: dict[str, str], same: bool = False) -> dict[str, float]:
    """Processes that have each answered their searches and wait: their memory together, less idle ones', and the mean time."""
    seeds = [0 if same else number for number in range(count)]
    idle = _in_process("memory()", place)["memory"]
    players = [_start(f"play({products}, {seed})", place, wait=True) for seed in seeds]
    answers = [_line(player) for player in players]
    for player in players:
        _tell(player)
    shares = [_line(player)["memory"] for player in players]
    for player in players:
        _tell(player)
        player.wait()
    return {
        "memory": sum(share - idle for share in shares),
        "milliseconds": sum(a["milliseconds"] for a in answers) / count,
    }


def _in_process(call: str, extra: dict[str, str]) -> dict[str, Any]:
    player = _start(call, extra)
    answer = _line(player)
    player.wait()
    return answer


def _start(call: str, extra: dict[str, str], wait: bool = False) -> subprocess.Popen[str]:
    """A fresh interpreter that makes one of the calls below and prints its answer; a waiting one then prints its memory
    when told to, and lives until told again, so that shared pages are counted with everybody present."""
    code = f"from fedagentgym.benchmarks.speed import webshop as s; s.answer(s.{call}, wait={wait})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **extra, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(player: subprocess.Popen[str]) -> dict[str, Any]:
    assert player.stdout is not None
    text = player.stdout.readline()
    if not text:
        raise DataError("a process of the WebShop benchmark ended without an answer; its message stands above")
    answer: dict[str, Any] = json.loads(text)
    return answer


def _tell(player: subprocess.Popen[str]) -> None:
    assert player.stdin is not None
    player.stdin.write("\n")
    player.stdin.flush()


# ---- what the processes do ------------------------------------------------------------------------------------------


def answer(result: dict[str, Any], wait: bool) -> None:
    """Print a result; if asked to wait, print the memory at the next line of input and end with the one after."""
    _say(result)
    if wait:
        sys.stdin.readline()
        _say(memory())
        sys.stdin.readline()


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def memory() -> dict[str, float]:
    """This process's proportional share of memory."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:  # noqa: PTH123
        pss = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return {"memory": pss / 1024}


def construct(products: int | None = None) -> dict[str, float]:
    """Open a shop and time it."""
    began = time.process_time()
    env = WebShopEnv(products=products)
    seconds = time.process_time() - began
    env.reset(seed=0)
    return {"seconds": seconds, **memory()}


def build(products: int) -> dict[str, float]:
    """Make a shop that was not there, in two parts."""
    import resource

    from fedagentgym.envs.webshop.stock import Choice, index_of, open_stock

    began = time.process_time()
    stock = open_stock(Choice(products=products))
    middle = time.process_time()
    index_of(stock)
    end = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "products_seconds": middle - began,
        "index_seconds": end - middle,
        "peak": peak,
        "goals": float(len(stock.goals)),
    }


def play(products: int, seed: int) -> dict[str, float]:
    """Search for a hundred random goals, as steps; the first search warms up and is not timed."""
    env = WebShopEnv(products=products)
    draw = stream(seed, "benchmark searches")
    picked = [env.pool[draw.integers(len(env.pool))] for _ in range(SEARCHES)]
    seconds = 0.0
    for number, task in enumerate(picked):
        (episode,) = env.reset_many([task], [0])
        began = time.process_time()
        env.step_many([episode], [f"search[{task.payload.instruction}]"])
        seconds += time.process_time() - began if number else 0.0
    return {"milliseconds": seconds * 1e3 / (SEARCHES - 1), **memory()}
