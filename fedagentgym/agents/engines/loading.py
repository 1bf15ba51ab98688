"""Loading a model and its tokenizer from a folder or the hub, with one clear sentence for every error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.extras import require
from fedagentgym.base.files import read_text
from fedagentgym.base.parsing import parse_json
from fedagentgym.base.process import check_bfloat16


class LoadedModel(NamedTuple):
    model: Any
    tokenizer: HuggingFaceTokenizer


def choose_device(name: str) -> Any:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a torch device that exists."""
    torch = require("torch", "train")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device {name!r} was requested, but torch finds no CUDA GPU here: use device: cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"device {name!r} was requested, but there are only {torch.cuda.device_count()} GPUs")
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    return device


def choose_dtype(adapter: bool, device: Any) -> str:
    """Choose the stored dtype of weights if none is set.

    Trained weights are float32, since small steps vanish in bfloat16. A frozen base under an adapter takes half the memory in
    bfloat16, but a processor without such products converts every number before it multiplies.
    """
    if adapter and (device.type == "cuda" or check_bfloat16().present):
        return "bfloat16"
    return "float32"


def load_tokenizer(source: str | Path) -> Any:
    """Load the Hugging Face tokenizer of a folder or hub id."""
    transformers = require("transformers", "train")
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise DataError(f"{folder} holds no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)}")
    kind = transformers.PreTrainedTokenizerFast if _is_generic(folder) else transformers.AutoTokenizer
    return _try_load(f"the tokenizer of {source}", lambda: kind.from_pretrained(str(source)))


def _is_generic(folder: Path) -> bool:
    """Return whether a folder's tokenizer is completely in its tokenizer.json.

    ``AutoTokenizer`` would go by the architecture and put Qwen's own pre-tokenizer into a tiny model's folder, without a word.
    """
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return False
    declared = parse_json(read_text(config), str(config))
    if not isinstance(declared, dict):
        raise DataError(f"{config} does not hold a JSON object")
    return declared.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_model(source: str | Path, dtype: str, device: Any) -> LoadedModel:
    """Load a causal language model and its tokenizer, and check that they belong together."""
    torch, transformers = require("torch", "train"), require("transformers", "train")
    if str(source).startswith("~"):
        source = Path(source).expanduser()
    check_folder(source)
    tokenizer = load_tokenizer(source)
    model = _try_load(
        f"the model {source}",
        lambda: transformers.AutoModelForCausalLM.from_pretrained(str(source), dtype=getattr(torch, dtype)),
    )
    seam = HuggingFaceTokenizer(tokenizer, get_stop_ids(model))
    check_tokenizer(model, seam, str(source))
    model.eval()
    return LoadedModel(model.to(device), seam)


def get_stop_ids(model: Any) -> frozenset[int]:
    """Return the ids that end a reply according to the model's generation settings."""
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if declared is None:
        declared = getattr(model.config, "eos_token_id", None)
    if declared is None:
        return frozenset()
    return frozenset([declared] if isinstance(declared, int) else declared)


def check_tokenizer(model: Any, tokenizer: HuggingFaceTokenizer, where: str) -> None:
    """Refuse a tokenizer with tokens that the model does not have."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    if tokenizer.size > rows:
        raise DataError(
            f"{where}: the tokenizer knows {tokenizer.size} tokens, the model only {rows}: this is another model's tokenizer"
        )
    beyond = [token for token in tokenizer.stop_ids if token >= rows]
    if beyond or not tokenizer.stop_ids:
        found = (
            f"stop token {beyond[0]} is not among the model's {rows} tokens" if beyond else "no end token is declared"
        )
        raise DataError(f"{where}: {found}: the tokenizer and the model do not belong together")


def check_folder(source: str | Path) -> None:
    folder = Path(source)
    looks_local = folder.is_absolute() or str(source).startswith((".", "~")) or len(folder.parts) > 2
    if not folder.exists():
        if looks_local:
            raise DataError(f"there is no model folder {folder}")
        return
    if not folder.is_dir():
        raise DataError(f"{folder} is a file; a model is a folder with config.json, weights and a tokenizer")
    config = folder / "config.json"
    if not config.is_file():
        raise DataError(f"{folder} is not a model folder: config.json is missing")
    declared = parse_json(read_text(config), str(config))
    if not isinstance(declared, dict) or "model_type" not in declared:
        raise DataError(f"{config} does not say which model it is: the key 'model_type' is missing")
    if not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
        raise DataError(f"{folder} holds no weights: model.safetensors is missing")


@contextlib.contextmanager
def disable_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars over ours; its own setting is put back."""
    logging = require("transformers.utils.logging", "train")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _try_load(what: str, load: Any) -> Any:
    """Run a loader of transformers; whatever it raises becomes one sentence."""
    try:
        with disable_progress_bars():
            return load()
    except FedAgentGymError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:300] if lines else type(error).__name__
        raise DataError(
            f"cannot load {what}: {reason} (a folder or a hub id is expected; a hub id needs a network or a filled cache)"
        ) from error
