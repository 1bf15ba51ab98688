"""Where clients run, by name. A backend is made from a recipe of the application and the place of the client states."""

from __future__ import annotations

from collections.abc import Callable

from fedagentgym.base.registry import Registry
from fedagentgym.federation.clients import Backend

OpenBackend = Callable[..., Backend]
"""Takes the recipe of the application and, by keyword, `folder`, `workers`, `application`, `device_per_worker` and what
`federation.options` says."""

BACKENDS = Registry(
    "backend",
    {
        "in-process": "fedagentgym.federation.backends.in_process:open_backend",
        "flower-simulation": "fedagentgym.federation.backends.flower_simulation:open_backend",
        "flower": "fedagentgym.federation.backends.flower_deployment:open_backend",
    },
)
