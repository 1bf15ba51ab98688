"""The tiny model: Qwen2's architecture at 0.1 to 2 million parameters, for machines and tests without a download.

It is untrained here; ``fedagentgym pretrain tiny`` teaches it an environment's words by imitation of the expert. Nothing of
`transformers` is imported: a tiny model is a plain module (`agents/model/decoder.py`), and its folder is read and written by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedagentgym.agents.model.architectures import DecoderConfig
from fedagentgym.agents.text.tokens import TextTokenizer, make_word_tokenizer
from fedagentgym.base.errors import require_type, unknown_name_error
from fedagentgym.base.imports import require

if TYPE_CHECKING:
    from fedagentgym.agents.model.decoder import Decoder


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
