"""Small random models that answer: much of their vocabulary are whole replies, so that what they say is often an answer.

Two kinds, which share neither architecture nor tokens: `qwen2` reads words, `llama` reads bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

END = "<|end|>"
BARE = tuple(f"<answer> {number} </answer>" for number in range(20))
LAID_OUT = tuple(f"<think> so </think> <answer> {number} </answer>" for number in range(20))
ARCHITECTURES: dict[str, Any] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, (*BARE, *LAID_OUT)),
    "llama": (LlamaConfig, LlamaForCausalLM, BARE[:10]),
}


def make_fixed_model(
    folder: Path, kind: str, replies: tuple[str, ...] = (), sharpness: float = 3.0, seed: int = 0
) -> str:
    """Write a model folder; returns its path. `replies` are what it says, in place of answers; the greater
    `sharpness`, the fewer of them."""
    config_class, model_class, answers = ARCHITECTURES[kind]
    replies = replies or answers
    tokenizer = make_tokenizer(replies, merges=kind == "qwen2")
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2 if kind == "qwen2" else 1,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[: len(tokenizer) - len(replies)] *= 0.1
        head[-len(replies) :] *= sharpness
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_tokenizer(replies: tuple[str, ...], merges: bool) -> PreTrainedTokenizerFast:
    """Bytes, some of which are merged to longer pieces, and whole replies."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n")] if merges else []
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, *map("".join, pairs)])}
    raw = Tokenizer(models.BPE(vocabulary, pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=END, pad_token=END)
    tokenizer.add_tokens(list(replies))
    return tokenizer
