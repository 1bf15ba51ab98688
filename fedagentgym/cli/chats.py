"""`fedagentgym chats`: the episodes of a run or a file as chat messages, for supervised fine-tuning elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.progress import get_console
from fedagentgym.cli.plugins import Plugins


def chats(
    source: Annotated[Path, typer.Argument(help="Folder of a run, or a file of episodes (JSON lines).")],
    output: Annotated[Path, typer.Argument(help="File to write, one conversation a line.")],
    solved: Annotated[bool, typer.Option("--solved", help="Only episodes that were solved.")] = False,
    training: Annotated[
        bool, typer.Option("--training", help="For a run: its sampled training episodes, not its last evaluation.")
    ] = False,
    only: Annotated[str | None, typer.Option("--set", help="Only the episodes of this evaluation set.")] = None,
    plugins: Plugins = None,
) -> None:
    """Write episodes as conversations: system, user and assistant messages, with task, success and score beside them."""
    from fedagentgym.learning.export import export_conversations

    env = _find_environment(source)
    count = export_conversations(source, output, solved_only=solved, training=training, only=only, env=env)
    get_console().print(f"{count:,} conversations are in {output}", highlight=False)


def _find_environment(source: Path) -> str | None:
    """The environment of a run."""
    config = source / "config.yaml"
    if not config.is_file():
        return None
    from fedagentgym.experiment.config import load_config

    return load_config(config).env.id
