"""`fedagentgym data`: original data sets, imported once and found by name afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import data_folder
from fedagentgym.base.progress import get_console
from fedagentgym.envs import DATA_FETCHERS, DATA_IMPORTERS

app = typer.Typer(help="Import or fetch the original data of an environment.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Which data, for example webshop.")],
    source: Annotated[Path, typer.Option("--from", help="Folder with the original files.")],
) -> None:
    """Check original files and copy them to where the environments look for them."""
    importer = DATA_IMPORTERS.get(name)
    if not source.is_dir():
        raise DataError(f"cannot import {name} from {source}: it is not a folder")
    get_console().print(f"{name} is imported: {importer(source)}")


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="Which data, for example alfworld.")]) -> None:
    """Download original data from where its authors publish it."""
    get_console().print(f"{name} is fetched: {DATA_FETCHERS.get(name)()}")


@app.command("list")
def list_data() -> None:
    """What can be imported or fetched, and what is there."""
    for name in sorted({*DATA_IMPORTERS.names(), *DATA_FETCHERS.names()}):
        folder = data_folder(name)
        ways = [way for way, registry in (("add", DATA_IMPORTERS), ("fetch", DATA_FETCHERS)) if name in registry]
        get_console().print(f"{name}: {folder if folder.exists() else 'not here'} (data {' or data '.join(ways)})")
