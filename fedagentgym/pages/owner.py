"""The page for the owner of a client's tasks: success by round on held-out tasks, and episodes of the first and last round.

The page is made from files in the node's workplace, and nothing of it is sent to others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.rounding import count_things
from fedagentgym.base.statistics import estimate_tasks
from fedagentgym.pages.charts import Chart, Series
from fedagentgym.pages.episodes import ShownEpisode, Source, make_browser_data, read_episodes
from fedagentgym.pages.render import format_percent, render


def write_owner_page(folder: Path, page: Path) -> str:
    """Write the page of one client's evaluations (`workplace/evaluation/RUN/client-N`), and return its first sentence."""
    files = {int(file.stem): file for file in sorted(folder.glob("*.jsonl")) if file.stem.isdecimal()}
    if not files:
        raise DataError(f"{folder} holds no evaluations of a client")
    rounds = {number: read_episodes(file) for number, file in files.items()}
    found = {number: _estimate(episodes) for number, episodes in rounds.items()}
    first, last = min(found), max(found)
    line = Series(
        "held-out tasks",
        [(float(number), one[0]) for number, one in found.items()],
        band=[(one[1], one[2]) for one in found.values()],
    )
    shown = [f"{format_percent(found[first][0])} of the held-out tasks were solved {_name_round(first)}"]
    if last != first:
        shown.append(f"{format_percent(found[last][0])} {_name_round(last)}")
    sentence = f"{', '.join(shown)}."
    sources = [Source(f"round {number}", rounds[number]) for number in sorted({first, last})]
    text = render(
        "owner.html",
        title=folder.name,
        result=[sentence],
        about=f"{count_things(len(rounds[last]), 'episode')} of round {last}. This page and its files stay on this machine.",
        curve=Chart("Success by round", [line], limits=(0.0, 1.0), percent=True),
        episodes=make_browser_data(sources),
    )
    write_atomic(page, text)
    return sentence


def _name_round(number: int) -> str:
    return f"after round {number}" if number else "before training"


def _estimate(episodes: list[ShownEpisode]) -> tuple[float, float, float]:
    """Return the success rate with its interval."""
    by_task: dict[str, list[float]] = {}
    for one in episodes:
        by_task.setdefault(one.trajectory.task, []).append(float(one.trajectory.success))
    shares = np.array([[sum(values) / len(values)] for values in by_task.values()])
    mean, low, high = (float(value[0]) for value in estimate_tasks([shares], [True]))
    return mean, low, high
