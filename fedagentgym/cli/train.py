"""Commands about runs, from `presets` and `plan` through `train` to `export`, and the Flower app of a run."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Column, Table
from rich.text import Text

from fedagentgym.base.devices import find_place
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError, ProcessUnusableError, show_invisible_characters
from fedagentgym.base.escape import escape_terminal, quote_word
from fedagentgym.base.files import atomic_folder, parse_yaml
from fedagentgym.base.progress import get_console, make_table, print_result
from fedagentgym.base.rounding import count_things, format_fixed
from fedagentgym.cli.completion import complete_presets
from fedagentgym.cli.guard import NOTHING_SAVED, USER_ERROR
from fedagentgym.cli.options import (
    GPU_NAMES,
    JSON,
    NOT_NEGATIVE,
    PATH,
    PLUGIN_NAMES,
    PLUGINS,
    POSITIVE,
    TRUST_PLUGINS,
    Group,
    assignments,
    command,
    option,
    repeated,
)
from fedagentgym.version import __version__

if TYPE_CHECKING:
    from fedagentgym.experiment.result import RunResult

POSITIVE_NUMBER = click.FloatRange(1e-3)
CONFIG_HELP = "A YAML file or a preset (see fedagentgym presets), with :VARIANT,... after it."
CONFIG = click.argument("config", help=CONFIG_HELP, shell_complete=complete_presets)
CHANGES = assignments("--set", "changes", help="Change a setting, for example federation.workers=2.")
RECORD = option("--json", "as_json", is_flag=True, help="Print the run's record instead of the table.")


def _parse_seeds(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 20 for part in parts):
        raise OptionError(f"--seeds takes numbers from 0 on, separated by commas, such as 0,1,2, got {text[:80]!r}")
    return [int(part) for part in parts]


def _parse_sweeps(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each key; they are separated by commas and read as a YAML list."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        key, values = key.strip(), parse_yaml(f"[{listed}]", f"--sweep {text[:80]}") if equals else None
        if not key or not values or key in found:
            raise OptionError(f"--sweep: KEY=V,V,... is expected, each key once, got {text[:80]!r}")
        found[key] = values
    return found


def _print_sweep(found: Mapping[tuple[str, ...], RunResult], as_json: bool) -> None:
    """Print a line for each combination, the best last evaluation first."""
    if as_json:
        plain = [
            {"changes": list(given), "folder": str(one.folder), "record": one.record} for given, one in found.items()
        ]
        click.echo(canonical_json(plain))
        return
    ordered = sorted(found.items(), key=lambda item: -1.0 if item[1].success is None else item[1].success, reverse=True)
    rows = []
    for given, one in ordered:
        numbers = [] if one.success is None else [one.success, *(one.interval or ())]
        cells = [format_fixed(number, 3) for number in numbers] or ["not evaluated", "", ""]
        rows.append([" ".join(given), str(one.folder), *cells])
    print_result(make_table(["setting", "run", "success", "from", "to"], rows, text=2))


@contextlib.contextmanager
def _print_on_rank_zero() -> Iterator[None]:
    """Let only rank 0 of the processes of `torchrun` print. Other ranks print only the error that their process cannot be used.
    An interruption becomes an ordinary error, since `torchrun` does not distinguish kinds of failure."""
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


@contextlib.contextmanager
def _watch(as_json: bool) -> Iterator[dict[str, Any]]:
    """The observers that show a run on the terminal, as arguments of `train` and `resume`. With JSON the table is left out."""
    from fedagentgym.experiment.report.terminal import watch_run

    with watch_run() as watch:
        yield (watch._replace(observers=()) if as_json else watch)._asdict()


def _print_run(result: RunResult, as_json: bool) -> None:
    from fedagentgym.experiment.report.terminal import print_summary

    if as_json:
        click.echo(canonical_json(result.record))
    else:
        print_summary(result.folder)


@command(
    epilog="Example: fedagentgym demo --seed 1",
    same={"output": ("changes", "output.folder"), "seed": ("changes", "seed")},
)
@option(
    "--out",
    "output",
    type=PATH,
    metavar="FOLDER",
    help="Folder of the runs and their page, by default demo-report.",
)
@option("--seed", type=NOT_NEGATIVE, default=0, help="Seed of the runs.")
@CHANGES
@RECORD
def demo(output: Path | None, seed: int, changes: tuple[str, ...], as_json: bool) -> None:
    """Train one client alone and then six together, in minutes on two cores; writes a page that compares them."""
    from fedagentgym.experiment.demo import run, show_clients

    if find_spec("torch") is None and not (changes or as_json or output):
        show_clients(seed)
        return
    output = output or Path("demo-report")
    page = run(output, seed, changes, verbose=not as_json)
    if as_json:
        click.echo((output / "together" / "result.json").read_text("utf-8"))
    else:
        print_result(f"open {page} in a browser")


@command(
    epilog="Example: fedagentgym train tiny-alfworld --set federation.rounds=2",
    same={"output": ("changes", "output.folder"), "seeds": ("changes", "seed")},
)
@CONFIG
@CHANGES
@PLUGIN_NAMES
@option("--seeds", type=_parse_seeds, metavar="N,N,...", help="Make a run for each of these seeds, such as 0,1,2.")
@repeated(
    "--sweep",
    "sweeps",
    metavar="KEY=V,V,...",
    help="Make a run for each of these values, such as learning.learning_rate=1e-3,3e-3; if repeated, for each combination.",
)
@option(
    "--out", "output", type=PATH, metavar="FOLDER", help="Folder of the run, or of the runs, by default output.folder."
)
@option("--force", is_flag=True, help="Begin even if the first batch has nothing to learn from.")
@RECORD
@_print_on_rank_zero()
def train(
    config: str,
    changes: tuple[str, ...],
    plugins: tuple[str, ...],
    seeds: list[int] | None,
    sweeps: tuple[str, ...],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Train agents, federated or not, with a configuration; writes report.html.

    `fedagentgym resume` continues an interrupted run; the same command again continues runs of several seeds or values.
    """
    from fedagentgym.experiment import run as running

    if sweeps and seeds is not None:
        raise OptionError("--sweep and --seeds exclude each other: --sweep seed=0,1 sweeps over seeds too")
    if output is not None:
        changes = (*changes, f"output.folder={json.dumps(str(output))}")
    if sweeps:
        values = _parse_sweeps(sweeps)
        with _watch(as_json) as watch:
            swept = running.sweep(config, values, changes, plugins=plugins, force=force, **watch)
        _print_sweep(swept, as_json)
        return
    with _watch(as_json) as watch:
        if seeds is None:
            results = [running.train(config, changes, plugins=plugins, force=force, **watch)]
        else:
            results = running.train(config, changes, seeds=seeds, plugins=plugins, force=force, **watch)
    if seeds is not None and as_json:
        click.echo(canonical_json([result.record for result in results]))
        return
    for result in results:
        _print_run(result, as_json)
    if seeds is not None:
        print_result(
            f"to compare all seeds with another run: fedagentgym compare {quote_word(results[0].folder.parent)} RUN",
            soft_wrap=True,
        )


@command(epilog="Example: fedagentgym resume runs/tiny-alfworld --set federation.rounds=20")
@click.argument("run", type=PATH, help="Folder of a run.")
@CHANGES
@PLUGIN_NAMES
@TRUST_PLUGINS
@RECORD
@_print_on_rank_zero()
def resume(run: Path, changes: tuple[str, ...], plugins: tuple[str, ...], trust_plugins: bool, as_json: bool) -> None:
    """Resume an interrupted run, or make a finished one longer.

    The run ends with the same parameters as without the interruption. Only settings that cannot change the parameters may be
    given: the backend and its options, workers, devices, deadline, quorum, learning.sharding, and output.keep_rounds, trackers
    and report. federation.rounds may be raised.
    """
    from fedagentgym.experiment import run as running

    with _watch(as_json) as watch:
        result = running.resume(run, changes, plugins=plugins, trust_plugins=trust_plugins, **watch)
    _print_run(result, as_json)


# ---- before a run ---------------------------------------------------------------------------------------------------


@command(epilog="Example: fedagentgym plan paper-webshop:lora --gpu h100 --price 2.5")
@CONFIG
@CHANGES
@PLUGIN_NAMES
@option("--gpu", type=click.Choice(GPU_NAMES), help=f"The GPU, for a run on a GPU; by default {GPU_NAMES[0]}.")
@option(
    "--device-memory", type=POSITIVE_NUMBER, help="Memory of a device in GB (10^9 bytes); by default that of the GPU."
)
@option(
    "--tokens-per-second", type=POSITIVE_NUMBER, help="Tokens that a device generates in a second, by your measurement."
)
@option(
    "--reply-tokens",
    type=POSITIVE_NUMBER,
    help="Mean number of tokens of your model's replies; by default those of the expert.",
)
@option("--price", type=click.FloatRange(min=0), help="Price of a device for an hour.")
@JSON
def plan(
    config: str,
    changes: tuple[str, ...],
    plugins: tuple[str, ...],
    gpu: str | None,
    device_memory: float | None,
    tokens_per_second: float | None,
    reply_tokens: float | None,
    price: float | None,
    as_json: bool,
) -> None:
    """Print episodes, tokens, bytes, memory, hours and price that a run needs.

    No model is loaded. For a run on this machine's CPU, minutes are predicted from a measurement of some seconds. For a run on a
    GPU, hours are estimated from the GPU's data sheet. The exit code is 1 if the run does not fit into the device's memory.
    """
    from fedagentgym.experiment.config import load_config
    from fedagentgym.experiment.estimate.duration import format_durations, make_plain_durations
    from fedagentgym.experiment.estimate.hours import GPUS, format_gpu, make_plain_gpu, plan_gpu
    from fedagentgym.experiment.estimate.plan import describe_misfit, format_plan, make_plain, plan_run

    card = GPUS[gpu or GPU_NAMES[0]]
    device_bytes = None if device_memory is None else int(device_memory * 1e9)
    planned = plan_run(load_config(config, changes, plugins), device_bytes or card.memory)
    on_gpu = planned.agent.on_gpu
    if reply_tokens is not None and reply_tokens > planned.agent.reply_tokens:
        most = f"a reply has at most {planned.agent.reply_tokens:,} (agent.decoding.max_new_tokens)"
        raise OptionError(f"--reply-tokens {reply_tokens:g}: {most}")
    given = {"--gpu": gpu, "--price": price, "--tokens-per-second": tokens_per_second, "--reply-tokens": reply_tokens}
    if not on_gpu and (named := [name for name, value in given.items() if value is not None]):
        raise OptionError(f"{named[0]} is for runs on a GPU, and {planned.config.name} runs on the CPU (agent.device)")
    if on_gpu:
        figures = {"tokens_per_second": tokens_per_second, "reply_tokens": reply_tokens, "price": price}
        found = plan_gpu(planned, card, memory=device_bytes, **figures)
        hours, lines = make_plain_gpu(found), list(format_gpu(found, planned.evaluated_tokens is not None))
    elif as_json:
        hours = make_plain_durations(planned)
    else:
        lines = list(format_durations(planned))
    misfit = None
    if on_gpu or device_bytes is not None:
        misfit = describe_misfit(planned, device_bytes or card.memory)
    if as_json:
        click.echo(canonical_json({**make_plain(planned), **hours, "fits": misfit is None}))
    else:
        print_result("\n".join([*format_plan(planned), "", *lines, *filter(None, [misfit])]))
    if misfit is not None:
        raise click.exceptions.Exit(1)


@command("first-batch", epilog="Example: fedagentgym first-batch small-skills")
@CONFIG
@CHANGES
@PLUGIN_NAMES
@option("--tasks", type=POSITIVE, default=32, help="Tasks of the batch.")
@JSON
def first_batch(config: str, changes: tuple[str, ...], plugins: tuple[str, ...], tasks: int, as_json: bool) -> None:
    """Play a batch before learning: prompt, reply, grade, and whether the run can learn.

    It prints one prompt as the model gets it, the reply and its reward, the share of replies that could be read, the variance of
    rewards, and the gates. The exit code is 1 if a gate is missed. `train` does not begin a run whose first batch has nothing to
    learn from, except with --force.
    """
    from fedagentgym.experiment.config import load_config
    from fedagentgym.experiment.first_batch import play_first_batch

    batch = play_first_batch(load_config(config, changes, plugins), tasks)
    episode = batch.groups[0][0]
    turn = episode.turns[0]
    earned = float(batch.rewards[0][0].sum())
    if as_json:
        plain = {
            "prompt": batch.prompt,
            "reply": turn.reply,
            "grade": {"valid": turn.valid, "format": turn.format, "score": episode.score, "learned_reward": earned},
            "parsed": batch.parsed,
            "reward_variance": batch.spread,
            "fault": batch.fault,
            "gates": [one.to_plain() for one in batch.gates],
        }
        click.echo(canonical_json(plain))
    else:
        print_result("prompt", style="bold")
        print_result(show_invisible_characters(batch.prompt))
        print_result("reply", style="bold")
        print_result(show_invisible_characters(turn.reply))
        read = "read" if turn.valid and turn.format else "not understood" if turn.format else "its form is broken"
        turns = count_things(len(episode.turns), "turn")
        print_result("grade", style="bold")
        print_result(f"{read}; the episode scored {episode.score:g} in {turns} and earns {earned:g} in training")
        size = f"{count_things(len(batch.groups), 'task')} x {len(batch.groups[0])} episodes"
        print_result(f"batch of {size}", style="bold")
        print_result(f"{'replies that could be read':38s}{format_fixed(batch.parsed, 2):>6s}")
        print_result(f"{'variance of rewards within a task':38s}{format_fixed(batch.spread, 3):>6s}")
        for one in batch.gates:
            print_result(one.describe())
        if batch.fault is not None:
            print_result(batch.fault)
    if not all(one.passed for one in batch.gates):
        raise click.exceptions.Exit(1)


# ---- presets --------------------------------------------------------------------------------------------------------


@command(epilog="Example: fedagentgym presets tiny-skills:iid", needs={"changes": ("config",), "plugins": ("config",)})
@click.argument("config", required=False, help=CONFIG_HELP, shell_complete=complete_presets)
@CHANGES
@PLUGIN_NAMES
@JSON
def presets(config: str | None, changes: tuple[str, ...], plugins: tuple[str, ...], as_json: bool) -> None:
    """List the presets with their variants; with a name, print the settings of that preset.

    The settings are complete, with variants and changes applied, and can be saved as a file for training. The changes of each
    variant follow as a comment. A file of your own is printed in the same way.
    """
    if config is None:
        _list_presets(as_json)
        return
    import yaml

    from fedagentgym.agents.presets import complete_settings
    from fedagentgym.experiment.config import list_variants, load_config, read_head

    resolved = load_config(config, changes, plugins)
    agent = complete_settings(resolved.agent).model_dump(mode="json")
    found = {**resolved.plain(), "agent": agent}
    variants = {name: dict(one) for name, one in list_variants(config.partition(":")[0], joint=True).items()}
    if as_json:
        click.echo(json.dumps({"settings": found, "variants": variants}))
        return
    text: str = yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
    if variants:
        listed = yaml.safe_dump(
            {"variants": variants}, default_flow_style=None, sort_keys=False, allow_unicode=True, width=math.inf
        )
        text += textwrap.indent(listed, "# ")
    click.echo(escape_terminal(f"{read_head(config)}{text}"), nl=False)


_GROUPS = (
    ("to begin with, minutes on two cores", ("demo", "tiny-")),
    ("a language model on one machine", ("small-",)),
    ("protocols of papers, for GPUs", ("paper-",)),
    ("others", ("",)),
)


def _list_presets(as_json: bool) -> None:
    """Print the presets in groups, each with its first sentence and its variants."""
    from fedagentgym.experiment.config import list_presets, list_variants, read_preset

    if as_json:
        listed = [
            {"name": name, "about": _extract_headline(read_preset(name)), "variants": list(list_variants(name))}
            for name in list_presets()
        ]
        click.echo(json.dumps(listed))
        return
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
    print_result("to see what the variants of a preset change: fedagentgym presets PRESET")


def _extract_headline(text: str) -> str:
    """The first sentence of the comment at the top of a preset."""
    lines = [line.removeprefix("#") for line in text.splitlines() if line.startswith("#")]
    prose = " ".join(line.strip() for line in takewhile(lambda line: not line.startswith("   "), lines))
    return f"{prose.partition('. ')[0].rstrip('.')}."


# ---- settings -------------------------------------------------------------------------------------------------------


@command(epilog="Example: fedagentgym settings learning.kl", excludes=(("markdown", "as_json"),))
@click.argument("key", required=False, help="A key such as learning.kl, or the last part of one; by default all keys.")
@PLUGINS
@option("--markdown", is_flag=True, help="Print the settings as a page of documentation.")
@JSON
def settings(key: str | None, markdown: bool, as_json: bool) -> None:
    """Print the settings of a run: every key with its default, its type and its meaning."""
    from fedagentgym.experiment.settings_reference import describe_names, find_settings, list_settings, to_markdown

    entries = list_settings()
    found = entries if key is None else find_settings(key)
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in found], indent=2))
        return
    if markdown:
        click.echo(to_markdown(found), nl=False)
        return
    width = max(min(get_console().width, 100) - 4, 20)
    for entry in found:
        print_result(f"{entry.key} = {entry.default}" if entry.default else entry.key)
        names = describe_names(entry, entries)
        belongs = f" [{names}]" if names else ""
        description = "; ".join(part for part in (entry.meaning, entry.kind) if part)
        for line in textwrap.wrap(f"{description}{belongs}", width):
            print_result(f"    {line}")


# ---- after a run ----------------------------------------------------------------------------------------------------


@command(epilog="Example: fedagentgym report runs/tiny-skills")
@click.argument("run", type=PATH, help="Folder of a run, finished or not.")
def report(run: Path) -> None:
    """Write report.html, the page of a run, for a run that is finished or not."""
    from fedagentgym.experiment.report.page import write_report
    from fedagentgym.runs.folder import RunFolder

    if not RunFolder(run).is_run:
        raise DataError(f"{run} is no run: config.yaml is missing")
    RunFolder(run).refuse_evaluation()
    print_result(f"report {write_report(run)}")


# ---- export ---------------------------------------------------------------------------------------------------------


@command(epilog="Example: fedagentgym export runs/demo --out model --best", excludes=(("best", "number"),))
@click.argument("run", type=PATH, help="Folder of a run.")
@option("--out", "output", type=PATH, required=True, metavar="FOLDER", help="Folder to write; it must not exist.")
@option("--best", is_flag=True, help="Export the best evaluated round instead of the last.")
@option("--round", "number", type=int, help="Export this round instead of the last.")
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
    """Write the trained policy: model and tokenizer in one folder that transformers and vLLM load, or only the adapter."""
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
SIMULATION = """ on this machine, in Flower's simulation:
  flwr run {place} --stream
as a deployment,"""
DEPLOYMENT = """the app is in {folder};{simulation} on the server's machine:
  export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
  flower-superlink --ssl-certfile server.pem --ssl-keyfile server.key --ssl-ca-certfile ca.crt \\
    --host 0.0.0.0 --enable-supernode-auth --disable-runtime-dependency-installation
on each client's machine{several}, make a key:
  ssh-keygen -t ecdsa -b 384 -N "" -f node.key
on the server's machine, register the key, with the connection in $FLWR_HOME/config.toml:
  flwr supernode register node.key.pub CONNECTION
on the client's machine, start the node:
  flower-supernode --superlink SERVER:8000 --root-certificates ca.crt \\
    --auth-supernode-private-key node.key \\
    --node-config '{node} workplace="/var/lib/fedagentgym"'
finally:  flwr run {place} CONNECTION"""
"""The commands that start a deployment."""


@click.group(cls=Group)
def flower() -> None:
    """Run a configuration on a Flower deployment."""


@flower.command(epilog="Example: fedagentgym flower init app --config run.yaml")
@click.argument("folder", type=PATH, help="Folder of the app; it must not exist.")
@option("--config", type=PATH, required=True, help="The run's YAML file, on the SuperLink's machine.")
@PLUGIN_NAMES
def init(folder: Path, config: Path, plugins: tuple[str, ...]) -> None:
    """Write the Flower app of a run, and print the commands that start a deployment."""
    from fedagentgym.experiment.config import load_config

    if not config.is_file():
        raise DataError(f"cannot read {config}: there is no such file")
    chosen = load_config(config, ["federation.backend=flower"], plugins=plugins)  # the app makes the same change
    if not Path(chosen.output.folder).is_absolute():
        raise OptionError(f"output.folder is {chosen.output.folder!r}: give an absolute path, Flower runs elsewhere")
    with atomic_folder(folder) as part:
        named = [str(Path(plugin).absolute()) if plugin.endswith(".py") else plugin for plugin in plugins]
        run, loaded = canonical_json(str(config.absolute())), canonical_json(",".join(named))
        text = PROJECT.format(version=__version__, run=run, plugins=loaded)
        (part / "pyproject.toml").write_text(text, "utf-8")
        (part / "app.py").write_text(MODULE, "utf-8")
    is_held = chosen.partition.is_held
    node = 'tasks="/the/owner/client.yaml"' if is_held else 'clients="0,1"'
    if chosen.plugins:
        node += f' plugins="{",".join(Path(one).name if one.endswith(".py") else one for one in chosen.plugins)}"'
    several = "" if is_held else " (one SuperNode may serve several clients)"
    place = quote_word(folder)
    simulation = "" if is_held else SIMULATION.format(place=place)  # simulated nodes have no tasks of their own
    hint = DEPLOYMENT.format(folder=folder, place=place, simulation=simulation, node=node, several=several)
    print_result(hint, soft_wrap=True)
