"""Where the tasks of a run's clients are: parts of one pool that every process opens, or on the clients' own machines.

A `Runtime` has one of these, chosen once by its configuration; whatever differs between such runs is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from fedagentgym.base.errors import FedAgentGymError

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.partitions.client_split import ClientSplit
    from fedagentgym.partitions.held import HeldTasks

_WARM_ENVS = 64


class ClientEnv(NamedTuple):
    """A client's environment over its tasks; `tells_count` is True if the server may know how many there are."""

    env: TextEnv
    tells_count: bool = True


class DividedSites:
    """The clients' tasks are parts of one pool, which every process opens."""

    common_ids: ClassVar[bool] = True
    """True if an id names the same task to the server and to every client."""
    plays_sets: ClassVar[bool] = True
    """True if clients can play the run's own evaluation sets."""

    def __init__(self, get_split: Callable[[], ClientSplit]) -> None:
        self._open = lru_cache(maxsize=_WARM_ENVS)(lambda client: get_split().client(client).open_env())

    def open(self, client: int) -> ClientEnv:
        """A client's environment."""
        return ClientEnv(self._open(client))

    def open_whole(self, make: Callable[[], TextEnv]) -> TextEnv:
        """The unchanged environment of the run, which `make` opens, or what stands for it where it cannot be opened."""
        return make()

    def list_openable(self, clients: Sequence[int]) -> Sequence[int]:
        """The clients whose tasks the server can open."""
        return clients


class HeldSites:
    """The clients' tasks are on their own machines, as the server of such a run sees them."""

    common_ids: ClassVar[bool] = False
    plays_sets: ClassVar[bool] = False

    def open(self, client: int) -> ClientEnv:
        raise RuntimeError("the server has no tasks of its clients")

    def open_whole(self, make: Callable[[], TextEnv]) -> TextEnv:
        return make()

    def list_openable(self, clients: Sequence[int]) -> Sequence[int]:
        return ()


class OwnSites(HeldSites):
    """The tasks that this machine holds: the owner's file of every client here, and the folder that keeps their results."""

    def __init__(self, files: Mapping[int, str], folder: Path) -> None:
        self._files, self.folder = files, folder
        self._held: dict[int, HeldTasks] = {}

    def open_held(self, client: int) -> HeldTasks:
        """A client's tasks with what their owner allows; opened again if their files were written."""
        from fedagentgym.partitions.held import open_held

        if client not in self._held or not self._held[client].is_unchanged:
            self._held[client] = open_held(self._files[client])
        return self._held[client]

    def open(self, client: int) -> ClientEnv:
        held = self.open_held(client)
        return ClientEnv(held.env, tells_count="count" in held.settings.share)

    def open_whole(self, make: Callable[[], TextEnv]) -> TextEnv:
        """A machine that does not have what the run's environment needs takes its own."""
        try:
            return make()
        except FedAgentGymError:
            return self.open_held(min(self._files)).env


Sites = DividedSites | HeldSites
