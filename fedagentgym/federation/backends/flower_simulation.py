"""The same operations on Flower's simulation engine, started from here: every client is a virtual SuperNode, Ray's actors are
the workers.

Client states stay with the server and are sent with the request, since any actor may serve any client. Flower cannot stop an
actor: a client that hangs keeps its actor until it ends, while the round continues without it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedagentgym.base.errors import FedAgentGymError, OptionError
from fedagentgym.base.imports import require
from fedagentgym.federation.backends.flower_deployment import FlowerNodes, FoundNodes, client_app
from fedagentgym.federation.clients import Backend
from fedagentgym.federation.exchange import Application, ApplicationSpec, Reply, Request

FLOWER_VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings that turn the telemetry of Flower and Ray off."""
_START_SECONDS = 120.0


def open_backend(
    recipe: ApplicationSpec,
    *,
    folder: Path | None = None,
    workers: int = 0,
    application: Application[Any] | None = None,
    device_per_worker: Sequence[str] = (),
    num_cpus: Annotated[float, Field(gt=0.0)] = 1,
    num_gpus: Annotated[float, Field(ge=0.0)] = 0.0,
) -> Backend:
    """`workers` bounds how many clients run at once; the options are the share of the machine that each client takes."""
    if device_per_worker:
        raise OptionError(
            "federation.device_per_worker is for in-process workers: give Flower options: {num_gpus: 0.5}"
        )
    clients = list(getattr(application, "client_ids", lambda: range(1))())
    share = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    return FlowerSimulation(recipe, folder, clients, max(1, workers), share)


class FlowerSimulation(FlowerNodes):
    """Flower's engine in a second thread; its ServerApp only provides its grid."""

    def __init__(
        self,
        recipe: ApplicationSpec,
        folder: Path | None,
        clients: Sequence[int],
        workers: int,
        resources: Mapping[str, float],
    ) -> None:
        for name, value in FLOWER_VARIABLES.items():
            os.environ.setdefault(name, value)
        require("ray", "flower")
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self._done = threading.Event()
        self._lent: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._simulate, args=(len(clients), workers, resources), daemon=True)
        self._thread.start()
        grid = self._wait_for_grid()
        numbers = self._wait_for_nodes(grid, len(clients))
        nodes = FoundNodes(dict(zip(sorted(clients), numbers, strict=True)), frozenset(numbers))
        super().__init__(recipe, grid, nodes, folder)

    def _wait_for_nodes(self, grid: Any, count: int) -> list[int]:
        """The nodes' numbers; Flower registers them after it provides its grid."""
        deadline = time.monotonic() + _START_SECONDS
        while len(nodes := list(grid.get_node_ids())) < count:
            if time.monotonic() > deadline:
                raise FedAgentGymError(f"Flower registered {len(nodes)} of {count} clients in {_START_SECONDS:g} s")
            time.sleep(0.05)
        return sorted(nodes)

    def run(self, requests: Sequence[Request], deadline: float | None) -> list[Reply]:
        if not self._thread.is_alive():
            raise FedAgentGymError("Flower's simulation engine has stopped: see its messages above")
        return super().run(requests, deadline)

    def close(self) -> None:
        self._done.set()
        self._thread.join(timeout=30.0)

    def _simulate(self, clients: int, workers: int, resources: Mapping[str, float]) -> None:
        simulation = require("flwr.simulation", "flower")
        server = require("flwr.serverapp", "flower").ServerApp()

        @server.main()  # type: ignore[untyped-decorator]
        def main(grid: Any, context: Any) -> None:
            self._lent.put(grid)
            self._done.wait()

        config = {
            "client_resources": dict(resources),
            "init_args": {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False},
        }
        try:
            simulation.run_simulation(server, client_app(), num_supernodes=clients, backend_config=config)
        except BaseException as error:
            self._lent.put(error)

    def _wait_for_grid(self) -> Any:
        try:
            lent = self._lent.get(timeout=_START_SECONDS)
        except queue.Empty:
            raise FedAgentGymError(f"Flower's simulation engine did not start within {_START_SECONDS:g} s") from None
        if isinstance(lent, BaseException):
            raise FedAgentGymError(f"Flower's simulation engine did not start: {lent}") from lent
        return lent
