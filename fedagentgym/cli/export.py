"""`fedagentgym export`: the policy of a run as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.errors import OptionError
from fedagentgym.base.progress import console
from fedagentgym.cli.plugins import Plugins


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    output: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    best: Annotated[bool, typer.Option("--best", help="The best evaluated round instead of the last.")] = False,
    number: Annotated[int | None, typer.Option("--round", help="This round instead of the last.")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the LoRA adapter, not merged into its base.")
    ] = False,
    plugins: Plugins = None,
) -> None:
    """Write the trained policy: model and tokenizer in one folder that transformers and vLLM load, or the adapter alone."""
    if best and number is not None:
        raise OptionError("--best and --round exclude each other")
    from fedagentgym.experiment.export import export_policy

    chosen = export_policy(run, output, number=number, best=best, adapter_only=adapter)
    console().print(f"round {chosen} of {run} is in {output}", highlight=False)
