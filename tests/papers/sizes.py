"""Rows made small: sizes and places are changed, the method never.

`SIZES` and `PLACES` are all the keys that differ; a star stands for any name or number in a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedagentgym.agents.presets import get_model
from fedagentgym.experiment.config import load_config

SHARE = 50
"""Data sets, and the clients' parts of them, are a fiftieth of what is published."""

TOKENS, TOKENS_OF_SOLUTIONS = 3, 64
"""Tokens of a reply; where the data's own solutions are imitated, there is room for whole ones."""
STATED_BATCHES = (3, 24)
"""Segments of a supervised step of a client or the server, where a preset says so; others are of no use to their method."""


def at_most(most: int) -> Callable[[Any], Any]:
    """A number, but not more than this; what had no limit gets one."""
    return lambda value: most if value is None else min(value, most)


def take_share(value: Any) -> Any:
    """The same share of a data set at this scale."""
    return None if value is None else max(1, value // SHARE)


SIZES: Mapping[str, Callable[[Any], Any]] = {
    "federation.rounds": at_most(2),
    "partition.tasks_per_client": take_share,
    "partition.min_tasks": take_share,
    "partition.mean_tasks": take_share,
    "partition.max_tasks": take_share,
    "partition.roles.*": take_share,
    "env.options.max_turns": at_most(2),
    "*decoding.max_new_tokens": at_most(TOKENS_OF_SOLUTIONS),
    "*options.train_tasks": take_share,
    "*options.holdout.*": take_share,
    "learning.tasks_per_step": at_most(2),
    "learning.group_size": at_most(4),
    "learning.minibatch_rows": lambda value: None if value is None else min(value, 8),
    "learning.loss.rows": lambda value: None if value is None else min(value, 2),
    "algorithm.local_steps": at_most(1),
    "algorithm.public_tasks": at_most(2),
    "algorithm.neighbours": at_most(2),
    "algorithm.expert_steps": at_most(1),
    "algorithm.synthetic_tasks": at_most(4),
    "algorithm.iterations": at_most(1),
    "algorithm.candidates": at_most(16),
    "algorithm.supervised.batch_size": lambda value: 2 if value in STATED_BATCHES else value,
    "evaluation.tasks": at_most(2),
    "evaluation.sets.*.repeats": lambda value: None if value is None else min(value, 2),
}
"""Keys that say how much, and how much of it is left."""
PLACES = (
    *("agent.model", "algorithm.expert_agent.model"),
    *("output.folder", "output.report", "federation.workers", "partition.labels"),
)
"""Keys that say where something lies or runs."""


def shrink(row: tuple[str, ...], find_model: Callable[[str], str], folder: Path, labels: Path) -> dict[str, Any]:
    """The configuration of a row at sizes that run in seconds, with models made for it."""
    config = load_config(row[0], row[1:])
    plain = map_leaves(config.plain(), _shrink_value)
    imitates = config.algorithm.get("objective") == "sft"
    tokens = TOKENS_OF_SOLUTIONS if imitates else TOKENS
    plain["agent"].setdefault("decoding", {})["max_new_tokens"] = tokens
    plain["agent"]["model"] = find_model(get_model(config.agent) or "")
    if period := plain["algorithm"].get("swap_period"):
        plain["algorithm"]["local_steps"] = max(period, plain["algorithm"]["local_steps"])
    if expert := plain["algorithm"].get("expert_agent"):
        expert["model"] = find_model(expert["model"])
        expert["decoding"]["max_new_tokens"] = tokens
    plain["federation"]["workers"] = 0
    plain["output"] |= {"folder": str(folder), "report": "none"}
    if plain["partition"]["sampler"] == "hardness":
        plain["partition"]["labels"] = str(labels)
    return plain


def _shrink_value(path: str, value: Any) -> Any:
    shrinking = next((made for pattern, made in SIZES.items() if fnmatchcase(path, pattern)), None)
    return value if shrinking is None else shrinking(value)


def map_leaves(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """A nested value with each of its leaves changed by its path."""
    if isinstance(value, Mapping):
        return {key: map_leaves(below, change, f"{path}.{key}".lstrip(".")) for key, below in value.items()}
    if isinstance(value, list):
        return [map_leaves(below, change, f"{path}.{number}") for number, below in enumerate(value)]
    return change(path, value)


def iter_leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Every leaf of a nested value with its path."""
    found: list[tuple[str, Any]] = []
    map_leaves(value, lambda path, leaf: found.append((path, leaf)))
    yield from found
