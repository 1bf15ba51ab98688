"""The papers' models with random weights and two narrow layers: their own architectures, tokenizer classes and end tokens.

Much of the vocabulary are whole replies, and the weights make these likely: answers then differ, some are right, and a step on
them changes the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fedagentgym.agents.model.shapes import KNOWN_SHAPES, ModelShape
from fedagentgym.registration import ENVIRONMENTS

PIECES = 500
WORLDS = ("WebShop-v0", "ALFWorld-v0", "Math-v0", "QA-v0", "Code-v0")
ACTIONS = (
    *("search[red lamp]", "search[lamp]", "search[garden lamps]", "click[buy now]", "click[next >]"),
    *(f"click[b{number:09d}]" for number in range(1, 4)),
    *("look", "inventory", *(f"go to {place} 1" for place in ("desk", "shelf", "cabinet", "fridge"))),
)
ANSWERS = (*"345", "A", "B", "Oslo", "Rome", "```python\ndef f(a):\n    return a + 1\n```")
TASKS = tuple((one, other) for one in range(1, 6) for other in range(1, 6))
_PLAIN = (
    *(f"<think> so </think> <answer> {answer} </answer>" for answer in ANSWERS),
    *(f"<answer> {answer} </answer>" for answer in ANSWERS[:3]),
    *(f"so it is \\boxed{{{answer}}}" for answer in ANSWERS[:5]),
    *(f"<think> so </think> <answer> {total} </answer>" for total in (2, 6, 7, 8, 9, 10)),
)
REPLIES = {
    "actions": (
        *(f"<think> so </think><action>{action}</action>" for action in ACTIONS),
        *(f"<action>{action}</action>" for action in ACTIONS[::3]),
    ),
    "answers": _PLAIN,
    "letters": tuple(
        f"{front}<answer> {letter} </answer>" for front in ("", "<think> so </think> ") for letter in "ABCD"
    ),
    "sums": (*(f"<think> so </think> <answer> {total} </answer>" for total in (4, 5, 6)), "so it is \\boxed{5}"),
    "problems": (
        *_PLAIN,
        *(f" What is {a} + {b}? </problem> <think> so </think> <answer> {a + b} </answer>" for a, b in TASKS),
    ),
}
"""Replies in environments that take commands, where whole replies are graded, where letters are,
where experts must agree with the server now and then, and where problems are written."""
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
LLAMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
DIGITS_AND_WORDS = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*\p{L}+|\s+"


def make_model(hub_id: str, said: str, folder: Path) -> Path:
    """Write the folder of a small random model of this kind, which says one kind of `REPLIES`."""
    replies = REPLIES[said]
    shape = KNOWN_SHAPES[hub_id]
    tokenizer = make_llama_tokenizer(replies) if shape.architecture == "llama" else make_qwen_tokenizer(hub_id, replies)
    config = make_config(shape, len(tokenizer))
    config.eos_token_id = tokenizer.eos_token_id
    with torch.random.fork_rng():
        torch.manual_seed(len(hub_id))
        model = transformers.AutoModelForCausalLM.from_config(config)
    make_replies_likely(model, tokenizer, replies)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_config(shape: ModelShape, vocabulary: int) -> Any:
    """The architecture of a shape at a small size; what is no size is as published."""
    kind = {"qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "llama": "LlamaConfig"}[shape.architecture]
    scaled = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope: dict[str, Any] = {"rope_theta": 500_000.0 if shape.architecture == "llama" else 1_000_000.0}
    if shape.architecture == "llama":
        rope |= {**scaled, "original_max_position_embeddings": 8192}
    return getattr(transformers, kind)(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16 if shape.architecture == "qwen3" else 8,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", **rope},
        rms_norm_eps=1e-6,
        tie_word_embeddings=shape.tied,
        initializer_range=0.2,
    )


def make_replies_likely(model: Any, tokenizer: Any, replies: tuple[str, ...]) -> None:
    """Give replies and the end token long rows in the output layer: one of them, at random, is what mostly comes next."""
    rows = [*tokenizer.convert_tokens_to_ids(list(replies)), tokenizer.eos_token_id]
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight *= 0.2
        weight[rows] *= 12.0


def make_qwen_tokenizer(hub_id: str, replies: tuple[str, ...]) -> Any:
    """A `Qwen2Tokenizer`, with the end token of a base or of an instructed model."""
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    instructed = "Instruct" in hub_id or "Qwen3" in hub_id
    end = "<|im_end|>" if instructed else "<|endoftext|>"
    vocabulary, merges = train_pieces(PRETOKENIZE_REGEX)
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges, eos_token=end, pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHAT
    tokenizer.add_tokens(list(replies))
    return tokenizer


def make_llama_tokenizer(replies: tuple[str, ...]) -> Any:
    """A tokenizer as Llama 3's: generic class, a token that begins every text, and no padding token."""
    vocabulary, merges = train_pieces(DIGITS_AND_WORDS)
    raw = Tokenizer(models.BPE(vocabulary, merges))
    raw.pre_tokenizer = split_by(DIGITS_AND_WORDS)
    raw.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start_header_id|>", "<|end_header_id|>"]})
    tokenizer.chat_template = LLAMA_CHAT
    tokenizer.add_tokens(list(replies))
    return tokenizer


def train_pieces(pattern: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The byte pairs of what the worlds say of themselves."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = split_by(pattern)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([text for text in read_worlds() for _ in range(3)], trainer)
    trained = json.loads(raw.to_str())["model"]
    return trained["vocab"], [tuple(pair) for pair in trained["merges"]]


def split_by(pattern: str) -> Any:
    from tokenizers import Regex

    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def read_worlds() -> list[str]:
    """The texts of which prompts are made."""
    worlds = [ENVIRONMENTS.get(f"fedagentgym/{name}") for name in WORLDS]
    return [text for world in worlds for text in (world.role, world.action_help)]
