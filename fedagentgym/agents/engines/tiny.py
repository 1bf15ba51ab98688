"""The tiny model: Qwen2's architecture at 0.1 to 2 million parameters, for machines and tests without a download.

It is untrained here; ``fedagentgym pretrain tiny`` teaches it an environment's words by imitation of the expert.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
from fedagentgym.agents.text.words import CLOSING_TAGS, build_tokenizer
from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.extras import require


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
) -> tuple[Any, HuggingFaceTokenizer]:
    """Make an untrained model and its tokenizer, the same bits for the same arguments.

    >>> model, tokenizer = make_tiny_model(["go to fridge"])
    >>> tokenizer.decode(tokenizer.encode("go to fridge 12!"))
    'go to fridge 12!'
    """
    torch, transformers = require("torch", "train"), require("transformers", "train")
    if size not in SIZES:
        raise unknown_name_error("tiny model size", size, SIZES)
    hidden, layers, heads, inner = SIZES[size]
    hf_tokenizer = build_tokenizer(vocabulary, context_length)
    stops = hf_tokenizer.convert_tokens_to_ids([hf_tokenizer.eos_token, *CLOSING_TAGS])
    config = transformers.Qwen2Config(
        vocab_size=len(hf_tokenizer),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        pad_token_id=hf_tokenizer.pad_token_id,
        eos_token_id=stops,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = stops
    model.generation_config.pad_token_id = hf_tokenizer.pad_token_id
    model.eval()
    return model, HuggingFaceTokenizer(hf_tokenizer, stops)
