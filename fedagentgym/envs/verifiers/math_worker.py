"""The process behind the math verifier. Run as a script: it imports math-verify once and forks workers.

It communicates over the socket that is its standard input. Each byte that arrives brings one end of a socket pair; a forked
worker serves comparisons on it until the other end is closed. The kernel measures a worker's processor time, so that a busy
machine refuses nothing that an idle one accepts. An interval timer is armed before every comparison. Its signal has the
default action, so a comparison that overruns ends the process, wherever it is stuck. Nothing of the package is imported
here, because this file's folder has a module `math`, which would hide Python's.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any

HEADER = 4
GROWTH_BEFORE_RETIRING = 96 << 20


def read_exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(size)
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def serve(channel: socket.socket, memory: int, comparer: Any) -> None:
    """Answer comparisons until the other end is closed, or until the worker has grown and exits to free memory.

    The address space may grow by `memory` bytes beyond what the imports use.
    """
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - this script imports as little as it can
            mapped = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        mapped = 1 << 30
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, mapped + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    started_with = resident()
    while True:
        size = int.from_bytes(read_exactly(channel, HEADER), "big")
        gold, answer, seconds, whole = json.loads(read_exactly(channel, size))
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            outcome = "equal" if comparer(gold, answer, whole) else "different"
        except MemoryError:
            outcome = "out of memory"
        except RecursionError:
            outcome = "too deep"
        except Exception:
            outcome = "not readable"
        signal.setitimer(signal.ITIMER_PROF, 0)
        retiring = outcome == "out of memory" or resident() - started_with > GROWTH_BEFORE_RETIRING
        reply = json.dumps([outcome, time.process_time() - started, retiring]).encode()
        channel.sendall(len(reply).to_bytes(HEADER, "big") + reply)
        if retiring:
            os._exit(0)


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def make_comparer() -> Any:
    """The library's own comparison of a gold with an answer, each put into a box so that the library reads nothing else; or,
    with `whole`, with a whole reply, in which the library looks for the answer in LaTeX, first in a box."""
    from functools import lru_cache

    from math_verify import LatexExtractionConfig, parse, verify

    def read(text: str) -> list[Any]:
        found: list[Any] = parse("\\boxed{" + text + "}", parsing_timeout=None)
        return found

    anchored = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]

    def read_reply(text: str) -> list[Any]:
        found: list[Any] = parse(text, extraction_config=anchored, extraction_mode="first_match", parsing_timeout=None)
        return found

    read_gold = lru_cache(maxsize=256)(read)

    def compare(gold: str, answer: str, whole: bool) -> bool:
        said = read_reply(answer) if whole else read(answer)
        return bool(verify(read_gold(gold), said, timeout_seconds=None))

    for gold, answer in (("\\frac{1}{2}", "0.5"), ("x^2-1", "(x-1)(x+1)"), ("[1,2)", "1 \\le x < 2"), ("x=3", "3")):
        compare(gold, answer, False)
        compare(gold, f"the answer is ${answer}$", True)
    read_gold.cache_clear()
    return compare


def main() -> None:
    import gc
    import logging

    control = socket.socket(fileno=0)
    setup = json.loads(read_exactly(control, int.from_bytes(read_exactly(control, HEADER), "big")))
    sys.path[:] = setup["path"]
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    comparer = make_comparer()
    gc.collect()
    gc.freeze()
    while True:
        command, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not command or not handles:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            os.open(os.devnull, os.O_RDONLY)
            serve(socket.socket(fileno=handles[0]), setup["memory"], comparer)
        os.close(handles[0])


if __name__ == "__main__":
    main()
