"""The architectures that are written out in this package, the configuration of their models, and the tiny model; without torch.

The tiny model is Qwen2's architecture at 0.1 to 2 million parameters, for machines and tests without a download. It is untrained
here; `fedagentgym pretrain tiny` teaches it an environment's words by imitation of the expert. Nothing of `transformers` is
imported: a tiny model is a plain module (`agents/model/decoder.py`), and its folder is read and written by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fedagentgym.agents.text.tokens import TextTokenizer, make_word_tokenizer
from fedagentgym.base.errors import require_type, unknown_name_error
from fedagentgym.base.imports import require

if TYPE_CHECKING:
    from fedagentgym.agents.model.decoder import Decoder


class Architecture(NamedTuple):
    """An architecture's additions to the common layer: norm, attention with rotary positions, sum, norm, gated SiLU, sum.

    `biases` are those of queries, keys and values, `head_norms` those of every query and key head; `head_width` and `window`
    are what `config.json` may leave out.
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
"""By `model_type`."""
ROPE_TYPES = frozenset({"default", "dynamic", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend on the position alone, as long as a text fits the model's context."""


def fits(config: Any) -> bool:
    """Return whether the passes of this package compute what a model with this configuration computes."""
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
    """A `config.json` of one of the architectures; the names are those of the file, and so of `transformers`."""

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
        """Return the configuration that a file declares, with its defaults; None if it does not fit."""
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
        """Return itself, as the configuration of a model that reads nothing but text."""
        return self


class TinySize(NamedTuple):
    hidden: int
    layers: int
    heads: int
    inner: int


SIZES = {
    "0.1m": TinySize(64, 2, 4, 128),
    "1m": TinySize(128, 4, 4, 352),
    "2m": TinySize(192, 4, 6, 512),
    "10m": TinySize(384, 6, 6, 1024),
    "vllm": TinySize(128, 2, 2, 320),
}
"""Named sizes, without the embeddings of the words; ``vllm`` has heads of width 64, which vLLM can load."""


def make_tiny_model(
    vocabulary: Iterable[str], size: str = "0.1m", context_length: int = 4096, seed: int = 0
) -> tuple[Decoder, TextTokenizer]:
    """Make an untrained language model with a vocabulary of words, and its tokenizer; the same bits for the same arguments.

    Args:
        vocabulary: Texts whose words become tokens; other text is spelled.
        size: `0.1m`, `1m`, `2m`, `10m` (parameters besides the words') or `vllm`.
        context_length: Maximum number of tokens.
        seed: Seed of the weights.

    Returns:
        The model, a `torch.nn.Module`, and the tokenizer: the arguments of `TorchPolicy`.

    Raises:
        UnknownNameError: If there is no such size.
        MissingExtraError: If torch is not installed.

    Examples:
        >>> model, tokenizer = make_tiny_model(["go to fridge"])
        >>> tokenizer.decode(tokenizer.encode("go to fridge 12!"))
        'go to fridge 12!'
    """
    torch = require("torch", "train")
    from fedagentgym.agents.model.decoder import Decoder

    require_type("a vocabulary is a list of texts", vocabulary, Iterable)
    if size not in SIZES:
        raise unknown_name_error("tiny model size", size, SIZES)
    hidden, layers, heads, inner = SIZES[size]
    tokenizer = make_word_tokenizer(vocabulary, context_length)
    config = DecoderConfig(
        model_type="qwen2",
        vocab_size=tokenizer.size,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=context_length,
        rope_parameters={"rope_theta": 10_000.0, "rope_type": "default"},
        tie_word_embeddings=True,
        eos_token_id=sorted(tokenizer.stop_ids),
        pad_token_id=tokenizer.pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decoder(config)
    return model.eval(), tokenizer


def read_tiny_model(folder: Path) -> tuple[Decoder, TextTokenizer] | None:
    """Read a model and its tokenizer from a folder; None if it takes `transformers` to read one of them."""
    require("torch", "train")
    from fedagentgym.agents.model.decoder import Decoder, read_config

    config = read_config(folder)
    if config is None or not any(folder.glob("model*.safetensors")):
        return None
    stops = [config.eos_token_id] if isinstance(config.eos_token_id, int) else config.eos_token_id
    tokenizer = TextTokenizer.read(folder, stops or ())
    return None if tokenizer is None else (Decoder.read(folder, config), tokenizer)
