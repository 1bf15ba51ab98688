"""The data of the episode browser, the component that shows episodes on all pages (`assets/episodes.js`).

A page contains the episodes as data. Each text is stored once and referred to by its number, since observations and listed
actions are often repeated. The component inserts texts as text and never as markup, since a reply can contain anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedagentgym.learning.trajectory import Line, Trajectory, read_lines

MAX_CHARACTERS = 1_500_000
"""Approximate maximum size of the episodes in a page. Further tasks are left out, and the page shows their number."""
MAX_TEXT_LENGTH = 20_000
"""Maximum length of one observation or reply in a page."""


@dataclass(frozen=True)
class ShownEpisode:
    """An episode, with the client and the round of a training episode."""

    trajectory: Trajectory
    client: int | None = None
    round: int | None = None
    set: str = ""


@dataclass(frozen=True)
class Source:
    """The episodes of one policy or of one file. The browser shows the episodes of all sources side by side, task by task."""

    name: str
    episodes: Sequence[ShownEpisode]


@dataclass
class _Texts:
    """The distinct texts of a page in the order of their first use, each with its number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        shortened = (
            text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}… ({len(text):,} characters in all)"
        )
        return self.numbers.setdefault(shortened, len(self.numbers))


def read_episodes(file: Path) -> list[ShownEpisode]:
    """Return all episodes of a file that an evaluation or a run has written."""
    return label_episodes(read_lines(file))


def label_episodes(lines: Iterable[Line]) -> list[ShownEpisode]:
    """Return the episodes of lines, with the client, the round and the set that each line names."""
    found = []
    for line in lines:
        client, number = line.about.get("client"), line.about.get("round")
        client = client if isinstance(client, int) else None
        number = number if isinstance(number, int) else None
        found.append(ShownEpisode(line.trajectory, client, number, str(line.about.get("set", ""))))
    return found


# ---- the data of a page --------------------------------------------------------------------------------------------


def make_browser_data(sources: Sequence[Source], most: int = MAX_CHARACTERS) -> dict[str, Any]:
    """Return the data of the component, of at most about `most` characters.

    Tasks are taken from the categories in turn, each with its episodes of all sources, until the limit is reached."""
    by_task: dict[tuple[str, str, str], list[tuple[int, ShownEpisode]]] = {}
    for number, source in enumerate(sources):
        for shown in source.episodes:
            by_task.setdefault(_identify(shown), []).append((number, shown))
    texts, kept, used, tasks = _Texts(), [], 0, 0
    for identity in _spread(by_task):
        formatted = [_format_episode(number, shown, texts) for number, shown in by_task[identity]]
        before, used = used, len(json.dumps(formatted)) + used
        tasks += 1
        kept += formatted
        if used + sum(map(len, texts.numbers)) > most and before:
            break
    return {
        "sources": [source.name for source in sources],
        "texts": list(texts.numbers),
        "episodes": kept,
        "tasks": tasks,
        "all_tasks": len(by_task),
    }


def _identify(shown: ShownEpisode) -> tuple[str, str, str]:
    return shown.set, shown.trajectory.category, shown.trajectory.task


def _spread(tasks: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the tasks, taken from the categories in turn."""
    by_category: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for task in tasks:
        by_category.setdefault(task[:2], []).append(task)
    rows = list(by_category.values())
    for place in range(max(map(len, rows), default=0)):
        yield from (row[place] for row in rows if place < len(row))


def _format_episode(source: int, shown: ShownEpisode, texts: _Texts) -> dict[str, Any]:
    trajectory = shown.trajectory
    plain: dict[str, Any] = {
        "source": source,
        "task": texts.add(trajectory.task),
        "category": texts.add(f"{shown.set} / {trajectory.category}" if shown.set else trajectory.category),
        "sample": trajectory.sample,
        "seed": str(trajectory.seed),
        "success": trajectory.success,
        "truncated": trajectory.truncated,
        "score": trajectory.score,
        "last": texts.add(trajectory.last),
        "turns": [
            [
                texts.add(turn.observation),
                texts.add(turn.reply),
                texts.add(turn.action),
                round(turn.reward, 4),
                int(turn.valid),
                int(turn.format),
                [texts.add(action) for action in turn.admissible],
            ]
            for turn in trajectory.turns
        ],
    }
    if shown.client is not None:
        plain["client"] = shown.client
    if shown.client is not None and shown.round is not None:
        plain["round"] = shown.round
    return plain
