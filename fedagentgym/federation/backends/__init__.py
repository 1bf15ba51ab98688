"""Where clients run, by name. A backend is made from an application's specification and the folder of the client states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import ConfigDict, create_model
from pydantic_core import PydanticUndefined

from fedagentgym.base.errors import OptionError
from fedagentgym.base.registry import Registry
from fedagentgym.base.settings import Settings
from fedagentgym.federation.clients import Backend

OpenBackend = Callable[..., Backend]
"""Takes the application's specification and, by keyword, `folder`, `workers`, `application`, `device_per_worker` and the
entries of `federation.options`: further keywords are the backend's options."""

BACKENDS = Registry(
    "backend",
    {
        "in-process": "fedagentgym.federation.backends.in_process:open_backend",
        "flower-simulation": "fedagentgym.federation.backends.flower_simulation:open_backend",
        "flower": "fedagentgym.federation.backends.flower_deployment:open_backend",
    },
)
COMMON_KEYWORDS = ("recipe", "folder", "workers", "application", "device_per_worker")
"""Arguments that every backend receives; they are not options."""


class BackendOptions(Settings):
    """The base of the options of one backend."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


def load_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """`federation.options` as the keywords of a registered backend: an unknown one or a wrong value is one sentence."""
    given = next((key for key in options if key in COMMON_KEYWORDS), None)
    if given is not None:
        raise OptionError(f"federation.options.{given} is no option of a backend: see federation.{given}")
    parameters = _list_parameters(name)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(options)
    fields: dict[str, Any] = {
        option: (kind, ... if default is PydanticUndefined else default)
        for option, kind, default in describe_options(name)
    }
    if not fields and options:
        raise OptionError(f"the backend {name!r} takes no federation.options, got {min(options)[:80]!r}")
    loaded = create_model("Options", __base__=BackendOptions, **fields).load(dict(options), "federation.options")
    return {keyword: getattr(loaded, keyword) for keyword in options}


def describe_options(name: str) -> list[tuple[str, Any, Any]]:
    """The options of a backend: name, type, default (`PydanticUndefined`: required)."""
    hints = _read_hints(BACKENDS.get(name))
    return [
        (
            parameter.name,
            hints.get(parameter.name, Any),
            PydanticUndefined if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in _list_parameters(name)
        if parameter.name not in COMMON_KEYWORDS and parameter.kind is not parameter.VAR_KEYWORD
    ]


def _list_parameters(name: str) -> list[inspect.Parameter]:
    """The keywords of a backend's opener, after the specification."""
    return list(inspect.signature(BACKENDS.get(name)).parameters.values())[1:]


def _read_hints(opener: Callable[..., Backend]) -> dict[str, Any]:
    """The annotations of an opener's keywords that can be resolved at run time."""
    try:
        return get_type_hints(opener, include_extras=True)
    except (NameError, TypeError):
        return {}
