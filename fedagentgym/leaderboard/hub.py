"""A suite of the agents track as a benchmark of the Hugging Face Hub: a data set with `eval.yaml`, whose tasks inspect_ai plays.

eval.yaml                 name, framework, and of each scenario its file, solver and scorer
data/SCENARIO.parquet     the ranked tasks: id, first prompt, category
README.md                 the card
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedagentgym.base.errors import OptionError
from fedagentgym.base.escape import escape_markdown
from fedagentgym.base.files import atomic_folder, write_atomic
from fedagentgym.base.hub import write_head
from fedagentgym.base.tables import write_rows
from fedagentgym.envs.view import first_message
from fedagentgym.leaderboard.suite import OpenedScenario, Suite, open_scenario

FRAMEWORK = "inspect-ai"
SOLVER, SCORER = "fedagentgym/play_task", "fedagentgym/read_score"
"""The names by which inspect_ai finds the parts of `bridges/inspect_ai.py`."""


def write_benchmark(suite: Suite, folder: Path, licence: str) -> int:
    """Write the data set of a suite to a new folder; returns the number of its tasks."""
    if suite.track != "agents":
        raise OptionError(
            f"{suite.name} is on the methods track, where results are runs: the hub evaluates agents alone"
        )
    opened = [open_scenario(suite, name) for name in suite.scenarios]
    count = sum(len(one.ids) for one in opened)
    with atomic_folder(folder) as place:
        (place / "data").mkdir()
        for one in opened:
            write_rows(list_tasks(one), place / "data" / f"{one.name}.parquet")
        write_atomic(place / "eval.yaml", _to_yaml(describe_benchmark(suite, opened)))
        head = write_head(licence, ("benchmark",), count, {one.name: f"data/{one.name}.parquet" for one in opened})
        title, about = escape_markdown(suite.title), escape_markdown(suite.about)
        text = (
            f"{head}\n# {title}\n\n{about}\n\nThe suite `{suite.name}` of fedagentgym, digest `{suite.digest}`. Answers are not"
            " in these files: the environments make and grade the tasks.\n\n```\npip install 'fedagentgym[inspect]'\n```\n"
        )
        write_atomic(place / "README.md", text)
    return count


def list_tasks(opened: OpenedScenario) -> list[dict[str, Any]]:
    """The ranked tasks of a scenario as rows, each with the first message to a model."""
    rows = []
    for name in opened.ids:
        (episode,) = opened.env.reset_many([name], [0])
        prompt = first_message(opened.env.find_member(episode.task), episode.view)
        rows.append({"task": name, "prompt": prompt, "category": episode.task.category})
    return rows


def describe_benchmark(suite: Suite, opened: list[OpenedScenario]) -> dict[str, Any]:
    """The content of `eval.yaml`."""
    tasks = []
    for one in opened:
        played = {"env": one.env.id, "split": one.env.pool.split, **one.env.options.portable}
        tasks.append(
            {
                "id": one.name,
                "config": one.name,
                "split": "test",
                "field_spec": {"input": "prompt", "target": "task"},
                "solvers": [{"name": SOLVER, "args": played}],
                "scorers": [{"name": SCORER}],
            }
        )
    about = suite.about or suite.title
    return {"name": suite.title, "description": about, "evaluation_framework": FRAMEWORK, "tasks": tasks}


def _to_yaml(plain: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
