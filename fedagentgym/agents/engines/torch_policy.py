"""The policy in this process: a causal language model of `transformers`, all weights or a LoRA adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedagentgym.agents.engines.decoder_forward import DecoderForward
from fedagentgym.agents.engines.forwards import Forward, ModuleForward
from fedagentgym.agents.engines.loading import check_tokenizer, choose_device, disable_progress_bars, load_model
from fedagentgym.agents.engines.lora import Merge, add_adapter
from fedagentgym.agents.engines.session import TorchSession
from fedagentgym.agents.protocols import SharedModel
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
from fedagentgym.base.errors import DataError, OptionError


class TorchPolicy(SharedModel):
    """``policy.TrainablePolicy`` on a transformers model that is already in memory."""

    def __init__(
        self,
        model: Any,
        tokenizer: HuggingFaceTokenizer,
        *,
        name: str = "transformers",
        context_length: int | None = None,
        adapter: AdapterSettings | None = None,
        seed: int = 0,
        forward: Literal["auto", "own", "hf"] = "auto",
    ) -> None:
        check_tokenizer(model, tokenizer, name)
        self.name, self.tokenizer, self.version = name, tokenizer, 0
        longest = int(model.config.get_text_config().max_position_embeddings)
        if context_length is not None and context_length > longest:
            raise OptionError(f"context_length {context_length} is more than the model's {longest}")
        self.context_length = context_length or longest
        self._lean = self._choose_forward(model, forward)
        self.adapter = adapter
        self.model = model if adapter is None else add_adapter(model, adapter, seed)
        self.model.eval()
        self.device: torch.device = next(self.model.parameters()).device
        self._merge = Merge(self.model)

    @staticmethod
    def load(source: str | Path, *, dtype: str = "float32", device: str = "auto", **options: Any) -> TorchPolicy:
        """Load a folder or a hub id; ``options`` are those of the constructor."""
        model, tokenizer = load_model(source, dtype, choose_device(device))
        return TorchPolicy(model, tokenizer, **{"name": str(source), **options})

    @staticmethod
    def _choose_forward(model: Any, wanted: str) -> bool:
        fits = DecoderForward.fits(model)
        if wanted == "own" and not fits:
            raise OptionError(
                f"forward: own is for plain Qwen2, Qwen3, Llama and Mistral models, this is {type(model).__name__}: "
                "use hf or auto"
            )
        exact_on_cpu = model.device.type == "cpu" and model.dtype == torch.float32
        return wanted == "own" or (wanted == "auto" and fits and exact_on_cpu)

    def open_session(self, on_close: Callable[[], object] | None = None) -> TorchSession:
        """``on_close`` is called when the session ends."""
        torch.set_flush_denormal(True)
        forward: Forward
        if self._lean:
            forward, give_back = DecoderForward(self.model, self.device), on_close
        else:
            self.model.eval()
            self._merge.acquire()
            compute = torch.bfloat16 if self.device.type == "cuda" else None
            forward, give_back = ModuleForward(self.model, self.device, compute), partial(self._unmerge, on_close)
        return TorchSession(forward, self.context_length, self.tokenizer.stop_ids, on_close=give_back)

    def _unmerge(self, on_close: Callable[[], object] | None) -> None:
        self._merge.release()
        if on_close is not None:
            on_close()

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: to_array(weight) for name, weight in self.parameters().items()}

    def set_weights(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        own = self.parameters()
        check_weights(weights, own)
        self.claim()
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))
        self.bump_version()

    def bump_version(self) -> None:
        self.version += 1

    def save(self, folder: str | Path) -> None:
        """Write everything for a later ``load``: the model, or base and adapter merged, and the tokenizer."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self._merge.acquire()
        try:
            plain = self.model.get_base_model() if self.adapter is not None else self.model
            with disable_progress_bars():
                plain.save_pretrained(
                    target, state_dict=_get_base_state_dict(plain) if self.adapter is not None else None
                )
        finally:
            self._merge.release()
        self.tokenizer.save(target)

    def close(self) -> None:
        """Nothing outside this process has to be closed."""


def check_weights(weights: Mapping[str, np.ndarray[Any, Any]], own: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights whose names or shapes are not those of a policy's own."""
    if weights.keys() != own.keys():
        strange = sorted(weights.keys() ^ own.keys())
        raise DataError(f"the weights do not fit this policy: {strange[0]!r} is on one side only ({len(strange)} such)")
    for name, parameter in own.items():
        if weights[name].shape != tuple(parameter.shape):
            raise DataError(f"{name!r} has shape {weights[name].shape}, this policy needs {tuple(parameter.shape)}")


def to_array(weight: torch.Tensor) -> np.ndarray[Any, Any]:
    """Copy a tensor to a plain array; bfloat16, which numpy lacks, becomes float32 without loss."""
    plain = weight.detach().to("cpu", torch.float32 if weight.dtype == torch.bfloat16 else weight.dtype, copy=True)
    return plain.numpy()


def _get_base_state_dict(model: Any) -> dict[str, torch.Tensor]:
    """Return the state of a model whose layers are wrapped by adapters, under the names that it had before."""
    return {
        name.replace(".base_layer.", "."): weight for name, weight in model.state_dict().items() if "lora_" not in name
    }
