"""Making hardness labels: a policy plays every task of a pool a few times, and tasks that it solves often enough are solved.

Labels must not be one-sided. A perfect expert solves everything and a random agent nothing, so the shipped labels come from a
*handicapped expert*: at every turn it takes a random admissible action with probability p, and it has
a limited number of turns. Every environment declares its own p and limit, so that a third to a half of the pool counts as solved.
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
from fedagentgym.envs.core import Episode, Handicap, TextEnv
from fedagentgym.envs.scripted import NoisyExpert
from fedagentgym.partitions.files.labels import LabelFile, format_task_line, read_labels

PlayFunction = Callable[[Sequence[str]], list[int]]
"""Plays the attempts at each of some tasks and returns how many of them succeeded."""


@dataclass(frozen=True)
class LabelPlan:
    """How a pool is to be labelled; written as the header of the label file."""

    policy: dict[str, Any]
    options: dict[str, Any]
    seed: int = 0
    attempts: int = 4
    threshold: int = 2

    def make_label_file(self, env: TextEnv, split: str) -> LabelFile:
        if not 1 <= self.threshold <= self.attempts:
            raise OptionError(f"the threshold is between 1 and the {self.attempts} attempts, got {self.threshold}")
        numbers = (self.seed, self.attempts, self.threshold)
        return LabelFile(env.id, split, self.options, env.pool.digest, self.policy, *numbers, {})


def handicap_expert(env: TextEnv, handicap: Handicap, seed: int, attempts: int) -> PlayFunction:
    """An expert with a handicap; every attempt depends on (seed, task, attempt) alone."""

    def play(tasks: Sequence[str]) -> list[int]:
        seats = [_Attempt(env, task, attempt, seed, handicap) for task in tasks for attempt in range(attempts)]
        for _ in range(handicap.turns):
            active = [seat for seat in seats if not seat.episode.over]
            moved = env.step_many([seat.episode for seat in active], [seat.choose_action() for seat in active])
            for seat, episode in zip(active, moved, strict=True):
                seat.episode = episode
        solved = [int(seat.episode.view.success) for seat in seats]
        return [sum(solved[at : at + attempts]) for at in range(0, len(solved), attempts)]

    return play


class _Attempt:
    """One running attempt."""

    def __init__(self, env: TextEnv, task: str, attempt: int, seed: int, handicap: Handicap) -> None:
        self.episode: Episode = env.reset_many([task], [derive(seed, "label", task, attempt)])[0]
        if handicap.error and not self.episode.view.admissible:
            raise OptionError(
                f"{env.id} lists no admissible actions, so a handicapped expert has nothing to choose from: label with "
                "--agent PATH, or use labels='pool' (the tasks' own difficulty)"
            )
        draws = stream(seed, "label", "error", task, attempt)
        self._player = NoisyExpert(env.expert(), handicap.error, self.episode.view.observation, draws, watching=False)

    def choose_action(self) -> str:
        return self._player.act(self.episode).action


def label_pool(
    env: TextEnv, split: str, plan: LabelPlan, play: PlayFunction, path: Path, batch: int = 32
) -> Iterator[int]:
    """Write the label file, task by task; an unfinished file of the same plan is continued. Yields the tasks done so far.

    Tasks are played in fixed batches, so that a policy that draws per batch gives the same labels after an interruption.
    """
    header = plan.make_label_file(env, split)
    done = _load_finished_tasks(path, header)
    yield len(done)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(env.pool.ids), batch):
            tasks = list(env.pool.ids[start : start + batch])
            missing = [task for task in tasks if task not in done]
            if not missing:
                continue
            found = dict(zip(tasks, play(tasks), strict=True))
            file.write("".join(format_task_line(task, found[task], plan.attempts) for task in missing))
            file.flush()
            done.update(missing)
            yield len(done)


def _load_finished_tasks(path: Path, header: LabelFile) -> set[str]:
    """The tasks that are already labelled; an incomplete last line is dropped."""
    first = canonical_json(header.to_header())
    if not path.exists():
        write_atomic(path, first + "\n")
        return set()
    text = read_bytes(path).decode("utf-8", "replace")
    whole = text[: text.rfind("\n") + 1]
    if whole.partition("\n")[0] != first:
        raise DataError(
            f"{path} holds other labels (another pool, policy, seed or number of attempts): "
            "choose another file or remove it"
        )
    if whole != text:
        write_atomic(path, whole)
    return set(read_labels(path).successes)
