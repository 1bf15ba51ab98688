"""Loads a model and its tokenizer from this machine, and chooses device, dtype and threads.

A hub id is looked up in the cache of the hub's own library: nothing is downloaded here (`fedagentgym model add` does that), and
no code that comes with a model is run. Errors are one sentence each.

The tiny model has Qwen2's architecture with 0.1 to 10 million parameters, and needs no download. It is made untrained here;
`fedagentgym pretrain tiny` trains it to imitate the expert of an environment. It is a plain module without `transformers`
(`agents/model/decoder.py`), which reads and writes its own folder.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedagentgym.agents.model.architectures import DecoderConfig
from fedagentgym.agents.text.tokens import (
    HuggingFaceTokenizer,
    TextTokenizer,
    make_word_tokenizer,
    read_generic_config,
    try_tokenizer,
)
from fedagentgym.base.errors import (
    DataError,
    FedAgentGymError,
    OptionError,
    describe_error,
    require_type,
    unknown_name_error,
)
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import format_path, read_json
from fedagentgym.base.imports import require
from fedagentgym.base.process import check_bfloat16, count_usable_cores
from fedagentgym.base.progress import show_progress
from fedagentgym.base.rounding import count_things

if TYPE_CHECKING:
    from fedagentgym.agents.model.decoder import Decoder

Threads = int | Literal["auto"] | None
"""A number of threads, `auto` for all cores that this process may use, or None for one thread."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_MAX_NUMBERS_PER_BYTE = 16
"""The most parameters that a configuration may declare per byte of weights."""
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Arguments that forbid downloads and code from a model folder; without them, transformers may ask at the terminal."""


class LoadedModel(NamedTuple):
    model: Any
    tokenizer: TextTokenizer


def choose_device(name: str) -> Any:
    """Turn `auto`, `cpu`, `cuda` or `cuda:N` into a torch device that exists."""
    torch = require("torch", "train")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise OptionError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device {name!r} was requested, but torch finds no CUDA GPU here: use device: cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = count_things(torch.cuda.device_count(), "GPU")
        raise OptionError(f"device {name!r} was requested, but this machine has {there}")
    return device


def choose_dtype(adapter: bool, device: Any) -> str:
    """Choose the stored dtype of weights if none is set.

    Trained weights are float32, since small steps vanish in bfloat16. A frozen base under an adapter is bfloat16, which halves
    its memory, except on a CPU without bfloat16 products, which would convert every number before it multiplies.
    """
    if adapter and (device.type == "cuda" or check_bfloat16().present):
        return "bfloat16"
    return "float32"


def set_threads(wanted: Threads) -> None:
    """Let torch compute with this many threads from now on, in this process.

    The default is one thread. Sums are then taken in one order, so that every worker gives the same bits, and several workers do
    not compete for the cores. A single big model gains from more threads, but the last bits then depend on their number.
    """
    require("torch", "train").set_num_threads(count_usable_cores() if wanted == "auto" else wanted or 1)


@contextlib.contextmanager
def use_threads(wanted: Threads) -> Iterator[None]:
    """Compute with this many threads, and restore the former number afterwards."""
    torch = require("torch", "train")
    before = torch.get_num_threads()
    set_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def find_files(source: str | Path) -> Path:
    """Return the folder of a model: the named folder, or for a hub id its folder in the cache of the hub's library."""
    if str(source).startswith("~"):
        source = Path(source).expanduser()
    check_folder(source)
    if Path(source).is_dir():
        return Path(source)
    hub = require("huggingface_hub", "train")
    try:
        return Path(hub.snapshot_download(str(source), local_files_only=True))
    except (OSError, ValueError):
        raise DataError(
            f"the model {source} is not here: get it with"
            f" `fedagentgym model add {quote_word(source)}`, or name a model folder"
        ) from None


def load_tokenizer(source: str | Path) -> Any:
    """Load the Hugging Face tokenizer of a folder or hub id."""
    transformers = require("transformers", "train")
    folder = find_files(source)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise DataError(f"{folder} holds no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)}")
    generic = read_generic_config(folder) is not None
    kind = transformers.PreTrainedTokenizerFast if generic else transformers.AutoTokenizer
    try_tokenizer(folder)
    return _try_load(f"the tokenizer of {source}", lambda: kind.from_pretrained(str(folder), **_LOCAL))


def load_model(source: str | Path, dtype: str, device: Any, *, plain: bool = False) -> LoadedModel:
    """Load a causal language model and its tokenizer, and check that they belong together.

    Args:
        source: A folder, or a hub id.
        dtype: The type of the weights, by torch's name.
        device: A torch device.
        plain: Whether to read the folder without `transformers` if possible, which needs single precision on a CPU.
    """
    torch = require("torch", "train")
    folder = find_files(source)
    if plain and dtype == "float32" and device.type == "cpu":
        found = read_tiny_model(folder)
        if found is not None:
            check_tokenizer(*found, str(source))
            return LoadedModel(*found)
    hf_tokenizer = load_tokenizer(folder)
    with show_progress(f"loading {source}"):
        model = _load_weights(folder, f"the model {source}", dtype=getattr(torch, dtype))
    tokenizer = HuggingFaceTokenizer(hf_tokenizer, get_stop_ids(model))
    check_tokenizer(model, tokenizer, str(source))
    model.eval()
    return LoadedModel(model.to(device), tokenizer)


def _load_weights(folder: Path | str, what: str, **settings: Any) -> Any:
    """Load a causal language model, and refuse one whose files lack weights or hold others: transformers would draw them at
    random, or tell more than a sentence."""
    kind = require("transformers", "train").AutoModelForCausalLM
    settings |= {"output_loading_info": True, "ignore_mismatched_sizes": True, **_LOCAL}
    model, loaded = _try_load(what, lambda: kind.from_pretrained(str(folder), **settings))
    for name, found, wanted in sorted(loaded["mismatched_keys"]):
        raise DataError(
            f"cannot load {what}: its weight {name} has the shape {tuple(found)}, its settings ask for {tuple(wanted)}"
        )
    if missing := sorted(map(str, loaded["missing_keys"])):
        raise DataError(
            f"cannot load {what}: its files lack {count_things(len(missing), 'weight')}, for example {missing[0]}"
        )
    return model


def get_stop_ids(model: Any) -> frozenset[int]:
    """Return the ids that end a reply according to the model's generation settings."""
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if declared is None:
        declared = getattr(model.config, "eos_token_id", None)
    if declared is None:
        return frozenset()
    return frozenset([declared] if isinstance(declared, int) else declared)


def read_stop_ids(source: str | Path) -> frozenset[int]:
    """Return the ids that end a reply according to the files of a model, without loading the model."""
    transformers = require("transformers", "train")
    folder = find_files(source)
    for kind in (transformers.GenerationConfig, transformers.AutoConfig):
        try:
            declared = kind.from_pretrained(str(folder), **_LOCAL).eos_token_id
        except OSError:  # there is no generation_config.json
            continue
        if declared is not None:
            return frozenset([declared] if isinstance(declared, int) else declared)
    return frozenset()


def check_tokenizer(model: Any, tokenizer: TextTokenizer, where: str) -> None:
    """Refuse a tokenizer without an end token, or with tokens that the model does not have."""
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
    """Refuse a path that is not a complete model folder. A hub id passes if there is no folder of this name."""
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
    declared = read_json(config)
    if not isinstance(declared, dict) or "model_type" not in declared:
        raise DataError(f"{config} does not say which model it is: the key 'model_type' is missing")
    if (folder / _ADAPTER).is_file():
        raise DataError(
            f"{folder} holds an adapter without its base model: export the merged model (without --adapter)"
        )
    weights = []
    for file in sorted(folder.iterdir()):
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(f"{format_path(file)} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise DataError(f"{format_path(file)} is a pipe or a device: a model consists of plain files")
        weights += [status.st_size] if file.suffix in (".safetensors", ".bin") else []
    if not weights:
        raise DataError(f"{folder} holds no weights: model.safetensors is missing")
    _check_numbers(declared, sum(weights), str(config))


def _check_numbers(declared: Mapping[str, Any], size: int, where: str) -> None:
    """Refuse a configuration that declares a far larger model than its weights, which have `size` bytes.

    The estimate counts the embedding and one matrix of each kind in a layer, so a real model has more parameters. For comparison,
    four-bit weights have two parameters per byte.
    """
    for name, value in declared.items():
        if isinstance(value, Mapping):
            _check_numbers(value, size, f"{where}, {name}")
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise DataError(f"{where}: {name} is a number that no model has")

    def find(*names: str) -> int:
        values = (declared.get(name) for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), 0)

    layers, width = find("num_hidden_layers", "n_layer", "num_layers"), find("hidden_size", "n_embd", "d_model")
    heads, places = max(find("num_attention_heads", "n_head"), 1), find("n_positions")
    inner, words = find("intermediate_size", "n_inner", "ffn_dim"), find("vocab_size")
    head = find("head_dim") or width // heads
    experts = find("num_experts", "num_local_experts", "n_routed_experts") * find("moe_intermediate_size")
    in_layer = max(width, 1) * (heads * head + inner + experts)
    needed = max(width, 1) * (words + places) + max(layers, 1) * max(in_layer, 1)
    if needed > _MAX_NUMBERS_PER_BYTE * max(size, 1 << 20) or places > 1 << 16 or layers > 10_000:
        raise DataError(
            f"{where}: a model of {layers:,} layers, {width:,} wide, with {words:,} tokens has at least {needed:,} parameters,"
            f" but the files hold {size:,} bytes of weights: the two do not belong together"
        )


def check_model_folder(folder: Path, where: str) -> None:
    """Refuse a folder whose settings, tokenizer or weights are missing, incomplete, or do not belong together."""
    transformers, safetensors = require("transformers", "train"), require("safetensors", "train")
    check_folder(folder)
    # the headers of all weight files are read, so that an incomplete or missing one is found before training
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
    tokenizer = load_tokenizer(folder)
    try:
        transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
    except Exception as error:
        raise DataError(f"{where} is not a causal language model: {describe_error(error, named=False)}") from error
    model = _load_weights(folder, where, device_map={"": "meta"})  # the names and shapes, not the numbers
    check_tokenizer(model, HuggingFaceTokenizer(tokenizer, get_stop_ids(model)), where)


@contextlib.contextmanager
def hush_transformers() -> Iterator[None]:
    """Keep transformers from drawing progress bars over those of this package, and from reports over several lines; its settings
    are restored afterwards."""
    logging = require("transformers.utils.logging", "train")
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _try_load(what: str, load: Any) -> Any:
    """Run a loader of transformers; an error that it raises becomes a `DataError` of one sentence."""
    try:
        with hush_transformers():
            return load()
    except FedAgentGymError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:300] if lines else type(error).__name__
        raise DataError(f"cannot load {what}: {reason}") from error


# ---- tiny models ------------------------------------------------------------------------------------------------------


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
"""Sizes by the number of parameters without embeddings; `vllm` has heads of width 64, so that vLLM can load it."""


def make_tiny_model(
    vocabulary: Iterable[str], size: str = "0.1m", context_length: int = 4096, seed: int = 0
) -> tuple[Decoder, TextTokenizer]:
    """Make an untrained language model with a vocabulary of words, and its tokenizer. Equal arguments give the same bits.

    Args:
        vocabulary: Texts whose words become tokens; other words are spelt in smaller tokens.
        size: `0.1m`, `1m`, `2m` or `10m`, the number of parameters without the embeddings of the words; or `vllm`, a size whose
            heads vLLM can load.
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
    """Read a model and its tokenizer from a folder; None if only `transformers` can read one of them."""
    require("torch", "train")
    from fedagentgym.agents.model.decoder import Decoder, read_config

    config = read_config(folder)
    if config is None or not any(folder.glob("model*.safetensors")):
        return None
    stops = [config.eos_token_id] if isinstance(config.eos_token_id, int) else config.eos_token_id
    tokenizer = TextTokenizer.read(folder, stops or ())
    return None if tokenizer is None else (Decoder.read(folder, config), tokenizer)
