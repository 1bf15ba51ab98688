"""Steps of environments through gymnasium and through `step_many`, and verdicts of the verifiers.

Rates are per second of processor time, of this process and of the workers together, so that a busy machine does not change
them much. Only `speed-core` reads the wall clock, and takes the best of some rounds.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium

from benchmarks.measurement import Measurement, Yardstick
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.verifiers.code import Call, Checks, CodeVerifier
from fedagentgym.envs.verifiers.math import MathVerifier
from fedagentgym.envs.verifiers.qa import grade_qa

ROUNDS = 5


def run_core(quick: bool = False) -> list[Measurement]:
    """A step of a thousand environments through Gymnasium's vector API and step_many."""
    count, steps = (200, 5) if quick else (1000, 10)
    vector = gymnasium.make_vec("fedagentgym/Guess-v0", num_envs=count, vectorization_mode="sync")
    env = open_env(GuessEnv)
    ids = [env.pool.ids[number % len(env.pool)] for number in range(count)]
    actions = tuple(f"guess {1 + number % 10}" for number in range(count))

    def time_gymnasium() -> float:
        vector.reset(seed=0)
        start = time.perf_counter()
        for _ in range(steps):
            vector.step(actions)
        return (time.perf_counter() - start) / (count * steps)

    def time_step_many() -> float:
        episodes = env.reset_many(ids, range(count))
        start = time.perf_counter()
        for _ in range(steps):
            episodes = env.step_many(episodes, actions)
        return (time.perf_counter() - start) / (count * steps)

    pairs = [(time_gymnasium(), time_step_many()) for _ in range(ROUNDS)]
    vector.close()
    slow, fast = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    return [
        Measurement("step through gymnasium.make_vec (sync)", slow * 1e6, "us per environment"),
        Measurement("step through step_many", fast * 1e6, "us per environment"),
        Measurement("ratio", slow / fast, "times", "at least 10"),
    ]


# ---- databases and libraries ----------------------------------------------------------------------------------------


def run_records(quick: bool = False) -> list[Measurement]:
    """Steps of the expert over databases and a searched library, and resets."""
    count = 40 if quick else 600
    tiny, free = open_env("fedagentgym/Records-v0", size="tiny"), open_env("fedagentgym/Records-v0", split="test")
    search = open_env("fedagentgym/QA-v0", tools=["search"], corpus="all")
    for env in (tiny, free, search):
        _play_expert(env, range(15))  # opens every database once
    found = [
        Measurement(
            "Records tiny, questions met first", _play_expert(tiny, range(15, count)), "steps/s", "at least 3,000"
        ),
        Measurement(
            "Records tiny, questions met again", _play_expert(tiny, range(15, count)), "steps/s", "at least 3,000"
        ),
        Measurement("Records, questions met first", _play_expert(free, range(15, count // 4 + 15)), "steps/s"),
        Measurement(
            "QA, search in the whole base", _play_expert(search, range(15, count)), "steps/s", "at least 5,000"
        ),
    ]
    for name, env in (("Records tiny", tiny), ("Records", free)):
        began = time.process_time()
        for number in range(count):
            env.reset_many([env.pool[number]], [0])
        found.append(Measurement(f"{name}, reset", 1e3 * (time.process_time() - began) / count, "ms", "< 1"))
    return found


def _play_expert(env: TextEnv, numbers: range) -> float:
    """Steps of the expert per second of processor time."""
    steps, began = 0, time.process_time()
    for number in numbers:
        (episode,), expert = env.reset_many([env.pool[number]], [0]), env.expert()
        while not episode.over:
            (episode,) = env.step_many([episode], [expert.act(episode)])
            steps += 1
    return steps / (time.process_time() - began)


# ---- verdicts per second and core ----------------------------------------------------------------------------------

PROGRAM = "def add(a, b):\n    return a + b\n"
CALLS = Checks("add", tuple(Call((number, 2), number + 2) for number in range(3)))
TEST = Checks("add", code="def check(candidate):\n    assert candidate(1, 2) == 3\n", check="check")


def run_verifiers(quick: bool = False) -> list[Measurement]:
    """Verdicts and code runs per second and core."""
    count = 64 if quick else 320
    found = _measure_mathematics(10 * count, count)
    found.append(
        _measure_rate(
            "question answering", lambda k: grade_qa(f"<answer> answer {k} </answer>", "answer 7"), 10 * count
        )
    )
    return found + _measure_programs(count)


def _measure_mathematics(plain: int, latex: int) -> list[Measurement]:
    verifier = MathVerifier(workers=1)
    verifier.verify("x+1", "1+x")
    process = verifier.pool._parent
    pid = process.pid if process is not None else None

    def verify_expression(k: int) -> object:
        """Golds with eight answers each, as a training group has them: three right, all written differently."""
        gold, place = k // 8, k % 8
        over, under = gold + 2, gold % 7 + 2
        right = (
            f"\\frac{{1}}{{{under}}}\\sqrt{{{over}}}",
            f"\\sqrt{{{over}}}/{under}",
            f"\\frac{{2\\sqrt{{{over}}}}}{{{2 * under}}}",
        )
        answer = right[place] if place < 3 else f"\\frac{{\\sqrt{{{over + place}}}}}{{{under}}}"
        return verifier.verify(f"\\frac{{\\sqrt{{{over}}}}}{{{under}}}", answer)

    measured = [
        _measure_rate(
            "mathematics, plain numbers", lambda k: verifier.verify(str(k), f"{k + k % 2} dollars"), plain, bar=0.8
        ),
        _measure_rate("mathematics, LaTeX in groups of eight", verify_expression, latex, pid, bar=0.3),
    ]
    verifier.close()
    return measured


def _measure_programs(count: int) -> list[Measurement]:
    verifier = CodeVerifier(workers=1)
    verifier.verify(PROGRAM, CALLS)
    verifier.verify(PROGRAM, TEST)
    with verifier.slots.one() as slot:
        servers = [server._process.pid for server in (slot.program, slot.test) if server._process is not None]
    measured = [
        _measure_rate("programs, calls", lambda _: verifier.verify(PROGRAM, CALLS), count, *servers, bar=0.1),
        _measure_rate(
            "programs, input and output", lambda _: verifier.run("print(input())", "1"), count, *servers, bar=0.1
        ),
        _measure_rate("programs, test code (two children)", lambda _: verifier.verify(PROGRAM, TEST), count, *servers),
    ]
    verifier.close()
    return measured


def _measure_rate(
    name: str, work: Callable[[int], object], count: int, *others: int | None, bar: float | None = None
) -> Measurement:
    for number in range(5):
        work(number)
    before = _get_processor_seconds(others)
    for number in range(count):
        work(number)
    spent = _get_processor_seconds(others) - before
    return Measurement(name, count / spent, "per second and core", Yardstick.measure().least_rate(bar) if bar else "")


def _get_processor_seconds(others: tuple[int | None, ...]) -> float:
    """Processor time of this process and of others with their children; wall time where that cannot be read."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    for pid in others:
        try:
            total += _sum_with_children(pid) if pid is not None else 0.0
        except OSError:
            return time.perf_counter()
    return total


def _sum_with_children(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    total = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return total + sum(_sum_with_children(int(child)) for child in children)
