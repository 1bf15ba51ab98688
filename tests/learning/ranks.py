"""Processes that run in step, started as `torchrun` starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence


def find_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_ranks(count: int, module: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """`python -m module` as each of the ranks."""
    common = {**os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def finish(processes: Sequence[subprocess.Popen[str]], codes: Sequence[int]) -> list[str]:
    """Each rank's standard error, after they ended with these codes."""
    said = [process.communicate(timeout=500)[1] for process in processes]
    assert [process.returncode for process in processes] == list(codes), "\n".join(said)
    return said
