"""`--client` and `--client-split`: a client of a split file, in whose environment to play or evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedagentgym.base.errors import OptionError

if TYPE_CHECKING:
    from fedagentgym.experiment.judged import NamedClient

ClientNumber = Annotated[
    int | None,
    typer.Option(
        "--client", min=0, help="Use the environment of this client of --client-split: its tasks, in its variant."
    ),
]
ClientSplitFile = Annotated[
    Path | None, typer.Option("--client-split", help="Split file that --client belongs to.", metavar="FILE")
]


def find_named_client(client: int | None, file: Path | None) -> NamedClient | None:
    """The client that both options name together."""
    if client is None and file is None:
        return None
    if client is None or file is None:
        missing = "--client" if client is None else "--client-split"
        raise OptionError(
            f"{missing} is missing: --client 3 --client-split FILE together name the environment of a client"
        )
    from fedagentgym.experiment.judged import NamedClient

    return NamedClient(file, client)
