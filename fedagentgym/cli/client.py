"""`fedagentgym client`: write and check the file in which the owner of tasks describes them for a federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedagentgym.base.errors import DataError, RefusedError
from fedagentgym.base.files import format_yaml, write_atomic
from fedagentgym.base.progress import make_table, print_result
from fedagentgym.base.rounding import count_things
from fedagentgym.cli.completion import complete_environments
from fedagentgym.cli.options import (
    ENV_SET,
    JSON,
    NOT_NEGATIVE,
    PATH,
    PLUGIN_NAMES,
    PLUGINS,
    Group,
    option,
    parse_env_options,
)
from fedagentgym.envs.registry import find_env_id

if TYPE_CHECKING:
    from fedagentgym.partitions.held import HeldTasks

TEMPLATE = """# The tasks of this machine, for runs with `partition: {{sampler: held}}`: see `fedagentgym client check`.
{described}# What the server may know of the tasks: count, categories.
share: [count]
# What else may be sent to the server: parameters, metrics, evaluation, objectives, scores, votes, answers.
allow: [parameters, metrics, evaluation]
"""


@click.group(cls=Group)
def client() -> None:
    """Describe tasks that stay on your own machine, and see what a run would send."""


@client.command(epilog="Example: fedagentgym client init client.yaml --client 0 --env QA")
@click.argument("file", type=PATH, help="The file to write, such as client.yaml; it must not exist.")
@option("--client", "number", type=NOT_NEGATIVE, required=True, help="The client's number in the federation.")
@option(
    "--env", shell_complete=complete_environments, required=True, help="Environment id or short name, for example QA."
)
@option("--split", default="train", help="Split of the environment whose tasks are held.")
@option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="Share of the tasks that is held out for evaluation.",
)
@ENV_SET
@PLUGINS
def init(file: Path, number: int, env: str, split: str, held_out: float, env_set: tuple[str, ...]) -> None:
    """Write the file that describes the tasks of this machine, after opening them."""
    from fedagentgym.partitions.held import HeldSettings, open_held

    plain = {"client": number, "env": {"id": find_env_id(env), "split": split, "options": parse_env_options(env_set)}}
    settings = HeldSettings.load({**plain, "held_out": held_out})
    if file.exists():
        raise DataError(f"{file} exists already: edit it, or name another file")
    text = TEMPLATE.format(described=format_yaml({**plain, "held_out": settings.held_out}))
    write_atomic(file, text)
    try:
        held = open_held(file)
    except BaseException:
        file.unlink()
        raise
    _print_tasks(held)
    print_result(f'wrote {file}; start a node with --node-config \'tasks="{file.absolute()}" workplace="/a/folder"\'')


@client.command(epilog="Example: fedagentgym client check client.yaml --run run.yaml")
@click.argument("file", type=PATH, help="The owner's file, or the folder with its client.yaml.")
@option("--run", type=PATH, help="Configuration of a run: show what it would send, and whether the file allows it.")
@PLUGIN_NAMES
@JSON
def check(file: Path, run: Path | None, plugins: tuple[str, ...], as_json: bool) -> None:
    """Open the tasks of a file, and show what a run would send and who reads it. Exits with 2 if the file does not allow it."""
    from fedagentgym.base.imports import load_plugins
    from fedagentgym.partitions.held import open_held

    load_plugins(plugins)
    held = open_held(file)
    if not as_json:
        _print_tasks(held)
    if run is None:
        if as_json:
            click.echo(json.dumps(_make_plain(held)))
        return
    from fedagentgym.algorithms.base import describe_method
    from fedagentgym.algorithms.card import Scale
    from fedagentgym.algorithms.held import OPTIONAL, check_method, lacks_held_out, list_objections
    from fedagentgym.experiment.config import load_config

    config = load_config(run, plugins=plugins)
    name, card = str(config.algorithm["name"]), describe_method(config.algorithm, Scale(config.learning))
    check_method(card, name)
    evaluated = config.evaluation is not None and "held_out" in config.evaluation.at_clients
    clients = config.partition.clients
    if clients is not None and held.settings.client >= clients:
        raise RefusedError(
            f"{config.name} has the clients 0 to {clients - 1}, and this file describes client {held.settings.client}"
        )
    allowed = {*held.settings.allow, *held.settings.share}
    sent = [
        (
            one.kind,
            one.what,
            one.readers,
            "yes" if one.kind in allowed else "left out" if one.kind in OPTIONAL else "no",
        )
        for one in card.list_sent(evaluated=evaluated)
    ]
    heads = ("sent", "what", "read by", "allowed")
    if as_json:
        click.echo(json.dumps({**_make_plain(held), "run": [dict(zip(heads, row, strict=True)) for row in sent]}))
    else:
        print_result(make_table(heads, sent, text=4))
    if found := list_objections(card, name, held.settings):
        raise RefusedError(f"client {held.settings.client} would not take part in {config.name}: it {found[0]}")
    if lacks_held_out(config.evaluation, held):
        raise RefusedError(f"client {held.settings.client} would not take part: it has no held-out tasks (held_out)")


@client.command(epilog="Example: fedagentgym client report /var/lib/fedagentgym")
@click.argument(
    "workplace", type=PATH, help="The folder in which the node keeps its state: `workplace` of its --node-config."
)
@PLUGINS
def report(workplace: Path) -> None:
    """Write a page for the owner: success by round on the held-out tasks, and every episode. Nothing is sent."""
    from fedagentgym.pages.owner import write_owner_page

    folders = sorted((workplace / "evaluation").glob("*/client-*"))
    if not folders:
        raise DataError(
            f"{workplace} holds no evaluations: the run does not evaluate at clients, or no round was evaluated yet"
        )
    for folder in folders:
        page = folder / "report.html"
        print_result(f"{page}: {write_owner_page(folder, page)}")


def _make_plain(held: HeldTasks) -> dict[str, object]:
    return {
        "client": held.settings.client,
        "env": held.env.id,
        "tasks": len(held.env.pool),
        "held_back": 0 if held.held_out is None else len(held.held_out.pool),
        "categories": dict(held.env.pool.categories),
        "share": list(held.settings.share),
        "allow": list(held.settings.allow),
    }


def _print_tasks(held: HeldTasks) -> None:
    held_out = 0 if held.held_out is None else len(held.held_out.pool)
    print_result(
        f"client {held.settings.client}: {count_things(len(held.env.pool), 'task')} of {held.env.id}, {held_out:,} held out"
    )
    for name, count in sorted(held.env.pool.categories.items()):
        print_result(f"  {name}: {count:,}")
    may_send = ", ".join((*held.settings.share, *held.settings.allow)) or "nothing"
    print_result(
        f"may be sent to the server: {may_send}; always sent: a digest of the tasks, the costs of each call, and why a request"
        " was refused; no episode and no other text of an error leaves this machine"
    )
