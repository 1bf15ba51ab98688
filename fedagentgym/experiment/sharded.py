"""A run on several devices: what its settings need, and the processes that torchrun started for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedagentgym.base import devices
from fedagentgym.base.errors import OptionError

if TYPE_CHECKING:
    from fedagentgym.experiment.config import RunConfig

OFFLOAD_ON_CPU = "learning.sharding.offload keeps weights out of a GPU's memory: leave it out on a CPU"


def check_sharding(config: RunConfig) -> None:
    """Check the settings for several devices: they need clients in this process and its ranks, with torch for rollouts."""
    sharding = config.learning.sharding
    if sharding is None or not sharding.is_needed:
        return
    if config.federation.backend != "in-process":
        raise OptionError(
            f"learning.sharding is for federation.backend=in-process, not for {config.federation.backend}"
        )
    if config.federation.workers > 0:
        raise OptionError("learning.sharding is for clients in this process and its ranks: set federation.workers=0")
    if config.federation.deadline is not None:
        raise OptionError("learning.sharding: each rank would time a deadline by itself, leave out federation.deadline")
    if ":" in config.agent.device:
        raise OptionError(
            f"learning.sharding gives each rank a GPU of its own: agent.device=cuda, not {config.agent.device}"
        )
    if sharding.offload and config.agent.device == "cpu":
        raise OptionError(OFFLOAD_ON_CPU)
    if config.agent.rollouts == "vllm" or config.agent.name == "vllm":
        raise OptionError(
            "learning.sharding is for policies that torch plays, on weights put together for it: set agent.rollouts=torch or"
            " leave it out"
        )


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
