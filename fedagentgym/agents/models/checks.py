"""Whether a folder is a complete causal language model with its own tokenizer, checked without loading the weights."""

from __future__ import annotations

import re
from pathlib import Path

from fedagentgym.agents.engines.loading import check_folder, check_tokenizer, get_stop_ids, load_tokenizer
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
from fedagentgym.base.errors import DataError, describe_error
from fedagentgym.base.extras import require
from fedagentgym.base.files import read_json, read_text

_INDEX = "model.safetensors.index.json"
_STATED = re.compile(r"^license:[ \t]*['\"]?([\w.-]+)", re.MULTILINE)


def check_model_folder(folder: Path, where: str) -> None:
    """Refuse a folder whose settings, tokenizer or weights are missing, incomplete, or do not belong together."""
    torch, transformers = require("torch", "train"), require("transformers", "train")
    check_folder(folder)
    _check_weights(folder)
    tokenizer = load_tokenizer(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise DataError(f"{where} is not a causal language model: {describe_error(error, named=False)}") from error
    check_tokenizer(model, HuggingFaceTokenizer(tokenizer, get_stop_ids(model)), where)


def _check_weights(folder: Path) -> None:
    """Read the heads of all weight files, so that an incomplete or missing file is found before training."""
    safetensors = require("safetensors", "train")
    for file in sorted(folder.glob("*.safetensors")):
        try:
            safetensors.safe_open(file, "np").keys()
        except Exception as error:
            raise DataError(f"{file} is not a whole file of weights: {describe_error(error, named=False)}") from error
    if (folder / _INDEX).is_file():
        index = read_json(folder / _INDEX)
        listed = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(listed, dict):
            raise DataError(f"{folder / _INDEX} does not say which file holds which weight")
        missing = sorted({str(name) for name in listed.values() if not (folder / str(name)).is_file()})
        if missing:
            raise DataError(f"{folder} lacks {missing[0]}, which {_INDEX} names")


def find_stated_licence(folder: Path) -> str | None:
    """Return the licence at the head of a folder's README, as pages of the hub have it, or its licence file's name."""
    if (folder / "README.md").is_file():
        head = read_text(folder / "README.md").partition("\n---")[0]
        stated = _STATED.search(head)
        if stated is not None:
            return stated.group(1)
    return next((f"see {file.name}" for file in sorted(folder.glob("LICEN[CS]E*")) if file.is_file()), None)
