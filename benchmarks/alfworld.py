"""ALFWorld's two engines compared in one run, on the same games and commands, and the memory of many episodes.

The real engine's times are taken inside its own process, so that talking to it is not counted against it. A reset of the
real engine loads, translates and starts the game. For the native engine two times are shown: the first reset of a game, which
generates the game and derives its tables, and later resets. Both engines play one game before the clock starts. The native engine
also lays out some rooms before: thousands of games share a few rooms, so one game is not charged for a room.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

from benchmarks.measurement import Measurement, Yardstick
from fedagentgym.base.files import cache_folder
from fedagentgym.base.progress import show_progress
from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.alfworld.env import ALFWorldEnv, load_game_content
from fedagentgym.envs.alfworld.folders import PUBLISHED_GAMES, build_folder_index, cache_index, get_folder_index
from fedagentgym.envs.alfworld.game import CATEGORIES
from fedagentgym.envs.alfworld.gamefiles import write_game
from fedagentgym.envs.alfworld.plans import find_shortest_plan
from fedagentgym.envs.alfworld.real import RealEngine
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.view import Episode

REPEATS = 200
ROOMS = 50
EPISODES = 10_000


def run(quick: bool = False) -> list[Measurement]:
    """Speed of both engines on full-size houses of every type, then memory and the index of a large folder."""
    env = open_env(ALFWorldEnv, size="full")
    games, steps = (2, 10) if quick else (12, 40)
    tasks = [_find_task(env, CATEGORIES[number % 6], number // 6) for number in range(games)]
    return [
        *_measure_engines(env, tasks, steps),
        _measure_many_episodes(500 if quick else EPISODES),
        *_measure_index(60 if quick else sum(PUBLISHED_GAMES.values())),
    ]


def _find_task(env: ALFWorldEnv, category: str, number: int) -> str:
    code = env.pool.category_names.index(category)
    found = [identifier for identifier, own in zip(env.pool.ids, env.pool.category_codes, strict=True) if own == code]
    return found[number]


def _measure_engines(env: ALFWorldEnv, tasks: Sequence[str], steps: int) -> list[Measurement]:
    real_reset, real_step, first_reset, later_reset, native_step = [], [], [], [], []
    real = RealEngine()
    *_, warm = env.reset_many([env.pool.ids[-1 - number] for number in range(ROOMS)], range(ROOMS))
    real.play(load_game_content(warm.task.payload), ["look"])
    with show_progress("playing in both engines", len(tasks)) as bar:
        for identifier in tasks:
            began = time.perf_counter()
            (episode,) = env.reset_many([identifier], [0])
            first_reset.append(time.perf_counter() - began)
            later_reset.append(_time_resets(env, episode.task))
            commands = _sample_commands(env, episode, steps, stream(0, "speed", identifier))
            native_step.append(_time_steps(env, episode, commands))
            content = load_game_content(episode.task.payload)
            real_reset.append(real.play(content, []).seconds)
            real_step += [real.play(content, commands[: end + 1]).seconds for end in range(steps)]
            bar.advance()
    real.close()
    resets, steps_taken = mean(real_reset), mean(real_step)
    return [
        Measurement("real engine, reset", resets * 1e3, "ms"),
        Measurement("native engine, first reset of a game", mean(first_reset) * 1e3, "ms"),
        Measurement("native engine, later reset", mean(later_reset) * 1e3, "ms"),
        Measurement("first reset, real / native", resets / mean(first_reset), "times", "at least 500"),
        Measurement("later reset, real / native", resets / mean(later_reset), "times", "at least 500"),
        Measurement("real engine, step", steps_taken * 1e3, "ms"),
        Measurement("native engine, step", mean(native_step) * 1e3, "ms"),
        Measurement("step, real / native", steps_taken / mean(native_step), "times", "at least 500"),
    ]


def _time_resets(env: ALFWorldEnv, task: Task) -> float:
    began = time.perf_counter()
    for _ in range(REPEATS):
        env.reset_many([task], [0])
    return (time.perf_counter() - began) / REPEATS


def _sample_commands(env: ALFWorldEnv, episode: Episode, steps: int, draws: Stream) -> list[str]:
    commands = []
    for _ in range(steps):
        commands.append(draws.pick(episode.view.admissible or ("look",)))
        (episode,) = env.step_many([episode], [commands[-1]])
    return commands


def _time_steps(env: ALFWorldEnv, start: Episode, commands: Sequence[str]) -> float:
    """Seconds per step, including everything that a player gets: text, admissible commands, verdict, episode."""
    rounds = max(1, REPEATS // len(commands))
    began = time.perf_counter()
    for _ in range(rounds):
        episode = start
        for command in commands:
            (episode,) = env.step_many([episode], [command])
    return (time.perf_counter() - began) / (rounds * len(commands))


def _measure_many_episodes(count: int) -> Measurement:
    """Measure the memory of many episodes in a separate process, where nothing else is allocated or freed in the meantime."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        grown = pool.submit(_measure_growth, count).result()
    return Measurement(f"memory of {count:,} episodes under way", grown, "MB", "under 500")


def _measure_growth(count: int) -> float:
    """The megabytes that episodes take after all rooms were laid out."""
    env = open_env(ALFWorldEnv, size="full")
    env.reset_many([env.pool.ids[-1 - number] for number in range(ROOMS)], range(ROOMS))
    before = _get_allocated_megabytes()
    ids = [env.pool.ids[number % len(env.pool)] for number in range(count)]
    with show_progress("starting many episodes", 1) as bar:
        episodes = env.reset_many(ids, range(count))
        for turn in range(5):
            episodes = env.step_many(episodes, [(one.view.admissible or ("look",))[turn] for one in episodes])
        bar.advance()
    return _get_allocated_megabytes() - before


def _get_allocated_megabytes() -> float:
    """Megabytes of anonymous memory. Pages of files are not counted, since the system may drop and reload them at any time."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024 / 1e6


def _measure_index(count: int) -> list[Measurement]:
    """Time the first reading of a folder of games, all copies of one game, and the opening of its cached index."""
    with tempfile.TemporaryDirectory(dir=_ensure_folder(cache_folder("alfworld"))) as temporary:
        folder = Path(temporary)
        source = write_game(
            open_env(ALFWorldEnv, size="tiny").pool[0].payload, folder / "train", trial="trial_0"
        ).parent
        for number in range(1, count):
            shutil.copytree(source, source.with_name(f"trial_{number}"))
        with show_progress("reading a folder of games", 1) as bar:
            began = time.perf_counter()
            index = build_folder_index(folder)
            reading = time.perf_counter() - began
            cache_index(folder, index)
            bar.advance()
        began = time.perf_counter()
        assert len(get_folder_index(folder).entries) == count
        opening = time.perf_counter() - began
    return [
        Measurement(f"reading {count:,} game files for the first time", reading, "s"),
        Measurement(f"opening the kept index of {count:,} games", opening, "s", Yardstick.measure().limit(2000, "s")),
    ]


def _ensure_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---- generated houses ----------------------------------------------------------------------------------------------


def run_houses(quick: bool = False) -> list[Measurement]:
    """Generated houses: time to make one, shortest plans, the share that the expert wins."""
    unit = Yardstick.measure()
    figures = [unit.to_measurement()]
    for size, bar in (
        ("tiny", "100 within 20 turns"),
        ("small", "at least 95 within 50 turns"),
        ("full", "at least 95 within 50 turns"),
    ):
        env = open_env(ALFWorldEnv, size=size, split="all")
        numbers = range(0, len(env.pool), 10 if quick else 1)
        start = time.perf_counter()
        tasks = [env.pool[number] for number in numbers]
        seconds = time.perf_counter() - start
        training = [task for task in tasks if task.split == "train"]
        turns = [_count_expert_turns(env, task) for task in training]
        won = [count for count in turns if count is not None]
        lengths = [len(find_shortest_plan(task.payload) or ()) for task in training]
        receptacles = [len(task.payload.receptacles) for task in training]
        objects = [len(task.payload.objects) for task in training]
        figures += [
            Measurement(
                f"receptacles, {size}", mean(receptacles), f"on average, {min(receptacles)} to {max(receptacles)}"
            ),
            Measurement(f"objects, {size}", mean(objects), f"on average, {min(objects)} to {max(objects)}"),
            Measurement(f"generating a {size} game", 1000 * seconds / len(tasks), "ms"),
            Measurement(f"generating 3,553 {size} games", 3553 * seconds / len(tasks), "s", unit.limit(60_000, "s")),
            Measurement(
                f"expert's wins, {size}", 100 * len(won) / len(turns), f"% of {len(turns)} training games", bar
            ),
            Measurement(f"expert's turns, {size}", mean(won), f"on average, {max(won)} at most"),
            Measurement(f"shortest plan, {size}", mean(lengths), f"commands on average, {max(lengths)} at most"),
        ]
    return figures


def _count_expert_turns(env: TextEnv, task: Task) -> int | None:
    """The number of turns in which the expert wins a task; None if it does not win."""
    (episode,), expert = env.reset_many([task], [0]), env.expert()
    while not episode.over:
        (episode,) = env.step_many([episode], [expert.act(episode)])
    return episode.turn if episode.view.success else None
