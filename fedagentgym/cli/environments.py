"""How every command that takes an environment finds and builds it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedagentgym.base.errors import unknown
from fedagentgym.base.settings import assign
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.task import short_name

EnvId = Annotated[str, typer.Argument(help="Environment id, for example fedagentgym/WebShop-v0 (or only WebShop).")]
EnvSet = Annotated[
    list[str] | None,
    typer.Option(
        "--env-set",
        help="Option of the environment as key=value, for example size=tiny; may be repeated.",
        metavar="KEY=VALUE",
    ),
]


def full_id(name: str) -> str:
    """The id that a name stands for: the id itself, or its part without namespace and version."""
    if name in ENVIRONMENTS:
        return name
    short = {short_name(env_id): env_id for env_id in ENVIRONMENTS.names()}
    if name.lower() in short:
        return short[name.lower()]
    raise unknown("environment", name, ENVIRONMENTS.names())


def env_options(assignments: list[str] | None) -> dict[str, Any]:
    """`--env-set` values as keyword options."""
    options: dict[str, Any] = {}
    for assignment in assignments or []:
        options = assign(options, assignment)
    return options


def open_named(name: str, options: dict[str, Any]) -> TextEnv:
    """The environment itself, without gymnasium's wrappers; its name may be the short one."""
    return open_env(full_id(name), **options)
