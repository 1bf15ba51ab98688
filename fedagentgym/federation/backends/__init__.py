"""The interface of backends, which run the clients, the registered backends, and their options.

`in_process` runs the clients in this process or in worker processes (`workers`). `flower_deployment` reaches clients on their
own machines through the messages of `flower_wire`; a worker keeps running on each machine (`resident`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, get_type_hints

from pydantic import ConfigDict, create_model
from pydantic_core import PydanticUndefined

from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import Registry
from fedagentgym.base.settings import Settings
from fedagentgym.federation.exchange import Reply, Request, StateName


class Backend(Protocol):
    """The place where clients run: in this process, in a pool of workers, or on their own machines.

    To write one, give a class these four methods, and register a function that makes it with `fedagentgym.register_backend`.
    `fedagentgym.testing.check_backend` checks it.
    """

    def run(self, requests: Sequence[Request], deadline: float | None) -> Iterable[Reply]:
        """Serve requests.

        Args:
            requests: One for each client that is called: client, operation, message, and the state that it starts from.
            deadline: Seconds that each may take; None for no limit.

        Returns:
            One reply per request, in the same order, each as soon as it is available. For a client that fails, dies or is late
            there is a reply with that status.
        """

    def commit(self, heads: Mapping[int, StateName]) -> None:
        """Make client states durable; called before a round that refers to them is committed.

        Args:
            heads: The present state of each client.
        """

    def prune(self, rounds: Iterable[Mapping[int, StateName]]) -> None:
        """Remove old client states; called after a round is committed.

        Args:
            rounds: For every round that is kept, the state of each client after it. These states must stay.
        """

    def close(self) -> None:
        """Release workers and connections."""


OpenBackend = Callable[..., Backend]
"""Takes the application's specification and, by keyword, `folder`, `workers`, `application`, `device_per_worker`, `together`
if that is set, and the entries of `federation.options`. Its further keyword parameters are the backend's options."""

BACKENDS = Registry(
    "backend",
    {
        "in-process": "fedagentgym.federation.backends.in_process:open_backend",
        "flower": "fedagentgym.federation.backends.flower_deployment:open_backend",
    },
)
GIVEN_BY_RUN = ("recipe", "folder", "application")
COMMON_KEYWORDS = (*GIVEN_BY_RUN, "workers", "device_per_worker", "together")
"""Arguments that a backend receives from the run or from keys of `federation`; they are not options."""


class BackendOptions(Settings):
    """The base class of the options of one backend."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


def load_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """`federation.options` as keyword arguments of a registered backend; an unknown option or wrong value is an error."""
    given = next((key for key in options if key in COMMON_KEYWORDS), None)
    if given is not None:
        hint = "leave it out" if given in GIVEN_BY_RUN else f"see federation.{given}"
        raise OptionError(f"federation.options.{given} is no option of a backend: {hint}")
    declared = describe_options(name)
    if declared is None:
        return dict(options)
    fields: dict[str, Any] = {
        option: (kind, ... if default is PydanticUndefined else default) for option, kind, default in declared
    }
    if not fields and options:
        given = min(options)
        takes = [
            other for other in BACKENDS.names() if given in {option for option, *_ in describe_options(other) or ()}
        ]
        hint = f", which backend {takes[0]!r} takes" if takes else ""
        raise OptionError(f"the backend {name!r} takes no federation.options, got {given[:80]!r}{hint}")
    loaded = create_model("Options", __base__=BackendOptions, **fields).load(dict(options), "federation.options")
    return {keyword: getattr(loaded, keyword) for keyword in options}


def describe_options(name: str) -> list[tuple[str, Any, Any]] | None:
    """The name, type and default of each option of a backend, with `PydanticUndefined` as the default of a required option. None
    if the backend takes any options."""
    opener = BACKENDS.get(name)
    try:
        hints = get_type_hints(opener, include_extras=True)
    except (NameError, TypeError):
        hints = {}  # annotations that cannot be resolved at run time
    found = []
    for parameter in list(inspect.signature(opener).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            return None
        if parameter.name not in COMMON_KEYWORDS:
            default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
            found.append((parameter.name, hints.get(parameter.name, Any), default))
    return found
