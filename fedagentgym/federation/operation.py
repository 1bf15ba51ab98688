"""Operations of clients, and the context that they receive.

An operation is a function of (state, message, context): it keeps nothing between calls, so it can be repeated, moved to another
worker, or run again after a crash with the same result. An `Application` is the set of operations of one run together with
their resources; a worker process builds it from an `ApplicationSpec` of plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from fedagentgym.base.errors import DataError
from fedagentgym.base.plugins import load_plugins
from fedagentgym.base.registry import resolve
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream, derive, generator, stream
from fedagentgym.federation.message import Form, Message

EMPTY_STATE = Message()
R = TypeVar("R")
"""The resources that an application provides to each of its clients."""


@dataclass(frozen=True)
class ClientContext(Generic[R]):
    """The client as an operation sees it. All of it can be rebuilt at any time.

    `resources` is what the application provides: the client's tasks, environment and agent. Random streams are named
    by a purpose and follow from (run seed, round, client, purpose) alone: an operation that runs several times in a
    round names the step.
    """

    id: int
    round: int
    seed: int
    stream_id: int
    resources: R

    def derive(self, *purpose: int | str) -> int:
        """A child seed for this client, round and purpose."""
        return derive(self.seed, "client", self.round, self.stream_id, *purpose)

    def stream(self, *purpose: int | str) -> Stream:
        return stream(self.seed, "client", self.round, self.stream_id, *purpose)

    def generator(self, *purpose: int | str) -> np.random.Generator:
        return generator(self.seed, "client", self.round, self.stream_id, *purpose)


@dataclass(frozen=True)
class Operation(Generic[R]):
    """One operation of clients: the function, and the forms of its message, its reply and its state."""

    run: Callable[[Message, Message, ClientContext[R]], tuple[Message, Message]]
    request: Form
    reply: Form
    state: Form = field(default_factory=Form)


class Application(Protocol[R]):
    """The client side of a run."""

    @property
    def operations(self) -> Mapping[str, Operation[R]]: ...

    def resources(self, client: int) -> R:
        """The resources of client number `client`; may be kept in memory or rebuilt."""


@dataclass(frozen=True)
class ApplicationSpec:
    """How a worker builds the application: `module:function` called with keyword arguments, plain values or settings.

    What is sent is plain (`plain`): settings are validated again where they arrive, since a client's machine must not unpickle
    what a server sends. `plugins` are modules or files of the user; see `base/plugins.py`.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    def build(self, device: str | None = None) -> Application[Any]:
        """The application; a worker with a device of its own passes it as `device`."""
        load_plugins(self.plugins)
        own = {} if device is None else {"device": device}
        application: Application[Any] = resolve(self.target, "application")(**{**self.arguments, **own})
        return application

    def plain(self) -> dict[str, Any]:
        """The specification as plain values; of settings, those that were set."""
        arguments = {
            name: value.model_dump(mode="json", exclude_unset=True) if isinstance(value, Settings) else value
            for name, value in self.arguments.items()
        }
        return {"target": self.target, "arguments": arguments, "plugins": list(self.plugins)}

    @classmethod
    def load(cls, plain: object) -> ApplicationSpec:
        """The specification from these plain values; `DataError` if they are malformed."""
        if not isinstance(plain, Mapping):
            raise DataError("malformed recipe: a mapping is expected")
        target, arguments, plugins = (plain.get(name) for name in ("target", "arguments", "plugins"))
        if not isinstance(target, str) or not isinstance(arguments, Mapping):
            raise DataError("malformed recipe: it needs a target and a mapping of arguments")
        if not isinstance(plugins, list | tuple) or not all(isinstance(plugin, str) for plugin in plugins):
            raise DataError("malformed recipe: its plugins must be a list of names")
        return cls(target, arguments, tuple(plugins))
