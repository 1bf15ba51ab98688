"""Options that name an environment, shared by all commands that take one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedagentgym.base.settings import assign
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.registry import find_env_id

EnvId = Annotated[str, typer.Argument(help="Environment id, for example fedagentgym/WebShop-v0 (or only WebShop).")]
EnvSet = Annotated[
    list[str] | None,
    typer.Option(
        "--env-set",
        help="Option of the environment as key=value, for example size=tiny; may be repeated.",
        metavar="KEY=VALUE",
    ),
]


def env_options(assignments: list[str] | None) -> dict[str, Any]:
    """`--env-set` values as keyword options."""
    options: dict[str, Any] = {}
    for assignment in assignments or []:
        options = assign(options, assignment)
    return options


def open_named(name: str, options: dict[str, Any]) -> TextEnv:
    """The environment without gymnasium's wrappers; its name may be the short one."""
    return open_env(find_env_id(name), **options)
