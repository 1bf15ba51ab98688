"""Whether a run fits on its devices, checked before anything is loaded; and what would fit if it does not."""

from __future__ import annotations

import os
from dataclasses import replace

from fedagentgym.agents.model_shapes import LINEAR_LAYERS
from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.estimate.memory import compute_least, compute_peak, list_memory_parts
from fedagentgym.experiment.estimate.plan import RunPlan, plan_run
from fedagentgym.experiment.settings import RunConfig
from fedagentgym.learning.settings import ShardingSettings

ADAPTER_RANK = 32


def check_fit(config: RunConfig) -> None:
    """Refuse a run that cannot fit in any case; if only caches or activations might exceed the memory, it is tried."""
    if config.agent.model is None and config.agent.name == "tiny":
        return
    device_bytes = find_device_memory(config.agent.device)
    try:
        plan = plan_run(config, device_bytes)
    except OptionError:
        return  # a model whose size is not known is tried
    least = compute_least(plan.agent, config.learning, plan.kept_copies)
    if least > device_bytes:
        raise OptionError(
            f"{plan.agent.model} with {plan.agent.trainable:,} trained parameters needs at least {least / 1e9:,.0f} GB on one "
            f"device, which has {device_bytes / 1e9:,.0f} GB: {find_remedies(plan, device_bytes)}"
        )


def find_device_memory(device: str) -> int:
    """Memory of a device in bytes: of the configured GPU, or of this machine."""
    import torch

    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return int(torch.cuda.get_device_properties(device if ":" in device else 0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


MOST_SHARDS = 8


def _find_shards(plan: RunPlan, device_bytes: int) -> str:
    """The smallest number of such devices that suffices for an update, or the number with parts offloaded to the machine."""
    for offload in (False, True):
        for devices in (2, 4, MOST_SHARDS):
            sharding = ShardingSettings(devices=devices, offload=offload)
            spread = plan.config.learning.model_copy(update={"sharding": sharding})
            if compute_least(plan.agent, spread, plan.kept_copies) <= device_bytes:
                return f"{{devices: {devices}, offload: {str(offload).lower()}}}"
    return ""


def find_remedies(plan: RunPlan, device_bytes: int) -> str:
    """Alternatives that would fit, in words."""
    fits = []
    learning = plan.config.learning
    if not plan.agent.has_adapter:
        adapted = replace(
            plan.agent,
            adapted=LINEAR_LAYERS,
            width=2,
            trainable=plan.agent.shape.count_adapter_parameters(ADAPTER_RANK, "all-linear"),
        )
        if compute_least(adapted, learning, plan.kept_copies) <= device_bytes:
            fits.append(f"a LoRA adapter (agent.adapter={{rank: {ADAPTER_RANK}}}, agent.dtype=bfloat16)")
    if shards := _find_shards(plan, device_bytes):
        fits.append(f"shards (learning.sharding={shards})")
    if not learning.checkpointing:
        recomputed = learning.model_copy(update={"checkpointing": True})
        parts = list_memory_parts(plan.agent, recomputed, plan.kept_copies, plan.vllm_share)
        if compute_peak(parts) <= device_bytes:
            fits.append("recomputed activations (learning.checkpointing=true)")
    return f"what fits is {' or '.join(fits)}" if fits else "choose a smaller model or a larger device"
