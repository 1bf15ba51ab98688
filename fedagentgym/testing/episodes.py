"""Synthetic groups of episodes, on which estimators and objectives are checked."""

from __future__ import annotations

from fedagentgym.base.streams import Stream, stream
from fedagentgym.learning.trajectory import Group, Trajectory, Turn

SIZES = (8, 5, 2, 1)
WORDS = ("go", "to", "the", "left", "lamp", "red", "door")


def sample_groups() -> list[Group]:
    """Groups of several sizes with episodes of 1 to 5 turns; in the last one all rewards are zero."""
    draws = stream(0, "sample groups")
    groups = [tuple(_episode(draws, number, sample) for sample in range(size)) for number, size in enumerate(SIZES)]
    return [*groups, tuple(_episode(draws, len(SIZES), sample, paid=False) for sample in range(4))]


def _episode(draws: Stream, number: int, sample: int, *, paid: bool = True) -> Trajectory:
    length = 1 + draws.integers(5)
    success = paid and draws.uniform() < 0.5
    turns = []
    for turn in range(length):
        last = turn == length - 1
        reward = draws.uniform() if paid and not last else float(success and last)
        words = [draws.pick(WORDS) for _ in range(1 + draws.integers(12))]
        observation = f"place {draws.integers(3)}"
        turns.append(
            Turn(observation, " ".join(words), words[0], reward, True, draws.uniform() < 0.8, tokens=len(words))
        )
    return Trajectory(
        f"check/train/{number:05d}",
        number,
        tuple(turns),
        category="check",
        sample=sample,
        score=float(success),
        success=success,
        terminated=True,
    )
