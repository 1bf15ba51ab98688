"""`fedagentgym hub`: client splits, results and exported agents on the Hugging Face Hub."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile, is_zipfile

import click

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.escape import escape_markdown
from fedagentgym.base.files import get_name
from fedagentgym.base.hub import LICENCE, Kind, check_hub_name, check_licence, pull_folder, push_folder, write_head
from fedagentgym.base.progress import print_result
from fedagentgym.base.rounding import count_things
from fedagentgym.cli.options import PATH, Group, option
from fedagentgym.partitions import split_files

if TYPE_CHECKING:
    from fedagentgym.runs.archive import Archive


@click.group(cls=Group)
def hub() -> None:
    """Push client splits, results and exported agents to the Hugging Face Hub, and pull them."""


@hub.command(epilog="Example: fedagentgym hub push split.json me/my-split")
@click.argument(
    "path", type=PATH, help="A split file, a result's archive or a folder of them, or the folder of an exported agent."
)
@click.argument("name", help="The repository: OWNER/NAME.")
@option("--private", is_flag=True, help="Make the repository private, if it is new.")
@option(
    "--license",
    "licence",
    help=f"Licence of the data, by its name on the Hub; by default {LICENCE}. An agent has the licence of its base model.",
)
def push(path: Path, name: str, private: bool, licence: str | None) -> None:
    """Push a split, a result or an agent, with a card that describes it; other files of the repository are removed."""
    check_hub_name(name)
    if licence is not None:
        check_licence(licence)
    with tempfile.TemporaryDirectory(prefix="fedagentgym-push-") as folder:
        kind, about = prepare(path, Path(folder) / "repository", name, licence)
        print_result(f"pushed {about} to {push_folder(Path(folder) / 'repository', kind, name, private=private)}")


@hub.command(epilog="Example: fedagentgym hub pull me/my-split --out split")
@click.argument("name", help="The repository: OWNER/NAME.")
@option("--out", "folder", type=PATH, required=True, metavar="FOLDER", help="Folder to write; it must not exist.")
@option("--revision", help="A branch, tag or commit.")
def pull(name: str, folder: Path, revision: str | None) -> None:
    """Pull a split, a result or an agent, and check it; if it is damaged, nothing is written."""
    found: list[str] = []
    pull_folder(name, folder, lambda made: found.append(identify(made)[1]), revision=revision)
    print_result(f"pulled {found[0]} into {folder}")


RUNS = "runs.parquet"
"""The file with a row for each run of pushed results, which the Hub's viewer shows."""


def identify(path: Path) -> tuple[Kind, str]:
    """The kind of repository for a path, and a description of its content. Damaged archives are refused."""
    from fedagentgym.experiment.agent_file import has_agent_file, read_agent_file

    if path.is_dir() and has_agent_file(path):
        return "model", f"the agent {read_agent_file(path).run.get('name', get_name(path))}"
    archives = list_archives(path)
    for archive in archives:
        archive.check()
    if len(archives) == 1:
        from fedagentgym.leaderboard.results import Result

        result = Result(archives[0].path)
        return "dataset", f"the result {result.name} of {result.suite.name}"
    if archives:
        return "dataset", count_things(len(archives), "result")
    return "dataset", f"the client split {split_files.load(split_files.find_in(path)).digest}"


def list_archives(path: Path) -> list[Archive]:
    """The archives of results at a path, which is one or a folder of them; empty if it holds other zip files."""
    from fedagentgym.runs.archive import LIST, Archive

    files = [path] if path.suffix == ".zip" else sorted(path.rglob("*.zip")) if path.is_dir() else []
    if not all(is_zipfile(file) and LIST in ZipFile(file).namelist() for file in files):
        return []
    return [Archive(file) for file in files]


def prepare(path: Path, folder: Path, name: str, given: str | None = None) -> tuple[Kind, str]:
    """Write the files of a repository; returns its kind and a description of its content."""
    kind, about = identify(path)
    if kind == "model" and given is not None:
        raise OptionError(f"--license: {about} has the licence of its base model, which its card states")
    licence = LICENCE if given is None else given
    if about.startswith("the client split"):
        from fedagentgym.partitions.client_split import open_client_split
        from fedagentgym.partitions.repository import write_repository

        path = split_files.find_in(path)
        opened = None
        with suppress(DataError):  # its pool may not be installed
            opened = open_client_split(path)
        write_repository(path, split_files.load(path), opened, folder, name, licence)
    elif kind == "model":
        shutil.copytree(path, folder)
    else:
        from fedagentgym.leaderboard.results import write_parquet

        root = path if path.is_dir() else path.parent
        for archive in list_archives(path):
            place = folder / archive.path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(archive.path, place)
        count = write_parquet([folder], folder / RUNS)
        head = write_head(licence, ("benchmark",), count, {"default": RUNS})
        card = (
            f"{head}\n# {escape_markdown(name)}\n\n{escape_markdown(about[0].upper() + about[1:])}, every ranked episode"
            f" included; `{RUNS}` has a row for each run.\n\n```\nfedagentgym hub pull {name} --out results\n"
            "fedagentgym bench verify $(find results -name '*.zip')\n```\n"
        )
        (folder / "README.md").write_text(card, "utf-8")
    return kind, about
