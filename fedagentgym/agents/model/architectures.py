"""The architectures that this package implements, and the configuration of their models. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, Self


class Architecture(NamedTuple):
    """An architecture's additions to the common layer: norm, attention with rotary positions, sum, norm, gated SiLU, sum.

    `biases`: queries, keys and values have biases. `head_norms`: every query and key head has a norm. `head_width` and `window`
    are defaults for a `config.json` without these keys.
    """

    biases: bool = False
    head_norms: bool = False
    head_width: int | None = None
    window: int | None = None


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(window=4096),
    "qwen2": Architecture(biases=True),
    "qwen3": Architecture(head_norms=True, head_width=128),
}
"""The implemented architectures by `model_type`."""
ROPE_TYPES = frozenset({"default", "dynamic", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend only on the position, for texts that fit into the model's context."""


def fits(config: Any) -> bool:
    """Return whether this package implements the forward pass of a model with this configuration."""
    architecture = ARCHITECTURES.get(getattr(config, "model_type", ""))
    if architecture is None:
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", architecture.window) if kinds is None else "sliding_attention" in kinds
    return (
        getattr(config, "hidden_act", "silu") == "silu"
        and rope.get("rope_type", "default") in ROPE_TYPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and not getattr(config, "attention_dropout", 0.0)
        and not window
    )


@dataclass(frozen=True)
class DecoderConfig:
    """The `config.json` of a model with one of the architectures. The fields have the names of the file's keys."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_parameters: Mapping[str, Any]
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    hidden_act: str = "silu"
    attention_dropout: float = 0.0
    sliding_window: None = None

    @classmethod
    def read(cls, declared: Mapping[str, Any]) -> Self | None:
        """Return the configuration that a `config.json` declares, with defaults for missing keys; None if it does not fit."""
        rope = {"rope_theta": declared.get("rope_theta", 10_000.0), "rope_type": "default"}
        rope |= declared.get("rope_scaling") or {}
        rope |= declared.get("rope_parameters") or {}
        if not fits(SimpleNamespace(**{**declared, "rope_parameters": rope})):
            return None
        known = {name: declared[name] for name in cls.__dataclass_fields__ if declared.get(name) is not None}
        heads = declared["num_attention_heads"]
        width = ARCHITECTURES[declared["model_type"]].head_width or declared["hidden_size"] // heads
        return cls(**{"num_key_value_heads": heads, "head_dim": width, **known, "rope_parameters": rope})

    def get_text_config(self) -> Self:
        """Return this configuration, since the model reads only text."""
        return self
