"""Optional libraries: which extra brings which library, imported on first use and named in an error when absent."""

from __future__ import annotations

import importlib
from types import ModuleType

from fedagentgym.base.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch", "transformers", "peft", "safetensors", "tokenizers", "gguf", "huggingface_hub"),
    "alfworld": ("alfworld", "textworld"),
    "flower": ("flwr", "ray"),
    "vllm": ("vllm",),
    "endpoint": ("httpx",),
    "plots": ("matplotlib",),
    "privacy": ("dp_accounting",),
    "data": ("datasets", "pyarrow"),
    "trl": ("trl",),
    "openenv": ("openenv",),
    "reasoning-gym": ("reasoning_gym",),
    "flwr-datasets": ("flwr_datasets",),
}
"""What each extra brings, by the names under which it is imported."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or raise an error that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        if missing.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(_describe_missing(module, extra)) from None


def explain_missing(error: ImportError) -> str | None:
    """The message for a failed import of a module that an extra brings; None for any other module."""
    top = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules), None)
    return None if extra is None or not isinstance(error, ModuleNotFoundError) else _describe_missing(top, extra)


def _describe_missing(module: str, extra: str) -> str:
    return f"{module} is not installed: it comes with the extra [{extra}], pip install 'fedagentgym[{extra}]'"
