"""Learning curves of a benchmark over its seeds, kept as plain numbers so that their pictures can be drawn again.

python -m benchmarks learning-ppo      benchmarks/results/learning-ppo.json: success by policy step, for every recipe
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json, write_atomic

KEPT = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class KeptCurve:
    """Points of all seeds: `x` (steps, bytes) and the success of every seed there."""

    x: tuple[float, ...]
    success: tuple[tuple[float, ...], ...]


def save_curves(name: str, rows: Mapping[str, Sequence[Sequence[tuple[float, float]]]], folder: Path = KEPT) -> None:
    """Write the curves of rows: for every seed its points (x, success); x is the mean over the seeds."""
    plain = {}
    for row, seeds in rows.items():
        points = list(zip(*seeds, strict=True))
        x = [sum(at for at, _ in point) / len(point) for point in points]
        plain[row] = {"x": x, "success": [[success for _, success in point] for point in points]}
    write_atomic(folder / f"{name}.json", canonical_json(plain) + "\n")


def load_curves(name: str, folder: Path = KEPT) -> dict[str, KeptCurve] | None:
    """The curves that `save_curves` wrote; None if there are none."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    plain = read_json(path)
    try:
        assert isinstance(plain, dict)
        return {
            row: KeptCurve(tuple(map(float, one["x"])), tuple(tuple(map(float, at)) for at in one["success"]))
            for row, one in plain.items()
        }
    except (AssertionError, KeyError, TypeError, ValueError):
        raise DataError(f"{path}: malformed, not curves of a benchmark") from None
