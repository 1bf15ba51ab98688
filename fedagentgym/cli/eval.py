"""`fedagentgym eval`: how good an agent is in a world, with every episode written down; and the check of such a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.progress import get_console
from fedagentgym.base.settings import assign
from fedagentgym.cli.environments import EnvSet, env_options, open_named
from fedagentgym.cli.plugins import Plugins
from fedagentgym.envs.registry import find_env_id

if TYPE_CHECKING:
    from fedagentgym.learning.evaluation import Evaluation
    from fedagentgym.learning.misconceptions import Belief

EnvName = Annotated[str, typer.Option("--env", help="Environment id or short name, for example WebShop.")]
AgentName = Annotated[
    str, typer.Option("--agent", help="A registered agent (tiny, expert, random, ...), or a model's folder or hub id.")
]
AgentSet = Annotated[
    list[str] | None,
    typer.Option("--agent-set", help="Agent setting as key=value, for example context=window.", metavar="KEY=VALUE"),
]
COLUMNS = ("success", "score", "turns", "invalid", "format_broken", "tokens")
PROCEDURES = ("own procedure", "another")
"""Shares of a category's episodes that went by its own procedure and by another, where the world can tell."""


def evaluate(
    env: EnvName,
    agent: AgentName = "tiny",
    split: Annotated[str, typer.Option("--split", help="Split whose tasks are played.")] = "val",
    tasks: Annotated[int | None, typer.Option("--tasks", min=1, help="Play only the first so many tasks.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Episodes per task.")] = 1,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="Sampling temperature; 0 is greedy.")
    ] = 0.4,
    seed: Annotated[int, typer.Option("--seed", help="Seed of episodes, sampling and intervals.")] = 0,
    parallel: Annotated[int, typer.Option("--parallel", min=1, help="Episodes played side by side.")] = 64,
    output: Annotated[Path | None, typer.Option("--output", help="File for the episodes (JSON lines).")] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Play nothing new: check this file's episodes.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--set", help="With --replay: the evaluation set that --env plays, of a file of several."),
    ] = None,
    env_set: EnvSet = None,
    agent_set: AgentSet = None,
    plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Evaluate an agent on a split: success, score, turns and invalid actions, with bootstrap intervals."""
    options = env_options(env_set)
    if replay is not None:
        _check_replay(replay, env, split, options, only)
        return
    if only is not None:
        raise OptionError("--set chooses among the episodes of a file: it goes with --replay")
    from fedagentgym.agents.make import make_agent
    from fedagentgym.learning.evaluation import compute_policy_digest
    from fedagentgym.learning.evaluation import evaluate as play_all
    from fedagentgym.learning.misconceptions import measure_beliefs
    from fedagentgym.learning.settings import EvaluationSettings

    opened = open_named(env, {**options, "split": split})
    player = make_agent(parse_agent_settings(agent, agent_set), opened, seed)
    settings = EvaluationSettings.load(
        {"split": split, "temperature": temperature, "tasks": tasks, "repeats": repeats, "parallel_episodes": parallel}
    )
    file = (
        output or Path("evaluation") / f"{find_env_id(env).rpartition('/')[2]}-{split}-{Path(agent).name}-{seed}.jsonl"
    )
    about = {"options": options, "split": split, "temperature": temperature, "policy": compute_policy_digest(player)}
    result = play_all(player, opened, settings, seed=seed, file=file, about=about)
    player.close()
    beliefs = measure_beliefs(opened, result.groups)
    if as_json:
        typer.echo(_to_json(result, file, beliefs))
    else:
        _show(result, settings.confidence, file, beliefs)


def parse_agent_settings(name: str, assignments: list[str] | None) -> dict[str, Any]:
    """`--agent` and `--agent-set` as agent settings; what is no registered name is a model."""
    from fedagentgym.agents import AGENTS
    from fedagentgym.agents.models.store import find_model, list_models

    known = name in AGENTS
    if not known and "/" not in name and not Path(name).exists() and find_model(name) is None:
        raise unknown_name_error("agent", name, [*AGENTS.names(), *(one.name for one in list_models())])
    settings: dict[str, Any] = {"name": name} if known else {"name": "transformers", "model": name}
    for assignment in assignments or []:
        settings = assign(settings, assignment)
    return settings


def _check_replay(file: Path, env: str, split: str, options: dict[str, Any], only: str | None) -> None:
    from fedagentgym.learning.evaluation import find_replay_differences

    differences = find_replay_differences(file, open_named(env, {**options, "split": split}), only)
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if len(differences) > 1 else ""
        raise OptionError(f"{file} does not play as it is written: {differences[0]}{more}")
    get_console().print(f"{file}: every episode plays as it is written")


def _to_json(result: Evaluation, file: Path, beliefs: Mapping[str, Belief]) -> str:
    import json

    told = {"beliefs": {name: belief.to_plain() for name, belief in beliefs.items()}} if beliefs else {}
    return json.dumps({**result.to_plain(), **told, "file": str(file)})


def _show(result: Evaluation, confidence: float, file: Path, beliefs: Mapping[str, Belief]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("tasks", justify="right")
    for name in (*COLUMNS, *(PROCEDURES if beliefs else ())):
        table.add_column(name.replace("_", " "), justify="right")
    counts: dict[str, int] = {}
    for group in result.groups:
        counts[group[0].category] = counts.get(group[0].category, 0) + 1
    for label, count, estimates in [
        *((category, counts[category], result.categories[category]) for category in result.categories),
        ("all", result.tasks, result.overall),
    ]:
        belief = beliefs.get(label)
        shares = () if belief is None else (f"{belief.own:.3f}", f"{belief.other:.3f}")
        table.add_row(label, str(count), *(f"{estimates[name].mean:.3f}" for name in COLUMNS), *shares)
    get_console().print(table)
    for name in ("success", "score"):
        mean, low, high = result.overall[name]
        get_console().print(f"{name} {mean:.3f}, {confidence:.0%} interval {low:.3f} to {high:.3f}")
    get_console().print(f"episodes: {file}", highlight=False)
