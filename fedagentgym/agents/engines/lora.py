"""Adapters: created and saved by `peft`, merged for rollouts and removed again exactly."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.base.extras import require

if TYPE_CHECKING:
    from torch import Tensor


def add_adapter(model: Any, settings: AdapterSettings, seed: int) -> Any:
    """Wrap a model: base weights frozen, A drawn from ``seed`` (the same on every client), B zero, so nothing changes yet."""
    peft = require("peft", "train")
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), _ignore_renamed_attribute():
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, config)
        except ValueError as error:
            raise OptionError(f"adapter.targets: {str(error).splitlines()[0]}") from None


@contextlib.contextmanager
def _ignore_renamed_attribute() -> Iterator[None]:
    """Silence the one warning that peft 0.21 causes in transformers 5 by an old name; users cannot act on it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter alone. The base is never resized here, so `peft` need not look up its vocabulary on the hub."""
    model.save_pretrained(folder, save_embedding_layers=False)


def _get_adapted_layers(model: Any) -> list[Any]:
    """Return the adapted layers of a model; empty without an adapter."""
    return [module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "merged_adapters")]


def compute_effective_weight(module: Any) -> Tensor:
    """Return a linear (or embedding) module's weight with its adapters added; the module is left alone."""
    if not hasattr(module, "get_delta_weight"):
        weight: Tensor = module.weight
        return weight.detach()
    weight = module.get_base_layer().weight.detach()
    if module.merged:
        return weight
    for name in module.active_adapters:
        if name in module.lora_A:
            weight = weight + module.get_delta_weight(name).detach().to(weight.dtype)
    return weight


class Merge:
    """Adapters added into the base weights, for as long as at least one user holds it.

    The untouched base tensors are kept aside and put back at the end, so that merging and unmerging is exact to the bit
    (subtracting the update again would not be). Costs one copy of the adapted weights while merged.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.users = 0
        self._saved: list[tuple[Any, Tensor]] = []

    def acquire(self) -> None:
        if self.users == 0:
            with torch.no_grad():
                for layer in _get_adapted_layers(self.model):
                    self._saved.append((layer, layer.get_base_layer().weight.data))
                    layer.merge(safe_merge=True)
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            for layer, weight in self._saved:
                layer.get_base_layer().weight.data = weight
                layer.merged_adapters.clear()
            self._saved.clear()
