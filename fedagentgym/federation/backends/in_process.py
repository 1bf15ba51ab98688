"""The default backend: clients one after the other in this process, or in a pool of worker processes.

Both ways encode and decode every message and state, so bytes and dtypes are those of a real federation. Their results are equal
bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import require_type
from fedagentgym.base.together import run_together
from fedagentgym.federation.backends import Backend
from fedagentgym.federation.backends.workers import WorkerPoolBackend
from fedagentgym.federation.exchange import Application, ApplicationSpec, Reply, Request, apply_deadline, perform
from fedagentgym.federation.states import StateStore


def open_backend(
    recipe: ApplicationSpec,
    *,
    folder: Path | None = None,
    workers: int = 0,
    application: Application[Any] | None = None,
    device_per_worker: Sequence[str] = (),
    together: int | None = None,
) -> Backend:
    """Open the default backend: clients in this process or in a pool of worker processes, with equal results.

    Args:
        recipe: How a worker builds the client side of the run.
        folder: Where client states are stored; by default in memory.
        workers: Number of worker processes; 0 runs the clients in this process.
        application: The client side, if it is built already; used without workers.
        device_per_worker: Devices that the workers take in turn.
        together: Number of clients that roll out in one batch; ignored with workers.

    Returns:
        The backend; close it after use.
    """
    if application is None:
        require_type("a backend is opened with the recipe that a run hands over", recipe, ApplicationSpec)
    if workers <= 0:
        return SequentialBackend(application if application is not None else recipe.build(), folder, together or 1)
    return WorkerPoolBackend(recipe, folder, workers, device_per_worker)


class SequentialBackend(StateStore):
    """Runs one client after the other in this process, or `together` clients at a time, which take turns and share a batch.

    A call cannot be interrupted, so a late reply is discarded when it arrives.

    Args:
        application: The client side of the run: its operations and resources.
        folder: Where client states are stored; by default in memory.
        together: Number of clients that run together.
    """

    def __init__(self, application: Application[Any], folder: Path | None = None, together: int = 1) -> None:
        super().__init__(folder)
        self._application, self._together = application, together

    def run(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        """Serve requests in order; see `Backend.run`."""
        for first in range(0, len(requests), self._together):
            part = requests[first : first + self._together]
            works = [partial(perform, self._application, one, self.get(one.client, one.base)) for one in part]
            for request, reply in zip(part, run_together(works), strict=True):
                reply = apply_deadline(reply, deadline)
                self.put(request.client, request.name, reply.state)
                yield reply

    def close(self) -> None:
        """Release nothing."""
