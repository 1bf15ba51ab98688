"""`fedagentgym pretrain`: make the tiny agent of a world by imitation of its expert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.progress import get_console
from fedagentgym.cli.beliefs import make_belief_table
from fedagentgym.cli.environments import EnvSet, env_options
from fedagentgym.cli.plugins import Plugins
from fedagentgym.envs.registry import find_env_id

app = typer.Typer(help="Make small agents from nothing.", no_args_is_help=True)


@app.callback()
def _agents() -> None:
    """Make small agents from nothing."""


@app.command()
def tiny(
    env: Annotated[str, typer.Option("--env", help="Environment id or short name, for example ALFWorld.")],
    env_set: EnvSet = None,
    plugins: Plugins = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Warm-start setting as key=value, for example steps=200.", metavar="KEY=VALUE"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights, demonstrations and batches.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", help="Folder; default: where agent 'tiny' looks.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Make it anew even if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Teach a tiny model a world's words: imitate the expert on the warmup split, in a minute or two."""
    from fedagentgym.base.settings import assign
    from fedagentgym.learning.pretrain import pretrain_tiny
    from fedagentgym.learning.recipe import find_recipe
    from fedagentgym.learning.settings import WarmStartSettings

    env_id = find_env_id(env)
    recipe = find_recipe(env_id)
    chosen = recipe.warm_start.model_dump(exclude_unset=True) if recipe is not None else {}
    for assignment in settings or []:
        chosen = assign(chosen, assignment)
    made = pretrain_tiny(
        env_id,
        env_options(env_set),
        WarmStartSettings.load(chosen, "warm_start"),
        agent=recipe.agent if recipe is not None else None,
        folder=output,
        seed=seed,
        force=force,
    )
    if as_json:
        import json

        typer.echo(json.dumps({"folder": str(made.folder), "reused": made.reused, **made.note}))
        return
    found = "found" if made.reused else "made"
    get_console().print(f"{found} {made.folder}", highlight=False)
    get_console().print(f"success {made.note['success']:.3f}, score {made.note['score']:.3f} on the validation split")
    if "beliefs" in made.note:
        get_console().print(make_belief_table(made.note["misconceptions"], made.note["beliefs"]))
