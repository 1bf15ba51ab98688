"""An environment for programs that have a world of their own: tasks from a file, no steps, a reward that the program reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, join_names, show_value
from fedagentgym.base.files import parse_json, read_jsonl
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.options import EnvOptions, local, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.view import View

REPORTED = "reported"
"""Records have this word in place of the version of a verifier."""
EXAMPLES = ("garden", "window", "bridge", "kitchen", "letter", "mountain", "river", "station", "library", "harbour")
"""Words of the example tasks, which are played without a file and ask for the number of letters."""


class OwnOptions(EnvOptions):
    """The file of tasks, and the share of them that is held out."""

    data: str | None = local(
        None,
        description="file of tasks, a JSON object on each line: id, category, data, split; null: built-in examples",
    )
    held_out: float = task(
        0.2,
        ge=0.0,
        lt=1.0,
        description="share of the tasks without a split that is held out, one half as val and the other as test",
    )


class OwnEnv(TextEnv[OwnOptions]):
    """Tasks of a program that has its own world: a mailbox, a database, a browser.

    **Tasks.** Lines of the file `data`, `{"id": "a", "category": "billing", "data": {...}}`: `data` is what the program may see,
    never the answer. A line may name its `split`. Otherwise the first line of the
    file is warmup, a tenth of the lines is val, and another tenth test (`held_out`).
    **Actions.** None: a program plays (`agent.harness` with `world: own`), and its report ends the episode.
    **Observations.** The `data`, for readers of the record; the program writes its own prompts.
    **Reward.** The number that the program reports. It cannot be checked: it is shown as unverified, and never ranked.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Own-v0"
    is_reported: ClassVar[bool] = True
    """True if a program reports the reward, so that only programs can play."""
    takes = "reply"
    role = "You work with the tools of a program."
    action_help = "The program says what there is to do."
    default_max_turns = 2
    reward_names = ("reported",)

    def load_pool(self, split: str) -> TaskPool:
        """The tasks of a split; tasks that name none are divided by their place in the file."""
        rows = list[dict[str, Any]]()
        for where, row in self._read_rows():
            if not isinstance(row, dict) or not isinstance(row.get("category", ""), str):
                raise DataError(f"{where}: a task is a mapping with id, category and data")
            if unknown := set(row) - {"id", "category", "data", "split"}:
                raise DataError(f"{where}: a task has id, category, data and split, not {min(unknown)!r}")
            named = row.get("split") or self._find_split(len(rows))
            if named not in self.splits:
                raise DataError(f"{where}: a split must be one of {join_names(self.splits)}, got {show_value(named)}")
            key = str(row.get("id", f"own/{len(rows):05d}"))
            about = {"id": key, "category": row.get("category", "own"), "payload": row.get("data", {})}
            rows.append({**about, "split": named})
        chosen = [row for row in rows if split in ("all", row["split"])]
        if not chosen:
            raise DataError(f"{self.options.data or self.id} holds no task of the split {split!r}")
        plain = [{key: row[key] for key in ("id", "category", "payload")} for row in chosen]
        return TaskPool.from_records(plain, env=self.id, split=split)

    def _read_rows(self) -> Iterator[tuple[str, Any]]:
        if self.options.data is not None:
            for number, row in read_jsonl(Path(self.options.data)):
                yield f"{self.options.data}, line {number}", row
            return
        for place in range(20 * len(EXAMPLES)):
            words = [EXAMPLES[place % 10], EXAMPLES[place // 10 % 10]][: 1 + place // 100]
            yield (
                "an example",
                {"category": "one" if len(words) == 1 else "two", "data": {"place": place, "words": words}},
            )

    def _find_split(self, place: int) -> str:
        """The split of the task on a line of the file. Val and test are spread evenly, and lines added later change no split."""
        share = self.options.held_out / 2
        taken = [int((place + 1) * part + 1e-9) - int(place * part + 1e-9) for part in (share, 2 * share)]
        return "val" if taken[0] else "test" if taken[1] else "warmup" if place == 0 else "train"

    def get_verifier_version(self) -> str:
        """Return the word that marks a reward which a program reported and this package cannot check."""
        return REPORTED

    def get_data(self, task: Task) -> Any:
        """The part of a task that the program may see."""
        return task.payload

    def begin(self, task: Task, seed: int) -> tuple[None, View]:
        return None, View(observation=canonical_json(task.payload))

    def advance(self, state: None, action: str) -> tuple[None, View]:
        """Take a report as the gateway writes it; any other text is not understood."""
        try:
            plain = parse_json(action, "a report")
            numbers, success = (plain["reward"], plain["score"]), plain["success"]
            if not all(type(number) in (int, float) for number in numbers) or not isinstance(success, bool):
                raise TypeError("a report has two numbers and a truth value")
            reward, score = map(float, numbers)
        except (DataError, KeyError, TypeError, OverflowError):
            return state, View(observation="", valid=False)
        if not math.isfinite(reward) or not 0.0 <= score <= 1.0:
            return state, View(observation="", valid=False)
        found = {"reported": reward}
        return state, View(observation="", reward=reward, score=score, success=success, done=True, rewards=found)
