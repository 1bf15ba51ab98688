"""WebShop's speed and memory: a step in a shop of a thousand products, and a shop of a million.

Times are processor times in one thread, so that a busy machine does not change them. Times of steps are means over many plays.
The large shop is built, opened and played in separate processes. The peak memory of the build is the one that the operating
system reports. The memory of players is their proportional share (PSS) of anonymous memory and of the shop's files, in which
mapped pages are counted once however many processes use them. The memory of an idle process with the same modules is subtracted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import ROOT
from benchmarks.measurement import Measurement, Yardstick
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import cache_folder, data_folder
from fedagentgym.base.progress import show_progress
from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env
from fedagentgym.envs.view import Episode
from fedagentgym.envs.webshop.env import WebShopEnv

PLAYERS = 8
SEARCHES = 100
MIB = float(1 << 20)


def run(quick: bool = False) -> list[Measurement]:
    """Reset, click, search and memory of the shop, up to a million products."""
    unit = Yardstick.measure()
    return [
        unit.to_measurement(),
        *_measure_small(200 if quick else 2000, unit),
        *_measure_large(50_000 if quick else 1_000_000, unit),
    ]


def _measure_small(repeats: int, unit: Yardstick) -> list[Measurement]:
    built = _run_in_process("time_construction()", {})
    env = open_env(WebShopEnv)
    queries = [env.pool[place % len(env.pool)].payload.instruction for place in range(0, repeats * 7, 7)]
    tasks = [env.pool[place % len(env.pool)] for place in range(repeats)]
    starts: list[Episode] = env.reset_many(tasks, [0] * repeats)
    reset = _time_calls(lambda place: env.reset_many([tasks[place]], [0]), repeats)
    shop = env.site.shop
    ranked = _time_calls(lambda place: shop.searcher.search(queries[place], 50), repeats)
    searched = _time_calls(lambda place: env.step_many([starts[place]], [f"search[{queries[place]}]"]), repeats)
    results = env.step_many(starts, [f"search[{query}]" for query in queries])
    links = [next(value for value in episode.view.extra["clickables"] if value.startswith("b0")) for episode in results]
    opened = _time_calls(lambda place: env.step_many([results[place]], [f"click[{links[place]}]"]), repeats)
    items = env.step_many(results, [f"click[{link}]" for link in links])
    details = _time_calls(lambda place: env.step_many([items[place]], ["click[features]"]), repeats)
    bought = _time_calls(lambda place: env.step_many([items[place]], ["click[buy now]"]), repeats)
    return [
        Measurement(
            "1,000 products: construct (fresh process, imports not counted)",
            built["seconds"],
            "s",
            unit.limit(700, "s"),
        ),
        Measurement("1,000 products: memory of that process (PSS)", built["memory"], "MiB", "< 150"),
        Measurement("1,000 products: reset", reset, "ms", unit.limit(0.1, "ms")),
        Measurement("1,000 products: search, as a step", searched, "ms", unit.limit(0.4, "ms")),
        Measurement("1,000 products: search, ranking alone", ranked, "ms"),
        Measurement("1,000 products: click on a product", opened, "ms", unit.limit(0.1, "ms")),
        Measurement("1,000 products: click on features", details, "ms", unit.limit(0.1, "ms")),
        Measurement("1,000 products: buy", bought, "ms", unit.limit(0.1, "ms")),
    ]


def _time_calls(call: Callable[[int], object], repeats: int) -> float:
    """Milliseconds of one call."""
    began = time.process_time()
    for place in range(repeats):
        call(place)
    return (time.process_time() - began) * 1e3 / repeats


def _measure_large(products: int, unit: Yardstick) -> list[Measurement]:
    name = f"{products:,} products"
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=cache_folder(), prefix="benchmark-") as folder,
        show_progress(f"WebShop with {name}", 4) as bar,
    ):
        place = {"FEDAGENTGYM_CACHE": folder}
        built = _run_in_process(f"time_build({products})", place)
        bar.advance(note="built")
        opened = _run_in_process(f"time_construction({products})", place)
        alone = _measure_players(1, products, place)
        bar.advance(note="opened")
        same = _measure_players(PLAYERS, products, place, same=True)
        bar.advance(note="eight players, same searches")
        other = _measure_players(PLAYERS, products, place)
        bar.advance(note="eight players")
        size = sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(folder) for file in files)  # noqa: PTH202, PTH118
    return [
        Measurement(f"{name}: goals", built["goals"], ""),
        Measurement(f"{name}: make and store products and goals", built["products_seconds"], "s"),
        Measurement(f"{name}: build the index", built["index_seconds"], "s", unit.limit(300000, "s")),
        Measurement(f"{name}: peak memory while building (RSS)", built["peak"], "MiB", "< 6144"),
        Measurement(f"{name}: on disk", size / MIB, "MiB"),
        Measurement(
            f"{name}: open (fresh process, imports not counted)", opened["seconds"], "s", unit.limit(2000, "s")
        ),
        Measurement(f"{name}: search", alone["milliseconds"], "ms", unit.limit(25, "ms")),
        Measurement(f"{name}: one process after {SEARCHES} searches", alone["memory"], "MiB"),
        Measurement(
            f"{name}: {PLAYERS} processes, the same searches, over one", same["memory"] / alone["memory"], "", "< 1.3"
        ),
        Measurement(
            f"{name}: {PLAYERS} processes, searches of their own, over one", other["memory"] / alone["memory"], ""
        ),
    ]


def _measure_players(count: int, products: int, place: dict[str, str], same: bool = False) -> dict[str, float]:
    """Start processes that answer their searches and then wait. Return their total memory, less that of as many idle processes,
    and the mean time of a search."""
    seeds = [0 if same else number for number in range(count)]
    idle = _run_in_process("measure_memory()", place)["own"]
    players = [_start_process(f"time_searches({products}, {seed})", place, wait=True) for seed in seeds]
    answers = [_read_answer(player) for player in players]
    for player in players:
        _signal(player)
    shares = [_read_answer(player)["own"] for player in players]
    for player in players:
        _signal(player)
        player.wait()
    return {
        "memory": sum(share - idle for share in shares),
        "milliseconds": sum(a["milliseconds"] for a in answers) / count,
    }


def _run_in_process(call: str, extra: dict[str, str]) -> dict[str, Any]:
    player = _start_process(call, extra)
    answer = _read_answer(player)
    player.wait()
    return answer


def _start_process(call: str, extra: dict[str, str], wait: bool = False) -> subprocess.Popen[str]:
    """Start a new interpreter that makes one of the calls below and prints the answer. With `wait`, it prints its memory at the
    next signal and ends at the one after, so that all processes exist while shared pages are counted."""
    code = f"from benchmarks import webshop as s; s.print_answer(s.{call}, wait={wait})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **extra, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _read_answer(player: subprocess.Popen[str]) -> dict[str, Any]:
    assert player.stdout is not None
    text = player.stdout.readline()
    if not text:
        raise DataError("a process of the WebShop benchmark ended without an answer; its error message is above")
    answer: dict[str, Any] = json.loads(text)
    return answer


def _signal(player: subprocess.Popen[str]) -> None:
    assert player.stdin is not None
    player.stdin.write("\n")
    player.stdin.flush()


# ---- what the processes do ------------------------------------------------------------------------------------------


def print_answer(result: dict[str, Any], wait: bool) -> None:
    """Print a result. With `wait`, print the memory at the next line of input, and end at the one after."""
    _print_json(result)
    if wait:
        sys.stdin.readline()
        _print_json(measure_memory())
        sys.stdin.readline()


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def measure_memory() -> dict[str, float]:
    """This process's proportional share of memory in MiB. `own` counts anonymous memory and the shop's files; it leaves out
    programs and libraries, which other Python processes of the machine may share."""
    total, own, counted = 0, 0, False
    shop = str(cache_folder().absolute())
    with open("/proc/self/smaps", encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            name, *fields = line.split(maxsplit=5)
            if not name.endswith(":"):
                counted = len(fields) < 5 or fields[4].startswith(("[", shop))
            elif name == "Pss:":
                total += int(fields[0])
                own += int(fields[0]) if counted else 0
    return {"memory": total / 1024, "own": own / 1024}


def time_construction(products: int | None = None) -> dict[str, float]:
    """Open a shop and time it."""
    began = time.process_time()
    env = open_env(WebShopEnv, products=products)
    seconds = time.process_time() - began
    env.reset(seed=0)
    return {"seconds": seconds, **measure_memory()}


def time_build(products: int) -> dict[str, float]:
    """Make a new shop, and time its two parts."""
    import resource

    from fedagentgym.envs.webshop.stock import ShopChoice, get_index, open_shop_data

    began = time.process_time()
    stock = open_shop_data(ShopChoice(products=products))
    middle = time.process_time()
    get_index(stock)
    end = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "products_seconds": middle - began,
        "index_seconds": end - middle,
        "peak": peak,
        "goals": float(len(stock.goals)),
    }


def time_searches(products: int, seed: int) -> dict[str, float]:
    """Search for a hundred random goals, as steps; the first search warms up and is not timed."""
    env = open_env(WebShopEnv, products=products)
    draw = stream(seed, "benchmark searches")
    picked = [env.pool[draw.integers(len(env.pool))] for _ in range(SEARCHES)]
    seconds = 0.0
    for number, task in enumerate(picked):
        (episode,) = env.reset_many([task], [0])
        began = time.process_time()
        env.step_many([episode], [f"search[{task.payload.instruction}]"])
        seconds += time.process_time() - began if number else 0.0
    return {"milliseconds": seconds * 1e3 / (SEARCHES - 1), **measure_memory()}


# ---- the generated shop beside the real one ------------------------------------------------------------------------

ATTACKS = ("price", "color", "size", "price+color")
ERROR_RATE = 0.3
PLAYS, QUICK_PLAYS = 500, 30


def run_figures(quick: bool = False) -> list[Measurement]:
    """Figures of the generated shops and the real one: goals, misleading searches, the expert's success, look-alikes."""
    shops: dict[str, dict[str, Any]] = {"tiny": {"size": "tiny"}}
    if not quick:
        shops["default"] = {}
    if not quick and data_folder("webshop").is_dir():
        shops["real"] = {"data": "installed"}
    measured: list[Measurement] = []
    with show_progress("comparing shops", len(shops)) as bar:
        for name, options in shops.items():
            env = open_env(WebShopEnv, **options)
            measured += [
                Measurement(f"{name}: {m.name}", m.value, m.unit)
                for m in _measure_shop(env, QUICK_PLAYS if quick else PLAYS)
            ]
            if quick or name != "tiny":
                measured += [
                    Measurement(f"{name}: {m.name}", m.value, m.unit) for m in _measure_lookalikes(env, options)
                ]
            bar.advance()
    if "real" in shops:
        measured += _measure_human_goals()
    return measured


def _measure_shop(env: WebShopEnv, plays: int) -> Iterator[Measurement]:
    goals = env.stock.goals
    yield Measurement("goals", float(len(goals)), "")
    names, counts = env.stock.catalogue.category_names, Counter(goals.category_codes.tolist())
    for code, name in sorted(enumerate(names), key=lambda pair: pair[1]):
        yield Measurement(f"goals in {name}", 100 * counts[code] / len(goals), "%")
    yield Measurement(
        "all wishes in the query, another product first", 100 * _measure_misled(env, plays, drop=False), "%"
    )
    yield Measurement("one wish left out, another product first", 100 * _measure_misled(env, plays, drop=True), "%")
    score, solved, turns = measure_expert(env, plays)
    yield Measurement("expert: mean score", score, "")
    yield Measurement("expert: success", 100 * solved, "%")
    yield Measurement("expert: turns", turns, "")
    score, solved, _ = measure_expert(env, plays, ERROR_RATE)
    yield Measurement(f"expert with a random action in {ERROR_RATE:.0%} of turns: mean score", score, "")
    yield Measurement(f"expert with a random action in {ERROR_RATE:.0%} of turns: success", 100 * solved, "%")


def measure_expert(env: WebShopEnv, plays: int, error: float = 0.0) -> tuple[float, float, float]:
    """Mean score, success rate and turns of the expert on random goals; each action is random with probability `error`."""
    draw = stream(0, "figures", "shopping")
    score, solved, turns = 0.0, 0, 0
    for number in range(plays):
        task = env.pool[draw.integers(len(env.pool))]
        (episode,), expert = env.reset_many([task], [number]), env.expert()
        while not episode.over:
            action = expert.act(episode)
            if error and draw.uniform() < error and episode.view.admissible:
                action = draw.pick(episode.view.admissible).replace("<query>", "red size")
            (episode,) = env.step_many([episode], [action])
        score, solved, turns = score + episode.view.score, solved + episode.view.success, turns + episode.turn
    return score / plays, solved / plays, turns / plays


def _measure_misled(env: WebShopEnv, queries: int, drop: bool) -> float:
    """The share of queries, made of a goal's wishes, whose first result is not the target."""
    draw, misled = stream(1, "figures", "searching"), 0
    for _ in range(queries):
        goal = env.pool[draw.integers(len(env.pool))].payload
        wishes = [*goal.attributes, *goal.options.values()]
        left_out = draw.integers(len(wishes)) if drop else -1
        query = " ".join([goal.query, *(wish for place, wish in enumerate(wishes) if place != left_out)])
        misled += (env.site.shop.find(query.lower(), 0) or [-1])[0] != goal.row
    return misled / queries


def _measure_lookalikes(env: WebShopEnv, options: dict[str, Any]) -> Iterator[Measurement]:
    """For a client with 100 tasks: the targets that got a look-alike, and the look-alikes that rank above their originals."""
    tasks = env.pool.ids[:5000:50]
    targets = len({env.pool[task].payload.row for task in tasks})
    for attack in ATTACKS:
        client = open_env(WebShopEnv, tasks=tasks, variant={"kind": "lookalikes", "attack": attack}, **options)
        shop, ahead = client.site.shop, 0
        goals = {f"LK{task.payload.asin}": task.payload for task in client.pool}
        for copy in shop.extra:
            ranked = [shop.get_head(row).asin for row in shop.find(goals[copy.asin].instruction.lower(), 0) or ()]
            behind = goals[copy.asin].asin in ranked and ranked.index(goals[copy.asin].asin) < ranked.index(copy.asin)
            ahead += copy.asin in ranked and not behind
        yield Measurement(f"look-alikes ({attack}): targets with a copy", 100 * len(shop.extra) / targets, "%")
        yield Measurement(f"look-alikes ({attack}): copies above their target", 100 * ahead / len(shop.extra), "%")


def _measure_human_goals() -> list[Measurement]:
    """The expert on the real goals that people wrote; the set of 1,000 products has only 13."""
    try:
        env = open_env(WebShopEnv, data="installed", goals="human", split="test")
    except DataError:
        return []
    score, solved, _ = measure_expert(env, len(env.pool))
    return [
        Measurement(f"real, written by people ({len(env.pool)} goals): mean score", score, ""),
        Measurement(f"real, written by people ({len(env.pool)} goals): success", 100 * solved, "%"),
    ]
