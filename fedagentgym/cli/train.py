"""`fedagentgym train`: run a configuration, show its rounds, resume an interrupted run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.errors import OptionError
from fedagentgym.base.progress import get_console
from fedagentgym.cli.plugins import Plugins

Change = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, for example federation.workers=2.", metavar="KEY=VALUE"),
]


def train(
    config: Annotated[
        str | None, typer.Argument(help="A YAML file or a preset (see --list), with :VARIANT,... after it.")
    ] = None,
    changes: Change = None,
    plugins: Plugins = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Resume the run in this folder.", metavar="RUN")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="A run for each of these seeds, such as 0,1,2.", metavar="N,N,...")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
    show: Annotated[
        bool,
        typer.Option("--show", help="Print all settings, with presets and changes resolved, and exit."),
    ] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print episodes, tokens, bytes, memory and hours that the run needs, and exit."),
    ] = False,
    tokens_per_second: Annotated[
        float, typer.Option("--tokens-per-second", min=1e-3, help="--plan: tokens that a device generates in a second.")
    ] = 1000.0,
    device_memory: Annotated[
        float | None, typer.Option("--device-memory", min=1e-3, help="--plan: memory of a device in GB (10^9 bytes).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's record instead of the table.")] = False,
) -> None:
    """Train agents, federated or not, with a configuration; writes report.html."""
    from fedagentgym.experiment.config import list_presets, list_variants, read_preset

    if listing:
        for name in list_presets():
            get_console().print(f"{name:16s} {_extract_headline(read_preset(name))}", highlight=False, markup=False)
            if variants := list_variants(name):
                get_console().print(f"{'':16s}   {name}:{', '.join(variants)}", highlight=False, markup=False)
        return
    if (config is None) == (resume is None):
        raise OptionError("name a configuration to train, or a run to resume: train FILE, or train --resume RUN")
    if show:
        _print_settings(config, resume, changes or (), plugins or ())
        return
    if plan:
        if config is None:
            raise OptionError("--plan: name a configuration, a run that was started has no plan to print")
        _print_plan(config, changes or (), plugins or (), tokens_per_second, device_memory, as_json)
        return
    from fedagentgym.experiment import run as running
    from fedagentgym.experiment.report.terminal import RunWatch, print_summary, watch_run

    if seeds is not None:
        if config is None:
            raise OptionError(
                "--seeds: name a configuration; runs of several seeds are resumed by repeating the same command"
            )
        _train_seeds(config, changes or (), _parse_seeds(seeds), plugins or (), as_json)
        return
    with contextlib.nullcontext(RunWatch()) if as_json else watch_run() as watch:
        if resume is not None:
            if plugins:
                raise OptionError("--plugin: a run that is resumed loads the plugins that it was started with")
            result = running.resume(resume, changes or (), observers=watch.observers, on_progress=watch.on_progress)
        else:
            result = running.train(
                config or "",
                changes or (),
                plugins=plugins or (),
                observers=watch.observers,
                on_progress=watch.on_progress,
            )
    if as_json:
        from fedagentgym.base.encoding import canonical_json

        typer.echo(canonical_json(result.record))
    else:
        print_summary(result.folder, result.record)


def _parse_seeds(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 20 for part in parts):
        raise OptionError(f"--seeds: numbers from 0 on, separated by commas, such as 0,1,2, got {text[:80]!r}")
    return [int(part) for part in parts]


def _train_seeds(
    config: str, changes: Sequence[str], seeds: Sequence[int], plugins: Sequence[str], as_json: bool
) -> None:
    """Run each seed, and print how to compare the runs."""
    from fedagentgym.base.encoding import canonical_json
    from fedagentgym.experiment.report.terminal import RunWatch, print_summary, watch_run
    from fedagentgym.experiment.run import train as train_run

    with contextlib.nullcontext(RunWatch()) if as_json else watch_run() as watch:
        results = train_run(
            config, changes, seeds=seeds, plugins=plugins, observers=watch.observers, on_progress=watch.on_progress
        )
    for result in results:
        if as_json:
            typer.echo(canonical_json(result.record))
        else:
            print_summary(result.folder, result.record)
    if not as_json:
        get_console().print(f"all seeds together: fedagentgym compare {results[0].folder.parent}", highlight=False)


def _print_settings(config: str | None, resume: Path | None, changes: Sequence[str], plugins: Sequence[str]) -> None:
    """Every setting with its value, under the header comment of the preset."""
    import yaml

    from fedagentgym.agents.presets import complete_settings
    from fedagentgym.experiment.config import load_config, read_head

    source = str(config) if resume is None else str(resume / "config.yaml")
    resolved = load_config(source, changes, plugins)
    agent = complete_settings(resolved.agent).model_dump(mode="json")
    text: str = yaml.safe_dump({**resolved.plain(), "agent": agent}, sort_keys=False, allow_unicode=True)
    typer.echo(f"{read_head(source)}{text}", nl=False)


def _print_plan(
    config: str,
    changes: Sequence[str],
    plugins: Sequence[str],
    tokens_per_second: float,
    device_memory: float | None,
    as_json: bool,
) -> None:
    """The cost of the configuration."""
    from fedagentgym.base.encoding import canonical_json
    from fedagentgym.experiment.config import load_config
    from fedagentgym.experiment.estimate.page import format_plan, make_plain
    from fedagentgym.experiment.estimate.plan import plan_run
    from fedagentgym.experiment.estimate.player import DEVICE_BYTES

    device_bytes = None if device_memory is None else int(device_memory * 1e9)
    planned = plan_run(load_config(config, changes, plugins), device_bytes or DEVICE_BYTES)
    if as_json:
        typer.echo(canonical_json(make_plain(planned, tokens_per_second)))
        return
    for line in format_plan(planned, tokens_per_second, device_bytes):
        get_console().print(line, highlight=False)


def _extract_headline(text: str) -> str:
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")
