"""`fedagentgym flower`: a run as a Flower app, for a deployment with SuperLink and SuperNodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import atomic_folder
from fedagentgym.base.progress import get_console
from fedagentgym.cli.plugins import Plugins
from fedagentgym.version import __version__

app = typer.Typer(help="Run a configuration on a Flower deployment.", no_args_is_help=True)

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedagentgym-app"
description = "A run of fedagentgym"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["fedagentgym[train,flower]=={version}"]

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
"""
MODULE = '''"""The app that Flower loads: both halves are in the package."""

from fedagentgym.experiment.flower_app import client_app, server_app

__all__ = ["client_app", "server_app"]
'''


@app.callback()
def _deployment() -> None:
    """Run a configuration on a Flower deployment."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the app; it must not exist.")],
    config: Annotated[Path, typer.Option("--config", help="The run's YAML file, on the SuperLink's machine.")],
    plugins: Plugins = None,
) -> None:
    """Write the Flower app of a run, and print the commands that start a deployment."""
    from fedagentgym.experiment.config import load_config

    if not config.is_file():
        raise DataError(f"cannot read {config}: there is no such file")
    chosen = load_config(config, plugins=plugins or ())
    if not Path(chosen.output.folder).is_absolute():
        raise OptionError(f"output.folder is {chosen.output.folder!r}: Flower starts elsewhere, give an absolute path")
    with atomic_folder(folder) as part:
        named = [str(Path(plugin).absolute()) if plugin.endswith(".py") else plugin for plugin in plugins or ()]
        text = PROJECT.format(
            version=__version__,
            run=canonical_json(str(config.absolute())),
            plugins=canonical_json(",".join(named)),
        )
        (part / "pyproject.toml").write_text(text, "utf-8")
        (part / "app.py").write_text(MODULE, "utf-8")
    _print_commands(folder)


def _print_commands(folder: Path) -> None:
    say = get_console().print
    say(f"the app is in {folder}; on the server's machine:", highlight=False)
    say("  export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1", highlight=False)
    say(
        "  flower-superlink --ssl-certfile server.pem --ssl-keyfile server.key --ssl-ca-certfile ca.crt \\",
        highlight=False,
    )
    say("    --host 0.0.0.0 --enable-supernode-auth --disable-runtime-dependency-installation", highlight=False)
    say("for each client's machine (one SuperNode may serve several clients), a key made there:", highlight=False)
    say('  ssh-keygen -t ecdsa -b 384 -N "" -f node.key', highlight=False)
    say("registered on the server's, with the connection in $FLWR_HOME/config.toml:", highlight=False)
    say("  flwr supernode register node.key.pub CONNECTION", highlight=False)
    say("and then the node:", highlight=False)
    say("  flower-supernode --superlink SERVER:8000 --root-certificates ca.crt \\", highlight=False)
    say("    --auth-supernode-private-key node.key \\", highlight=False)
    say('    --node-config \'clients="0,1" workplace="/var/lib/fedagentgym"\'', highlight=False)
    say(f"finally:  flwr run {folder} CONNECTION", highlight=False)
