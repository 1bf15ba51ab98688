"""`fedagentgym envs`: which worlds there are, with their splits, sizes and categories."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from fedagentgym.base.progress import get_console
from fedagentgym.cli.environments import EnvSet, env_options, open_named
from fedagentgym.cli.plugins import Plugins
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.envs.registry import find_env_id


def envs(
    name: Annotated[str | None, typer.Argument(help="Only this environment.")] = None,
    env_set: EnvSet = None,
    plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List the environments with their splits, sizes and categories."""
    chosen = [find_env_id(name)] if name is not None else list(ENVIRONMENTS.names())
    found = [describe(env_id, env_options(env_set)) for env_id in chosen]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("environment", "takes", "turns", "splits", "categories (train)"):
        table.add_column(column, overflow="fold")
    for entry in found:
        splits = "\n".join(f"{split} {size:,}" for split, size in entry["splits"].items())
        categories = ", ".join(f"{category} {count:,}" for category, count in entry["categories"].items())
        table.add_row(entry["id"], entry["takes"], str(entry["max_turns"]), splits, categories, end_section=True)
    get_console().print(table)


def describe(env_id: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a world says of itself, as plain data."""
    env = open_named(env_id, options)
    summary = (type(env).__doc__ or "").strip().partition("\n")[0]
    return {
        "id": env_id,
        "summary": summary,
        "takes": env.takes,
        "max_turns": env.max_turns,
        "splits": env.split_sizes(),
        "evaluation_splits": list(env.evaluation_splits),
        "categories": env.pool.categories,
        "rewards": list(env.reward_names),
        "pool_digest": env.pool.digest,
    }
