"""`fedagentgym train`: run a configuration, watch its rounds, go on with one that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.errors import OptionError
from fedagentgym.base.progress import console
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
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.", metavar="RUN")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the preset's YAML and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's record instead of the table.")] = False,
) -> None:
    """Train agents, federated or not, as a configuration says; ends with a summary and report.html."""
    from fedagentgym.experiment.config import preset_names, preset_text, variant_names

    if listing:
        for name in preset_names():
            console().print(f"{name:16s} {_first_line(preset_text(name))}", highlight=False, markup=False)
            if variants := variant_names(name):
                console().print(f"{'':16s}   {name}:{', '.join(variants)}", highlight=False, markup=False)
        return
    if (config is None) == (resume is None):
        raise OptionError("name a configuration to train, or a run to go on with: train FILE, or train --resume RUN")
    if show and config is not None:
        typer.echo(preset_text(config.partition(":")[0]))
        return
    from fedagentgym.experiment import run as running
    from fedagentgym.experiment.report.terminal import Table, summary

    watching = [] if as_json else [Table()]
    if resume is not None:
        if plugins:
            raise OptionError("--plugin: a run that is resumed loads the plugins that it was started with")
        result = running.resume(resume, changes or (), observers=watching)
    else:
        result = running.train(config or "", changes or (), plugins=plugins or (), observers=watching)
    if as_json:
        from fedagentgym.base.encoding import canonical_json

        typer.echo(canonical_json(result.record))
    else:
        summary(result.folder, result.record)


def _first_line(text: str) -> str:
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")
