"""The Flower app of this package: `fedagentgym flower init` writes a folder whose app.py imports these two names.

The ServerApp runs the configuration in its run config (`run = "/path/run.yaml"`, and `plugins = "/path/mine.py"`), from the
beginning or from its newest commit; `rounds`, `seed`, `folder` and `set`, which holds assignments, change it. The
ClientApp is the thin proxy of `federation/backends/flower_deployment.py`. Importing this module needs the extra [flower].
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedagentgym.algorithms import APPLICATION, HELD_APPLICATION
from fedagentgym.base.errors import OptionError, join_names
from fedagentgym.base.imports import require
from fedagentgym.base.progress import get_console
from fedagentgym.base.settings import list_keys
from fedagentgym.federation.backends.flower_deployment import client_app as make_client_app
from fedagentgym.federation.backends.flower_deployment import use_grid
from fedagentgym.runs.folder import RunFolder

BACKEND_CHANGE = "federation.backend=flower"
RUN_CONFIG = {"rounds": "federation.rounds", "seed": "seed", "folder": "output.folder"}
"""Keys of an app's run config, and the settings for which they stand."""


def make_server_app() -> Any:
    """A ServerApp whose main function is `fedagentgym train`, or its resumption; its log shows every round."""
    app = require("flwr.serverapp", "flower").ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        from fedagentgym.experiment.config import load_config
        from fedagentgym.experiment.report.terminal import print_summary, watch_run
        from fedagentgym.experiment.run import resume_own, train

        source = str(context.run_config["run"])
        plugins = [plugin for plugin in str(context.run_config.get("plugins", "")).split(",") if plugin]
        changes = [*read_changes(context.run_config), BACKEND_CHANGE]
        config = load_config(source, changes, plugins=plugins)
        if not Path(config.output.folder).is_absolute():
            raise OptionError(
                f"the run's folder is {config.output.folder!r}: Flower runs in another folder, give an absolute path:"
                " --run-config 'folder=\"/srv/run\"'"
            )
        with use_grid(grid), watch_run() as watch:
            watching: dict[str, Any] = {"observers": watch.observers, "on_progress": watch.on_progress}
            folder = RunFolder(Path(config.output.folder))
            if folder.is_finished and folder.record.rounds >= config.federation.rounds:
                longer, other = f"'rounds={config.federation.rounds + 1}'", "'folder=\"/another\"'"
                text = (
                    f"this run is finished already; --run-config {longer} makes it longer, {other} begins another one"
                )
                get_console().print(text, highlight=False)
            elif folder.is_run:
                resume_own(config, [BACKEND_CHANGE], **watching)
            else:
                train(source, changes, plugins=plugins, **watching)
        print_summary(folder.path)

    return app


def read_changes(given: Mapping[str, Any]) -> list[str]:
    """The assignments that an app's run config makes; an empty value leaves the configuration as it is."""
    given = {**given, "folder": str(Path(str(given["folder"])).expanduser()) if given.get("folder") else ""}
    found = [f"{path}={given[key]}" for key, path in RUN_CONFIG.items() if given.get(key, "") != ""]
    found += shlex.split(str(given.get("set", "")))
    for key, times in Counter(list_keys(found)).items():
        if times > 1:
            named = f"{join_names([*RUN_CONFIG, 'set'])} count together"
            raise OptionError(f"the app's run config gives {key} {times} times ({named}): give it once")
    return found


server_app = make_server_app()
client_app = make_client_app(trusted=(APPLICATION, HELD_APPLICATION))
