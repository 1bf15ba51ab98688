"""A Llama or Qwen of two layers and its GGUF file, in the layout that llama.cpp's converter writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen3Config

from .models import sharpened

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "Ġ Ġ", "Ċ Ċ", "Ġ a")
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OTHER_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def list_tokens() -> list[str]:
    merged = [pair.replace(" ", "") for pair in MERGES]
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *merged]


def make_llama(seed: int = 1) -> Any:
    """Grouped attention, a tied head, and weights of uneven size."""
    config = LlamaConfig(
        vocab_size=len(list_tokens()),
        **SHAPE,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 5000.0, "rope_type": "default"},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return sharpened(LlamaForCausalLM(config), seed).eval()


def make_qwen(kind: str, head_dim: int = 128) -> Any:
    """A Qwen2 (queries with a bias) or a Qwen3 (queries and keys normalized)."""
    config = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}[kind](
        vocab_size=len(list_tokens()),
        **SHAPE,
        **({"head_dim": head_dim} if kind == "qwen3" else {}),
        rope_parameters={"rope_theta": 5000.0, "rope_type": "default"},
    )
    return sharpened(AutoModelForCausalLM.from_config(config), 1).eval()


def write_gguf(
    model: Any, file: Path, *, split: str = "smollm", quantized: bool = False, architecture: str = "llama"
) -> None:
    """Write a model; `quantized`: the matrices of the layers as Q8_0, and the model takes over what is left of them."""
    config, writer = model.config, gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if architecture == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    if architecture == "qwen3":
        writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = list_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(list(MERGES))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            _add_weight(writer, config, name, weight, quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_weight(writer: Any, config: Any, name: str, weight: torch.Tensor, quantized: bool) -> None:
    values = weight.numpy()
    if name in _OTHER_NAMES:
        writer.add_tensor(_OTHER_NAMES[name], values)
        return
    _, _, layer, part = name.split(".", 3)
    part, _, kind_of_value = part.rpartition(".")
    target = f"blk.{layer}.{_LAYER_NAMES[part]}.{kind_of_value}"
    if quantized and values.ndim == 2:
        kind = gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quantize(_interleave(values, part, config), kind)
        weight.copy_(torch.from_numpy(_separate(gguf.dequantize(packed, kind), part, config)))
        writer.add_tensor(target, packed, raw_dtype=kind)
    else:
        writer.add_tensor(target, _interleave(values, part, config))


def _heads(part: str, config: Any) -> int:
    return {"q": config.num_attention_heads, "k": config.num_key_value_heads}.get(part.rpartition(".")[2][0], 0)


def _interleave(values: np.ndarray[Any, Any], part: str, config: Any) -> np.ndarray[Any, Any]:
    """llama.cpp turns neighbouring numbers of a Llama's queries and keys, transformers turns the halves of a head."""
    if config.model_type != "llama" or values.ndim != 2 or part not in ("self_attn.q_proj", "self_attn.k_proj"):
        return values
    rows, columns = values.shape
    return np.ascontiguousarray(
        values.reshape(_heads(part, config), 2, -1, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def _separate(values: np.ndarray[Any, Any], part: str, config: Any) -> np.ndarray[Any, Any]:
    if part not in ("self_attn.q_proj", "self_attn.k_proj"):
        return values
    rows, columns = values.shape
    return np.ascontiguousarray(
        values.reshape(_heads(part, config), -1, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )
