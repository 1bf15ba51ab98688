"""Hardness labels: how often a policy solved each task of a pool.

They are made by `fedagentgym label`, shipped for the default pools, and stored in every split that was sampled with them. The
usual policy is a *handicapped expert*: at every turn it takes a random admissible action with probability p, and the number of
turns is limited. Every environment declares its own p and limit, so that a third to a half of the pool counts as solved.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.encoding import canonical_json, digest, shorten_digest
from fedagentgym.base.errors import DataError, OptionError, join_names, show_value
from fedagentgym.base.files import check_format, read_bytes, read_jsonl, write_atomic
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool, describe_pool_words
from fedagentgym.envs.protocols import Handicap
from fedagentgym.envs.scripted import NoisyExpert
from fedagentgym.envs.view import Episode

SCHEMA = "fedagentgym/labels/1"
FROM_POOL = "pool"
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Labels:
    """The tasks of a pool that count as solved, in the order of the sorted ids, and the source of this knowledge."""

    solved: Flags
    source: Mapping[str, Any]

    def to_record(self) -> dict[str, Any]:
        """The labels as plain values for a split file, with one bit per task."""
        packed = base64.b64encode(np.packbits(self.solved).tobytes()).decode("ascii")
        return {"source": dict(self.source), "tasks": int(self.solved.size), "solved": packed}

    @classmethod
    def from_record(cls, record: Any) -> Labels:
        """The labels of a split file; its bits are checked before they are unpacked."""
        what = "the labels of the split file are malformed"
        if not isinstance(record, dict) or set(record) != {"source", "tasks", "solved"}:
            raise DataError(f"{what}: they hold source, tasks and solved alone")
        tasks, text, source = record["tasks"], record["solved"], record["source"]
        if not is_count(tasks) or not isinstance(text, str) or not isinstance(source, dict):
            raise DataError(f"{what}: a number of tasks, a text and a source are expected")
        if not isinstance(source.get("policy"), dict) or not isinstance(source.get("digest"), str):
            raise DataError(f"{what}: their source has a policy and a digest")
        try:
            packed = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
        except ValueError as error:
            raise DataError(f"{what} ({error})") from None
        if packed.size != (tasks + 7) // 8:
            raise DataError(f"{what}: {packed.size:,} bytes do not hold one bit for each of {tasks} tasks")
        labels = cls(np.unpackbits(packed, count=tasks).astype(bool), source)
        if labels.to_record()["solved"] != text:
            raise DataError(f"{what}: bits are set beyond the last task")
        return labels


@dataclass(frozen=True)
class LabelFile:
    """The content of a label file: successes per task and how they were measured."""

    env: str
    split: str
    options: Mapping[str, Any]
    pool_digest: str
    policy: Mapping[str, Any]
    seed: int
    attempts: int
    threshold: int
    successes: Mapping[str, int]

    def to_header(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "env": {"id": self.env, "split": self.split, "options": dict(self.options)},
            "pool_digest": self.pool_digest,
            "policy": dict(self.policy),
            "seed": self.seed,
            "attempts": self.attempts,
            "threshold": self.threshold,
        }

    def resolve_labels(self, pool: TaskPool, ids: Sequence[str]) -> Labels:
        """The labels for the sorted ids of a pool. The file must be for this very pool and label every task."""
        if self.pool_digest != pool.digest:
            raise DataError(
                f"the labels were made for another pool ({self.env}, {self.split}, {shorten_digest(self.pool_digest)}; "
                f"this one is {shorten_digest(pool.digest)}): label this pool with "
                f"`fedagentgym label {describe_pool_words(pool)}`"
            )
        missing = [name for name in ids if name not in self.successes]
        if missing:
            raise DataError(
                f"the labels miss {len(missing):,} of {len(ids):,} tasks, the first is {missing[0]}: "
                "run the same `fedagentgym label` command again, it continues where it stopped"
            )
        solved = np.fromiter((self.successes[name] >= self.threshold for name in ids), dtype=bool, count=len(ids))
        source = {
            "policy": dict(self.policy),
            "seed": self.seed,
            "attempts": self.attempts,
            "threshold": self.threshold,
        }
        return Labels(solved, {**source, "digest": digest([[name, self.successes[name]] for name in ids])})


def is_count(value: object, most: int = 1 << 62) -> TypeGuard[int]:
    """Return whether a value read from a file is a whole number from 0 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def read_labels(path: str | Path) -> LabelFile:
    """Read a label file: one header line, then one line per task."""
    lines = iter(read_jsonl(path))
    _, header = next(lines, (0, None))
    header = header if isinstance(header, dict) else {}
    check_format(header.get("schema"), SCHEMA, str(path), "a label file")
    what = f"{path}, line 1: the header is malformed"
    env, policy = header.get("env"), header.get("policy")
    if not isinstance(env, dict) or not isinstance(policy, dict) or not isinstance(header.get("pool_digest"), str):
        raise DataError(f"{what}: env, policy and pool_digest are expected")
    if not all(isinstance(env.get(name), kind) for name, kind in (("id", str), ("split", str), ("options", dict))):
        raise DataError(f"{what}: env holds id, split and options")
    seed, attempts, threshold = (header.get(name) for name in ("seed", "attempts", "threshold"))
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise DataError(f"{what}: the seed is a whole number")
    if not is_count(attempts, 1_000_000) or not is_count(threshold, attempts) or not threshold:
        raise DataError(f"{what}: the threshold is between 1 and the number of attempts")
    successes: dict[str, int] = {}
    for number, row in lines:
        count = row.get("successes") if isinstance(row, dict) else None
        if not isinstance(row, dict) or not isinstance(row.get("task"), str) or not is_count(count, attempts):
            raise DataError(f"{path}, line {number}: a label has a task id and between 0 and {attempts} successes")
        if row.get("attempts", attempts) != attempts:
            raise DataError(f"{path}, line {number}: the header says {attempts} attempts, this line another number")
        if successes.setdefault(row["task"], count) != count:
            raise DataError(f"{path}, line {number}: {row['task'][:80]!r} was labelled before, with another number")
    known = (env["id"], env["split"], env["options"], header["pool_digest"], policy)
    return LabelFile(*known, seed, attempts, threshold, successes)


# ---- labels that come with the package --------------------------------------------------------------------------


def pack_labels(labels: LabelFile, ids: Sequence[str]) -> str:
    """The compact form of labels in the package: the successes are one digit per task, in the order of the pool."""
    if labels.attempts > 9:
        raise OptionError(f"packed labels hold up to 9 attempts, got {labels.attempts}")
    return (
        canonical_json({**labels.to_header(), "successes": "".join(str(labels.successes[name]) for name in ids)}) + "\n"
    )


def find_shipped(pool: TaskPool) -> LabelFile | None:
    """The labels that come with the package for this very pool; None if there are none."""
    for record in read_shipped().values():
        if record["env"]["id"] == pool.env and record["pool_digest"] == pool.digest:
            successes = {name: int(digit) for name, digit in zip(pool.ids, record["successes"], strict=True)}
            header = (pool.env, record["env"]["split"], record["env"]["options"], pool.digest, record["policy"])
            return LabelFile(*header, record["seed"], record["attempts"], record["threshold"], successes)
    return None


def read_shipped() -> dict[str, dict[str, Any]]:
    """Every label file that comes with the package, by name."""
    entries = resources.files("fedagentgym.partitions").joinpath("data").iterdir()
    files = {entry.name: entry for entry in entries if entry.name.startswith("labels_")}
    return {name: json.loads(files[name].read_text("ascii")) for name in sorted(files)}


def from_mapping(solved: Mapping[str, Any], ids: Sequence[str]) -> Labels:
    """Labels from a mapping of task ids to true or false, or to success shares, where one half counts as solved."""
    missing = [name for name in ids if name not in solved]
    if missing:
        raise DataError(f"the labels miss {len(missing):,} of {len(ids):,} tasks: {join_names(missing, 3)}")
    for name in ids:
        value = solved[name]
        if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating) or not 0 <= value <= 1:
            raise DataError(
                f"the label of {name} must be a success share from 0 to 1, or true or false, got {show_value(value)}"
            )
    flags = np.fromiter((float(solved[name]) >= 0.5 for name in ids), dtype=bool, count=len(ids))
    given = digest([[name, flag] for name, flag in zip(ids, flags.tolist(), strict=True)])
    return Labels(flags, {"policy": {"name": "given"}, "digest": given})


def from_pool(pool: TaskPool, ids: Sequence[str]) -> Labels:
    """Labels from the tasks' own hardness: the easier half counts as solved."""
    values = [pool[name].hardness for name in ids]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        raise DataError(
            f"{len(values) - len(known):,} of {len(values):,} tasks of {pool.env} ({pool.split}) have no hardness"
        )
    border = float(np.median(known))
    flags = np.array([value <= border for value in known], dtype=bool)
    return Labels(
        flags, {"policy": {"name": "pool", "border": border}, "digest": digest([float(value) for value in known])}
    )


def resolve_labels(given: Any, pool: TaskPool, ids: Sequence[str]) -> Labels | None:
    """Resolve labels that a caller gave as a label file, a mapping, or "pool". None stands for the labels that come with the
    package; if there are none for this pool, None is returned."""
    if given == FROM_POOL:
        return from_pool(pool, ids)
    if isinstance(given, str | Path):
        return read_labels(given).resolve_labels(pool, ids)
    if isinstance(given, Mapping):
        return from_mapping(given, ids)
    if given is not None:
        raise OptionError(
            f"labels must be a path, {FROM_POOL!r} or a mapping task id -> solved, got {type(given).__name__}"
        )
    shipped = find_shipped(pool)
    return None if shipped is None else shipped.resolve_labels(pool, ids)


# ---- making labels ----------------------------------------------------------------------------------------------------


PlayFunction = Callable[[Sequence[str]], list[int]]
"""A function that plays all attempts at the given tasks and returns the number of successes of each task."""


@dataclass(frozen=True)
class LabelPlan:
    """The plan of labelling a pool; written as the header of the label file."""

    policy: dict[str, Any]
    options: dict[str, Any]
    seed: int = 0
    attempts: int = 4
    threshold: int = 2


def handicap_expert(env: TextEnv, handicap: Handicap, seed: int, attempts: int) -> PlayFunction:
    """A `PlayFunction` of the expert with a handicap. Every attempt depends only on (seed, task, attempt)."""

    def play(tasks: Sequence[str]) -> list[int]:
        episodes: list[Episode] = []
        players: list[NoisyExpert] = []
        for task, attempt in product(tasks, range(attempts)):
            episode = env.reset_many([task], [derive(seed, "label", task, attempt)])[0]
            if handicap.error and not episode.view.admissible:
                raise OptionError(
                    f"{env.id} lists no admissible actions, so a handicapped expert has nothing to choose from: label with "
                    "--agent PATH, or use labels='pool' (the tasks' own hardness)"
                )
            draws = stream(seed, "label", "error", task, attempt)
            episodes.append(episode)
            players.append(NoisyExpert(env.expert(), handicap.error, episode.view.observation, draws, watching=False))
        for _ in range(handicap.turns):
            active = [number for number, episode in enumerate(episodes) if not episode.over]
            actions = [players[number].act(episodes[number]).action for number in active]
            for number, moved in zip(active, env.step_many([episodes[n] for n in active], actions), strict=True):
                episodes[number] = moved
        solved = [int(episode.view.success) for episode in episodes]
        return [sum(solved[at : at + attempts]) for at in range(0, len(solved), attempts)]

    return play


def label_pool(
    env: TextEnv, split: str, plan: LabelPlan, play: PlayFunction, path: Path, batch: int = 32
) -> Iterator[int]:
    """Write the label file batch by batch, or continue an unfinished file of the same plan. Yields the number of tasks done.

    The batches are fixed, so that a policy that draws per batch gives the same labels after an interruption.
    """
    if not 1 <= plan.threshold <= plan.attempts:
        raise OptionError(f"the threshold must be between 1 and the {plan.attempts} attempts, got {plan.threshold}")
    numbers = (plan.seed, plan.attempts, plan.threshold)
    header = LabelFile(env.id, split, plan.options, env.pool.digest, plan.policy, *numbers, {})
    first = canonical_json(header.to_header())
    if not path.exists():
        write_atomic(path, first + "\n")
    text = read_bytes(path).decode("utf-8", "replace")
    whole = text[: text.rfind("\n") + 1]
    if whole.partition("\n")[0] != first:
        raise DataError(
            f"{path} holds other labels (another pool, policy, seed or number of attempts): "
            "choose another file or remove it"
        )
    if whole != text:  # an incomplete last line is dropped
        write_atomic(path, whole)
    done = set(read_labels(path).successes)
    yield len(done)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(env.pool.ids), batch):
            tasks = list(env.pool.ids[start : start + batch])
            missing = [task for task in tasks if task not in done]
            if not missing:
                continue
            found = dict(zip(tasks, play(tasks), strict=True))
            for task in missing:
                line = {"task": task, "successes": found[task], "attempts": plan.attempts}
                file.write(json.dumps(line) + "\n")
            file.flush()
            done.update(missing)
            yield len(done)
