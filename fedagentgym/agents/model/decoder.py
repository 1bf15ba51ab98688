"""A decoder as a plain torch module with the parameter names of `transformers`, and its folder: config.json and safetensors.

The modules only hold weights; the computation is in `layer`, `packed` and `cached`. A folder that `Decoder.save` writes is an
ordinary model folder for `transformers`, and `Decoder.read` reads folders of `transformers` with one or several weight files.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedagentgym.agents.model.architectures import ARCHITECTURES, DecoderConfig
from fedagentgym.agents.model.packed import compute_table_hidden
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json
from fedagentgym.base.imports import require

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class BodyOutput(NamedTuple):
    last_hidden_state: Tensor


class DecoderOutput(NamedTuple):
    logits: Tensor


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = epsilon


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        architecture = ARCHITECTURES[config.model_type]
        hidden, self.head_dim = config.hidden_size, config.head_dim
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        bias = architecture.biases or config.attention_bias
        self.q_proj = nn.Linear(hidden, queries, bias=bias)
        self.k_proj = nn.Linear(hidden, keys, bias=bias)
        self.v_proj = nn.Linear(hidden, keys, bias=bias)
        self.o_proj = nn.Linear(queries, hidden, bias=config.attention_bias)
        if architecture.head_norms:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)


class MLP(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class RotaryEmbedding(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        frequencies, self.attention_scaling = compute_frequencies(config)
        self.inv_freq = nn.Buffer(frequencies, persistent=False)


class Body(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def forward(self, input_ids: Tensor) -> BodyOutput:
        """Read rows of one length [rows, length], which may be padded on the right."""
        return BodyOutput(compute_table_hidden(self, input_ids))


class Decoder(nn.Module):
    """A causal language model of one of the `ARCHITECTURES`.

    Its weights are drawn as `transformers` draws them: the same bits for the same configuration and state of torch's generator.

    Args:
        config: The contents of its `config.json`.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        _draw_weights(self.model, config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        _draw_weights(self.lm_head, config)
        self._tie()

    def _tie(self) -> None:
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor) -> DecoderOutput:
        """Return the logits of all tokens of rows of one length [rows, length], which may be padded on the right."""
        return DecoderOutput(self.lm_head(self.model(input_ids).last_hidden_state))

    def get_decoder(self) -> Body:
        return self.model

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    @classmethod
    def read(cls, folder: Path, config: DecoderConfig) -> Decoder:
        """Read the model of a folder in single precision. Its weights are in one file, or in the files that an index names."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        with torch.random.fork_rng(devices=[]):
            model = cls(config)
        names = [WEIGHTS]
        if (folder / INDEX).is_file():
            index = read_json(folder / INDEX)
            listed = index.get("weight_map") if isinstance(index, dict) else None
            names = sorted(set(listed.values())) if isinstance(listed, dict) else []
        weights: dict[str, Tensor] = {}
        for file in names:
            try:
                weights |= {name: weight.float() for name, weight in load_file(folder / file).items()}
            except (OSError, SafetensorError) as error:
                raise DataError(f"cannot load the model {folder}: {file}: {error}") from None
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights.get("model.embed_tokens.weight", torch.zeros(0))
        try:
            model.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            first, second, *_ = [*map(str.strip, str(error).splitlines()), ""]
            raise DataError(f"cannot load the model {folder}: {second or first}") from None
        model._tie()
        return model.eval()

    def to_transformers(self) -> Any:
        """Return a `transformers` model with the same weights, for adapters, GPUs and other libraries."""
        transformers = require("transformers", "train")
        config = transformers.AutoConfig.for_model(**asdict(self.config))
        with torch.random.fork_rng(devices=[]):
            made = transformers.AutoModelForCausalLM.from_config(config).to(self.device, self.dtype)
        made.load_state_dict(self.state_dict())
        made.generation_config.eos_token_id = self.config.eos_token_id
        made.generation_config.pad_token_id = self.config.pad_token_id
        return made.eval()

    def save(self, folder: Path) -> None:
        """Write config.json, generation_config.json and model.safetensors."""
        from safetensors.torch import save_file

        name = f"{self.config.model_type.capitalize()}ForCausalLM"
        stops = {"eos_token_id": self.config.eos_token_id, "pad_token_id": self.config.pad_token_id}
        declared = {
            "architectures": [name],
            "dtype": str(self.dtype).removeprefix("torch."),
            "bos_token_id": None,
            **asdict(self.config),
        }
        for file, content in (("config.json", declared), ("generation_config.json", stops)):
            (folder / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}
        if self.config.tie_word_embeddings:
            del weights["lm_head.weight"]
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def read_config(folder: Path) -> DecoderConfig | None:
    """Return the configuration of a model folder; None if this package does not implement the model.

    The tokens that end a reply are those of `generation_config.json`, if there is one.
    """
    declared = read_json(folder / "config.json")
    place = folder / "generation_config.json"
    generation = read_json(place) if place.is_file() else {}
    if not isinstance(declared, dict) or not isinstance(generation, dict):
        return None
    stops = {name: generation[name] for name in ("eos_token_id", "pad_token_id") if generation.get(name) is not None}
    try:
        return DecoderConfig.read({**declared, **stops})
    except (KeyError, TypeError, AttributeError):
        return None


@torch.no_grad()
def _draw_weights(module: nn.Module, config: DecoderConfig) -> None:
    """Draw matrices from a normal distribution; biases and the padding's embedding are 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            part.weight.normal_(0.0, config.initializer_range)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.zero_()
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            part.weight[part.padding_idx].zero_()


# ---- rotary positions ----------------------------------------------------------------------------------------------------


def compute_frequencies(config: DecoderConfig) -> tuple[Tensor, float]:
    """Return the angle by which each pair of dimensions is rotated per position, and the scale of the rotated vectors."""
    rope, width = config.rope_parameters, config.head_dim
    plain = 1.0 / (rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width))
    if rope["rope_type"] == "linear":
        return plain / rope["factor"], 1.0
    if rope["rope_type"] == "llama3":
        # slow rotations are slowed down by a factor, fast ones are kept, and those in between are blended
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] / (2 * math.pi / plain)
        share = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - share) * plain / rope["factor"] + share * plain, 1.0
    if rope["rope_type"] != "yarn":
        return plain, 1.0
    # YaRN blends linearly in the index of the pair, and has a scale that sharpens attention
    context = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or config.max_position_embeddings / context
    low, high = (
        width * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))
        for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
    )
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    pairs = torch.arange(width // 2, dtype=torch.float32, device="cpu")
    share = 1 - ((pairs - low) / (high - low or 0.001)).clamp(0, 1)
    scale, weights = rope.get("attention_factor"), (1.0, 0.0)
    if scale is None:
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            weights = rope["mscale"], rope["mscale_all_dim"]
        above, below = (1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0 for weight in weights)
        scale = above / below
    return plain / factor * (1 - share) + plain * share, float(scale)
