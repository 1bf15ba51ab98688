"""Making hardness labels: a policy plays every task of a pool a few times, and who solves it often enough counts as solved.

Labels must not be one-sided. A perfect expert solves everything and a random agent nothing, so the shipped labels come from a
*handicapped expert*: at every turn it takes, with probability p, a random admissible action instead of its own, and it has
a budget of turns. Every environment declares its own p and budget, so that a third to a half of the pool counts as solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import read_bytes, write_atomic
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.core import Episode, TextEnv
from fedagentgym.envs.handicap import Handicap
from fedagentgym.envs.scripted import NoisyExpert
from fedagentgym.partitions.files.labels import LabelFile, read_labels, task_line

Play = Callable[[Sequence[str]], list[int]]
"""Plays the attempts at each of some tasks and says how many of them succeeded."""


@dataclass(frozen=True)
class Plan:
    """How a pool is to be labelled; written as the header of the label file."""

    policy: dict[str, Any]
    options: dict[str, Any]
    seed: int = 0
    attempts: int = 4
    threshold: int = 2

    def header(self, env: TextEnv, split: str) -> LabelFile:
        if not 1 <= self.threshold <= self.attempts:
            raise OptionError(f"the threshold is between 1 and the {self.attempts} attempts, got {self.threshold}")
        numbers = (self.seed, self.attempts, self.threshold)
        return LabelFile(env.id, split, self.options, env.pool.digest, self.policy, *numbers, {})


def handicap_expert(env: TextEnv, handicap: Handicap, seed: int, attempts: int) -> Play:
    """The play of an expert under a handicap; every attempt depends on (seed, task, attempt) alone."""

    def play(tasks: Sequence[str]) -> list[int]:
        seats = [_Seat(env, task, attempt, seed, handicap) for task in tasks for attempt in range(attempts)]
        for _ in range(handicap.turns):
            active = [seat for seat in seats if not seat.episode.over]
            moved = env.step_many([seat.episode for seat in active], [seat.action() for seat in active])
            for seat, episode in zip(active, moved, strict=True):
                seat.episode = episode
        solved = [int(seat.episode.view.success) for seat in seats]
        return [sum(solved[at : at + attempts]) for at in range(0, len(solved), attempts)]

    return play


class _Seat:
    """One attempt under way."""

    def __init__(self, env: TextEnv, task: str, attempt: int, seed: int, handicap: Handicap) -> None:
        self.episode: Episode = env.reset_many([task], [derive(seed, "label", task, attempt)])[0]
        if handicap.error and not self.episode.view.admissible:
            raise OptionError(
                f"{env.id} lists no admissible actions, so a handicapped expert has nothing to choose from: label with "
                "--agent PATH, or use labels='pool' (the tasks' own difficulty)"
            )
        draws = stream(seed, "label", "error", task, attempt)
        self._player = NoisyExpert(env.expert(), handicap.error, self.episode.view.observation, draws, watching=False)

    def action(self) -> str:
        return self._player.act(self.episode).action


def label(env: TextEnv, split: str, plan: Plan, play: Play, path: Path, batch: int = 32) -> Iterator[int]:
    """Write the label file, task by task; an unfinished file of the same plan is continued. Yields tasks done so far.

    Tasks are played in fixed batches, so a policy that draws per batch gives the same labels after an interruption.
    """
    header = plan.header(env, split)
    done = _resumed(path, header)
    yield len(done)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(env.pool.ids), batch):
            tasks = list(env.pool.ids[start : start + batch])
            missing = [task for task in tasks if task not in done]
            if not missing:
                continue
            found = dict(zip(tasks, play(tasks), strict=True))
            file.write("".join(task_line(task, found[task], plan.attempts) for task in missing))
            file.flush()
            done.update(missing)
            yield len(done)


def _resumed(path: Path, header: LabelFile) -> set[str]:
    """The tasks that are done already; a last line that was cut off is dropped."""
    first = canonical_json(header.header())
    if not path.exists():
        write_atomic(path, first + "\n")
        return set()
    text = read_bytes(path).decode("utf-8", "replace")
    whole = text[: text.rfind("\n") + 1]
    if whole.partition("\n")[0] != first:
        raise DataError(
            f"{path} holds something else than these labels (another pool, policy, seed or number of attempts): "
            "choose another file or remove it"
        )
    if whole != text:
        write_atomic(path, whole)
    return set(read_labels(path).successes)
