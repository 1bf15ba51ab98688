"""Conversion of a GGUF file to an ordinary model folder: dequantized weights, and a tokenizer that splits text as in training.

`transformers` reads the weights. The tokenizer is built here, because `transformers` ignores how a GGUF file's tokenizer splits
text before it merges pairs: for a model that separates digits, two line ends before a number would become other tokens.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from fedagentgym.agents.model.loading import hush_transformers
from fedagentgym.base.errors import DataError, describe_error, join_names
from fedagentgym.base.imports import require

ARCHITECTURES = ("llama", "qwen2", "qwen3")
SPLITS = ("smollm", "qwen2")
"""Supported ways of splitting text before merges (`tokenizer.ggml.pre`)."""
_CONTROL_TOKEN, _ADDED_TOKEN = 3, 4
_NAMED_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into an existing folder: float32 weights, configuration and tokenizer."""
    gguf = require("gguf", "train")
    try:
        fields = {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}
    except (OSError, ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not a whole GGUF file: {describe_error(error, named=False)}") from error
    for key, known in (
        ("general.architecture", ARCHITECTURES),
        ("tokenizer.ggml.model", ("gpt2",)),
        ("tokenizer.ggml.pre", SPLITS),
    ):
        if fields.get(key) not in known:
            raise DataError(
                f"{file}: {key} is {fields.get(key)!r}, but only {join_names(known)} can be converted: use the model's original "
                "folder or hub id"
            )
    tokenizer = _build_tokenizer(fields, file)
    model = _read_model(file)
    generation = model.generation_config
    generation.pad_token_id, generation.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    with hush_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _read_model(file: Path) -> Any:
    """Load the weights dequantized, and remove the quantization settings, with which `transformers` 5 refuses to save a model.

    Standard error is suppressed, since `transformers` draws a progress bar there that no setting turns off.
    """
    torch, transformers = require("torch", "train"), require("transformers", "train")
    try:
        with hush_transformers(), contextlib.redirect_stderr(io.StringIO()):
            model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
                str(file.parent),
                gguf_file=file.name,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except Exception as error:
        raise DataError(f"cannot convert {file}: {describe_error(error, named=False)}") from error
    unread = sorted(str(one) for key in ("missing_keys", "mismatched_keys") for one in loaded[key])
    if unread:
        raise DataError(
            f"cannot convert {file}: its weights are not those that its settings ask for, for example {unread[0]}"
        )
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _build_tokenizer(fields: dict[str, Any], file: Path) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    transformers = require("transformers", "train")
    try:
        tokens, kinds = list(fields["tokenizer.ggml.tokens"]), list(fields["tokenizer.ggml.token_type"])
        merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
        named = {
            name: tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
            for name, key in _NAMED_TOKENS.items()
            if f"tokenizer.ggml.{key}_token_id" in fields
        }
        model = models.BPE({token: index for index, token in enumerate(tokens)}, merges)
    except Exception as error:
        raise DataError(f"{file}: the tokenizer is incomplete: {describe_error(error)}") from error
    tokenizer = Tokenizer(model)
    if fields["tokenizer.ggml.pre"] == "qwen2":
        original = transformers.Qwen2Tokenizer().backend_tokenizer
        tokenizer.normalizer, tokenizer.pre_tokenizer = original.normalizer, original.pre_tokenizer
    else:
        splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    for kind in (_CONTROL_TOKEN, _ADDED_TOKEN):
        added = [token for token, one in zip(tokens, kinds, strict=True) if one == kind]
        is_special = kind == _CONTROL_TOKEN
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=is_special) for token in added])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **named,
        chat_template=fields.get("tokenizer.chat_template"),
        model_max_length=fields[f"{fields['general.architecture']}.context_length"],
        clean_up_tokenization_spaces=False,
    )
