"""How commands name an agent: `--agent` and `--agent-set`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.settings import assign

AgentSet = Annotated[
    list[str] | None,
    typer.Option("--agent-set", help="Agent setting as key=value, for example context=window.", metavar="KEY=VALUE"),
]


def parse_agent_settings(name: str, assignments: list[str] | None) -> dict[str, Any]:
    """`--agent` and `--agent-set` as agent settings; an unregistered name is a model, with its own prompt if it was
    exported with one."""
    from fedagentgym.agents import AGENTS
    from fedagentgym.agents.models.store import find_model, list_models
    from fedagentgym.experiment.agent_file import has_agent_file, read_agent_file

    known = name in AGENTS
    if not known and (Path(name) / "config.yaml").is_file() and (Path(name) / "rounds").is_dir():
        raise OptionError(
            f"{name} is a run: evaluate its policy with --run {name}, or export it (fedagentgym export {name} FOLDER)"
        )
    if not known and "/" not in name and not Path(name).exists() and find_model(name) is None:
        raise unknown_name_error("agent", name, [*AGENTS.names(), *(one.name for one in list_models())])
    settings: dict[str, Any] = {"name": name} if known else {"name": "transformers", "model": name}
    if not known and has_agent_file(name):
        settings = read_agent_file(name).agent.model_dump(mode="json", exclude_unset=True)
    for assignment in assignments or []:
        settings = assign(settings, assignment)
    return settings
