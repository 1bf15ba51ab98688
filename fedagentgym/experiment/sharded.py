"""The processes that torchrun started for a run on several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fedagentgym.base import devices
from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.config import OFFLOAD_ON_CPU, RunConfig


@contextlib.contextmanager
def join_ranks(config: RunConfig) -> Iterator[None]:
    """For a sharded run: be one of the processes that torchrun started for it."""
    place, sharding = devices.find_place(), config.learning.sharding
    size = 1 if place is None else place.size
    if sharding is None or not sharding.is_needed:
        if size > 1:
            raise OptionError(
                f"torchrun started {size} processes, and nothing says that they share a run: set"
                f" learning.sharding={{devices: {size}}}, or start one process"
            )
        yield
        return
    start = f"start torchrun --nproc-per-node {sharding.devices} -m fedagentgym train ..."
    if place is None:
        raise OptionError(f"learning.sharding needs a process for each of its devices: {start}")
    if size != sharding.devices or size != place.machine_size:
        raise OptionError(
            f"learning.sharding.devices is {sharding.devices}, but torchrun started {size} processes,"
            f" {place.machine_size} of them on this machine: {start}"
        )
    import torch

    from fedagentgym.agents.model.loading import choose_device

    kind = choose_device(config.agent.device).type
    if sharding.offload and kind == "cpu":
        raise OptionError(OFFLOAD_ON_CPU)
    if kind == "cuda" and (there := torch.cuda.device_count()) < size:
        raise OptionError(f"learning.sharding.devices is {size}, but there are {there} GPUs here")
    with devices.join(place, kind):
        yield
