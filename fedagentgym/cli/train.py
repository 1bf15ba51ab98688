"""Commands about runs: `fedagentgym train`, the settings of its configuration, the export of its policy, its Flower app."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from rich.table import Column, Table
from rich.text import Text

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError, ProcessUnusableError
from fedagentgym.base.escape import escape_terminal
from fedagentgym.base.files import atomic_folder
from fedagentgym.base.progress import get_console, print_result
from fedagentgym.base.ranks import find_place
from fedagentgym.cli.guard import NOTHING_SAVED, USER_ERROR
from fedagentgym.cli.options import JSON, PATH, PLUGIN_NAMES, PLUGINS, TRUST_PLUGINS, Group, assignments, option
from fedagentgym.version import __version__

POSITIVE_NUMBER = click.FloatRange(1e-3)


@click.command()
@click.argument("config", required=False, help="A YAML file or a preset (see --list), with :VARIANT,... after it.")
@assignments("--set", "changes", help="Change a setting, for example federation.workers=2.")
@PLUGIN_NAMES
@option("--resume", type=PATH, metavar="RUN", help="Resume the run in this folder.")
@TRUST_PLUGINS
@option("--seeds", metavar="N,N,...", help="A run for each of these seeds, such as 0,1,2.")
@option(
    "--list",
    "listing",
    is_flag=True,
    help="List the presets, or the variants of CONFIG and what each changes, and exit.",
)
@option("--show", is_flag=True, help="Print all settings, with presets and changes resolved, and exit.")
@option("--plan", is_flag=True, help="Print episodes, tokens, bytes, memory and hours that the run needs, and exit.")
@option("--gate", is_flag=True, help="Play some groups before learning, print whether the run can learn, and exit.")
@option(
    "--tokens-per-second",
    type=POSITIVE_NUMBER,
    default=1000.0,
    help="--plan: tokens that a device generates in a second.",
)
@option("--device-memory", type=POSITIVE_NUMBER, help="--plan: memory of a device in GB (10^9 bytes).")
@option("--json", "as_json", is_flag=True, help="Print the run's record instead of the table.")
def train(
    config: str | None,
    changes: tuple[str, ...],
    plugins: tuple[str, ...],
    resume: Path | None,
    trust_plugins: bool,
    seeds: str | None,
    listing: bool,
    show: bool,
    plan: bool,
    gate: bool,
    tokens_per_second: float,
    device_memory: float | None,
    as_json: bool,
) -> None:
    """Train agents, federated or not, with a configuration; writes report.html."""
    if listing:
        if changes:
            raise OptionError("--list shows presets and variants as they are: it goes without --set")
        _print_presets() if config is None else _print_variants(config)
        return
    if (config is None) == (resume is None):
        raise OptionError("name a configuration to train, or a run to resume: train FILE, or train --resume RUN")
    if show:
        _print_settings(config or "", changes, plugins) if resume is None else _print_stored(resume)
        return
    if plan:
        if config is None:
            raise OptionError("--plan: name a configuration, a run that was started has no plan to print")
        _print_plan(config, changes, plugins, tokens_per_second, device_memory, as_json)
        return
    if gate:
        if config is None:
            raise OptionError("--gate: name a configuration, a run that was started is past its gates")
        _print_gates(config, changes, plugins, as_json)
        return
    if seeds is not None and config is None:
        raise OptionError(
            "--seeds: name a configuration; runs of several seeds are resumed by repeating the same command"
        )
    if trust_plugins and resume is None:
        raise OptionError("--trust-plugins is about the folder of a run: it goes with --resume")
    with _speak_for_all_ranks():
        _run(config, resume, changes, None if seeds is None else _parse_seeds(seeds), plugins, trust_plugins, as_json)


@contextlib.contextmanager
def _speak_for_all_ranks() -> Iterator[None]:
    """Among the processes of `torchrun`, rank 0 alone speaks; another one only of what concerns itself. An interruption is an
    error like others, since `torchrun` does not distinguish kinds of failure."""
    place = find_place()
    if place is None or place.size == 1:
        yield
        return
    try:
        with contextlib.ExitStack() as stack:
            if place.rank > 0:
                logging.disable(logging.CRITICAL)
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123
                stack.enter_context(contextlib.redirect_stdout(nowhere))
                stack.enter_context(contextlib.redirect_stderr(nowhere))
            yield
    except ProcessUnusableError:
        raise
    except BaseException as error:
        if place.rank > 0:
            raise click.exceptions.Exit(USER_ERROR) from None
        if isinstance(error, KeyboardInterrupt):
            raise ProcessUnusableError(f"interrupted: {str(error) or NOTHING_SAVED}") from None
        raise


def _parse_seeds(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 20 for part in parts):
        raise OptionError(f"--seeds: numbers from 0 on, separated by commas, such as 0,1,2, got {text[:80]!r}")
    return [int(part) for part in parts]


def _run(
    config: str | None,
    resume: Path | None,
    changes: Sequence[str],
    seeds: Sequence[int] | None,
    plugins: Sequence[str],
    trust_plugins: bool,
    as_json: bool,
) -> None:
    """Train or resume, once or with each seed, and print the results and how to compare several."""
    from fedagentgym.experiment import run as running
    from fedagentgym.experiment.report.terminal import RunWatch, print_summary, watch_run
    from fedagentgym.experiment.stored import Trust

    with contextlib.nullcontext(RunWatch()) if as_json else watch_run() as watch:
        watching: dict[str, Any] = {"observers": watch.observers, "on_progress": watch.on_progress}
        if resume is not None:
            trust = Trust(tuple(plugins), trust_plugins)
            results = [running.resume(resume, changes, trust=trust, **watching)]
        elif seeds is not None:
            results = running.train(config or "", changes, seeds=seeds, plugins=plugins, **watching)
        else:
            results = [running.train(config or "", changes, plugins=plugins, **watching)]
    for result in results:
        if as_json:
            click.echo(canonical_json(result.record))
        else:
            print_summary(result.folder)
    if seeds is not None and not as_json:
        print_result(f"all seeds together, beside another run: fedagentgym compare {results[0].folder.parent} RUN")


def _print_stored(run: Path) -> None:
    """The settings of a run as they stand in its folder, which are resolved."""
    from fedagentgym.base.files import read_text
    from fedagentgym.experiment.stored import read_stored_config

    click.echo(read_text(read_stored_config(run).place / "config.yaml"), nl=False)


def _print_settings(config: str, changes: Sequence[str], plugins: Sequence[str]) -> None:
    """Every setting with its value, under the header comment of the preset."""
    import yaml

    from fedagentgym.agents.presets import complete_settings
    from fedagentgym.experiment.config import load_config, read_head

    resolved = load_config(config, changes, plugins)
    agent = complete_settings(resolved.agent).model_dump(mode="json")
    text: str = yaml.safe_dump({**resolved.plain(), "agent": agent}, sort_keys=False, allow_unicode=True)
    click.echo(escape_terminal(f"{read_head(config)}{text}"), nl=False)


def _print_plan(
    config: str,
    changes: Sequence[str],
    plugins: Sequence[str],
    tokens_per_second: float,
    device_memory: float | None,
    as_json: bool,
) -> None:
    """The cost of the configuration."""
    from fedagentgym.experiment.config import load_config
    from fedagentgym.experiment.estimate.duration import format_durations, make_plain_durations
    from fedagentgym.experiment.estimate.memory import DEVICE_BYTES
    from fedagentgym.experiment.estimate.plan import format_plan, make_plain, plan_run

    device_bytes = None if device_memory is None else int(device_memory * 1e9)
    planned = plan_run(load_config(config, changes, plugins), device_bytes or DEVICE_BYTES)
    if as_json:
        durations = {} if planned.agent.on_gpu else make_plain_durations(planned)
        click.echo(canonical_json(make_plain(planned, tokens_per_second) | durations))
        return
    lines = list(format_plan(planned, tokens_per_second, device_bytes))
    if not planned.agent.on_gpu:
        lines += format_durations(planned)
    print_result("\n".join(lines))


def _print_gates(config: str, changes: Sequence[str], plugins: Sequence[str], as_json: bool) -> None:
    """Return what the agent does before learning; the exit code is 1 if the run cannot learn."""
    from fedagentgym.experiment.config import load_config
    from fedagentgym.experiment.gates import measure_gates

    gates = measure_gates(load_config(config, changes, plugins))
    if as_json:
        click.echo(canonical_json([gate.to_plain() for gate in gates]))
    else:
        for gate in gates:
            print_result(gate.describe())
    if not all(gate.passed for gate in gates):
        raise click.exceptions.Exit(1)


_GROUPS = (
    ("to begin with, minutes on two cores", ("demo", "tiny-")),
    ("a language model on one machine", ("small-",)),
    ("protocols of papers, for GPUs", ("paper-",)),
    ("others", ("",)),
)


def _print_presets() -> None:
    """The presets in groups, each with its first sentence and its variants."""
    from fedagentgym.experiment.config import list_presets, list_variants, read_preset

    left = list(list_presets())
    for title, starts in _GROUPS:
        names = [name for name in left if name.startswith(starts)]
        left = [name for name in left if name not in names]
        table = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, pad_edge=False, show_header=False)
        for name in names:
            table.add_row(name, _extract_headline(read_preset(name)))
            if variants := list_variants(name):
                table.add_row("", Text(f"{name}:... {', '.join(variants)}", style="dim"))
        if names:
            print_result(title, style="bold")
            print_result(table)
    print_result("what the variants of a preset change: fedagentgym train PRESET --list")


def _print_variants(config: str) -> None:
    """The variants of a file or preset, each with the settings that it changes."""
    import yaml

    from fedagentgym.experiment.config import list_variants

    table = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, pad_edge=False, show_header=False)
    for name, settings in list_variants(config.partition(":")[0]).items():
        changed = yaml.safe_dump(dict(settings), default_flow_style=True, sort_keys=False, width=math.inf)
        table.add_row(
            Text(escape_terminal(name)), Text(escape_terminal(changed.strip().removeprefix("{").removesuffix("}")))
        )
    if table.row_count == 0:
        print_result(f"{config} has no variants")
        return
    print_result(table)


def _extract_headline(text: str) -> str:
    """The first sentence of the comment at the head of a preset."""
    lines = [line.removeprefix("#") for line in text.splitlines() if line.startswith("#")]
    prose = " ".join(line.strip() for line in takewhile(lambda line: not line.startswith("   "), lines))
    return f"{prose.partition('. ')[0].rstrip('.')}."


# ---- settings -------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("key", required=False, help="A key such as learning.kl, or the last part of one; without it all keys.")
@PLUGINS
@option("--markdown", is_flag=True, help="As a page of documentation.")
@JSON
def settings(key: str | None, markdown: bool, as_json: bool) -> None:
    """Print the settings of a run: every key with its default, its type and its meaning."""
    from fedagentgym.experiment.settings_reference import find_settings, list_settings, to_markdown

    found = list_settings() if key is None else find_settings(key)
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in found], indent=2))
        return
    if markdown:
        click.echo(to_markdown(found), nl=False)
        return
    width = max(min(get_console().width, 100) - 4, 20)
    for entry in found:
        print_result(f"{entry.key} = {entry.default}" if entry.default else entry.key)
        belongs = f" [{', '.join(entry.names)}]" if entry.names else ""
        description = "; ".join(part for part in (entry.meaning, entry.kind) if part)
        for line in textwrap.wrap(f"{description}{belongs}", width):
            print_result(f"    {line}")


# ---- export ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("run", type=PATH, help="Folder of a run.")
@click.argument("output", type=PATH, help="Folder to write; it must not exist.")
@option("--best", is_flag=True, help="The best evaluated round instead of the last.")
@option("--round", "number", type=int, help="This round instead of the last.")
@option("--adapter", is_flag=True, help="Only the LoRA adapter, not merged into its base.")
@PLUGIN_NAMES
@TRUST_PLUGINS
def export(
    run: Path,
    output: Path,
    best: bool,
    number: int | None,
    adapter: bool,
    plugins: tuple[str, ...],
    trust_plugins: bool,
) -> None:
    """Write the trained policy: model and tokenizer in one folder that transformers and vLLM load, or the adapter alone."""
    if best and number is not None:
        raise OptionError("--best and --round exclude each other")
    from fedagentgym.experiment.export import export_policy
    from fedagentgym.experiment.stored import Trust

    trust = Trust(plugins, trust_plugins)
    chosen = export_policy(run, output, number=number, best=best, adapter_only=adapter, trust=trust)
    print_result(f"round {chosen} of {run} is in {output}")


# ---- Flower ---------------------------------------------------------------------------------------------------------

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedagentgym-app"
description = "A run of fedagentgym"
version = "1.0.0"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = []  # Flower's own environment has fedagentgym; to install it for each run: "fedagentgym[train,flower]=={version}"

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedagentgym"

[tool.flwr.app.components]
serverapp = "app:server_app"
clientapp = "app:client_app"

[tool.flwr.app.config]
run = {run}
plugins = {plugins}
# flwr run . --run-config 'rounds=5 seed=1 folder="/other/folder" set="learning.learning_rate=1e-4 evaluation.tasks=20"'
rounds = ""
seed = ""
folder = ""
set = ""
"""
MODULE = '''"""The app that Flower loads: both halves are in the package."""

from fedagentgym.experiment.flower_app import client_app, server_app

__all__ = ["client_app", "server_app"]
'''
DEPLOYMENT = """the app is in {folder}; on this machine, in Flower's simulation:
  flwr run {folder} --stream
as a deployment, on the server's machine:
  export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
  flower-superlink --ssl-certfile server.pem --ssl-keyfile server.key --ssl-ca-certfile ca.crt \\
    --host 0.0.0.0 --enable-supernode-auth --disable-runtime-dependency-installation
for each client's machine (one SuperNode may serve several clients), a key made there:
  ssh-keygen -t ecdsa -b 384 -N "" -f node.key
registered on the server's, with the connection in $FLWR_HOME/config.toml:
  flwr supernode register node.key.pub CONNECTION
and then the node:
  flower-supernode --superlink SERVER:8000 --root-certificates ca.crt \\
    --auth-supernode-private-key node.key \\
    --node-config 'clients="0,1" workplace="/var/lib/fedagentgym"'
finally:  flwr run {folder} CONNECTION"""
"""The commands that start a deployment."""


@click.group(cls=Group)
def flower() -> None:
    """Run a configuration on a Flower deployment."""


@flower.command()
@click.argument("folder", type=PATH, help="Folder of the app; it must not exist.")
@option("--config", type=PATH, required=True, help="The run's YAML file, on the SuperLink's machine.")
@PLUGIN_NAMES
def init(folder: Path, config: Path, plugins: tuple[str, ...]) -> None:
    """Write the Flower app of a run, and print the commands that start a deployment."""
    from fedagentgym.experiment.config import load_config

    if not config.is_file():
        raise DataError(f"cannot read {config}: there is no such file")
    chosen = load_config(config, plugins=plugins)
    if not Path(chosen.output.folder).is_absolute():
        raise OptionError(f"output.folder is {chosen.output.folder!r}: Flower starts elsewhere, give an absolute path")
    with atomic_folder(folder) as part:
        named = [str(Path(plugin).absolute()) if plugin.endswith(".py") else plugin for plugin in plugins]
        run, loaded = canonical_json(str(config.absolute())), canonical_json(",".join(named))
        text = PROJECT.format(version=__version__, run=run, plugins=loaded)
        (part / "pyproject.toml").write_text(text, "utf-8")
        (part / "app.py").write_text(MODULE, "utf-8")
    print_result(DEPLOYMENT.format(folder=folder))
