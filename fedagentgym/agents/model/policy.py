"""The policy in this process: a causal language model with all its weights, or with a LoRA adapter.

Adapters are created and saved by `peft`. Rollouts by a model's own modules in float32 merge adapters into the weights, and
restore the weights exactly afterwards. Rollouts in bfloat16 add an adapter's products to the outputs, as the learner does, since
merged weights would round small changes away.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedagentgym.agents.model.architectures import fits
from fedagentgym.agents.model.cache import KVCache
from fedagentgym.agents.model.cached import CachedDecoder, keeps_changes, merge_weight
from fedagentgym.agents.model.decoder import Decoder
from fedagentgym.agents.model.generate import TorchSession
from fedagentgym.agents.model.hf import Forward, ModuleForward
from fedagentgym.agents.model.joined import JoinedPlay, find_rank
from fedagentgym.agents.model.loading import (
    check_tokenizer,
    choose_device,
    hush_transformers,
    load_model,
)
from fedagentgym.agents.model.names import BASE, LOW, VALUE_HEAD
from fedagentgym.agents.protocols import Session, SharedModel
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.agents.text.tokens import TextTokenizer
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.imports import require
from fedagentgym.base.process import is_own_process
from fedagentgym.base.together import Group, get_group

MAX_SPARE_BYTES = 1 << 25
"""Caches up to this size are kept from one session for the next."""


class TorchPolicy(SharedModel):
    """A causal language model in this process that generates and can be trained, with all its weights or with a LoRA adapter.

    Args:
        model: A model of `transformers`, or one of `make_tiny_model`. The latter is converted to `transformers` with an adapter,
            with `forward="hf"`, and on a GPU with `forward="auto"`.
        tokenizer: Its tokenizer.
        name: Name in messages.
        context_length: Maximum number of tokens; by default the model's.
        adapter: `AdapterSettings` of a new LoRA adapter, which is trained in place of the weights.
        seed: Seed of the adapter.
        forward: Whose forward pass computes rollouts: this package's (`own`) or that of the model's modules (`hf`). `auto` takes
            `own` on a CPU for a supported model, else `hf`.

    Attributes:
        model: The module; `model(input_ids=...).logits` is the full forward pass.
        tokenizer: The tokenizer.
        device: The device of the weights.
        version: Counts changes of the weights.

    Raises:
        OptionError: If the context is longer than the model's, `own` does not support the model, or the model lacks an
            adapter's targets.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: TextTokenizer,
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
        written_out = fits(model.config)
        if forward == "own" and not written_out:
            raise OptionError(
                f"forward: own is for plain Qwen2, Qwen3, Llama and Mistral models, this is {type(model).__name__}: "
                "use hf or auto"
            )
        self._lean = forward == "own" or (forward == "auto" and written_out and model.device.type == "cpu")
        if isinstance(model, Decoder) and (adapter is not None or not self._lean):
            model = model.to_transformers()
        self.adapter = adapter
        self.model = model if adapter is None else add_adapter(model, adapter, seed)
        self.model.eval()
        self.device: torch.device = next(self.model.parameters()).device
        self._value_head: dict[str, torch.nn.Parameter] = {}
        self._merge = Merge(self.model)
        self._spare: KVCache | None = None
        self._joined: JoinedPlay | None = None
        self._loaded: dict[str, torch.Tensor] = {}
        self.base_changes: Mapping[str, np.ndarray[Any, Any]] = {}
        if is_own_process():
            torch.set_flush_denormal(True)  # some processors compute much slower with numbers below 1e-38

    @staticmethod
    def load(
        source: str | Path, *, dtype: str = "float32", device: str = "auto", plain: bool = False, **options: Any
    ) -> TorchPolicy:
        """Load a folder or a model of the Hugging Face hub.

        Args:
            source: The folder or hub id.
            dtype: Type of the weights, by torch's name.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            plain: Whether to read a folder without `transformers` if possible, which an adapter or `forward="hf"` excludes.
            **options: Arguments of the constructor.

        Returns:
            The policy.
        """
        plain = plain and options.get("adapter") is None and options.get("forward", "auto") != "hf"
        model, tokenizer = load_model(source, dtype, choose_device(device), plain=plain)
        return TorchPolicy(model, tokenizer, **{"name": str(source), **options})

    def open_session(self) -> Session:
        """Open a session that generates with the present weights; they must not change until it is closed.

        Returns:
            The session, a context manager.
        """
        if self.adapter is not None and (group := get_group()) is not None:
            joined = self._join(group)
            if joined is not None:
                return joined
        forward: Forward
        give_back: Callable[[], None]
        if self._lean:
            forward = CachedDecoder(self.model, self.device, self._spare)
            self._spare, give_back = None, partial(self._keep_slots, forward.slots)
        else:
            self.model.eval()
            compute = torch.bfloat16 if self.device.type == "cuda" else None
            forward, give_back = ModuleForward(self.model, self.device, compute), _do_nothing
            if self.adapter is not None and keeps_changes(compute or next(self.model.parameters()).dtype):
                self._merge.acquire()
                give_back = self._merge.release
        return TorchSession(forward, self.context_length, self.tokenizer.stop_ids, on_close=give_back)

    def _join(self, group: Group) -> Session | None:
        """Open a session in the joint batch of a group; None if this adapter cannot join, and has to play separately."""
        if not self._lean:
            raise OptionError(
                "federation.together puts several adapters into one batch, which needs this package's forward pass or vLLM: set"
                " agent.forward=own or agent.rollouts=vllm"
            )
        if self._joined is None or not self._joined.used:
            rank = find_rank(self.model)
            self._joined = None if rank is None else JoinedPlay(self, group, rank)
        if self._joined is None or not self._joined.fits(self, group):
            return None
        return self._joined.open()

    def _keep_slots(self, slots: KVCache) -> None:
        """Keep the memory of a small cache for the next session."""
        if sum(store.nbytes for store in (*slots.keys, *slots.values)) <= MAX_SPARE_BYTES:
            self._spare = slots

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the trainable parameters by name, always in the same order; those of a value head come last."""
        return {
            **{name: weight for name, weight in self.model.named_parameters() if weight.requires_grad},
            **self._value_head,
        }

    def add_value_head(self) -> None:
        """Add a value head, unless there is one. Its parameters are trained and sent like all others.

        The value head is zero at first. It is not used in rollouts, and `save` does not write it.
        """
        if not self._value_head:
            width = int(self.model.config.get_text_config().hidden_size)
            shapes = {f"{VALUE_HEAD}weight": (1, width), f"{VALUE_HEAD}bias": (1,)}
            zeros = {name: torch.zeros(shape, device=self.device) for name, shape in shapes.items()}
            self._value_head = {name: torch.nn.Parameter(value) for name, value in zeros.items()}

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the trainable parameters as arrays; bfloat16 becomes float32, which is exact."""
        return {name: to_array(weight) for name, weight in self.parameters().items()}

    def set_weights(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Replace the trainable parameters. A learner whose weights the model held saves them first.

        Args:
            weights: Arrays with the names and shapes of `get_weights`, and as `base/LAYER` changes of the frozen weights of
                adapted layers. A layer without a change has the weights that were loaded. A value head without arrays is reset
                to zero.

        Raises:
            DataError: If names or shapes differ.
        """
        own = self.parameters()
        changes = {name.partition("/")[2]: array for name, array in weights.items() if name.startswith(f"{BASE}/")}
        given = {name: array for name, array in weights.items() if not name.startswith(f"{BASE}/")}
        if not any(name.startswith(VALUE_HEAD) for name in given):
            heads = {name: parameter for name, parameter in own.items() if name.startswith(VALUE_HEAD)}
            given |= {name: np.zeros(tuple(parameter.shape), np.float32) for name, parameter in heads.items()}
        check_weights(given, own)
        self.claim()
        self.set_base(changes)
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(given[name])))
        self.bump_version()

    @torch.no_grad()
    def set_base(self, changes: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Set the frozen weights of adapted layers to the loaded weights plus a change.

        Args:
            changes: The change of each layer; layers without a change get the loaded weights back.

        Raises:
            DataError: If a name is not that of an adapted layer, a shape is not that of its weights, or the weights are stored in
                a type that would round small changes away.
        """
        assert not self._merge.users, "an adapter is merged into the base while a session is open"
        adapted = {name for name, part in self.model.named_modules() if hasattr(part, "lora_A")} if changes else set()
        for layer in dict.fromkeys((*self._loaded, *changes)):
            if layer in changes and layer not in adapted:
                raise DataError(f"the weights do not fit this policy: {layer!r} is not a layer with an adapter")
            weight = self.model.get_submodule(layer).get_base_layer().weight
            change = changes.get(layer)
            if change is not None and change.shape != tuple(weight.shape):
                raise DataError(f"the change of {layer!r} has shape {change.shape}, its weights {tuple(weight.shape)}")
            if change is not None and not keeps_changes(weight.dtype):
                narrow = str(weight.dtype).removeprefix("torch.")
                raise DataError(
                    f"the base is stored in {narrow}, which would lose small changes of it: load it in float32"
                )
            first = self._loaded.setdefault(layer, weight.detach().clone())
            moved = first if change is None else first.float() + torch.from_numpy(np.array(change)).to(first.device)
            weight.copy_(moved)
        self.base_changes = dict(changes)

    def bump_version(self) -> None:
        """Report that parameters were changed in place."""
        self.version += 1

    def save(self, folder: str | Path) -> None:
        """Write the model, an adapter merged into it, and the tokenizer, as an ordinary Hugging Face folder.

        Args:
            folder: The folder.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(target)
        if isinstance(self.model, Decoder):
            self.model.save(target)
            return
        self._merge.acquire()
        try:
            plain, state = self.model, None
            if self.adapter is not None:  # the weights are written under the names of the layers without adapters
                plain = self.model.get_base_model()
                own = {name: weight for name, weight in plain.state_dict().items() if "lora_" not in name}
                state = {name.replace(".base_layer.", "."): weight for name, weight in own.items()}
            with hush_transformers():
                plain.save_pretrained(target, state_dict=state)
        finally:
            self._merge.release()

    def close(self) -> None:
        """Release nothing: a policy of this process holds no connections."""


def _do_nothing() -> None:
    """Do nothing at the end of a session that merged no adapter."""


def check_weights(weights: Mapping[str, np.ndarray[Any, Any]], own: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights whose names or shapes differ from a policy's own parameters."""
    if weights.keys() != own.keys():
        strange = sorted(weights.keys() ^ own.keys())
        raise DataError(f"the weights do not fit this policy: {strange[0]!r} is on one side only ({len(strange)} such)")
    for name, parameter in own.items():
        if weights[name].shape != tuple(parameter.shape):
            raise DataError(f"{name!r} has shape {weights[name].shape}, this policy needs {tuple(parameter.shape)}")


def to_array(weight: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy of a tensor as an array. A sharded tensor is gathered; bfloat16, which numpy lacks, becomes float32."""
    plain: Any = weight.detach()
    if hasattr(plain, "full_tensor"):
        plain = plain.full_tensor()
    array: np.ndarray[Any, Any]
    array = plain.to("cpu", torch.float32 if plain.dtype == torch.bfloat16 else plain.dtype, copy=True).numpy()
    return array


def add_adapter(model: Any, settings: AdapterSettings, seed: int) -> Any:
    """Return a model with a LoRA adapter on frozen weights.

    A is drawn from `seed`, so it is the same on every client, and B is zero, so the model computes what it did before.
    """
    peft = require("peft", "train")
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    blocks: list[int] | None = None
    if settings.last is not None:
        count = int(model.config.get_text_config().num_hidden_layers)
        if settings.last > count:
            raise OptionError(f"adapter.layers is {settings.layers}, but the model has {count} layers")
        blocks = list(range(count - settings.last, count))
        if isinstance(targets, str):  # peft does not accept "all-linear" together with a list of blocks
            head, modules = model.get_output_embeddings(), model.named_modules()
            linear = [name for name, part in modules if isinstance(part, torch.nn.Linear) and part is not head]
            targets = sorted({name.rpartition(".")[2] for name in linear})
    if not isinstance(targets, str):
        check_targets(model, targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        layers_to_transform=blocks,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft 0.21 causes this warning in transformers 5 by using an old name; users cannot act on it
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(seed)
        try:
            adapted: Any = peft.get_peft_model(model, config)
        except ValueError as error:
            raise OptionError(f"adapter.targets: {str(error).splitlines()[0]}") from None
    if settings.train == "B":
        for name, weight in adapted.named_parameters():
            if LOW in name:
                weight.requires_grad_(False)
    return adapted


def check_targets(model: Any, targets: Sequence[str]) -> None:
    """Refuse targets that an adapter cannot be merged into: layers that are not linear, and layers that share their weights with
    the embedding."""
    embedding = model.get_input_embeddings()
    for name, part in model.named_modules():
        target = next((one for one in targets if name == one or name.endswith(f".{one}")), None)
        if target is not None and not isinstance(part, torch.nn.Linear):
            raise OptionError(
                f"adapter.targets: {target!r} is of type {type(part).__name__}, and only linear layers have adapters"
            )
        if target is not None and part.weight is embedding.weight:
            raise OptionError(
                f"adapter.targets: the weights of {target!r} are those of the embedding in this model, so an adapter would change"
                " both; leave it out"
            )


def save_adapter(model: Any, folder: Path) -> None:
    """Write only the adapter. The embedding is never resized, so `peft` need not look up the base's vocabulary on the hub."""
    model.save_pretrained(folder, save_embedding_layers=False)


@dataclass(eq=False)
class Merge:
    """Merges adapters into the base weights as long as at least one user needs them merged.

    The original base tensors are kept and put back at the end, so that the base weights have the same bits again, which
    subtracting the update would not achieve. This takes one copy of the adapted weights while they are merged.
    """

    model: Any
    users: int = field(default=0, init=False)
    _saved: list[tuple[Any, torch.Tensor]] = field(default_factory=list, init=False)

    def acquire(self) -> None:
        if self.users == 0:
            with torch.no_grad():
                for layer in self.model.modules():
                    if not (hasattr(layer, "lora_A") and hasattr(layer, "merged_adapters")):
                        continue
                    base = layer.get_base_layer()
                    merged = merge_weight(layer)
                    self._saved.append((layer, base.weight.data))
                    base.weight.data = merged
                    layer.merged_adapters.extend(layer.active_adapters)
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            for layer, weight in self._saved:
                layer.get_base_layer().weight.data = weight
                layer.merged_adapters.clear()
            self._saved.clear()
