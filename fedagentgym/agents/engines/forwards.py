"""Two forward passes over a slot cache: through the model's own modules, and a lean one for small Qwen2 models.

Both answer the same question: given a chunk of tokens per row, what are the logits after each row's last real token? The lean
one reads the weights of the Hugging Face model (adapters merged on the way, biases and projections fused) and does the same
arithmetic with a third of the operations; at 0.1 M parameters the operations' overhead is all there is.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedagentgym.agents.engines.lora import compute_effective_weight
from fedagentgym.agents.engines.slots import CacheWindow, KVCache
from fedagentgym.base.errors import OptionError


class Forward(Protocol):
    slots: KVCache

    def compute_logits(self, window: CacheWindow, ids: Tensor, last: Tensor) -> Tensor:
        """Run chunks ``ids`` [rows, length] into the window; return the logits at index ``last`` of each row."""
        ...


def make_causal_mask(window: CacheWindow) -> Tensor:
    """Mark, for each query, the columns up to its own position: [rows, 1, length, columns]."""
    columns = torch.arange(window.columns, device=window.positions.device)
    return (columns <= window.positions.unsqueeze(-1)).unsqueeze(1)


def make_additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn marks into a term that is added to the scores: every attention takes it, and none has to convert it per layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


class ModuleForward:
    """Any causal language model, through its own modules and a cache object that writes into the slots.

    ``compute``: the type of autocast, or None. On a GPU rollouts run as training does, or their log-probs would disagree.
    """

    def __init__(self, model: Any, device: torch.device, compute: torch.dtype | None = None) -> None:
        config = model.config.get_text_config()
        declared = getattr(config, "layer_types", None)
        kinds = set(declared or ["full_attention"])
        if not kinds <= {"full_attention", "sliding_attention"}:
            raise OptionError(
                f"{type(model).__name__} has layers of the kinds {', '.join(sorted(kinds))}: only attention layers can be "
                "cached over many turns"
            )
        self.span: int | None = getattr(config, "sliding_window", None)
        self.mixed = "sliding_attention" in kinds
        if declared is not None and not self.mixed:
            self.span = None
        self.model = model
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.compute = compute
        self.slots = KVCache(config.num_hidden_layers, heads, width, compute or next(model.parameters()).dtype, device)
        self.cache = _make_module_cache(self.slots)

    @torch.no_grad()
    def compute_logits(self, window: CacheWindow, ids: Tensor, last: Tensor) -> Tensor:
        self.cache.window = window
        wanted = torch.unique(last)
        with torch.autocast(ids.device.type, dtype=self.compute, enabled=self.compute is not None):
            found = self.model(
                input_ids=ids,
                attention_mask=self._make_mask(window),
                position_ids=window.positions,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=wanted,
            ).logits
        index = torch.searchsorted(wanted, last)
        answer: Tensor = found[torch.arange(len(ids), device=ids.device), index]
        return answer

    def _make_mask(self, window: CacheWindow) -> Any:
        """Return one mask, or one per kind of layer; a model without kinds has the same span in all its layers."""
        whole, dtype = make_causal_mask(window), self.slots.dtype
        if self.span is None:
            return make_additive_mask(whole, dtype)
        columns = torch.arange(window.columns, device=whole.device)
        near = whole & (columns > window.positions.unsqueeze(-1) - self.span).unsqueeze(1)
        if not self.mixed:
            return make_additive_mask(near, dtype)
        return {
            "full_attention": make_additive_mask(whole, dtype),
            "sliding_attention": make_additive_mask(near, dtype),
        }


def _make_module_cache(slots: KVCache) -> Any:
    """Build the cache object that the modules call. Defined here since its base class needs transformers."""
    from transformers.cache_utils import Cache, DynamicLayer

    class SlotCache(Cache):  # type: ignore[misc]
        window: CacheWindow

        def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            return slots.write(layer, self.window, keys, values)

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return self.window.columns

    return SlotCache(layer_class_to_replicate=DynamicLayer)


class QwenForward:
    """Qwen2 written out: fused projections, one pass of rotary embedding for queries and keys, no Python objects per layer."""

    def __init__(self, model: Any, device: torch.device) -> None:
        config = model.config
        body = _get_body(model)
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.width = body.layers[0].self_attn.head_dim
        self.epsilon = config.rms_norm_eps
        self.shape = (config.hidden_size,)
        with torch.no_grad():
            self.embedding = compute_effective_weight(body.embed_tokens)
            self.head = compute_effective_weight(_get_head(model))
            self.norm = body.norm.weight
            self.layers = [_pack_layer(layer) for layer in body.layers]
            self.frequencies = body.rotary_emb.inv_freq.to(device)
        dtype = self.embedding.dtype
        self.slots = KVCache(len(self.layers), self.groups, self.width, dtype, device)
        self.cos, self.sin = self._compute_angles(512)

    @staticmethod
    def fits(model: Any) -> bool:
        """Tell whether the model is a plain Qwen2: default rotary embedding, no sliding windows, SiLU."""
        config = model.config
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            config.model_type == "qwen2"
            and config.hidden_act == "silu"
            and rope.get("rope_type", "default") == "default"
            and "sliding_attention" not in config.layer_types
        )

    def _compute_angles(self, positions: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(positions, device=self.frequencies.device).float().outer(self.frequencies)
        dtype = self.embedding.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    @torch.inference_mode()
    def compute_logits(self, window: CacheWindow, ids: Tensor, last: Tensor) -> Tensor:
        rows, length = ids.shape
        if window.columns > len(self.cos):
            self.cos, self.sin = self._compute_angles(2 * window.columns)
        cos, sin = self.cos[window.positions].unsqueeze(1), self.sin[window.positions].unsqueeze(1)
        mask = make_additive_mask(make_causal_mask(window), self.slots.dtype)
        hidden = F.embedding(ids, self.embedding)
        both = self.heads + self.groups
        for index, (norm, mix, bias, out, norm_two, gate_up, down) in enumerate(self.layers):
            mixed = F.linear(F.rms_norm(hidden, self.shape, norm, self.epsilon), mix, bias)
            mixed = mixed.view(rows, length, both + self.groups, self.width).transpose(1, 2)
            turned = _rotate(mixed[:, :both], cos, sin)
            queries = turned[:, : self.heads]
            keys, values = self.slots.write(index, window, turned[:, self.heads :], mixed[:, both:])
            seen = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, enable_gqa=self.groups != self.heads
            )
            hidden = hidden + F.linear(seen.transpose(1, 2).reshape(rows, length, -1), out)
            gate, up = F.linear(F.rms_norm(hidden, self.shape, norm_two, self.epsilon), gate_up).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, down)
        hidden = hidden[:, 0] if length == 1 else hidden[torch.arange(rows, device=ids.device), last]
        return F.linear(F.rms_norm(hidden, self.shape, self.norm, self.epsilon), self.head)


def _rotate(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = vectors.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _get_body(model: Any) -> Any:
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal.model


def _get_head(model: Any) -> Any:
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal.lm_head


def _get_bias(module: Any) -> Tensor:
    linear = module.get_base_layer() if hasattr(module, "get_base_layer") else module
    bias: Tensor = linear.bias
    return bias


def _pack_layer(layer: Any) -> tuple[Tensor, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    mixers = (attention.q_proj, attention.k_proj, attention.v_proj)
    return (
        layer.input_layernorm.weight,
        torch.cat([compute_effective_weight(module) for module in mixers]),
        torch.cat([_get_bias(module) for module in mixers]),
        compute_effective_weight(attention.o_proj),
        layer.post_attention_layernorm.weight,
        torch.cat([compute_effective_weight(mlp.gate_proj), compute_effective_weight(mlp.up_proj)]),
        compute_effective_weight(mlp.down_proj),
    )
