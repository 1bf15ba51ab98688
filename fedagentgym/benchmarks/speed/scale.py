"""How the cost of a round grows: with the participants, with the model, and with the clients that are not called.

The constants that docs/scale.md extends on paper come from here. Replies are of float32 weights; time is processor time of
this process without the clients' training and the disk's part, memory what Python and numpy hold at most.
"""

from __future__ import annotations

from fedagentgym.base.errors import OptionError
from fedagentgym.base.measurement import Measurement
from fedagentgym.base.progress import show_progress
from fedagentgym.benchmarks.speed.idle import (
    IdleAlgorithm,
    disable_fsync,
    measure_peak_bytes,
    time_copy_and_hash,
    time_round,
)

PARTICIPANTS = (10, 100, 1000)
MODELS = (25_000, 250_000, 2_500_000, 25_000_000)
"""Numbers of weights: 0.1, 1, 10 and 100 MB."""
USUAL = 250_000
FEW = 10
VISIBLE = 20_000
"""Clients from which on their memory stands out from the buffers that a round takes for a moment."""


def measure_scale(clients: int, quick: bool) -> list[Measurement]:
    """Rounds over participants, over model size, and with few of all clients asked."""
    if clients < 1:
        raise OptionError(f"--clients is a number of clients from 1 on, not {clients}")
    usual = USUAL // 10 if quick else USUAL
    models = MODELS[:2] if quick else MODELS
    asked = [count for count in PARTICIPANTS if count <= clients] or [clients]
    few = min(FEW, clients)
    points = [(count, usual) for count in asked] + [(few, floats) for floats in models if floats != usual]
    found: list[Measurement] = []
    with disable_fsync(), show_progress(f"rounds in a federation of {clients:,}", len(points) + 1) as bar:
        for count, floats in points:
            found += _measure_point(clients, count, floats)
            bar.advance()
        found += _measure_population(clients, few)
        bar.advance()
    return found


def _measure_point(clients: int, asked: int, floats: int) -> list[Measurement]:
    """Time and memory of a round that calls some of all clients."""
    nbytes = 4 * floats
    least = time_copy_and_hash(nbytes, asked)
    spent, _ = time_round(IdleAlgorithm(clients, floats), 3, per_round=asked)
    peak = measure_peak_bytes(IdleAlgorithm(clients, floats), asked)
    name = f"{asked:,} of {clients:,} clients, {nbytes / 1e6:g} MB"
    return [
        Measurement(f"{name}: round", 1000 * spent, "ms"),
        Measurement(f"{name}: over memcpy + sha256", spent / least, "times"),
        Measurement(f"{name}: greatest memory", peak / 1e6, "MB"),
    ]


def _measure_population(clients: int, asked: int) -> list[Measurement]:
    """The cost of clients that are not called: a round of tiny messages among all clients, and among the called ones alone."""
    alone, _ = time_round(IdleAlgorithm(asked, 100), 5)
    among, _ = time_round(IdleAlgorithm(clients, 100), 5, per_round=asked)
    found = [
        Measurement(f"{asked} clients of 400 bytes, all asked: round", 1000 * alone, "ms"),
        Measurement(f"{asked} of {clients:,} clients of 400 bytes: round", 1000 * among, "ms"),
    ]
    if clients >= VISIBLE:
        peaks = [measure_peak_bytes(IdleAlgorithm(count, 100), asked) for count in (asked, clients)]
        idle = (peaks[1] - peaks[0]) / (clients - asked)
        found.append(Measurement("memory of a client that is not asked", idle, "bytes"))
    return found
