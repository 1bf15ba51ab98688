"""The shapes of language models as plain numbers, so that sizes are known without torch and before a model is loaded.

A shape comes from the `config.json` of a model folder, from a table of the models that the papers use, or from a named size of
the tiny model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedagentgym.agents.model.architectures import ARCHITECTURES
from fedagentgym.agents.model.loading import SIZES
from fedagentgym.agents.model.store import find_model
from fedagentgym.base.errors import DataError, OptionError, join_names, unknown_name_error
from fedagentgym.base.files import parse_json, read_text

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a decoder, which determine its weights, caches and activations."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    vocabulary: int
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False

    def iter_linear(self) -> Iterator[tuple[str, int, int]]:
        """Yield the linear layers of one block: name, inputs, outputs."""
        queries, keys = self.heads * self.head_width, self.key_heads * self.head_width
        inputs = (self.hidden, self.hidden, self.hidden, queries, self.hidden, self.hidden, self.inner)
        outputs = (queries, keys, keys, self.hidden, self.inner, self.inner, self.hidden)
        yield from zip(LINEAR_LAYERS, inputs, outputs, strict=True)

    def count_parameters(self) -> int:
        """Return the number of weights of the model; a head that is tied to the embedding is not counted again."""
        block = sum(inputs * outputs for _, inputs, outputs in self.iter_linear()) + 2 * self.hidden
        block += sum(outputs for name, _, outputs in self.iter_linear() if self._has_bias(name))
        block += 2 * self.head_width if ARCHITECTURES[self.architecture].head_norms else 0
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * block + self.hidden

    def _has_bias(self, layer: str) -> bool:
        if layer in ("gate_proj", "up_proj", "down_proj"):
            return self.mlp_bias
        return self.attention_bias or (layer != "o_proj" and ARCHITECTURES[self.architecture].biases)

    def count_adapter_parameters(
        self,
        rank: int,
        targets: Sequence[str] | Literal["all-linear"],
        blocks: int | None = None,
        *,
        factors: Literal["both", "A", "B"] = "both",
    ) -> int:
        """Return the number of weights of a LoRA adapter in all blocks, or in `blocks` of them.

        Each adapted layer has two matrices of this rank; `factors` selects both or one of them."""
        chosen = self._choose_layers(targets)
        return (blocks or self.layers) * sum(
            rank * ((outputs if factors != "A" else 0) + (inputs if factors != "B" else 0))
            for _, inputs, outputs in chosen
        )

    def list_adapted(
        self, targets: Sequence[str] | Literal["all-linear"], blocks: int | None = None
    ) -> list[tuple[int, int]]:
        """Return the numbers of outputs and inputs of every layer with an adapter."""
        return [(outputs, inputs) for _, inputs, outputs in self._choose_layers(targets)] * (blocks or self.layers)

    def _choose_layers(self, targets: Sequence[str] | Literal["all-linear"]) -> list[tuple[str, int, int]]:
        if targets != "all-linear" and (unknown := sorted(set(targets) - set(LINEAR_LAYERS))):
            raise unknown_name_error("linear layer", unknown[0], LINEAR_LAYERS)
        return [layer for layer in self.iter_linear() if targets == "all-linear" or layer[0] in targets]

    def count_cache_values(self, tokens: int) -> int:
        """Return the number of cached numbers, keys and values, for this many tokens."""
        return 2 * self.layers * self.key_heads * self.head_width * tokens


def _qwen2(hidden: int, inner: int, layers: int, heads: int, key_heads: int, vocabulary: int) -> ModelShape:
    tied = vocabulary == 151_936
    return ModelShape("qwen2", hidden, layers, heads, key_heads, hidden // heads, inner, vocabulary, tied)


_QWEN_0_5B = _qwen2(896, 4_864, 24, 14, 2, 151_936)
_QWEN_1_5B = _qwen2(1_536, 8_960, 28, 12, 2, 151_936)
_QWEN_3B = _qwen2(2_048, 11_008, 36, 16, 2, 151_936)
_QWEN_7B = _qwen2(3_584, 18_944, 28, 28, 4, 152_064)
_SMOLLM2 = ModelShape("llama", 576, 30, 9, 3, 64, 1_536, 49_152, tied=True)
_LLAMA_3B = ModelShape("llama", 3_072, 28, 24, 8, 128, 8_192, 128_256, tied=True)
_LLAMA_1B = ModelShape("llama", 2_048, 16, 32, 8, 64, 8_192, 128_256, tied=True)

KNOWN_SHAPES: Mapping[str, ModelShape] = {
    "Qwen/Qwen2.5-0.5B": _QWEN_0_5B,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN_0_5B,
    "Qwen/Qwen2.5-1.5B": _QWEN_1_5B,
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN_1_5B,
    "Qwen/Qwen2.5-3B": _QWEN_3B,
    "Qwen/Qwen2.5-3B-Instruct": _QWEN_3B,
    "Qwen/Qwen2.5-7B": _QWEN_7B,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN_7B,
    "Qwen/Qwen2.5-Math-1.5B": _QWEN_1_5B,
    "Qwen/Qwen2.5-Math-1.5B-Instruct": _QWEN_1_5B,
    "Qwen/Qwen2.5-Math-7B": _QWEN_7B,
    "Qwen/Qwen2.5-Math-7B-Instruct": _QWEN_7B,
    "Qwen/Qwen3-0.6B": ModelShape("qwen3", 1_024, 28, 16, 8, 128, 3_072, 151_936, tied=True),
    "Qwen/Qwen3-1.7B": ModelShape("qwen3", 2_048, 28, 16, 8, 128, 6_144, 151_936, tied=True),
    "Qwen/Qwen3-4B": ModelShape("qwen3", 2_560, 36, 32, 8, 128, 9_728, 151_936, tied=True),
    "Qwen/Qwen3-4B-Instruct-2507": ModelShape("qwen3", 2_560, 36, 32, 8, 128, 9_728, 151_936, tied=True),
    "Qwen/Qwen3-8B": ModelShape("qwen3", 4_096, 36, 32, 8, 128, 12_288, 151_936, tied=False),
    "meta-llama/Llama-3.2-1B": _LLAMA_1B,
    "meta-llama/Llama-3.2-1B-Instruct": _LLAMA_1B,
    "meta-llama/Llama-3.2-3B": _LLAMA_3B,
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA_3B,
    "HuggingFaceTB/SmolLM2-135M-Instruct": _SMOLLM2,
    "smollm2": _SMOLLM2,
}
"""The models of the papers, and their smaller relatives, by hub id."""


def make_tiny_shape(size: str, vocabulary: int) -> ModelShape:
    """Return the shape of a tiny model (`agents/model/loading.py`) with a vocabulary of this many tokens."""
    if size not in SIZES:
        raise unknown_name_error("tiny model size", size, SIZES)
    hidden, layers, heads, inner = SIZES[size]
    return ModelShape("qwen2", hidden, layers, heads, heads, hidden // heads, inner, vocabulary, tied=True)


def find_shape(model: str) -> ModelShape:
    """Return the shape of a model folder, of a model that was added (`fedagentgym model add`), or of a known name or hub id."""
    if model and (folder := Path(model)).is_dir():
        return read_shape(folder)
    if (stored := find_model(model)) is not None:
        return read_shape(stored.folder)
    if model not in KNOWN_SHAPES:
        raise OptionError(
            f"the size of the model {model!r} is not known here: name a folder with its config.json, "
            f"or one of {join_names(KNOWN_SHAPES, 40)}"
        )
    return KNOWN_SHAPES[model]


def read_shape(folder: Path) -> ModelShape:
    """Return the shape that the `config.json` of a model folder declares."""
    path = folder / "config.json"
    declared = parse_json(read_text(path), str(path))
    if not isinstance(declared, dict) or declared.get("model_type") not in ARCHITECTURES:
        kind = declared.get("model_type") if isinstance(declared, dict) else None
        raise OptionError(f"{path}: sizes are known for the architectures {join_names(ARCHITECTURES)}, not {kind!r}")

    def read(name: str, default: int | None = None) -> int:
        value = declared.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"{path}: {name} must be a whole number above 0, not {value!r}")
        return value

    hidden, heads = read("hidden_size"), read("num_attention_heads")
    return ModelShape(
        declared["model_type"],
        hidden,
        read("num_hidden_layers"),
        heads,
        read("num_key_value_heads", heads),
        read("head_dim", ARCHITECTURES[declared["model_type"]].head_width or hidden // heads),
        read("intermediate_size"),
        read("vocab_size"),
        bool(declared.get("tie_word_embeddings", False)),
        bool(declared.get("attention_bias", False)),
        bool(declared.get("mlp_bias", False)),
    )
